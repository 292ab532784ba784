//! A record on its way to the store.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use nevertwice_domain::clock::Millis;
use nevertwice_domain::entry::{Candidate, Selector};
use nevertwice_domain::fingerprint::Fingerprint;
use nevertwice_store::{Fence, Recorded, RefusalStore, StoreError};

use super::{Distrusted, Memory, report};
use crate::metrics::Metrics;

/// A record on its way. It goes on when nobody waits for it any more, because its time is up or its client left: half of it may be
/// done. What it finds there is another attempt's, which somebody may have seen, and stays; what it has written itself stays too,
/// unless the document was accepted meanwhile, or the upstream is not believed.
pub(super) struct Writing<'a> {
    record: BoxFuture<'static, Result<Recorded, StoreError>>,
    is_over: bool,
    memory: &'a Memory,
    distrusted: &'a Arc<Distrusted>,
    key: Fingerprint,
    judged_at: Millis,
}

impl<'a> Writing<'a> {
    pub(super) fn begin(
        memory: &'a Memory,
        distrusted: &'a Arc<Distrusted>,
        candidate: Candidate,
        fence: Fence,
        judged_at: Millis,
    ) -> Self {
        let (store, key) = (Arc::clone(&memory.store), candidate.entry.fingerprint);
        let record = Box::pin(async move { store.record(candidate, fence).await });
        Self { record, is_over: false, memory, distrusted, key, judged_at }
    }

    /// What became of it.
    pub(super) async fn ended(&mut self) -> Result<Recorded, StoreError> {
        let ended = self.record.as_mut().await;
        self.is_over = true;
        ended
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let record = std::mem::replace(&mut self.record, Box::pin(std::future::pending()));
        let (store, metrics) = (Arc::clone(&self.memory.store), Arc::clone(&self.memory.metrics));
        let (accepted, distrusted) = (Arc::clone(&self.memory.accepted), Arc::clone(self.distrusted));
        let (key, judged_at) = (self.key, self.judged_at);
        self.memory.tracker.spawn(async move {
            let is_distrusted = match record.await {
                Ok(Recorded::Stored(entry)) => distrusted.includes(entry.recorded_at),
                Ok(_) => return,
                // it may be written all the same, or wait to be
                Err(error) => {
                    report(&metrics, "record", &error);
                    false
                }
            };
            let was_accepted = accepted.get(&key).is_some_and(|at| at >= judged_at);
            if was_accepted || is_distrusted || distrusted.includes(judged_at) {
                forget(store.as_ref(), &metrics, key).await;
            }
        });
    }
}

/// Removes an entry without anybody waiting for it.
pub(super) async fn forget(store: &dyn RefusalStore, metrics: &Metrics, key: Fingerprint) {
    if let Err(error) = store.forget(&Selector::key(key)).await {
        report(metrics, "forget", &error);
    }
}
