//! The configuration as people write it: every key may be missing, texts are not parsed yet, and every value knows its
//! place. The comments on the fields are the descriptions in the JSON schema and in `docs/config.md`.

use std::path::PathBuf;

use schemars::JsonSchema;

pub(crate) mod near;
pub(crate) mod read;
mod values;

use crate::problem::Place;
use crate::tree::{Node, Value};
use read::{At, Key, OneOrMany, Read, Reader, Share, Whole};

pub use values::{ByStatus, Generation, Listen, SecretRef};

/// A block of keys: the struct, its schema, and its reader. `later` names keys that are known but not supported yet.
macro_rules! block {
    ($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* } later [$($later:ident),*]) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default, JsonSchema)]
        #[schemars(deny_unknown_fields)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: Option<At<$type>>,)*
        }

        impl Read for $name {
            const KEYS: &'static [Key] =
                &[$(Key { name: stringify!($field), inside: <$type as Read>::KEYS }),*];

            fn read(node: &Node, place: &Place, reader: &mut Reader<'_>) -> Option<Self> {
                let mut block = Self::default();
                let later = &[$(stringify!($later)),*];
                reader.block(node, place, Self::KEYS, later, |key, node, place, reader| {
                    $(if key == stringify!($field) {
                        let value = <$type as Read>::read(node, place, reader);
                        block.$field = value.map(|value| At { value, place: place.clone() });
                    })*
                })?;
                Some(block)
            }
        }
    };
}

/// A closed list of words. `later` names words that are known but not supported yet.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$word_doc:meta])* $variant:ident $word:literal,)* } later [$($later:literal),*]) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema)]
        pub enum $name { $($(#[$word_doc])* #[schemars(rename = $word)] $variant,)* }

        impl Read for $name {
            fn read(node: &Node, place: &Place, reader: &mut Reader<'_>) -> Option<Self> {
                let words: &[&str] = &[$($word),*];
                let Value::Text { text, .. } = &node.value else {
                    reader.wrong(node, place, "a word", &format!("write one of {}", words.join(", ")));
                    return None;
                };
                match text.as_str() {
                    $($word => return Some(Self::$variant),)*
                    $($later => {
                        let cause = format!("`{}` is not supported by this version yet", $later);
                        reader.found.error(place, cause, format!("supported are {}", words.join(", ")));
                    })*
                    _ => {
                        let what = "what may stand here";
                        let later: &[&str] = &[$($later),*];
                        let all = words.iter().chain(later).copied();
                        reader.found.error(place, "this word is not known here", near::cure(text, all, what));
                    }
                }
                None
            }
        }
    };
}

pub(crate) mod profile;

block! {
    /// The configuration of a Nevertwice gateway. All files and folders that are named in it are relative to the folder of the configuration file.
    Config {
        /// Where tenants connect: one address or a list of them. An address is `IP:PORT`, with an IPv6 address in brackets (and then in quotes, because of YAML), or a block `{addr, tls}`. Port 0 lets the system choose. HTTP/1.1 and HTTP/2 are served on the same address. Default `127.0.0.1:8080`.
        listen: OneOrMany<Listen>,
        /// TLS for every address in `listen` that has none of its own.
        tls: TlsFiles,
        /// Who is asking.
        identity: Identity,
        /// The callers of the gateway. Without tenants and without `identity.tenant_header` everyone is the one tenant `default`.
        tenants: Vec<At<Tenant>>,
        /// The admin API and metrics, on a listener of their own. Without this block there is none.
        admin: Admin,
        /// Where remembered refusals live.
        store: Store,
        /// Where audit lines go, one JSON object per request. Without this block nowhere.
        audit: Audit,
        /// Bounds on request bodies.
        limits: Limits,
        /// Bounds on the HTTP conversation with clients.
        http: Http,
        /// How long requests may go on after a signal to stop, in seconds.
        drain_s: Whole,
        /// The refusal memory. Without this block, or with `enabled: false`, it does not exist.
        negative_cache: NegativeCache,
        /// Files with profiles of one's own (`profiles/README.md` has the format). One with the name of a profile of this program takes its place. Default none.
        profiles: Vec<At<PathBuf>>,
        /// What links to this gateway begin with, as callers see it: `https://HOST`, perhaps with a port and a path prefix. Without it they are made of the `Host` of the request, or of what a proxy in `trusted_hops` says of it.
        public_base_url: String,
        /// Addresses of one's own proxies, as in `[10.0.0.0/8, 192.0.2.7]`: from them alone `X-Forwarded-Host` and `X-Forwarded-Proto` are believed. Default none.
        trusted_hops: Vec<At<String>>,
        /// Jobs: documents that are handed over, and whose outcome is asked for later. They are served when this block is there, even empty (`jobs: {}`), or when an upstream has the adapter `classify`, `azure-di` or `gpuserver-job`.
        jobs: Jobs,
        /// The services that the gateway calls; at least one. Required.
        upstreams: Vec<At<Upstream>>,
    } later []
}

block! {
    /// Documents that are handed over, and whose outcome is asked for later.
    Jobs {
        /// The longest document of a job, in bytes; a longer one is answered 413. `limits.body_max_bytes` holds beside it.
        input_max_bytes: Whole,
        /// The longest result that is kept, in bytes; a job with a longer one fails.
        result_max_bytes: Whole,
        /// The most jobs of one upstream that wait; more are answered 503. Where there are several tenants, one has at most half of it.
        max_queued: Whole,
        /// The most bytes of inputs and results that are kept, of all upstreams together; where it is full, jobs are answered 503 until there is room.
        /// At least twice `input_max_bytes`. Where there are several tenants, one has at most half of it. On Redis it is of the whole fleet: write the same in all replicas.
        max_bytes: Whole,
        /// How long a job can be asked for after it came to its end, in seconds. One that never does is kept so long from its submit, and 7 days at
        /// least.
        retention_s: Whole,
        /// The most calls of the upstream for one job. Another one follows only where the last may end otherwise the next time.
        max_attempts: Whole,
        /// How long the second attempt waits, in milliseconds; each further one waits twice as long.
        retry_first_ms: Whole,
        /// The longest wait for an attempt, in milliseconds.
        retry_max_ms: Whole,
        /// Calls that tell the end of a job to an address that its owner named. Without this block there are none.
        webhooks: Webhooks,
    } later []
}

block! {
    /// Calls that tell the end of a job.
    Webhooks {
        /// What signs them (Standard Webhooks): `whsec_` and base64, or any other text, whose bytes sign then; at least 24 bytes. Required.
        secret: SecretRef,
        /// Whether they may go to addresses that are not public, such as those of one's own network. Default `false`.
        allow_private: bool,
    } later []
}

block! {
    /// An address with settings of its own.
    ListenBlock {
        /// The address, `IP:PORT`. Required.
        addr: String,
        /// TLS on this address.
        tls: TlsFiles,
    } later []
}

block! {
    /// A certificate chain and its key.
    TlsFiles {
        /// File with the certificate chain in PEM, leaf first. Required.
        cert: PathBuf,
        /// File with the private key in PEM. Required.
        key: PathBuf,
    } later []
}

block! {
    /// Who is asking.
    Identity {
        /// The header in which a proxy of one's own names the tenant. Whoever reaches the gateway can set it: use it only where nothing but that proxy can reach the gateway.
        tenant_header: String,
    } later []
}

block! {
    /// A caller of the gateway. It needs a `key`, a `key_sha256` or `identity.tenant_header`.
    Tenant {
        /// Its name: 1 to 64 letters, digits, `_`, `-` and `.`. Required. Two names may not differ in letter case alone.
        id: String,
        /// Its key, presented as `Authorization: Bearer`, `api-key`, `x-api-key` or `Ocp-Apim-Subscription-Key`. Only the hash is kept.
        key: SecretRef,
        /// Instead of `key`: the SHA-256 of the key, 64 hex digits (`printf %s KEY | sha256sum`).
        key_sha256: String,
        /// The names of the upstreams that it may call; `["*"]` is all of them. Default `["*"]`.
        routes: Vec<At<String>>,
    } later [limits]
}

block! {
    /// The admin listener.
    Admin {
        /// Its address. Default `127.0.0.1:9090`.
        listen: String,
        /// The token, presented as `Authorization: Bearer`. Required when the address is not loopback.
        token: SecretRef,
    } later []
}

block! {
    /// Where remembered refusals live.
    Store {
        /// An embedded database, the default: one for each process.
        embedded: Embedded,
        /// A Redis or Valkey that all replicas of the gateway share, instead of `embedded`.
        redis: Redis,
    } later []
}

block! {
    /// An embedded database.
    Embedded {
        /// Its folder; created when missing. Default `./nevertwice-data`.
        path: PathBuf,
    } later []
}

block! {
    /// A Redis or Valkey that all replicas of the gateway share.
    Redis {
        /// Its address. Required. `redis://HOST:PORT/DB` for one server, `redis-sentinel://HOST:PORT,HOST:PORT/PRIMARY/DB` for Sentinel, `redis-cluster://HOST:PORT,HOST:PORT` for a cluster; with TLS `rediss://`, `rediss-sentinel://`, `rediss-cluster://`. Without a port 6379, for sentinels 26379; without a database 0. An IPv6 address in brackets. No user name, no password.
        url: String,
        /// What all keys begin with: 1 to 48 letters, digits, `_`, `-` and `.`. Gateways with the same prefix share a memory. Default `nevertwice`.
        prefix: String,
        /// How long a look-up may take, in milliseconds; then the request goes up without the memory.
        read_ms: Whole,
        /// How long a record may take, in milliseconds; then the refusal is released and written later.
        write_ms: Whole,
        /// The ACL user of the servers; needs `password`. Without it, the default user.
        username: String,
        /// The password of the servers. Sentinels are asked without one.
        password: SecretRef,
        /// TLS to the servers, and to the sentinels; needs a URL with `rediss`.
        tls: ClientTls,
    } later []
}

words! {
    /// What happens while audit lines cannot be written.
    OnFull {
        /// Lines are dropped and counted; traffic goes on.
        Drop "drop",
        /// Requests are refused, for those who must have every line.
        Refuse "refuse",
    } later []
}

block! {
    /// Where audit lines go: to a file or to standard output.
    Audit {
        /// A file that is appended to. Unwritable at start, the gateway does not start.
        file: PathBuf,
        /// Standard output instead of a file. Default `false`.
        stdout: bool,
        /// The file is rotated when it has this many bytes. Without it never.
        rotate_bytes: Whole,
        /// How many rotated files are kept.
        keep: Whole,
        /// What happens while lines cannot be written and there is no more room to keep them: `drop` counts them and goes on,
        /// `refuse` answers 503. Default `drop`.
        on_full: OnFull,
    } later []
}

block! {
    /// Bounds on request bodies.
    Limits {
        /// The longest request body, in bytes; a longer one is answered 413.
        body_max_bytes: Whole,
        /// The most memory for request bodies together, in bytes; what does not fit is kept in unlinked files.
        buffer_memory_bytes: Whole,
        /// The folder of those files. Default: the system's folder for temporary files.
        spill_dir: PathBuf,
    } later []
}

block! {
    /// Bounds on the HTTP conversation with clients.
    Http {
        /// The longest header section, in bytes; a longer one is answered 431.
        header_max_bytes: Whole,
        /// The most header fields.
        header_max_count: Whole,
        /// How long a header section may take, in milliseconds.
        header_timeout_ms: Whole,
        /// The longest silence in a request body, in milliseconds.
        body_idle_timeout_ms: Whole,
        /// The least average rate of a request body, in bytes per second, once `body_idle_timeout_ms` has passed; 0 is no minimum.
        body_min_rate_bytes_s: Whole,
        /// How long a client may take no bytes of its answer, in milliseconds.
        write_stall_timeout_ms: Whole,
        /// How long a connection may be idle between requests, in milliseconds.
        keep_alive_timeout_ms: Whole,
        /// The most client connections at once, over all addresses.
        max_connections: Whole,
        /// Whether HTTP/2 is served. Default `true`.
        h2: bool,
    } later []
}

block! {
    /// The refusal memory.
    NegativeCache {
        /// Whether there is a memory. Default `false`.
        enabled: bool,
        /// The longest life of an entry, in seconds.
        ttl_s: Whole,
        /// The most entries; the oldest go first.
        max_entries: Whole,
        /// The longest refusal body that is remembered, in bytes. A refusal with a longer one is not remembered at all, unless the upstream's profile says what may be left out of it.
        max_body_bytes: Whole,
        /// The 4xx statuses that may be remembered. 401, 403, 404, 408 and 429 are refused, because they never speak of the document. To switch the memory off use `enabled: false`, not an empty list. Default `[400, 413, 415, 422]`.
        statuses: Vec<At<Whole>>,
        /// A secret that keys fingerprints, so that nobody without it can compute one. Another secret forgets all entries.
        key_secret: SecretRef,
    } later []
}

words! {
    /// How the gateway drives an upstream.
    Adapter {
        /// A service that answers at once: POST to `sync_paths`, with the memory.
        SyncFacade "sync-facade",
        /// A service that speaks the OpenAI wire. Every path is passed through: with `mount: /llm` the call `/llm/v1/models` goes to `base_url` + `/v1/models`, so `base_url` is given without `/v1`. The memory is off.
        OpenAi "openai",
        /// Azure Document Intelligence as its clients know it: submit, then poll. Submits have the memory.
        AzureDiFacade "azuredi-facade",
        /// A service that answers at once, for jobs.
        Classify "classify",
        /// Azure Document Intelligence, for jobs.
        AzureDi "azure-di",
        /// A service with a job API of its own, for jobs.
        GpuServerJob "gpuserver-job",
    } later []
}

block! {
    /// A service that the gateway calls.
    Upstream {
        /// Its name: 1 to 64 letters, digits, `_`, `-` and `.`. Required. Two names may not differ in letter case alone.
        name: String,
        /// How it is driven. Default `sync-facade`.
        adapter: Adapter,
        /// Its address, `http://` or `https://`, host, port and perhaps a path prefix; or a list of equal replicas. Required. No user name, query or fragment; an IPv6 address in brackets.
        base_url: OneOrMany<String>,
        /// The prefix under which tenants reach it; what follows the prefix is the upstream's path. `/` is allowed for one upstream. Where one mount lies inside another, the longest wins. Default: `/` and the name; none for `classify`, `azure-di` and `gpuserver-job`, which are reachable by jobs only then.
        mount: String,
        /// The paths with the memory, as the upstream knows them (`sync-facade`, and `classify` with a `mount`). They are compared exactly. Other paths pass through without it.
        sync_paths: Vec<At<String>>,
        /// Whether paths that are not in `sync_paths` are refused instead of passed through. Default `false`.
        strict_paths: bool,
        /// Hosts beside those of `base_url` where an operation of Azure Document Intelligence may be polled, as `HOST` or `HOST:PORT`: for services that answer a submit with the address of another host. Without a port, that of the scheme. Default none.
        poll_hosts: Vec<At<String>>,
        /// How long the gateway waits from one poll to the next in a job, in milliseconds, where the upstream does not say. For adapters that poll.
        poll_interval_ms: Whole,
        /// How long submit and polls of one job may take together, in milliseconds. For adapters that poll.
        operation_timeout_ms: Whole,
        /// What the gateway presents to the upstream. With it, or where tenants have keys, the client's own credentials are removed.
        credential: Credential,
        /// How many requests go to it at once.
        pool: Pool,
        /// How long it may take until the head of its answer, in milliseconds.
        timeout_ms: Whole,
        /// The longest silence in a body, in either direction, in milliseconds.
        idle_timeout_ms: Whole,
        /// How long a connection may take, in milliseconds.
        connect_timeout_ms: Whole,
        /// The longest life of a streamed answer, in milliseconds. Without it there is no limit.
        stream_max_ms: Whole,
        /// TLS to this upstream.
        tls: ClientTls,
        /// The memory on this upstream. On for every adapter but `openai`, and for `openai` where this block stands, when the top level's `negative_cache.enabled` is true.
        negative_cache: UpstreamCache,
    } later [health, breaker, proxy]
}

block! {
    /// What the gateway presents to an upstream.
    Credential {
        /// The header. Required.
        header: String,
        /// Its whole value, as in `Bearer ...`. Required.
        value: SecretRef,
    } later []
}

block! {
    /// How many requests go to an upstream at once.
    Pool {
        /// The most requests at the upstream at once.
        max_in_flight: Whole,
        /// The most requests that may wait for a place; 0 is none.
        max_queue: Whole,
        /// How long one may wait, in milliseconds.
        queue_timeout_ms: Whole,
        /// How long an unused connection to the upstream is kept, in milliseconds. Below the upstream's own limit the upstream never closes first; a lower limit of an upstream is learned from what it says and does.
        idle_connection_ms: Whole,
    } later []
}

block! {
    /// TLS to a server that the gateway calls.
    ClientTls {
        /// File with the authorities to trust, in PEM. Default: the system's.
        ca: PathBuf,
        /// File with the client certificate chain in PEM; needs `client_key`.
        client_cert: PathBuf,
        /// File with its private key in PEM; needs `client_cert`.
        client_key: PathBuf,
    } later []
}

words! {
    /// Whether the memory answers or only watches.
    Mode {
        /// Remembered refusals are replayed.
        Enforce "enforce",
        /// What would have been replayed is counted, and every request goes to the upstream.
        Observe "observe",
    } later []
}

words! {
    /// Whose refusals a tenant is answered from.
    Scope {
        /// Everyone's.
        Fleet "fleet",
        /// Its own.
        Tenant "tenant",
        /// Those of its trust domain; a tenant in none has its own.
        Domain "domain",
    } later []
}

words! {
    /// Whether file names are part of the key.
    FileName {
        /// The name of a file in a form is part of the key.
        Keyed "keyed",
        /// Only its extension is, and the forwarded name becomes `document.EXT`: for callers that draw a new name for every attempt.
        Neutral "neutral",
    } later []
}

block! {
    /// The memory on one upstream.
    UpstreamCache {
        /// Whether this upstream has the memory. Default `true`, but for `openai` only where this block stands.
        enabled: bool,
        /// The rules that tell a verdict on the document from other refusals. `status`: every status in `statuses`. Any other: what the rules of the profile know, and nothing else. Default `azure-document-intelligence` for `azuredi-facade` and `azure-di`, `status` for `sync-facade`, `classify` and `gpuserver-job`; for `openai` the one of the base URL's host, else the one called as this upstream is, and an error where there is none.
        profile: String,
        /// Whether the memory answers or only watches. Default `enforce`.
        mode: Mode,
        /// Whose refusals a tenant is answered from. Default `fleet`.
        scope: Scope,
        /// The groups of tenants that share refusals, with `scope: domain`.
        trust_domains: Vec<At<TrustDomain>>,
        /// Part of the key; another value forgets all entries of this upstream at once. A text or a number. Default empty.
        generation: Generation,
        /// Whether file names are part of the key. Default `keyed`.
        filename: FileName,
        /// Client headers that go upstream and are part of the key, beside content-type, content-encoding, content-language and accept. No other client header goes upstream on a guarded path. Default none.
        key_headers: Vec<At<String>>,
        /// Query parameters that go upstream but are not part of the key. Default none.
        ignored_query: Vec<At<String>>,
        /// The longest life of an entry of this upstream, in seconds. Default: the top level's.
        ttl_s: Whole,
        /// The longest life of entries with these statuses, in seconds, as in `{413: 3600}`: for refusals that are lifted sooner than others, such as a limit on size. Each status is one of `negative_cache.statuses`, each number at most `ttl_s`. They cap `ttl_ladder` too. Default none.
        status_ttl_s: ByStatus,
        /// Lives that begin short and climb with every fresh refusal, up to `ttl_s`. Without this block every life is `ttl_s`.
        ttl_ladder: Ladder,
        /// The longest life of entries that a rule of the profile calls short, in seconds, when they are recorded.
        short_ttl_s: Whole,
        /// Whether verdicts that depend on parameters are remembered too, where the key holds all that they depend on (`docs/refusal-memory.md` says what it holds). Default `false`.
        remember_keyed: bool,
        /// Whether the upstream's own word on a refusal counts: the header `X-Refusal-Class` with `content`, or with `request`, `transient` and so on for what is no verdict. Default `false`.
        trust_refusal_class: bool,
        /// The tier of the account at the upstream: part of the key, so that a bigger plan leaves old entries behind. A text or a number. Default empty.
        tier: Generation,
        /// How many refusals with the same status and rule it takes before anything is remembered.
        confirmations: Whole,
        /// How long a request may wait for the outcome of another attempt at the same document, in milliseconds; 0 switches waiting off.
        single_flight_wait_ms: Whole,
        /// How long a refusal may be held back until it is judged and recorded, in milliseconds.
        judge_wait_ms: Whole,
        /// Whether `Cache-Control: no-store` and `private` on a refusal forbid remembering it. Default `true`.
        honor_cache_control: bool,
        /// Stops recording when an upstream suddenly refuses nearly everything.
        mass_refusal_guard: Guard,
        /// Stops loops over documents that this upstream answers with the same 5xx or 429 again and again. It is no part of the memory: nothing is remembered.
        loop_breaker: LoopBreaker,
    } later []
}

block! {
    /// Tenants that share refusals.
    TrustDomain {
        /// Its name, made as tenants' names are. Required.
        name: String,
        /// The ids of its tenants; a tenant is in at most one domain. Required.
        tenants: Vec<At<String>>,
    } later []
}

block! {
    /// Lives that begin short and climb.
    Ladder {
        /// The first life, in seconds; at most `ttl_s`.
        first_s: Whole,
        /// What each fresh refusal multiplies the life by.
        factor: Whole,
    } later []
}

block! {
    /// Stops recording when an upstream that used to accept suddenly refuses nearly everything.
    Guard {
        /// Whether it watches. Default `true`.
        enabled: bool,
        /// How many distinct refused documents it takes.
        distinct: Whole,
        /// Within how many seconds.
        window_s: Whole,
        /// Which part of all distinct judged documents must be exceeded. Above 0, at most 1. Default 0.9.
        share: Share,
    } later []
}

block! {
    /// Stops loops over documents that an upstream answers with the same 5xx or 429 again and again.
    LoopBreaker {
        /// Whether it is on. Default `false`.
        enabled: bool,
        /// How many equal failures of one request it takes. 502, 503, 504 and answers that say when to try again do not count.
        failures: Whole,
        /// Within how many seconds.
        window_s: Whole,
        /// How long the upstream is spared that request, in seconds; each caller gets the upstream's last answer meanwhile. Then one request goes up again.
        hold_s: Whole,
        /// Whether failures that one tenant saw suffice where tenants share refusals (`scope: fleet` or `domain`). Default `false`: it takes two tenants.
        one_tenant_suffices: bool,
    } later []
}
