//! What is learned from an answer is remembered before the answer is released: once any caller has seen a recorded verdict,
//! no later request with its fingerprint reaches the upstream.

use std::io;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, header, response};
use nevertwice_domain::entry::{DocumentFacts, ENTRY_SCHEMA, Entry, REDUCED_SCHEMA, ReplayFields};
use nevertwice_domain::fingerprint::{DocumentDigest, Fingerprint};
use nevertwice_domain::profile::{DocumentSearch, NotRecorded, Verdict};
use nevertwice_domain::status::RefusalStatus;
use nevertwice_domain::strike::LifePolicy;
use nevertwice_domain::tenant::{TenantId, UpstreamName};
use nevertwice_store::Fence;
use sha2::{Digest, Sha256};

use super::account::Record;
use super::intake::Document;
use super::judge::{Answer, AnswerBody, Meaning};
use super::operation::News;
use super::plan::Plan;
use super::recall::{Call, CallBody};
use super::{Rejection, hold, operation};
use crate::Shared;
use crate::memory::unclassified::Refusal;
use crate::memory::{Attempt, Guarded, Landing, Memory, UpstreamGuard};

/// The time that is left for the store when the judgement took all of `judge_wait`.
const LEAST_WAIT: Duration = Duration::from_millis(50);

/// Carries out what the answer means, and tells those who wait.
pub(super) async fn remember(
    gateway: &Shared,
    call: Box<Call>,
    mut answer: Answer,
    record: &mut Record,
) -> Result<Answer, Rejection> {
    if call.polled.is_some() {
        return Ok(operation::learn(gateway, call, answer, record).await);
    }
    if let Some(News::Begun(address)) = answer.news.take() {
        operation::open(gateway, call, &address, &mut answer, record).await?;
        return Ok(answer);
    }
    let Call { plan, body, asked, .. } = *call;
    let upstream = &plan.upstream;
    let (Some(mut asked), Some(memory), Some(guard)) = (asked, &gateway.memory, &upstream.guard) else {
        return Ok(answer);
    };
    let Some(attempt) = asked.attempt.take() else { return Ok(answer) };
    let document = match &body {
        CallBody::Document(document) => Some(document.as_ref()),
        CallBody::Passing(_) | CallBody::Nothing => None,
    };
    hold::take_note(gateway, &plan, &asked.key, document, &answer, record).await;
    let landing = match (&answer.meaning, &body) {
        (Meaning::Nothing, _) => Landing::NoVerdict,
        (Meaning::Accepted, _) => {
            let left = until(guard, &answer).saturating_duration_since(Instant::now());
            memory.accept(&asked.key, upstream.name(), guard, left).await;
            Landing::NoVerdict
        }
        (Meaning::NotRecorded(reason), _) => {
            memory.not_recorded(*reason);
            unclassified(memory, &plan, *reason, asked.key.fingerprint, &answer);
            Landing::NoVerdict
        }
        (Meaning::Verdict(status, verdict), CallBody::Document(document)) => {
            let refused = Refused {
                gateway,
                memory,
                guard,
                key: &asked.key,
                fence: asked.fence,
                generation: &guard.rules.generation,
                attempt: &attempt,
                tenant: &plan.tenant.id,
                upstream: upstream.name(),
                status: *status,
                verdict,
            };
            let deadline = until(guard, &answer);
            let recorded = match facts(document, &plan, deadline).await {
                Ok(facts) => {
                    record.document = Some(facts.digest);
                    refused.record(facts, &answer, deadline).await
                }
                Err(reason) => Err(reason),
            };
            match recorded {
                Ok(()) => Landing::Verdict,
                Err(reason) => {
                    memory.not_recorded(reason);
                    Landing::NoVerdict
                }
            }
        }
        // a guarded call always holds its document
        (Meaning::Verdict(..), CallBody::Passing(_) | CallBody::Nothing) => Landing::NoVerdict,
    };
    attempt.land(landing);
    answer.remembered = landing == Landing::Verdict;
    Ok(answer)
}

/// Shows operators a refusal that no rule knows.
pub(super) fn unclassified(
    memory: &Memory,
    plan: &Plan,
    reason: NotRecorded,
    fingerprint: Fingerprint,
    answer: &Answer,
) {
    let (NotRecorded::Unclassified, Some(body), Some(profile)) =
        (reason, answer.judged(), plan.upstream.profile())
    else {
        return;
    };
    memory.unclassified(&Refusal {
        upstream: plan.upstream.name(),
        profile: &profile,
        fingerprint,
        status: answer.head.status,
        headers: &answer.head.headers,
        body,
    });
}

/// What people know the document by, worked out until `deadline` at the latest.
async fn facts(document: &Document, plan: &Plan, deadline: Instant) -> Result<DocumentFacts, NotRecorded> {
    match tokio::time::timeout_at(deadline.into(), document.facts(plan.document_keys())).await {
        Ok(Ok(facts)) => Ok(facts),
        Ok(Err(error)) => {
            tracing::error!(%error, "a document could not be read back from disk, its refusal is not remembered");
            Err(NotRecorded::Incomplete)
        }
        Err(_) => Err(NotRecorded::Incomplete),
    }
}

/// Until when the answer's head may wait.
pub(super) fn until(guard: &UpstreamGuard, answer: &Answer) -> Instant {
    (answer.at + guard.rules.judge_wait).max(Instant::now() + LEAST_WAIT)
}

/// A verdict, and what else is recorded with it.
pub(super) struct Refused<'a> {
    pub(super) gateway: &'a Shared,
    pub(super) memory: &'a Memory,
    pub(super) guard: &'a UpstreamGuard,
    pub(super) key: &'a Guarded,
    pub(super) fence: Option<Fence>,
    pub(super) generation: &'a str,
    pub(super) attempt: &'a Attempt,
    pub(super) tenant: &'a TenantId,
    pub(super) upstream: &'a UpstreamName,
    pub(super) status: RefusalStatus,
    pub(super) verdict: &'a Verdict,
}

impl Refused<'_> {
    /// How long it lives: as the upstream's verdicts do, but for what a rule calls short.
    fn life(&self) -> LifePolicy {
        let rules = &self.guard.rules;
        match self.verdict.short {
            true => rules.life.clone().capped(u64::try_from(rules.short_ttl.as_millis()).unwrap_or(u64::MAX)),
            false => rules.life.clone(),
        }
    }

    /// Records it until `deadline` at the latest.
    pub(super) async fn record(
        &self,
        document: DocumentFacts,
        answer: &Answer,
        deadline: Instant,
    ) -> Result<(), NotRecorded> {
        let (schema, body) = match (&answer.reduced, &answer.body) {
            (Some(reduced), _) => (REDUCED_SCHEMA, reduced.clone()),
            // a copy of its own: a slice would keep the connection's whole read buffer alive
            (None, AnswerBody::Whole(body)) => (ENTRY_SCHEMA, Bytes::copy_from_slice(body)),
            (None, _) => return Err(NotRecorded::Incomplete),
        };
        let now = self.gateway.clock.now();
        let life = self.life();
        let entry = Entry {
            schema,
            fingerprint: self.key.fingerprint,
            scope: self.key.scope.to_string(),
            upstream: self.upstream.clone(),
            generation: self.generation.to_owned(),
            status: self.status,
            fields: replay_fields(&answer.head),
            body,
            document,
            rule: self.verdict.rule.to_string(),
            refused_tenant: self.tenant.clone(),
            first_refused_at: now,
            recorded_at: now,
            ttl_ms: life.ttl_ms(self.status),
        };
        self.memory.record(entry, life, self.attempt, self.fence, self.guard, deadline).await?;
        if let (Some(doubt), Some(metrics)) = (self.verdict.doubt, &self.gateway.metrics.memory) {
            metrics.doubt(doubt);
        }
        Ok(())
    }
}

pub(super) fn replay_fields(head: &response::Parts) -> ReplayFields {
    let field = |name: &HeaderName| joined(&head.headers, name);
    ReplayFields {
        content_type: field(&header::CONTENT_TYPE),
        content_encoding: field(&header::CONTENT_ENCODING),
        content_language: field(&header::CONTENT_LANGUAGE),
    }
}

/// The value of a field; several lines are one list (RFC 9110 section 5.3).
pub(super) fn joined(headers: &HeaderMap, name: &HeaderName) -> Option<Bytes> {
    let values: Vec<&[u8]> = headers.get_all(name).iter().map(|v| v.as_bytes()).collect();
    (!values.is_empty()).then(|| Bytes::from(values.join(&b", "[..])))
}

impl Document {
    /// SHA-256 and length of the document. Computed here, once, and kept in the entry. `documents` are the keys under which a JSON
    /// request holds it in base64: what people know it by is the digest of its bytes.
    pub(super) async fn facts(&self, documents: &[Box<str>]) -> io::Result<DocumentFacts> {
        if !documents.is_empty() && !self.form {
            let mut search = DocumentSearch::new(documents);
            self.read(|chunk| search.feed(chunk)).await?;
            if let Some((digest, bytes)) = search.finish() {
                return Ok(DocumentFacts { digest, bytes, parts: 1 });
            }
        }
        let mut hasher = Sha256::new();
        self.body.visit(&self.ranges, |bytes| hasher.update(bytes)).await?;
        Ok(DocumentFacts {
            digest: DocumentDigest::from_bytes(hasher.finalize().into()),
            bytes: self.ranges.iter().map(|r| r.end - r.start).sum(),
            parts: u32::try_from(self.ranges.len()).unwrap_or(u32::MAX),
        })
    }
}
