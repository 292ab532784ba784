//! Operations and jobs to test with, each made from a number.

use bytes::Bytes;
use nevertwice_domain::clock::Millis;
use nevertwice_domain::entry::DocumentFacts;
use nevertwice_domain::job::{
    IdempotencyKey, Job, JobError, JobField, JobId, JobRequest, JobStatus, ResultFacts,
};
use nevertwice_domain::operation::{Operation, OperationId, Pending, Whereabouts};

pub use crate::suite::samples::{document, fingerprint, tenant, upstream};

use crate::work::JobBounds;

/// How long a sample is kept.
pub const LIFE_MS: u64 = 3_600_000;

/// The `n`th operation of the tenant `a` at the upstream `ocr`, submitted at `now`, to be looked at after a second.
#[must_use]
pub fn operation(n: u64, now: Millis) -> Operation {
    let pending = Pending {
        fingerprint: fingerprint(n),
        scope: "fleet".into(),
        generation: "g1".into(),
        document: DocumentFacts { digest: document(n), bytes: 1000 + n, parts: 1 },
        referenced: false,
        content_type: Some("application/pdf".into()),
        profile: Some(fingerprint(n + 1)),
        fence: Some(u64::MAX),
        process: 3,
        looks: 0,
        next_look_at: now.plus_ms(1000),
    };
    Operation {
        id: operation_id(n),
        tenant: tenant("a"),
        upstream: upstream("ocr"),
        created_at: now,
        expires_at: now.plus_ms(LIFE_MS),
        at: Whereabouts::Upstream {
            authority: "10.0.0.7:5000".into(),
            path: format!("/x/analyzeResults/{n}?api-version=2024-11-30"),
            pending: Some(pending),
        },
    }
}

/// What is pending of an operation.
#[must_use]
pub fn pending(operation: &Operation) -> Option<&Pending> {
    match &operation.at {
        Whereabouts::Upstream { pending, .. } => pending.as_ref(),
        Whereabouts::Known { .. } => None,
    }
}

/// The id of the `n`th operation.
#[must_use]
pub fn operation_id(n: u64) -> OperationId {
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&blake3::hash(&n.to_le_bytes()).as_bytes()[..16]);
    OperationId::from_random(bytes)
}

/// The `n`th job, of the tenant `a` for the upstream `ocr`, submitted at `now`, without a key.
///
/// # Panics
/// Never.
#[must_use]
pub fn job(n: u64, now: Millis) -> Job {
    let mut random = [0; 10];
    random[2..].copy_from_slice(&n.to_be_bytes());
    Job {
        id: JobId::new(now, random),
        tenant: tenant("a"),
        upstream: upstream("ocr"),
        request: JobRequest {
            path: format!("/sync?n={n}"),
            fields: vec![
                JobField { name: "content-type".into(), value: Bytes::from_static(b"application/pdf") },
                JobField { name: "x-latin".into(), value: Bytes::from_static(b"caf\xe9") },
            ],
            bytes: input(n).len() as u64,
            digest: fingerprint(n),
            document: Some(document(n)),
        },
        key: None,
        status: JobStatus::Queued,
        created_at: now,
        started_at: None,
        finished_at: None,
        expires_at: None,
        attempts: 0,
        not_before: None,
        sent: false,
        cancel: false,
        error: None,
        result: None,
        webhook: Some("https://caller.test/told".into()),
        retries: 0,
    }
}

/// Room for any number of jobs, each removed then.
#[must_use]
pub fn bounds(expires_at: Millis) -> JobBounds {
    JobBounds {
        max_queued: u64::MAX,
        tenant_max_queued: u64::MAX,
        max_bytes: u64::MAX,
        tenant_max_bytes: u64::MAX,
        expires_at,
    }
}

/// The input of the `n`th job.
#[must_use]
pub fn input(n: u64) -> Bytes {
    Bytes::from(format!("document {n} \0\u{ff}").into_bytes())
}

/// A key of the tenant `a`.
///
/// # Panics
/// When this is no valid key.
#[must_use]
pub fn key(value: &str) -> IdempotencyKey {
    IdempotencyKey::of(&tenant("a"), value.as_bytes()).expect("a valid key")
}

/// A failure that another attempt may mend.
#[must_use]
pub fn transient() -> JobError {
    JobError {
        code: "HTTP_503".into(),
        message: "try again".into(),
        upstream_status: Some(503),
        retryable: true,
        replayed: false,
        verdict: false,
    }
}

/// A verdict on the document.
#[must_use]
pub fn verdict() -> JobError {
    JobError {
        code: "HTTP_422".into(),
        message: "the document is broken".into(),
        upstream_status: Some(422),
        retryable: false,
        replayed: false,
        verdict: true,
    }
}

/// What is known of an answer with this body.
#[must_use]
pub fn facts(status: u16, body: &[u8]) -> ResultFacts {
    let value = Bytes::from_static(b"application/json");
    let fields = vec![JobField { name: "content-type".into(), value }];
    ResultFacts { status, fields, bytes: body.len() as u64 }
}
