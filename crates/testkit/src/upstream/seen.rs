//! A request as it arrived.

use std::time::Instant;

use bytes::Bytes;

use crate::wire::{Headers, parse_head, values};

/// A request as it arrived at the stub. Cloning is cheap: bytes are shared.
#[derive(Clone, Debug)]
pub struct Seen {
    /// The head as on the wire, with its empty line.
    pub raw_head: Bytes,
    /// The method as it was spelt.
    pub method: String,
    /// The request target as it was spelt; bytes that are no UTF-8 show as replacement characters.
    pub target: String,
    /// Such as `HTTP/1.1`.
    pub version: String,
    /// All header lines, in order.
    pub headers: Headers,
    /// The content without chunk framing, up to the cap of [`super::Upstream::keep`].
    pub body: Bytes,
    /// The length of the content that arrived, also beyond the cap, bytes.
    pub body_len: u64,
    /// SHA-256 of the content that arrived, also beyond the cap, in hex; empty while the body is arriving.
    pub body_sha256: String,
    /// Whether the body arrived to its end.
    pub body_complete: bool,
    /// The trailer fields of a chunked body.
    pub trailers: Headers,
    /// What is odd about the bytes: two framings, repeated lengths, bare line ends, bad chunks, surplus bytes.
    pub problems: Vec<String>,
    /// Which connection it came on; the first is 1.
    pub connection: u64,
    /// Which call it was; the first is 1.
    pub number: u64,
    /// When its head was complete.
    pub arrived: Instant,
    pub(super) wire_body: Bytes,
}

impl Seen {
    pub(super) fn from_head(raw_head: Bytes, connection: u64) -> Self {
        let (start, headers, mut problems) = parse_head(&raw_head);
        let mut parts = start.splitn(3, |byte| *byte == b' ');
        let mut part = || String::from_utf8_lossy(parts.next().unwrap_or_default()).into_owned();
        let (method, target, version) = (part(), part(), part());
        if !matches!(version.as_str(), "HTTP/1.1" | "HTTP/1.0") {
            problems.push(format!("request line {:?}", String::from_utf8_lossy(&start)));
        }
        Self {
            raw_head,
            method,
            target,
            version,
            headers,
            body: Bytes::new(),
            body_len: 0,
            body_sha256: String::new(),
            body_complete: false,
            trailers: Headers::new(),
            problems,
            connection,
            number: 0,
            arrived: Instant::now(),
            wire_body: Bytes::new(),
        }
    }

    /// The first value of a field as text; bytes that are no UTF-8 show as replacement characters.
    pub fn header(&self, name: &str) -> Option<String> {
        values(&self.headers, name).first().map(|value| String::from_utf8_lossy(value).into_owned())
    }

    /// All values of a field, in order.
    pub fn headers_named(&self, name: &str) -> Vec<&[u8]> {
        values(&self.headers, name)
    }

    /// The target without its query.
    pub fn path(&self) -> &str {
        self.target.split('?').next().unwrap_or_default()
    }

    /// The whole request as on the wire, chunk framing included; the body up to the cap.
    pub fn raw(&self) -> Vec<u8> {
        [&self.raw_head[..], &self.wire_body[..]].concat()
    }
}
