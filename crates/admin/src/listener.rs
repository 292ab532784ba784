//! The listener: HTTP/1.1 with every wait bounded. An operator's tool that hangs must not cost another one its answer.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::Peer;

/// Connections at once; more wait in the system's queue.
const CONNECTIONS: usize = 64;
/// How long the head of a request may take, the idle time before it included.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a connection may last before it is asked to end: a client that takes no bytes gets no further.
const CONNECTION_LIFE: Duration = Duration::from_secs(60);
/// How long it may take to end.
const CONNECTION_END: Duration = Duration::from_secs(10);
/// How long open connections may take to end when the server stops.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);
/// The longest head of a request, in bytes.
const HEAD_MAX_BYTES: usize = 64 * 1024;

pub(crate) fn bind(addr: SocketAddr) -> io::Result<TcpListener> {
    let socket =
        if addr.is_ipv4() { tokio::net::TcpSocket::new_v4() } else { tokio::net::TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    socket.bind(addr)?;
    socket.listen(128)
}

/// An admin listener that answers.
#[derive(Debug)]
pub struct AdminServer {
    addr: SocketAddr,
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl AdminServer {
    /// `tasks` is what the server waits for when it stops.
    pub(crate) fn start(socket: TcpListener, router: Router, tasks: TaskTracker) -> io::Result<Self> {
        let addr = socket.local_addr()?;
        let server = Self { addr, stop: CancellationToken::new(), tasks };
        server.tasks.spawn(accept(socket, router, server.stop.clone(), server.tasks.clone()));
        tracing::info!(%addr, "admin API listening");
        Ok(server)
    }

    /// The address, as bound.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Takes no more connections and lets open ones finish their request, for at most two seconds.
    pub async fn stop(self) {
        self.stop.cancel();
        self.tasks.close();
        let _ = tokio::time::timeout(STOP_TIMEOUT + Duration::from_secs(1), self.tasks.wait()).await;
    }
}

/// A server that is dropped stops too.
impl Drop for AdminServer {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

async fn accept(socket: TcpListener, router: Router, stop: CancellationToken, tasks: TaskTracker) {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let next = async {
            let place = Arc::clone(&places).acquire_owned().await;
            (place, socket.accept().await)
        };
        let (place, accepted) = tokio::select! {
            () = stop.cancelled() => return,
            next = next => next,
        };
        match (place, accepted) {
            (Ok(place), Ok((stream, peer))) => {
                let serving = serve(stream, peer, router.clone(), stop.clone());
                tasks.spawn(async move {
                    serving.await;
                    drop(place);
                });
            }
            (_, Err(error)) => {
                tracing::warn!(%error, "the admin listener could not accept a connection");
                // out of descriptors: the next attempt would fail at once too
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            (Err(_), Ok(_)) => return,
        }
    }
}

async fn serve(stream: TcpStream, peer: SocketAddr, router: Router, stop: CancellationToken) {
    let _ = stream.set_nodelay(true);
    let router = TowerToHyperService::new(router);
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(Peer(peer));
        router.call(request)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(HEAD_MAX_BYTES)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    let end = tokio::select! {
        // what went wrong on the wire is the client's business
        _ = connection.as_mut() => return,
        () = tokio::time::sleep(CONNECTION_LIFE) => CONNECTION_END,
        () = stop.cancelled() => STOP_TIMEOUT,
    };
    connection.as_mut().graceful_shutdown();
    let _ = tokio::time::timeout(end, connection).await;
}
