//! Operations and jobs on Redis: what the suite cannot see from one process.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use nevertwice_domain::clock::{Clock, Millis, SystemClock};
use nevertwice_domain::job::{Job, JobId, JobStatus};
use nevertwice_domain::operation::Operation;
use nevertwice_domain::tenant::UpstreamName;
use nevertwice_store::StoreErrorKind;
use nevertwice_store::redis::{RedisOptions, RedisStore};
use nevertwice_store::work::suite::{self, samples};
use nevertwice_store::work::{
    CLAIM_LIFE, Claim, Full, Held, JobBounds, JobEnd, JobQuery, JobStore, OperationStore, Submitted, Untold,
};
use nevertwice_testkit::Redis;
use tokio::task::JoinSet;

use super::bench::{self, LONG, PREFIX, SECOND, until};

mod faults;
mod model;

/// A store on the clock of the world.
async fn open(options: RedisOptions) -> Arc<RedisStore> {
    Arc::new(RedisStore::start(options, Arc::new(SystemClock)).await)
}

async fn pair(server: &Redis) -> [Arc<RedisStore>; 2] {
    [open(bench::options(server.addr(), PREFIX)).await, open(bench::options(server.addr(), PREFIX)).await]
}

fn now() -> Millis {
    SystemClock.now()
}

fn later() -> Millis {
    now().plus_ms(samples::LIFE_MS)
}

fn ocr() -> UpstreamName {
    samples::upstream("ocr")
}

fn bounds() -> JobBounds {
    samples::bounds(later())
}

async fn submit(store: &RedisStore, n: u64) -> Job {
    match store.submit(samples::job(n, now()), samples::input(n), None, &bounds()).await {
        Ok(Submitted::New(job)) => job,
        other => panic!("not taken in: {other:?}"),
    }
}

async fn claim(store: &RedisStore, wait: Duration) -> Option<Claim> {
    store.claim(&ocr(), wait).await.unwrap_or_else(|error| panic!("claim: {error}"))
}

fn succeeded(body: &Bytes) -> JobEnd {
    JobEnd::Final {
        status: JobStatus::Succeeded,
        error: None,
        result: Some((samples::facts(200, body), body.clone())),
        at: now(),
        expires_at: later(),
    }
}

async fn finish(store: &RedisStore, claim: &Claim) -> bool {
    let ended = store.settle_job(claim, succeeded(&Bytes::from_static(b"ok"))).await;
    ended.unwrap_or_else(|error| panic!("settle: {error}"))
}

async fn status(store: &RedisStore, id: &JobId) -> Option<JobStatus> {
    store.job(id).await.unwrap_or_else(|error| panic!("job: {error}")).map(|job| job.status)
}

/// Ends of the tenant `a` that are to be told; each comes again after a minute.
async fn to_tell(store: &RedisStore, limit: usize) -> Vec<Untold> {
    let due = store.to_tell(&samples::tenant("a"), now().plus_ms(60_000), limit).await;
    due.unwrap_or_else(|error| panic!("to tell: {error}"))
}

/// All keys, and how long each lives in ms; -1 = for ever.
fn lives(server: &Redis) -> BTreeMap<String, i64> {
    let keys = server.ask(&["keys", "*"]);
    let life = |key: &str| server.ask(&["pttl", key]).parse().unwrap_or(0);
    keys.lines().map(|key| (key.to_owned(), life(key))).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_operations_and_jobs_conform_with_the_documented_rights() {
    let server = Redis::start();
    let case = Cell::new(0);
    suite::conformance(async |clock| {
        case.set(case.get() + 1);
        let prefix = format!("case-{}", case.get());
        let options = bench::documented_user(&server, &prefix, bench::options(server.addr(), &prefix));
        Arc::new(RedisStore::start(options, clock).await)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_job_is_handed_out_once_to_two_processes() {
    const JOBS: u64 = 200;
    let server = Redis::start();
    let stores = pair(&server).await;
    let mut workers = JoinSet::new();
    for n in 0..8 {
        let store = Arc::clone(&stores[n % 2]);
        workers.spawn(async move {
            let mut done = Vec::new();
            while let Some(claim) = claim(&store, 3 * SECOND).await {
                assert!(store.sending(&claim).await.is_ok_and(|held| held));
                assert!(finish(&store, &claim).await);
                done.push((claim.job.id, claim.job.attempts));
            }
            done
        });
    }
    let mut submitted = BTreeSet::new();
    for n in 0..JOBS {
        submitted.insert(submit(&stores[n as usize % 2], n).await.id);
    }
    let done: Vec<_> = workers.join_all().await.into_iter().flatten().collect();
    assert!(done.iter().all(|(_, attempts)| *attempts == 0), "handed out before any call");
    assert_eq!(done.len() as u64, JOBS);
    assert_eq!(done.into_iter().map(|(id, _)| id).collect::<BTreeSet<_>>(), submitted);
    for id in &submitted {
        assert_eq!(status(&stores[0], id).await, Some(JobStatus::Succeeded));
    }
    // nothing of them is left in the stream, in no form
    assert_eq!(server.ask(&["xlen", "{nt}:jq:ocr"]), "0");
    assert!(server.ask(&["xpending", "{nt}:jq:ocr", "workers"]).starts_with('0'));
    assert_eq!(stores[1].depth().await.ok(), Some(Vec::new()));
    assert_eq!(server.ask(&["keys", "*:ji:*"]), "", "no input stays");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_a_worker_that_falls_silent_is_replaced_and_can_do_nothing_any_more() {
    let server = Redis::start();
    let [a, b] = pair(&server).await;
    let job = submit(&a, 1).await;
    let old = claim(&a, LONG).await.unwrap_or_else(|| panic!("it waits"));
    assert!(a.sending(&old).await.is_ok_and(|held| held));
    let began = std::time::Instant::now();
    let kept = submit(&b, 2).await;
    let renewed = claim(&b, LONG).await.unwrap_or_else(|| panic!("it waits"));
    assert_eq!(renewed.job.id, kept.id);
    let renewing = {
        let (b, renewed) = (Arc::clone(&b), renewed.clone());
        let mut renewing = JoinSet::new();
        renewing.spawn(async move {
            loop {
                tokio::time::sleep(5 * SECOND).await;
                assert_eq!(b.renew(&renewed).await.ok(), Some(Held::Yes));
            }
        });
        renewing
    };
    let new = claim(&b, 2 * CLAIM_LIFE).await.unwrap_or_else(|| panic!("it lapses"));
    assert!(began.elapsed() >= CLAIM_LIFE - SECOND, "{:?}", began.elapsed());
    assert_eq!((new.job.id, new.job.sent, new.job.attempts), (job.id, true, 1));
    assert!(claim(&a, 2 * SECOND).await.is_none(), "the other one is renewed");
    drop(renewing);
    assert_eq!(a.renew(&old).await.ok(), Some(Held::No));
    assert!(!a.sending(&old).await.unwrap_or(true));
    assert!(!finish(&a, &old).await);
    let again = JobEnd::Again { error: None, not_before: now() };
    assert!(!a.settle_job(&old, again).await.unwrap_or(true));
    assert_eq!(a.result(&job.id).await.ok(), Some(None));
    assert!(finish(&b, &new).await);
    assert!(finish(&b, &renewed).await);
    assert_eq!(server.ask(&["keys", "*:jr:*"]).lines().count(), 2, "nothing of the dead one stays");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_submits_with_one_key_in_two_processes_one_is_taken_in() {
    let server = Redis::start();
    let stores = pair(&server).await;
    for round in 0..10 {
        let key = samples::key(&format!("key {round}"));
        let mut submits = JoinSet::new();
        for n in 0..8_u64 {
            let store = Arc::clone(&stores[n as usize % 2]);
            submits.spawn(async move {
                let mut job = samples::job(round * 100 + n, now());
                job.key = Some(key);
                // the same request, but for one that is another
                job.request.digest = samples::fingerprint(u64::from(n == 7));
                store.submit(job, samples::input(1), None, &bounds()).await
            });
        }
        let answers: Vec<_> = submits.join_all().await.into_iter().flatten().collect();
        assert_eq!(answers.len(), 8);
        let new: Vec<_> = answers
            .iter()
            .filter_map(|a| if let Submitted::New(job) = a { Some(job.id) } else { None })
            .collect();
        let [new] = new[..] else { panic!("one is new: {answers:?}") };
        for answer in &answers {
            match answer {
                Submitted::New(job) | Submitted::Same(job) => assert_eq!(job.id, new),
                Submitted::Conflict(id) => assert_eq!(*id, new),
                Submitted::Full(full) => panic!("there is room: {full:?}"),
            }
        }
    }
    let page = stores[0].list(&JobQuery { limit: 1000, ..JobQuery::default() }).await;
    assert_eq!(page.map(|page| page.items.len()).ok(), Some(10));
    assert_eq!(server.ask(&["keys", "*:ji:*"]).lines().count(), 10, "no other input stays");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_hears_of_a_job_elsewhere() {
    let server = Redis::start();
    let [a, b] = pair(&server).await;
    for n in 0..5 {
        let waiting = {
            let b = Arc::clone(&b);
            let mut waiting = JoinSet::new();
            waiting.spawn(async move { claim(&b, LONG).await });
            waiting
        };
        tokio::time::sleep(Duration::from_millis(20)).await;
        let job = submit(&a, n).await;
        let claims = waiting.join_all().await;
        assert_eq!(claims[0].as_ref().map(|claim| claim.job.id), Some(job.id));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_bodies_come_whole_and_look_ups_pass_between_their_pieces() {
    let server = Redis::start();
    let store = open(bench::options(server.addr(), PREFIX)).await;
    let body: Bytes = (0..32 << 20).map(|n: u32| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let job = samples::job(1, now());
    let moving = {
        let (store, job, body) = (Arc::clone(&store), job.clone(), body.clone());
        let mut moving = JoinSet::new();
        moving.spawn(async move { store.submit(job, body, None, &bounds()).await });
        moving
    };
    let mut looked = 0;
    while !moving.is_empty() && status(&store, &job.id).await.is_none() {
        assert!(bench::recall(&store, 1).await.is_ok());
        looked += 1;
    }
    assert!(looked > 1, "in between");
    assert!(matches!(&moving.join_all().await[..], [Ok(Submitted::New(_))]));
    assert_eq!(store.input(&job.id).await.ok().flatten().as_ref(), Some(&body));
    let claim = claim(&store, LONG).await.unwrap_or_else(|| panic!("it waits"));
    assert!(store.settle_job(&claim, succeeded(&body)).await.is_ok_and(|held| held));
    assert_eq!(store.result(&job.id).await.ok().flatten().as_ref(), Some(&body));
    assert_eq!(store.input(&job.id).await.ok(), Some(None));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_small_bodies_come_whole_and_look_ups_pass_between_them() {
    let server = Redis::start();
    let store = open(bench::options(server.addr(), PREFIX)).await;
    let body = |n: u64| Bytes::from(vec![n.to_le_bytes()[0]; 200 << 10]);
    let mut moving = JoinSet::new();
    for n in 0..100 {
        let (store, job) = (Arc::clone(&store), samples::job(n, now()));
        moving.spawn(async move {
            let id = job.id;
            let taken = store.submit(job, body(n), None, &bounds()).await;
            assert!(matches!(taken, Ok(Submitted::New(_))), "{taken:?}");
            (id, n)
        });
    }
    let mut reading = JoinSet::new();
    while let Some(taken) = moving.join_next().await {
        assert!(bench::recall(&store, 1).await.is_ok());
        let (id, n) = taken.unwrap_or_else(|error| panic!("{error}"));
        let store = Arc::clone(&store);
        reading.spawn(async move { store.input(&id).await.is_ok_and(|input| input == Some(body(n))) });
    }
    while let Some(whole) = reading.join_next().await {
        assert!(bench::recall(&store, 1).await.is_ok());
        assert!(whole.is_ok_and(|whole| whole));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_looks_at_a_thousand_jobs() {
    let server = Redis::start();
    let store = open(bench::options(server.addr(), PREFIX)).await;
    let at = now();
    let mut rare = samples::job(0, at);
    rare.upstream = samples::upstream("tika");
    assert!(store.submit(rare.clone(), samples::input(0), None, &bounds()).await.is_ok());
    let mut others = JoinSet::new();
    for task in 0..10_u64 {
        let store = Arc::clone(&store);
        others.spawn(async move {
            for n in (1 + task..=1000).step_by(10) {
                let taken = store.submit(samples::job(n, at), samples::input(n), None, &bounds()).await;
                assert!(matches!(taken, Ok(Submitted::New(_))), "{taken:?}");
            }
        });
    }
    others.join_all().await;
    let query = JobQuery { upstream: Some(rare.upstream.clone()), limit: 1, ..JobQuery::default() };
    let page = store.list(&query).await.unwrap_or_else(|error| panic!("{error}"));
    assert!(page.items.is_empty() && page.next.is_some(), "{page:?}");
    let page = store.list(&JobQuery { after: page.next, ..query }).await;
    let ids: Vec<_> = page.iter().flat_map(|page| &page.items).map(|job| job.id).collect();
    assert_eq!(ids, [rare.id]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_is_final_from_the_start_has_its_result_alone() {
    let server = Redis::start();
    let store = open(bench::options(server.addr(), PREFIX)).await;
    let body = Bytes::from(vec![9; 1 << 20]);
    let (at, key) = (now(), samples::key("k"));
    let mut job = samples::job(1, at);
    (job.status, job.finished_at, job.key) = (JobStatus::Succeeded, Some(at), Some(key));
    job.result = Some(samples::facts(200, &body));
    let full = JobBounds { max_queued: 0, ..bounds() };
    let taken = store.submit(job.clone(), samples::input(1), Some(body.clone()), &full).await;
    assert!(matches!(taken, Ok(Submitted::New(_))), "{taken:?}");
    assert_eq!(store.result(&job.id).await.ok(), Some(Some(body.clone())));
    assert_eq!(store.input(&job.id).await.ok(), Some(None));
    let same = Job { id: samples::job(2, at).id, ..job.clone() };
    let taken = store.submit(same, samples::input(1), Some(body), &full).await;
    assert!(matches!(taken, Ok(Submitted::Same(present)) if present.id == job.id));
    assert_eq!(server.ask(&["keys", "*:jr:*"]).lines().count(), 1);
    assert_eq!(server.ask(&["keys", "*:ji:*"]), "");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_processes_share_the_room() {
    let server = Redis::start();
    let stores = pair(&server).await;
    let bounds = JobBounds { max_bytes: 1000, tenant_max_bytes: 600, tenant_max_queued: 9, ..bounds() };
    let mut submits = JoinSet::new();
    for n in 0..40_u64 {
        let store = Arc::clone(&stores[n as usize % 2]);
        submits.spawn(async move {
            let job =
                Job { tenant: samples::tenant(["a", "b"][n as usize / 2 % 2]), ..samples::job(n, now()) };
            store.submit(job, Bytes::from(vec![1; 50]), None, &bounds).await
        });
    }
    let answers: Vec<_> = submits.join_all().await.into_iter().flatten().collect();
    let new = answers.iter().filter(|a| matches!(a, Submitted::New(_))).count();
    let full = answers.iter().filter(|a| **a == Submitted::Full(Full::TenantQueue)).count();
    assert_eq!((new, full), (18, 22), "nine of each");
    let stored = async |n: usize| stores[n].stored_bytes().await.ok();
    assert_eq!((stored(0).await, stored(1).await), (Some(900), Some(900)));
    let mut ended = 0;
    while let Some(claim) = claim(&stores[ended % 2], Duration::ZERO).await {
        let result = Bytes::from(vec![2; 70]);
        assert!(stores[ended % 2].settle_job(&claim, succeeded(&result)).await.is_ok_and(|held| held));
        ended += 1;
    }
    assert_eq!((ended, stored(0).await, stored(1).await), (18, Some(18 * 70), Some(18 * 70)));
    for store in &stores {
        let refused = store.submit(samples::job(99, now()), samples::input(1), None, &bounds).await;
        assert_eq!(refused.ok(), Some(Submitted::Full(Full::Bytes)));
    }
    assert_eq!(server.ask(&["hlen", "{nt}:jobs:sums"]), "3", "all, and two tenants: nobody waits");
}

/// The sums in Redis, made anew of what the records say.
fn assert_sums(server: &Redis) {
    let mut expected = BTreeMap::<String, u64>::new();
    for record in server.ask(&["zrange", "{nt}:jobs:records", "0", "-1"]).lines() {
        let parts: Vec<_> = record.split(' ').collect();
        let bytes = parts[2].parse::<u64>().unwrap_or_else(|error| panic!("{record}: {error}"));
        *expected.entry(String::new()).or_default() += bytes;
        *expected.entry(parts[1].to_owned()).or_default() += bytes;
        if let Some(upstream) = parts.get(3) {
            *expected.entry(format!("{} {upstream}", parts[1])).or_default() += 1;
        }
    }
    expected.retain(|_, sum| *sum > 0);
    for (field, sum) in &expected {
        assert_eq!(server.ask(&["hget", "{nt}:jobs:sums", field]), sum.to_string(), "{field:?}");
    }
    assert_eq!(server.ask(&["hlen", "{nt}:jobs:sums"]), expected.len().to_string());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_of_a_version_that_did_not_count_are_counted_from_when_they_change() {
    let server = Redis::start();
    let store = open(bench::options(server.addr(), PREFIX)).await;
    let stored = async || store.stored_bytes().await.ok();
    let mut jobs = Vec::new();
    for n in 0..4 {
        jobs.push(submit(&store, n).await);
    }
    let length = samples::input(1).len() as u64;
    assert_eq!(stored().await, Some(4 * length));
    // as that version left them
    for job in &jobs {
        server.ask(&["hdel", &format!("{{nt}}:j:{}", job.id), "k"]);
    }
    server.ask(&["del", "{nt}:jobs:records", "{nt}:jobs:sums"]);
    assert_eq!(stored().await, Some(0));
    let first = claim(&store, LONG).await.unwrap_or_else(|| panic!("it waits"));
    assert_eq!(stored().await, Some(length), "it has changed");
    assert!(finish(&store, &first).await);
    assert_eq!(stored().await, Some(2));
    assert!(store.cancel(&jobs[1].id, later()).await.is_ok_and(|job| job.is_some()));
    assert_eq!(stored().await, Some(2), "what did not count is not taken away");
    submit(&store, 9).await;
    assert_eq!(stored().await, Some(2 + length));
    assert_sums(&server);
    // too low, for whatever reason: never below zero
    server.ask(&["hset", "{nt}:jobs:sums", "", "1"]);
    assert!(store.cancel(&nth(&store, 9).await, later()).await.is_ok_and(|job| job.is_some()));
    assert_eq!(stored().await, Some(0));
}

/// The id of the job that was submitted as the `n`th.
async fn nth(store: &RedisStore, n: u64) -> JobId {
    let page = store.list(&JobQuery { limit: 1000, ..JobQuery::default() }).await;
    let found = page
        .ok()
        .and_then(|page| page.items.into_iter().find(|j| j.request.path.ends_with(&format!("n={n}"))));
    found.unwrap_or_else(|| panic!("job {n}")).id
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_another_version_removed_counts_until_its_time() {
    let server = Redis::start();
    let store = open(bench::options(server.addr(), PREFIX)).await;
    let soon = samples::bounds(now().plus_ms(3000));
    let job = samples::job(1, now());
    assert!(store.submit(job.clone(), samples::input(1), None, &soon).await.is_ok());
    submit(&store, 2).await;
    // by a version that does not count, or by the server, as the life of the keys is over
    let member = format!("{} {} {}", job.id, job.tenant, job.upstream);
    server.ask(&["zrem", "{nt}:jobs:ends", &member]);
    server.ask(&["del", &format!("{{nt}}:j:{}", job.id), &format!("{{nt}}:ji:{}", job.id)]);
    let rest = samples::input(2).len() as u64;
    until("it counts no more", LONG, async || store.stored_bytes().await.ok() == Some(rest)).await;
    assert!(now() >= soon.expires_at, "until then it does");
    assert_sums(&server);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_key_has_an_end() {
    let server = Redis::start();
    let store = open(bench::options(server.addr(), PREFIX)).await;
    let memory: BTreeSet<_> = lives(&server).into_keys().collect();
    for n in 0..6 {
        let mut job = samples::job(n, now());
        job.key = Some(samples::key(&n.to_string()));
        let taken = store.submit(job, samples::input(n), None, &bounds()).await;
        assert!(matches!(taken, Ok(Submitted::New(_))));
    }
    let claim_one = async || claim(&store, LONG).await.unwrap_or_else(|| panic!("it waits"));
    assert!(finish(&store, &claim_one().await).await);
    let again = JobEnd::Again { error: None, not_before: later() };
    assert!(store.settle_job(&claim_one().await, again).await.is_ok_and(|held| held));
    let failed = claim_one().await;
    let end = JobEnd::Final {
        status: JobStatus::Failed,
        error: Some(samples::transient()),
        result: None,
        at: now(),
        expires_at: later(),
    };
    assert!(store.settle_job(&failed, end).await.is_ok_and(|held| held));
    assert!(store.retry(&failed.job.id).await.is_ok_and(|job| job.is_some()));
    let cancelled = claim_one().await;
    assert!(store.cancel(&cancelled.job.id, later()).await.is_ok_and(|job| job.is_some()));
    assert!(store.put(&samples::operation(1, now())).await.is_ok());
    let lives = lives(&server);
    assert!(lives.len() >= 28, "{lives:?}");
    let longest = i64::try_from(2 * samples::LIFE_MS + 60_000).unwrap_or(0);
    for (key, life) in lives {
        assert!(memory.contains(&key) || (1..=longest).contains(&life), "{key} lives {life} ms");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_over_is_swept_and_leaves_nothing_behind() {
    let server = Redis::start();
    let store = open(bench::options(server.addr(), PREFIX)).await;
    let memory: BTreeSet<_> = lives(&server).into_keys().collect();
    let soon = samples::bounds(now().plus_ms(1500));
    for n in 0..10 {
        assert!(store.submit(samples::job(n, now()), samples::input(n), None, &soon).await.is_ok());
    }
    let ends = |claim: &Claim| {
        let body = Bytes::from_static(b"ok");
        let (at, expires_at, facts) = (now(), soon.expires_at, samples::facts(200, &body));
        let _ = claim;
        JobEnd::Final { status: JobStatus::Failed, error: None, result: Some((facts, body)), at, expires_at }
    };
    let first = claim(&store, LONG).await.unwrap_or_else(|| panic!("it waits"));
    assert!(store.settle_job(&first, ends(&first)).await.is_ok_and(|held| held));
    let second = claim(&store, LONG).await.unwrap_or_else(|| panic!("it waits"));
    let again = JobEnd::Again { error: None, not_before: later() };
    assert!(store.settle_job(&second, again).await.is_ok_and(|held| held));
    // one runs
    assert!(claim(&store, LONG).await.is_some());
    until("all is swept", LONG, async || {
        let left: Vec<_> = lives(&server).into_keys().filter(|key| !memory.contains(key)).collect();
        // the stream, which is empty, and the names of upstreams go by themselves
        left.iter().all(|key| key.ends_with(":jq:ocr") || key.ends_with(":jobs:upstreams"))
    })
    .await;
    assert_eq!(server.ask(&["xlen", "{nt}:jq:ocr"]), "0");
    assert!(server.ask(&["xpending", "{nt}:jq:ocr", "workers"]).starts_with('0'));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_processes_one_looks_at_an_operation_and_one_settles_it() {
    let server = Redis::start();
    let stores = pair(&server).await;
    let began = now();
    for n in 0..100 {
        assert!(stores[0].put(&samples::operation(n, began)).await.is_ok());
    }
    let (due, again) = (began.plus_ms(2000), began.plus_ms(60_000));
    let mut lookers = JoinSet::new();
    for n in 0..8 {
        let store = Arc::clone(&stores[n % 2]);
        lookers.spawn(async move {
            let mut looked: Vec<Operation> = Vec::new();
            loop {
                let due = store.due(due, again, 7).await.unwrap_or_else(|error| panic!("due: {error}"));
                if due.is_empty() {
                    return looked;
                }
                looked.extend(due);
            }
        });
    }
    let looked: Vec<_> = lookers.join_all().await.into_iter().flatten().collect();
    let ids: BTreeSet<_> = looked.iter().map(|operation| operation.id).collect();
    assert_eq!((looked.len(), ids.len()), (100, 100));
    let mut settlers = JoinSet::new();
    for n in 0..8 {
        let store = Arc::clone(&stores[n % 2]);
        let ids = ids.clone();
        settlers.spawn(async move {
            let mut first = 0;
            for id in &ids {
                first += u32::from(store.settle(id).await.unwrap_or_else(|error| panic!("settle: {error}")));
            }
            first
        });
    }
    assert_eq!(settlers.join_all().await.into_iter().sum::<u32>(), 100);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_older_replica_leaves_nothing_behind_that_is_told() {
    let server = Redis::start();
    let store = open(bench::options(server.addr(), PREFIX)).await;
    let ended = async |n| {
        let job = submit(&store, n).await;
        assert!(store.cancel(&job.id, later()).await.is_ok());
        store.job(&job.id).await.ok().flatten().unwrap_or_else(|| panic!("it is there"))
    };
    let (gone, again, stays) = (ended(1).await, ended(2).await, ended(3).await);
    let name = |job: &Job| format!("{{{PREFIX}}}:j:{}", job.id);
    // one that it has removed, and one that it has let wait again: it knows nothing of what else stands there
    server.ask(&["del", &name(&gone)]);
    let waits = server.ask(&["hget", &name(&again), "v"]).replace("\"cancelled\"", "\"queued\"");
    server.ask(&["hset", &name(&again), "v", &waits]);
    let due: Vec<_> = to_tell(&store, 10).await.iter().map(|untold| untold.job.id).collect();
    assert_eq!(due, [stays.id]);
    assert_eq!(server.ask(&["zcard", "{nt}:ju:a"]), "1");
    assert_eq!(server.ask(&["hget", &name(&again), "w"]), "");
    assert_eq!(server.ask(&["exists", &name(&gone)]), "0", "nothing is made of a job that is gone");
}
