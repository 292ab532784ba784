//! Entries as the API shows them. Bytes that need not be UTF-8 are told as base64, or as text with the others escaped.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use nevertwice_domain::clock::Millis;
use nevertwice_domain::entry::{Entry, Tally};
use nevertwice_domain::fingerprint::{DocumentDigest, Fingerprint};
use nevertwice_domain::status::RefusalStatus;
use nevertwice_domain::tenant::{TenantId, UpstreamName};
use nevertwice_store::{Shown, Summary};
use serde::Serialize;

/// One entry in a list.
#[derive(Serialize)]
pub(super) struct Item {
    fingerprint: Fingerprint,
    document_sha256: DocumentDigest,
    documents: u32,
    document_bytes: u64,
    upstream: UpstreamName,
    status: RefusalStatus,
    rule: String,
    suspect: bool,
    reduced: bool,
    replays: u64,
    first_refused_at: Millis,
    first_replayed_at: Option<Millis>,
    last_replayed_at: Option<Millis>,
    expires_at: Millis,
    ttl_s: u64,
    refused_tenant: TenantId,
    tenants: Vec<TenantId>,
    content_type: Option<String>,
    body_bytes: u64,
}

/// Part of a list.
#[derive(Serialize)]
pub(super) struct Items {
    pub(super) items: Vec<Item>,
    pub(super) next_cursor: Option<String>,
}

/// One entry with everything.
#[derive(Serialize)]
pub(super) struct Detail {
    #[serde(flatten)]
    item: Item,
    recorded_at: Millis,
    scope: String,
    generation: String,
    content_encoding: Option<String>,
    content_language: Option<String>,
    body_base64: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    body_text: Option<String>,
}

impl Item {
    fn new(entry: &Entry, tally: Tally, suspect: bool, body_bytes: u64) -> Self {
        Self {
            fingerprint: entry.fingerprint,
            document_sha256: entry.document.digest,
            documents: entry.document.parts,
            document_bytes: entry.document.bytes,
            upstream: entry.upstream.clone(),
            status: entry.status,
            rule: entry.rule.clone(),
            suspect,
            reduced: entry.is_reduced(),
            replays: tally.replays,
            first_refused_at: entry.first_refused_at,
            first_replayed_at: tally.first_replayed_at,
            last_replayed_at: tally.last_replayed_at,
            expires_at: entry.expires_at(),
            ttl_s: entry.ttl_ms / 1000,
            refused_tenant: entry.refused_tenant.clone(),
            tenants: tally.tenants,
            content_type: entry.fields.content_type.as_deref().map(escaped),
            body_bytes,
        }
    }
}

impl From<Summary> for Item {
    fn from(summary: Summary) -> Self {
        Self::new(&summary.entry, summary.tally, summary.suspect, summary.body_bytes)
    }
}

impl From<Shown> for Detail {
    fn from(shown: Shown) -> Self {
        let entry = &shown.entry;
        Self {
            item: Item::new(entry, shown.tally, shown.suspect, entry.body.len() as u64),
            recorded_at: entry.recorded_at,
            scope: entry.scope.clone(),
            generation: entry.generation.clone(),
            content_encoding: entry.fields.content_encoding.as_deref().map(escaped),
            content_language: entry.fields.content_language.as_deref().map(escaped),
            body_base64: STANDARD.encode(&entry.body),
            body_text: std::str::from_utf8(&entry.body).ok().map(ToOwned::to_owned),
        }
    }
}

/// Text; what is not UTF-8 and control characters as `\xNN`.
pub(super) fn escaped(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    let hex = |bytes: &[u8], text: &mut String| {
        for byte in bytes {
            // writing to a string does not fail
            let _ = write!(text, "\\x{byte:02x}");
        }
    };
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            if c.is_control() {
                hex(c.encode_utf8(&mut [0; 4]).as_bytes(), &mut text);
            } else {
                text.push(c);
            }
        }
        hex(chunk.invalid(), &mut text);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_values_are_told_as_text() {
        assert_eq!(escaped(b"text/plain; charset=\"x\""), "text/plain; charset=\"x\"");
        assert_eq!(escaped(b"form\xe9\x00\xff\xfe\n"), "form\\xe9\\x00\\xff\\xfe\\x0a");
        assert_eq!(escaped("\u{85}ü".as_bytes()), "\\xc2\\x85ü");
    }
}
