//! How jobs end, and how they go on.

use nevertwice_domain::job::{Job, JobStatus};

use super::{Bench, Held, JobEnd, Work, samples};

impl<S: Work> Bench<S> {
    /// The `n`th job, which has failed, and may be tried again.
    async fn submit_and_fail(&self, n: u64) -> Job {
        self.submit(n).await;
        let claim = self.claim().await;
        assert!(self.sending(&claim).await);
        assert!(self.end(&claim, self.failed(samples::transient())).await);
        self.job(&claim.job.id).await
    }
}

pub(super) async fn a_job_succeeds<S: Work>(bench: &Bench<S>) {
    let job = bench.submit(1).await;
    let claim = bench.claim().await;
    assert!(bench.sending(&claim).await);
    bench.clock.advance_ms(5);
    assert!(bench.end(&claim, bench.succeeded(b"{}")).await);
    let expected = Job {
        status: JobStatus::Succeeded,
        started_at: claim.job.started_at,
        finished_at: Some(bench.now()),
        expires_at: Some(bench.later(samples::LIFE_MS)),
        attempts: 1,
        result: Some(samples::facts(200, b"{}")),
        ..job.clone()
    };
    assert_eq!(bench.job(&job.id).await, expected);
    assert_eq!(bench.result(&job.id).await.as_deref(), Some(&b"{}"[..]));
    assert_eq!(bench.input(&job.id).await, None, "it is needed no more");
}

pub(super) async fn a_failed_job_keeps_its_answer_and_its_input<S: Work>(bench: &Bench<S>) {
    let job = bench.submit(1).await;
    let claim = bench.claim().await;
    let end = JobEnd::Final {
        status: JobStatus::Failed,
        error: Some(samples::verdict()),
        result: Some((samples::facts(422, b"broken"), "broken".into())),
        at: bench.now(),
        expires_at: bench.later(samples::LIFE_MS),
    };
    assert!(bench.end(&claim, end).await);
    let seen = bench.job(&job.id).await;
    assert_eq!((seen.status, seen.error), (JobStatus::Failed, Some(samples::verdict())));
    assert_eq!(seen.result, Some(samples::facts(422, b"broken")));
    assert_eq!(bench.result(&job.id).await.as_deref(), Some(&b"broken"[..]));
    assert_eq!(bench.input(&job.id).await, Some(samples::input(1)));
}

pub(super) async fn a_job_waits_for_its_next_attempt<S: Work>(bench: &Bench<S>) {
    let job = bench.submit(1).await;
    let claim = bench.claim().await;
    assert!(bench.sending(&claim).await);
    let not_before = bench.later(1000);
    assert!(bench.end(&claim, JobEnd::Again { error: Some(samples::transient()), not_before }).await);
    let expected = Job {
        started_at: claim.job.started_at,
        attempts: 1,
        not_before: Some(not_before),
        error: Some(samples::transient()),
        ..job.clone()
    };
    assert_eq!(bench.job(&job.id).await, expected);
    assert_eq!(bench.renew(&claim).await, Held::No);
    bench.clock.advance_ms(999);
    assert!(bench.try_claim().await.is_none());
    bench.clock.advance_ms(1);
    let claim = bench.claim().await;
    assert_eq!(claim.job.id, job.id);
    assert_eq!((claim.job.attempts, claim.job.sent), (1, false));
    assert_eq!(claim.job.error, Some(samples::transient()), "why the last attempt failed");
    let none_made = JobEnd::Again { error: None, not_before: bench.now() };
    assert!(bench.end(&claim, none_made).await);
    let claim = bench.claim().await;
    assert_eq!(claim.job.error, Some(samples::transient()), "the last one that was made");
    assert!(bench.sending(&claim).await);
    assert_eq!(bench.job(&job.id).await.attempts, 2);
    assert!(bench.end(&claim, bench.succeeded(b"ok")).await);
    assert_eq!(bench.job(&job.id).await.error, None);
}

pub(super) async fn attempts_are_ordered_by_their_time<S: Work>(bench: &Bench<S>) {
    let mut ids = Vec::new();
    for n in 0..4 {
        ids.push(bench.submit(n).await.id);
    }
    for wait in [400, 100, 300, 200] {
        let claim = bench.claim().await;
        assert!(bench.end(&claim, JobEnd::Again { error: None, not_before: bench.later(wait) }).await);
    }
    assert!(bench.try_claim().await.is_none());
    bench.clock.advance_ms(250);
    assert_eq!(bench.claim().await.job.id, ids[1]);
    assert_eq!(bench.claim().await.job.id, ids[3]);
    assert!(bench.try_claim().await.is_none());
    bench.clock.advance_ms(250);
    assert_eq!(bench.claim().await.job.id, ids[2]);
    assert_eq!(bench.claim().await.job.id, ids[0]);
}

pub(super) async fn a_waiting_job_is_cancelled_at_once<S: Work>(bench: &Bench<S>) {
    let job = bench.submit(1).await;
    bench.clock.advance_ms(5);
    let cancelled = bench.cancel(&job.id).await;
    let expected = Job {
        status: JobStatus::Cancelled,
        finished_at: Some(bench.now()),
        expires_at: Some(bench.later(samples::LIFE_MS)),
        ..job.clone()
    };
    assert_eq!(cancelled, Some(expected.clone()));
    assert_eq!(bench.job(&job.id).await, expected);
    assert_eq!(bench.input(&job.id).await, None);
    assert!(bench.try_claim().await.is_none());

    let waits_again = bench.submit(2).await;
    let claim = bench.claim().await;
    assert!(bench.end(&claim, JobEnd::Again { error: None, not_before: bench.later(10) }).await);
    let cancelled = bench.cancel(&waits_again.id).await.expect("it is there");
    assert_eq!((cancelled.status, cancelled.not_before), (JobStatus::Cancelled, None));
    bench.clock.advance_ms(100);
    assert!(bench.try_claim().await.is_none());
}

pub(super) async fn a_running_job_is_told<S: Work>(bench: &Bench<S>) {
    let job = bench.submit(1).await;
    let claim = bench.claim().await;
    let told = bench.cancel(&job.id).await;
    assert_eq!(told, Some(Job { cancel: true, ..claim.job.clone() }));
    assert_eq!(bench.renew(&claim).await, Held::Cancelled);
    assert_eq!(bench.cancel(&job.id).await, told, "once is enough");
    assert!(!bench.sending(&claim).await, "no call is made any more");
    assert_eq!(Some(bench.job(&job.id).await), told, "and none is counted");
    assert_eq!(bench.renew(&claim).await, Held::Cancelled, "the claim holds all the same");
    let end = JobEnd::Final {
        status: JobStatus::Cancelled,
        error: None,
        result: None,
        at: bench.now(),
        expires_at: bench.later(samples::LIFE_MS),
    };
    assert!(bench.end(&claim, end).await);
    assert_eq!(bench.job(&job.id).await.status, JobStatus::Cancelled);
    assert_eq!(bench.input(&job.id).await, None);

    // A worker that has the outcome already says so all the same.
    let job = bench.submit(2).await;
    let claim = bench.claim().await;
    bench.cancel(&job.id).await;
    assert!(bench.end(&claim, bench.succeeded(b"ok")).await);
    assert_eq!(bench.job(&job.id).await.status, JobStatus::Succeeded);
}

pub(super) async fn a_final_job_stays_as_it_is<S: Work>(bench: &Bench<S>) {
    let job = bench.submit(1).await;
    let claim = bench.claim().await;
    assert!(bench.end(&claim, bench.succeeded(b"ok")).await);
    let as_it_is = bench.job(&job.id).await;
    bench.clock.advance_ms(5);
    assert_eq!(bench.cancel(&job.id).await, Some(as_it_is.clone()));
    assert_eq!(bench.job(&job.id).await, as_it_is);
    let failed = bench.submit_and_fail(2).await;
    assert_eq!(bench.cancel(&failed.id).await, Some(failed.clone()));
    assert_eq!(bench.input(&failed.id).await, Some(samples::input(2)));
}

pub(super) async fn a_job_that_was_given_up_does_not_wait_again<S: Work>(bench: &Bench<S>) {
    let job = bench.submit(1).await;
    let claim = bench.claim().await;
    assert!(bench.sending(&claim).await);
    let expires_at = bench.later(7000);
    bench.store.cancel(&job.id, expires_at).await.expect("cancel");
    bench.clock.advance_ms(5);
    let again = JobEnd::Again { error: Some(samples::transient()), not_before: bench.now() };
    assert!(bench.end(&claim, again).await);
    let seen = bench.job(&job.id).await;
    assert_eq!((seen.status, seen.finished_at), (JobStatus::Cancelled, Some(bench.now())));
    assert_eq!((seen.expires_at, seen.not_before, seen.sent), (Some(expires_at), None, false));
    assert!(bench.try_claim().await.is_none());
    bench.clock.advance_ms(7000);
    assert!(!bench.is_there(&job.id).await);
}

pub(super) async fn a_failed_job_is_tried_again<S: Work>(bench: &Bench<S>) {
    let job = bench.submit(1).await;
    let claim = bench.claim().await;
    assert!(bench.sending(&claim).await);
    let end = JobEnd::Final {
        status: JobStatus::Failed,
        error: Some(samples::verdict()),
        result: Some((samples::facts(422, b"broken"), "broken".into())),
        at: bench.now(),
        expires_at: bench.later(samples::LIFE_MS),
    };
    assert!(bench.end(&claim, end).await);
    let retried = bench.retry(&job.id).await;
    let job = Job { retries: 1, ..job };
    assert_eq!(retried, Some(job.clone()), "as if it had just come, but for the count");
    assert_eq!(bench.job(&job.id).await, job);
    assert_eq!(bench.result(&job.id).await, None);
    assert_eq!(bench.retry(&job.id).await, Some(job.clone()), "once is enough");
    let claim = bench.claim().await;
    assert_eq!(claim.job.id, job.id);
    assert_eq!(bench.input(&job.id).await, Some(samples::input(1)));
    assert!(bench.sending(&claim).await);
    assert!(bench.end(&claim, bench.succeeded(b"ok")).await);
    let seen = bench.job(&job.id).await;
    assert_eq!((seen.status, seen.attempts), (JobStatus::Succeeded, 1));

    // One that was tried again in vain goes when it would have gone.
    let failed = bench.submit_and_fail(2).await;
    bench.clock.advance_ms(1000);
    assert!(bench.retry(&failed.id).await.is_some());
    bench.clock.advance_ms(samples::LIFE_MS.cast_signed() - 1000);
    assert!(!bench.is_there(&failed.id).await);
}

pub(super) async fn only_a_failed_job_is_tried_again<S: Work>(bench: &Bench<S>) {
    let cancelled = bench.submit(1).await;
    bench.cancel(&cancelled.id).await;
    let succeeded = bench.submit(2).await;
    let claim = bench.claim().await;
    assert!(bench.end(&claim, bench.succeeded(b"ok")).await);
    let running = bench.submit(3).await;
    bench.claim().await;
    for id in [cancelled.id, succeeded.id, running.id] {
        let as_it_is = bench.job(&id).await;
        assert_eq!(bench.retry(&id).await, Some(as_it_is.clone()));
        assert_eq!(bench.job(&id).await, as_it_is);
    }
    assert!(bench.try_claim().await.is_none());
}

pub(super) async fn what_is_final_is_removed_when_it_expires<S: Work>(bench: &Bench<S>) {
    let mut ids = Vec::new();
    for (n, status) in [(1, JobStatus::Succeeded), (2, JobStatus::Failed), (3, JobStatus::Cancelled)] {
        ids.push(bench.submit(n).await.id);
        let claim = bench.claim().await;
        let end = JobEnd::Final {
            status,
            error: None,
            result: Some((samples::facts(200, b"ok"), "ok".into())),
            at: bench.now(),
            // Longer than a job that never ends is kept.
            expires_at: bench.later(2 * samples::LIFE_MS),
        };
        assert!(bench.end(&claim, end).await);
    }
    bench.clock.advance_ms(2 * samples::LIFE_MS.cast_signed() - 100);
    for id in &ids {
        assert!(bench.is_there(id).await);
        assert!(bench.result(id).await.is_some());
    }
    bench.clock.advance_ms(100);
    for id in &ids {
        assert!(!bench.is_there(id).await);
        assert_eq!((bench.result(id).await, bench.input(id).await), (None, None));
        assert_eq!(bench.retry(id).await, None);
    }
}
