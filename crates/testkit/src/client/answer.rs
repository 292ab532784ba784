//! An answer as it arrived.

use bytes::Bytes;
use serde_json::Value;

use crate::wire::{Headers, values};

/// An answer as it arrived.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The status code.
    pub status: u16,
    /// The reason phrase; empty on HTTP/2.
    pub reason: String,
    /// The head as on the wire, with its empty line; empty on HTTP/2.
    pub head_raw: Bytes,
    /// All header lines, in order.
    pub headers: Headers,
    /// The content, without chunk framing.
    pub body: Bytes,
    /// The body as on the wire.
    pub raw_body: Bytes,
    /// The trailer fields of a chunked body.
    pub trailers: Headers,
    /// The statuses of the interim answers that came before.
    pub interim: Vec<u16>,
    /// Whether the body came to its proper end.
    pub complete: bool,
}

impl Answer {
    pub(super) fn from_head(
        status: u16,
        start: &[u8],
        head: Bytes,
        headers: Headers,
        interim: Vec<u16>,
    ) -> Self {
        // "HTTP/1.1 400 " is 13 bytes.
        let reason = String::from_utf8_lossy(start.get(13..).unwrap_or_default()).into_owned();
        Self {
            status,
            reason,
            head_raw: head,
            headers,
            body: Bytes::new(),
            raw_body: Bytes::new(),
            trailers: Headers::new(),
            interim,
            complete: false,
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

    /// The content as text; bytes that are no UTF-8 show as replacement characters.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The content as JSON; panics with the content if it is none.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| {
            panic!("client: {} with a body that is no JSON ({error}): {}", self.status, self.text())
        })
    }

    /// Whether it is marked as answered from the memory: exactly one `X-Negative-Cache` field, and it says `HIT`.
    pub fn is_hit(&self) -> bool {
        self.headers_named("x-negative-cache") == [b"HIT"]
    }
}
