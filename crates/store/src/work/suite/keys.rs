//! Idempotency keys.

use std::sync::Arc;

use nevertwice_domain::job::{Job, JobStatus};
use tokio::task::JoinSet;

use super::{Bench, Full, JobBounds, JobEnd, Submitted, Work, samples};

/// The request of the first sample, under a key.
fn keyed(job: &mut Job) {
    job.key = Some(samples::key("k"));
    job.request.digest = samples::fingerprint(1);
}

/// Another request under the same key.
fn other(job: &mut Job) {
    job.key = Some(samples::key("k"));
    job.request.digest = samples::fingerprint(2);
}

impl<S: Work> Bench<S> {
    /// A submit of the same request under the same key finds this job, as it is now.
    async fn assert_same(&self, n: u64, job: &Job) {
        let expected = self.job(&job.id).await;
        assert_eq!(self.try_submit(n, keyed).await, Submitted::Same(expected));
    }
}

pub(super) async fn the_same_request_is_the_same_job<S: Work>(bench: &Bench<S>) {
    let job = bench.submit_with(1, keyed).await;
    bench.assert_same(2, &job).await;
    let claim = bench.claim().await;
    bench.assert_same(3, &job).await;
    assert!(bench.try_claim().await.is_none(), "no second job came of it");
    assert!(bench.end(&claim, bench.succeeded(b"ok")).await);
    bench.assert_same(4, &job).await;
    assert!(matches!(bench.try_submit(5, |_| {}).await, Submitted::New(_)), "without a key");
    let other_key = |job: &mut Job| {
        keyed(job);
        job.key = Some(samples::key("l"));
    };
    assert!(matches!(bench.try_submit(6, other_key).await, Submitted::New(_)));
}

pub(super) async fn another_request_is_a_conflict<S: Work>(bench: &Bench<S>) {
    let job = bench.submit_with(1, keyed).await;
    let as_it_was = bench.job(&job.id).await;
    assert_eq!(bench.try_submit(2, other).await, Submitted::Conflict(job.id));
    assert_eq!(bench.job(&job.id).await, as_it_was);
    assert_eq!(bench.input(&job.id).await, Some(samples::input(1)));
    let claim = bench.claim().await;
    assert_eq!(bench.try_submit(3, other).await, Submitted::Conflict(job.id));
    assert!(bench.end(&claim, bench.failed(samples::transient())).await);
    assert_eq!(bench.try_submit(4, other).await, Submitted::Conflict(job.id), "whatever became of it");
    assert!(bench.try_claim().await.is_none());
}

pub(super) async fn a_verdict_answers_its_key<S: Work>(bench: &Bench<S>) {
    let job = bench.submit_with(1, keyed).await;
    let claim = bench.claim().await;
    assert!(bench.end(&claim, bench.failed(samples::verdict())).await);
    bench.assert_same(2, &job).await;
    let born = bench
        .submit_with(3, |job| {
            job.key = Some(samples::key("born"));
            (job.status, job.error) = (JobStatus::Failed, Some(samples::verdict()));
        })
        .await;
    let again = |job: &mut Job| {
        (job.key, job.request.digest) = (Some(samples::key("born")), samples::fingerprint(3));
    };
    assert_eq!(bench.try_submit(4, again).await, Submitted::Same(born));
}

pub(super) async fn a_transient_failure_makes_room<S: Work>(bench: &Bench<S>) {
    let first = bench.submit_with(1, keyed).await;
    let claim = bench.claim().await;
    assert!(bench.sending(&claim).await);
    let again = JobEnd::Again { error: Some(samples::transient()), not_before: bench.now() };
    assert!(bench.end(&claim, again).await);
    bench.assert_same(2, &first).await;
    let claim = bench.claim().await;
    assert!(bench.end(&claim, bench.failed(samples::transient())).await);
    let second = bench.submit_with(3, keyed).await;
    assert_ne!(first.id, second.id);
    bench.assert_same(4, &second).await;
    assert!(bench.is_there(&first.id).await, "the first one stays to be seen");
    assert_eq!(bench.claim().await.job.id, second.id);
}

pub(super) async fn a_cancelled_job_makes_room<S: Work>(bench: &Bench<S>) {
    let first = bench.submit_with(1, keyed).await;
    bench.cancel(&first.id).await;
    assert_eq!(bench.try_submit(2, other).await, Submitted::Conflict(first.id));
    let second = bench.submit_with(3, keyed).await;
    bench.assert_same(4, &second).await;
    assert!(bench.is_there(&first.id).await);
}

pub(super) async fn one_of_many_submits_with_a_key_is_taken_in<S: Work>(bench: &Bench<S>) {
    let mut tasks = JoinSet::new();
    for n in 0..16 {
        let (store, bounds) = (Arc::clone(&bench.store), bench.bounds());
        let mut job = samples::job(n, bench.now());
        keyed(&mut job);
        tasks
            .spawn(async move { store.submit(job, samples::input(1), None, &bounds).await.expect("submit") });
    }
    let submitted = tasks.join_all().await;
    let new: Vec<_> = submitted.iter().filter(|s| matches!(s, Submitted::New(_))).collect();
    let [Submitted::New(job)] = new[..] else { unreachable!("{new:?}") };
    let same = submitted.iter().filter(|s| **s == Submitted::Same(job.clone())).count();
    assert_eq!(same, 15);
    assert_eq!(bench.claim().await.job.id, job.id);
    assert!(bench.try_claim().await.is_none());
}

pub(super) async fn a_key_ends_with_its_job<S: Work>(bench: &Bench<S>) {
    let first = bench.submit_with(1, keyed).await;
    bench.clock.advance_ms(samples::LIFE_MS.cast_signed());
    let second = bench.submit_with(2, other).await;
    assert!(!bench.is_there(&first.id).await);
    let claim = bench.claim().await;
    assert_eq!(claim.job.id, second.id);
    assert!(bench.end(&claim, bench.succeeded(b"ok")).await);
    bench.clock.advance_ms(samples::LIFE_MS.cast_signed());
    bench.submit_with(3, keyed).await;
}

pub(super) async fn the_same_job_is_found_though_the_queue_is_full<S: Work>(bench: &Bench<S>) {
    let bounds = JobBounds { max_queued: 1, ..bench.bounds() };
    let job = bench.submit_with(1, keyed).await;
    let submit = async |n, change: fn(&mut Job)| {
        let mut job = samples::job(n, bench.now());
        change(&mut job);
        bench.store.submit(job, samples::input(n), None, &bounds).await.expect("submit")
    };
    assert_eq!(submit(2, keyed).await, Submitted::Same(bench.job(&job.id).await));
    assert_eq!(submit(3, other).await, Submitted::Conflict(job.id));
    assert_eq!(submit(4, |_| {}).await, Submitted::Full(Full::Queue));
}
