//! What every store of operations and jobs must do, as tests: one suite that all of them pass. A fault found in one store
//! becomes a case here.
//!
//! ```no_run
//! # use std::sync::Arc;
//! # use nevertwice_store::work::{memory::WorkInMemory, suite};
//! # async fn test() {
//! suite::conformance(async |clock| Arc::new(WorkInMemory::new(clock))).await;
//! # }
//! ```
#![expect(clippy::expect_used, reason = "a suite fails by panicking")]

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use nevertwice_domain::clock::{Clock, ManualClock, Millis};
use nevertwice_domain::job::{Job, JobError, JobId, JobStatus};
use nevertwice_domain::operation::Operation;

use super::{
    Claim, Full, Held, JobBounds, JobEnd, JobPage, JobQuery, JobStore, OperationStore, Submitted, Untold,
};

mod claims;
mod ends;
mod keys;
mod operations;
mod pages;
mod room;
pub mod samples;
mod submits;
mod tells;

/// A store of operations and jobs.
pub trait Work: OperationStore + JobStore + 'static {}

impl<S: OperationStore + JobStore + 'static> Work for S {}

/// Longer than anything here takes: a wait that ends by it has failed.
const LONG: Duration = Duration::from_secs(30);

/// A store under test, empty at the beginning of a case, and the clock that it reads.
struct Bench<S> {
    store: Arc<S>,
    clock: Arc<ManualClock>,
}

/// Runs cases, each on a store of its own.
macro_rules! cases {
    ($make:ident, $($file:ident: $($case:ident)*;)*) => {$($({
        let clock = Arc::new(ManualClock::at(Millis(1_700_000_000_000)));
        let store = $make(Arc::clone(&clock)).await;
        tracing::debug!(case = stringify!($case), "conformance");
        $file::$case(&Bench { store, clock }).await;
    })*)*};
}

/// Runs every case on a store of its own, which `make` opens, empty, on the clock it is given. Needs a runtime with at least
/// two threads.
///
/// # Panics
/// When the store does not do what the traits say.
pub async fn conformance<S: Work>(make: impl AsyncFn(Arc<ManualClock>) -> Arc<S>) {
    cases! { make,
        operations: what_was_put_is_there_as_it_was an_operation_that_expired_is_not_there a_removed_operation_is_gone
            one_of_many_settles what_is_due_is_handed_to_one_alone due_comes_again_and_counts_looks
            what_is_settled_is_not_due the_gateways_own_operations_make_room_for_each_other_alone;
        submits: what_was_submitted_is_there_as_it_was bodies_are_bytes a_job_that_is_final_already_is_kept_and_not_handed_out
            too_many_that_wait_are_refused the_bound_is_of_one_upstream a_tenant_has_its_share_of_what_waits
            ids_that_are_not_there_are_none a_job_that_never_ends_is_removed;
        room: what_is_kept_is_counted a_body_that_does_not_fit_is_refused what_is_removed_gives_room
            results_are_kept_though_there_is_no_room a_job_that_is_final_already_needs_room what_expires_gives_room
            a_tenant_has_its_share_of_the_bytes the_bounds_are_named_in_their_order many_submits_at_once_keep_the_bound;
        keys: the_same_request_is_the_same_job another_request_is_a_conflict a_verdict_answers_its_key
            a_transient_failure_makes_room a_cancelled_job_makes_room one_of_many_submits_with_a_key_is_taken_in
            a_key_ends_with_its_job the_same_job_is_found_though_the_queue_is_full;
        claims: jobs_come_in_their_order upstreams_have_queues_of_their_own a_job_is_handed_out_once
            many_workers_share_the_jobs a_waiter_is_woken a_waiter_that_leaves_takes_nothing_with_it nothing_comes_of_waiting
            a_claim_that_is_renewed_holds a_lapsed_claim_is_handed_out_again
            a_correction_of_the_time_ends_no_claim sent_is_as_the_worker_left_it
            an_old_claim_does_nothing;
        ends: a_job_succeeds a_failed_job_keeps_its_answer_and_its_input a_job_waits_for_its_next_attempt
            attempts_are_ordered_by_their_time a_waiting_job_is_cancelled_at_once a_running_job_is_told
            a_final_job_stays_as_it_is a_job_that_was_given_up_does_not_wait_again a_failed_job_is_tried_again
            only_a_failed_job_is_tried_again what_is_final_is_removed_when_it_expires;
        tells: an_end_is_to_be_told_once every_end_is_to_be_told nothing_is_told_of_what_nobody_asked_for
            an_end_is_handed_to_one_alone an_end_that_was_not_told_comes_again who_is_late_changes_nothing
            tenants_are_asked_for_each_alone an_end_goes_with_its_job a_job_that_is_tried_again_has_another_end;
        pages: the_latest_come_first filters_select pages_are_complete cursors_survive_change pages_are_bounded
            depth_counts_what_is_not_final;
    }
}

/// As [`conformance`], what is left to stores whose fences end with the process.
///
/// # Panics
/// When the store does not do what the traits say.
pub async fn forgets<S: Work>(make: impl AsyncFn(Arc<ManualClock>) -> Arc<S>) {
    cases! { make, operations: a_forget_ends_what_it_might_match; }
}

impl<S: Work> Bench<S> {
    fn now(&self) -> Millis {
        self.clock.now()
    }

    /// When samples that begin now are removed.
    fn bounds(&self) -> JobBounds {
        samples::bounds(self.later(samples::LIFE_MS))
    }

    fn later(&self, ms: u64) -> Millis {
        self.now().plus_ms(ms)
    }

    /// Submits the `n`th sample of `ocr`, a millisecond after whatever was before, so that the ids have the order of submission.
    async fn submit(&self, n: u64) -> Job {
        self.submit_with(n, |_| {}).await
    }

    async fn submit_with(&self, n: u64, change: impl FnOnce(&mut Job)) -> Job {
        match self.try_submit(n, change).await {
            Submitted::New(job) => job,
            other => unreachable!("job {n} was not taken in: {other:?}"),
        }
    }

    async fn try_submit(&self, n: u64, change: impl FnOnce(&mut Job)) -> Submitted {
        self.clock.advance_ms(1);
        let mut job = samples::job(n, self.now());
        change(&mut job);
        self.store.submit(job, samples::input(n), None, &self.bounds()).await.expect("submit")
    }

    async fn job(&self, id: &JobId) -> Job {
        self.store.job(id).await.expect("job").expect("it is there")
    }

    async fn is_there(&self, id: &JobId) -> bool {
        let job = self.store.job(id).await.expect("job").is_some();
        let page = self.list(&JobQuery { limit: 1000, ..JobQuery::default() }).await;
        assert_eq!(job, page.items.iter().any(|job| job.id == *id), "lists and look-ups agree");
        job
    }

    async fn input(&self, id: &JobId) -> Option<Bytes> {
        self.store.input(id).await.expect("input")
    }

    async fn result(&self, id: &JobId) -> Option<Bytes> {
        self.store.result(id).await.expect("result")
    }

    /// What is due now.
    async fn try_claim(&self) -> Option<Claim> {
        self.store.claim(&samples::upstream("ocr"), Duration::ZERO).await.expect("claim")
    }

    async fn claim(&self) -> Claim {
        let claim = self.store.claim(&samples::upstream("ocr"), LONG).await.expect("claim");
        claim.expect("a job is due")
    }

    async fn renew(&self, claim: &Claim) -> Held {
        self.store.renew(claim).await.expect("renew")
    }

    async fn sending(&self, claim: &Claim) -> bool {
        self.store.sending(claim).await.expect("sending")
    }

    async fn end(&self, claim: &Claim, end: JobEnd) -> bool {
        self.store.settle_job(claim, end).await.expect("settle")
    }

    /// The job fails now.
    fn failed(&self, error: JobError) -> JobEnd {
        JobEnd::Final {
            status: JobStatus::Failed,
            error: Some(error),
            result: None,
            at: self.now(),
            expires_at: self.later(samples::LIFE_MS),
        }
    }

    /// The job succeeds now.
    fn succeeded(&self, body: &[u8]) -> JobEnd {
        JobEnd::Final {
            status: JobStatus::Succeeded,
            error: None,
            result: Some((samples::facts(200, body), Bytes::copy_from_slice(body))),
            at: self.now(),
            expires_at: self.later(samples::LIFE_MS),
        }
    }

    async fn cancel(&self, id: &JobId) -> Option<Job> {
        self.store.cancel(id, self.later(samples::LIFE_MS)).await.expect("cancel")
    }

    async fn retry(&self, id: &JobId) -> Option<Job> {
        self.store.retry(id).await.expect("retry")
    }

    /// At most so many ends of the tenant `a` that are to be told; each comes again after so long.
    async fn to_tell(&self, again_in_ms: u64, limit: usize) -> Vec<Untold> {
        self.store.to_tell(&samples::tenant("a"), self.later(again_in_ms), limit).await.expect("to tell")
    }

    async fn told(&self, untold: &Untold, again_in_ms: Option<u64>) -> bool {
        self.store.told(untold, again_in_ms.map(|ms| self.later(ms))).await.expect("told")
    }

    async fn list(&self, query: &JobQuery) -> JobPage {
        self.store.list(query).await.expect("list")
    }

    async fn put(&self, operation: &Operation) {
        self.store.put(operation).await.expect("put");
    }

    async fn due(&self, again_in_ms: u64, limit: usize) -> Vec<Operation> {
        self.store.due(self.now(), self.later(again_in_ms), limit).await.expect("due")
    }
}
