//! The configuration as the program uses it: complete, parsed, within bounds.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http::uri::Authority;
use http::{HeaderName, Uri};
use ipnet::IpNet;
use nevertwice_domain::canonical::form::FileNameRule;
use nevertwice_domain::guard::GuardPolicy;
use nevertwice_domain::loop_breaker::LoopBreakerPolicy;
use nevertwice_domain::profile::Profile;
use nevertwice_domain::status::StatusSet;
use nevertwice_domain::strike::LifePolicy;
use nevertwice_domain::tenant::{KeyHash, TenantId, UpstreamName};
use secrecy::{SecretBox, SecretString};

use crate::problem::Place;
use crate::profiles::Catalog;

/// A secret's bytes. Never printed; wiped when dropped.
pub type Secret = SecretBox<[u8]>;

/// The whole configuration.
#[derive(Debug)]
pub struct Checked {
    /// Where tenants connect; at least one.
    pub listen: Vec<Listen>,
    /// How tenants are told apart.
    pub identity: Identity,
    /// The admin listener; `None` = none.
    pub admin: Option<Admin>,
    /// Where entries live.
    pub store: StoreConfig,
    /// Where audit lines go; `None` = nowhere.
    pub audit: Option<Audit>,
    /// Bounds on bodies.
    pub limits: Limits,
    /// Bounds on the HTTP conversation with clients.
    pub http: Http,
    /// How long a drain may take.
    pub drain: Duration,
    /// The memory; `None` = off, and then nothing of it exists.
    pub memory: Option<Memory>,
    /// The profiles there are: those of this program and the operator's own.
    pub profiles: Catalog,
    /// What links to this gateway begin with, without a trailing slash; `None` = made of the request.
    pub public_base_url: Option<Uri>,
    /// The peers whose word on who asks, and by which address, counts.
    pub trusted_hops: Vec<IpNet>,
    /// Jobs; `None` = off, and then nothing of them exists.
    pub jobs: Option<Jobs>,
    /// The upstreams, in file order.
    pub upstreams: Vec<Upstream>,
    /// SHA-256 of the configuration text, hex, first 16 digits: shown by `version`, so that operators see what is live.
    pub digest: String,
}

/// One listening address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listen {
    /// The address; port 0 lets the system choose.
    pub addr: SocketAddr,
    /// TLS, when the listener has it.
    pub tls: Option<TlsFiles>,
}

/// A certificate chain and its key, PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The chain, leaf first.
    pub cert: PathBuf,
    /// The private key.
    pub key: PathBuf,
}

/// How tenants are told apart.
#[derive(Debug, Default)]
pub struct Identity {
    /// The header in which one's own proxy names the tenant.
    pub tenant_header: Option<HeaderName>,
    /// The configured tenants. Empty and no header: everyone is the tenant `default`.
    pub tenants: Vec<Tenant>,
}

/// One tenant.
#[derive(Debug)]
pub struct Tenant {
    /// Its id.
    pub id: TenantId,
    /// The hash of its key; `None` when it is only known by the tenant header.
    pub key: Option<KeyHash>,
    /// Which upstreams it may call.
    pub routes: RouteRights,
}

/// Which upstreams a tenant may call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouteRights {
    /// All.
    All,
    /// These.
    Only(Vec<UpstreamName>),
}

impl RouteRights {
    /// Whether `upstream` may be called.
    #[must_use]
    pub fn allow(&self, upstream: &UpstreamName) -> bool {
        match self {
            Self::All => true,
            Self::Only(names) => names.contains(upstream),
        }
    }
}

/// The admin listener.
#[derive(Debug)]
pub struct Admin {
    /// Its address.
    pub listen: SocketAddr,
    /// The bearer token; required when the address is not loopback.
    pub token: Option<Secret>,
}

/// Where entries live.
#[derive(Debug)]
pub enum StoreConfig {
    /// An embedded database in this directory.
    Embedded {
        /// The directory.
        path: PathBuf,
    },
    /// A Redis or Valkey that all replicas share.
    Redis(Box<Redis>),
}

/// A Redis or Valkey.
#[derive(Debug)]
pub struct Redis {
    /// Where it is.
    pub address: RedisAddress,
    /// Who the gateway is there; `None` = the default user, without a password.
    pub credential: Option<RedisCredential>,
    /// What all keys begin with: 1 to 48 letters, digits, `_`, `-` and `.`.
    pub prefix: String,
    /// How long a look-up may take.
    pub read: Duration,
    /// How long a record may take.
    pub write: Duration,
    /// Where that stands in the text, for what shows only when the server is asked.
    pub places: RedisPlaces,
}

/// Where the settings of a Redis stand; that of the block for those that are not given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisPlaces {
    /// Of `url`.
    pub url: Place,
    /// Of `password`.
    pub password: Place,
    /// Of `username`, or of `password` without it.
    pub username: Place,
    /// Of `prefix`.
    pub prefix: Place,
    /// Of `read_ms`.
    pub read_ms: Place,
}

/// Where a Redis is. Its text is the URL in full, and holds no secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisAddress {
    /// Which servers there are.
    pub topology: RedisTopology,
    /// The database; 0 for a cluster.
    pub db: u32,
    /// TLS, when they have it.
    pub tls: Option<ClientTls>,
}

/// Which servers there are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RedisTopology {
    /// One, or whatever stands behind one address.
    One(RedisHost),
    /// Sentinels know which one is the primary.
    Sentinel {
        /// The sentinels; at least one.
        sentinels: Vec<RedisHost>,
        /// What they call it.
        primary: String,
    },
    /// Some of the nodes of a cluster; at least one.
    Cluster(Vec<RedisHost>),
}

/// A server's host and port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisHost {
    /// A name or an IP address, without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
}

/// Who the gateway is at a Redis.
#[derive(Debug)]
pub struct RedisCredential {
    /// The ACL user; `None` = the default user.
    pub username: Option<String>,
    /// The password.
    pub password: SecretString,
}

impl std::fmt::Display for RedisHost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

impl std::fmt::Display for RedisAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (kind, hosts) = match &self.topology {
            RedisTopology::One(host) => ("", std::slice::from_ref(host)),
            RedisTopology::Sentinel { sentinels, .. } => ("-sentinel", &sentinels[..]),
            RedisTopology::Cluster(nodes) => ("-cluster", &nodes[..]),
        };
        write!(f, "redis{}{kind}://", if self.tls.is_some() { "s" } else { "" })?;
        for (i, host) in hosts.iter().enumerate() {
            write!(f, "{}{host}", if i > 0 { "," } else { "" })?;
        }
        match &self.topology {
            RedisTopology::One(_) => write!(f, "/{}", self.db),
            RedisTopology::Sentinel { primary, .. } => write!(f, "/{primary}/{}", self.db),
            RedisTopology::Cluster(_) => Ok(()),
        }
    }
}

/// Where audit lines go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Audit {
    /// The sink.
    pub sink: AuditSink,
    /// What happens while lines cannot be written.
    pub on_full: OnFull,
    /// The file is rotated at this size; `None` = never by the gateway.
    pub rotate_bytes: Option<u64>,
    /// Rotated files that are kept.
    pub keep: u32,
}

/// The audit's sink.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuditSink {
    /// A file, appended to, mode 0600.
    File(PathBuf),
    /// Standard output.
    Stdout,
}

/// What happens while audit lines cannot be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnFull {
    /// Lines are dropped and counted; traffic goes on.
    Drop,
    /// Requests are refused with `AUDIT_UNAVAILABLE`.
    Refuse,
}

/// Bounds on bodies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The longest request body, in bytes.
    pub body_max_bytes: u64,
    /// The most memory for request bodies of guarded routes together, in bytes.
    pub buffer_memory_bytes: u64,
    /// Where longer bodies are kept; `None` = the system's temporary directory.
    pub spill_dir: Option<PathBuf>,
}

/// Bounds on the HTTP conversation with clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Http {
    /// The longest header section, in bytes.
    pub header_max_bytes: usize,
    /// The most header fields.
    pub header_max_count: usize,
    /// How long a header section may take.
    pub header_timeout: Duration,
    /// The longest silence in a request body.
    pub body_idle_timeout: Duration,
    /// The least average rate of a request body, in bytes per second, once `body_idle_timeout` has passed; 0 = no minimum.
    pub body_min_rate: u64,
    /// How long a client may take no bytes of its answer.
    pub write_stall_timeout: Duration,
    /// How long a connection may be idle between requests.
    pub keep_alive: Duration,
    /// The most connections at once, over all listeners.
    pub max_connections: usize,
    /// Whether HTTP/2 is served.
    pub h2: bool,
}

/// The memory's settings that hold for all upstreams.
#[derive(Debug)]
pub struct Memory {
    /// The longest life of an entry.
    pub ttl: Duration,
    /// The most entries.
    pub max_entries: u64,
    /// The longest refusal body that is remembered, in bytes.
    pub max_body_bytes: u64,
    /// The statuses that may be remembered.
    pub statuses: StatusSet,
    /// The secret that keys fingerprints.
    pub key_secret: Option<Secret>,
}

/// Jobs.
#[derive(Debug)]
pub struct Jobs {
    /// The longest input, in bytes.
    pub input_max_bytes: u64,
    /// The longest result that is kept, in bytes.
    pub result_max_bytes: u64,
    /// The most jobs of one upstream that wait.
    pub max_queued: u64,
    /// The most bytes of inputs and results that are kept; twice the longest input at least.
    pub max_bytes: u64,
    /// How long a job is kept after its end.
    pub retention: Duration,
    /// The most calls of the upstream for one job.
    pub max_attempts: u32,
    /// How long the second attempt waits; each further one waits twice as long.
    pub retry_first: Duration,
    /// The longest wait of an attempt.
    pub retry_max: Duration,
    /// Webhooks; `None` = off.
    pub webhooks: Option<Webhooks>,
}

/// Telling the end of jobs to addresses that callers name.
#[derive(Debug)]
pub struct Webhooks {
    /// What signs them.
    pub secret: Secret,
    /// Whether they may go to addresses that are not public.
    pub allow_private: bool,
}

/// What an upstream is, and so how it looks to callers and how the gateway drives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Adapter {
    /// POST to listed paths, answered at once.
    SyncFacade,
    /// The OpenAI wire, passed through.
    OpenAi,
    /// Azure Document Intelligence: submit, then poll.
    AzureDiFacade,
    /// POST, answered at once, for jobs.
    Classify,
    /// Azure Document Intelligence, for jobs.
    AzureDi,
    /// A service with a job API of its own, for jobs.
    GpuServerJob,
}

/// How a mounted upstream looks to callers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Facade {
    /// Requests that are answered at once.
    Sync,
    /// Operations, as Azure Document Intelligence has them.
    AzureDi,
    /// The OpenAI wire.
    OpenAi,
}

/// How the gateway drives an upstream to an outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drive {
    /// One POST, whose answer is the outcome.
    OnePost,
    /// A submit, and polls of the operation that it begins.
    SubmitAndPoll,
    /// A submit, and polls of a job API.
    JobApi,
}

impl Adapter {
    /// The name in the configuration.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::SyncFacade => "sync-facade",
            Self::OpenAi => "openai",
            Self::AzureDiFacade => "azuredi-facade",
            Self::Classify => "classify",
            Self::AzureDi => "azure-di",
            Self::GpuServerJob => "gpuserver-job",
        }
    }

    /// How a mounted upstream looks to callers.
    #[must_use]
    pub fn facade(self) -> Facade {
        match self {
            Self::SyncFacade | Self::Classify | Self::GpuServerJob => Facade::Sync,
            Self::AzureDiFacade | Self::AzureDi => Facade::AzureDi,
            Self::OpenAi => Facade::OpenAi,
        }
    }

    /// How the gateway drives it to an outcome.
    #[must_use]
    pub fn drive(self) -> Drive {
        match self {
            Self::SyncFacade | Self::OpenAi | Self::Classify => Drive::OnePost,
            Self::AzureDiFacade | Self::AzureDi => Drive::SubmitAndPoll,
            Self::GpuServerJob => Drive::JobApi,
        }
    }

    /// Whether it is for jobs: served when it is there, and mounted only when that is asked for.
    #[must_use]
    pub fn for_jobs(self) -> bool {
        matches!(self, Self::Classify | Self::AzureDi | Self::GpuServerJob)
    }
}

/// A service that the gateway calls.
#[derive(Debug)]
pub struct Upstream {
    /// Its name.
    pub name: UpstreamName,
    /// How it is driven.
    pub adapter: Adapter,
    /// Equal replicas; at least one. Scheme http or https, a host, optionally a path prefix without a trailing slash.
    pub base_urls: Vec<Uri>,
    /// The tenant-facing prefix, without a trailing slash; empty for `/`. `None` = reachable by jobs only.
    pub mount: Option<String>,
    /// Paths with the memory, as the upstream knows them. Empty with `all_paths`.
    pub sync_paths: Vec<String>,
    /// Every path is guarded (`serve --upstream`).
    pub all_paths: bool,
    /// Paths that are not listed are refused instead of passed through.
    pub strict_paths: bool,
    /// Hosts beside the replicas' own where an operation may be polled, in lower case; without a port, that of the scheme.
    pub poll_hosts: Vec<Authority>,
    /// How long the gateway waits from one poll of its own to the next, where the upstream does not say.
    pub poll_interval: Duration,
    /// How long submit and polls of one job may take together.
    pub operation_timeout: Duration,
    /// The credential that the gateway presents; the client's is removed either way.
    pub credential: Option<Credential>,
    /// Its pool.
    pub pool: Pool,
    /// Until the answer's head.
    pub timeout: Duration,
    /// Between bytes of a body, in either direction.
    pub idle_timeout: Duration,
    /// A live stream's total; `None` = no limit.
    pub stream_max: Option<Duration>,
    /// Until a connection is made.
    pub connect_timeout: Duration,
    /// TLS settings of its own.
    pub tls: ClientTls,
    /// The memory on this upstream; `None` = off.
    pub memory: Option<UpstreamMemory>,
}

/// A credential for an upstream.
#[derive(Debug)]
pub struct Credential {
    /// The header.
    pub header: HeaderName,
    /// Its value.
    pub value: Secret,
}

/// An upstream's pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    /// Requests at the upstream at once.
    pub max_in_flight: usize,
    /// Requests that may wait for a place.
    pub max_queue: usize,
    /// How long one may wait.
    pub queue_timeout: Duration,
    /// How long an unused connection to the upstream is kept; below the upstream's own limit, so that it is never the
    /// upstream that closes first.
    pub connection_idle: Duration,
}

/// TLS to a server that the gateway calls.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientTls {
    /// Trusted authorities, PEM; `None` = the system's.
    pub ca: Option<PathBuf>,
    /// The client certificate chain and key, PEM.
    pub client: Option<TlsFiles>,
}

/// Whether the memory answers or only watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Remembered refusals are replayed.
    Enforce,
    /// They are counted, and every request goes to the upstream.
    Observe,
}

/// Whose refusals a tenant is answered from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScopeRule {
    /// Everyone's.
    Fleet,
    /// Its own.
    Tenant,
    /// Those of its trust domain; a tenant in none has its own.
    Domains(Vec<TrustDomain>),
}

/// Tenants that share refusals.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrustDomain {
    /// Its name.
    pub name: Arc<str>,
    /// Its members.
    pub tenants: Vec<TenantId>,
}

/// The memory on one upstream.
pub struct UpstreamMemory {
    /// The rules that tell a verdict.
    pub profile: Arc<Profile>,
    /// The longest life of verdicts that a rule calls short.
    pub short_ttl: Duration,
    /// Whether verdicts that depend on parameters are remembered too.
    pub remember_keyed: bool,
    /// Whether the upstream's own word on a refusal counts.
    pub trust_refusal_class: bool,
    /// The tier of the account at the upstream; part of the key.
    pub tier: String,
    /// Answer or watch.
    pub mode: Mode,
    /// Whose refusals count.
    pub scope: ScopeRule,
    /// Part of the key; another value forgets all entries.
    pub generation: String,
    /// Whether file names are keyed or neutralised.
    pub filename: FileNameRule,
    /// Client headers that go upstream and are keyed, beside the fixed ones; lower case.
    pub key_headers: Vec<HeaderName>,
    /// Query parameters that are forwarded but not keyed.
    pub ignored_query: Vec<String>,
    /// Confirmations, life and ladder.
    pub life: LifePolicy,
    /// How long a request may wait for another attempt's verdict; zero = it does not wait.
    pub single_flight_wait: Duration,
    /// How long the answer may wait for its judgement and record.
    pub judge_wait: Duration,
    /// Whether `Cache-Control: no-store` and `private` forbid remembering.
    pub honor_cache_control: bool,
    /// The mass-refusal guard.
    pub guard: GuardPolicy,
    /// The loop breaker; `None` = off, and then nothing of it exists.
    pub loop_breaker: Option<LoopBreakerPolicy>,
}

impl std::fmt::Debug for UpstreamMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UpstreamMemory")
            .field("profile", &self.profile.name())
            .field("mode", &self.mode)
            .finish_non_exhaustive()
    }
}
