//! Jobs: a document is handed over, and its outcome is asked for later.

use std::fmt;
use std::str::FromStr;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::clock::Millis;
use crate::fingerprint::{DocumentDigest, Fingerprint};
use crate::stored::base64_bytes;
use crate::tenant::{TenantId, UpstreamName};

/// A job's id: a GUID of version 7 (RFC 9562 section 5.7), so that ids sort by time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct JobId(Uuid);

impl JobId {
    /// The id of a job that begins now. The bytes have to be unpredictable.
    #[must_use]
    pub fn new(now: Millis, random: [u8; 10]) -> Self {
        let ms = u64::try_from(now.0).unwrap_or(0);
        Self(uuid::Builder::from_unix_timestamp_millis(ms, &random).into_uuid())
    }
}

/// Not the 36 characters of a GUID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected a job id: a GUID of 36 characters")]
pub struct NotAJobId;

impl FromStr for JobId {
    type Err = NotAJobId;

    fn from_str(text: &str) -> Result<Self, NotAJobId> {
        match Uuid::try_parse(text) {
            Ok(id) if text.len() == 36 => Ok(Self(id)),
            _ => Err(NotAJobId),
        }
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_hyphenated().fmt(f)
    }
}

/// Where a job is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobStatus {
    /// It waits for a worker.
    Queued,
    /// A worker has it.
    Running,
    /// The upstream took the document; the result is there.
    Succeeded,
    /// It will not be tried again by itself; `error` says why.
    Failed,
    /// Its owner gave it up.
    Cancelled,
}

impl JobStatus {
    /// All of them.
    pub const ALL: &[Self] = &[Self::Queued, Self::Running, Self::Succeeded, Self::Failed, Self::Cancelled];

    /// The word in the API and in labels.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }

    /// Whether nothing more happens to it.
    #[must_use]
    pub fn is_final(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed | Self::Cancelled)
    }
}

/// A caller's `Idempotency-Key`, hashed with its tenant: what it says is in no name, log or label.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct IdempotencyKey([u8; 32]);

/// Why a text is no idempotency key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an idempotency key has 1 to 255 printable ASCII characters, in double quotes or without")]
pub struct InvalidIdempotencyKey;

impl IdempotencyKey {
    /// From the value of the header field: a string in double quotes (RFC 9651 section 3.3.3), as the draft has it, or, as most clients
    /// send it, the bare characters. Both spellings are one key.
    ///
    /// # Errors
    /// [`InvalidIdempotencyKey`] when it is empty, longer than 255 characters, or not printable ASCII.
    pub fn of(tenant: &TenantId, value: &[u8]) -> Result<Self, InvalidIdempotencyKey> {
        let value = value.trim_ascii();
        let key = match value {
            [b'"', quoted @ .., b'"'] => unquoted(quoted)?,
            [b'"', ..] => return Err(InvalidIdempotencyKey),
            bare => bare.to_vec(),
        };
        if !(1..=255).contains(&key.len()) || !key.iter().all(|b| (b' '..=b'~').contains(b)) {
            return Err(InvalidIdempotencyKey);
        }
        let mut hasher = Sha256::new();
        hasher.update(tenant.as_str().as_bytes());
        hasher.update([0]);
        hasher.update(&key);
        Ok(Self(hasher.finalize().into()))
    }

    /// Its 32 bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

fn unquoted(text: &[u8]) -> Result<Vec<u8>, InvalidIdempotencyKey> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.iter();
    while let Some(byte) = rest.next() {
        match byte {
            b'"' => return Err(InvalidIdempotencyKey),
            b'\\' => match rest.next() {
                Some(escaped @ (b'"' | b'\\')) => out.push(*escaped),
                _ => return Err(InvalidIdempotencyKey),
            },
            plain => out.push(*plain),
        }
    }
    Ok(out)
}

/// Whoever reads it could test guesses.
impl fmt::Debug for IdempotencyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("IdempotencyKey(…)")
    }
}

/// A job, without its input and its result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// Its id.
    pub id: JobId,
    /// Whose it is.
    pub tenant: TenantId,
    /// The upstream that it is for.
    pub upstream: UpstreamName,
    /// What goes up.
    pub request: JobRequest,
    /// The key under which it was submitted.
    pub key: Option<IdempotencyKey>,
    /// Where it is in its life.
    pub status: JobStatus,
    /// When it was submitted.
    pub created_at: Millis,
    /// When a worker first took it.
    pub started_at: Option<Millis>,
    /// When it came to its end.
    pub finished_at: Option<Millis>,
    /// When it is removed, with input and result: set when it comes to its end.
    pub expires_at: Option<Millis>,
    /// Calls of the upstream so far, each counted before it is made.
    pub attempts: u32,
    /// It is not taken before this.
    pub not_before: Option<Millis>,
    /// A call was begun, and how it ended is not known yet.
    pub sent: bool,
    /// Its owner gave it up while a worker had it.
    pub cancel: bool,
    /// Why it failed; of one that waits for its next attempt, why the last one did.
    pub error: Option<JobError>,
    /// What of the upstream's answer is known without reading it.
    pub result: Option<ResultFacts>,
    /// Where to tell that it has come to its end.
    pub webhook: Option<String>,
    /// How often an operator has let it wait again after it had failed: each time it comes to another end.
    #[serde(default)]
    pub retries: u32,
}

/// What of a job goes up, but for the body.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobRequest {
    /// Path and query, as the upstream knows them.
    pub path: String,
    /// The header fields, names in lower case.
    pub fields: Vec<JobField>,
    /// The length of the input, in bytes.
    pub bytes: u64,
    /// The same for equal requests of one tenant, whatever the boundary of a form: what an idempotency key stands for.
    pub digest: Fingerprint,
    /// The document, when the memory had it at hand.
    pub document: Option<DocumentDigest>,
}

/// A header field that goes up with a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobField {
    /// The name, in lower case.
    pub name: String,
    /// The value, which need not be UTF-8.
    #[serde(with = "base64_bytes")]
    pub value: Bytes,
}

/// Why a job, or its last attempt, failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobError {
    /// As in the audit: `HTTP_422`, `REFUSED_HTTP_422`, `FAILED_HTTP_200`, or one of the gateway's own codes.
    pub code: String,
    /// The upstream's own words where it has any; cut at [`JobError::MESSAGE_MAX`] bytes.
    pub message: String,
    /// The upstream's status; absent when there was no answer.
    pub upstream_status: Option<u16>,
    /// Whether another attempt may end otherwise.
    pub retryable: bool,
    /// Whether the upstream was not asked.
    pub replayed: bool,
    /// Whether it is a verdict on the document: then the same key is answered with this job.
    pub verdict: bool,
}

impl JobError {
    /// The longest message, in bytes.
    pub const MESSAGE_MAX: usize = 4096;
}

/// What of a result is known without reading it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResultFacts {
    /// The upstream's status.
    pub status: u16,
    /// `Content-Type`, `Content-Encoding` and `Content-Language`, as the upstream sent them.
    pub fields: Vec<JobField>,
    /// The length of the body, in bytes.
    pub bytes: u64,
}

impl Job {
    /// Whether a submit with the same key and the same request is answered with this job. A failure that was no verdict, and a job that
    /// was given up, make room for a new attempt.
    #[must_use]
    pub fn answers_its_key(&self) -> bool {
        match self.status {
            JobStatus::Queued | JobStatus::Running | JobStatus::Succeeded => true,
            JobStatus::Failed => self.error.as_ref().is_some_and(|error| error.verdict),
            JobStatus::Cancelled => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(value: &[u8]) -> Result<IdempotencyKey, InvalidIdempotencyKey> {
        IdempotencyKey::of(&TenantId::anonymous(), value)
    }

    #[test]
    fn a_key_has_two_spellings_and_bounds() {
        assert_eq!(key(b"abc"), key(b"\"abc\""));
        assert_eq!(key(b" a b "), key(b"\"a b\""));
        assert_eq!(key(br#""a\"b\\c""#), key(br#"a"b\c"#));
        assert!(key(&[b'x'; 255]).is_ok() && key(b"../../x").is_ok() && key(b"'").is_ok());
        for bad in [
            &b""[..],
            b"\"\"",
            b"  ",
            &[b'x'; 256],
            "ü".as_bytes(),
            b"a\nb",
            b"\"a",
            b"\"a\\b\"",
            b"\"a\"b\"",
            b"\"",
        ] {
            assert_eq!(key(bad), Err(InvalidIdempotencyKey), "{:?}", String::from_utf8_lossy(bad));
        }
    }

    #[test]
    fn keys_of_two_tenants_are_two() {
        let other = TenantId::new("other").unwrap_or_else(|e| unreachable!("{e}"));
        assert_ne!(key(b"k"), IdempotencyKey::of(&other, b"k"));
        assert_eq!(format!("{:?}", key(b"k")), "Ok(IdempotencyKey(…))");
    }

    #[test]
    fn ids_sort_by_time() {
        let (a, b) =
            (JobId::new(Millis(1_700_000_000_000), [9; 10]), JobId::new(Millis(1_700_000_000_001), [0; 10]));
        assert!(a < b && a.to_string() < b.to_string());
        assert_eq!(a.to_string().parse(), Ok(a));
        assert_eq!("7".parse::<JobId>(), Err(NotAJobId));
    }
}
