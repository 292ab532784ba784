//! Ends that are to be told: whose there are, handing them out, and what became of them.

use nevertwice_domain::clock::Millis;
use nevertwice_domain::job::JobId;
use nevertwice_domain::tenant::TenantId;
use redis::pipe;

use super::super::Shared;
use super::super::operations::STEP;
use super::DECISIONS;
use super::rows::Row;
use crate::StoreError;
use crate::work::Untold;

impl Shared {
    pub(super) async fn tenants_to_tell(&self) -> Result<Vec<TenantId>, StoreError> {
        let mut get = pipe();
        get.cmd("ZRANGEBYSCORE").arg(self.keys.untold()).arg("-inf").arg(self.now().0);
        let (names,): (Vec<String>,) = self.link.ask(&get, STEP).await?;
        Ok(names.iter().filter_map(|name| TenantId::new(name).ok()).collect())
    }

    pub(super) async fn to_tell(
        &self,
        tenant: &TenantId,
        again_at: Millis,
        limit: usize,
    ) -> Result<Vec<Untold>, StoreError> {
        let mut due = Vec::new();
        // anew where some were of jobs that are gone
        for _ in 0..DECISIONS {
            let rest = limit - due.len();
            let mut call = self.scripts.end_due.key(self.keys.untold());
            call.key(self.keys.tenant_untold(tenant)).arg(tenant.as_str());
            call.arg(self.now().0).arg(again_at.0).arg(rest);
            let ids: Vec<String> = self.link.call(&call, self.budget(0)).await?;
            for id in &ids {
                // a member that is no id is nobody's job; it is put off again and again, and goes with the key
                let Ok(id) = id.parse::<JobId>() else { continue };
                match self.take_end(tenant, &id).await {
                    Ok(untold) => due.extend(untold),
                    // one that cannot be read must not keep the others from being told
                    Err(error) => {
                        if self.link.first_in_a_while("job") {
                            tracing::error!(%id, %error, "the end of a job cannot be told");
                        }
                    }
                }
            }
            if ids.len() < rest || due.len() >= limit {
                break;
            }
        }
        Ok(due)
    }

    /// Hands out one that was named; `None` when it is not to be told any more, or not as the job was read.
    async fn take_end(&self, tenant: &TenantId, id: &JobId) -> Result<Option<Untold>, StoreError> {
        // one that cannot be read is not counted: others may be able to
        let row = self.row(id).await?;
        if let Some(row) = row.as_ref().filter(|row| !row.is_live(self.now())) {
            self.drop_job(&Row::end_member(&row.job), &row.result).await?;
            return Ok(None);
        }
        let token = self.leases.token();
        let mut call = self.scripts.end_take.key(self.keys.job(id));
        call.key(self.keys.untold()).key(self.keys.tenant_untold(tenant));
        call.arg(id.to_string()).arg(tenant.as_str());
        call.arg(row.as_ref().map_or("", |row| row.revision.as_str())).arg(&token);
        let calls: u32 = self.link.call(&call, self.budget(0)).await?;
        let Some(row) = row.filter(|_| calls > 0) else { return Ok(None) };
        let untold = Untold { job: row.job, calls, token };
        // a replica has let it wait again that knows nothing of ends that are to be told
        if !untold.job.status.is_final() {
            self.told(&untold, None).await?;
            return Ok(None);
        }
        Ok(Some(untold))
    }

    pub(super) async fn told(&self, untold: &Untold, again_at: Option<Millis>) -> Result<bool, StoreError> {
        let Untold { job, token, .. } = untold;
        let mut call = self.scripts.end_told.key(self.keys.job(&job.id));
        call.key(self.keys.untold()).key(self.keys.tenant_untold(&job.tenant));
        call.arg(job.id.to_string()).arg(job.tenant.as_str()).arg(token);
        call.arg(again_at.map_or_else(String::new, |at| at.0.to_string())).arg(self.now().0);
        let was: u64 = self.link.call(&call, self.budget(0)).await?;
        Ok(was == 1)
    }
}
