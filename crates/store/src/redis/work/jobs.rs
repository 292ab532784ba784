//! Jobs come, are looked at, given up, and tried again.

use bytes::Bytes;
use nevertwice_domain::clock::Millis;
use nevertwice_domain::job::{Job, JobId};
use redis::pipe;

use super::super::Shared;
use super::super::event::Event;
use super::super::operations::{corrupt, text};
use super::bodies::is_small;
use super::rows::{Change, Outcome, Place, Row, Written, undecided};
use super::{DECISIONS, stored};
use crate::work::life::{self, Taken};
use crate::work::{Full, JobBounds, Submitted};
use crate::{StoreError, StoreErrorKind};

/// Who has an idempotency key.
#[derive(Default)]
struct Holder {
    id: Option<JobId>,
    row: Option<Row>,
}

impl Shared {
    pub(super) async fn submit(
        &self,
        mut job: Job,
        input: &Bytes,
        result: Option<&Bytes>,
        bounds: &JobBounds,
    ) -> Result<Submitted, StoreError> {
        life::begin(&mut job, bounds);
        let kept = life::keeps_input(&job);
        let input_key = self.keys.job_input(&job.id);
        // a name of its own: the body of a result is no other job's
        let result_name = self.leases.token();
        let result_key = self.keys.job_result(&result_name);
        let mut brought = false;
        for _ in 0..DECISIONS {
            let holder = self.holder(&job).await?;
            let present = holder.row.as_ref().filter(|row| row.is_live(self.now()));
            let answer = match present {
                // the answer to what was sent before was lost
                Some(row) if row.job.id == job.id => Some(Submitted::New(row.job.clone())),
                Some(row) => life::answer_to_key(&row.job, &job),
                None => None,
            };
            if let Some(answer) = answer {
                if brought && !matches!(answer, Submitted::New(_)) {
                    self.drop_body(&input_key).await;
                    self.drop_body(&result_key).await;
                }
                return Ok(answer);
            }
            if !brought {
                // a large one is not brought to a place that has no room for it
                let bodies = [kept.then_some(input), result];
                if bodies.into_iter().flatten().any(|body| !is_small(body)) {
                    let bytes = bodies.into_iter().flatten().map(|body| body.len() as u64).sum();
                    if let Some(full) = life::full(&job, bytes, bounds, &self.taken(&job).await?) {
                        return Ok(Submitted::Full(full));
                    }
                }
                if kept {
                    self.put_body(&input_key, input).await?;
                }
                if let Some(result) = result {
                    self.put_body(&result_key, result).await?;
                }
                brought = true;
            }
            let result = result.map(|result| (result_name.as_str(), result.len()));
            let answer = self.take_in(&job, kept.then_some(input.len()), result, bounds, &holder).await?;
            match answer.as_slice() {
                b"new" | b"there" => return Ok(Submitted::New(job)),
                b"changed" => {}
                b"lost" => brought = false,
                other => {
                    let full = full(other).ok_or_else(|| corrupt("a submit"))?;
                    self.drop_body(&input_key).await;
                    self.drop_body(&result_key).await;
                    return Ok(Submitted::Full(full));
                }
            }
        }
        Err(undecided())
    }

    async fn holder(&self, job: &Job) -> Result<Holder, StoreError> {
        let Some(key) = job.key else { return Ok(Holder::default()) };
        let mut get = pipe();
        get.cmd("GET").arg(self.keys.idempotency(&key));
        let (id,): (Option<Vec<u8>>,) = self.link.ask(&get, self.budget(0)).await?;
        let Some(id) = id else { return Ok(Holder::default()) };
        let id = text(&id).and_then(|id| id.parse().ok()).ok_or_else(|| corrupt("an idempotency key"))?;
        Ok(Holder { id: Some(id), row: self.row(&id).await? })
    }

    async fn take_in(
        &self,
        job: &Job,
        input: Option<usize>,
        result: Option<(&str, usize)>,
        bounds: &JobBounds,
        holder: &Holder,
    ) -> Result<Vec<u8>, StoreError> {
        let keys = &self.keys;
        let own = keys.job(&job.id);
        let value = stored::encode(job)?;
        let most = if job.status.is_final() { String::new() } else { bounds.max_queued.to_string() };
        let mut call = self.scripts.job_submit.key(&own);
        call.key(keys.job_input(&job.id))
            .key(keys.stream(&job.upstream))
            .key(keys.ends())
            .key(keys.jobs())
            .key(keys.tenant_jobs(&job.tenant))
            .key(keys.job_upstreams())
            .key(job.key.map_or_else(|| own.clone(), |key| keys.idempotency(&key)))
            .key(holder.id.map_or_else(|| own.clone(), |id| keys.job(&id)))
            .key(result.map_or_else(|| own.clone(), |(name, _)| keys.job_result(name)))
            .key(keys.job_records())
            .key(keys.job_sums())
            .key(keys.untold())
            .key(keys.tenant_untold(&job.tenant))
            .arg(job.id.to_string())
            .arg(&value)
            .arg(bounds.expires_at.0)
            .arg(Row::end_member(job))
            .arg(self.life_until(bounds.expires_at))
            .arg(input.map_or_else(String::new, |length| length.to_string()))
            .arg(job.upstream.as_str())
            .arg(most)
            .arg(job.created_at.0)
            .arg(u8::from(job.key.is_some()))
            .arg(holder.id.map_or_else(String::new, |id| id.to_string()))
            .arg(holder.row.as_ref().map_or("", |row| row.revision.as_str()))
            .arg(keys.events())
            .arg(Event::Waiting(job.upstream.clone()).encode())
            .arg(result.map_or_else(String::new, |(_, length)| length.to_string()))
            .arg(result.map_or("", |(name, _)| name))
            .arg(job.tenant.as_str())
            .arg(bounds.tenant_max_queued)
            .arg(bounds.max_bytes)
            .arg(bounds.tenant_max_bytes)
            .arg(life::tell_at(job).map_or_else(String::new, |at| at.0.to_string()));
        self.link.call(&call, self.budget(value.len())).await
    }

    async fn taken(&self, job: &Job) -> Result<Taken, StoreError> {
        let call = self.scripts.job_depth.key(self.keys.stream(&job.upstream));
        let (queued, _running): (u64, u64) = self.link.call(&call, self.budget(0)).await?;
        let tenant = job.tenant.as_str();
        let mut get = pipe();
        get.cmd("HMGET").arg(self.keys.job_sums());
        get.arg("").arg(tenant).arg(format!("{tenant} {}", job.upstream));
        type Sums = (Option<u64>, Option<u64>, Option<u64>);
        let ((bytes, tenant_bytes, tenant_queued),): (Sums,) = self.link.ask(&get, self.budget(0)).await?;
        let [bytes, tenant_bytes, tenant_queued] =
            [bytes, tenant_bytes, tenant_queued].map(Option::unwrap_or_default);
        Ok(Taken { queued, tenant_queued, bytes, tenant_bytes })
    }

    pub(super) async fn input(&self, id: &JobId) -> Result<Option<Bytes>, StoreError> {
        match self.live_row(id).await? {
            Some(row) if life::keeps_input(&row.job) => self.body(&self.keys.job_input(id)).await,
            _ => Ok(None),
        }
    }

    pub(super) async fn result(&self, id: &JobId) -> Result<Option<Bytes>, StoreError> {
        match self.live_row(id).await? {
            Some(row) if !row.result.is_empty() => self.body(&self.keys.job_result(&row.result)).await,
            _ => Ok(None),
        }
    }

    pub(super) async fn cancel(&self, id: &JobId, expires_at: Millis) -> Result<Option<Job>, StoreError> {
        for _ in 0..DECISIONS {
            let Some(mut row) = self.live_row(id).await? else { return Ok(None) };
            if !life::cancel(&mut row.job, self.now(), expires_at) {
                return Ok(Some(row.job));
            }
            row.given_up_until = Some(expires_at);
            let place = if row.job.status.is_final() { Place::Over } else { Place::Stay };
            let token = row.token.clone();
            let change = Change { row, token, place, outcome: Outcome::Same };
            if self.write(&change).await? == Written::Done {
                return Ok(Some(change.row.job));
            }
        }
        Err(undecided())
    }

    pub(super) async fn retry(&self, id: &JobId) -> Result<Option<Job>, StoreError> {
        for _ in 0..DECISIONS {
            let Some(mut row) = self.live_row(id).await? else { return Ok(None) };
            if !life::retry(&mut row.job) {
                return Ok(Some(row.job));
            }
            row.given_up_until = None;
            let outcome = if row.result.is_empty() { Outcome::Same } else { Outcome::None };
            let change = Change { row, token: String::new(), place: Place::New, outcome };
            if self.write(&change).await? == Written::Done {
                return Ok(Some(change.row.job));
            }
        }
        Err(undecided())
    }

    /// What of a body that was brought is gone, and cannot be brought again.
    pub(super) fn lost() -> StoreError {
        StoreErrorKind::Io.error("all data in Redis was lost while a result was on its way")
    }
}

/// Which bound the script names.
fn full(answer: &[u8]) -> Option<Full> {
    match answer {
        b"full queue" => Some(Full::Queue),
        b"full tenant queue" => Some(Full::TenantQueue),
        b"full bytes" => Some(Full::Bytes),
        b"full tenant bytes" => Some(Full::TenantBytes),
        _ => None,
    }
}
