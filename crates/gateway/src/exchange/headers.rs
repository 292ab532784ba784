//! Which header fields go on, and which end here.

use std::sync::LazyLock;

use http::{HeaderMap, HeaderName, HeaderValue, header};
use nevertwice_domain::trace::Trace;

use super::identify::{KEY_HEADERS, Tenants};
use crate::upstream::Upstream;

/// `X-Negative-Cache`.
pub(crate) static MARKER: HeaderName = HeaderName::from_static("x-negative-cache");
/// `X-Negative-Cache-Entry`.
pub(crate) static MARKER_ENTRY: HeaderName = HeaderName::from_static("x-negative-cache-entry");
/// `X-Negative-Cache-Body`.
pub(crate) static MARKER_BODY: HeaderName = HeaderName::from_static("x-negative-cache-body");
/// `X-Gateway-Error`.
pub(crate) static GATEWAY_ERROR: HeaderName = HeaderName::from_static("x-gateway-error");
/// `Cache-Status` (RFC 9211).
pub(crate) static CACHE_STATUS: HeaderName = HeaderName::from_static("cache-status");
/// `x-should-retry`, which SDKs obey on any status.
pub(crate) static SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");
/// `traceparent` (W3C Trace Context).
pub(crate) static TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

static TRACESTATE: HeaderName = HeaderName::from_static("tracestate");
static KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
static PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");

/// Fields that speak of one connection alone (RFC 9110 section 7.6.1).
fn hop_by_hop() -> [&'static HeaderName; 9] {
    [
        &header::CONNECTION,
        &KEEP_ALIVE,
        &PROXY_CONNECTION,
        &header::PROXY_AUTHENTICATE,
        &header::PROXY_AUTHORIZATION,
        &header::TE,
        &header::TRAILER,
        &header::TRANSFER_ENCODING,
        &header::UPGRADE,
    ]
}

/// What a sender cannot name away: the gateway relies on the host, and a document, or a refusal, without the fields that
/// describe it would be another one.
static KEPT: [HeaderName; 4] =
    [header::HOST, header::CONTENT_TYPE, header::CONTENT_ENCODING, header::CONTENT_LANGUAGE];

/// Removes the fields that `Connection` names, but for [`KEPT`].
pub(super) fn strip_named(headers: &mut HeaderMap) {
    if headers.contains_key(header::CONNECTION) {
        let named: Vec<HeaderName> = headers
            .get_all(header::CONNECTION)
            .iter()
            .flat_map(|value| value.as_bytes().split(|b| *b == b','))
            .filter_map(|name| HeaderName::from_bytes(name.trim_ascii()).ok())
            .filter(|name| !KEPT.contains(name))
            .collect();
        for name in named {
            headers.remove(name);
        }
    }
}

/// Removes hop-by-hop fields and those that `Connection` names.
fn strip_hop_by_hop(headers: &mut HeaderMap) {
    strip_named(headers);
    // looked for first: most messages have none of them
    let found: Vec<_> =
        hop_by_hop().into_iter().filter(|hop| headers.keys().any(|name| name == *hop)).collect();
    for name in found {
        headers.remove(name);
    }
}

/// Removes what only the gateway may say.
fn strip_markers(headers: &mut HeaderMap) {
    for name in [&MARKER, &MARKER_ENTRY, &MARKER_BODY, &GATEWAY_ERROR] {
        headers.remove(name);
    }
    let own = |value: &HeaderValue| memchr::memmem::find(value.as_bytes(), b"nevertwice").is_some();
    if headers.get_all(&CACHE_STATUS).iter().any(own) {
        headers.remove(&CACHE_STATUS);
    }
}

/// The client fields that go upstream on a guarded route, beside the route's `key_headers`: all of them are in the key.
static ALLOWED: [HeaderName; 4] =
    [header::CONTENT_TYPE, header::CONTENT_ENCODING, header::CONTENT_LANGUAGE, header::ACCEPT];

/// What a client sent of these, in the order they are keyed.
pub(super) fn keyed<'a>(
    client: &'a HeaderMap,
    key_headers: &'a [HeaderName],
) -> impl Iterator<Item = (&'a HeaderName, &'a HeaderValue)> {
    let names = ALLOWED.iter().chain(key_headers);
    names.flat_map(|name| client.get_all(name).iter().map(move |value| (name, value)))
}

/// Who is calling, to an upstream on a guarded route: the client's own `User-Agent` is not in the key.
static USER_AGENT: LazyLock<HeaderValue> =
    LazyLock::new(|| HeaderValue::from_static(concat!("nevertwice/", env!("CARGO_PKG_VERSION"))));

/// The fields of a guarded request: what is not in the key is not sent.
pub(crate) fn guarded(client: &HeaderMap, key_headers: &[HeaderName], trace: &Trace) -> HeaderMap {
    let mut out = HeaderMap::with_capacity(8);
    out.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    if !key_headers.contains(&header::USER_AGENT) {
        out.insert(header::USER_AGENT, USER_AGENT.clone());
    }
    for (name, value) in keyed(client, key_headers) {
        out.append(name.clone(), value.clone());
    }
    set_trace(&mut out, trace);
    out
}

/// Whether a request's body is in a content coding, or is said to be of several types.
pub(super) fn is_opaque(headers: &HeaderMap) -> bool {
    let plain = |value: &HeaderValue| {
        let coding = value.as_bytes().trim_ascii();
        coding.is_empty() || coding.eq_ignore_ascii_case(b"identity")
    };
    !headers.get_all(header::CONTENT_ENCODING).iter().all(plain)
        || headers.get_all(header::CONTENT_TYPE).iter().count() > 1
}

/// The fields of a request that passes without the memory: the client's, by plain proxy rules.
pub(super) fn passing(
    client: &HeaderMap,
    tenants: &Tenants,
    upstream: &Upstream,
    trace: &Trace,
) -> HeaderMap {
    let mut out = client.clone();
    strip_hop_by_hop(&mut out);
    strip_markers(&mut out);
    for name in [header::HOST, header::CONTENT_LENGTH, header::EXPECT] {
        out.remove(name);
    }
    if tenants.keyed || upstream.credential.is_some() {
        // these were for the gateway, or are replaced by its own
        out.remove(header::AUTHORIZATION);
        for name in KEY_HEADERS {
            out.remove(name);
        }
    }
    if let Some(name) = &tenants.header {
        out.remove(name);
    }
    if !trace.continues() {
        // it belongs to a trace that is not this one
        out.remove(&TRACESTATE);
    }
    set_trace(&mut out, trace);
    out
}

fn set_trace(out: &mut HeaderMap, trace: &Trace) {
    if let Ok(value) = HeaderValue::from_maybe_shared(bytes::Bytes::from(trace.header())) {
        out.insert(TRACEPARENT.clone(), value);
    }
}

/// Puts the upstream's own credential in.
pub(crate) fn set_credential(out: &mut HeaderMap, upstream: &Upstream) {
    if let Some((name, value)) = &upstream.credential {
        out.insert(name.clone(), value.clone());
    }
}

/// The fields of an upstream's answer on their way to the client. Framing is made anew; `keep_length` is for answers
/// without a body that state the length of one (HEAD, 304).
pub(super) fn answer(headers: &mut HeaderMap, keep_length: bool) {
    strip_hop_by_hop(headers);
    strip_markers(headers);
    if !keep_length {
        headers.remove(header::CONTENT_LENGTH);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_connection_names_goes_with_it_but_not_the_body_s_description() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("connection", "close, X-Secret ,content-type"),
            ("x-secret", "1"),
            ("content-type", "a/b"),
            ("te", "trailers"),
        ] {
            headers.insert(name, HeaderValue::from_static(value));
        }
        strip_hop_by_hop(&mut headers);
        assert_eq!(headers.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["content-type"]);
    }
}
