//! The HTTP client: the only file that names it.
//!
//! It follows no redirect, decodes nothing, and sends a request again only when not one byte of it had been written (a
//! pooled connection that was found dead, or a replica that could not be connected to). It speaks HTTP/1.1: there a broken
//! exchange tells plainly whose it was.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, HeaderValue, Method, Request, Response, Uri, header};
use hyper::body::{Body, Incoming};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::{CaptureConnection, HttpConnector, capture_connection};
use hyper_util::client::legacy::{Client as Pooled, Error as ClientError};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use nevertwice_config::checked::{Upstream as Config, UpstreamTls};
use nevertwice_domain::outcome::OwnCode;
use nevertwice_domain::tenant::UpstreamName;

use super::StartError;
use crate::body::outbound::{BodyFault, Outbound, Progress};
use crate::lock::Lock;
use crate::tls;

/// Reads and writes of a connection to an upstream go through a buffer of at most this size.
const BUFFER_BYTES: usize = 256 << 10;
/// The most header fields of an upstream's answer.
pub(crate) const ANSWER_MAX_FIELDS: usize = 200;
/// The longest header section of an upstream's answer, in bytes.
pub(crate) const ANSWER_MAX_HEAD: usize = 64 << 10;

/// How often failures of one upstream are logged at most.
const TELL_EVERY: Duration = Duration::from_secs(10);
/// How much later than a stalled client a stalled upload is the upstream's fault.
const GRACE: Duration = Duration::from_secs(1);

/// A client of one upstream.
pub(crate) struct Client {
    pooled: Pooled<HttpsConnector<HttpConnector>, Outbound>,
    replicas: Vec<Replica>,
    next: AtomicUsize,
    timeout: Duration,
    idle: Duration,
    name: UpstreamName,
    /// When a failure was last logged.
    told: Lock<Option<Instant>>,
    connect: Duration,
}

struct Replica {
    scheme: Scheme,
    authority: Authority,
    /// Path prefix without a trailing slash.
    prefix: String,
}

/// Why there is no answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallError {
    pub(crate) code: OwnCode,
    /// For the audit: what broke, in a word.
    pub(crate) detail: &'static str,
    /// Whether the connection could not even be made: nothing was sent.
    pub(crate) unsent: bool,
}

impl Client {
    pub(crate) fn new(config: &Config) -> Result<Self, StartError> {
        let mut http = HttpConnector::new();
        http.enforce_http(false);
        http.set_nodelay(true);
        http.set_connect_timeout(Some(config.connect_timeout));
        http.set_keepalive(Some(Duration::from_secs(60)));
        // an upstream that has answered and reads no more of the request is given up by the system
        #[cfg(target_os = "linux")]
        http.set_tcp_user_timeout(Some(config.idle_timeout));
        let https = HttpsConnectorBuilder::new()
            .with_tls_config(tls_config(&config.tls)?)
            .https_or_http()
            .enable_http1()
            .wrap_connector(http);
        let pooled = Pooled::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .timer(TokioTimer::new())
            .pool_idle_timeout(config.pool.connection_idle)
            .pool_max_idle_per_host(config.pool.max_in_flight)
            .http1_max_buf_size(BUFFER_BYTES)
            // one more than allowed, so that it is the gateway that says what is wrong
            .http1_max_headers(ANSWER_MAX_FIELDS + 1)
            .build(https);
        let replicas = config.base_urls.iter().filter_map(Replica::new).collect();
        Ok(Self {
            pooled,
            replicas,
            next: AtomicUsize::new(0),
            name: config.name.clone(),
            told: Lock::default(),
            timeout: config.timeout,
            idle: config.idle_timeout,
            connect: config.connect_timeout,
        })
    }

    /// Says in the log why a call failed, once in ten seconds: an upstream that is down fails every one.
    fn tell(&self, error: &ClientError, call: CallError) {
        let now = Instant::now();
        let mut told = self.told.hold();
        if told.is_some_and(|at| now.duration_since(at) < TELL_EVERY) {
            return;
        }
        *told = Some(now);
        let mut reason = error.to_string();
        let mut source = std::error::Error::source(error);
        while let Some(inner) = source {
            reason = format!("{reason}: {inner}");
            source = inner.source();
        }
        tracing::warn!(upstream = %self.name, code = call.code.name(), reason, "a call to an upstream failed");
    }

    /// The path prefix of the replicas.
    pub(crate) fn prefix(&self) -> Option<&str> {
        self.replicas.first().map(|r| r.prefix.as_str())
    }

    /// The path prefix of the replica at `authority`, if it is one of this upstream's own.
    pub(crate) fn prefix_of(&self, authority: &str) -> Option<&str> {
        let replica = self.replicas.iter().find(|r| r.authority.as_str().eq_ignore_ascii_case(authority))?;
        Some(&replica.prefix)
    }

    /// Sends the request to a replica and returns the answer's head. Another replica is tried only when no connection could
    /// be made: then nothing of the body was taken either. `body` makes the body of each try.
    pub(crate) async fn send(
        &self,
        path: &PathAndQuery,
        head: &mut http::request::Parts,
        mut body: impl FnMut() -> Outbound,
    ) -> Result<Response<Incoming>, CallError> {
        let first = self.next.fetch_add(1, Ordering::Relaxed);
        let mut last = CallError { code: OwnCode::UpstreamUnreachable, detail: "no_replica", unsent: true };
        for n in 0..self.replicas.len() {
            let replica = &self.replicas[first.wrapping_add(n) % self.replicas.len()];
            let headers = match n + 1 < self.replicas.len() {
                true => head.headers.clone(),
                false => std::mem::take(&mut head.headers),
            };
            match self.send_to(replica, path, (head.method.clone(), headers), body()).await {
                Err(error) if error.unsent => last = error,
                result => return result,
            }
        }
        Err(last)
    }

    async fn send_to(
        &self,
        replica: &Replica,
        path: &PathAndQuery,
        (method, headers): (Method, HeaderMap),
        body: Outbound,
    ) -> Result<Response<Incoming>, CallError> {
        let uri = replica.uri(path).ok_or(CallError::own(OwnCode::BadRequest, "path"))?;
        let progress = body.progress();
        let mut request = Request::new(body);
        *request.uri_mut() = uri;
        *request.headers_mut() = headers;
        if request.body().is_end_stream() && [Method::POST, Method::PUT, Method::PATCH].contains(&method) {
            // a server may ask for a length where a body is usual (RFC 9110 section 8.6); hyper says none for an empty one
            request.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from_static("0"));
        }
        *request.method_mut() = method;
        let connection = capture_connection(&mut request);
        let answer = self.pooled.request(request);
        let answer = self.until_head(answer, &connection, &progress).await?;
        if let Err(error) = check_head(&answer) {
            // where this answer ends is in doubt: what comes next on its connection must not answer another request
            if let Some(connected) = connection.connection_metadata().as_ref() {
                connected.poison();
            }
            return Err(error);
        }
        Ok(answer)
    }

    /// Waits for the answer's head: as long as a connection may take, TLS included, then as long as the body moves on, then as
    /// long as the upstream may think.
    async fn until_head(
        &self,
        answer: impl Future<Output = Result<Response<Incoming>, ClientError>>,
        connection: &CaptureConnection,
        progress: &Arc<Progress>,
    ) -> Result<Response<Incoming>, CallError> {
        let mut answer = std::pin::pin!(answer);
        let began = Instant::now();
        let sleep = tokio::time::sleep_until((began + self.connect.min(self.timeout).min(self.idle)).into());
        let mut sleep = std::pin::pin!(sleep);
        loop {
            tokio::select! {
                biased;
                result = answer.as_mut() => return result.map_err(|error| {
                    let call = classify(&error);
                    self.tell(&error, call);
                    call
                }),
                () = sleep.as_mut() => {}
            }
            if connection.connection_metadata().is_none() {
                let until = began + self.connect;
                if Instant::now() >= until {
                    return Err(CallError {
                        code: OwnCode::UpstreamUnreachable,
                        detail: "connect_timeout",
                        unsent: true,
                    });
                }
                sleep.as_mut().reset(until.into());
                continue;
            }
            let (last, ended) = progress.state();
            // a client that stalls is found out by its own body first
            let until = if ended { last + self.timeout } else { last + self.idle + GRACE };
            if Instant::now() >= until {
                let detail = if ended { "answer_timeout" } else { "upload_stalled" };
                return Err(CallError::own(OwnCode::UpstreamTimeout, detail));
            }
            sleep.as_mut().reset(until.into());
        }
    }
}

impl CallError {
    fn own(code: OwnCode, detail: &'static str) -> Self {
        Self { code, detail, unsent: false }
    }
}

impl Replica {
    fn new(base: &Uri) -> Option<Self> {
        let prefix = base.path().trim_end_matches('/').to_owned();
        Some(Self { scheme: base.scheme()?.clone(), authority: base.authority()?.clone(), prefix })
    }

    fn uri(&self, path: &PathAndQuery) -> Option<Uri> {
        let path = if self.prefix.is_empty() {
            path.clone()
        } else {
            PathAndQuery::from_maybe_shared(format!("{}{path}", self.prefix)).ok()?
        };
        Uri::builder()
            .scheme(self.scheme.clone())
            .authority(self.authority.clone())
            .path_and_query(path)
            .build()
            .ok()
    }
}

fn tls_config(config: &UpstreamTls) -> Result<rustls::ClientConfig, StartError> {
    tls::client(config.ca.as_deref(), config.client.as_ref()).map_err(StartError::Tls)
}

/// An answer whose framing is doubtful must not be believed (RFC 9112 section 6.3), however lenient the parser was.
fn check_head(answer: &Response<Incoming>) -> Result<(), CallError> {
    let malformed = |detail| Err(CallError::own(OwnCode::UpstreamMalformed, detail));
    let headers = answer.headers();
    let codings: Vec<_> = headers.get_all(header::TRANSFER_ENCODING).iter().collect();
    match codings.as_slice() {
        [] => {}
        [one]
            if one.as_bytes().eq_ignore_ascii_case(b"chunked")
                && !headers.contains_key(header::CONTENT_LENGTH) => {}
        _ => return malformed("framing"),
    }
    let mut lengths = headers.get_all(header::CONTENT_LENGTH).iter();
    let plain = lengths.next().is_none_or(|length| length.as_bytes().iter().all(u8::is_ascii_digit));
    if !plain || lengths.next().is_some() {
        return malformed("framing");
    }
    if answer.status().is_informational() {
        return malformed("informational");
    }
    if headers.len() > ANSWER_MAX_FIELDS {
        return malformed("header_fields");
    }
    let bytes: usize = headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum();
    if bytes > ANSWER_MAX_HEAD {
        return malformed("header_bytes");
    }
    Ok(())
}

/// What a failed call means. Only a failed connection is known to have sent nothing.
fn classify(error: &ClientError) -> CallError {
    if error.is_connect() {
        return CallError { code: OwnCode::UpstreamUnreachable, detail: connect_detail(error), unsent: true };
    }
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(inner) = source {
        if let Some(BodyFault(code)) = inner.downcast_ref::<BodyFault>() {
            return CallError::own(*code, "request_body");
        }
        if let Some(hyper) = inner.downcast_ref::<hyper::Error>()
            && (hyper.is_parse() || hyper.is_parse_too_large())
        {
            return CallError::own(OwnCode::UpstreamMalformed, "parse");
        }
        source = inner.source();
    }
    CallError::own(OwnCode::UpstreamClosed, "closed")
}

fn connect_detail(error: &ClientError) -> &'static str {
    let mut source = std::error::Error::source(error);
    while let Some(inner) = source {
        if is_tls(inner) {
            return "tls";
        }
        if let Some(io) = inner.downcast_ref::<std::io::Error>() {
            match io.kind() {
                std::io::ErrorKind::ConnectionRefused => return "refused",
                std::io::ErrorKind::TimedOut => return "connect_timeout",
                _ => {}
            }
        }
        source = inner.source();
    }
    "connect"
}

/// Whether a failure is one of TLS: a certificate that is not trusted, or an alert from the other side. I/O errors wrap each
/// other here, and do not show what they wrap as their source.
fn is_tls(error: &(dyn std::error::Error + 'static)) -> bool {
    let wrapped = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
    error.is::<rustls::Error>() || wrapped.is_some_and(|inner| is_tls(inner))
}
