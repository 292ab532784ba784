//! What is learned from an answer is remembered before the answer is released: once any caller has seen a recorded verdict,
//! no later request with its fingerprint reaches the upstream.

use std::io;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, header, response};
use nevertwice_domain::entry::{DocumentFacts, ENTRY_SCHEMA, Entry, REDUCED_SCHEMA, ReplayFields};
use nevertwice_domain::fingerprint::DocumentDigest;
use nevertwice_domain::profile::{DocumentSearch, NotRecorded, Verdict};
use nevertwice_domain::status::RefusalStatus;
use nevertwice_domain::strike::LifePolicy;
use nevertwice_domain::tenant::UpstreamName;
use sha2::{Digest, Sha256};

use super::account::Record;
use super::hold;
use super::identify::Tenant;
use super::intake::Document;
use super::judge::{Answer, AnswerBody, Meaning};
use super::recall::{Asked, Call, CallBody};
use crate::Shared;
use crate::memory::unclassified::Refusal;
use crate::memory::{Attempt, Landing, Memory, UpstreamGuard};

/// The time that is left for the store when the judgement took all of `judge_wait`.
const LEAST_WAIT: Duration = Duration::from_millis(50);

/// Carries out what the answer means, and tells those who wait.
pub(super) async fn remember(
    gateway: &Shared,
    call: Box<Call>,
    mut answer: Answer,
    record: &mut Record,
) -> Answer {
    let Call { plan, body, asked, .. } = *call;
    let upstream = &plan.upstream;
    let (Some(mut asked), Some(memory), Some(guard)) = (asked, &gateway.memory, &upstream.guard) else {
        return answer;
    };
    let Some(attempt) = asked.attempt.take() else { return answer };
    let document = match &body {
        CallBody::Document(document) => Some(document.as_ref()),
        CallBody::Passing(_) => None,
    };
    hold::take_note(gateway, &plan, &asked.key, document, &answer, record).await;
    let landing = match (&answer.meaning, &body) {
        (Meaning::Nothing, _) => Landing::NoVerdict,
        (Meaning::Accepted, _) => {
            let left = until(guard, &answer).saturating_duration_since(Instant::now());
            memory.accept(&asked.key, upstream.name(), guard, &attempt, left).await;
            Landing::NoVerdict
        }
        (Meaning::NotRecorded(reason), _) => {
            memory.not_recorded(*reason);
            if let (NotRecorded::Unclassified, Some(body), Some(guarded)) =
                (reason, answer.judged(), &plan.guarded)
            {
                memory.unclassified(&Refusal {
                    upstream: upstream.name(),
                    profile: &guarded.profile,
                    fingerprint: asked.key.fingerprint,
                    status: answer.head.status,
                    headers: &answer.head.headers,
                    body: answer.reduced.as_ref().unwrap_or(body),
                });
            }
            Landing::NoVerdict
        }
        (Meaning::Verdict(status, verdict), CallBody::Document(document)) => {
            let refused = Refused {
                gateway,
                memory,
                guard,
                asked: &asked,
                attempt: &attempt,
                tenant: &plan.tenant,
                upstream: upstream.name(),
                documents: plan.document_keys(),
                status: *status,
                verdict,
            };
            match refused.record(document, &answer, record).await {
                Ok(()) => Landing::Verdict,
                Err(reason) => {
                    memory.not_recorded(reason);
                    Landing::NoVerdict
                }
            }
        }
        // a guarded call always holds its document
        (Meaning::Verdict(..), CallBody::Passing(_)) => Landing::NoVerdict,
    };
    attempt.land(landing);
    answer.remembered = landing == Landing::Verdict;
    answer
}

/// Until when the answer's head may wait.
pub(super) fn until(guard: &UpstreamGuard, answer: &Answer) -> Instant {
    (answer.at + guard.rules.judge_wait).max(Instant::now() + LEAST_WAIT)
}

struct Refused<'a> {
    gateway: &'a Shared,
    memory: &'a Memory,
    guard: &'a UpstreamGuard,
    asked: &'a Asked,
    attempt: &'a Attempt,
    tenant: &'a Tenant,
    upstream: &'a UpstreamName,
    /// The keys under which a JSON request holds the document.
    documents: &'a [Box<str>],
    status: RefusalStatus,
    verdict: &'a Verdict,
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

    async fn record(
        &self,
        document: &Document,
        answer: &Answer,
        record: &mut Record,
    ) -> Result<(), NotRecorded> {
        let (schema, body) = match (&answer.reduced, &answer.body) {
            (Some(reduced), _) => (REDUCED_SCHEMA, reduced.clone()),
            // a copy of its own: a slice would keep the connection's whole read buffer alive
            (None, AnswerBody::Whole(body)) => (ENTRY_SCHEMA, Bytes::copy_from_slice(body)),
            (None, _) => return Err(NotRecorded::Incomplete),
        };
        let deadline = until(self.guard, answer);
        let facts = match tokio::time::timeout_at(deadline.into(), document.facts(self.documents)).await {
            Ok(Ok(facts)) => facts,
            Ok(Err(error)) => {
                tracing::error!(%error, "a document could not be read back from disk, its refusal is not remembered");
                return Err(NotRecorded::Incomplete);
            }
            Err(_) => return Err(NotRecorded::Incomplete),
        };
        record.document = Some(facts.digest);
        let now = self.gateway.clock.now();
        let life = self.life();
        let entry = Entry {
            schema,
            fingerprint: self.asked.key.fingerprint,
            scope: self.asked.key.scope.to_string(),
            upstream: self.upstream.clone(),
            generation: self.guard.rules.generation.clone(),
            status: self.status,
            fields: replay_fields(&answer.head),
            body,
            document: facts,
            rule: self.verdict.rule.to_string(),
            refused_tenant: self.tenant.id.clone(),
            first_refused_at: now,
            recorded_at: now,
            ttl_ms: life.ttl_ms(self.status),
        };
        self.memory.record(entry, life, self.attempt, self.asked.fence, self.guard, deadline).await?;
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
