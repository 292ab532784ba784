//! Inputs and results take room, and give it back.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use nevertwice_domain::job::{Job, JobId, JobStatus};
use tokio::task::JoinSet;

use super::submits::born_failed;
use super::{Bench, Full, JobBounds, JobEnd, LONG, Submitted, Work, samples};

fn body(length: usize) -> Bytes {
    Bytes::from(vec![b'x'; length])
}

impl<S: Work> Bench<S> {
    /// Hands in an input of this length, where so many bytes may be kept in all.
    async fn try_bytes(&self, n: u64, length: usize, max_bytes: u64) -> Submitted {
        self.clock.advance_ms(1);
        let bounds = JobBounds { max_bytes, ..self.bounds() };
        let job = samples::job(n, self.now());
        self.store.submit(job, body(length), None, &bounds).await.expect("submit")
    }

    async fn bytes(&self, n: u64, length: usize) -> JobId {
        match self.try_bytes(n, length, u64::MAX).await {
            Submitted::New(job) => job.id,
            other => unreachable!("job {n} was not taken in: {other:?}"),
        }
    }

    async fn stored(&self) -> u64 {
        self.store.stored_bytes().await.expect("stored_bytes")
    }

    /// What has expired counts until it is removed, soon.
    async fn stored_comes_to(&self, expected: u64) {
        let until = tokio::time::Instant::now() + LONG;
        while self.stored().await != expected {
            assert!(tokio::time::Instant::now() < until, "{} bytes, and not {expected}", self.stored().await);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn ended(&self, status: JobStatus, result: Option<Bytes>) -> JobEnd {
        JobEnd::Final {
            status,
            error: (status == JobStatus::Failed).then(samples::transient),
            result: result.map(|body| (samples::facts(200, &body), body)),
            at: self.now(),
            expires_at: self.later(samples::LIFE_MS),
        }
    }
}

pub(super) async fn what_is_kept_is_counted<S: Work>(bench: &Bench<S>) {
    assert_eq!(bench.stored().await, 0);
    bench.bytes(1, 1000).await;
    let large = bench.bytes(2, 700_000).await;
    assert_eq!(bench.stored().await, 701_000);
    let first = bench.claim().await;
    assert!(bench.sending(&first).await);
    assert_eq!(bench.stored().await, 701_000, "work changes nothing");
    assert!(bench.end(&first, bench.ended(JobStatus::Succeeded, Some(body(50)))).await);
    assert_eq!(bench.stored().await, 700_050, "the result came, and the input went");
    let second = bench.claim().await;
    let again = JobEnd::Again { error: Some(samples::transient()), not_before: bench.now() };
    assert!(bench.end(&second, again).await);
    assert_eq!(bench.stored().await, 700_050);
    let second = bench.claim().await;
    assert!(bench.end(&second, bench.ended(JobStatus::Failed, Some(body(7)))).await);
    assert_eq!(bench.stored().await, 700_057, "a failed one keeps both");
    assert!(bench.retry(&large).await.is_some());
    assert_eq!(bench.stored().await, 700_050, "and is tried again without its result");
    assert!(bench.cancel(&large).await.is_some());
    assert_eq!(bench.stored().await, 50);
    assert!(bench.cancel(&large).await.is_some());
    assert_eq!(bench.stored().await, 50, "once is enough");
}

pub(super) async fn a_body_that_does_not_fit_is_refused<S: Work>(bench: &Bench<S>) {
    bench.bytes(1, 600_000).await;
    for length in [400_001, 1_000_000] {
        let refused = bench.try_bytes(2, length, 1_000_000).await;
        assert_eq!(refused, Submitted::Full(Full::Bytes), "{length}");
    }
    assert_eq!(bench.stored().await, 600_000, "a refused one takes nothing");
    assert!(matches!(bench.try_bytes(3, 399_999, 1_000_000).await, Submitted::New(_)));
    assert_eq!(bench.try_bytes(4, 2, 1_000_000).await, Submitted::Full(Full::Bytes));
    assert!(matches!(bench.try_bytes(5, 1, 1_000_000).await, Submitted::New(_)), "to the last byte");
    assert!(matches!(bench.try_bytes(6, 0, 1_000_000).await, Submitted::New(_)));
    assert_eq!(bench.stored().await, 1_000_000);
}

pub(super) async fn what_is_removed_gives_room<S: Work>(bench: &Bench<S>) {
    let full = async |n| {
        let refused = bench.try_bytes(n, 1, 300).await;
        assert_eq!(refused, Submitted::Full(Full::Bytes));
    };
    for n in 0..3 {
        bench.bytes(n, 100).await;
    }
    full(10).await;
    let claim = bench.claim().await;
    assert!(bench.end(&claim, bench.ended(JobStatus::Failed, None)).await);
    full(11).await;
    assert!(bench.retry(&claim.job.id).await.is_some());
    full(12).await;
    let claim = bench.claim().await;
    assert!(bench.end(&claim, bench.ended(JobStatus::Succeeded, None)).await);
    assert!(matches!(bench.try_bytes(13, 100, 300).await, Submitted::New(_)), "one succeeded");
    full(14).await;
    let claim = bench.claim().await;
    bench.cancel(&claim.job.id).await;
    full(15).await;
    assert!(bench.end(&claim, bench.ended(JobStatus::Cancelled, None)).await);
    assert!(matches!(bench.try_bytes(16, 100, 300).await, Submitted::New(_)), "one was given up");
    let claim = bench.claim().await;
    bench.cancel(&claim.job.id).await;
    assert!(bench.end(&claim, JobEnd::Again { error: None, not_before: bench.now() }).await);
    assert!(matches!(bench.try_bytes(17, 100, 300).await, Submitted::New(_)), "and did not go on");
    full(18).await;
}

pub(super) async fn results_are_kept_though_there_is_no_room<S: Work>(bench: &Bench<S>) {
    let id = bench.bytes(1, 100).await;
    let claim = bench.claim().await;
    assert!(bench.end(&claim, bench.ended(JobStatus::Succeeded, Some(body(5000)))).await);
    assert_eq!(bench.result(&id).await, Some(body(5000)), "it was paid for");
    assert_eq!(bench.stored().await, 5000);
    assert_eq!(bench.try_bytes(2, 1, 100).await, Submitted::Full(Full::Bytes));
    assert_eq!(bench.try_bytes(3, 0, 100).await, Submitted::Full(Full::Bytes), "it is more than full");
    assert!(matches!(bench.try_bytes(4, 10, 5010).await, Submitted::New(_)));
}

pub(super) async fn a_job_that_is_final_already_needs_room<S: Work>(bench: &Bench<S>) {
    let submit = async |n, length| {
        let bounds = JobBounds { max_bytes: 500_000, max_queued: 0, ..bench.bounds() };
        let mut job = samples::job(n, bench.now());
        born_failed(&mut job);
        // the input is not kept, however long
        let input = body(1_000_000);
        bench.store.submit(job, input, Some(body(length)), &bounds).await.expect("submit")
    };
    assert!(matches!(submit(1, 400_000).await, Submitted::New(_)));
    assert_eq!(bench.stored().await, 400_000);
    assert_eq!(submit(2, 300_000).await, Submitted::Full(Full::Bytes));
    assert_eq!(submit(3, 100_001).await, Submitted::Full(Full::Bytes));
    assert!(matches!(submit(4, 100_000).await, Submitted::New(_)));
    assert_eq!(bench.stored().await, 500_000);
}

pub(super) async fn what_expires_gives_room<S: Work>(bench: &Bench<S>) {
    bench.bytes(1, 100).await;
    bench.bytes(2, 100).await;
    bench.bytes(3, 100).await;
    let runs = bench.claim().await;
    let ended = bench.claim().await;
    assert!(bench.end(&ended, bench.ended(JobStatus::Failed, Some(body(30)))).await);
    assert_eq!(bench.stored().await, 330);
    bench.clock.advance_ms(samples::LIFE_MS.cast_signed() / 2);
    bench.bytes(4, 5).await;
    assert_eq!(bench.try_bytes(5, 1, 335).await, Submitted::Full(Full::Bytes));
    bench.clock.advance_ms(samples::LIFE_MS.cast_signed() / 2);
    bench.stored_comes_to(5).await;
    assert!(!bench.end(&runs, bench.ended(JobStatus::Succeeded, Some(body(1000)))).await);
    assert_eq!(bench.stored().await, 5, "what came too late is not kept");
    assert!(matches!(bench.try_bytes(6, 330, 335).await, Submitted::New(_)));
    bench.clock.advance_ms(2 * samples::LIFE_MS.cast_signed());
    bench.stored_comes_to(0).await;
}

pub(super) async fn a_tenant_has_its_share_of_the_bytes<S: Work>(bench: &Bench<S>) {
    let bounds = JobBounds { max_bytes: 1000, tenant_max_bytes: 500, ..bench.bounds() };
    let submit = async |n, tenant, length| {
        bench.clock.advance_ms(1);
        let job = Job { tenant: samples::tenant(tenant), ..samples::job(n, bench.now()) };
        bench.store.submit(job, body(length), None, &bounds).await.expect("submit")
    };
    assert!(matches!(submit(1, "a", 400).await, Submitted::New(_)));
    assert_eq!(submit(2, "a", 101).await, Submitted::Full(Full::TenantBytes));
    assert!(matches!(submit(3, "a", 100).await, Submitted::New(_)));
    assert_eq!(submit(4, "a", 1).await, Submitted::Full(Full::TenantBytes));
    assert!(matches!(submit(5, "b", 450).await, Submitted::New(_)), "others have theirs");
    assert_eq!(submit(6, "c", 51).await, Submitted::Full(Full::Bytes), "as long as there is room");
    let claim = bench.claim().await;
    assert!(bench.end(&claim, bench.ended(JobStatus::Succeeded, Some(body(10)))).await);
    assert_eq!(submit(7, "a", 391).await, Submitted::Full(Full::TenantBytes), "results count");
    assert!(matches!(submit(8, "a", 390).await, Submitted::New(_)));
}

pub(super) async fn the_bounds_are_named_in_their_order<S: Work>(bench: &Bench<S>) {
    bench.bytes(1, 100).await;
    let nothing = JobBounds {
        max_queued: 1,
        tenant_max_queued: 1,
        max_bytes: 100,
        tenant_max_bytes: 100,
        ..bench.bounds()
    };
    let queue = JobBounds { max_queued: 2, ..nothing };
    let tenant = JobBounds { tenant_max_queued: 2, ..queue };
    let bytes = JobBounds { max_bytes: u64::MAX, ..tenant };
    for (bounds, expected) in [
        (nothing, Full::Queue),
        (queue, Full::TenantQueue),
        (tenant, Full::Bytes),
        (bytes, Full::TenantBytes),
    ] {
        for length in [1, 600_000] {
            let job = samples::job(2, bench.now());
            let submitted = bench.store.submit(job, body(length), None, &bounds).await.expect("submit");
            assert_eq!(submitted, Submitted::Full(expected), "{length}");
        }
    }
    // with the key of a job that is there, that one is the answer
    let keyed = bench.submit_with(3, |job| job.key = Some(samples::key("k"))).await;
    let mut same = samples::job(4, bench.now());
    (same.key, same.request.digest) = (keyed.key, keyed.request.digest);
    let submitted = bench.store.submit(same, samples::input(3), None, &nothing).await.expect("submit");
    assert_eq!(submitted, Submitted::Same(keyed));
}

pub(super) async fn many_submits_at_once_keep_the_bound<S: Work>(bench: &Bench<S>) {
    let mut tasks = JoinSet::new();
    for n in 0..32 {
        let bounds = JobBounds { max_bytes: 1000, ..bench.bounds() };
        let (store, job) = (Arc::clone(&bench.store), samples::job(n, bench.now()));
        tasks.spawn(async move { store.submit(job, body(100), None, &bounds).await.expect("submit") });
    }
    let submitted = tasks.join_all().await;
    assert_eq!(submitted.iter().filter(|s| matches!(s, Submitted::New(_))).count(), 10);
    assert_eq!(submitted.iter().filter(|s| **s == Submitted::Full(Full::Bytes)).count(), 22);
    assert_eq!(bench.stored().await, 1000);
}
