//! The answer to the client: from the memory, from the upstream, or the gateway's own.

mod stream;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Method, Response, StatusCode, Version, header};
use nevertwice_config::checked::Facade;
use nevertwice_domain::entry::{Entry, ReplayFields};
use nevertwice_domain::fingerprint::Fingerprint;
use nevertwice_domain::operation::{Operation, Whereabouts, failed_anew};
use nevertwice_domain::outcome::{Outcome, OwnCode};
use nevertwice_domain::status::RefusalStatus;

pub(crate) use stream::Reply;

use super::Rejection;
use super::account::Record;
use super::headers;
use super::judge::{Answer, AnswerBody};
use super::operation::Minted;
use super::recall::Known;
use crate::Shared;
use crate::facade::azure_di::OPERATION_LOCATION;
use crate::loop_breaker::Held;
use crate::pool::Permit;
use crate::upstream::Upstream;

/// An answer of the upstream from before.
pub(super) fn known(gateway: &Shared, known: &Known, record: Box<Record>) -> Response<Reply> {
    match known {
        Known::Refused(entry) => replay(gateway, entry, record),
        Known::Held(held) => self::held(held, record),
        Known::Minted(minted) => self::minted(gateway, minted, record),
        Known::Failed(operation) => failed(gateway, operation, record),
        Known::Removed => removed(record),
    }
}

/// Counts a replay. Returns how long the entry lives, in milliseconds.
pub(super) fn count_replay(gateway: &Shared, entry: &Entry, record: &mut Record) -> u64 {
    let upstream = record.upstream();
    if let (Some(memory), Some(tenant)) = (&gateway.memory, record.tenant_id()) {
        memory.count_replay(entry, &tenant);
    }
    if let Some(upstream) = &upstream {
        upstream.metrics.replayed(entry.status);
    }
    record.document = Some(entry.document.digest);
    record.fingerprint = Some(entry.fingerprint);
    let now = gateway.clock.now();
    let left_ms = match upstream.as_ref().and_then(|u| u.guard.as_ref()) {
        Some(guard) => entry.remaining_under(&guard.rules.life, now),
        None => entry.remaining_ms(now),
    };
    left_ms.unwrap_or(0)
}

/// The upstream's own refusal, from the memory: marked, and byte for byte, or marked as reduced.
fn replay(gateway: &Shared, entry: &Entry, mut record: Box<Record>) -> Response<Reply> {
    let left_ms = count_replay(gateway, entry, &mut record);
    let again = Again {
        outcome: Outcome::Replayed(entry.status),
        status: entry.status.status_code(),
        fields: &entry.fields,
        body: &entry.body,
        reduced: entry.is_reduced(),
        fingerprint: &entry.fingerprint,
        marker: "HIT",
        detail: "refusal",
        age_ms: gateway.clock.now().since_ms(entry.recorded_at),
        left_ms,
    };
    again.answer(record)
}

/// An operation that will have failed, for a document whose operations have: the poll of it tells the rest.
fn minted(gateway: &Shared, minted: &Minted, mut record: Box<Record>) -> Response<Reply> {
    let Minted { entry, location } = minted;
    let again = Again {
        outcome: Outcome::Replayed(entry.status),
        status: StatusCode::ACCEPTED,
        fields: &ReplayFields::default(),
        body: &Bytes::new(),
        reduced: false,
        fingerprint: &entry.fingerprint,
        marker: "HIT",
        detail: "refusal",
        age_ms: gateway.clock.now().since_ms(entry.recorded_at),
        left_ms: count_replay(gateway, entry, &mut record),
    };
    let mut response = again.answer(record);
    if let Ok(location) = HeaderValue::from_str(location) {
        response.headers_mut().insert(OPERATION_LOCATION.clone(), location);
    }
    response
}

/// The poll of an operation of the gateway's own making: the stored failure, as if it was of now.
fn failed(gateway: &Shared, operation: &Operation, mut record: Box<Record>) -> Response<Reply> {
    let Whereabouts::Known { fingerprint, body, content_type, recorded_at, valid_until } = &operation.at
    else {
        return own(OwnCode::Internal.into(), record);
    };
    record.fingerprint = Some(*fingerprint);
    let now = gateway.clock.now();
    let content_type = content_type.clone().map(Bytes::from);
    let again = Again {
        outcome: Outcome::Replayed(RefusalStatus::failed_operation()),
        status: StatusCode::OK,
        fields: &ReplayFields { content_type, ..ReplayFields::default() },
        body: &Bytes::from(failed_anew(body, operation.created_at)),
        reduced: false,
        fingerprint,
        marker: "HIT",
        detail: "refusal",
        age_ms: now.since_ms(*recorded_at),
        left_ms: valid_until.since_ms(now),
    };
    again.answer(record)
}

/// An operation of the gateway's own making is no more.
fn removed(mut record: Box<Record>) -> Response<Reply> {
    record.answered(Outcome::Ok, StatusCode::NO_CONTENT);
    let mut response = Response::new(Reply::whole(Bytes::new(), record));
    *response.status_mut() = StatusCode::NO_CONTENT;
    response
}

/// The upstream's last answer, while it is spared the request: byte for byte, and marked.
fn held(held: &Held, mut record: Box<Record>) -> Response<Reply> {
    count_held(held, &mut record);
    let Held { answer, .. } = held;
    let again = Again {
        outcome: Outcome::Held(answer.status),
        status: answer.status,
        fields: &answer.fields,
        body: &answer.body,
        reduced: false,
        fingerprint: &held.fingerprint,
        marker: "HELD",
        detail: "held",
        age_ms: held.age_ms,
        left_ms: held.left_ms,
    };
    again.answer(record)
}

/// The upstream is spared a request.
pub(super) fn count_held(held: &Held, record: &mut Record) {
    if let Some(breaker) = record.upstream().as_ref().and_then(|u| u.loop_breaker.as_ref()) {
        breaker.metrics.held(held.answer.status.as_u16());
    }
    record.document = held.document;
}

/// What is answered once more, and how it is marked.
struct Again<'a> {
    outcome: Outcome,
    status: StatusCode,
    fields: &'a ReplayFields,
    body: &'a Bytes,
    /// The body is not all of what the upstream said.
    reduced: bool,
    fingerprint: &'a Fingerprint,
    marker: &'static str,
    detail: &'static str,
    age_ms: u64,
    left_ms: u64,
}

impl Again<'_> {
    fn answer(self, mut record: Box<Record>) -> Response<Reply> {
        let kept = [
            (header::CONTENT_TYPE, &self.fields.content_type),
            (header::CONTENT_ENCODING, &self.fields.content_encoding),
            (header::CONTENT_LANGUAGE, &self.fields.content_language),
        ];
        record.answered(self.outcome, self.status);
        let mut response = Response::new(Reply::whole(self.body.clone(), record));
        *response.status_mut() = self.status;
        let out = response.headers_mut();
        out.reserve(11);
        for (name, value) in kept {
            let value = value.as_ref().and_then(|v| HeaderValue::from_maybe_shared(v.clone()).ok());
            if let Some(value) = value {
                out.insert(name, value);
            }
        }
        out.insert(headers::MARKER.clone(), HeaderValue::from_static(self.marker));
        out.insert(header::AGE, HeaderValue::from(self.age_ms / 1000));
        let left_s = self.left_ms.div_ceil(1000);
        let status = format!("nevertwice; hit; ttl={left_s}; detail={}", self.detail);
        if let Ok(value) = HeaderValue::from_maybe_shared(Bytes::from(status)) {
            out.insert(headers::CACHE_STATUS.clone(), value);
        }
        if let Ok(value) = HeaderValue::from_maybe_shared(Bytes::from(self.fingerprint.to_string())) {
            out.insert(headers::MARKER_ENTRY.clone(), value);
        }
        if self.reduced {
            out.insert(headers::MARKER_BODY.clone(), HeaderValue::from_static("reduced"));
        }
        out.insert(headers::SHOULD_RETRY.clone(), HeaderValue::from_static("false"));
        response
    }
}

/// An answer whose client left before it was there.
pub(super) fn abandon(answer: Response<Reply>) {
    answer.into_body().abandon();
}

/// The upstream's answer.
pub(super) fn live(answer: Answer, permit: Arc<Permit>, mut record: Box<Record>) -> Response<Reply> {
    let outcome = answer.outcome();
    let Answer { mut head, body, .. } = answer;
    let keep_length = record.method == Method::HEAD || head.status == StatusCode::NOT_MODIFIED;
    headers::answer(&mut head.headers, keep_length);
    let upstream = record.upstream();
    let leads_on =
        |u: &Upstream| head.status.is_redirection() || u.config.adapter.facade() == Facade::AzureDi;
    if let Some(upstream) = upstream.as_ref().filter(|u| leads_on(u)) {
        home_location(&mut head.headers, upstream);
    }
    record.answered(outcome, head.status);
    let (idle, total) = match &upstream {
        Some(u) => (u.config.idle_timeout, u.config.stream_max),
        None => (Duration::from_secs(60), None),
    };
    let body = match body {
        // a refusal that was read whole needs its place no longer
        AnswerBody::Whole(bytes) => Reply::whole(bytes, record),
        AnswerBody::Live(rest) => Reply::relay(Vec::new(), rest, idle, total, permit, record),
        AnswerBody::Begun(chunks, rest) => Reply::relay(chunks, rest, idle, total, permit, record),
    };
    let mut response = Response::new(body);
    *response.status_mut() = head.status;
    *response.headers_mut() = head.headers;
    response
}

/// A redirect to the upstream itself becomes one to its place behind the gateway: the caller should not go around it, and
/// need not learn the internal name. Others are passed on as they are; the gateway follows none.
fn home_location(fields: &mut http::HeaderMap, upstream: &Upstream) {
    let Some(mount) = &upstream.config.mount else { return };
    let Some(location) = fields.get(header::LOCATION).and_then(|v| v.to_str().ok()) else { return };
    // `//host/path` names a host as well (RFC 3986 section 4.2)
    let whole = location.starts_with("//").then(|| format!("http:{location}"));
    let Ok(uri) = whole.as_deref().unwrap_or(location).parse::<http::Uri>() else { return };
    let prefix = match uri.authority() {
        Some(authority) => upstream.client.prefix_of(authority.as_str()),
        // an absolute path: of whichever replica answered
        None if location.starts_with('/') => upstream.client.prefix(),
        None => None,
    };
    let (Some(prefix), Some(path)) = (prefix, uri.path_and_query()) else { return };
    // beside the prefix is not behind this mount
    let Some(within) =
        path.as_str().strip_prefix(prefix).filter(|p| p.is_empty() || p.starts_with(['/', '?']))
    else {
        return;
    };
    let fragment = location.find('#').map_or("", |at| &location[at..]);
    let root = if mount.is_empty() && !within.starts_with('/') { "/" } else { "" };
    let home = format!("{mount}{root}{within}{fragment}");
    if let Ok(value) = HeaderValue::from_str(&home) {
        fields.insert(header::LOCATION, value);
    }
}

/// The gateway's own answer: a problem document (RFC 9457) with a stable code, never to be taken for an upstream's.
pub(crate) fn own(rejection: Rejection, mut record: Box<Record>) -> Response<Reply> {
    let Rejection { code, detail, retry_after_s } = rejection;
    record.answered(Outcome::Own(code), code.status_code());
    let close = (record.body_unread || closes(code)) && record.version <= Version::HTTP_11;
    let is_azure = record.upstream().is_some_and(|u| u.config.adapter.facade() == Facade::AzureDi);
    let body = problem(code, detail, is_azure);
    let mut response = Response::new(Reply::whole(body, record));
    *response.status_mut() = code.status_code();
    let out = response.headers_mut();
    out.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    out.insert(headers::GATEWAY_ERROR.clone(), HeaderValue::from_static(code.name()));
    if let Some(seconds) = retry_after_s {
        out.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    if code == OwnCode::Unauthenticated {
        out.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    if close {
        out.insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// The body of the gateway's own answer. Clients of Azure get the error where they look for it, and no `status`: there, that is a
/// word, and those in JavaScript say of a number only that they cannot read it.
pub(crate) fn problem(code: OwnCode, detail: Option<&'static str>, is_azure: bool) -> Bytes {
    let mut body = serde_json::json!({
        "type": format!("urn:nevertwice:outcome:{}", code.name()),
        "title": code.title(),
        "status": code.status(),
        "code": code.name(),
    });
    if let Some(detail) = detail {
        body["detail"] = detail.into();
    }
    if is_azure {
        body["error"] = serde_json::json!({ "code": code.name(), "message": detail.unwrap_or(code.title()) });
        if let Some(members) = body.as_object_mut() {
            members.shift_remove("status");
        }
    }
    body.to_string().into()
}

/// After these the connection cannot be trusted to be in step, or is not wanted any more.
fn closes(code: OwnCode) -> bool {
    matches!(code, OwnCode::BadRequest | OwnCode::BodyTimeout | OwnCode::Draining)
}
