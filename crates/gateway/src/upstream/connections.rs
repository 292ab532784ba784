//! The connections to one replica: kept while the upstream keeps them, and not longer.
//!
//! An upstream that closes idle connections may do so in the instant in which a request is written on one, and nobody can
//! tell then whether it was processed. So a connection is not used up to its upstream's limit: the limit is learned from the
//! `Keep-Alive` field of answers and from connections that the upstream closed, and three quarters of it are used. Only what
//! has provably not been written is sent again.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use http::{HeaderMap, Request, Response, Uri};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use nevertwice_config::checked::Upstream as Config;
use tower_service::Service;

use super::StartError;
use super::client::ANSWER_MAX_FIELDS;
use crate::body::outbound::Outbound;
use crate::lock::Lock;
use crate::tls;

/// Reads and writes of a connection go through a buffer of at most this size.
const BUFFER_BYTES: usize = 256 << 10;
/// How long a learned limit counts: a restart of the upstream looks like a short one.
const LEARNED_FOR: Duration = Duration::from_secs(60);

/// What makes a connection.
pub(super) type Connector = HttpsConnector<HttpConnector>;

type Error = Box<dyn std::error::Error + Send + Sync>;

/// The connections to one replica.
pub(super) struct Connections {
    connector: Connector,
    /// Scheme and authority.
    to: Uri,
    /// The longest idle time by configuration.
    idle_limit: Duration,
    /// The most idle connections.
    max_idle: usize,
    state: Lock<State>,
    ids: AtomicU64,
}

#[derive(Default)]
struct State {
    /// The one that was used last is the last one.
    idle: VecDeque<Idle>,
    /// Whether somebody looks after those that stay idle.
    swept: bool,
    /// The upstream's own limit, less a margin, and until when this is believed.
    learned: Option<(Duration, Instant)>,
}

/// A connection with no request on it.
struct Idle {
    connection: Connection,
    since: Instant,
    until: Instant,
}

/// A connection.
pub(super) struct Connection {
    sender: SendRequest<Outbound>,
    id: u64,
    /// How long it had been idle when it was taken.
    idle: Duration,
}

/// Why there is no answer on a connection.
pub(super) enum SendError {
    /// The upstream had closed the connection before a byte of the request was written.
    Unsent(Box<Request<Outbound>>),
    /// A byte of it may have been processed.
    Broken(hyper::Error),
}

/// What makes the connections to an upstream, over TLS for `https`.
pub(super) fn connector(config: &Config) -> Result<Connector, StartError> {
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    http.set_nodelay(true);
    http.set_connect_timeout(Some(config.connect_timeout));
    http.set_keepalive(Some(Duration::from_secs(60)));
    // an upstream that has answered and reads no more of the request is given up by the system
    #[cfg(target_os = "linux")]
    http.set_tcp_user_timeout(Some(config.idle_timeout));
    let tls = tls::client(config.tls.ca.as_deref(), config.tls.client.as_ref()).map_err(StartError::Tls)?;
    let https = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1();
    Ok(https.wrap_connector(http))
}

impl Connections {
    pub(super) fn new(connector: Connector, to: Uri, idle_limit: Duration, max_idle: usize) -> Arc<Self> {
        Arc::new(Self { connector, to, idle_limit, max_idle, state: Lock::default(), ids: AtomicU64::new(0) })
    }

    /// The idle connection that was used last, if one is believed to be open still.
    pub(super) fn take(&self) -> Option<Connection> {
        let now = Instant::now();
        let mut state = self.state.hold();
        let learned = state.learned(now);
        while let Some(idle) = state.idle.pop_back() {
            let age = now.duration_since(idle.since);
            if !idle.connection.sender.is_ready() {
                state.learn(age, now);
            } else if now < idle.until && learned.is_none_or(|limit| age < limit) {
                return Some(Connection { idle: age, ..idle.connection });
            }
        }
        None
    }

    /// A new connection, TLS included. Waits as long as the connector does; the caller has the time-out.
    pub(super) async fn connect(self: &Arc<Self>) -> Result<Connection, Error> {
        let mut connector = self.connector.clone();
        poll_fn(|cx| connector.poll_ready(cx)).await?;
        let io = connector.call(self.to.clone()).await?;
        let (sender, driver) = http1::Builder::new()
            .max_buf_size(BUFFER_BYTES)
            // one more than allowed, so that it is the gateway that says what is wrong
            .max_headers(ANSWER_MAX_FIELDS + 1)
            .handshake(io)
            .await?;
        let id = self.ids.fetch_add(1, Ordering::Relaxed);
        let connections = Arc::downgrade(self);
        // ends when the connection breaks, or when its `Connection` and the body of its last answer are dropped
        with_connection(async move {
            // what broke is told to the request that was under way
            let _ = driver.await;
            if let Some(connections) = connections.upgrade() {
                connections.closed(id);
            }
        });
        Ok(Connection { sender, id, idle: Duration::ZERO })
    }

    /// Keeps a connection for the next request, as soon as its answer's body has been read; drops it if that never is.
    pub(super) fn keep(self: &Arc<Self>, mut connection: Connection, answer: &HeaderMap) {
        let announced = announced(answer);
        if connection.sender.is_ready() {
            return self.put(connection, announced);
        }
        let connections = Arc::clone(self);
        // as long as the body, which has time-outs
        with_connection(async move {
            if connection.sender.ready().await.is_ok() {
                connections.put(connection, announced);
            }
        });
    }

    fn put(self: &Arc<Self>, connection: Connection, announced: Option<Duration>) {
        let since = Instant::now();
        let mut state = self.state.hold();
        let limits = [Some(self.idle_limit), announced.map(margin), state.learned(since)];
        let limit = limits.into_iter().flatten().min().unwrap_or_default();
        if limit.is_zero() || state.idle.len() >= self.max_idle {
            return;
        }
        state.idle.push_back(Idle { connection, since, until: since + limit });
        if !std::mem::replace(&mut state.swept, true) {
            with_connection(sweep(Arc::downgrade(self)));
        }
    }

    /// A connection broke `after` it was taken, without an answer. If that was sooner than it had been idle, the upstream did
    /// not choke on the request: it had closed what was idle.
    pub(super) fn broke(&self, connection: &Connection, after: Duration) {
        if after < connection.idle {
            self.state.hold().learn(connection.idle, Instant::now());
        }
    }

    /// A connection has ended. If it was idle, it was the upstream who ended it.
    fn closed(&self, id: u64) {
        let now = Instant::now();
        let mut state = self.state.hold();
        if let Some(at) = state.idle.iter().position(|idle| idle.connection.id == id)
            && let Some(idle) = state.idle.remove(at)
        {
            state.learn(now.duration_since(idle.since), now);
        }
    }
}

impl State {
    fn learned(&self, now: Instant) -> Option<Duration> {
        self.learned.filter(|(_, until)| now < *until).map(|(limit, _)| limit)
    }

    /// The upstream closed a connection that had been idle for `age`.
    fn learn(&mut self, age: Duration, now: Instant) {
        let limit = self.learned(now).map_or(margin(age), |known| known.min(margin(age)));
        self.learned = Some((limit, now + LEARNED_FOR));
    }
}

/// Runs what lives as long as a connection does.
#[expect(
    clippy::disallowed_methods,
    reason = "the drain waits for requests, not for connections that are idle"
)]
fn with_connection(task: impl Future<Output = ()> + Send + 'static) {
    tokio::spawn(task);
}

/// Closes what stays idle too long, until nothing is left to look after.
async fn sweep(connections: std::sync::Weak<Connections>) {
    loop {
        let next = {
            let Some(connections) = connections.upgrade() else { return };
            let now = Instant::now();
            let mut state = connections.state.hold();
            state.idle.retain(|idle| now < idle.until);
            let next = state.idle.iter().map(|idle| idle.until).min();
            state.swept = next.is_some();
            next
        };
        let Some(next) = next else { return };
        tokio::time::sleep_until(next.into()).await;
    }
}

impl Connection {
    /// Sends the request and waits for the head of its answer. Dropping the future closes the connection.
    pub(super) async fn send(&mut self, request: Request<Outbound>) -> Result<Response<Incoming>, SendError> {
        self.sender.try_send_request(request).await.map_err(|mut error| match error.take_message() {
            Some(request) => SendError::Unsent(Box::new(request)),
            None => SendError::Broken(error.into_error()),
        })
    }
}

/// What of an idle limit is used: requests, and the news of a closed connection, take their time.
fn margin(limit: Duration) -> Duration {
    limit * 3 / 4
}

/// How long the upstream says that it keeps an idle connection: `Keep-Alive: timeout=5, max=100` (seconds).
fn announced(answer: &HeaderMap) -> Option<Duration> {
    let value = answer.get("keep-alive")?.to_str().ok()?;
    let timeout = value.split(',').find_map(|part| {
        let (name, value) = part.split_once('=')?;
        name.trim().eq_ignore_ascii_case("timeout").then(|| value.trim().trim_matches('"'))
    })?;
    timeout.parse().ok().map(|seconds: u32| Duration::from_secs(seconds.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    #[test]
    fn what_an_upstream_says_of_its_connections_is_understood() {
        for (value, seconds) in [
            ("timeout=5", Some(5)),
            ("timeout=5, max=1000", Some(5)),
            ("max=7 , Timeout = \"15\"", Some(15)),
            ("timeout=0", Some(0)),
            ("timeout=-1", None),
            ("timeout", None),
            ("max=100", None),
            ("", None),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert("keep-alive", HeaderValue::from_static(value));
            assert_eq!(announced(&headers), seconds.map(Duration::from_secs), "{value}");
        }
        assert_eq!(announced(&HeaderMap::new()), None);
    }

    #[test]
    fn the_shortest_life_that_was_seen_counts_for_a_while() {
        let (mut state, now) = (State::default(), Instant::now());
        assert_eq!(state.learned(now), None);
        state.learn(Duration::from_secs(4), now);
        assert_eq!(state.learned(now), Some(Duration::from_secs(3)));
        state.learn(Duration::from_secs(8), now);
        assert_eq!(state.learned(now), Some(Duration::from_secs(3)));
        state.learn(Duration::from_secs(1), now);
        assert_eq!(state.learned(now), Some(Duration::from_millis(750)));
        assert_eq!(state.learned(now + LEARNED_FOR), None);
        state.learn(Duration::from_secs(8), now + LEARNED_FOR);
        assert_eq!(state.learned(now + LEARNED_FOR), Some(Duration::from_secs(6)));
    }
}
