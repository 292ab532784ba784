//! Ends that are to be told.

use std::sync::Arc;

use nevertwice_domain::job::{Job, JobId, JobStatus};
use nevertwice_domain::tenant::TenantId;
use tokio::task::JoinSet;

use super::submits::born_failed;
use super::{Bench, JobEnd, Untold, Work, samples};

impl<S: Work> Bench<S> {
    /// The `n`th job, which has just succeeded.
    async fn submit_and_succeed(&self, n: u64, change: impl FnOnce(&mut Job)) -> Job {
        let job = self.submit_with(n, change).await;
        let claim = self.claim().await;
        assert!(self.end(&claim, self.succeeded(b"ok")).await);
        self.job(&job.id).await
    }

    async fn tenants_to_tell(&self) -> Vec<TenantId> {
        self.store.tenants_to_tell().await.expect("tenants to tell")
    }
}

fn ids(untold: &[Untold]) -> Vec<JobId> {
    untold.iter().map(|untold| untold.job.id).collect()
}

pub(super) async fn an_end_is_to_be_told_once<S: Work>(bench: &Bench<S>) {
    let waits = bench.submit(1).await;
    assert_eq!(bench.tenants_to_tell().await, []);
    assert!(bench.to_tell(1000, 10).await.is_empty(), "it has no end yet");
    let claim = bench.claim().await;
    assert!(bench.end(&claim, bench.succeeded(b"ok")).await);
    let job = bench.job(&waits.id).await;
    assert_eq!(bench.tenants_to_tell().await, [samples::tenant("a")]);
    let due = bench.to_tell(1000, 10).await;
    assert_eq!(due.iter().map(|untold| (&untold.job, untold.calls)).collect::<Vec<_>>(), [(&job, 1)]);
    assert!(bench.to_tell(1000, 10).await.is_empty());
    assert_eq!(bench.tenants_to_tell().await, []);
    assert!(bench.told(&due[0], None).await);
    assert!(!bench.told(&due[0], None).await, "once is enough");
    assert!(!bench.told(&due[0], Some(0)).await, "and it is over");
    bench.clock.advance_ms(10_000);
    assert!(bench.to_tell(1000, 10).await.is_empty());
    assert_eq!(bench.job(&job.id).await, job, "nothing of the job is other than it was");
}

pub(super) async fn every_end_is_to_be_told<S: Work>(bench: &Bench<S>) {
    let mut all = vec![bench.submit_with(1, born_failed).await.id];
    for (n, status) in [(2, JobStatus::Succeeded), (3, JobStatus::Failed), (4, JobStatus::Cancelled)] {
        all.push(bench.submit(n).await.id);
        let claim = bench.claim().await;
        let (at, expires_at) = (bench.now(), bench.later(samples::LIFE_MS));
        let end = JobEnd::Final { status, error: None, result: None, at, expires_at };
        assert!(bench.end(&claim, end).await);
    }
    all.push(bench.submit(5).await.id);
    bench.cancel(&all[4]).await;
    // one that waits for another attempt
    all.push(bench.submit(6).await.id);
    let claim = bench.claim().await;
    assert!(bench.end(&claim, JobEnd::Again { error: None, not_before: bench.later(10) }).await);
    bench.cancel(&all[5]).await;
    // given up while it ran, and not ended before it would wait again
    bench.clock.advance_ms(1);
    all.push(bench.submit(7).await.id);
    let claim = bench.claim().await;
    bench.cancel(&all[6]).await;
    assert_eq!(bench.to_tell(10_000, 100).await.len(), 6, "a worker still has it");
    assert!(bench.end(&claim, JobEnd::Again { error: None, not_before: bench.now() }).await);
    bench.clock.advance_ms(10_000);
    let due = bench.to_tell(1000, 100).await;
    let mut seen = ids(&due);
    seen.sort_unstable();
    assert_eq!(seen, all);
    assert!(due.iter().all(|untold| untold.job.status.is_final()));
}

pub(super) async fn nothing_is_told_of_what_nobody_asked_for<S: Work>(bench: &Bench<S>) {
    bench.submit_and_succeed(1, |job| job.webhook = None).await;
    let waits = bench.submit_with(2, |job| job.webhook = None).await;
    bench.cancel(&waits.id).await;
    let born = |job: &mut Job| {
        born_failed(job);
        job.webhook = None;
    };
    bench.submit_with(3, born).await;
    // one that never ends is removed without a word
    bench.submit(4).await;
    bench.clock.advance_ms(samples::LIFE_MS.cast_signed());
    assert!(bench.to_tell(1000, 10).await.is_empty());
    assert_eq!(bench.tenants_to_tell().await, []);
}

pub(super) async fn an_end_is_handed_to_one_alone<S: Work>(bench: &Bench<S>) {
    let mut all = Vec::new();
    for n in 0..40 {
        all.push(bench.submit_and_succeed(n, |_| {}).await.id);
    }
    let mut tasks = JoinSet::new();
    for _ in 0..8 {
        let (store, again_at) = (Arc::clone(&bench.store), bench.later(60_000));
        tasks.spawn(async move { store.to_tell(&samples::tenant("a"), again_at, 7).await.expect("to tell") });
    }
    let mut seen: Vec<_> = tasks.join_all().await.iter().flat_map(|due| ids(due)).collect();
    seen.extend(ids(&bench.to_tell(60_000, 100).await));
    seen.sort_unstable();
    assert_eq!(seen, all);
}

pub(super) async fn an_end_that_was_not_told_comes_again<S: Work>(bench: &Bench<S>) {
    let job = bench.submit_and_succeed(1, |_| {}).await;
    let due = bench.to_tell(1000, 10).await;
    assert!(bench.told(&due[0], Some(5000)).await);
    assert!(bench.told(&due[0], Some(5000)).await, "it is its caller's until it is handed out again");
    bench.clock.advance_ms(4999);
    assert!(bench.to_tell(1000, 10).await.is_empty());
    bench.clock.advance_ms(1);
    let due = bench.to_tell(1000, 10).await;
    assert_eq!((ids(&due), due[0].calls), (vec![job.id], 2));
    // whoever had it has died
    bench.clock.advance_ms(999);
    assert!(bench.to_tell(1000, 10).await.is_empty());
    bench.clock.advance_ms(1);
    let due = bench.to_tell(1000, 10).await;
    assert_eq!((ids(&due), due[0].calls), (vec![job.id], 3));
    assert!(bench.told(&due[0], None).await);
}

pub(super) async fn who_is_late_changes_nothing<S: Work>(bench: &Bench<S>) {
    bench.submit_and_succeed(1, |_| {}).await;
    let late = bench.to_tell(1000, 10).await;
    bench.clock.advance_ms(1000);
    let due = bench.to_tell(1000, 10).await;
    assert!(!bench.told(&late[0], None).await);
    assert!(!bench.told(&late[0], Some(0)).await);
    assert!(bench.to_tell(1000, 10).await.is_empty());
    assert!(bench.told(&due[0], Some(3000)).await);
    assert!(!bench.told(&late[0], None).await);
    bench.clock.advance_ms(3000);
    assert_eq!(bench.to_tell(1000, 10).await.len(), 1);
}

pub(super) async fn tenants_are_asked_for_each_alone<S: Work>(bench: &Bench<S>) {
    let mut of_b = Vec::new();
    for n in 0..6 {
        let job = bench.submit_and_succeed(n, |job| job.tenant = samples::tenant("b")).await;
        of_b.push(job.id);
    }
    bench.clock.advance_ms(1);
    let of_a = bench.submit_and_succeed(6, |_| {}).await.id;
    let (a, b) = (samples::tenant("a"), samples::tenant("b"));
    assert_eq!(bench.tenants_to_tell().await, [b.clone(), a.clone()], "the longest due first");
    assert_eq!(ids(&bench.to_tell(1000, 10).await), [of_a]);
    let again_at = bench.later(1000);
    let due = bench.store.to_tell(&b, again_at, 4).await.expect("to tell");
    assert_eq!(ids(&due), of_b[..4], "the longest due first");
    assert_eq!(bench.tenants_to_tell().await, std::slice::from_ref(&b));
    bench.clock.advance_ms(1000);
    assert_eq!(bench.tenants_to_tell().await, [b.clone(), a], "two of its were never handed out");
    let due = bench.store.to_tell(&b, bench.later(1000), 4).await.expect("to tell");
    assert_eq!(ids(&due)[..2], of_b[4..]);
}

pub(super) async fn an_end_goes_with_its_job<S: Work>(bench: &Bench<S>) {
    bench.submit_and_succeed(1, |_| {}).await;
    let due = bench.to_tell(1000, 10).await;
    let never = bench.submit_and_succeed(2, |_| {}).await;
    bench.clock.advance_ms(samples::LIFE_MS.cast_signed());
    assert!(!bench.is_there(&never.id).await);
    assert!(bench.to_tell(1000, 10).await.is_empty());
    assert!(!bench.told(&due[0], Some(0)).await);
    assert!(bench.to_tell(1000, 10).await.is_empty());
    // removed, and not only passed over: later ones come all the same
    let later = bench.submit_and_succeed(3, |_| {}).await;
    assert_eq!(ids(&bench.to_tell(1000, 1).await), [later.id]);
    assert_eq!(bench.tenants_to_tell().await, []);
}

pub(super) async fn a_job_that_is_tried_again_has_another_end<S: Work>(bench: &Bench<S>) {
    let job = bench.submit(1).await;
    let claim = bench.claim().await;
    assert!(bench.end(&claim, bench.failed(samples::verdict())).await);
    let first = bench.to_tell(1000, 10).await;
    bench.clock.advance_ms(1000);
    assert!(bench.retry(&job.id).await.is_some());
    assert!(bench.to_tell(1000, 10).await.is_empty(), "that is its end no more");
    assert!(!bench.told(&first[0], Some(0)).await);
    let claim = bench.claim().await;
    assert!(bench.to_tell(1000, 10).await.is_empty());
    assert!(bench.end(&claim, bench.succeeded(b"ok")).await);
    let second = bench.to_tell(1000, 10).await;
    assert_eq!((ids(&second), second[0].calls), (vec![job.id], 1), "and it is told from the first call on");
    assert_eq!((second[0].job.status, second[0].job.retries), (JobStatus::Succeeded, 1));
    assert!(!bench.told(&first[0], None).await, "what became of the first is not said of the second");
    assert!(bench.told(&second[0], None).await);
}
