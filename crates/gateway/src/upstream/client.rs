//! The HTTP client of an upstream.
//!
//! It follows no redirect, decodes nothing, and sends a request again only when not one byte of it had been written (a
//! kept connection that was found closed, or a replica that could not be connected to). It speaks HTTP/1.1: there a broken
//! exchange tells plainly whose it was.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, HeaderValue, Method, Request, Response, Uri, header};
use hyper::body::{Body, Incoming};
use nevertwice_config::checked::Upstream as Config;
use nevertwice_domain::outcome::OwnCode;
use nevertwice_domain::tenant::UpstreamName;

use super::StartError;
use super::connections::{self, Connection, Connections, SendError};
use crate::body::outbound::{BodyFault, Outbound, Progress};
use crate::lock::Lock;

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
    replicas: Vec<Replica>,
    /// Other servers that have operations of this upstream; they are polled and sent nothing else.
    poll_hosts: Vec<Replica>,
    next: AtomicUsize,
    timeout: Duration,
    idle: Duration,
    name: UpstreamName,
    /// When a failure was last logged.
    told: Lock<Option<Instant>>,
    connect: Duration,
}

struct Replica {
    connections: Arc<Connections>,
    scheme: Scheme,
    /// As it is written in the configuration.
    authority: Arc<str>,
    /// `Host`: the authority without the port that its scheme stands for.
    host: HeaderValue,
    /// Path prefix without a trailing slash.
    prefix: String,
}

/// The replica that an answer came from, among the answer's extensions.
#[derive(Clone, Debug)]
pub(crate) struct AnsweredBy(Arc<str>);

/// Where an upstream keeps something of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    /// Host and port, as they are configured.
    pub(crate) authority: String,
    /// Path and query there.
    pub(crate) path: String,
    /// The length of the replica's prefix, which is no part of what callers see.
    prefix: usize,
}

impl Address {
    /// Path and query as callers see them, but for the mount.
    pub(crate) fn within(&self) -> &str {
        &self.path[self.prefix..]
    }
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
        let connector = connections::connector(config)?;
        let (idle, most) = (config.pool.connection_idle, config.pool.max_in_flight);
        let replica =
            |base: &Uri| Replica::new(base, |to| Connections::new(connector.clone(), to, idle, most));
        let scheme = config.base_urls.first().and_then(Uri::scheme);
        let poll_hosts = config.poll_hosts.iter().filter_map(|host| {
            let base = Uri::builder().scheme(scheme?.clone()).authority(host.clone()).path_and_query("/");
            replica(&base.build().ok()?)
        });
        Ok(Self {
            replicas: config.base_urls.iter().filter_map(replica).collect(),
            poll_hosts: poll_hosts.collect(),
            next: AtomicUsize::new(0),
            name: config.name.clone(),
            told: Lock::default(),
            timeout: config.timeout,
            idle: config.idle_timeout,
            connect: config.connect_timeout,
        })
    }

    /// Says in the log why a call failed, once in ten seconds: an upstream that is down fails every one.
    fn tell(&self, error: &(dyn std::error::Error + 'static), call: CallError) {
        let now = Instant::now();
        let mut told = self.told.hold();
        if told.is_some_and(|at| now.duration_since(at) < TELL_EVERY) {
            return;
        }
        *told = Some(now);
        let mut reason = error.to_string();
        let mut source = error.source();
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
        let replica = self.replicas.iter().find(|r| r.authority.eq_ignore_ascii_case(authority))?;
        Some(&replica.prefix)
    }

    /// Where the thing is that a replica's answer gave this address of; `None` = not at this upstream. An address with a path alone
    /// is one of the replica itself. Anything else has to have the scheme, the authority and the prefix of a replica, or be at a poll
    /// host: a call goes there with the upstream's credential.
    pub(crate) fn locate(&self, answered_by: &AnsweredBy, address: &str) -> Option<Address> {
        if address.starts_with("//") || address.contains(['#', '\\']) {
            return None;
        }
        let uri = address.parse::<Uri>().ok()?;
        let path = uri.path_and_query().filter(|path| path.as_str().starts_with('/'))?;
        let is_own = |replica: &Replica| match (uri.scheme(), uri.authority()) {
            (None, None) => replica.authority == answered_by.0,
            (Some(scheme), Some(authority)) => replica.is_at(scheme, authority),
            _ => false,
        };
        let mut all = self.replicas.iter().chain(&self.poll_hosts);
        all.find_map(|own| {
            let prefix = own.prefix.as_str();
            let within = path.as_str().strip_prefix(prefix).filter(|p| is_own(own) && p.starts_with('/'));
            within.map(|_| Address {
                authority: own.authority.to_string(),
                path: path.to_string(),
                prefix: prefix.len(),
            })
        })
    }

    /// An address below the replica that answered.
    pub(crate) fn below(&self, answered_by: &AnsweredBy, path: &str) -> Option<Address> {
        let replica = self.replicas.iter().find(|replica| replica.authority == answered_by.0)?;
        let path = format!("{}{path}", replica.prefix);
        Some(Address { authority: replica.authority.to_string(), path, prefix: replica.prefix.len() })
    }

    /// Whether calls can go to this authority.
    pub(crate) fn knows(&self, authority: &str) -> bool {
        self.at(authority).is_some()
    }

    fn at(&self, authority: &str) -> Option<&Replica> {
        self.replicas.iter().chain(&self.poll_hosts).find(|r| *r.authority == *authority)
    }

    /// Sends the request to the replica at `authority` and to no other; the path has its prefix already.
    pub(crate) async fn send_at(
        &self,
        authority: &str,
        path: &PathAndQuery,
        head: &mut http::request::Parts,
        body: Outbound,
    ) -> Result<Response<Incoming>, CallError> {
        let gone = CallError { code: OwnCode::OperationGone, detail: "no_replica", unsent: true };
        let replica = self.at(authority).ok_or(gone)?;
        let headers = std::mem::take(&mut head.headers);
        self.send_to(replica, path.clone().into(), (head.method.clone(), headers), body).await
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
            let uri = replica.uri(path).ok_or(CallError::own(OwnCode::BadRequest, "path"))?;
            match self.send_to(replica, uri, (head.method.clone(), headers), body()).await {
                Err(error) if error.unsent => last = error,
                result => return result,
            }
        }
        Err(last)
    }

    async fn send_to(
        &self,
        replica: &Replica,
        uri: Uri,
        (method, headers): (Method, HeaderMap),
        body: Outbound,
    ) -> Result<Response<Incoming>, CallError> {
        let progress = body.progress();
        let mut request = Request::new(body);
        *request.uri_mut() = uri;
        *request.headers_mut() = headers;
        if request.body().is_end_stream() && [Method::POST, Method::PUT, Method::PATCH].contains(&method) {
            // a server may ask for a length where a body is usual (RFC 9110 section 8.6); hyper says none for an empty one
            request.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from_static("0"));
        }
        request.headers_mut().insert(header::HOST, replica.host.clone());
        *request.method_mut() = method;
        let mut kept = replica.connections.take();
        loop {
            let (mut connection, fresh) = match kept {
                Some(connection) => (connection, false),
                None => (self.connect(replica).await?, true),
            };
            let sent = Instant::now();
            match self.until_head(connection.send(request), &progress).await? {
                Ok(mut answer) => {
                    // where a malformed answer ends is in doubt: what came next on its connection could answer another request
                    check_head(&answer)?;
                    replica.connections.keep(connection, answer.headers());
                    answer.extensions_mut().insert(AnsweredBy(Arc::clone(&replica.authority)));
                    return Ok(answer);
                }
                Err(error) => {
                    replica.connections.broke(&connection, sent.elapsed());
                    match error {
                        SendError::Unsent(again) if !fresh => request = *again,
                        error => return Err(self.failed(error)),
                    }
                    kept = replica.connections.take();
                }
            }
        }
    }

    /// A new connection to the replica.
    async fn connect(&self, replica: &Replica) -> Result<Connection, CallError> {
        let unreachable = |detail| CallError { code: OwnCode::UpstreamUnreachable, detail, unsent: true };
        match tokio::time::timeout(self.connect, replica.connections.connect()).await {
            Ok(Ok(connection)) => Ok(connection),
            Ok(Err(error)) => {
                let call = unreachable(connect_detail(&*error));
                self.tell(&*error, call);
                Err(call)
            }
            Err(_) => Err(unreachable("connect_timeout")),
        }
    }

    /// Waits for the answer's head as long as the body moves on, then as long as the upstream may think.
    async fn until_head<T>(
        &self,
        answer: impl Future<Output = T>,
        progress: &Progress,
    ) -> Result<T, CallError> {
        let mut answer = std::pin::pin!(answer);
        loop {
            let (last, ended) = progress.state();
            // a client that stalls is found out by its own body first
            let (until, detail) = match ended {
                true => (last + self.timeout, "answer_timeout"),
                false => (last + self.idle + GRACE, "upload_stalled"),
            };
            let now = Instant::now();
            if now >= until {
                return Err(CallError::own(OwnCode::UpstreamTimeout, detail));
            }
            // a body that ends meanwhile ends now at the earliest
            let look_again = if ended { until } else { until.min(now + self.timeout) };
            if let Ok(answer) = tokio::time::timeout_at(look_again.into(), answer.as_mut()).await {
                return Ok(answer);
            }
        }
    }

    /// What a call means that broke on its connection.
    fn failed(&self, error: SendError) -> CallError {
        let (call, error) = match error {
            SendError::Unsent(_) => return CallError::own(OwnCode::UpstreamClosed, "closed"),
            SendError::Broken(error) => (classify(&error), error),
        };
        self.tell(&error, call);
        call
    }
}

impl CallError {
    fn own(code: OwnCode, detail: &'static str) -> Self {
        Self { code, detail, unsent: false }
    }
}

impl Replica {
    fn new(base: &Uri, connections: impl FnOnce(Uri) -> Arc<Connections>) -> Option<Self> {
        let (scheme, authority) = (base.scheme()?, base.authority()?);
        let usual = if *scheme == Scheme::HTTPS { 443 } else { 80 };
        let host = match authority.port_u16() {
            Some(port) if port != usual => authority.as_str(),
            _ => authority.host(),
        };
        let to = Uri::builder().scheme(scheme.clone()).authority(authority.clone()).path_and_query("/");
        Some(Self {
            connections: connections(to.build().ok()?),
            scheme: scheme.clone(),
            authority: authority.as_str().into(),
            host: HeaderValue::from_str(host).ok()?,
            prefix: base.path().trim_end_matches('/').to_owned(),
        })
    }

    /// Whether an address with this scheme and authority is one of its own. Nothing but host and port stands in the latter.
    fn is_at(&self, scheme: &Scheme, authority: &Authority) -> bool {
        let usual = if *scheme == Scheme::HTTPS { 443 } else { 80 };
        let own = self.authority.parse::<Authority>().ok();
        self.scheme == *scheme
            && !authority.as_str().contains('@')
            && own.is_some_and(|own| {
                own.host().eq_ignore_ascii_case(authority.host())
                    && own.port_u16().unwrap_or(usual) == authority.port_u16().unwrap_or(usual)
            })
    }

    fn uri(&self, path: &PathAndQuery) -> Option<Uri> {
        if self.prefix.is_empty() {
            return Some(path.clone().into());
        }
        Some(PathAndQuery::from_maybe_shared(format!("{}{path}", self.prefix)).ok()?.into())
    }
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

/// What a call means that failed after something of it may have been sent.
fn classify(error: &hyper::Error) -> CallError {
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

fn connect_detail(error: &(dyn std::error::Error + 'static)) -> &'static str {
    let mut source = Some(error);
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
