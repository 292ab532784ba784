//! What a guarded miss costs more with the store on Redis than with the embedded one: both gateways in one run, asked in turn, and
//! a PING of the same Redis beside them, by a thread that waits for it and by a task of an asynchronous program, as the gateway is
//! one; with Redis on this machine, as far away as in the same zone of a cloud, and more than a millisecond away.
//!
//! ```sh
//! cargo build --release -p nevertwice
//! NEVERTWICE_BIN=$PWD/target/release/nevertwice cargo run --release -p nevertwice-tests --example miss_on_redis
//! ```
//! Needs `redis-server`; takes about three minutes. Argument: rounds (20).
#![expect(clippy::print_stdout, reason = "a program that prints a table")]
#![expect(clippy::unwrap_used, reason = "what fails here should stop it")]

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use nevertwice_testkit::rig::{connect, head, read_200, upstream};
use nevertwice_testkit::{Gateway, Redis};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

const REQUESTS: usize = 200;
const DOCUMENT: usize = 1024;
/// How long the way to Redis takes, and back again, and the pause after each request: what follows an answer, such as giving a
/// lease up, shall not be in the way of the next.
const DISTANCES: [(Duration, Duration); 3] = [
    (Duration::ZERO, Duration::from_micros(500)),
    (Duration::from_micros(100), Duration::from_millis(2)),
    (Duration::from_millis(1), Duration::from_millis(5)),
];

fn main() {
    let rounds = std::env::args().nth(1).map_or(20, |n| n.parse::<usize>().unwrap());
    let documents = upstream(Duration::ZERO, None);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    println!(
        "{rounds} rounds of {REQUESTS} documents of {DOCUMENT} bytes, each new and accepted; medians in µs"
    );
    for (away, pause) in DISTANCES {
        let redis = Redis::start();
        let at = if away.is_zero() { redis.addr() } else { far(redis.addr(), away) };
        let [embedded, shared] = runtime.block_on(start(documents, at));
        let before = redis.calls("evalsha");
        let mut times = [const { Vec::new() }; 4];
        let mut tasks = JoinSet::new();
        let asking = runtime.block_on(link(at, &mut tasks));
        for round in 0..rounds {
            misses(embedded.addr, round, pause, &mut times[0]);
            misses(shared.addr, round, pause, &mut times[1]);
            pings(at, pause, &mut times[2]);
            runtime.block_on(ask(&asking, pause, &mut times[3]));
        }
        let scripts = (redis.calls("evalsha") - before) as f64 / (rounds * REQUESTS) as f64;
        let [embedded, shared, ping, task] = times.map(|mut times| {
            // the first tenth warms up
            times.drain(..times.len() / 10);
            times.sort_unstable();
            times[times.len() / 2].as_secs_f64() * 1e6
        });
        let added = shared - embedded;
        println!(
            "embedded {embedded:.0}, Redis {shared:.0}: {added:.0} more; PING {ping:.1}, by a task {task:.1}: {:.2} and {:.2} round \
             trips; scripts a miss: {scripts:.2}",
            added / ping,
            added / task
        );
    }
}

async fn start(documents: SocketAddr, redis: SocketAddr) -> [Gateway; 2] {
    let yaml = Gateway::simple_yaml(&format!("http://{documents}"), &[]);
    let url = format!("redis:\n    url: \"redis://{redis}\"");
    let shared = yaml.replace("embedded:\n    path: \"@DIR@/data\"", &url);
    assert!(yaml != shared);
    [Gateway::start(&yaml).await, Gateway::start(&shared).await]
}

/// The way to a server that is that far away.
fn far(server: SocketAddr, away: Duration) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    thread::spawn(move || {
        for near in listener.incoming().flatten() {
            let far = connect(server);
            near.set_nodelay(true).unwrap();
            let (near_too, far_too) = (near.try_clone().unwrap(), far.try_clone().unwrap());
            thread::spawn(move || carry(near, far, away));
            thread::spawn(move || carry(far_too, near_too, away));
        }
    });
    addr
}

/// One direction, until its end.
fn carry(mut from: TcpStream, mut to: TcpStream, away: Duration) -> std::io::Result<()> {
    let mut buffer = [0; 16 << 10];
    loop {
        let read = from.read(&mut buffer)?;
        if read == 0 {
            return to.shutdown(Shutdown::Write);
        }
        thread::sleep(away);
        to.write_all(&buffer[..read])?;
    }
}

fn misses(addr: SocketAddr, round: usize, pause: Duration, times: &mut Vec<Duration>) {
    let mut stream = connect(addr);
    for n in 0..REQUESTS {
        let body = format!("{round}-{n}-{}", "x".repeat(DOCUMENT));
        let request = head("/doc-classifier/layout", "application/octet-stream", body.len()) + &body;
        let began = Instant::now();
        stream.write_all(request.as_bytes()).unwrap();
        read_200(&mut stream);
        times.push(began.elapsed());
        thread::sleep(pause);
    }
}

type Asked = oneshot::Sender<()>;

/// A task that owns a connection, as clients of asynchronous programs have one: others hand it what is to be sent.
async fn link(addr: SocketAddr, tasks: &mut JoinSet<()>) -> mpsc::Sender<Asked> {
    let mut stream = tokio::net::TcpStream::connect(addr).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let (asking, mut asked) = mpsc::channel::<Asked>(16);
    tasks.spawn(async move {
        let mut buffer = [0; 16];
        while let Some(answer) = asked.recv().await {
            stream.write_all(b"PING\r\n").await.unwrap();
            assert!(stream.read(&mut buffer).await.unwrap() > 0);
            let _ = answer.send(());
        }
    });
    asking
}

async fn ask(link: &mpsc::Sender<Asked>, pause: Duration, times: &mut Vec<Duration>) {
    let link = link.clone();
    // on a worker, as a request is
    let mut asking = JoinSet::new();
    asking.spawn(async move {
        let mut times = Vec::with_capacity(REQUESTS);
        for _ in 0..REQUESTS {
            let began = Instant::now();
            let (answer, answered) = oneshot::channel();
            link.send(answer).await.unwrap();
            answered.await.unwrap();
            times.push(began.elapsed());
            tokio::time::sleep(pause).await;
        }
        times
    });
    times.extend(asking.join_next().await.unwrap().unwrap());
}

fn pings(addr: SocketAddr, pause: Duration, times: &mut Vec<Duration>) {
    let mut stream = connect(addr);
    let mut buffer = [0; 16];
    for _ in 0..REQUESTS {
        let began = Instant::now();
        stream.write_all(b"PING\r\n").unwrap();
        assert!(stream.read(&mut buffer).unwrap() > 0);
        times.push(began.elapsed());
        thread::sleep(pause);
    }
}
