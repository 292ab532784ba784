//! Stores on one server, as two processes have them, and what they log.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nevertwice_domain::clock::{ManualClock, Millis};
use nevertwice_domain::entry::{Candidate, Entry};
use nevertwice_store::redis::{RedisOptions, RedisStore, Topology};
use nevertwice_store::suite::samples;
use nevertwice_store::{Fence, Lease, Recorded, RefusalStore, StoreError, StoreErrorKind};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

pub const PREFIX: &str = "nt";

pub fn options(addr: SocketAddr, prefix: &str) -> RedisOptions {
    RedisOptions {
        topology: Topology::One { host: addr.ip().to_string(), port: addr.port() },
        tls: false,
        ca: None,
        client_cert: None,
        username: None,
        password: None,
        db: 0,
        prefix: prefix.to_owned(),
        // a busy machine is not what is tested
        read: Duration::from_secs(10),
        write: Duration::from_secs(10),
        near_bytes: 1 << 20,
    }
}

/// Budgets as a gateway has them, and room for a busy machine.
pub fn hasty(addr: SocketAddr) -> RedisOptions {
    RedisOptions {
        read: Duration::from_millis(100),
        write: Duration::from_millis(200),
        ..options(addr, PREFIX)
    }
}

pub async fn start(options: RedisOptions) -> RedisStore {
    RedisStore::start(options, Arc::new(ManualClock::at(Millis(1_700_000_000_000)))).await
}

pub async fn store(addr: SocketAddr) -> RedisStore {
    start(options(addr, PREFIX)).await
}

pub async fn pair(addr: SocketAddr) -> (RedisStore, RedisStore) {
    (store(addr).await, store(addr).await)
}

pub async fn record(store: &RedisStore, n: u64) -> Result<Recorded, StoreError> {
    let fence = store.recall(&samples::fingerprint(n)).await?.fence;
    store.record(samples::candidate(n), fence).await
}

pub async fn must_record(store: &RedisStore, n: u64) -> Arc<Entry> {
    stored(record(store, n).await)
}

pub fn stored(recorded: Result<Recorded, StoreError>) -> Arc<Entry> {
    match recorded {
        Ok(Recorded::Stored(entry)) => entry,
        other => panic!("not recorded: {other:?}"),
    }
}

pub async fn recall(store: &RedisStore, n: u64) -> Result<Option<Arc<Entry>>, StoreError> {
    Ok(store.recall(&samples::fingerprint(n)).await?.entry)
}

pub async fn knows(store: &RedisStore, n: u64) -> bool {
    let entry = recall(store, n).await.unwrap_or_else(|error| panic!("recall: {error}"));
    assert!(entry.as_ref().is_none_or(|entry| entry.fingerprint == samples::fingerprint(n)));
    entry.is_some()
}

pub async fn look(store: &RedisStore, n: u64) -> Lease {
    store.look(&samples::fingerprint(n)).await.unwrap_or_else(|error| panic!("look: {error}")).lease
}

pub fn near(store: &RedisStore, n: u64) -> bool {
    store.near(&samples::fingerprint(n)).is_some()
}

pub fn bounded(n: u64, max_entries: u64) -> Candidate {
    Candidate { max_entries, ..samples::candidate(n) }
}

pub fn kind_of<T>(result: Result<T, StoreError>) -> Option<StoreErrorKind> {
    result.err().map(|error| error.kind)
}

/// The fence for an attempt that begins while nothing is asked.
pub fn last_fence(store: &RedisStore) -> Fence {
    store.last_fence().unwrap_or_else(|| panic!("the store was heard of"))
}

/// Waits until it is so.
pub async fn until(what: &str, within: Duration, mut is_so: impl AsyncFnMut() -> bool) -> Duration {
    let began = Instant::now();
    while !is_so().await {
        assert!(began.elapsed() < within, "not within {within:?}: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    began.elapsed()
}

pub const SECOND: Duration = Duration::from_secs(1);
pub const LONG: Duration = Duration::from_secs(20);

/// The lines that the stores of this process log.
#[derive(Clone, Default)]
pub struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    /// From now on; each test has a process of its own.
    pub fn start() -> Self {
        let log = Self::default();
        tracing::subscriber::set_global_default(log.clone()).unwrap_or_else(|error| panic!("log: {error}"));
        log
    }

    /// But for what the probe says of the clock, which stands still here.
    pub fn warnings(&self) -> Vec<String> {
        let of_the_clock = "the clock of this machine";
        self.lines("WARN").chain(self.lines("ERROR")).filter(|line| !line.contains(of_the_clock)).collect()
    }

    pub fn lines(&self, containing: &str) -> impl Iterator<Item = String> + use<> {
        let lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let lines: Vec<String> = lines.iter().filter(|line| line.contains(containing)).cloned().collect();
        lines.into_iter()
    }
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.0 += &format!(" {}={value:?}", field.name());
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::INFO && metadata.target().starts_with("nevertwice")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(event.metadata().level().to_string());
        event.record(&mut line);
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(line.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// Gives a user the rights that the documentation lists, under another prefix.
pub fn documented_user(
    server: &nevertwice_testkit::Redis,
    prefix: &str,
    options: RedisOptions,
) -> RedisOptions {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/operating.md");
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let line = text.lines().find_map(|line| line.strip_prefix("user gateway on >PASSWORD "));
    let rules = line.unwrap_or_else(|| panic!("no line for an ACL in {path}"));
    let rules = rules.replace("{nevertwice}", &format!("{{{prefix}}}"));
    let rules: Vec<_> = rules.split(' ').collect();
    let set = server.ask(&[&["acl", "setuser", "gateway", "reset", "on", ">secret"], &rules[..]].concat());
    assert_eq!(set, "OK");
    let (username, password) = (Some("gateway".to_owned()), Some("secret".to_owned().into()));
    RedisOptions { username, password, ..options }
}
