//! Operations of the Azure Document Intelligence wire: a submit is answered with 202 and the address of an operation, and
//! what becomes of the document is learned by polling it.
//!
//! The gateway gives every operation an id of its own, so that no id of an upstream, and none that a caller makes up, can ever
//! reach another tenant's operation; and it remembers where the operation really is.

mod answer;
pub mod path;

use std::fmt;
use std::str::FromStr;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::clock::Millis;
use crate::entry::DocumentFacts;
use crate::fingerprint::Fingerprint;
use crate::stored::base64_bytes;
use crate::tenant::{TenantId, UpstreamName};

pub use answer::{State, failed_anew, state};

/// An operation's id as callers see it: a GUID in lower case, which is what clients expect in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct OperationId(Uuid);

impl OperationId {
    /// From 16 random bytes, as a GUID of version 4 (RFC 9562 section 5.4). They have to be unpredictable.
    #[must_use]
    pub fn from_random(bytes: [u8; 16]) -> Self {
        Self(uuid::Builder::from_random_bytes(bytes).into_uuid())
    }
}

/// Not the 36 characters of a GUID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected a GUID of 36 characters")]
pub struct NotAnOperationId;

impl FromStr for OperationId {
    type Err = NotAnOperationId;

    fn from_str(text: &str) -> Result<Self, NotAnOperationId> {
        // other spellings of one GUID are no other names of one operation
        match Uuid::try_parse(text) {
            Ok(id) if text.len() == 36 => Ok(Self(id)),
            _ => Err(NotAnOperationId),
        }
    }
}

impl fmt::Display for OperationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_hyphenated().fmt(f)
    }
}

/// One operation, from its submit until it is forgotten.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Operation {
    /// Its id.
    pub id: OperationId,
    /// Who submitted it, and alone may poll it.
    pub tenant: TenantId,
    /// The upstream it was submitted to.
    pub upstream: UpstreamName,
    /// When it was submitted.
    pub created_at: Millis,
    /// When it is forgotten.
    pub expires_at: Millis,
    /// Where it is.
    pub at: Whereabouts,
}

/// Where an operation is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Whereabouts {
    /// At the upstream.
    Upstream {
        /// The replica that has it: host and port, as they are configured.
        authority: String,
        /// Path and query of its poll there, with the replica's prefix.
        path: String,
        /// What to remember when it turns out to have failed; `None` = nothing: the memory is off, or its outcome is known.
        pending: Option<Pending>,
    },
    /// Nowhere: the document was known to fail, and the upstream was not asked.
    Known {
        /// The entry it is answered from.
        fingerprint: Fingerprint,
        /// The entry's body: what the upstream's poll said when the verdict was learned.
        #[serde(with = "base64_bytes")]
        body: Bytes,
        /// The entry's `Content-Type`.
        content_type: Option<String>,
        /// When that was recorded.
        recorded_at: Millis,
        /// When the entry ends.
        valid_until: Millis,
    },
}

/// What has to be known of a submit, to record the verdict that only a poll will show.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pending {
    /// The key of the submit.
    pub fingerprint: Fingerprint,
    /// The text form of its scope.
    pub scope: String,
    /// The generation it was made in.
    pub generation: String,
    /// The document.
    pub document: DocumentFacts,
    /// Whether the request named its input by reference, or could not be read far enough to be sure that it did not: then nothing
    /// is remembered.
    pub referenced: bool,
    /// The submit's `Content-Type`, as the key has it.
    pub content_type: Option<String>,
    /// The revision of the profile that the key names; under another one nothing is recorded.
    pub profile: Option<Fingerprint>,
    /// The refusal store's fence when the attempt began.
    pub fence: Option<u64>,
    /// The process that took it, by a number of its own: fences of some stores mean nothing to others.
    pub process: u64,
    /// How often the gateway has looked by itself.
    pub looks: u32,
    /// When it looks next.
    pub next_look_at: Millis,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_a_guid_in_lower_case_and_has_one_spelling() {
        let id = OperationId::from_random([0xab; 16]);
        assert_eq!(id.to_string(), "abababab-abab-4bab-abab-abababababab");
        assert_eq!(id.to_string().parse(), Ok(id));
        for other in
            ["", "7f", "abababababab4bababababababababab", "{abababab-abab-4bab-abab-abababababab}", "../x"]
        {
            assert_eq!(other.parse::<OperationId>(), Err(NotAnOperationId), "{other}");
        }
    }
}
