//! The connection: one, long-lived, owned by one task that makes it, watches it and makes it anew. Calls share it; a call that
//! is cancelled or runs out of time gives up its answer and disturbs no other.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::cluster::ClusterClientBuilder;
use redis::cluster_async::ClusterConnection;
use redis::sentinel::{SentinelClientBuilder, SentinelServerType};
use redis::{
    AsyncConnectionConfig, Client, ClientTlsConfig, Cmd, ConnectionAddr, ErrorKind, FromRedisValue,
    IntoConnectionInfo, Pipeline, ProtocolVersion, PushInfo, RedisConnectionInfo, RedisError, RedisFuture,
    RedisResult, ScriptInvocation, ServerErrorKind, TlsCertificates, TlsMode, Value,
};
use secrecy::ExposeSecret;
use tokio::sync::{Notify, mpsc};

use super::breaker::Breaker;
use super::{RedisOptions, Topology};
use crate::{StoreError, StoreErrorKind};

/// How long a connection may take to be made, TLS and authentication included.
const CONNECT: Duration = Duration::from_secs(2);

/// The connection and what is known of it.
pub(super) struct Link {
    current: Mutex<Option<Wire>>,
    breaker: Breaker,
    /// Set when a call found that the connection is of no use.
    pub(super) broken: Notify,
    /// Whether the trouble with the server has been logged: one line, not one per request.
    told: AtomicBool,
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
            broken: Notify::new(),
            told: AtomicBool::new(false),
        }
    }

    /// The connection, while there is one.
    pub(super) fn wire(&self) -> Option<Wire> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn set(&self, wire: Option<Wire>) {
        let connected = wire.is_some();
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = wire;
        if connected {
            self.breaker.close();
        }
    }

    /// Whether calls are made at all.
    pub(super) fn is_up(&self) -> bool {
        !self.breaker.is_open() && self.wire().is_some()
    }

    /// The probe came back in time: calls are made again.
    pub(super) fn recovered(&self) {
        self.breaker.close();
        if self.told.swap(false, Ordering::Relaxed) {
            tracing::info!("the refusal store answers again");
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
        let Some(wire) = self.wire() else {
            return Err(StoreErrorKind::Io.error("not connected to the refusal store"));
        };
        match tokio::time::timeout(budget, work(wire)).await {
            Ok(Ok(answer)) => {
                self.breaker.note(false);
                Ok(answer)
            }
            Ok(Err(error)) => Err(self.failed(&error)),
            Err(_) => {
                let error = format!("the refusal store did not answer within {} ms", budget.as_millis());
                self.trouble(&error);
                Err(StoreErrorKind::Io.error(error))
            }
        }
    }

    /// What an error of the server, or on the way to it, means.
    pub(super) fn failed(&self, error: &RedisError) -> StoreError {
        let failed = Failed::of(error);
        let store_error = failed.kind.error(format!("the refusal store: {error}{}", failed.cure));
        match failed.then {
            Then::Reconnect => {
                self.trouble(&store_error.message);
                self.broken.notify_one();
            }
            Then::Distrust => self.trouble(&store_error.message),
            Then::GoOn => self.tell(&store_error.message),
        }
        store_error
    }

    fn trouble(&self, message: &str) {
        if self.breaker.note(true) {
            tracing::warn!(
                "the refusal store fails again and again, requests go on without it until it answers"
            );
        }
        self.tell(message);
    }

    fn tell(&self, message: &str) {
        if !self.told.swap(true, Ordering::Relaxed) {
            tracing::warn!(error = message, "trouble with the refusal store");
        }
    }
}

/// What follows from a failed call.
enum Then {
    /// The connection is of no use, or leads to the wrong server.
    Reconnect,
    /// It counts against the server.
    Distrust,
    /// This call alone.
    GoOn,
}

struct Failed {
    kind: StoreErrorKind,
    then: Then,
    cure: &'static str,
}

impl Failed {
    fn of(error: &RedisError) -> Self {
        let of = |kind, then, cure| Self { kind, then, cure };
        let io = StoreErrorKind::Io;
        if let ErrorKind::Server(server) = error.kind() {
            return match server {
                ServerErrorKind::ReadOnly | ServerErrorKind::MasterDown => of(
                    io,
                    Then::Reconnect,
                    "; the server is a replica: with Sentinel the new primary is looked up",
                ),
                ServerErrorKind::BusyLoading => of(io, Then::Distrust, "; the server is loading its data"),
                ServerErrorKind::NoPerm => {
                    of(io, Then::GoOn, "; grant the user what docs/operating.md lists")
                }
                ServerErrorKind::ClusterDown | ServerErrorKind::TryAgain => {
                    of(io, Then::Distrust, "; the cluster is not complete")
                }
                _ => Self::of_text(error),
            };
        }
        match error.kind() {
            ErrorKind::Extension => Self::of_text(error),
            ErrorKind::UnexpectedReturnType => {
                of(StoreErrorKind::Corrupt, Then::GoOn, "; the key prefix may be in use by others")
            }
            ErrorKind::AuthenticationFailed => of(io, Then::Reconnect, "; check `username` and `password`"),
            _ => of(io, Then::Reconnect, ""),
        }
    }

    /// By the first word of the server's message, which may come out of a script.
    fn of_text(error: &RedisError) -> Self {
        let text = error.to_string();
        let says = |word: &str| error.code() == Some(word) || text.contains(word);
        let of = |kind, then, cure| Self { kind, then, cure };
        if says("OOM") {
            of(StoreErrorKind::Full, Then::GoOn, "; raise `maxmemory` or lower `max_entries`")
        } else if says("MISCONF") || says("NOREPLICAS") {
            of(StoreErrorKind::Full, Then::GoOn, "; the server cannot save and takes no writes")
        } else if says("READONLY") {
            of(
                StoreErrorKind::Io,
                Then::Reconnect,
                "; the server is a replica: with Sentinel the new primary is looked up",
            )
        } else if says("NOAUTH") || says("WRONGPASS") {
            of(StoreErrorKind::Io, Then::Reconnect, "; check `username` and `password`")
        } else if says("BUSY ") {
            of(StoreErrorKind::Io, Then::Distrust, "; a script runs too long on the server")
        } else if says("WRONGTYPE") {
            of(StoreErrorKind::Corrupt, Then::GoOn, "; the key prefix is in use by others")
        } else {
            of(StoreErrorKind::Io, Then::GoOn, "")
        }
    }
}

/// What a script reports that goes on in spite of it: judged like an error of its own.
pub(super) fn reported(link: &Link, text: &str) -> StoreError {
    let text = text.to_owned();
    link.failed(&RedisError::from((ErrorKind::Extension, "in a script", text)))
}

/// Makes a connection. Whatever the server pushes goes to `pushes`.
pub(super) async fn connect(
    options: &RedisOptions,
    pushes: mpsc::UnboundedSender<PushInfo>,
) -> RedisResult<Wire> {
    let connecting = async {
        match &options.topology {
            Topology::One { host, port } => {
                let client = client(options, address(options, host, *port))?;
                connect_one(&client, pushes).await
            }
            Topology::Sentinel { sentinels, primary } => {
                let addresses = sentinels.iter().map(|(host, port)| ConnectionAddr::Tcp(host.clone(), *port));
                let mut builder = SentinelClientBuilder::new(addresses, primary, SentinelServerType::Master)?
                    .set_client_to_redis_protocol(ProtocolVersion::RESP3)
                    .set_client_to_redis_db(options.db);
                if options.tls {
                    builder = builder.set_client_to_redis_tls_mode(TlsMode::Secure);
                    builder = builder.set_client_to_redis_certificates(certificates(options));
                    builder = builder.set_client_to_sentinel_tls_mode(TlsMode::Secure);
                    builder = builder.set_client_to_sentinel_certificates(certificates(options));
                }
                if let Some(username) = &options.username {
                    builder = builder.set_client_to_redis_username(username);
                }
                if let Some(password) = &options.password {
                    builder = builder.set_client_to_redis_password(password.expose_secret());
                }
                let client = builder.build()?.async_get_client().await?;
                connect_one(&client, pushes).await
            }
            Topology::Cluster { nodes } => {
                let nodes = nodes.iter().map(|(host, port)| address(options, host, *port));
                let mut builder = ClusterClientBuilder::new(nodes)
                    .use_protocol(ProtocolVersion::RESP3)
                    .push_sender(pushes)
                    .connection_timeout(CONNECT)
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

async fn connect_one(client: &Client, pushes: mpsc::UnboundedSender<PushInfo>) -> RedisResult<Wire> {
    let config = AsyncConnectionConfig::new()
        .set_push_sender(pushes)
        .set_connection_timeout(Some(CONNECT))
        // each call has its own, much shorter
        .set_response_timeout(Some(Duration::from_secs(30)));
    Ok(Wire::One(client.get_multiplexed_async_connection_with_config(&config).await?))
}

fn client(options: &RedisOptions, address: ConnectionAddr) -> RedisResult<Client> {
    let mut redis = RedisConnectionInfo::default().set_protocol(ProtocolVersion::RESP3).set_db(options.db);
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
