//! The gateway: listeners, the line of a request ([`exchange`]), pools, upstreams, the refusal memory at work, audit and
//! metrics. [`Gateway::start`] puts it together; nothing in here is global.

mod adapter;
mod audit;
mod body;
mod exchange;
mod facade;
mod jobs;
mod lock;
mod loop_breaker;
mod memory;
mod metrics;
mod operations;
mod pool;
mod serve;
mod status;
mod tls;
mod upstream;
mod webhook;
mod worker;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use nevertwice_config::checked::{AuditSink, Checked, Http, Limits};
use nevertwice_domain::clock::Clock;
use nevertwice_domain::fingerprint::DeploymentKey;
use nevertwice_domain::outcome::OwnCode;
use nevertwice_store::RefusalStore;
use nevertwice_store::work::{JobStore, OperationStore};
use secrecy::ExposeSecret;
use tokio::sync::Semaphore;
use tokio_util::task::TaskTracker;

use crate::audit::Audit;
use crate::body::budget::Budget;
use crate::body::outbound::Bounds;
use crate::body::turns::Turns;
use crate::exchange::identify::Tenants;
use crate::jobs::Jobs;
use crate::memory::Memory;
use crate::metrics::{Metrics, UpstreamMetrics};
use crate::operations::Operations;
use crate::serve::{Listener, Stop};
use crate::upstream::Upstream;
use crate::webhook::Webhooks;

pub use crate::memory::unclassified::UnclassifiedRow;
pub use crate::status::{
    Coverage, GuardStatus, LoopBreakerStatus, MemoryBounds, Phase, RouteCoverage, UnclassifiedRefusals,
    UpstreamStatus,
};
pub use crate::upstream::StartError;

/// What every request needs. Built once; immutable but for counters.
pub(crate) struct Shared {
    pub(crate) upstreams: Vec<Arc<Upstream>>,
    pub(crate) tenants: Tenants,
    pub(crate) memory: Option<Memory>,
    /// `None` = no upstream has any.
    pub(crate) operations: Option<Arc<Operations>>,
    /// How callers reach the gateway, for addresses that it makes.
    pub(crate) public_base_url: Option<http::Uri>,
    /// Proxies that are believed about it.
    pub(crate) trusted_hops: Vec<ipnet::IpNet>,
    pub(crate) budget: Arc<Budget>,
    pub(crate) turns: Turns,
    pub(crate) limits: Limits,
    pub(crate) http: Http,
    pub(crate) audit: Option<Audit>,
    pub(crate) metrics: Arc<Metrics>,
    /// Requests that no upstream was found for.
    pub(crate) unrouted: UpstreamMetrics,
    /// The audit's `route` of paths that are not listed.
    pub(crate) any_route: Arc<str>,
    /// `None` = jobs are not served.
    pub(crate) jobs: Option<Arc<Jobs>>,
    pub(crate) clock: Arc<dyn Clock>,
    /// Everything that runs beside the line; the drain waits for it.
    pub(crate) tracker: TaskTracker,
    pub(crate) stop: Stop,
    phase: AtomicU8,
}

impl Shared {
    /// Refuses work that the gateway must not begin now.
    fn accepts_work(&self) -> Result<(), OwnCode> {
        if self.phase.load(Ordering::Relaxed) == Phase::Draining as u8 {
            return Err(OwnCode::Draining);
        }
        if self.audit.as_ref().is_some_and(Audit::must_refuse) {
            return Err(OwnCode::AuditUnavailable);
        }
        Ok(())
    }

    /// What a client's body may be, on its way to an upstream that allows a silence of `idle`.
    fn body_bounds(&self, idle: Duration) -> Bounds {
        let idle = idle.min(self.http.body_idle_timeout);
        Bounds { length: self.limits.body_max_bytes, idle, rate: self.http.body_min_rate }
    }
}

/// A gateway that serves. Cheap to clone; all clones are the same gateway.
#[derive(Clone)]
pub struct Gateway {
    pub(crate) shared: Arc<Shared>,
    stop: Stop,
    addresses: Arc<[SocketAddr]>,
    drain: Duration,
}

/// What the gateway stands on.
pub struct Foundations {
    /// Where entries live; `None` with the memory off.
    pub store: Option<Arc<dyn RefusalStore>>,
    /// Where operations live; `None` where no upstream has any.
    pub operations: Option<Arc<dyn OperationStore>>,
    /// Where jobs live; `None` where they are not served.
    pub jobs: Option<Arc<dyn JobStore>>,
    /// The time.
    pub clock: Arc<dyn Clock>,
}

impl Gateway {
    /// Binds the listeners and begins to serve.
    ///
    /// # Errors
    /// [`StartError`] when a listener cannot be bound, a TLS file not be read, the audit not be opened.
    pub async fn start(config: Checked, on: Foundations) -> Result<Self, StartError> {
        let metrics = Arc::new(Metrics::new(config.memory.is_some()));
        let audit = match &config.audit {
            None => None,
            Some(audit) => Some(Audit::start(audit, Arc::clone(&metrics)).map_err(|error| {
                let path = match &audit.sink {
                    AuditSink::File(path) => path.display().to_string(),
                    AuditSink::Stdout => "standard output".into(),
                };
                StartError::Audit { path, error }
            })?),
        };
        check_spill_dir(&config.limits)?;
        let tracker = TaskTracker::new();
        let memory = match (&config.memory, on.store) {
            (Some(memory), Some(store)) => {
                let key = match &memory.key_secret {
                    Some(secret) => DeploymentKey::from_secret(secret.expose_secret()),
                    None => DeploymentKey::NONE,
                };
                tracing::info!(
                    "refusal memory enabled (ttl={}s max_entries={} statuses={})",
                    memory.ttl.as_secs(),
                    memory.max_entries,
                    memory.statuses
                );
                let (clock, metrics) = (Arc::clone(&on.clock), Arc::clone(&metrics));
                Some(Memory::new(memory, key, store, clock, metrics, tracker.clone()))
            }
            (Some(_), None) => return Err(StartError::NoStore),
            (None, _) => None,
        };
        let tenants = Tenants::new(config.identity, &metrics);
        let ids = tenants.ids();
        let mut upstreams = Vec::with_capacity(config.upstreams.len());
        for upstream in config.upstreams {
            upstreams.push(Arc::new(Upstream::new(upstream, &ids, memory.as_ref(), &metrics)?));
        }
        // the longest mount wins
        upstreams.sort_by_key(|u| std::cmp::Reverse(u.config.mount.as_ref().map(String::len)));
        let mut listeners = Vec::with_capacity(config.listen.len());
        for listen in &config.listen {
            let tls = match &listen.tls {
                None => None,
                Some(files) => Some(tls::server(files, config.http.h2).map_err(StartError::Tls)?.into()),
            };
            let failed = |error| StartError::Listen { addr: listen.addr, error };
            listeners.push(Listener { socket: serve::bind(listen.addr).map_err(failed)?, tls });
        }
        let addresses = listeners.iter().filter_map(|l| l.socket.local_addr().ok()).collect();
        let stop = Stop::default();
        let operations = on.operations.map(|store| {
            let (clock, tracker) = (Arc::clone(&on.clock), tracker.clone());
            Arc::new(Operations::new(store, clock, tracker, stop.drain.clone()))
        });
        let jobs = match (config.jobs, on.jobs) {
            (None, _) => None,
            (Some(_), None) => return Err(StartError::NoJobStore),
            (Some(rules), Some(store)) => {
                let webhooks = match &rules.webhooks {
                    None => None,
                    Some(rules) => {
                        let webhooks = Webhooks::new(rules, Arc::clone(&on.clock), &metrics);
                        Some(Arc::new(webhooks.map_err(StartError::Tls)?))
                    }
                };
                let base = config.public_base_url.as_ref().map(ToString::to_string).unwrap_or_default();
                let base = base.trim_end_matches('/').to_owned();
                let memory = config.limits.buffer_memory_bytes;
                let metrics = metrics.jobs(upstreams.iter().map(|upstream| upstream.name()));
                let shared = tenants.are_several();
                Some(Arc::new(Jobs::new(store, rules, shared, base, memory, webhooks, metrics)))
            }
        };
        let shared = Arc::new(Shared {
            upstreams,
            tenants,
            memory,
            operations,
            public_base_url: config.public_base_url,
            trusted_hops: config.trusted_hops,
            turns: Turns::new(tokio::runtime::Handle::current().metrics().num_workers()),
            budget: Budget::new(config.limits.buffer_memory_bytes, Arc::clone(&metrics)),
            limits: config.limits,
            audit,
            unrouted: metrics.upstream("(none)", 0, None),
            metrics,
            any_route: "*".into(),
            jobs,
            clock: on.clock,
            tracker,
            stop: stop.clone(),
            phase: AtomicU8::new(Phase::Serving as u8),
            http: config.http,
        });
        if let Some(news) = shared.memory.as_ref().and_then(|memory| memory.store.news()) {
            shared.tracker.spawn(memory::fleet::listen(Arc::clone(&shared), news));
        }
        if shared.operations.is_some() {
            shared.tracker.spawn(operations::watch(Arc::clone(&shared)));
        }
        if let Some(jobs) = &shared.jobs {
            worker::start(&shared, jobs);
            shared.tracker.spawn(webhook::watch(Arc::clone(&shared), Arc::clone(jobs)));
        }
        let gateway = Self { shared, stop, addresses, drain: config.drain };
        let places = Arc::new(Semaphore::new(gateway.shared.http.max_connections));
        for listener in listeners {
            let accept = serve::accept(
                Arc::clone(&gateway.shared),
                listener,
                Arc::clone(&places),
                gateway.stop.clone(),
            );
            gateway.shared.tracker.spawn(accept);
        }
        Ok(gateway)
    }

    /// The addresses that tenants connect to, as bound.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Stops in order: no new work from now on, what is under way may finish within the configured time, then it is cut.
    /// Returns when all is ended and everything that was counted or audited is written. Dropping the future does not undo
    /// the stop; [`Gateway::cut`] ends it early.
    pub async fn drain(&self) {
        self.shared.phase.store(Phase::Draining as u8, Ordering::Relaxed);
        self.stop.drain.cancel();
        self.shared.tracker.close();
        tokio::select! {
            () = self.shared.tracker.wait() => {}
            () = self.stop.cut.cancelled() => {}
            () = tokio::time::sleep(self.drain) => {
                tracing::warn!("the drain took too long, what is still under way is cut");
            }
        }
        self.stop.cut.cancel();
        // connections and attempts that run without a client end at once now, each with its audit line
        let _ = tokio::time::timeout(Duration::from_secs(1), self.shared.tracker.wait()).await;
        if let Some(memory) = &self.shared.memory
            && let Ok(Err(error)) = tokio::time::timeout(Duration::from_secs(5), memory.store.close()).await
        {
            tracing::error!(%error, "the last counts could not be stored");
        }
        let shared = Arc::clone(&self.shared);
        // a thread of its own: the runtime waits for its blocking threads, and a disk may block for ever
        let (done, closed) = tokio::sync::oneshot::channel();
        let closing = std::thread::Builder::new().name("audit-close".into()).spawn(move || {
            if let Some(audit) = &shared.audit {
                audit.close();
            }
            // nobody waits any more when it took too long
            let _ = done.send(());
        });
        if closing.is_ok() {
            let _ = tokio::time::timeout(Duration::from_secs(5), closed).await;
        }
    }

    /// Ends a drain at once.
    pub fn cut(&self) {
        self.stop.cut.cancel();
    }

    /// Opens the audit file again, after it was moved.
    pub fn reopen_audit(&self) {
        if let Some(audit) = &self.shared.audit {
            audit.reopen();
        }
    }
}

fn check_spill_dir(limits: &Limits) -> Result<(), StartError> {
    let dir = limits.spill_dir.clone().unwrap_or_else(std::env::temp_dir);
    match tempfile::tempfile_in(&dir) {
        Ok(_) => Ok(()),
        Err(error) => Err(StartError::SpillDir { path: dir.display().to_string(), error }),
    }
}
