//! What happens to operations and jobs in their lives, the same in every store that keeps them as they are.

use nevertwice_domain::clock::Millis;
use nevertwice_domain::entry::Selector;
use nevertwice_domain::job::{Job, JobStatus};
use nevertwice_domain::operation::{Operation, Pending, Whereabouts};

use super::{Full, JobBounds, JobEnd, MAX_MINTED, MAX_OPERATIONS, Submitted};
use crate::{StoreError, StoreErrorKind};

/// Whether the input is kept: a worker may still be given it. One that was final from the start, and so never began, has none.
pub(crate) fn keeps_input(job: &Job) -> bool {
    match job.status {
        JobStatus::Queued | JobStatus::Running => true,
        JobStatus::Failed => job.started_at.is_some(),
        JobStatus::Succeeded | JobStatus::Cancelled => false,
    }
}

/// What a submit is answered where a job with its key is there; `None` when it takes the key over.
pub(crate) fn answer_to_key(present: &Job, submitted: &Job) -> Option<Submitted> {
    if present.request.digest != submitted.request.digest {
        return Some(Submitted::Conflict(present.id));
    }
    present.answers_its_key().then(|| Submitted::Same(present.clone()))
}

/// What there is already where a job is to be taken in, as its [`JobBounds`] count it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Taken {
    pub(crate) queued: u64,
    pub(crate) tenant_queued: u64,
    pub(crate) bytes: u64,
    pub(crate) tenant_bytes: u64,
}

/// Whether there is no room for this job, of which so many bytes would be kept.
pub(crate) fn full(job: &Job, bytes: u64, bounds: &JobBounds, taken: &Taken) -> Option<Full> {
    let waits = !job.status.is_final();
    let over = |taken: u64, most: u64| taken.saturating_add(bytes) > most;
    if waits && taken.queued >= bounds.max_queued {
        Some(Full::Queue)
    } else if waits && taken.tenant_queued >= bounds.tenant_max_queued {
        Some(Full::TenantQueue)
    } else if over(taken.bytes, bounds.max_bytes) {
        Some(Full::Bytes)
    } else if over(taken.tenant_bytes, bounds.tenant_max_bytes) {
        Some(Full::TenantBytes)
    } else {
        None
    }
}

/// It is taken in.
pub(crate) fn begin(job: &mut Job, bounds: &JobBounds) {
    job.started_at = None;
    job.expires_at = job.status.is_final().then_some(bounds.expires_at);
}

/// A worker gets it.
pub(crate) fn hand_out(job: &mut Job, now: Millis) {
    job.status = JobStatus::Running;
    job.started_at.get_or_insert(now);
    job.not_before = None;
}

/// A call of the upstream is about to be made.
pub(crate) fn send(job: &mut Job) {
    job.sent = true;
    job.attempts = job.attempts.saturating_add(1);
}

/// Its owner gives it up. Returns whether that changes anything.
pub(crate) fn cancel(job: &mut Job, now: Millis, expires_at: Millis) -> bool {
    match job.status {
        JobStatus::Queued => finish(job, JobStatus::Cancelled, now, expires_at),
        JobStatus::Running if !job.cancel => job.cancel = true,
        _ => return false,
    }
    true
}

/// It waits again, as if it had just come. Returns whether that changes anything.
pub(crate) fn retry(job: &mut Job) -> bool {
    if job.status != JobStatus::Failed || !keeps_input(job) {
        return false;
    }
    job.status = JobStatus::Queued;
    (job.started_at, job.finished_at, job.expires_at, job.not_before) = (None, None, None, None);
    (job.attempts, job.sent, job.cancel) = (0, false, false);
    (job.error, job.result) = (None, None);
    job.retries = job.retries.saturating_add(1);
    true
}

/// When the end of a job that has just come to it is first to be told; `None` when it has not, or nobody wants to know.
pub(crate) fn tell_at(job: &Job) -> Option<Millis> {
    job.finished_at.filter(|_| job.status.is_final() && job.webhook.is_some())
}

/// Tells this time that its end was handed out from every other.
pub(crate) fn telling(job: &Job, calls: u32) -> String {
    format!("{}-{calls}", job.retries)
}

/// Its worker is done with it. `given_up_until` = when it is removed if its owner gave it up meanwhile.
pub(crate) fn end(job: &mut Job, end: &JobEnd, now: Millis, given_up_until: Option<Millis>) {
    match end {
        JobEnd::Final { status, error, result, at, expires_at } => {
            job.error.clone_from(error);
            job.result = result.as_ref().map(|(facts, _)| facts.clone());
            finish(job, *status, *at, *expires_at);
        }
        JobEnd::Again { error, not_before } => {
            if error.is_some() {
                job.error.clone_from(error);
            }
            match given_up_until {
                Some(expires_at) => finish(job, JobStatus::Cancelled, now, expires_at),
                None => {
                    job.status = JobStatus::Queued;
                    job.not_before = Some(*not_before);
                    job.sent = false;
                }
            }
        }
    }
}

/// A status that is none to end with.
pub(crate) fn check(end: &JobEnd) -> Result<(), StoreError> {
    match end {
        JobEnd::Final { status, .. } if !status.is_final() => {
            Err(StoreErrorKind::Io.error(format!("a job does not end {}", status.name())))
        }
        _ => Ok(()),
    }
}

fn finish(job: &mut Job, status: JobStatus, at: Millis, expires_at: Millis) {
    job.status = status;
    job.finished_at = Some(at);
    job.expires_at = Some(expires_at);
    job.not_before = None;
    job.sent = false;
}

/// Whether it is of the gateway's own making.
pub(crate) fn is_minted(operation: &Operation) -> bool {
    matches!(operation.at, Whereabouts::Known { .. })
}

/// How many of its kind are kept.
pub(crate) fn most_of(minted: bool) -> u64 {
    if minted { MAX_MINTED } else { MAX_OPERATIONS }
}

fn pending(operation: &mut Operation) -> Option<&mut Option<Pending>> {
    match &mut operation.at {
        Whereabouts::Upstream { pending, .. } => Some(pending),
        Whereabouts::Known { .. } => None,
    }
}

/// When the gateway looks next by itself; `None` when it need not.
pub(crate) fn next_look_at(operation: &Operation) -> Option<Millis> {
    match &operation.at {
        Whereabouts::Upstream { pending, .. } => pending.as_ref().map(|pending| pending.next_look_at),
        Whereabouts::Known { .. } => None,
    }
}

/// Somebody looks now, and again at that time.
pub(crate) fn look(operation: &mut Operation, again_at: Millis) {
    if let Some(Some(pending)) = pending(operation) {
        pending.looks = pending.looks.saturating_add(1);
        pending.next_look_at = again_at;
    }
}

/// Nothing of it is pending any more. Returns whether something was.
pub(crate) fn settle(operation: &mut Operation) -> bool {
    pending(operation).is_some_and(|pending| pending.take().is_some())
}

/// Whether an entry of this operation might match: what its status will be, and when it counts as first refused, is not known yet.
pub(crate) fn may_match(operation: &Operation, which: &Selector) -> bool {
    let Whereabouts::Upstream { pending: Some(pending), .. } = &operation.at else { return false };
    which.fingerprint.is_none_or(|fingerprint| fingerprint == pending.fingerprint)
        && which.document.is_none_or(|document| document == pending.document.digest)
        && which.upstream.as_ref().is_none_or(|upstream| *upstream == operation.upstream)
}
