//! What operators see of jobs, and can do to them.

use std::sync::Arc;

use nevertwice_domain::job::{Job, JobId};
use nevertwice_store::StoreError;
use nevertwice_store::work::JobStore;

use crate::Gateway;

impl Gateway {
    /// Where jobs live; `None` where they are not served.
    #[must_use]
    pub fn jobs(&self) -> Option<Arc<dyn JobStore>> {
        self.shared.jobs.as_ref().map(|jobs| Arc::clone(&jobs.store))
    }

    /// An operator gives a job up, whosever it is. Returns the job as it is then, and whether this changed anything; `None` when
    /// there is no such job.
    ///
    /// # Errors
    /// When it could not be made durable.
    pub async fn cancel_job(&self, id: &JobId) -> Result<Option<(Job, bool)>, StoreError> {
        match &self.shared.jobs {
            Some(jobs) => jobs.cancel(id, self.now()).await,
            None => Ok(None),
        }
    }

    /// An operator's word that a job that has failed is to be tried again, whatever it failed of: the memory is asked as at its first
    /// attempt. Returns as [`Gateway::cancel_job`].
    ///
    /// # Errors
    /// When it could not be made durable.
    pub async fn retry_job(&self, id: &JobId) -> Result<Option<(Job, bool)>, StoreError> {
        match &self.shared.jobs {
            Some(jobs) => jobs.retry(id).await,
            None => Ok(None),
        }
    }
}
