//! What becomes of operations and jobs when servers, data and workers are lost.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nevertwice_testkit::{Chaos, Fault};

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_scripts_are_loaded_again() {
    let server = Redis::start();
    let store = open(bench::options(server.addr(), PREFIX)).await;
    let flush = || assert_eq!(server.ask(&["script", "flush", "sync"]), "OK");
    flush();
    let job = submit(&store, 1).await;
    flush();
    let claim = claim(&store, LONG).await.unwrap_or_else(|| panic!("it waits"));
    flush();
    assert!(store.sending(&claim).await.is_ok_and(|held| held));
    flush();
    assert_eq!(store.renew(&claim).await.ok(), Some(Held::Yes));
    flush();
    assert!(finish(&store, &claim).await);
    assert_eq!(status(&store, &job.id).await, Some(JobStatus::Succeeded));
    flush();
    let due = to_tell(&store, 10).await;
    flush();
    assert_eq!(store.told(&due[0], None).await.ok(), Some(true));
    flush();
    let operation = samples::operation(1, now());
    assert!(store.put(&operation).await.is_ok());
    flush();
    assert_eq!(store.settle(&operation.id).await.ok(), Some(true));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_lost_all_data_has_no_jobs_and_takes_new_ones() {
    let server = Redis::start();
    let store = open(bench::options(server.addr(), PREFIX)).await;
    let (first, second) = (submit(&store, 1).await, submit(&store, 2).await);
    let old = claim(&store, LONG).await.unwrap_or_else(|| panic!("it waits"));
    let operation = samples::operation(1, now());
    assert!(store.put(&operation).await.is_ok());
    assert!(store.cancel(&second.id, later()).await.is_ok());
    let due = to_tell(&store, 10).await;
    assert_eq!(server.ask(&["flushall"]), "OK");
    assert_eq!(store.told(&due[0], None).await.ok(), Some(false));
    assert!(to_tell(&store, 10).await.is_empty());
    for id in [first.id, second.id] {
        assert_eq!(status(&store, &id).await, None);
        assert_eq!(store.input(&id).await.ok(), Some(None));
        assert_eq!(store.result(&id).await.ok(), Some(None));
        assert_eq!(store.cancel(&id, later()).await.ok(), Some(None));
        assert_eq!(store.retry(&id).await.ok(), Some(None));
    }
    assert_eq!(store.renew(&old).await.ok(), Some(Held::No));
    assert!(!store.sending(&old).await.unwrap_or(true));
    assert!(!finish(&store, &old).await);
    assert!(claim(&store, Duration::ZERO).await.is_none());
    assert_eq!(store.depth().await.ok(), Some(Vec::new()));
    assert_eq!(store.operation(&operation.id).await.ok(), Some(None));
    assert_eq!(store.settle(&operation.id).await.ok(), Some(false));
    assert_eq!(store.due(later(), later(), 10).await.map(|due| due.len()).ok(), Some(0));
    let job = submit(&store, 3).await;
    assert_eq!(claim(&store, LONG).await.map(|claim| claim.job.id), Some(job.id));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_away_is_an_error_and_what_was_acknowledged_is_there_again() {
    let mut server = Redis::with(&["--save", "", "--appendonly", "yes", "--appendfsync", "always"]);
    let store = open(bench::options(server.addr(), PREFIX)).await;
    let mut acknowledged = Vec::new();
    for n in 0..20 {
        acknowledged.push(submit(&store, n).await);
    }
    let running = claim(&store, LONG).await.unwrap_or_else(|| panic!("it waits"));
    assert!(store.sending(&running).await.is_ok_and(|held| held));
    let operation = samples::operation(1, now());
    assert!(store.put(&operation).await.is_ok());
    server.kill();
    let kind =
        bench::kind_of(store.submit(samples::job(50, now()), samples::input(50), None, &bounds()).await);
    assert!(matches!(kind, Some(StoreErrorKind::Io | StoreErrorKind::Busy)), "{kind:?}");
    for kind in [
        bench::kind_of(store.job(&running.job.id).await),
        bench::kind_of(store.input(&running.job.id).await),
        bench::kind_of(store.claim(&ocr(), LONG).await),
        bench::kind_of(store.renew(&running).await),
        bench::kind_of(store.sending(&running).await),
        bench::kind_of(store.list(&JobQuery { limit: 1, ..JobQuery::default() }).await),
        bench::kind_of(store.depth().await),
        bench::kind_of(store.operation(&operation.id).await),
        bench::kind_of(store.due(now(), later(), 1).await),
    ] {
        assert!(matches!(kind, Some(StoreErrorKind::Io | StoreErrorKind::Busy)), "{kind:?}");
    }
    server.restart();
    until("it is back", LONG, async || store.job(&running.job.id).await.is_ok()).await;
    for job in &acknowledged {
        let expected = if job.id == running.job.id { JobStatus::Running } else { JobStatus::Queued };
        assert_eq!(status(&store, &job.id).await, Some(expected));
        assert!(store.input(&job.id).await.is_ok_and(|input| input.is_some()));
    }
    assert_eq!(store.renew(&running).await.ok(), Some(Held::Yes), "it is ours still");
    assert!(finish(&store, &running).await);
    for job in &acknowledged[1..] {
        assert_eq!(claim(&store, LONG).await.map(|claim| claim.job.id), Some(job.id));
    }
    assert_eq!(store.operation(&operation.id).await.ok(), Some(Some(operation)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_this_version_cannot_read_holds_nothing_up() {
    let server = Redis::start();
    let store = open(bench::options(server.addr(), PREFIX)).await;
    let jobs = [submit(&store, 1).await, submit(&store, 2).await, submit(&store, 3).await];
    let name = |job: &Job| format!("{{{PREFIX}}}:j:{}", job.id);
    server.ask(&["hset", &name(&jobs[0]), "v", "2{}"]);
    server.ask(&["hset", &name(&jobs[1]), "v", "1{\"id\":"]);
    assert_eq!(bench::kind_of(store.job(&jobs[0].id).await), Some(StoreErrorKind::Newer));
    assert_eq!(bench::kind_of(store.job(&jobs[1].id).await), Some(StoreErrorKind::Corrupt));
    assert_eq!(claim(&store, LONG).await.map(|claim| claim.job.id), Some(jobs[2].id));
    let page = store.list(&JobQuery { limit: 10, ..JobQuery::default() }).await;
    assert_eq!(page.map(|page| page.items.len()).ok(), Some(1));
    // an end that another version may be able to tell is left to it, with all its calls
    let ended = [submit(&store, 4).await, submit(&store, 5).await];
    for job in &ended {
        assert!(store.cancel(&job.id, later()).await.is_ok());
    }
    let as_it_was = server.ask(&["hget", &name(&ended[0]), "v"]);
    server.ask(&["hset", &name(&ended[0]), "v", "2{}"]);
    assert_eq!(to_tell(&store, 1).await.len() + to_tell(&store, 1).await.len(), 1);
    server.ask(&["hset", &name(&ended[0]), "v", &as_it_was]);
    server.ask(&["zadd", "{nt}:ju:a", "0", &ended[0].id.to_string()]);
    let due = to_tell(&store, 10).await;
    assert_eq!(
        due.iter().map(|untold| (untold.job.id, untold.calls)).collect::<Vec<_>>(),
        [(ended[0].id, 1)]
    );
    let operations = [samples::operation(1, now()), samples::operation(2, now())];
    for operation in &operations {
        assert!(store.put(operation).await.is_ok());
    }
    server.ask(&["hset", &format!("{{{PREFIX}}}:op:{}", operations[0].id), "v", "?"]);
    assert_eq!(bench::kind_of(store.operation(&operations[0].id).await), Some(StoreErrorKind::Corrupt));
    let due = store.due(later(), later(), 10).await.unwrap_or_else(|error| panic!("due: {error}"));
    assert_eq!(due.iter().map(|operation| operation.id).collect::<Vec<_>>(), [operations[1].id]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_replica_was_passed_goes_on_there() {
    let server = Redis::start();
    let store = open(bench::options(server.addr(), PREFIX)).await;
    let port = server.addr().port().to_string();
    let replica = Redis::with(&["--save", "", "--replicaof", "127.0.0.1", &port]);
    until("the replica follows", LONG, async || {
        replica.ask(&["info", "replication"]).contains("master_link_status:up")
    })
    .await;
    let jobs = [submit(&store, 1).await, submit(&store, 2).await, submit(&store, 3).await];
    let running = claim(&store, LONG).await.unwrap_or_else(|| panic!("it waits"));
    assert!(store.sending(&running).await.is_ok_and(|held| held));
    let again = claim(&store, LONG).await.unwrap_or_else(|| panic!("it waits"));
    let end = JobEnd::Again { error: Some(samples::transient()), not_before: now() };
    assert!(store.settle_job(&again, end).await.is_ok_and(|held| held));
    assert_eq!(server.ask(&["wait", "1", "10000"]), "1");
    drop(server);
    assert_eq!(replica.ask(&["replicaof", "no", "one"]), "OK");
    let store = open(bench::options(replica.addr(), PREFIX)).await;
    assert_eq!(store.renew(&running).await.ok(), Some(Held::Yes), "whose it is is known there too");
    let mut rest = Vec::new();
    while let Some(claim) = claim(&store, Duration::ZERO).await {
        assert!(finish(&store, &claim).await);
        rest.push(claim.job.id);
    }
    rest.sort_unstable();
    assert_eq!(rest, [jobs[1].id, jobs[2].id], "the one that runs has not lapsed");
    assert!(finish(&store, &running).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_that_is_cut_on_its_way_is_no_body() {
    let server = Redis::start();
    let chaos = Chaos::start(server.addr()).await;
    let direct = open(bench::options(server.addr(), PREFIX)).await;
    let store = open(bench::options(chaos.addr(), PREFIX)).await;
    let body: Bytes = vec![7; 3 << 20].into();
    // answers are short: so many bytes of them are some pieces, then the script, then nothing
    for after in [1, 20, 100, 180] {
        chaos.set(Fault::CutAfter(after));
        let job = samples::job(after as u64, now());
        let submitted = store.submit(job.clone(), body.clone(), None, &bounds()).await;
        chaos.set(Fault::None);
        let there = status(&direct, &job.id).await.is_some();
        match submitted {
            Ok(Submitted::New(_)) => assert!(there),
            // its answer may be what was lost
            Err(error) => assert!(matches!(error.kind, StoreErrorKind::Io | StoreErrorKind::Busy), "{error}"),
            other => panic!("{other:?}"),
        }
        let input = direct.input(&job.id).await.unwrap_or_else(|error| panic!("input: {error}"));
        assert_eq!(input.is_some(), there);
        assert!(input.is_none_or(|input| input == body), "whole, or not at all");
        until("it works again", LONG, async || store.job(&job.id).await.is_ok()).await;
    }
    for (key, life) in lives(&server) {
        assert!(life > 0 || key.ends_with(":schema") || key.contains(":probe:"), "{key} stays for ever");
    }
    while let Some(claim) = claim(&direct, Duration::ZERO).await {
        chaos.set(Fault::CutAfter(100));
        let ended = store.settle_job(&claim, succeeded(&body)).await;
        chaos.set(Fault::None);
        let result = direct.result(&claim.job.id).await.unwrap_or_else(|error| panic!("result: {error}"));
        assert_eq!(result.is_some(), status(&direct, &claim.job.id).await == Some(JobStatus::Succeeded));
        assert!(result.is_some() || ended.is_err());
        // whether or not its answer was lost
        let due = to_tell(&direct, 10).await;
        assert_eq!(due.iter().any(|untold| untold.job.id == claim.job.id), result.is_some());
        assert!(result.is_none_or(|result| result == body));
        until("it works again", LONG, async || store.job(&claim.job.id).await.is_ok()).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_server_takes_no_job_and_lets_those_that_are_there_end() {
    let server = Redis::start();
    let store = open(bench::options(server.addr(), PREFIX)).await;
    for n in 0..5 {
        submit(&store, n).await;
    }
    assert_eq!(server.ask(&["config", "set", "maxmemory", "1"]), "OK");
    let refused = store.submit(samples::job(9, now()), samples::input(9), None, &bounds()).await;
    assert_eq!(bench::kind_of(refused), Some(StoreErrorKind::Full));
    let claim_one = async || claim(&store, LONG).await.unwrap_or_else(|| panic!("it waits"));
    let first = claim_one().await;
    assert!(store.sending(&first).await.is_ok_and(|held| held));
    let again = JobEnd::Again { error: Some(samples::transient()), not_before: now() };
    assert!(store.settle_job(&first, again).await.is_ok_and(|held| held));
    let second = claim_one().await;
    let with_result = store.settle_job(&second, succeeded(&Bytes::from_static(b"ok"))).await;
    assert_eq!(bench::kind_of(with_result), Some(StoreErrorKind::Full), "an answer has no room");
    let end = JobEnd::Final {
        status: JobStatus::Failed,
        error: Some(samples::transient()),
        result: None,
        at: now(),
        expires_at: later(),
    };
    assert!(store.settle_job(&second, end).await.is_ok_and(|held| held), "and the job ends without");
    for _ in 0..4 {
        let claim = claim_one().await;
        assert!(store.cancel(&claim.job.id, later()).await.is_ok_and(|job| job.is_some()));
        let again = JobEnd::Again { error: None, not_before: now() };
        assert!(store.settle_job(&claim, again).await.is_ok_and(|held| held));
        assert_eq!(status(&store, &claim.job.id).await, Some(JobStatus::Cancelled));
    }
    assert_eq!(server.ask(&["xlen", "{nt}:jq:ocr"]), "0");
    let due = to_tell(&store, 10).await;
    assert_eq!(due.len(), 5, "their ends are told");
    assert_eq!(store.told(&due[0], Some(now())).await.ok(), Some(true));
    assert_eq!(to_tell(&store, 10).await.len(), 1);
    assert_eq!(store.told(&due[1], None).await.ok(), Some(true));
    assert_eq!(server.ask(&["config", "set", "maxmemory", "0"]), "OK");
    submit(&store, 10).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_workers_that_die_at_any_point_lose_no_job_and_end_none_twice() {
    const JOBS: u64 = 100;
    let server = Redis::start();
    let stores = pair(&server).await;
    let ended: Arc<Mutex<BTreeMap<JobId, u32>>> = Arc::default();
    let submitted: Arc<Mutex<BTreeSet<JobId>>> = Arc::default();
    let random = &mut fastrand::Rng::with_seed(7);
    let mut n = 0;
    let is_done = || {
        let (ended, submitted) = (lock(&ended), lock(&submitted));
        // one that was taken in, unheard by who submitted it, ends too
        submitted.len() as u64 >= JOBS && submitted.iter().all(|id| ended.contains_key(id))
    };
    let began = Instant::now();
    while !is_done() {
        assert!(began.elapsed() < 6 * LONG, "{} of {} ended", lock(&ended).len(), lock(&submitted).len());
        let mut tasks = JoinSet::new();
        for worker in 0..6 {
            let (store, ended) = (Arc::clone(&stores[worker % 2]), Arc::clone(&ended));
            tasks.spawn(async move {
                while let Some(claim) = claim(&store, LONG).await {
                    if claim.job.sent {
                        // an end is all that is left to such a one
                        if finish(&store, &claim).await {
                            *lock(&ended).entry(claim.job.id).or_default() += 1;
                        }
                        continue;
                    }
                    assert!(store.sending(&claim).await.is_ok_and(|held| held), "nobody else has it");
                    tokio::time::sleep(Duration::from_micros(500)).await;
                    if finish(&store, &claim).await {
                        *lock(&ended).entry(claim.job.id).or_default() += 1;
                    }
                }
            });
        }
        for (from, store) in (n..).step_by(20).zip(&stores) {
            let (store, submitted) = (Arc::clone(store), Arc::clone(&submitted));
            tasks.spawn(async move {
                for n in from..from + 10 {
                    if lock(&submitted).len() as u64 >= JOBS {
                        break;
                    }
                    let id = submit(&store, n).await.id;
                    lock(&submitted).insert(id);
                }
                std::future::pending().await
            });
        }
        n += 40;
        tokio::time::sleep(Duration::from_millis(random.u64(5..150))).await;
        tasks.abort_all();
        while let Some(task) = tasks.join_next().await {
            assert!(!task.as_ref().is_err_and(tokio::task::JoinError::is_panic), "{task:?}");
        }
        // what the dead have lapses at once
        let pending = server.ask(&["xpending", "{nt}:jq:ocr", "workers", "-", "+", "1000", "running"]);
        for entry in pending.split_whitespace().filter(|word| word.contains('-')) {
            let idle = ["xclaim", "{nt}:jq:ocr", "workers", "running", "0", entry, "idle", "20000", "justid"];
            server.ask(&idle);
        }
        // one whose worker died after its end had been written, before it heard of it
        let mut forgotten = Vec::new();
        for id in lock(&submitted).iter().filter(|id| !lock(&ended).contains_key(id)) {
            forgotten.push(*id);
        }
        for id in forgotten {
            if status(&stores[0], &id).await == Some(JobStatus::Succeeded) {
                lock(&ended).insert(id, 1);
            }
        }
    }
    assert!(lock(&ended).values().all(|times| *times == 1), "{:?}", lock(&ended));
    let submitted = lock(&submitted).clone();
    let told: Vec<_> = to_tell(&stores[0], 1000).await.iter().map(|untold| untold.job.id).collect();
    let each: BTreeSet<_> = told.iter().copied().collect();
    assert!(each.len() == told.len() && each.is_superset(&submitted), "each end is to be told, once");
    for store in &stores {
        for id in submitted.clone() {
            assert_eq!(status(store, &id).await, Some(JobStatus::Succeeded));
        }
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}
