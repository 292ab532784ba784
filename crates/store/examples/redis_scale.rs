//! How the store on Redis behaves as it fills: a server with few entries beside one with many, asked in turn in the same run.
//!
//! ```sh
//! cargo run --release -p nevertwice-store --example redis_scale -- 1000000
//! ```
//! Needs `redis-server`; takes about two minutes for a million entries, and 2 GiB of memory.
#![expect(clippy::print_stdout, reason = "a program that prints a table")]
#![expect(clippy::unwrap_used, reason = "what fails here should stop it")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use nevertwice_domain::clock::SystemClock;
use nevertwice_domain::entry::Candidate;
use nevertwice_domain::fingerprint::Fingerprint;
use nevertwice_store::redis::{RedisOptions, RedisStore, Topology};
use nevertwice_store::suite::samples;
use nevertwice_store::{RefusalStore, suite::samples::TTL_MS};
use nevertwice_testkit::Redis;
use tokio::task::JoinSet;

const FEW: u64 = 1000;
const ROUNDS: u64 = 10;
const ASKED: u64 = 500;
const RECORDED: u64 = 100;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let many = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(100_000);
    let mut sides = Vec::new();
    for entries in [FEW, many] {
        let server = Redis::start();
        let before = memory(&server);
        let store = Arc::new(RedisStore::start(options(&server), Arc::new(SystemClock)).await);
        let began = Instant::now();
        fill(&store, entries).await;
        let bytes = (memory(&server) - before) / entries;
        println!(
            "{entries} entries written in {:.1} s, {bytes} bytes each in Redis",
            began.elapsed().as_secs_f64()
        );
        sides.push((server, store, entries));
    }
    println!("bodies have 300 bytes; medians of {ROUNDS} rounds, in µs");
    println!("{:>10} {:>8} {:>8} {:>8} {:>8} {:>8}", "entries", "ping", "hit", "spread", "miss", "record");
    let mut times = vec![[const { Vec::new() }; 5]; sides.len()];
    for round in 0..ROUNDS {
        for ((server, store, entries), times) in sides.iter().zip(&mut times) {
            times[0].push(ping(server));
            // the same ones in each round, and others: these are in nobody's caches where there are many
            times[1].push(each(ASKED, async |n| known(store, n * 7919 % entries).await).await);
            times[2].push(each(ASKED, async |n| known(store, (n * 7919 + round) % entries).await).await);
            times[3]
                .push(each(ASKED, async |n| drop(store.recall(&key(u64::MAX / 2 + n)).await.unwrap())).await);
            let first = entries + round * RECORDED;
            times[4].push(
                each(RECORDED, async |n| record(store, first + n, entries + ROUNDS * RECORDED).await).await,
            );
        }
    }
    for ((_, _, entries), mut times) in sides.iter().zip(times) {
        let [ping, hit, spread, miss, record] = times.each_mut().map(|times| {
            times.sort_unstable_by(f64::total_cmp);
            times[times.len() / 2]
        });
        println!("{entries:>10} {ping:>8.1} {hit:>8.1} {spread:>8.1} {miss:>8.1} {record:>8.1}");
    }
    // what a copy of an entry takes in the process
    let Some((server, _, entries)) = sides.last() else { return };
    let near = RedisOptions { near_bytes: 64 << 20, ..options(server) };
    let store = RedisStore::start(near, Arc::new(SystemClock)).await;
    let (kept, before) = ((*entries).min(50_000), resident());
    each(kept, async |n| known(&store, n).await).await;
    println!("{kept} of them near: {} bytes each in the process", (resident() - before) / kept);
}

fn options(server: &Redis) -> RedisOptions {
    RedisOptions {
        topology: Topology::One { host: server.addr().ip().to_string(), port: server.addr().port() },
        tls: false,
        ca: None,
        client_cert: None,
        username: None,
        password: None,
        db: 0,
        prefix: "scale".to_owned(),
        read: Duration::from_secs(5),
        write: Duration::from_secs(5),
        // nothing at hand: every look-up is asked of the server
        near_bytes: 0,
    }
}

fn key(n: u64) -> Fingerprint {
    samples::fingerprint(n)
}

async fn known(store: &RedisStore, n: u64) {
    assert!(store.recall(&key(n)).await.unwrap().entry.is_some());
}

async fn record(store: &RedisStore, n: u64, max_entries: u64) {
    let mut candidate = Candidate { max_entries, ..samples::candidate(n) };
    candidate.entry.body = vec![b'x'; 300].into();
    candidate.life = samples::flat(TTL_MS.max(86_400_000));
    let fence = store.last_fence().unwrap_or(nevertwice_store::Fence(0));
    drop(store.record(candidate, fence).await.unwrap());
}

async fn fill(store: &Arc<RedisStore>, entries: u64) {
    // the fence of all of them
    drop(store.recall(&key(u64::MAX)).await.unwrap());
    let mut running = JoinSet::new();
    for lane in 0..64 {
        let store = Arc::clone(store);
        running.spawn(async move {
            for n in (lane..entries).step_by(64) {
                record(&store, n, entries + ROUNDS * RECORDED).await;
            }
        });
    }
    running.join_all().await;
}

/// Microseconds for each, one after the other.
async fn each(count: u64, work: impl AsyncFn(u64)) -> f64 {
    let began = Instant::now();
    for n in 0..count {
        work(n).await;
    }
    began.elapsed().as_secs_f64() * 1e6 / count as f64
}

/// Microseconds of a round trip on a plain connection.
fn ping(server: &Redis) -> f64 {
    use std::io::{Read, Write};
    let mut wire = std::net::TcpStream::connect(server.addr()).unwrap();
    wire.set_nodelay(true).unwrap();
    let mut answer = [0; 7];
    let began = Instant::now();
    for _ in 0..ASKED {
        wire.write_all(b"PING\r\n").unwrap();
        wire.read_exact(&mut answer).unwrap();
    }
    began.elapsed().as_secs_f64() * 1e6 / ASKED as f64
}

/// Bytes of this process in memory.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

fn memory(server: &Redis) -> u64 {
    let info = server.ask(&["info", "memory"]);
    let line = info.lines().find_map(|line| line.strip_prefix("used_memory:")).unwrap_or("0");
    line.trim().parse().unwrap_or(0)
}
