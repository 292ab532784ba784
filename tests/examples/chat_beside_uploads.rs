//! What chat notices of large uploads beside it (UP-03): 20 forms of 100 MiB at once to an upstream that reads slowly, and
//! chat all the while; the same chat alone; and chat that goes straight to its upstream beside the same uploads, which
//! shows what the machine itself does to it.
//!
//! ```sh
//! cargo build --release -p nevertwice
//! NEVERTWICE_BIN=$PWD/target/release/nevertwice cargo run --release -p nevertwice-tests --example chat_beside_uploads
//! ```
//! Takes about two minutes and 2 GiB of disk in the temporary directory. Arguments: rounds (5), MiB of an upload (100).
#![expect(clippy::print_stdout, reason = "a program that prints a table")]
#![expect(clippy::unwrap_used, reason = "what fails here should stop it")]

use std::io::Write;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nevertwice_testkit::rig::{connect, head, read_200, upstream};
use nevertwice_testkit::{Gateway, Part, multipart, random_document};

const UPLOADS: usize = 20;
const MIB: usize = 1 << 20;
/// How long an upstream of chat takes: at once, and as one that is quick for a model.
const CHAT_TAKES: [Duration; 2] = [Duration::ZERO, Duration::from_millis(100)];
/// Each chat client sends so often, and waits for the answer before the next.
const CHAT_EVERY: Duration = Duration::from_millis(25);
const CHAT_CLIENTS: usize = 4;
const ALONE: Duration = Duration::from_secs(6);
/// The slow reader takes so much, and then a pause.
const SLOW_READ: (usize, Duration) = (128 << 10, Duration::from_millis(10));

fn main() {
    let mut arguments = std::env::args().skip(1).map(|n| n.parse::<usize>().unwrap());
    let rounds = arguments.next().unwrap_or(5);
    let length = arguments.next().unwrap_or(100) * MIB;
    let documents = upstream(Duration::ZERO, Some(SLOW_READ));
    let chats = CHAT_TAKES.map(|takes| upstream(takes, None));
    let gateway = start(documents, &chats);
    let form = Form::new(length);

    println!("{UPLOADS} uploads of {} MiB at once, {rounds} rounds; ms", length / MIB);
    println!("{:<34} {:>6} {:>8} {:>8} {:>8}", "chat", "count", "p50", "p99", "longest");
    let mut seen: Vec<(String, Vec<Duration>)> = Vec::new();
    for _ in 0..rounds {
        for (at, takes) in CHAT_TAKES.iter().enumerate() {
            let ways = [
                ("through", gateway.addr, format!("/chat{at}/v1/chat/completions")),
                ("direct", chats[at], "/".to_owned()),
            ];
            for (way, addr, path) in ways {
                for beside in [false, true] {
                    let stop = AtomicBool::new(false);
                    let mut times = Vec::new();
                    thread::scope(|scope| {
                        let talking: Vec<_> =
                            (0..CHAT_CLIENTS).map(|_| scope.spawn(|| chat(addr, &path, &stop))).collect();
                        if beside {
                            let sending: Vec<_> =
                                (0..UPLOADS).map(|_| scope.spawn(|| form.upload(gateway.addr))).collect();
                            sending.into_iter().for_each(|one| one.join().unwrap());
                        } else {
                            thread::sleep(ALONE);
                        }
                        stop.store(true, Ordering::Relaxed);
                        talking.into_iter().for_each(|one| times.append(&mut one.join().unwrap()));
                    });
                    let name =
                        format!("{way}, {takes:?}, {}", if beside { "beside uploads" } else { "alone" });
                    match seen.iter_mut().find(|(known, _)| *known == name) {
                        Some((_, all)) => all.append(&mut times),
                        None => seen.push((name, times)),
                    }
                }
            }
        }
    }
    for (name, times) in &mut seen {
        times.sort_unstable();
        let at = |share: usize| times[(times.len() - 1) * share / 100].as_secs_f64() * 1e3;
        println!("{name:<34} {:>6} {:>8.2} {:>8.2} {:>8.2}", times.len(), at(50), at(99), at(100));
    }
}

fn start(documents: SocketAddr, chats: &[SocketAddr]) -> Gateway {
    let chats = chats.iter().enumerate().map(|(at, addr)| {
        format!("- name: chat{at}\n  adapter: openai\n  base_url: \"http://{addr}\"\n  mount: /chat{at}\n")
    });
    let chats: String = chats.collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(Gateway::with(
        &format!("http://{documents}"),
        &[("UPSTREAM", "timeout_ms: 120000"), ("UPSTREAMS", &chats)],
    ))
}

/// Sends chat until it is stopped, and tells how long each took from when it was due.
fn chat(addr: SocketAddr, path: &str, stop: &AtomicBool) -> Vec<Duration> {
    let mut stream = connect(addr);
    let body = r#"{"model":"m","messages":[{"role":"user","content":"hello"}]}"#;
    let request = head(path, "application/json", body.len()) + body;
    let mut times = Vec::new();
    let mut due = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        thread::sleep(due.saturating_duration_since(Instant::now()));
        stream.write_all(request.as_bytes()).unwrap();
        read_200(&mut stream);
        times.push(due.elapsed());
        due = (due + CHAT_EVERY).max(Instant::now());
    }
    times
}

/// A form with one large file.
struct Form {
    content_type: String,
    open: Vec<u8>,
    piece: Vec<u8>,
    pieces: usize,
    close: Vec<u8>,
}

impl Form {
    fn new(length: usize) -> Self {
        let (content_type, form) = multipart("b", &[Part::file("file", "a.pdf", "application/pdf", b"@")]);
        let at = form.iter().position(|byte| *byte == b'@').unwrap();
        let piece = random_document(1, MIB);
        Self {
            content_type,
            open: form[..at].to_vec(),
            piece,
            pieces: length / MIB,
            close: form[at + 1..].to_vec(),
        }
    }

    fn upload(&self, addr: SocketAddr) {
        // each is a document of its own, also in the next round
        static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        let own = NEXT.fetch_add(1, Ordering::Relaxed).to_be_bytes();
        let mut stream = connect(addr);
        let length = self.open.len() + own.len() + self.pieces * self.piece.len() + self.close.len();
        stream.write_all(head("/doc-classifier/layout", &self.content_type, length).as_bytes()).unwrap();
        stream.write_all(&self.open).unwrap();
        stream.write_all(&own).unwrap();
        for _ in 0..self.pieces {
            stream.write_all(&self.piece).unwrap();
        }
        stream.write_all(&self.close).unwrap();
        read_200(&mut stream);
    }
}
