//! Requests that are cancelled at random moments, against a Redis that is slow: whoever stays gets the answer to its own
//! document, no document goes up twice, and nothing is left of those who went.
//!
//! `NEVERTWICE_CANCELLED` says how many are cancelled, `NEVERTWICE_SEED` begins another sequence.
#![expect(clippy::unwrap_used, clippy::panic, reason = "test")]
#![expect(clippy::print_stderr, reason = "a long run says what it has done")]

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::BodyExt;
use http_body_util::channel::{Channel, Sender};
use nevertwice_testkit::{
    Chaos, Client, Fault, Gateway, Redis, Reply, Request, Seen, Setup, Upstream, random_document, sha256_hex,
};
use tokio::task::JoinSet;

use crate::caller::until;
use crate::http2::{self, Connection, Driving, connect_on, full};

/// Guarded paths: what the patient gateways are asked, and what the hasty one is.
const PATHS: [&str; 2] = ["/doc-classifier/classify", "/doc-classifier/layout"];
const STATUSES: [u16; 4] = [400, 413, 415, 422];
/// In flight at once: one on each of the first, four on each of the others.
const PLAIN: usize = 40;
const MULTIPLEXED: usize = 6;
/// How many requests that come close together are for the same new document.
const SHARED: u64 = 6;
/// No honest answer takes as long.
const PATIENCE: Duration = Duration::from_secs(90);

/// Numbers that a seed decides.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % limit
    }

    fn micros(&mut self, limit: u64) -> Duration {
        Duration::from_micros(self.below(limit))
    }
}

/// A document. Its bytes say what becomes of it, and its answer speaks of nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Document {
    refused: bool,
    number: u64,
    /// Of [`PATHS`].
    path: usize,
}

impl Document {
    fn bytes(self) -> Vec<u8> {
        let lengths = [200, 3_000, 20_000, 90_000];
        let length = lengths[usize::try_from(self.number % 4).unwrap()];
        let word = if self.refused { "refused" } else { "accepted" };
        let mut bytes = format!("{word} {} ", self.number).into_bytes();
        bytes.extend(random_document(self.number, length));
        bytes
    }

    fn answer(self) -> (u16, Vec<u8>) {
        let status = if self.refused { STATUSES[usize::try_from(self.number / 2 % 4).unwrap()] } else { 200 };
        // a piece of another's answer would show wherever it stands
        let length = [60, 700, 9_000, 40_000][usize::try_from(self.number % 4).unwrap()];
        let filler =
            random_document(self.number * 4 + self.path as u64 * 2 + u64::from(self.refused), length);
        let mut body = format!("{self:?} ").into_bytes();
        body.extend(filler);
        (status, body)
    }

    fn of(seen: &Seen) -> Self {
        let head = String::from_utf8_lossy(&seen.body[..seen.body.len().min(40)]).into_owned();
        let mut words = head.split(' ');
        let refused = words.next() == Some("refused");
        let number = words.next().unwrap().parse().unwrap();
        let path = PATHS.iter().position(|path| path.ends_with(seen.path())).unwrap();
        Self { refused, number, path }
    }

    fn reply(self) -> Reply {
        let (status, body) = self.answer();
        let pause = Duration::from_millis(self.number % 23);
        Reply::status(status).header("Content-Type", "application/json").body(body).delay(pause)
    }
}

/// What all who ask share.
struct World {
    gateways: Vec<(SocketAddr, usize)>,
    known: u64,
    limit: u64,
    cancelled: AtomicU64,
    whole: AtomicU64,
    hits: AtomicU64,
    ticket: AtomicU64,
    /// Refused documents whose refusal somebody has seen.
    acknowledged: Mutex<HashSet<Document>>,
}

impl World {
    fn goes_on(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed) < self.limit
    }

    fn draw(&self, dice: &mut Dice) -> (SocketAddr, Document) {
        let (addr, path) = self.gateways[usize::try_from(dice.below(self.gateways.len() as u64)).unwrap()];
        let fresh = || self.known + self.ticket.fetch_add(1, Ordering::Relaxed) / SHARED;
        let (refused, number) = match dice.below(10) {
            0..5 => (true, dice.below(self.known)),
            5..8 => (true, fresh()),
            8 => (false, fresh()),
            _ => (false, dice.below(self.known)),
        };
        (addr, Document { refused, number, path })
    }

    fn was_cancelled(&self) {
        self.cancelled.fetch_add(1, Ordering::Relaxed);
    }

    /// The answer to a request that was not cancelled is the one to its document.
    fn judge(&self, document: Document, got: (u16, &[u8]), hit: bool, own: Option<&str>) {
        let (status, body) = document.answer();
        assert_eq!(own, None, "the gateway's own answer to {document:?}");
        assert_eq!(got.0, status, "{document:?}: {:?}", String::from_utf8_lossy(got.1));
        assert!(
            got.1 == body,
            "{document:?} got {:?}",
            String::from_utf8_lossy(&got.1[..got.1.len().min(200)])
        );
        assert!(document.refused || !hit, "{document:?} was accepted and is replayed");
        self.whole.fetch_add(1, Ordering::Relaxed);
        self.hits.fetch_add(u64::from(hit), Ordering::Relaxed);
        if document.refused {
            self.acknowledged.lock().unwrap().insert(document);
        }
    }

    async fn ask(&self, client: &mut Client, document: Document) {
        let answer = client.try_request(request(document)).await;
        let answer = answer.unwrap_or_else(|failure| panic!("{document:?}: {failure}"));
        assert!(answer.complete, "{document:?}: cut");
        let own = answer.header("x-gateway-error");
        self.judge(document, (answer.status, &answer.body), answer.is_hit(), own.as_deref());
    }

    /// Part of an answer is part of the right one.
    fn judge_part(document: Document, status: u16, part: &[u8]) {
        let (expected, body) = document.answer();
        assert_eq!(status, expected, "{document:?}");
        assert!(body.starts_with(part), "{document:?} got {:?}", String::from_utf8_lossy(part));
    }
}

fn request(document: Document) -> Request {
    Request::post(PATHS[document.path]).bearer("tok-1").body(document.bytes())
}

/// One client on HTTP/1.1: stays on its connection until it cancels.
async fn plain(world: Arc<World>, mut dice: Dice) {
    let mut kept: HashMap<SocketAddr, Client> = HashMap::new();
    while world.goes_on() {
        let (addr, document) = world.draw(&mut dice);
        let mut client = match kept.remove(&addr) {
            Some(client) => client,
            None => Client::connect(addr).await.patience(PATIENCE),
        };
        match dice.below(9) {
            0..3 => {
                world.ask(&mut client, document).await;
                kept.insert(addr, client);
                continue;
            }
            // while the body goes up
            3 | 4 => {
                let body = document.bytes();
                let sent = usize::try_from(dice.below(body.len() as u64)).unwrap();
                let head = format!(
                    "POST {} HTTP/1.1\r\nHost: gw\r\nAuthorization: Bearer tok-1\r\nContent-Length: {}\r\n\r\n",
                    PATHS[document.path],
                    body.len()
                );
                let _ = client.send([head.as_bytes(), &body[..sent]].concat()).await;
                tokio::time::sleep(dice.micros(3_000)).await;
            }
            // while it is looked up, asked, or recorded
            5..8 => {
                let _ = client.try_send_request(request(document)).await;
                tokio::time::sleep(dice.micros(60_000)).await;
            }
            // while the answer comes
            _ => {
                let _ = client.try_send_request(request(document)).await;
                let head = client.read_head().await;
                assert_eq!(head.header("x-gateway-error"), None, "{document:?}");
                let part = match dice.below(2) {
                    0 => client.read_some().await.ok().flatten().map(|part| part.bytes).unwrap_or_default(),
                    _ => Bytes::new(),
                };
                World::judge_part(document, head.status, &part);
            }
        }
        match dice.below(2) {
            0 => client.reset(),
            _ => drop(client),
        }
        world.was_cancelled();
    }
}

/// One client on HTTP/2: four streams at a time, and now and then the connection goes with all of them.
async fn multiplexed(world: Arc<World>, mut dice: Dice) {
    while world.goes_on() {
        let (addr, path) = world.gateways[usize::try_from(dice.below(world.gateways.len() as u64)).unwrap()];
        let driving = Driving::default();
        let connection = connect_on(&driving, addr).await;
        let ended = AtomicU64::new(0);
        for _ in 0..2 {
            let [a, b, c, d] = [(); 4].map(|()| {
                let document = Document { path, ..world.draw(&mut dice).1 };
                let dice = Dice(dice.below(u64::MAX));
                let (world, connection, ended) = (&world, connection.clone(), &ended);
                async move {
                    stream(world, connection, document, dice).await;
                    ended.fetch_add(1, Ordering::Relaxed);
                }
            });
            let mut batch = std::pin::pin!(async { tokio::join!(a, b, c, d) });
            if dice.below(6) > 0 {
                batch.await;
                continue;
            }
            let before = ended.load(Ordering::Relaxed);
            let cut = tokio::time::timeout(dice.micros(40_000), &mut batch).await.is_err();
            if cut {
                // the connection first: the streams are not told one by one
                driving.cut().await;
                let left = 4 - (ended.load(Ordering::Relaxed) - before);
                (0..left).for_each(|_| world.was_cancelled());
                break;
            }
        }
    }
}

/// A body on its way. Dropped, it breaks off: a body that ends is another document.
struct Upload(Option<Sender<Bytes, &'static str>>);

impl Drop for Upload {
    fn drop(&mut self) {
        if let Some(sender) = self.0.take() {
            sender.abort("left");
        }
    }
}

/// A stream that is reset at some moment, or that stays.
async fn stream(world: &World, mut connection: Connection, document: Document, mut dice: Dice) {
    let path = PATHS[document.path];
    match dice.below(9) {
        0..3 => {
            let sent = connection.send_request(full(path, document.bytes()));
            let response = tokio::time::timeout(PATIENCE, sent).await.unwrap();
            let response = response.unwrap_or_else(|error| panic!("{document:?}: {error:?}"));
            let field = |name: &str| Some(response.headers().get(name)?.to_str().unwrap().to_owned());
            let (status, own) = (response.status().as_u16(), field("x-gateway-error"));
            let hit = field("x-negative-cache").is_some();
            let body = response.into_body().collect().await.unwrap().to_bytes();
            world.judge(document, (status, &body), hit, own.as_deref());
            return;
        }
        3 | 4 => {
            let (sender, body) = Channel::new(1);
            let mut upload = Upload(Some(sender));
            let request = http2::request(path, "tok-1", body.boxed());
            let mut pending = std::pin::pin!(connection.send_request(request));
            let bytes = document.bytes();
            let sent = usize::try_from(dice.below(bytes.len() as u64)).unwrap();
            let upload = async {
                if let Some(sender) = &mut upload.0 {
                    let _ = sender.send_data(Bytes::copy_from_slice(&bytes[..sent])).await;
                }
                tokio::time::sleep(dice.micros(3_000)).await;
                drop(upload);
            };
            tokio::select! {
                () = upload => {}
                _ = &mut pending => {}
            }
        }
        5..8 => {
            let sent = connection.send_request(full(path, document.bytes()));
            let _ = tokio::time::timeout(dice.micros(60_000), sent).await;
        }
        _ => {
            let sent = connection.send_request(full(path, document.bytes()));
            let mut response = tokio::time::timeout(PATIENCE, sent).await.unwrap().unwrap();
            assert!(!response.headers().contains_key("x-gateway-error"), "{document:?}");
            let part = match dice.below(2) {
                0 => response.body_mut().frame().await.and_then(|frame| frame.ok()?.into_data().ok()),
                _ => None,
            };
            World::judge_part(document, response.status().as_u16(), &part.unwrap_or_default());
        }
    }
    world.was_cancelled();
}

/// Redis is slow in changing ways. Those that hold everything up are short.
async fn weather(chaos: Arc<Chaos>, mut dice: Dice) {
    loop {
        let (fault, longest) = match dice.below(8) {
            0 => (Fault::None, 200_000),
            1..4 => (Fault::Late(dice.micros(8_000)), 400_000),
            4..6 => (Fault::Late(dice.micros(60_000)), 300_000),
            6 => (Fault::Drip(Duration::from_micros(50)), 40_000),
            _ => (Fault::Silence, 80_000),
        };
        chaos.set(fault);
        tokio::time::sleep(dice.micros(longest)).await;
    }
}

async fn gateway(upstream: &Upstream, addr: SocketAddr, read_ms: u32, write_ms: u32) -> Gateway {
    let yaml = Gateway::simple_yaml(
        &upstream.url(),
        &[
            ("MEMORY", "max_entries: 1000000"),
            (
                "UPSTREAM",
                "pool: {max_in_flight: 1000}\nnegative_cache: {judge_wait_ms: 60000, single_flight_wait_ms: 60000, mass_refusal_guard: {enabled: false}}",
            ),
        ],
    );
    let redis = format!("redis: {{url: \"redis://{addr}\", read_ms: {read_ms}, write_ms: {write_ms}}}");
    Setup::new(&yaml.replace("embedded:\n    path: \"@DIR@/data\"", &redis)).start().await
}

/// Asks all of these once, many at a time.
async fn ask_all(world: &Arc<World>, addrs: &[SocketAddr], documents: Vec<Document>) {
    let mut running = JoinSet::new();
    for part in documents.chunks(documents.len().div_ceil(16).max(1)) {
        let (world, part) = (Arc::clone(world), part.to_vec());
        let addrs = addrs.to_vec();
        running.spawn(async move {
            let mut clients = Vec::new();
            for addr in addrs {
                clients.push(Client::connect(addr).await.patience(PATIENCE));
            }
            let several = clients.len();
            for (n, document) in part.into_iter().enumerate() {
                world.ask(&mut clients[n % several], document).await;
            }
        });
    }
    while let Some(ended) = running.join_next().await {
        ended.unwrap();
    }
}

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |text| text.parse().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_cancelled_requests_leave_nothing_and_disturb_nobody() {
    let limit = number("NEVERTWICE_CANCELLED", 5_000);
    let mut dice = Dice(number("NEVERTWICE_SEED", 1));
    let (upstream, redis) = (Upstream::start().await, Redis::start());
    // of each body what says which document it is
    upstream.keep(40, 64 << 20);
    upstream.by(|seen, _| Document::of(seen).reply());
    let chaos = Arc::new(Chaos::start(redis.addr()).await);
    // the patient ones lose no answer of the store; the hasty one gives up about as many as it gets
    let gateways = [
        gateway(&upstream, chaos.addr(), 10_000, 10_000).await,
        gateway(&upstream, chaos.addr(), 10_000, 10_000).await,
        gateway(&upstream, chaos.addr(), 90, 180).await,
    ];
    let addrs = [0, 1, 2].map(|n: usize| gateways[n].addr);
    let world = Arc::new(World {
        gateways: vec![(addrs[0], 0), (addrs[1], 0), (addrs[2], 1)],
        known: (limit / 50).clamp(100, 1000),
        limit,
        cancelled: AtomicU64::new(0),
        whole: AtomicU64::new(0),
        hits: AtomicU64::new(0),
        ticket: AtomicU64::new(0),
        acknowledged: Mutex::default(),
    });
    let known = |path| (0..world.known).map(move |number| Document { refused: true, number, path }).collect();
    ask_all(&world, &addrs[..1], known(0)).await;
    ask_all(&world, &addrs[2..], known(1)).await;

    let began = Instant::now();
    let mut air = JoinSet::new();
    air.spawn(weather(Arc::clone(&chaos), Dice(dice.below(u64::MAX))));
    let mut clients = JoinSet::new();
    for n in 0..PLAIN + MULTIPLEXED {
        let (world, dice) = (Arc::clone(&world), Dice(dice.below(u64::MAX)));
        if n < PLAIN {
            clients.spawn(plain(world, dice));
        } else {
            clients.spawn(multiplexed(world, dice));
        }
    }
    while let Some(ended) = clients.join_next().await {
        ended.unwrap_or_else(|error| panic!("{error}"));
    }
    let took = began.elapsed();
    air.shutdown().await;
    chaos.set(Fault::None);
    nothing_is_left(&gateways, &redis).await;
    // all that is asserted of calls holds where the store was never given up
    for gateway in &gateways[..2] {
        for (metric, labels) in [
            ("gateway_negative_cache_store_errors_total", &[][..]),
            ("gateway_negative_cache_not_recorded_total", &[]),
            // somebody waited for an attempt that was gone
            ("gateway_negative_cache_waits_total", &[("result", "timed_out")]),
        ] {
            let count = gateway.metric(metric, labels).await;
            assert_eq!(count, 0.0, "{metric}:\n{}\n{}", gateway.metrics().await, gateway.log());
        }
    }

    leases_are_given_up(&world, addrs[0], &chaos, &redis).await;
    assert_eq!(gateways[0].metric("gateway_pool_in_use", &[]).await, 0.0);

    // what somebody has seen refused goes up no more, and each has its own answer still
    let acknowledged: Vec<Document> = world.acknowledged.lock().unwrap().iter().copied().collect();
    let patient: Vec<Document> = acknowledged.iter().copied().filter(|document| document.path == 0).collect();
    let during = upstream.calls();
    let (whole, hits) = (world.whole.load(Ordering::Relaxed), world.hits.load(Ordering::Relaxed));
    for addr in &addrs[..2] {
        ask_all(&world, &[*addr], patient.clone()).await;
    }
    assert_eq!(upstream.calls(), during, "all of them were remembered");
    assert_eq!(world.hits.load(Ordering::Relaxed) - hits, 2 * patient.len() as u64);
    let mut log: HashMap<(String, String), u64> = HashMap::new();
    for seen in
        upstream.requests().into_iter().filter(|seen| seen.path() == "/classify" && seen.body_complete)
    {
        *log.entry((seen.target, seen.body_sha256)).or_default() += 1;
    }
    for document in (0..world.known + world.ticket.load(Ordering::Relaxed) / SHARED + 1)
        .map(|number| Document { refused: true, number, path: 0 })
    {
        let digest = sha256_hex(&[document.bytes()]);
        let calls = log.get(&("/classify".to_owned(), digest)).copied().unwrap_or(0);
        assert!(calls <= 1, "{document:?} went up {calls} times");
    }
    let given_up = gateways[2].metric("gateway_negative_cache_store_errors_total", &[]).await;
    for gateway in &gateways {
        assert_eq!(gateway.metric("gateway_negative_cache_verify_failures_total", &[]).await, 0.0);
        let log = gateway.log();
        for word in ["panicked", "ERROR", "damaged"] {
            assert!(!log.contains(word), "{log}");
        }
        for line in gateway.audit() {
            let code = line["code"].as_str().unwrap();
            let fits = ["OK", "CLIENT_ABORTED"].contains(&code)
                || STATUSES
                    .iter()
                    .any(|status| code.trim_start_matches("REFUSED_") == format!("HTTP_{status}"));
            assert!(fits, "{line}");
        }
    }
    eprintln!(
        "{} cancelled, {whole} whole of which {hits} replays, {during} calls, {} refused documents known, \
         {given_up} calls of the hasty gateway's store given up, {took:?}",
        world.cancelled.load(Ordering::Relaxed),
        patient.len(),
    );
}

/// No connection, place, body, lease or attempt of a request that went.
async fn nothing_is_left(gateways: &[Gateway], redis: &Redis) {
    for gateway in gateways {
        for gauge in
            ["gateway_connections", "gateway_pool_in_use", "gateway_pool_queued", "gateway_body_memory_bytes"]
        {
            gateway.wait_metric(gauge, &[], 0.0).await;
        }
    }
    until("no lease is left behind", Duration::from_secs(10), async || {
        redis.ask(&["keys", "{nevertwice}:[lw]:*"]).is_empty().then_some(())
    })
    .await;
}

/// Whoever leaves while the server's answer is out, by which it has a lease, gives that up: none has to end by itself.
async fn leases_are_given_up(world: &World, addr: SocketAddr, chaos: &Chaos, redis: &Redis) {
    let expired = || {
        // removes, and so counts, what is over already
        redis.ask(&["scan", "0", "match", "{nevertwice}:[lw]:*", "count", "10000000"]);
        let stats = redis.ask(&["info", "stats"]);
        stats.lines().find_map(|line| line.strip_prefix("expired_keys:").map(str::to_owned))
    };
    let before = expired();
    chaos.set(Fault::Late(Duration::from_millis(500)));
    let mut leaving = JoinSet::new();
    for number in 0..64 {
        let document = Document { refused: true, number: (1 << 40) + number, path: 0 };
        leaving.spawn(async move {
            let mut client = Client::connect(addr).await;
            client.try_send_request(request(document)).await.unwrap();
            tokio::time::sleep(Duration::from_millis(200)).await;
            client.reset();
        });
    }
    while let Some(left) = leaving.join_next().await {
        left.unwrap();
        world.was_cancelled();
    }
    chaos.set(Fault::None);
    until("no lease is left behind", Duration::from_secs(10), async || {
        redis.ask(&["keys", "{nevertwice}:[lw]:*"]).is_empty().then_some(())
    })
    .await;
    assert_eq!(expired(), before, "leases that had to end by themselves");
}
