//! The store of a fleet: Redis or Valkey, one server, with Sentinel, or a cluster. It holds the memory, operations and jobs.
//!
//! Every look-up is one round trip, and takes the lease on the attempt where there is no entry. What is recorded is decided
//! here, by the same rules as in every store, on what one script reads; another script writes it if nothing of that has changed. So
//! the rules are written once, and Redis is asked for nothing but to be consistent within one script. See
//! docs/decisions/0008-one-slot-of-redis.md and 0009-decide-then-commit.md.

mod breaker;
mod event;
mod keys;
mod late;
mod leases;
mod link;
mod near;
mod news;
mod operations;
mod pages;
mod probe;
mod record;
mod scripts;
mod tending;
mod value;
mod work;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use nevertwice_domain::clock::{Clock, Millis};
use nevertwice_domain::entry::{Candidate, Entry, Selector};
use nevertwice_domain::fingerprint::Fingerprint;
use nevertwice_domain::tenant::{TenantId, UpstreamName};
use secrecy::SecretString;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::{
    Fence, Imported, Lease, ListQuery, Looked, Moved, News, Page, Recalled, Recorded, RefusalStore, Shown,
    StoreError, StoreErrorKind,
};
use event::Event;
use keys::Keys;
use late::Late;
use leases::{Leases, Token};
pub use leases::{RemoteAttempt, RemoteLanding};
use link::Link;
use near::Near;
use news::{Desk, Echo};
pub use probe::{About, Finding, Severity, probe};
use scripts::Scripts;
use work::Work;

/// How long one call imports. The entry that it is at may take as long as any call besides: who waits for it knows that.
const IMPORT: Duration = Duration::from_secs(2);

/// Which servers there are.
#[derive(Clone, Debug)]
pub enum Topology {
    /// One server, or whatever stands behind one address.
    One {
        /// Its name or address.
        host: String,
        /// Its port.
        port: u16,
    },
    /// Sentinels know which server is the primary.
    Sentinel {
        /// Names or addresses, and ports.
        sentinels: Vec<(String, u16)>,
        /// What the sentinels call it.
        primary: String,
    },
    /// A cluster.
    Cluster {
        /// Some of its nodes: names or addresses, and ports.
        nodes: Vec<(String, u16)>,
    },
}

/// How to reach the store, and how long it may take.
#[derive(Clone, Debug)]
pub struct RedisOptions {
    /// Which servers there are.
    pub topology: Topology,
    /// TLS to the servers, which must show a certificate for their names.
    pub tls: bool,
    /// Certificates to trust in place of the system's, in PEM.
    pub ca: Option<Vec<u8>>,
    /// A client certificate and its key, in PEM.
    pub client_cert: Option<(Vec<u8>, SecretString)>,
    /// The ACL user; without it, the default user.
    pub username: Option<String>,
    /// The password.
    pub password: Option<SecretString>,
    /// The database; a cluster has only 0.
    pub db: i64,
    /// The first part of every key: what belongs to one deployment.
    pub prefix: String,
    /// How long a look-up may take.
    pub read: Duration,
    /// How long a record may take.
    pub write: Duration,
    /// Bytes of entries that this process keeps at hand.
    pub near_bytes: u64,
}

/// A store on Redis. It starts whether or not the server can be reached, and joins when it can.
pub struct RedisStore {
    shared: Arc<Shared>,
}

struct Shared {
    options: RedisOptions,
    keys: Keys,
    scripts: Scripts,
    clock: Arc<dyn Clock>,
    link: Link,
    near: Near,
    leases: Arc<Leases>,
    desk: Desk,
    echo: Echo,
    accepted: Mutex<BTreeSet<UpstreamName>>,
    evictions: AtomicU64,
    /// The number of the latest forget that was heard of.
    seen: AtomicU64,
    late: Mutex<Late>,
    work: Work,
    closed: AtomicBool,
    /// Ends the task that tends the connection.
    closing: CancellationToken,
    tending: TaskTracker,
    /// All other tasks of this store.
    tasks: TaskTracker,
}

impl RedisStore {
    /// Begins to connect, and waits for the first attempt to end: a server that is there is used from the first request on.
    pub async fn start(options: RedisOptions, clock: Arc<dyn Clock>) -> Self {
        let shared = Arc::new(Shared {
            keys: Keys::new(&options.prefix, options.db),
            near: Near::new(options.near_bytes),
            options,
            scripts: Scripts::new(),
            clock,
            link: Link::new(),
            leases: Arc::new(Leases::new()),
            desk: Desk::new(),
            echo: Echo::default(),
            accepted: Mutex::default(),
            evictions: AtomicU64::new(0),
            seen: AtomicU64::new(0),
            late: Mutex::default(),
            work: Work::new(),
            closed: AtomicBool::new(false),
            closing: CancellationToken::new(),
            tending: TaskTracker::new(),
            tasks: TaskTracker::new(),
        });
        let (ended, first) = oneshot::channel();
        shared.tending.spawn(tending::tend(Arc::clone(&shared), ended));
        // dropped in place of sent
        let _ = first.await;
        Self { shared }
    }
}

impl Topology {
    fn is_cluster(&self) -> bool {
        matches!(self, Self::Cluster { .. })
    }
}

impl Shared {
    fn check_open(&self) -> Result<(), StoreError> {
        if self.closed.load(Ordering::Acquire) { Err(StoreError::closed()) } else { Ok(()) }
    }

    fn accepted(&self) -> MutexGuard<'_, BTreeSet<UpstreamName>> {
        self.accepted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn late(&self) -> MutexGuard<'_, Late> {
        self.late.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes note of what happened here or elsewhere.
    fn happened(&self, event: &Event) {
        match event {
            Event::Recorded(_) | Event::Released(..) | Event::GivenUp(_) => self.leases.tell(event),
            Event::Gone(key) => {
                self.near.remove(key);
                self.late().forget(&Selector::key(*key));
            }
            Event::Forgotten(which) => {
                self.near.forget(which);
                self.late().forget(which);
            }
            Event::Accepted(upstream) => {
                self.accepted().insert(upstream.clone());
            }
            Event::Suspect(upstream, since) => {
                self.near.suspect(upstream, *since);
                self.late().suspect(upstream, *since, None);
            }
            Event::Waiting(upstream) => self.work.knock(upstream),
            Event::Judged(..) | Event::Tripped(..) | Event::Recovered(..) | Event::Echo(..) => {
                self.heard(event);
            }
        }
    }

    /// Gives a lease up, on nobody's time.
    fn release(self: &Arc<Self>, key: Fingerprint, token: Token, event: Event) {
        // one that cannot be given up ends by itself; so does one that is dropped after the runtime
        if !self.link.is_up() || tokio::runtime::Handle::try_current().is_err() {
            return;
        }
        let shared = Arc::clone(self);
        self.tasks.spawn(async move {
            let mut call = shared.scripts.release.key(shared.keys.lease(&key));
            call.key(shared.keys.waited(&key)).arg(token).arg(shared.keys.events()).arg(event.encode());
            let _: Result<i64, _> = shared.link.call(&call, shared.options.write).await;
        });
    }
}

/// A look-up that asks for a lease. The server may have granted it to a look-up that was given up, or whose answer came too late:
/// then nobody holds it, and it is given up too. That comes after the look-up on the same connection; the client of a cluster drops what
/// nobody waits for any more in place of repeating it.
struct Asking<'a> {
    shared: &'a Arc<Shared>,
    key: Fingerprint,
    token: Option<Token>,
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        if let Some(token) = self.token.take() {
            self.shared.release(self.key, token, Event::GivenUp(self.key));
        }
    }
}

/// A lease that this process holds on the attempt at one fingerprint. Dropped, it is given up: one of those who wait makes the
/// next attempt.
pub struct HeldLease {
    shared: Arc<Shared>,
    key: Fingerprint,
    token: Token,
}

impl HeldLease {
    /// The attempt ended without a verdict: whoever waits goes upstream. Costs the caller no time.
    pub fn land_without_verdict(self) {
        if self.shared.leases.let_go_of(&self.key, &self.token) {
            self.shared.release(self.key, self.token.clone(), Event::Released(self.key, self.token.clone()));
        }
    }
}

impl Drop for HeldLease {
    fn drop(&mut self) {
        // an end that a record or an acceptance has made known is known already
        if self.shared.leases.let_go_of(&self.key, &self.token) {
            self.shared.release(self.key, self.token.clone(), Event::GivenUp(self.key));
        }
    }
}

impl Drop for RedisStore {
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::Release);
        self.shared.closing.cancel();
    }
}

#[async_trait]
impl RefusalStore for RedisStore {
    fn near(&self, key: &Fingerprint) -> Option<Arc<Entry>> {
        self.shared.check_open().ok()?;
        self.shared.near.get(key, self.shared.clock.now())
    }

    fn look_deadline(&self) -> Option<Duration> {
        // it has its own
        None
    }

    async fn recall(&self, key: &Fingerprint) -> Result<Recalled, StoreError> {
        let (entry, fence, _) = self.shared.look(key, None).await?;
        Ok(Recalled { entry, fence })
    }

    async fn look(&self, key: &Fingerprint) -> Result<Looked, StoreError> {
        let shared = &self.shared;
        let token = shared.leases.token();
        let attempt = shared.leases.watch(key);
        let mut asking = Asking { shared, key: *key, token: Some(token.clone()) };
        let (entry, fence, answer) = shared.look(key, Some(&token)).await?;
        asking.token = None;
        let lease = match answer {
            operations::LeaseAnswer::None => Lease::NotNeeded,
            operations::LeaseAnswer::Elsewhere(holder) => Lease::Elsewhere(attempt.of(holder)),
            operations::LeaseAnswer::Held => {
                shared.leases.hold(*key, token.clone());
                Lease::Held(HeldLease { shared: Arc::clone(shared), key: *key, token })
            }
        };
        Ok(Looked { entry, fence, lease })
    }

    fn last_fence(&self) -> Option<Fence> {
        match self.shared.seen.load(Ordering::Relaxed) {
            0 => None,
            seen => Some(Fence(seen)),
        }
    }

    fn fences_last(&self) -> bool {
        true
    }

    async fn record(&self, candidate: Candidate, fence: Fence) -> Result<Recorded, StoreError> {
        self.shared.check_open()?;
        let unrecorded = match self.shared.record(&candidate, fence, None).await {
            Ok(recorded) => return Ok(recorded),
            Err(unrecorded) => unrecorded,
        };
        if unrecorded.may_be_told_again(&candidate)
            && !self.shared.late().verdict(candidate, fence, self.shared.now())
            && self.shared.link.first_in_a_while("late")
        {
            tracing::warn!("too many verdicts wait for the refusal store, further ones are not remembered");
        }
        Err(unrecorded.error)
    }

    async fn import(
        &self,
        moved: Vec<Moved>,
        fence: Fence,
        max_entries: u64,
    ) -> Result<Vec<Imported>, StoreError> {
        self.shared.check_open()?;
        let until = Instant::now() + IMPORT;
        let mut imported = Vec::with_capacity(moved.len());
        // one after the other: their order is the order of recording
        for moved in &moved {
            if !imported.is_empty() && Instant::now() >= until {
                break;
            }
            imported.push(self.shared.import(moved, fence, max_entries).await?);
        }
        Ok(imported)
    }

    async fn accept(&self, key: &Fingerprint, upstream: &UpstreamName) -> Result<bool, StoreError> {
        self.shared.check_open()?;
        self.shared.late().accepted_now(key);
        let result = self.shared.accept(key, upstream, true).await;
        if result.as_ref().is_err_and(is_passing) {
            self.shared.late().accepted(*key, upstream.clone(), self.shared.now());
        }
        result
    }

    fn accept_deadline(&self) -> Option<Duration> {
        Some(self.shared.options.write)
    }

    fn has_accepted(&self, upstream: &UpstreamName) -> bool {
        self.shared.accepted().contains(upstream)
    }

    async fn forget(&self, which: &Selector) -> Result<u64, StoreError> {
        self.shared.check_open()?;
        self.shared.forget(which).await
    }

    async fn suspect(&self, upstream: &UpstreamName, since: Millis) -> Result<u64, StoreError> {
        self.shared.check_open()?;
        let marked = self.shared.suspect(upstream, since, None).await;
        if marked.is_err() {
            self.shared.desk.owe_marks(upstream, since);
        }
        marked
    }

    fn tell(&self, news: News) {
        if self.shared.check_open().is_ok() {
            self.shared.tell(news);
        }
    }

    fn news(&self) -> Option<mpsc::Receiver<News>> {
        self.shared.desk.ear()
    }

    fn count_replay(&self, key: &Fingerprint, tenant: &TenantId, at: Millis) -> u64 {
        match self.shared.check_open() {
            Ok(()) => self.shared.near.count(key, tenant, at, self.shared.clock.now()),
            Err(_) => 0,
        }
    }

    async fn entries(&self) -> Result<u64, StoreError> {
        self.shared.check_open()?;
        self.shared.entries().await
    }

    fn evictions(&self) -> u64 {
        self.shared.evictions.load(Ordering::Relaxed)
    }

    async fn list(&self, query: &ListQuery) -> Result<Page, StoreError> {
        self.shared.check_open()?;
        self.shared.list(query).await
    }

    async fn show(&self, key: &Fingerprint) -> Result<Option<Shown>, StoreError> {
        self.shared.check_open()?;
        self.shared.show(key).await
    }

    async fn close(&self) -> Result<(), StoreError> {
        if self.shared.closed.swap(true, Ordering::AcqRel) {
            return Err(StoreError::closed());
        }
        let shared = &self.shared;
        let told = shared.tell_replays().await;
        // nobody prolongs them from here on, and others need not wait until they end
        for (key, token) in shared.leases.all() {
            if shared.leases.let_go_of(&key, &token) {
                shared.release(key, token, Event::GivenUp(key));
            }
        }
        shared.tasks.close();
        shared.tasks.wait().await;
        shared.closing.cancel();
        shared.tending.close();
        shared.tending.wait().await;
        told
    }
}

/// Whether it is worth to try again later.
fn is_passing(error: &StoreError) -> bool {
    matches!(error.kind, StoreErrorKind::Io | StoreErrorKind::Busy)
}
