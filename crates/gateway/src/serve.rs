//! Client connections: accept, TLS, HTTP/1.1 or HTTP/2, limits, and an orderly end.

pub(crate) mod framing;
mod wire;

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::body::Incoming;
use hyper::rt::{Read, Write};
use hyper::service::service_fn;
use hyper::{Request, server::conn::http1, server::conn::http2};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::exchange::connection::{Caller, Exchanges, OnConnection};
use crate::metrics::Metrics;
use crate::{Shared, exchange};
use wire::{Peer, Timing, Wire};

/// The first bytes of an HTTP/2 connection by prior knowledge (RFC 9113 section 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// How long a TLS handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// How long an idle HTTP/2 connection may take to end when it is asked to.
const WIND_UP: Duration = Duration::from_secs(2);
/// How much of a body hyper reads ahead at most.
const READ_AHEAD: usize = 128 << 10;
/// HTTP/2: streams at once on a connection.
const H2_STREAMS: u32 = 200;
/// HTTP/2: streams that were reset before they were looked at, and that the gateway reset on an error (CVE-2023-44487 and
/// RUSTSEC-2024-0003): beyond that the connection is closed.
const H2_RESETS: usize = 50;
/// HTTP/2: what a client may send before it is read, per stream and per connection.
const H2_STREAM_WINDOW: u32 = 256 << 10;
const H2_CONNECTION_WINDOW: u32 = 1 << 20;

/// A bound listener.
pub(crate) struct Listener {
    pub(crate) socket: TcpListener,
    pub(crate) tls: Option<TlsAcceptor>,
}

/// How connections learn that the gateway stops: first politely, then at once.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stop {
    pub(crate) drain: CancellationToken,
    pub(crate) cut: CancellationToken,
}

/// Accepts connections until the drain begins.
pub(crate) async fn accept(gateway: Arc<Shared>, listener: Listener, places: Arc<Semaphore>, stop: Stop) {
    loop {
        let accepted = tokio::select! {
            biased;
            () = stop.drain.cancelled() => return,
            accepted = listener.socket.accept() => accepted,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // out of descriptors, mostly: waiting is all that helps
                if !is_of_one_connection(&error) {
                    tracing::error!(%error, "cannot accept connections");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
                continue;
            }
        };
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
            gateway.metrics.connections_refused.inc();
            continue;
        };
        let (gateway, tls, stop) = (Arc::clone(&gateway), listener.tls.clone(), stop.clone());
        let tracker = gateway.tracker.clone();
        tracker.spawn(async move {
            let _open = Open::new(&gateway, place);
            if let Err(error) = converse(&gateway, (stream, peer), tls, stop).await {
                tracing::debug!(%peer, error, "connection ended");
            }
        });
    }
}

/// An open connection: counted, and its place taken, until it ends in whatever way.
struct Open {
    metrics: Arc<Metrics>,
    _place: OwnedSemaphorePermit,
}

impl Open {
    fn new(gateway: &Shared, place: OwnedSemaphorePermit) -> Self {
        gateway.metrics.connections.inc();
        Self { metrics: Arc::clone(&gateway.metrics), _place: place }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.metrics.connections.dec();
    }
}

fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    [ConnectionAborted, ConnectionRefused, ConnectionReset].contains(&error.kind())
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// One connection, from its first byte to its last.
async fn converse(
    gateway: &Arc<Shared>,
    (stream, addr): (TcpStream, SocketAddr),
    tls: Option<TlsAcceptor>,
    stop: Stop,
) -> Result<(), Failure> {
    stream.set_nodelay(true)?;
    let caller = Caller { addr, tls: tls.is_some() };
    match tls {
        None => {
            let Some((stream, first, h2)) = sniff(gateway, stream, &stop).await? else { return Ok(()) };
            speak(gateway, caller, stream, first, h2, stop).await
        }
        Some(acceptor) => {
            let stream = tokio::select! {
                biased;
                stream = tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)) => stream??,
                () = stop.drain.cancelled() => return Ok(()),
            };
            let h2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
            speak(gateway, caller, stream, Vec::new(), h2, stop).await
        }
    }
}

/// Reads what there is until it tells HTTP/2 by prior knowledge from HTTP/1: the connection, what was read, and whether it is
/// HTTP/2. As much as there is, so that the validator sees whole lines before the HTTP library does. `None` when the drain
/// began before the first byte came.
async fn sniff(
    gateway: &Shared,
    stream: TcpStream,
    stop: &Stop,
) -> Result<Option<(TcpStream, Vec<u8>, bool)>, Failure> {
    if !gateway.http.h2 {
        return Ok(Some((stream, Vec::new(), false)));
    }
    let mut first = Vec::new();
    let reading = async {
        loop {
            tokio::select! {
                biased;
                ready = stream.readable() => ready?,
                () = stop.drain.cancelled(), if first.is_empty() => return Ok(false),
            }
            // made anew each time: a connection that has sent nothing holds no buffer
            let mut chunk = [0; 4096];
            let n = match stream.try_read(&mut chunk) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                read => read?,
            };
            first.extend_from_slice(&chunk[..n]);
            let compared = first.len().min(PREFACE.len());
            if n == 0 || first[..compared] != PREFACE[..compared] || compared == PREFACE.len() {
                return Ok::<_, io::Error>(true);
            }
        }
    };
    if !tokio::time::timeout(gateway.http.header_timeout, reading).await?? {
        return Ok(None);
    }
    let h2 = first.starts_with(PREFACE);
    Ok(Some((stream, first, h2)))
}

async fn speak<S>(
    gateway: &Arc<Shared>,
    caller: Caller,
    stream: S,
    first: Vec<u8>,
    h2: bool,
    stop: Stop,
) -> Result<(), Failure>
where
    S: AsyncRead + AsyncWrite + Peer + Unpin + Send + 'static,
{
    let limits = &gateway.http;
    let timing = Timing {
        head: limits.header_timeout,
        keep_alive: limits.keep_alive,
        write_stall: limits.write_stall_timeout,
    };
    let on_connection: OnConnection = Arc::new(Exchanges::with(caller));
    let service = {
        let (gateway, on_connection) = (Arc::clone(gateway), Arc::clone(&on_connection));
        service_fn(move |request: Request<Incoming>| {
            let exchange = exchange::run(Arc::clone(&gateway), request, Arc::clone(&on_connection));
            async move { Ok::<_, Infallible>(exchange.await) }
        })
    };
    if h2 {
        let idle = idle_h2(Arc::clone(&on_connection), timing);
        let io = TokioIo::new(Wire::opaque(stream, first, timing, on_connection));
        let mut server = http2::Builder::new(Owned(gateway.tracker.clone()));
        server
            .timer(TokioTimer::new())
            .max_concurrent_streams(H2_STREAMS)
            .max_pending_accept_reset_streams(H2_RESETS)
            .max_local_error_reset_streams(H2_RESETS)
            .initial_stream_window_size(H2_STREAM_WINDOW)
            .initial_connection_window_size(H2_CONNECTION_WINDOW)
            .max_header_list_size(u32::try_from(limits.header_max_bytes).unwrap_or(u32::MAX))
            .keep_alive_interval(limits.keep_alive)
            .keep_alive_timeout(Duration::from_secs(20));
        drive(server.serve_connection(io, service), idle, stop).await
    } else {
        let io = TokioIo::new(Wire::checked(gateway, stream, first, timing, on_connection));
        let mut server = http1::Builder::new();
        server
            .timer(TokioTimer::new())
            .header_read_timeout(None)
            // the validator in front refuses longer heads, with an answer that says so
            .max_headers(limits.header_max_count + 1)
            .max_buf_size(READ_AHEAD.max(limits.header_max_bytes * 2));
        // the wire itself watches for silence on HTTP/1
        drive(server.serve_connection(io, service), std::future::pending(), stop).await
    }
}

/// Tasks of HTTP/2 streams belong to the tracker, like everything that runs beside a connection.
#[derive(Clone)]
struct Owned(TaskTracker);

impl<F> hyper::rt::Executor<F> for Owned
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn execute(&self, task: F) {
        self.0.spawn(task);
    }
}

/// Ends when an HTTP/2 connection has brought no request for too long: none at all since it was made, or none since the
/// last one ended. Answering pings is no use of it.
async fn idle_h2(exchanges: OnConnection, timing: Timing) {
    let began = Instant::now();
    while exchanges.begun() == 0 {
        let left = timing.head.saturating_sub(began.elapsed());
        if left.is_zero() {
            return;
        }
        tokio::time::sleep(left.min(timing.keep_alive)).await;
    }
    loop {
        let (begun, busy) = (exchanges.begun(), exchanges.any());
        tokio::time::sleep(timing.keep_alive).await;
        // idle from one look to the next
        if exchanges.begun() == begun && !busy {
            return;
        }
    }
}

/// A connection that can be asked to end.
trait Conversation: Future<Output = hyper::Result<()>> {
    fn wind_up(self: Pin<&mut Self>);
}

impl<I, S> Conversation for http1::Connection<I, S>
where
    I: Read + Write + Unpin + 'static,
    S: hyper::service::HttpService<Incoming, ResBody = exchange::reply::Reply>,
    S::Error: Into<Failure>,
{
    fn wind_up(self: Pin<&mut Self>) {
        self.graceful_shutdown();
    }
}

impl<I, S> Conversation for http2::Connection<I, S, Owned>
where
    I: Read + Write + Unpin + 'static,
    S: hyper::service::HttpService<Incoming, ResBody = exchange::reply::Reply>,
    S::Error: Into<Failure>,
    S::Future: Send + 'static,
{
    fn wind_up(self: Pin<&mut Self>) {
        self.graceful_shutdown();
    }
}

/// Runs a conversation; on a drain lets it finish what it does, and on a cut drops it. `idle` ends one that is not used.
async fn drive(
    conversation: impl Conversation,
    idle: impl Future<Output = ()>,
    stop: Stop,
) -> Result<(), Failure> {
    let mut conversation = std::pin::pin!(conversation);
    let idled = tokio::select! {
        biased;
        result = conversation.as_mut() => return Ok(result?),
        () = stop.drain.cancelled() => false,
        () = idle => true,
    };
    conversation.as_mut().wind_up();
    let patience = async {
        match idled {
            // it has nothing to finish, and may not even answer
            true => tokio::time::sleep(WIND_UP).await,
            false => std::future::pending().await,
        }
    };
    tokio::select! {
        biased;
        result = conversation.as_mut() => Ok(result?),
        () = stop.cut.cancelled() => Err("cut at the end of the drain".into()),
        () = patience => Err("idle".into()),
    }
}

/// Binds an address.
pub(crate) fn bind(addr: SocketAddr) -> io::Result<TcpListener> {
    let socket = socket2::Socket::new(socket2::Domain::for_address(addr), socket2::Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&addr.into())?;
    socket.listen(4096)?;
    TcpListener::from_std(socket.into())
}
