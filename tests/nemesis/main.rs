//! The nemesis test: a fleet is tormented while clients use it, and a checker reads what happened.
//!
//! Three real replicas share a real store: one server, a primary with sentinels, a cluster. A seeded schedule kills and stops
//! processes, breaks connections, forces failovers, moves the memory's slot from node to node of the cluster, flushes, fills and
//! restarts the store and steps clocks, one to three things at a time, heals them, waits until the fleet says that it is well, and
//! probes it. Meanwhile clients send documents of several kinds to any replica, leave early now and then, and have documents
//! forgotten. Everything is written down on one clock ([`history`]), and [`checker`] says whether the promises held: an attempt, a
//! replay or a delay that they forbid needs an excuse that the store or the gateway itself admits. Excuses are counted.
//!
//! Not here: a slot that moves while a node of the cluster is away, TLS, eviction, the mass-refusal guard (off), confirmations,
//! ladders, expiry but by a stepped clock, and documents that are refused after they were accepted. With sentinels and in a cluster a
//! proxy stands before each node, so only with one server is a replica cut off alone.
//!
//! `NEMESIS_SEED` and `NEMESIS_SECONDS` choose another run: see CONTRIBUTING.md.
#![expect(clippy::unwrap_used, clippy::panic, reason = "test")]

mod checker;
mod clock;
mod faults;
mod fleet;
mod history;
mod workload;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::task::JoinSet;

use fleet::{Fleet, Topology};
use history::{At, MS, Recorder};
use workload::World;

/// How long the fleet is tormented, unless told otherwise.
const SECONDS: u64 = 15;
/// How often the replicas' counters are looked at.
const LOOK: Duration = Duration::from_millis(150);
/// How often a sleeper wakes to see whether this machine stood still.
const BEAT: Duration = Duration::from_millis(50);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_one_server_under_attack() {
    run(Topology::One).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_sentinel_under_attack() {
    run(Topology::Sentinel).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_a_cluster_under_attack() {
    run(Topology::Cluster).await;
}

fn setting(name: &str, otherwise: u64) -> u64 {
    match std::env::var(name) {
        Ok(value) => value.parse().unwrap_or_else(|_| panic!("{name}={value} is no number")),
        Err(_) => otherwise,
    }
}

#[expect(clippy::print_stderr, reason = "a run can be repeated, and shows what it was about")]
async fn run(topology: Topology) {
    let seed = setting("NEMESIS_SEED", fastrand::u64(..1_000_000));
    let seconds = setting("NEMESIS_SECONDS", SECONDS);
    eprintln!("nemesis: {topology:?}, NEMESIS_SEED={seed} NEMESIS_SECONDS={seconds}");
    let history = Arc::new(Recorder::new());
    let mut fleet = Fleet::start(topology, seed, &history).await;
    let world = Arc::new(World::new(Arc::clone(&history), fleet.addresses(), seed));
    let (stop, stopped) = watch::channel(false);
    let clients = workload::clients(&world, seed, &stopped);
    let (over, is_over) = watch::channel(false);
    let watching = watch_all(&fleet, &world, &is_over);
    let mut rng = fastrand::Rng::with_seed(seed);
    let tormented = faults::torment(&mut fleet, &world, &mut rng, Duration::from_secs(seconds)).await;
    // if it never was, the checker still has an end to go by
    history.settled();
    let _ = stop.send(true);
    clients.join_all().await;
    // what the last of them brought about is counted too
    let _ = over.send(true);
    watching.join_all().await;

    let history = history.get();
    let report = checker::check(&history);
    eprintln!("nemesis: {topology:?}, NEMESIS_SEED={seed}: {tormented:?} phases\n{report}");
    assert!(tormented.is_ok(), "NEMESIS_SEED={seed}: {tormented:?}");
    if let Some(first) = report.violations.first() {
        // one story for each document, the first few
        let mut told = BTreeSet::new();
        let broken = report.violations.iter().filter(|violation| told.insert(violation.document)).take(3);
        let story: String = broken.map(|v| format!("{v}\n{}", history.story(v.document, v.at))).collect();
        panic!(
            "{topology:?}, NEMESIS_SEED={seed}: {} violations; the first: {first}\n{story}",
            report.violations.len()
        );
    }
}

/// Looks at the replicas' counters, and at whether this machine keeps up.
fn watch_all(fleet: &Fleet, world: &Arc<World>, stopped: &watch::Receiver<bool>) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    for (n, counters) in fleet.counters.iter().enumerate() {
        let (counters, world, stopped) = (Arc::clone(counters), Arc::clone(world), stopped.clone());
        tasks.spawn(async move {
            loop {
                let last = *stopped.borrow();
                fleet::look_at(&counters, n, world.to.admins[n], &world.history).await;
                if last {
                    return;
                }
                tokio::time::sleep(LOOK).await;
            }
        });
    }
    let (history, stopped) = (Arc::clone(&world.history), stopped.clone());
    tasks.spawn(async move {
        while !*stopped.borrow() {
            let (from, began) = (history.now(), Instant::now());
            tokio::time::sleep(BEAT).await;
            if began.elapsed() > BEAT + Duration::from_millis(100) {
                let stall: (At, At) = (from + 50 * MS, history.now());
                history.get().stalls.push(stall);
            }
        }
    });
    tasks
}
