//! What a long queue costs: how long it takes to hand a job over while 10 jobs wait and while 10,000 do, and the memory that the
//! gateway takes then; once with jobs on the embedded store, once on Redis. Both gateways of a store are asked in turn, round by
//! round. Their upstream never answers, and one job of it runs at a time, so that what waits goes on waiting; what a round hands over
//! is cancelled after it.
//!
//! ```sh
//! cargo build --release -p nevertwice
//! NEVERTWICE_BIN=$PWD/target/release/nevertwice cargo run --release -p nevertwice-tests --example jobs_queued
//! ```
//! Needs `redis-server`; takes at most two minutes. Argument: rounds (10).
#![expect(clippy::print_stdout, reason = "a program that prints a table")]
#![expect(clippy::unwrap_used, reason = "what fails here should stop it")]

use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use nevertwice_testkit::rig::{connect, head, read, upstream};
use nevertwice_testkit::{Gateway, Redis};
use serde_json::Value;
use tokio::runtime::Runtime;

/// Jobs that wait.
const QUEUED: [usize; 2] = [10, 10_000];
/// Jobs that a round hands over, one after the other.
const SUBMITS: usize = 200;
/// Connections that fill a queue, and cancel what a round has handed over.
const HANDS: usize = 32;
const DOCUMENT: usize = 1024;
/// How long the rounds of one store may take; no other one begins after that.
const ROUNDS_FOR: Duration = Duration::from_secs(30);
/// Longer than all of this takes.
const NEVER: Duration = Duration::from_secs(600);
const JOBS: &str = "/jobs/doc-classifier/layout";

fn main() {
    let rounds = std::env::args().nth(1).map_or(10, |n| n.parse::<usize>().unwrap());
    let runtime = Runtime::new().unwrap();
    let silent = upstream(NEVER, None);
    println!(
        "documents of {DOCUMENT} bytes, each new, handed over one after the other; up to {rounds} rounds of {SUBMITS}"
    );
    println!(
        "{:<9} {:>7} {:>6} {:>8} {:>8} {:>9} {:>9}",
        "store", "queued", "count", "p50 ms", "p99 ms", "RSS MiB", "after"
    );
    for store in ["embedded", "Redis"] {
        // each gateway has its own
        let servers: Vec<Redis> =
            QUEUED.iter().filter(|_| store == "Redis").map(|_| Redis::start()).collect();
        let mut queues: Vec<Queue> = QUEUED
            .iter()
            .enumerate()
            .map(|(at, jobs)| Queue::fill(&runtime, silent, servers.get(at).map(Redis::addr), *jobs))
            .collect();
        let until = Instant::now() + ROUNDS_FOR;
        for _ in 0..rounds {
            if Instant::now() > until {
                break;
            }
            queues.iter_mut().for_each(Queue::round);
        }
        let seen: Vec<[f64; 2]> = queues.iter_mut().map(|queue| queue.print(&runtime, store)).collect();
        println!(
            "{store:<9} {:>7} {:>6} {:>8.2} {:>8.2}",
            "ratio",
            "",
            seen[1][0] / seen[0][0],
            seen[1][1] / seen[0][1]
        );
    }
}

/// A gateway with jobs that wait.
struct Queue {
    gateway: Gateway,
    jobs: usize,
    /// Its memory when they waited.
    rss_kib: u64,
    stream: TcpStream,
    next: u64,
    times: Vec<Duration>,
}

impl Queue {
    fn fill(runtime: &Runtime, upstream: SocketAddr, redis: Option<SocketAddr>, jobs: usize) -> Self {
        let lines = format!("timeout_ms: {}\npool:\n  max_in_flight: 1", NEVER.as_millis());
        let slots = [("TOP", "jobs: {}"), ("UPSTREAM", lines.as_str())];
        let mut yaml = Gateway::simple_yaml(&format!("http://{upstream}"), &slots);
        if let Some(redis) = redis {
            let embedded = "embedded:\n    path: \"@DIR@/data\"";
            assert!(yaml.contains(embedded));
            yaml = yaml.replace(embedded, &format!("redis:\n    url: \"redis://{redis}\""));
        }
        let gateway = runtime.block_on(Gateway::start(&yaml));
        let addr = gateway.addr;
        // one is taken by the worker, the others wait
        let all: Vec<u64> = (0..=jobs as u64).collect();
        each(addr, &all, |stream, n| {
            let _ = hand(stream, *n);
        });
        let mut queue = Self {
            gateway,
            jobs,
            rss_kib: 0,
            stream: connect(addr),
            next: all.len() as u64,
            times: Vec::new(),
        };
        queue.check(runtime);
        queue.rss_kib = queue.gateway.rss_kib();
        queue
    }

    fn round(&mut self) {
        let mut handed = Vec::with_capacity(SUBMITS);
        for _ in 0..SUBMITS {
            let began = Instant::now();
            let id = hand(&mut self.stream, self.next);
            self.times.push(began.elapsed());
            self.next += 1;
            handed.push(id);
        }
        each(self.gateway.addr, &handed, |stream, id| {
            let request =
                format!("DELETE /jobs/{id} HTTP/1.1\r\nHost: gateway\r\nAuthorization: Bearer tok-1\r\n\r\n");
            stream.write_all(request.as_bytes()).unwrap();
            assert_eq!(read(stream).0, 200);
        });
    }

    /// Prints a line; median and 99th percentile.
    fn print(&mut self, runtime: &Runtime, store: &str) -> [f64; 2] {
        self.check(runtime);
        // the first tenth warms up
        self.times.drain(..self.times.len() / 10);
        self.times.sort_unstable();
        let at = |share: usize| self.times[(self.times.len() - 1) * share / 100].as_secs_f64() * 1e3;
        let (p50, p99) = (at(50), at(99));
        let mib = |kib: u64| kib as f64 / 1024.0;
        println!(
            "{store:<9} {:>7} {:>6} {p50:>8.2} {p99:>8.2} {:>9.1} {:>9.1}",
            self.jobs,
            self.times.len(),
            mib(self.rss_kib),
            mib(self.gateway.rss_kib())
        );
        [p50, p99]
    }

    /// As many wait as are said to; the worker may take the one that runs a moment later.
    fn check(&self, runtime: &Runtime) {
        let until = Instant::now() + Duration::from_secs(5);
        loop {
            let (_, listed) = runtime.block_on(self.gateway.admin_get("/admin/v1/jobs?limit=1"));
            let depth = &listed["depth"][0];
            if (depth["queued"].as_u64(), depth["running"].as_u64()) == (Some(self.jobs as u64), Some(1)) {
                return;
            }
            assert!(Instant::now() < until, "{listed}");
            thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Hands the `n`th document over; the id of its job.
fn hand(stream: &mut TcpStream, n: u64) -> String {
    let body = format!("{n:<width$}", width = DOCUMENT);
    let request = head(JOBS, "application/octet-stream", body.len()) + &body;
    stream.write_all(request.as_bytes()).unwrap();
    let (status, body) = read(stream);
    assert_eq!(status, 202, "{}", String::from_utf8_lossy(&body));
    let job: Value = serde_json::from_slice(&body).unwrap();
    job["id"].as_str().unwrap().to_owned()
}

/// Does something to each, on several connections at once.
fn each<T: Sync>(addr: SocketAddr, all: &[T], does: impl Fn(&mut TcpStream, &T) + Sync) {
    thread::scope(|scope| {
        for part in all.chunks(all.len().div_ceil(HANDS)) {
            scope.spawn(|| {
                let mut stream = connect(addr);
                part.iter().for_each(|one| does(&mut stream, one));
            });
        }
    });
}
