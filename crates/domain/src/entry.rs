//! What the memory holds: an upstream's refusal that was judged a verdict, with all that is needed to replay it and to
//! verify, on every read, that it is the right one.

use std::fmt;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::clock::Millis;
use crate::fingerprint::{DocumentDigest, Fingerprint};
use crate::status::RefusalStatus;
use crate::strike::LifePolicy;
use crate::tenant::{TenantId, UpstreamName};

/// The version of the entry's meaning: its body is the upstream's, byte for byte. A stored entry of a version that is not known
/// is a miss.
pub const ENTRY_SCHEMA: u32 = 1;

/// The version of an entry whose body was too long to keep and is the upstream's with values left out
/// ([`reduce`](crate::profile::reduce)). All else means the same. It has a number of its own, so that whoever knows only the one
/// before does not replay it as if it were whole.
pub const REDUCED_SCHEMA: u32 = 2;

/// The header fields of a refusal that a replay carries, as bytes: a field value need not be UTF-8.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplayFields {
    /// `Content-Type`.
    pub content_type: Option<Bytes>,
    /// `Content-Encoding`.
    pub content_encoding: Option<Bytes>,
    /// `Content-Language`.
    pub content_language: Option<Bytes>,
}

/// The document that was refused, as people know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DocumentFacts {
    /// SHA-256 of the document; of a form, of its file parts in order.
    pub digest: DocumentDigest,
    /// Its length in bytes.
    pub bytes: u64,
    /// How many file parts the form had; 1 for a raw body.
    pub parts: u32,
}

/// One remembered verdict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The version of this structure's meaning: [`ENTRY_SCHEMA`] or [`REDUCED_SCHEMA`].
    pub schema: u32,
    /// The key it is stored under, again, so that a swapped value is seen.
    pub fingerprint: Fingerprint,
    /// Whose callers may be answered from it: the text form of the scope.
    pub scope: String,
    /// The upstream that refused.
    pub upstream: UpstreamName,
    /// The generation it was recorded in.
    pub generation: String,
    /// The upstream's status.
    pub status: RefusalStatus,
    /// The fields that a replay carries.
    pub fields: ReplayFields,
    /// The upstream's body: byte for byte, or [reduced](Self::is_reduced).
    pub body: Bytes,
    /// What was refused.
    pub document: DocumentFacts,
    /// The profile rule that judged it.
    pub rule: String,
    /// The tenant whose request was refused.
    pub refused_tenant: TenantId,
    /// When the upstream first refused this fingerprint since it was last forgotten, accepted or unknown.
    pub first_refused_at: Millis,
    /// When this verdict was recorded.
    pub recorded_at: Millis,
    /// How long it lives from then on, in milliseconds.
    pub ttl_ms: u64,
}

/// What a reader expects of an entry.
#[derive(Clone, Copy, Debug)]
pub struct Expected<'a> {
    /// The key that was looked up.
    pub fingerprint: &'a Fingerprint,
    /// The caller's scope.
    pub scope: &'a str,
    /// The upstream that would be called.
    pub upstream: &'a UpstreamName,
    /// The generation in force.
    pub generation: &'a str,
}

/// Why an entry that was found must not be replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mismatch {
    /// Another schema version.
    Schema,
    /// Stored under another key.
    Fingerprint,
    /// Another scope.
    Scope,
    /// Another upstream.
    Upstream,
    /// Another generation.
    Generation,
}

impl Mismatch {
    /// All of them.
    pub const ALL: &[Self] =
        &[Self::Schema, Self::Fingerprint, Self::Scope, Self::Upstream, Self::Generation];

    /// The label value.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Schema => "schema",
            Self::Fingerprint => "fingerprint",
            Self::Scope => "scope",
            Self::Upstream => "upstream",
            Self::Generation => "generation",
        }
    }
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.label())
    }
}

impl Entry {
    /// Verify on read: whether this entry is the one that was asked for.
    ///
    /// # Errors
    /// The first [`Mismatch`]; the entry is then a miss.
    pub fn verify(&self, expected: &Expected<'_>) -> Result<(), Mismatch> {
        if !self.is_understood() {
            Err(Mismatch::Schema)
        } else if self.fingerprint != *expected.fingerprint {
            Err(Mismatch::Fingerprint)
        } else if self.scope != expected.scope {
            Err(Mismatch::Scope)
        } else if self.upstream != *expected.upstream {
            Err(Mismatch::Upstream)
        } else if self.generation != expected.generation {
            Err(Mismatch::Generation)
        } else {
            Ok(())
        }
    }

    /// Whether its meaning is known.
    #[must_use]
    pub fn is_understood(&self) -> bool {
        [ENTRY_SCHEMA, REDUCED_SCHEMA].contains(&self.schema)
    }

    /// Whether values were left out of its body, because all of it was too long to keep. Its replays say so.
    #[must_use]
    pub fn is_reduced(&self) -> bool {
        self.schema == REDUCED_SCHEMA
    }

    /// When it ends by the rule it was recorded under.
    #[must_use]
    pub fn expires_at(&self) -> Millis {
        self.recorded_at.plus_ms(self.ttl_ms)
    }

    /// Milliseconds it still has by the rule it was recorded under; `None` when it is over.
    /// An entry from the future is one that a clock which stepped back has left behind: how old it is cannot be known, so it is
    /// over. A minute is allowed for clocks that differ.
    #[must_use]
    pub fn remaining_ms(&self, now: Millis) -> Option<u64> {
        self.remaining_of(self.ttl_ms, now)
    }

    /// Milliseconds it still has under the smaller of its own life and the longest that the rule in force allows its status.
    #[must_use]
    pub fn remaining_under(&self, present: &LifePolicy, now: Millis) -> Option<u64> {
        self.remaining_of(self.ttl_ms.min(present.ttl_ms(self.status)), now)
    }

    fn remaining_of(&self, life_ms: u64, now: Millis) -> Option<u64> {
        const SKEW_MS: u64 = 60_000;
        if self.recorded_at.since_ms(now) > SKEW_MS {
            return None;
        }
        life_ms.checked_sub(now.since_ms(self.recorded_at)).filter(|left| *left > 0)
    }
}

/// A verdict on its way into the store: the entry without the life that the store works out, and the bounds in force.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// The entry; its `ttl_ms`, `recorded_at` and `first_refused_at` are set by the store.
    pub entry: Entry,
    /// How many refusals make a verdict, and how long it lives.
    pub life: LifePolicy,
    /// The most entries the store may hold after this.
    pub max_entries: u64,
}

/// Replays of one entry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// How many requests were answered from it.
    pub replays: u64,
    /// When it was first replayed.
    pub first_replayed_at: Option<Millis>,
    /// When it was last replayed.
    pub last_replayed_at: Option<Millis>,
    /// Who was answered from it, in the order of their first replay; at most [`Tally::MAX_TENANTS`].
    pub tenants: Vec<TenantId>,
}

impl Tally {
    /// How many tenants are named per entry; later ones are counted in `replays` alone.
    pub const MAX_TENANTS: usize = 32;

    /// Adds one replay.
    pub fn add(&mut self, tenant: &TenantId, at: Millis) {
        self.replays = self.replays.saturating_add(1);
        self.first_replayed_at = Some(self.first_replayed_at.map_or(at, |first| first.min(at)));
        self.last_replayed_at = Some(self.last_replayed_at.map_or(at, |last| last.max(at)));
        if self.tenants.len() < Self::MAX_TENANTS && !self.tenants.contains(tenant) {
            self.tenants.push(tenant.clone());
        }
    }
}

/// Which entries to forget: all conditions that are set must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Selector {
    /// This key.
    pub fingerprint: Option<Fingerprint>,
    /// Entries of this document, whatever the upstream.
    pub document: Option<DocumentDigest>,
    /// Entries of this upstream.
    pub upstream: Option<UpstreamName>,
    /// Entries with this status.
    pub status: Option<RefusalStatus>,
    /// Entries first refused before this time.
    pub before: Option<Millis>,
}

impl Selector {
    /// The entry under one key.
    #[must_use]
    pub fn key(fingerprint: Fingerprint) -> Self {
        Self { fingerprint: Some(fingerprint), ..Self::default() }
    }

    /// Whether what is described by these facts is selected.
    #[must_use]
    pub fn matches(
        &self,
        fingerprint: &Fingerprint,
        document: &DocumentDigest,
        upstream: &UpstreamName,
        status: u16,
        first_refused_at: Millis,
    ) -> bool {
        self.fingerprint.is_none_or(|f| f == *fingerprint)
            && self.document.is_none_or(|d| d == *document)
            && self.upstream.as_ref().is_none_or(|u| u == upstream)
            && self.status.is_none_or(|s| s.get() == status)
            && self.before.is_none_or(|b| first_refused_at < b)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry() -> Entry {
        Entry {
            schema: ENTRY_SCHEMA,
            fingerprint: Fingerprint::from_bytes([7; 32]),
            scope: "fleet".into(),
            upstream: UpstreamName::new("ocr").unwrap_or_else(|e| unreachable!("{e}")),
            generation: String::new(),
            status: RefusalStatus::new(400).unwrap_or_else(|e| unreachable!("{e}")),
            fields: ReplayFields::default(),
            body: Bytes::from_static(b"no"),
            document: DocumentFacts { digest: DocumentDigest::of(b"doc"), bytes: 3, parts: 1 },
            rule: "status".into(),
            refused_tenant: TenantId::anonymous(),
            first_refused_at: Millis(1000),
            recorded_at: Millis(1000),
            ttl_ms: 500,
        }
    }

    #[test]
    fn every_mismatch_is_a_miss() {
        let entry = entry();
        let upstream = entry.upstream.clone();
        let good = Expected {
            fingerprint: &Fingerprint::from_bytes([7; 32]),
            scope: "fleet",
            upstream: &upstream,
            generation: "",
        };
        assert_eq!(entry.verify(&good), Ok(()));
        let other = Fingerprint::from_bytes([8; 32]);
        let other_upstream = UpstreamName::new("tika").unwrap_or_else(|e| unreachable!("{e}"));
        assert_eq!(entry.verify(&Expected { fingerprint: &other, ..good }), Err(Mismatch::Fingerprint));
        assert_eq!(entry.verify(&Expected { scope: "tenant:a", ..good }), Err(Mismatch::Scope));
        assert_eq!(entry.verify(&Expected { upstream: &other_upstream, ..good }), Err(Mismatch::Upstream));
        assert_eq!(entry.verify(&Expected { generation: "2", ..good }), Err(Mismatch::Generation));
        let reduced = Entry { schema: REDUCED_SCHEMA, ..entry.clone() };
        assert!(reduced.verify(&good).is_ok() && reduced.is_reduced() && !entry.is_reduced());
        assert_eq!(Entry { schema: 3, ..entry }.verify(&good), Err(Mismatch::Schema));
    }

    #[test]
    fn the_smaller_life_counts_and_reads_do_not_extend_it() {
        let entry = entry();
        let (long, short) = (LifePolicy::flat(10_000), LifePolicy::flat(200));
        for (now, left) in [(1000, Some(500)), (1499, Some(1)), (1500, None)] {
            assert_eq!(entry.remaining_ms(Millis(now)), left);
            assert_eq!(entry.remaining_under(&long, Millis(now)), left);
        }
        assert_eq!(entry.remaining_under(&short, Millis(1000)), Some(200));
        assert_eq!(entry.remaining_under(&short, Millis(1200)), None);
        // a cap counts for its own status
        let other = RefusalStatus::new(413).unwrap_or_else(|e| unreachable!("{e}"));
        assert_eq!(
            entry.remaining_under(&long.clone().capped_for(entry.status, 300), Millis(1000)),
            Some(300)
        );
        assert_eq!(entry.remaining_under(&long.clone().capped_for(other, 300), Millis(1000)), Some(500));
        // clocks that differ a little, and one that stepped back
        for (now, left) in [(0, Some(500)), (1000 - 60_001, None)] {
            assert_eq!(entry.remaining_ms(Millis(now)), left);
            assert_eq!(entry.remaining_under(&long, Millis(now)), left);
        }
    }

    #[test]
    fn conditions_of_a_selector_are_anded() {
        let e = entry();
        let hit = |s: &Selector| {
            s.matches(&e.fingerprint, &e.document.digest, &e.upstream, e.status.get(), e.first_refused_at)
        };
        assert!(hit(&Selector::default()));
        let upstream = Some(e.upstream.clone());
        assert!(hit(&Selector {
            upstream: upstream.clone(),
            before: Some(Millis(1001)),
            ..Selector::default()
        }));
        assert!(!hit(&Selector { upstream, before: Some(Millis(1000)), ..Selector::default() }));
    }

    #[test]
    fn a_tally_names_a_bounded_number_of_tenants() {
        let mut tally = Tally::default();
        for i in 0..100 {
            let tenant = TenantId::new(&format!("t{i}")).unwrap_or_else(|e| unreachable!("{e}"));
            tally.add(&tenant, Millis(i));
        }
        assert_eq!((tally.replays, tally.tenants.len()), (100, Tally::MAX_TENANTS));
        assert_eq!((tally.first_replayed_at, tally.last_replayed_at), (Some(Millis(0)), Some(Millis(99))));
    }
}
