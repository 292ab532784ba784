//! A gateway without traffic, its admin API, and a client that shows every byte.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "test")]

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Once};
use std::time::Duration;

use nevertwice_admin::{AdminServer, Version};
use nevertwice_config::checked::Admin;
use nevertwice_config::secret::Given;
use nevertwice_domain::clock::{Clock, ManualClock, Millis};
use nevertwice_domain::entry::Entry;
use nevertwice_domain::fingerprint::{DocumentDigest, Fingerprint};
use nevertwice_gateway::{Foundations, Gateway};
use nevertwice_store::memory::MemoryStore;
use nevertwice_store::work::JobStore;
use nevertwice_store::work::memory::WorkInMemory;
use nevertwice_store::{RefusalStore, suite::samples};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;

/// 2023-11-14T22:13:20.000Z.
pub const START: Millis = Millis(1_700_000_000_000);
/// How long entries live.
pub const TTL_MS: u64 = 3_600_000;

pub struct World {
    pub admin: AdminServer,
    pub addr: SocketAddr,
    pub gateway: Option<Gateway>,
    pub store: Arc<dyn RefusalStore>,
    pub jobs: Arc<dyn JobStore>,
    pub clock: Arc<ManualClock>,
    pub ready: watch::Sender<Option<Gateway>>,
}

/// How to build a world.
#[derive(Clone, Copy)]
pub struct Plan {
    pub memory: bool,
    pub token: bool,
    pub started: bool,
    /// Whether jobs are served.
    pub jobs: bool,
}

pub const OPEN: Plan = Plan { memory: true, token: false, started: true, jobs: false };
/// The token of worlds that have one.
pub const TOKEN: &str = "a-long-admin-token";

impl World {
    pub async fn new(plan: Plan) -> Self {
        let clock = Arc::new(ManualClock::at(START));
        let store: Arc<dyn RefusalStore> = Arc::new(MemoryStore::new(Arc::clone(&clock) as Arc<dyn Clock>));
        let jobs: Arc<dyn JobStore> = Arc::new(WorkInMemory::new(Arc::clone(&clock) as Arc<dyn Clock>));
        let served = if plan.jobs { "jobs: {}\n" } else { "" };
        let token = if plan.token { "  token: env:ADMIN\n" } else { "" };
        let text = format!(
            "listen: 127.0.0.1:0\n\
             admin:\n  listen: 127.0.0.1:0\n{token}\
             negative_cache: {{ enabled: {} }}\n{served}\
             upstreams:\n\
             \x20 - {{ name: ocr, base_url: \"http://127.0.0.1:9\", sync_paths: [/read] }}\n\
             \x20 - {{ name: doc-classifier, base_url: \"http://127.0.0.1:9\", sync_paths: [/classify] }}\n",
            plan.memory
        );
        let secrets = Given::default().with_env("ADMIN", TOKEN);
        let mut config = nevertwice_config::from_text(&text, "test.yaml", &secrets)
            .map_err(|p| p.to_string())
            .unwrap()
            .checked;
        let (ready, seen) = watch::channel(None);
        let version = Version {
            version: "1.2.3".into(),
            commit: "abc".into(),
            built: Millis(0),
            config_digest: config.digest.clone(),
            started_at: START,
        };
        let listen: Admin = config.admin.take().unwrap();
        let admin = nevertwice_admin::start(listen, version, seen, None).await.unwrap();
        let mut world = Self {
            addr: admin.addr(),
            admin,
            gateway: None,
            store: Arc::clone(&store),
            jobs: Arc::clone(&jobs),
            clock: Arc::clone(&clock),
            ready,
        };
        if plan.started {
            let store = plan.memory.then_some(store);
            let jobs = plan.jobs.then_some(jobs);
            let on = Foundations { store, operations: None, jobs, clock };
            let gateway = Gateway::start(config, on).await.unwrap();
            world.ready.send_replace(Some(gateway.clone()));
            world.gateway = Some(gateway);
        }
        world
    }

    /// The `n`th entry, with these changes.
    pub async fn remember(&self, n: u64, change: impl FnOnce(&mut Entry)) -> Fingerprint {
        let mut candidate = samples::candidate(n);
        candidate.life = samples::flat(TTL_MS);
        change(&mut candidate.entry);
        let key = candidate.entry.fingerprint;
        let fence = self.store.recall(&key).await.unwrap().fence;
        self.store.record(candidate, fence).await.unwrap();
        key
    }

    /// Sends a request with `Host: localhost` and `Connection: close`.
    pub async fn send(&self, method: &str, target: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        let mut head =
            format!("{method} {target} HTTP/1.1\r\nConnection: close\r\nContent-Length: {}\r\n", body.len());
        if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
            head.push_str("Host: localhost\r\n");
        }
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        self.raw(format!("{head}\r\n{body}").as_bytes()).await
    }

    pub async fn get(&self, target: &str) -> Answer {
        self.send("GET", target, &[], "").await
    }

    pub async fn post(&self, target: &str, body: &Value) -> Answer {
        self.send("POST", target, &[("Content-Type", "application/json")], &body.to_string()).await
    }

    pub async fn raw(&self, bytes: &[u8]) -> Answer {
        let talk = async {
            let mut stream = TcpStream::connect(self.addr).await.unwrap();
            stream.write_all(bytes).await.unwrap();
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).await.unwrap();
            answer
        };
        let bytes = tokio::time::timeout(Duration::from_secs(30), talk).await.expect("an answer in time");
        let at = bytes.windows(4).position(|w| w == b"\r\n\r\n").expect("a head");
        let head = String::from_utf8(bytes[..at].to_vec()).unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Answer { status, head: head.to_lowercase(), body: bytes[at + 4..].to_vec() }
    }
}

#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    /// In lower case.
    pub head: String,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn text(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| unreachable!("{e}: {self:?}"))
    }

    /// The answer, which has to be a success.
    #[track_caller]
    pub fn ok(&self) -> Value {
        assert_eq!(self.status, 200, "{}", self.text());
        assert!(self.head.contains("content-type: application/json"), "{}", self.head);
        self.json()
    }

    /// The detail, after a check that this is a whole problem document with this status and code.
    #[track_caller]
    pub fn problem(&self, status: u16, code: &str) -> String {
        assert_eq!(self.status, status, "{}", self.text());
        assert!(self.head.contains("content-type: application/problem+json"), "{}", self.head);
        let json = self.json();
        assert_eq!(json["type"], format!("urn:nevertwice:admin:{code}"));
        assert_eq!((json["status"].as_u64(), json["code"].as_str()), (Some(status.into()), Some(code)));
        assert!(json["title"].is_string());
        json["detail"].as_str().unwrap().to_owned()
    }
}

/// The digest of the `n`th document.
pub fn document(n: u64) -> DocumentDigest {
    samples::document(n)
}

thread_local! {
    /// What a test logs: all that it does is done on its own thread.
    static LOGGED: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// What a test logs.
pub struct Log;

impl Log {
    /// Listens from now on. One subscriber for all tests: whether a line is wanted at all is remembered for the whole process.
    pub fn listen() -> Self {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            let subscriber = tracing_subscriber::fmt().json().with_writer(|| Self).finish();
            tracing::subscriber::set_global_default(subscriber).unwrap();
            tracing::callsite::rebuild_interest_cache();
        });
        LOGGED.take();
        Self
    }

    /// The fields of the audit's lines so far.
    pub fn audit(&self) -> Vec<Value> {
        let text = LOGGED.with_borrow(|bytes| String::from_utf8(bytes.clone()).unwrap());
        let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        lines
            .filter(|line| line["target"] == "nevertwice::audit")
            .map(|line| line["fields"].clone())
            .collect()
    }
}

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        LOGGED.with_borrow_mut(|all| all.extend(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
