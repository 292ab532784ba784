//! The connection: one, long-lived, owned by one task that makes it, watches it and makes it anew. Calls share it; a call that
//! is cancelled or runs out of time gives up its answer and disturbs no other.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use redis::aio::{AsyncPushSender, ConnectionLike, MultiplexedConnection};
use redis::cluster::ClusterClientBuilder;
use redis::cluster_async::ClusterConnection;
use redis::sentinel::{SentinelClientBuilder, SentinelServerType};
use redis::{
    AsyncConnectionConfig, Client, ClientTlsConfig, Cmd, ConnectionAddr, ErrorKind, FromRedisValue,
    IntoConnectionInfo, Pipeline, ProtocolVersion, RedisConnectionInfo, RedisError, RedisFuture, RedisResult,
    ScriptInvocation, TlsCertificates, TlsMode, Value,
};
use secrecy::ExposeSecret;
use tokio::sync::Notify;

use super::breaker::Breaker;
use super::{RedisOptions, Topology};
use crate::{StoreError, StoreErrorKind};

/// How long a connection may take to be made, TLS and authentication included.
const CONNECT: Duration = Duration::from_secs(2);

/// How long one address of several may take, so that one that is silent leaves time for the others.
const CONNECT_ONE: Duration = Duration::from_secs(1);
/// How often one kind of trouble is logged: a line in that time, not one per request.
const QUIET: Duration = Duration::from_secs(60);

/// The connection and what is known of it.
pub(super) struct Link {
    current: Mutex<Option<Connection>>,
    breaker: Breaker,
    /// What was logged, and when.
    told: Mutex<BTreeMap<&'static str, Instant>>,
    /// Whether it was logged that the breaker opened.
    opening_told: AtomicBool,
}

/// A connection, and how its end is made known. A call that fails on a connection of before says nothing of the one now.
#[derive(Clone)]
pub(super) struct Connection {
    pub(super) wire: Wire,
    pub(super) broken: Arc<Notify>,
}

/// One server, or a cluster.
#[derive(Clone)]
pub(super) enum Wire {
    One(MultiplexedConnection),
    Many(ClusterConnection),
}

impl ConnectionLike for Wire {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        match self {
            Self::One(wire) => wire.req_packed_command(cmd),
            Self::Many(wire) => wire.req_packed_command(cmd),
        }
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        match self {
            Self::One(wire) => wire.req_packed_commands(pipeline, offset, count),
            Self::Many(wire) => wire.req_packed_commands(pipeline, offset, count),
        }
    }

    fn get_db(&self) -> i64 {
        match self {
            Self::One(wire) => wire.get_db(),
            Self::Many(wire) => wire.get_db(),
        }
    }
}

impl Wire {
    pub(super) async fn subscribe(&mut self, channel: &str) -> RedisResult<()> {
        match self {
            Self::One(wire) => wire.subscribe(channel).await,
            Self::Many(wire) => wire.subscribe(channel).await,
        }
    }
}

impl Link {
    pub(super) fn new() -> Self {
        Self {
            current: Mutex::default(),
            breaker: Breaker::default(),
            told: Mutex::default(),
            opening_told: AtomicBool::new(false),
        }
    }

    fn current(&self) -> MutexGuard<'_, Option<Connection>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set(&self, connection: Option<Connection>) {
        let connected = connection.is_some();
        *self.current() = connection;
        if connected {
            self.recovered();
        }
    }

    /// Whether calls are made at all.
    pub(super) fn is_up(&self) -> bool {
        !self.breaker.is_open() && self.current().is_some()
    }

    /// The probe came back in time: calls are made again.
    pub(super) fn recovered(&self) {
        if self.breaker.is_open() {
            self.breaker.close();
            if self.opening_told.swap(false, Ordering::Relaxed) {
                tracing::info!("the refusal store answers again");
            }
        }
    }

    /// Runs a script within `budget`.
    pub(super) async fn call<T: FromRedisValue>(
        &self,
        script: &ScriptInvocation<'_>,
        budget: Duration,
    ) -> Result<T, StoreError> {
        self.within(budget, async |mut wire| script.invoke_async(&mut wire).await).await
    }

    /// Runs commands within `budget`.
    pub(super) async fn ask<T: FromRedisValue>(
        &self,
        commands: &Pipeline,
        budget: Duration,
    ) -> Result<T, StoreError> {
        self.within(budget, async |mut wire| commands.query_async(&mut wire).await).await
    }

    async fn within<T>(
        &self,
        budget: Duration,
        work: impl AsyncFnOnce(Wire) -> RedisResult<T>,
    ) -> Result<T, StoreError> {
        if self.breaker.is_open() {
            return Err(StoreErrorKind::Busy
                .error("the refusal store does not answer, it is not asked until it does"));
        }
        let Some(Connection { wire, broken }) = self.current().clone() else {
            return Err(StoreErrorKind::Io.error("not connected to the refusal store"));
        };
        match tokio::time::timeout(budget, work(wire)).await {
            Ok(Ok(answer)) => {
                self.breaker.note(false);
                Ok(answer)
            }
            Ok(Err(error)) => Err(self.judged(&error, &broken)),
            Err(_) => {
                let error = format!("the refusal store did not answer within {} ms", budget.as_millis());
                self.tell("silence", &error);
                self.distrust();
                Err(StoreErrorKind::Io.error(error))
            }
        }
    }

    /// What an error of the server means that came within an answer.
    pub(super) fn failed(&self, error: &RedisError) -> StoreError {
        let broken = self.current().as_ref().map(|connection| Arc::clone(&connection.broken));
        self.judged(error, &broken.unwrap_or_default())
    }

    /// What a script reports that goes on in spite of it: judged like an error of its own.
    pub(super) fn reported(&self, text: &str) -> StoreError {
        self.failed(&RedisError::from((ErrorKind::Extension, "in a script", text.to_owned())))
    }

    fn judged(&self, error: &RedisError, broken: &Notify) -> StoreError {
        let failed = Failed::of(error);
        let store_error = failed.error(error);
        match failed.then {
            Then::Reconnect => {
                broken.notify_one();
                self.distrust();
            }
            Then::Distrust => {
                self.tell(failed.trouble, &store_error.message);
                self.distrust();
            }
            Then::GoOn => self.tell(failed.trouble, &store_error.message),
        }
        store_error
    }

    fn distrust(&self) {
        if self.breaker.note(true) && self.first_in_a_while("breaker") {
            self.opening_told.store(true, Ordering::Relaxed);
            tracing::warn!(
                "the refusal store fails again and again: until it answers, requests go on without the memory, and jobs and operations are refused"
            );
        }
    }

    fn tell(&self, trouble: &'static str, message: &str) {
        if self.first_in_a_while(trouble) {
            tracing::warn!(error = message, "trouble with the refusal store");
        }
    }

    /// Whether this was not logged lately.
    pub(super) fn first_in_a_while(&self, what: &'static str) -> bool {
        let mut told = self.told();
        let first = told.get(what).is_none_or(|at| at.elapsed() >= QUIET);
        if first {
            told.insert(what, Instant::now());
        }
        first
    }

    /// What comes after this is news, whenever it comes.
    pub(super) fn is_news_again(&self, what: &'static str) {
        self.told().remove(what);
    }

    fn told(&self) -> MutexGuard<'_, BTreeMap<&'static str, Instant>> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What follows from a failed call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Then {
    /// The connection is of no use, or leads to the wrong server.
    Reconnect,
    /// It counts against the server.
    Distrust,
    /// This call alone.
    GoOn,
}

/// What an error means.
pub(super) struct Failed {
    pub(super) kind: StoreErrorKind,
    pub(super) then: Then,
    /// What it is about, for the log.
    pub(super) trouble: &'static str,
    cure: &'static str,
}

/// What the first word of a server's message means; it may come out of a script, or be one of several in a pipeline.
const WORDS: [(&str, Failed); 13] = {
    use StoreErrorKind::{Corrupt, Full, Io};
    use Then::{Distrust, GoOn, Reconnect};
    const fn of(kind: StoreErrorKind, then: Then, trouble: &'static str, cure: &'static str) -> Failed {
        Failed { kind, then, trouble, cure }
    }
    const REPLICA: &str = "; the server is a replica: with Sentinel the new primary is looked up";
    const LOGIN: &str = "; check `username` and `password`";
    const CLUSTER: &str = "; the cluster is not complete";
    [
        ("OOM", of(Full, GoOn, "memory", "; raise `maxmemory` or lower `max_entries`")),
        ("MISCONF", of(Full, GoOn, "saving", "; the server cannot save and takes no writes")),
        ("NOREPLICAS", of(Full, GoOn, "saving", "; the server lacks replicas and takes no writes")),
        ("READONLY", of(Io, Reconnect, "replica", REPLICA)),
        ("MASTERDOWN", of(Io, Reconnect, "replica", REPLICA)),
        ("NOAUTH", of(Io, Reconnect, "login", LOGIN)),
        ("WRONGPASS", of(Io, Reconnect, "login", LOGIN)),
        ("NOPERM", NO_RIGHT),
        ("LOADING", of(Io, Distrust, "loading", "; the server is loading its data")),
        ("BUSY", of(Io, Distrust, "busy", "; a script runs too long on the server")),
        ("CLUSTERDOWN", of(Io, Distrust, "cluster", CLUSTER)),
        ("TRYAGAIN", of(Io, Distrust, "cluster", CLUSTER)),
        ("WRONGTYPE", of(Corrupt, GoOn, "prefix", "; the key prefix is in use by others")),
    ]
};

/// How servers say what a script may not do: Redis up to 7.0, and Redis 7.2 and Valkey.
const OF_SCRIPTS: [&str; 2] = ["user executing the script can't", "ACL failure in script"];

const NO_RIGHT: Failed = Failed {
    kind: StoreErrorKind::Io,
    then: Then::GoOn,
    trouble: "permission",
    cure: "; grant the user what docs/operating.md lists",
};

impl Failed {
    pub(super) fn of(error: &RedisError) -> &'static Self {
        const PREFIX: Failed = Failed {
            kind: StoreErrorKind::Corrupt,
            then: Then::GoOn,
            trouble: "prefix",
            cure: "; the key prefix may be in use by others",
        };
        const OTHER: Failed =
            Failed { kind: StoreErrorKind::Io, then: Then::GoOn, trouble: "other", cure: "" };
        const LOST: Failed =
            Failed { kind: StoreErrorKind::Io, then: Then::Reconnect, trouble: "connection", cure: "" };
        const LOGIN: Failed = Failed {
            kind: StoreErrorKind::Io,
            then: Then::Reconnect,
            trouble: "login",
            cure: "; check `username` and `password`",
        };
        let text = error.to_string();
        let said = |word: &str| text.split(|c: char| !c.is_ascii_uppercase()).any(|said| said == word);
        if let Some((_, failed)) = WORDS.iter().find(|(word, _)| error.code() == Some(*word)) {
            return failed;
        }
        // what a script may not do comes without a word of its own
        if OF_SCRIPTS.iter().any(|words| text.contains(words)) {
            return &NO_RIGHT;
        }
        match error.kind() {
            ErrorKind::Server(_) | ErrorKind::Extension => {
                WORDS.iter().find(|(word, _)| said(word)).map_or(&OTHER, |(_, failed)| failed)
            }
            ErrorKind::UnexpectedReturnType => &PREFIX,
            ErrorKind::AuthenticationFailed => &LOGIN,
            _ => &LOST,
        }
    }

    pub(super) fn error(&self, error: &RedisError) -> StoreError {
        self.kind.error(format!("the refusal store: {error}{}", self.cure))
    }
}

/// Makes a connection. Whatever the server pushes goes to `hear`. Of several sentinels another one is asked first at each
/// `attempt`, so that one that does not answer does not keep the others from being asked.
pub(super) async fn connect(
    options: &RedisOptions,
    attempt: usize,
    hear: impl AsyncPushSender,
) -> RedisResult<Wire> {
    let connecting = async {
        match &options.topology {
            Topology::One { host, port } => {
                let client = client(options, address(options, host, *port))?;
                connect_one(&client, hear).await
            }
            Topology::Sentinel { sentinels, primary } => {
                let (before, from) = sentinels.split_at(attempt % sentinels.len().max(1));
                let addresses = from.iter().chain(before).map(|(host, port)| address(options, host, *port));
                let mut builder = SentinelClientBuilder::new(addresses, primary, SentinelServerType::Master)?
                    .set_client_to_redis_protocol(ProtocolVersion::RESP3)
                    .set_client_to_redis_db(options.db);
                if options.tls {
                    builder = builder.set_client_to_redis_tls_mode(TlsMode::Secure);
                    builder = builder.set_client_to_redis_certificates(certificates(options));
                    builder = builder.set_client_to_sentinel_certificates(certificates(options));
                }
                if let Some(username) = &options.username {
                    builder = builder.set_client_to_redis_username(username);
                }
                if let Some(password) = &options.password {
                    builder = builder.set_client_to_redis_password(password.expose_secret());
                }
                let client = builder.build()?.async_get_client().await?;
                connect_one(&client, hear).await
            }
            Topology::Cluster { nodes } => {
                let nodes = nodes.iter().map(|(host, port)| address(options, host, *port));
                let mut builder = ClusterClientBuilder::new(nodes)
                    .use_protocol(ProtocolVersion::RESP3)
                    .push_sender(hear)
                    .connection_timeout(CONNECT_ONE)
                    // each call has its own, much shorter
                    .response_timeout(Duration::from_secs(10))
                    .overall_response_timeout(Some(Duration::from_secs(30)));
                if options.tls {
                    builder = builder.tls(TlsMode::Secure).certs(certificates(options));
                }
                if let Some(username) = &options.username {
                    builder = builder.username(username);
                }
                if let Some(password) = &options.password {
                    builder = builder.password(password.expose_secret());
                }
                Ok(Wire::Many(builder.build()?.get_async_connection().await?))
            }
        }
    };
    match tokio::time::timeout(CONNECT, connecting).await {
        Ok(connected) => connected,
        Err(_) => Err(RedisError::from((ErrorKind::Io, "no connection within two seconds"))),
    }
}

async fn connect_one(client: &Client, hear: impl AsyncPushSender) -> RedisResult<Wire> {
    let config = AsyncConnectionConfig::new()
        .set_push_sender(hear)
        .set_connection_timeout(Some(CONNECT))
        // each call has its own, much shorter
        .set_response_timeout(Some(Duration::from_secs(30)));
    Ok(Wire::One(client.get_multiplexed_async_connection_with_config(&config).await?))
}

fn client(options: &RedisOptions, address: ConnectionAddr) -> RedisResult<Client> {
    let mut redis = RedisConnectionInfo::default()
        .set_protocol(ProtocolVersion::RESP3)
        .set_db(options.db)
        // not every server has it, so the documented rights cannot name it; for Sentinel and a cluster there is no such setting
        .set_skip_set_lib_name();
    if let Some(username) = &options.username {
        redis = redis.set_username(username);
    }
    if let Some(password) = &options.password {
        redis = redis.set_password(password.expose_secret());
    }
    let info = address.into_connection_info()?.set_redis_settings(redis);
    if options.tls { Client::build_with_tls(info, certificates(options)) } else { Client::open(info) }
}

fn address(options: &RedisOptions, host: &str, port: u16) -> ConnectionAddr {
    let host = host.to_owned();
    if options.tls {
        ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None }
    } else {
        ConnectionAddr::Tcp(host, port)
    }
}

fn certificates(options: &RedisOptions) -> TlsCertificates {
    let client_tls = options.client_cert.as_ref().map(|(cert, key)| ClientTlsConfig {
        client_cert: cert.clone(),
        client_key: key.expose_secret().as_bytes().to_vec(),
    });
    TlsCertificates { client_tls, root_cert: options.ca.clone() }
}
