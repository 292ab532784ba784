//! The audit event: one per request, written as one JSON line. It holds no bodies and no secrets, and every text in it that
//! a client chose is escaped and bounded.

use std::fmt::Display;
use std::io::Write;

use crate::clock::Millis;
use crate::fingerprint::{DocumentDigest, Fingerprint};
use crate::job::JobId;
use crate::outcome::Outcome;
use crate::tenant::{TenantId, UpstreamName};
use crate::trace::TraceId;

/// The most bytes of a path that a line shows; the rest is cut and marked with `…`.
pub const MAX_PATH: usize = 2048;

/// One request, as the audit tells it (DESIGN: the audit line). Times in milliseconds, sizes in bytes.
#[derive(Clone, Debug)]
pub struct AuditEvent {
    /// When the request's head arrived.
    pub ts: Millis,
    /// The trace it belongs to.
    pub trace_id: TraceId,
    /// Who asked; absent when nobody could be authenticated.
    pub tenant: Option<TenantId>,
    /// The upstream, when a route matched.
    pub upstream: Option<UpstreamName>,
    /// The matched route: a configured path, or `*` for a path that merely passes through.
    pub route: Option<std::sync::Arc<str>>,
    /// The method.
    pub method: String,
    /// The path as the client sent it, without the query; cut at [`MAX_PATH`].
    pub path: String,
    /// The status that was answered.
    pub status: u16,
    /// How it ended.
    pub code: Outcome,
    /// Whether it was answered with an answer from before: from the memory, or by the loop breaker.
    pub cache_hit: bool,
    /// The key, on a guarded route.
    pub fingerprint: Option<Fingerprint>,
    /// The document, when it is known: on a recorded refusal, on a replay and on a held request.
    pub document_sha256: Option<DocumentDigest>,
    /// Body bytes received from the client.
    pub bytes_in: u64,
    /// Body bytes sent to the client.
    pub bytes_out: u64,
    /// From sending the request upstream until its answer's head; 0 for a replay and for a held request.
    pub upstream_ms: u64,
    /// From the request's head to the end of the answer.
    pub total_ms: u64,
    /// Waiting for a place in the pool.
    pub queue_ms: u64,
    /// Requests sent upstream for this one.
    pub attempts: u32,
    /// What broke, when the answer's body did not end well: a short word such as `upstream_aborted` or `client_closed`.
    pub end: Option<&'static str>,
    /// What would have been replayed, under `mode: observe`.
    pub would_replay: Option<bool>,
    /// The job that this was an attempt of: nobody's request, but a worker's.
    pub job: Option<JobId>,
}

/// A client's path for the audit: escaped by JSON later, cut here.
#[must_use]
pub fn bounded_path(path: &str) -> String {
    if path.len() <= MAX_PATH {
        return path.to_owned();
    }
    let mut end = MAX_PATH;
    while !path.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}…", &path[..end])
}

impl AuditEvent {
    /// Appends the event as one JSON line. Written by hand, since every request pays for it; texts that a client chose go
    /// through the JSON library's escaping.
    pub fn write_line(&self, out: &mut Vec<u8>) {
        let mut line = Line { out };
        line.out.extend_from_slice(b"{\"ts\":\"");
        line.out.extend_from_slice(&self.ts.to_rfc3339());
        line.out.push(b'"');
        line.ascii("trace_id", &self.trace_id.to_hex());
        line.name_or_null("tenant", self.tenant.as_ref().map(TenantId::as_str));
        line.name_or_null("upstream", self.upstream.as_ref().map(UpstreamName::as_str));
        match &self.route {
            Some(route) => line.text("route", route),
            None => line.literal("route", "null"),
        }
        line.text("method", &self.method);
        line.text("path", &self.path);
        line.number("status", self.status.into());
        line.plain("code", &self.code);
        line.boolean("cache_hit", self.cache_hit);
        if let Some(fingerprint) = &self.fingerprint {
            line.ascii("fingerprint", &fingerprint.to_hex());
        }
        if let Some(document) = &self.document_sha256 {
            line.ascii("document_sha256", &document.to_hex());
        }
        line.number("bytes_in", self.bytes_in);
        line.number("bytes_out", self.bytes_out);
        line.number("upstream_ms", self.upstream_ms);
        line.number("total_ms", self.total_ms);
        line.number("queue_ms", self.queue_ms);
        line.number("attempts", self.attempts.into());
        if let Some(end) = self.end {
            line.ascii("end", end.as_bytes());
        }
        if let Some(would_replay) = self.would_replay {
            line.boolean("would_replay", would_replay);
        }
        if let Some(job) = &self.job {
            line.plain("job", job);
        }
        line.out.extend_from_slice(b"}\n");
    }
}

/// A JSON object on its way into a buffer. Writing to memory does not fail.
struct Line<'a> {
    out: &'a mut Vec<u8>,
}

impl Line<'_> {
    /// The name of a field that is not the first.
    fn name(&mut self, name: &str) {
        self.out.extend_from_slice(b",\"");
        self.out.extend_from_slice(name.as_bytes());
        self.out.extend_from_slice(b"\":");
    }

    fn literal(&mut self, name: &str, value: &str) {
        self.name(name);
        self.out.extend_from_slice(value.as_bytes());
    }

    fn boolean(&mut self, name: &str, value: bool) {
        self.literal(name, if value { "true" } else { "false" });
    }

    fn number(&mut self, name: &str, value: u64) {
        self.literal(name, itoa::Buffer::new().format(value));
    }

    /// A text of the gateway's own making, which needs no escaping.
    fn ascii(&mut self, name: &str, value: &[u8]) {
        self.name(name);
        self.out.push(b'"');
        self.out.extend_from_slice(value);
        self.out.push(b'"');
    }

    fn plain(&mut self, name: &str, value: &dyn Display) {
        self.name(name);
        let _ = write!(self.out, "\"{value}\"");
    }

    fn name_or_null(&mut self, name: &str, value: Option<&str>) {
        match value {
            // names are letters, digits, `_`, `-` and `.`
            Some(value) => self.ascii(name, value.as_bytes()),
            None => self.literal(name, "null"),
        }
    }

    /// Any text. JSON escapes every control character, so a line is always one line; U+2028 and U+2029, which some readers
    /// take for line ends, are escaped as well.
    fn text(&mut self, name: &str, value: &str) {
        self.name(name);
        let escaped = |out: &mut Vec<u8>, text: &str| {
            let _ = serde_json::to_writer(out, text);
        };
        let plain = |b: u8| (b' '..=b'~').contains(&b) && b != b'"' && b != b'\\';
        if value.bytes().all(plain) {
            self.out.push(b'"');
            self.out.extend_from_slice(value.as_bytes());
            return self.out.push(b'"');
        }
        if !value.contains(['\u{2028}', '\u{2029}']) {
            return escaped(self.out, value);
        }
        self.out.push(b'"');
        for piece in value.split_inclusive(['\u{2028}', '\u{2029}']) {
            let plain = piece.trim_end_matches(['\u{2028}', '\u{2029}']);
            let mut text = Vec::new();
            escaped(&mut text, plain);
            self.out.extend_from_slice(text.get(1..text.len().saturating_sub(1)).unwrap_or_default());
            match &piece[plain.len()..] {
                "\u{2028}" => self.out.extend_from_slice(b"\\u2028"),
                "\u{2029}" => self.out.extend_from_slice(b"\\u2029"),
                _ => {}
            }
        }
        self.out.push(b'"');
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::Trace;

    fn event(path: &str) -> AuditEvent {
        AuditEvent {
            ts: Millis(0),
            trace_id: Trace::from_header(None, || 1).id(),
            tenant: Some(TenantId::anonymous()),
            upstream: None,
            route: None,
            method: "POST".into(),
            path: bounded_path(path),
            status: 400,
            code: Outcome::of_upstream(http::StatusCode::BAD_REQUEST),
            cache_hit: false,
            fingerprint: None,
            document_sha256: None,
            bytes_in: 1,
            bytes_out: 2,
            upstream_ms: 3,
            total_ms: 4,
            queue_ms: 0,
            attempts: 1,
            end: None,
            would_replay: None,
            job: None,
        }
    }

    #[test]
    fn a_line_is_one_line_whatever_the_client_sent() {
        for path in ["/a\n{\"forged\":1}", "/\u{2028}x\u{2029}", "/\0\"\\", &"/long".repeat(10_000)] {
            let mut out = Vec::new();
            event(path).write_line(&mut out);
            let text = String::from_utf8(out).unwrap_or_default();
            assert_eq!(text.lines().count(), 1);
            assert!(text.len() < 4 * MAX_PATH && !text.contains('\u{2028}'));
            let value: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
            assert_eq!(value["code"], "HTTP_400");
            assert!(path.starts_with(value["path"].as_str().unwrap_or("?").trim_end_matches('…')));
        }
    }
}
