//! What is taken in.

use bytes::Bytes;
use nevertwice_domain::clock::Millis;
use nevertwice_domain::job::{Job, JobId, JobStatus};

use super::{Bench, Full, JobBounds, JobEnd, Submitted, Work, samples};

/// A job that is known to fail when it comes.
pub(super) fn born_failed(job: &mut Job) {
    job.status = JobStatus::Failed;
    job.finished_at = Some(job.created_at);
    job.error = Some(samples::verdict());
}

pub(super) async fn what_was_submitted_is_there_as_it_was<S: Work>(bench: &Bench<S>) {
    let job = bench.submit_with(1, |job| job.key = Some(samples::key("k"))).await;
    let mut expected = samples::job(1, bench.now());
    expected.key = Some(samples::key("k"));
    assert_eq!(job, expected);
    assert_eq!(bench.job(&job.id).await, expected);
    assert_eq!(bench.input(&job.id).await, Some(samples::input(1)));
    assert_eq!(bench.result(&job.id).await, None);
    let bare = bench
        .submit_with(2, |job| {
            (job.webhook, job.request.document) = (None, None);
            job.request.fields.clear();
        })
        .await;
    assert_eq!(bench.job(&bare.id).await, bare);
}

pub(super) async fn bodies_are_bytes<S: Work>(bench: &Bench<S>) {
    let all: Bytes = (0..=255).cycle().take(100_000).collect();
    for body in [Bytes::new(), all, Bytes::from_static(b"\0"), Bytes::from(vec![0xff; 3_000_000])] {
        bench.clock.advance_ms(1);
        let job = samples::job(body.len() as u64, bench.now());
        let submitted =
            bench.store.submit(job.clone(), body.clone(), None, &bench.bounds()).await.expect("submit");
        assert_eq!(submitted, Submitted::New(job.clone()));
        assert_eq!(bench.input(&job.id).await, Some(body.clone()));
        let claim = bench.claim().await;
        assert!(bench.end(&claim, bench.succeeded(&body)).await);
        assert_eq!(bench.result(&job.id).await, Some(body));
    }
}

pub(super) async fn a_job_that_is_final_already_is_kept_and_not_handed_out<S: Work>(bench: &Bench<S>) {
    let failed = bench.submit_with(1, born_failed).await;
    assert_eq!(failed.expires_at, Some(bench.bounds().expires_at));
    assert_eq!(bench.job(&failed.id).await, failed);
    assert_eq!(bench.input(&failed.id).await, None, "only its result is kept");
    assert_eq!(bench.retry(&failed.id).await, Some(failed.clone()), "so it stays as it is");
    assert_eq!(bench.job(&failed.id).await, failed);
    assert!(bench.try_claim().await.is_none());
    let mut known = samples::job(2, bench.now());
    born_failed(&mut known);
    let (input, result) = (samples::input(2), Some(Bytes::from_static(b"no")));
    let submitted = bench.store.submit(known.clone(), input, result.clone(), &bench.bounds()).await;
    assert!(matches!(submitted, Ok(Submitted::New(_))));
    assert_eq!(bench.result(&known.id).await, result);
    bench.clock.advance_ms(samples::LIFE_MS.cast_signed() - 1);
    assert!(bench.is_there(&failed.id).await);
    bench.clock.advance_ms(1);
    assert!(!bench.is_there(&failed.id).await);
}

pub(super) async fn too_many_that_wait_are_refused<S: Work>(bench: &Bench<S>) {
    let bounds = JobBounds { max_queued: 3, ..bench.bounds() };
    let submit = async |n| {
        bench.clock.advance_ms(1);
        let job = samples::job(n, bench.now());
        bench.store.submit(job, samples::input(n), None, &bounds).await.expect("submit")
    };
    for n in 0..3 {
        assert!(matches!(submit(n).await, Submitted::New(_)));
    }
    assert_eq!(submit(3).await, Submitted::Full(Full::Queue));
    bench.submit_with(50, born_failed).await;
    let claim = bench.claim().await;
    assert!(matches!(submit(4).await, Submitted::New(_)), "what runs does not wait");
    assert_eq!(submit(5).await, Submitted::Full(Full::Queue));
    let again = JobEnd::Again { error: None, not_before: bench.later(100_000) };
    assert!(bench.end(&claim, again).await);
    let cancelled = bench.cancel(&claim.job.id).await.expect("it is there");
    assert_eq!(cancelled.status, JobStatus::Cancelled);
    assert_eq!(submit(6).await, Submitted::Full(Full::Queue), "three wait");
    let claim = bench.claim().await;
    assert!(matches!(submit(7).await, Submitted::New(_)));
    assert!(bench.end(&claim, JobEnd::Again { error: None, not_before: bench.later(100_000) }).await);
    assert_eq!(submit(8).await, Submitted::Full(Full::Queue), "one that waits for its next attempt counts");
    bench.cancel(&claim.job.id).await;
    assert_eq!(submit(9).await, Submitted::Full(Full::Queue));
    bench.claim().await;
    assert!(matches!(submit(10).await, Submitted::New(_)));
}

pub(super) async fn the_bound_is_of_one_upstream<S: Work>(bench: &Bench<S>) {
    let bounds = JobBounds { max_queued: 1, ..bench.bounds() };
    for (n, upstream, expected) in
        [(1, "ocr", true), (2, "tika", true), (3, "ocr", false), (4, "tika", false)]
    {
        bench.clock.advance_ms(1);
        let job = Job { upstream: samples::upstream(upstream), ..samples::job(n, bench.now()) };
        let submitted = bench.store.submit(job, samples::input(n), None, &bounds).await.expect("submit");
        assert_eq!(matches!(submitted, Submitted::New(_)), expected, "{n}");
        assert_eq!(submitted == Submitted::Full(Full::Queue), !expected, "{n}");
    }
}

pub(super) async fn a_tenant_has_its_share_of_what_waits<S: Work>(bench: &Bench<S>) {
    let bounds = JobBounds { max_queued: 10, tenant_max_queued: 2, ..bench.bounds() };
    let submit = async |n, tenant, upstream| {
        bench.clock.advance_ms(1);
        let mut job = samples::job(n, bench.now());
        (job.tenant, job.upstream) = (samples::tenant(tenant), samples::upstream(upstream));
        match bench.store.submit(job, samples::input(n), None, &bounds).await.expect("submit") {
            Submitted::New(_) => None,
            Submitted::Full(full) => Some(full),
            other => unreachable!("{other:?}"),
        }
    };
    assert_eq!((submit(1, "a", "ocr").await, submit(2, "a", "ocr").await), (None, None));
    assert_eq!(submit(3, "a", "ocr").await, Some(Full::TenantQueue));
    assert_eq!(submit(4, "a", "tika").await, None, "at another upstream it has another share");
    assert_eq!(submit(5, "b", "ocr").await, None, "others have theirs");
    let claim = bench.claim().await;
    assert_eq!(submit(6, "a", "ocr").await, None, "what runs does not wait");
    assert_eq!(submit(7, "a", "ocr").await, Some(Full::TenantQueue));
    let again = JobEnd::Again { error: None, not_before: bench.later(100_000) };
    assert!(bench.end(&claim, again).await);
    assert_eq!(submit(8, "a", "ocr").await, Some(Full::TenantQueue), "three wait");
    assert!(bench.cancel(&claim.job.id).await.is_some());
    assert_eq!(submit(9, "a", "ocr").await, Some(Full::TenantQueue), "two are left");
    let claim = bench.claim().await;
    assert_eq!(claim.job.tenant, samples::tenant("a"));
    assert!(bench.end(&claim, bench.failed(samples::transient())).await);
    assert_eq!(submit(10, "a", "ocr").await, None);
    assert!(bench.retry(&claim.job.id).await.is_some(), "an operator is not refused");
    assert_eq!(submit(11, "a", "ocr").await, Some(Full::TenantQueue));
    let claims = [bench.claim().await, bench.claim().await, bench.claim().await];
    assert_eq!(submit(12, "a", "ocr").await, None, "{claims:?}");
}

pub(super) async fn ids_that_are_not_there_are_none<S: Work>(bench: &Bench<S>) {
    let id = JobId::new(Millis(1), [7; 10]);
    assert!(!bench.is_there(&id).await);
    assert_eq!(bench.input(&id).await, None);
    assert_eq!(bench.result(&id).await, None);
    assert_eq!(bench.cancel(&id).await, None);
    assert_eq!(bench.retry(&id).await, None);
}

pub(super) async fn a_job_that_never_ends_is_removed<S: Work>(bench: &Bench<S>) {
    let waits = bench.submit(1).await;
    let runs = bench.submit(2).await;
    assert_eq!(bench.claim().await.job.id, waits.id);
    let claim = bench.claim().await;
    assert_eq!(claim.job.id, runs.id);
    let waits_for_next = bench.submit(3).await;
    bench.clock.advance_ms(samples::LIFE_MS.cast_signed() - 2);
    assert!(!bench.is_there(&waits.id).await);
    assert!(bench.is_there(&runs.id).await && bench.is_there(&waits_for_next.id).await);
    bench.clock.advance_ms(2);
    for id in [waits.id, runs.id, waits_for_next.id] {
        assert!(!bench.is_there(&id).await);
        assert_eq!(bench.input(&id).await, None);
        assert_eq!(bench.cancel(&id).await, None);
    }
    assert!(!bench.sending(&claim).await, "there is nothing to hold any more");
    assert!(!bench.end(&claim, bench.succeeded(b"late")).await);
    assert!(bench.try_claim().await.is_none());
}
