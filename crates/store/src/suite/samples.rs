//! Entries to test with, each made from a number.

use bytes::Bytes;
use nevertwice_domain::clock::Millis;
use nevertwice_domain::entry::{Candidate, DocumentFacts, ENTRY_SCHEMA, Entry, ReplayFields};
use nevertwice_domain::fingerprint::{DocumentDigest, Fingerprint};
use nevertwice_domain::status::RefusalStatus;
use nevertwice_domain::strike::{Ladder, LifePolicy};
use nevertwice_domain::tenant::{TenantId, UpstreamName};

/// How long a sample lives.
pub const TTL_MS: u64 = 60_000;

/// The `n`th key.
#[must_use]
pub fn fingerprint(n: u64) -> Fingerprint {
    Fingerprint::from_bytes(blake3::hash(&n.to_le_bytes()).into())
}

/// The digest of the `n`th document.
#[must_use]
pub fn document(n: u64) -> DocumentDigest {
    DocumentDigest::of(&n.to_le_bytes())
}

/// An upstream.
///
/// # Panics
/// When this is no valid name.
#[must_use]
pub fn upstream(name: &str) -> UpstreamName {
    UpstreamName::new(name).expect("a valid name")
}

/// A tenant.
///
/// # Panics
/// When this is no valid name.
#[must_use]
pub fn tenant(name: &str) -> TenantId {
    TenantId::new(name).expect("a valid name")
}

/// A status.
///
/// # Panics
/// When it is never remembered.
#[must_use]
pub fn status(status: u16) -> RefusalStatus {
    RefusalStatus::of_entry(status).expect("a status that may be remembered")
}

/// The `n`th entry, of the upstream `ocr` with status 400, refused to the tenant `a`.
#[must_use]
pub fn entry(n: u64) -> Entry {
    Entry {
        schema: ENTRY_SCHEMA,
        fingerprint: fingerprint(n),
        scope: "fleet".into(),
        upstream: upstream("ocr"),
        generation: "g1".into(),
        status: status(400),
        fields: ReplayFields {
            content_type: Some(Bytes::from_static(b"application/json")),
            content_encoding: None,
            content_language: Some(Bytes::from_static(b"en")),
        },
        body: Bytes::from(format!(r#"{{"error":"document {n} is broken"}}"#)),
        document: DocumentFacts { digest: document(n), bytes: 1000 + n, parts: 1 },
        rule: "status".into(),
        refused_tenant: tenant("a"),
        first_refused_at: Millis(0),
        recorded_at: Millis(0),
        ttl_ms: 0,
    }
}

/// The `n`th entry on its way into a store that may hold 10,000, with a flat life of [`TTL_MS`].
#[must_use]
pub fn candidate(n: u64) -> Candidate {
    Candidate { entry: entry(n), life: flat(TTL_MS), max_entries: 10_000 }
}

/// One confirmation and this life.
#[must_use]
pub fn flat(ttl_ms: u64) -> LifePolicy {
    LifePolicy::flat(ttl_ms)
}

/// Lives of 1 s, 4 s, 16 s and so on up to [`TTL_MS`].
#[must_use]
pub fn ladder() -> LifePolicy {
    flat(TTL_MS).climbing(Ladder { first_ms: 1000, factor: 4 })
}

/// This many refusals make a verdict, which lives for [`TTL_MS`].
#[must_use]
pub fn confirmed(confirmations: u32) -> LifePolicy {
    flat(TTL_MS).confirmed_by(confirmations)
}
