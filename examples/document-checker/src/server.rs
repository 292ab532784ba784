//! The HTTP side: accepts connections, routes requests, runs the parsers apart from the event loop and
//! writes the answers. Knows nothing of document kinds.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::header::{ALLOW, CONNECTION, CONTENT_TYPE, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream, ToSocketAddrs};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::inspect::{self, Report};
use crate::intake;
use crate::refusal::{Code, Refusal};

/// How many connections are open at once; further ones wait in the listen queue.
const MAX_CONNECTIONS: usize = 128;

/// How many documents are parsed at once; each may take a few hundred MiB.
const MAX_PARSERS: usize = 4;

/// How long a request may wait for a parser, and then again for the parser to finish.
const PARSER_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a connection may take to send a request head; also how long it may stay idle.
const HEAD_TIMEOUT: Duration = Duration::from_secs(60);

/// When a connection is closed after its current request, whatever it does.
const CONNECTION_LIFETIME: Duration = Duration::from_secs(15 * 60);

/// How long the last request on such a connection may take: longer than body and parser together may.
const LAST_REQUEST_TIMEOUT: Duration = Duration::from_secs(3 * 60);

/// How long a connection may take to finish its current request when the service stops.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// The pause after a failed accept: the cause (no free descriptors) does not go away at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The service, bound to its address. It serves while [`Checker::run`] runs.
#[derive(Debug)]
pub struct Checker {
    addr: SocketAddr,
    /// Taken by `run`, so that the port is free again when `run` ends although callers keep the `Arc`.
    listener: Mutex<Option<TcpListener>>,
    calls: AtomicU64,
    delay: Duration,
    parsers: Arc<Semaphore>,
}

impl Checker {
    /// Binds the service to `addr`; port 0 picks a free one.
    ///
    /// # Errors
    /// The address does not resolve or cannot be bound.
    pub async fn bind(addr: impl ToSocketAddrs) -> io::Result<Self> {
        let listener = TcpListener::bind(addr).await?;
        Ok(Self {
            addr: listener.local_addr()?,
            listener: Mutex::new(Some(listener)),
            calls: AtomicU64::new(0),
            delay: Duration::ZERO,
            parsers: Arc::new(Semaphore::new(MAX_PARSERS)),
        })
    }

    /// Adds a fixed processing time to every document, as a slower parser would take.
    #[must_use]
    pub fn with_delay(self, delay: Duration) -> Self {
        Self { delay, ..self }
    }

    /// The address the service is bound to.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// How many requests to `/classify` have arrived, whatever became of them.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// Serves until `cancel` fires, then lets requests under way finish for up to five seconds.
    ///
    /// The listener is closed at the end: a second run returns at once.
    pub async fn run(self: Arc<Self>, cancel: CancellationToken) {
        let taken = self.listener.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(listener) = taken else {
            tracing::warn!(addr = %self.addr, "document checker has already run");
            return;
        };
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                () = cancel.cancelled() => break,
                Some(_) = connections.join_next() => {}
                accepted = listener.accept(), if connections.len() < MAX_CONNECTIONS => match accepted {
                    Ok((stream, _peer)) => {
                        connections.spawn(serve(Arc::clone(&self), stream, cancel.clone()));
                    }
                    Err(error) => {
                        tracing::warn!(%error, "accept failed");
                        sleep(ACCEPT_PAUSE).await;
                    }
                },
            }
        }
        drop(listener);
        // Each connection keeps to its own drain time-out, so this ends.
        while connections.join_next().await.is_some() {}
    }

    async fn answer(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        match (request.uri().path(), request.method()) {
            ("/classify", method) => {
                self.calls.fetch_add(1, Ordering::Relaxed);
                if *method == Method::POST {
                    respond(self.classify(request).await)
                } else {
                    wrong_method("POST")
                }
            }
            ("/healthz", &Method::GET | &Method::HEAD) => respond(Ok(json!({ "status": "ok" }))),
            ("/healthz", _) => wrong_method("GET, HEAD"),
            _ => respond(Err(Refusal::new(Code::NotFound, "there is nothing at this path"))),
        }
    }

    async fn classify(&self, request: Request<Incoming>) -> Result<Value, Refusal> {
        let (head, body) = request.into_parts();
        let document = intake::document(&head.headers, body).await?;
        sleep(self.delay).await;
        let bytes = document.len();
        let report = parse_apart(&self.parsers, move || inspect::inspect(&document)).await?;
        Ok(report.to_json(bytes))
    }
}

async fn serve(checker: Arc<Checker>, stream: TcpStream, cancel: CancellationToken) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "cannot set no-delay");
    }
    let service = service_fn(move |request| {
        let checker = Arc::clone(&checker);
        async move { Ok::<_, Infallible>(checker.answer(request).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    let grace = tokio::select! {
        finished = connection.as_mut() => return note(finished),
        () = cancel.cancelled() => DRAIN_TIMEOUT,
        () = sleep(CONNECTION_LIFETIME) => LAST_REQUEST_TIMEOUT,
    };
    connection.as_mut().graceful_shutdown();
    match timeout(grace, connection).await {
        Ok(finished) => note(finished),
        Err(_elapsed) => tracing::debug!("connection cut at the end of its grace"),
    }
}

fn note(finished: hyper::Result<()>) {
    if let Err(error) = finished {
        tracing::debug!(%error, "connection failed");
    }
}

/// Runs a parser on a blocking thread. A panic in it is an answer about the document, not an end of the
/// service. A parser that overruns keeps its place until it ends, so overruns cannot pile up.
async fn parse_apart<F>(parsers: &Arc<Semaphore>, parse: F) -> Result<Report, Refusal>
where
    F: FnOnce() -> Result<Report, Refusal> + Send + 'static,
{
    let overloaded = || Refusal::new(Code::Overloaded, "no parser finished in time");
    let waiting = timeout(PARSER_TIMEOUT, Arc::clone(parsers).acquire_owned());
    let Ok(Ok(place)) = waiting.await else { return Err(overloaded()) };
    let running = tokio::task::spawn_blocking(move || {
        let verdict = parse();
        drop(place);
        verdict
    });
    match timeout(PARSER_TIMEOUT, running).await {
        Ok(Ok(verdict)) => verdict,
        Ok(Err(_panic)) => Err(Refusal::new(Code::ParserGaveUp, "the parser gave up on this document")),
        Err(_elapsed) => Err(overloaded()),
    }
}

fn respond(outcome: Result<Value, Refusal>) -> Response<Full<Bytes>> {
    let (status, body) = match outcome {
        Ok(report) => (StatusCode::OK, report),
        Err(Refusal { code, message }) => {
            (code.status(), json!({ "error": { "code": code.name(), "message": message } }))
        }
    };
    let mut response = Response::new(Full::new(Bytes::from(body.to_string())));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    // The rest of such a body may still be on its way; the connection cannot carry another request.
    if matches!(status, StatusCode::PAYLOAD_TOO_LARGE | StatusCode::REQUEST_TIMEOUT) {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

fn wrong_method(allowed: &'static str) -> Response<Full<Bytes>> {
    let mut response = respond(Err(Refusal::new(Code::MethodNotAllowed, "the method is not allowed here")));
    response.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    #[expect(clippy::panic, reason = "stands in for a parser with a bug")]
    async fn a_panic_in_a_parser_is_a_refusal() {
        let parsers = Arc::new(Semaphore::new(1));
        // The second round shows that the place of the first came back.
        for _ in 0..2 {
            let verdict = parse_apart(&parsers, || panic!("parser bug")).await;
            assert_eq!(verdict.map_err(|refusal| refusal.code), Err(Code::ParserGaveUp));
        }
    }
}
