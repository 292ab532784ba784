//! The workers: they take jobs from the store and drive each to its outcome, by the steps of a request.
//!
//! A job is a worker's as long as its claim holds. That a call is about to be made is durable before it is made; so a job whose
//! worker died is run again only if no call was under way, and every call stands in the audit before its job is settled.

mod verdict;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use nevertwice_domain::job::{Job, JobStatus};
use nevertwice_domain::outcome::{Outcome, OwnCode};
use nevertwice_store::work::{CLAIM_LIFE, Claim, Held, JobEnd, JobStore};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use crate::Shared;
use crate::audit::Audit;
use crate::exchange::account::Record;
use crate::exchange::unattended::{self, Ended};
use crate::jobs::{Jobs, Room};
use crate::lock::Lock;
use crate::upstream::Upstream;
use verdict::Next;

/// How long a claim waits for a job before it is made anew.
const CLAIM_WAIT: Duration = Duration::from_secs(10);
/// After a store that failed, a pool that had no place, and while calls could not be accounted for.
const PAUSE: Duration = Duration::from_secs(1);
/// How often a claim is renewed.
const RENEW_EVERY: Duration = Duration::from_secs(5);
/// A claim that could not be renewed is given up this much before it ends.
const MARGIN: Duration = Duration::from_secs(2);
/// How long the audit may take to write what a job's call left.
const AUDIT_WAIT: Duration = Duration::from_secs(1);
/// How long it is tried to settle a job.
const SETTLE_FOR: Duration = Duration::from_secs(30);

/// Begins to work for every upstream.
pub(crate) fn start(gateway: &Arc<Shared>, jobs: &Arc<Jobs>) {
    for upstream in &gateway.upstreams {
        let desk = Arc::new(Desk {
            inputs: jobs.inputs_of_one(gateway.upstreams.len()),
            busy_until: Lock::new(Instant::now()),
        });
        let claimer = claim(Arc::clone(gateway), Arc::clone(jobs), Arc::clone(upstream), desk);
        gateway.tracker.spawn(claimer);
    }
}

/// What the workers of one upstream share.
struct Desk {
    /// For inputs in their hands.
    inputs: Room,
    /// The upstream's pool had no place for a job: none is taken until then.
    busy_until: Lock<Instant>,
}

impl Desk {
    /// Waits until a job may be taken: a call has a place, and what it leaves can be accounted for.
    async fn opens(&self, gateway: &Shared) {
        loop {
            let (until, now) = (*self.busy_until.hold(), Instant::now());
            let until = match gateway.audit.as_ref().is_some_and(Audit::must_refuse) {
                true => until.max(now + PAUSE),
                false if until <= now => return,
                false => until,
            };
            tokio::time::sleep_until(until.into()).await;
        }
    }
}

/// Takes one upstream's jobs, as long as there are places for workers.
async fn claim(gateway: Arc<Shared>, jobs: Arc<Jobs>, upstream: Arc<Upstream>, desk: Arc<Desk>) {
    let places = Arc::new(Semaphore::new(upstream.pool.limit()));
    let drain = gateway.stop.drain.clone();
    let next = async {
        loop {
            let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
            desk.opens(&gateway).await;
            match jobs.store.claim(upstream.name(), CLAIM_WAIT).await {
                Ok(None) => {}
                Ok(Some(claim)) => {
                    let (gateway, jobs) = (Arc::clone(&gateway), Arc::clone(&jobs));
                    let worker = Worker { gateway, jobs, desk: Arc::clone(&desk), claim };
                    worker.gateway.tracker.clone().spawn(worker.run(place));
                }
                Err(error) => {
                    jobs.store_failed("no job could be taken", &error);
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    };
    // what was claimed in the moment of the drain is given back by the store
    drain.run_until_cancelled(next).await;
}

/// One job in hand.
struct Worker {
    gateway: Arc<Shared>,
    jobs: Arc<Jobs>,
    desk: Arc<Desk>,
    claim: Claim,
}

/// Why an attempt does not go on.
enum Stop {
    /// The job's owner has given it up.
    GivenUp,
    /// The claim does not hold any more.
    Lost,
}

/// How an attempt was left.
enum Left {
    Ended(Ended),
    Broken,
    Stopped(Stop),
    Cut,
}

impl Worker {
    async fn run(self, _place: OwnedSemaphorePermit) {
        let job = &self.claim.job;
        let mut record = Record::of_job(&self.gateway, job);
        if job.sent {
            // its call began, and nobody knows how it ended
            record.attempts = 1;
            unattended::introduce(&self.gateway, job, &mut record);
            return match job.cancel {
                true => self.given_up(record).await,
                false => self.interrupted(record).await,
            };
        }
        if job.cancel {
            // given up while a worker had it that has died since
            return self.given_up(record).await;
        }
        let (sent, refused) = (AtomicBool::new(false), Notify::new());
        let left = tokio::select! {
            biased;
            ended = AssertUnwindSafe(self.attempt((&sent, &refused), &mut record)).catch_unwind() => {
                ended.map_or(Left::Broken, Left::Ended)
            }
            stop = self.keep(&refused) => Left::Stopped(stop),
            () = self.gateway.stop.cut.cancelled() => Left::Cut,
        };
        let sent = sent.load(Ordering::Relaxed);
        match left {
            Left::Ended(ended) => self.ended(ended, sent, record).await,
            Left::Broken => {
                tracing::error!(job = %job.id, "a worker failed on a job: this is a fault of the gateway");
                self.ended(Ended::from(OwnCode::Internal), sent, record).await;
            }
            Left::Stopped(Stop::GivenUp) => self.given_up(record).await,
            Left::Stopped(Stop::Lost) => {
                tracing::warn!(job = %job.id, "a job was lost to another worker: the store could not be reached in time");
                self.account(record, Outcome::Own(OwnCode::Interrupted)).await;
            }
            Left::Cut if sent => self.interrupted(record).await,
            Left::Cut => {
                let end = JobEnd::Again { error: job.error.clone(), not_before: self.gateway.clock.now() };
                self.account(record, Outcome::Own(OwnCode::Draining)).await;
                self.settle(end).await;
            }
        }
    }

    /// Makes an attempt. Says that its call begins, or that the store does not let it: then it waits to be ended.
    async fn attempt(&self, (sent, refused): (&AtomicBool, &Notify), record: &mut Record) -> Ended {
        let (gateway, jobs, job) = (&self.gateway, &self.jobs, &self.claim.job);
        let Some(tenant) = gateway.tenants.named(&job.tenant) else { return OwnCode::ForbiddenRoute.into() };
        let room = self.desk.inputs.take(job.request.bytes).await;
        let input = match jobs.store.input(&job.id).await {
            Ok(Some(input)) => room.holding(input),
            Ok(None) => return OwnCode::Internal.into(),
            Err(error) => {
                jobs.store_failed("an input could not be read", &error);
                return OwnCode::StoreUnavailable.into();
            }
        };
        let sending = async {
            if gateway.audit.as_ref().is_some_and(Audit::must_refuse) {
                return Err(OwnCode::AuditUnavailable.into());
            }
            match jobs.store.sending(&self.claim).await {
                Ok(true) => {
                    sent.store(true, Ordering::Relaxed);
                    Ok(())
                }
                // given up or lost: a look after the claim says which
                Ok(false) => {
                    refused.notify_one();
                    std::future::pending().await
                }
                Err(error) => {
                    jobs.store_failed("that a call begins could not be stored: it is not made", &error);
                    Err(OwnCode::StoreUnavailable.into())
                }
            }
        };
        let results = (&jobs.results, jobs.rules.result_max_bytes);
        unattended::attempt(gateway, tenant, (job, input), results, sending, record).await
    }

    /// Holds the claim. Ends when it should not be held, or is not; looks at once when a call was `refused`.
    async fn keep(&self, refused: &Notify) -> Stop {
        let id = self.claim.job.id;
        let mut given_up = self.jobs.given_up();
        let mut holds_until = Instant::now() + CLAIM_LIFE - MARGIN;
        let mut next = RENEW_EVERY;
        loop {
            tokio::select! {
                () = tokio::time::sleep(next) => {}
                () = given_up.of(&id) => {}
                () = refused.notified() => {}
            }
            let asked = Instant::now();
            let renewed = tokio::time::timeout_at(holds_until.into(), self.jobs.store.renew(&self.claim));
            next = match renewed.await {
                Ok(Ok(Held::Yes)) => {
                    holds_until = asked + CLAIM_LIFE - MARGIN;
                    RENEW_EVERY
                }
                Ok(Ok(Held::Cancelled)) => return Stop::GivenUp,
                Ok(Ok(Held::No)) | Err(_) => return Stop::Lost,
                Ok(Err(_)) if Instant::now() + PAUSE >= holds_until => return Stop::Lost,
                Ok(Err(_)) => PAUSE,
            };
        }
    }

    async fn ended(&self, ended: Ended, sent: bool, mut record: Box<Record>) {
        let status = ended.status();
        if let Outcome::Own(OwnCode::PoolFull | OwnCode::QueueTimeout) = ended.outcome {
            *self.desk.busy_until.hold() = Instant::now() + PAUSE;
        }
        record.ended(ended.outcome, status);
        self.written(record).await;
        let now = self.gateway.clock.now();
        let next = verdict::next(&self.claim.job, ended, sent, &self.jobs.rules, now, fastrand::f64());
        let end = match next {
            Next::Over { status, error, result } => {
                JobEnd::Final { status, error, result, at: now, expires_at: self.jobs.expires_at(now) }
            }
            Next::Again { error, not_before } => JobEnd::Again { error, not_before },
        };
        self.settle(end).await;
    }

    /// Its owner does not want it any more.
    async fn given_up(&self, record: Box<Record>) {
        self.account(record, Outcome::Own(OwnCode::JobCancelled)).await;
        let now = self.gateway.clock.now();
        let expires_at = self.jobs.expires_at(now);
        let end =
            JobEnd::Final { status: JobStatus::Cancelled, error: None, result: None, at: now, expires_at };
        self.settle(end).await;
    }

    async fn interrupted(&self, record: Box<Record>) {
        self.account(record, Outcome::Own(OwnCode::Interrupted)).await;
        let now = self.gateway.clock.now();
        let error = verdict::interrupted();
        let expires_at = self.jobs.expires_at(now);
        let end = JobEnd::Final {
            status: JobStatus::Failed,
            error: Some(error),
            result: None,
            at: now,
            expires_at,
        };
        self.settle(end).await;
    }

    /// Writes the line of an attempt that ended by the gateway's own doing.
    async fn account(&self, mut record: Box<Record>, outcome: Outcome) {
        if let Outcome::Own(code) = outcome {
            record.ended(outcome, code.status());
        }
        self.written(record).await;
    }

    /// Lets the line out, so that what a call left behind is there before its job is settled.
    async fn written(&self, record: Box<Record>) {
        drop(record);
        if let Some(audit) = &self.gateway.audit {
            Audit::flush(audit, AUDIT_WAIT).await;
        }
    }

    /// Settles the job; tells whoever waits for its end.
    async fn settle(&self, end: JobEnd) {
        let job: &Job = &self.claim.job;
        let status = match &end {
            JobEnd::Final { status, .. } => Some(*status),
            JobEnd::Again { .. } => None,
        };
        if !holding(&*self.jobs.store, &self.claim, self.settled(end)).await {
            return;
        }
        if let Some(status) = status {
            self.jobs.tell_end(job.id, &job.upstream, status, job.webhook.is_some());
        }
    }

    /// Whether it could be settled.
    async fn settled(&self, end: JobEnd) -> bool {
        let job: &Job = &self.claim.job;
        let until = Instant::now() + SETTLE_FOR;
        loop {
            match self.jobs.store.settle_job(&self.claim, end.clone()).await {
                Ok(true) => return true,
                Ok(false) => {
                    tracing::warn!(job = %job.id, "a job was settled by somebody else");
                    return false;
                }
                Err(error) => {
                    self.jobs.store_failed("a job could not be settled", &error);
                    if Instant::now() >= until || self.gateway.stop.cut.is_cancelled() {
                        return false;
                    }
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }
}

/// Renews a claim as long as something lasts that is not broken off by what a renewal says.
async fn holding<T>(store: &dyn JobStore, claim: &Claim, task: impl Future<Output = T>) -> T {
    let renewing = async {
        // the last renewal may be some time ago
        let mut next = PAUSE;
        loop {
            tokio::time::sleep(next).await;
            next = match tokio::time::timeout(RENEW_EVERY, store.renew(claim)).await {
                Ok(Ok(_)) => RENEW_EVERY,
                Ok(Err(_)) | Err(_) => PAUSE,
            };
        }
    };
    tokio::select! {
        biased;
        done = task => done,
        never = renewing => never,
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use nevertwice_domain::clock::{ManualClock, Millis};
    use nevertwice_store::work::memory::WorkInMemory;
    use nevertwice_store::work::suite::samples;

    use super::*;

    #[tokio::test]
    async fn a_claim_does_not_lapse_while_a_result_is_on_its_way() {
        let clock = Arc::new(ManualClock::at(Millis(1_000_000)));
        let store = WorkInMemory::new(Arc::clone(&clock) as _);
        let job = Job { status: JobStatus::Queued, ..verdict::sample(0) };
        let upstream = job.upstream.clone();
        let bounds = samples::bounds(Millis(i64::MAX));
        assert!(store.submit(job, Bytes::from_static(b"x"), None, &bounds).await.is_ok());
        let Ok(Some(claim)) = store.claim(&upstream, Duration::ZERO).await else { unreachable!() };
        // nearly its life, so much again while it is settled
        let most = CLAIM_LIFE.as_millis() as i64 - 1000;
        clock.advance_ms(most);
        holding(&store, &claim, tokio::time::sleep(3 * PAUSE)).await;
        clock.advance_ms(most);
        assert!(matches!(store.claim(&upstream, Duration::ZERO).await, Ok(None)));
        let end = JobEnd::Again { error: None, not_before: Millis(0) };
        assert!(matches!(store.settle_job(&claim, end).await, Ok(true)));
    }
}
