//! Handing jobs out.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use nevertwice_domain::job::{Job, JobStatus};
use tokio::task::JoinSet;

use super::{Bench, Held, LONG, Work, samples};
use crate::work::CLAIM_LIFE;

fn claim_life_ms() -> i64 {
    i64::try_from(CLAIM_LIFE.as_millis()).expect("it is short")
}

pub(super) async fn jobs_come_in_their_order<S: Work>(bench: &Bench<S>) {
    let mut jobs = Vec::new();
    for n in 0..30 {
        jobs.push(bench.submit(n).await);
    }
    for job in jobs {
        let claim = bench.try_claim().await.expect("it is due");
        let expected = Job { status: JobStatus::Running, started_at: Some(bench.now()), ..job };
        assert_eq!(claim.job, expected);
        assert_eq!(bench.job(&expected.id).await, expected);
        assert_eq!((claim.job.attempts, claim.job.sent), (0, false), "no call was made yet");
    }
    assert!(bench.try_claim().await.is_none());
}

pub(super) async fn upstreams_have_queues_of_their_own<S: Work>(bench: &Bench<S>) {
    let ocr = bench.submit(1).await;
    let tika = bench.submit_with(2, |job| job.upstream = samples::upstream("tika")).await;
    let nobody = bench.store.claim(&samples::upstream("nobody"), Duration::ZERO).await.expect("claim");
    assert!(nobody.is_none());
    let claim = bench.store.claim(&samples::upstream("tika"), LONG).await.expect("claim").expect("is due");
    assert_eq!(claim.job.id, tika.id);
    assert_eq!(bench.claim().await.job.id, ocr.id);
}

pub(super) async fn a_job_is_handed_out_once<S: Work>(bench: &Bench<S>) {
    for n in 0..3 {
        bench.submit(n).await;
    }
    let mut tasks = JoinSet::new();
    for _ in 0..12 {
        let store = Arc::clone(&bench.store);
        tasks.spawn(async move {
            store.claim(&samples::upstream("ocr"), Duration::from_millis(50)).await.expect("claim")
        });
    }
    let claims: Vec<_> = tasks.join_all().await.into_iter().flatten().collect();
    let ids: BTreeSet<_> = claims.iter().map(|claim| claim.job.id).collect();
    assert_eq!((claims.len(), ids.len()), (3, 3));
}

pub(super) async fn many_workers_share_the_jobs<S: Work>(bench: &Bench<S>) {
    const JOBS: u64 = 120;
    let mut tasks = JoinSet::new();
    for _ in 0..6 {
        let store = Arc::clone(&bench.store);
        let (now, later) = (bench.now(), bench.later(samples::LIFE_MS));
        tasks.spawn(async move {
            let mut done = Vec::new();
            while let Some(claim) =
                store.claim(&samples::upstream("ocr"), Duration::from_millis(500)).await.expect("claim")
            {
                assert!(store.sending(&claim).await.expect("sending"));
                let end = super::JobEnd::Final {
                    status: JobStatus::Succeeded,
                    error: None,
                    result: None,
                    at: now,
                    expires_at: later,
                };
                assert!(store.settle_job(&claim, end).await.expect("settle"));
                done.push(claim.job.id);
            }
            done
        });
    }
    let mut submitted = BTreeSet::new();
    for n in 0..JOBS {
        submitted.insert(bench.submit(n).await.id);
    }
    let done: Vec<_> = tasks.join_all().await.into_iter().flatten().collect();
    // A worker that saw nothing for a while is gone; what is left is still there.
    let mut all: BTreeSet<_> = done.iter().copied().collect();
    assert_eq!(all.len(), done.len(), "no job was done twice");
    while let Some(claim) = bench.try_claim().await {
        assert!(all.insert(claim.job.id));
    }
    assert_eq!(all, submitted);
}

pub(super) async fn a_waiter_is_woken<S: Work>(bench: &Bench<S>) {
    for n in 0..5 {
        let store = Arc::clone(&bench.store);
        let mut waiter = JoinSet::new();
        waiter.spawn(async move { store.claim(&samples::upstream("ocr"), LONG).await.expect("claim") });
        if n % 2 == 0 {
            // Most likely it waits by then; it must not matter.
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let job = bench.submit(n).await;
        let claim = waiter.join_next().await.expect("one waits").expect("it ends").expect("it is woken");
        assert_eq!(claim.job.id, job.id);
    }
}

pub(super) async fn a_waiter_that_leaves_takes_nothing_with_it<S: Work>(bench: &Bench<S>) {
    const JOBS: u64 = 40;
    let mut submitted = BTreeSet::new();
    let mut taken = BTreeSet::new();
    for n in 0..JOBS {
        let mut waiters = JoinSet::new();
        for _ in 0..3 {
            let store = Arc::clone(&bench.store);
            waiters.spawn(async move { store.claim(&samples::upstream("ocr"), LONG).await });
        }
        tokio::time::sleep(Duration::from_micros(n * 137 % 3000)).await;
        submitted.insert(bench.submit(n).await.id);
        tokio::time::sleep(Duration::from_micros(n * 731 % 2000)).await;
        waiters.abort_all();
        while let Some(ended) = waiters.join_next().await {
            if let Ok(claimed) = ended {
                let claim = claimed.expect("claim").expect("it waits long");
                assert!(taken.insert(claim.job.id), "handed out twice");
            }
        }
    }
    // The clock stands still: no claim lapses.
    while taken.len() < submitted.len() {
        let claim = bench.claim().await;
        assert!(!claim.job.sent && claim.job.attempts == 0);
        assert!(taken.insert(claim.job.id), "handed out twice");
    }
    assert_eq!(taken, submitted);
    assert!(bench.try_claim().await.is_none());
}

pub(super) async fn nothing_comes_of_waiting<S: Work>(bench: &Bench<S>) {
    for wait in [0, 1, 30] {
        let wait = Duration::from_millis(wait);
        assert!(bench.store.claim(&samples::upstream("ocr"), wait).await.expect("claim").is_none());
    }
}

pub(super) async fn a_claim_that_is_renewed_holds<S: Work>(bench: &Bench<S>) {
    bench.submit(1).await;
    let claim = bench.claim().await;
    for _ in 0..5 {
        bench.clock.advance_ms(claim_life_ms() - 1);
        assert!(bench.try_claim().await.is_none());
        assert_eq!(bench.renew(&claim).await, Held::Yes);
    }
    bench.clock.advance_ms(claim_life_ms() - 1);
    assert!(bench.sending(&claim).await);
    bench.clock.advance_ms(claim_life_ms() - 1);
    assert!(bench.try_claim().await.is_none(), "a call that begins prolongs it too");
    assert!(bench.end(&claim, bench.succeeded(b"ok")).await);
    assert_eq!(bench.renew(&claim).await, Held::No, "it is over");
    assert!(!bench.sending(&claim).await);
    assert!(!bench.end(&claim, bench.failed(samples::transient())).await);
    assert_eq!(bench.job(&claim.job.id).await.status, JobStatus::Succeeded);
}

pub(super) async fn a_correction_of_the_time_ends_no_claim<S: Work>(bench: &Bench<S>) {
    let job = bench.submit(1).await;
    let claim = bench.claim().await;
    bench.clock.step_ms(600_000);
    assert!(bench.try_claim().await.is_none(), "its worker is not dead");
    assert_eq!(bench.renew(&claim).await, Held::Yes);
    bench.clock.step_ms(-600_000);
    assert_eq!(bench.renew(&claim).await, Held::Yes);
    bench.clock.advance_ms(claim_life_ms());
    assert_eq!(bench.claim().await.job.id, job.id, "nor does it live for ever");
}

pub(super) async fn a_lapsed_claim_is_handed_out_again<S: Work>(bench: &Bench<S>) {
    let job = bench.submit(1).await;
    let first = bench.claim().await;
    let started_at = first.job.started_at;
    bench.clock.advance_ms(claim_life_ms());
    let second = bench.claim().await;
    assert_eq!((second.job.id, second.job.status), (job.id, JobStatus::Running));
    assert_ne!(first.token, second.token);
    assert_eq!(second.job.started_at, started_at, "when it was first taken");
    assert!(!second.job.sent && second.job.attempts == 0, "nothing was sent: it simply runs");
    assert_eq!(bench.input(&job.id).await, Some(samples::input(1)));
    assert!(bench.try_claim().await.is_none());
    assert!(bench.end(&second, bench.succeeded(b"ok")).await);
    bench.clock.advance_ms(claim_life_ms());
    assert!(bench.try_claim().await.is_none(), "what is final is not handed out");
}

pub(super) async fn sent_is_as_the_worker_left_it<S: Work>(bench: &Bench<S>) {
    let job = bench.submit(1).await;
    let first = bench.claim().await;
    assert!(bench.sending(&first).await);
    let seen = bench.job(&job.id).await;
    assert!(seen.sent && seen.attempts == 1);
    bench.clock.advance_ms(claim_life_ms());
    let second = bench.claim().await;
    assert!(second.job.sent && second.job.attempts == 1);
    let mut interrupted = samples::transient();
    (interrupted.code, interrupted.upstream_status) = ("INTERRUPTED".into(), None);
    assert!(bench.end(&second, bench.failed(interrupted.clone())).await);
    let seen = bench.job(&job.id).await;
    assert_eq!((seen.status, seen.error, seen.attempts), (JobStatus::Failed, Some(interrupted), 1));
    assert!(!seen.sent, "how it ended is known now");
}

pub(super) async fn an_old_claim_does_nothing<S: Work>(bench: &Bench<S>) {
    let job = bench.submit(1).await;
    let old = bench.claim().await;
    bench.clock.advance_ms(claim_life_ms());
    let new = bench.claim().await;
    let as_it_is = bench.job(&job.id).await;
    assert_eq!(bench.renew(&old).await, Held::No);
    assert!(!bench.sending(&old).await);
    assert!(!bench.end(&old, bench.succeeded(b"of the dead")).await);
    assert!(!bench.end(&old, super::JobEnd::Again { error: None, not_before: bench.now() }).await);
    assert_eq!(bench.job(&job.id).await, as_it_is);
    assert_eq!(bench.result(&job.id).await, None);
    assert_eq!(bench.renew(&new).await, Held::Yes);
    assert!(bench.sending(&new).await);
    assert!(bench.end(&new, bench.succeeded(b"ok")).await);
    assert_eq!(bench.result(&job.id).await.as_deref(), Some(&b"ok"[..]));
}
