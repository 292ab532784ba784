//! The loop breaker on the line: whether a request is held, and what an answer means for the next.

use http::response;
use nevertwice_domain::loop_breaker::Told;

use super::account::Record;
use super::intake::Document;
use super::judge::{Answer, AnswerBody};
use super::plan::Plan;
use super::recall::Call;
use super::remember;
use crate::Shared;
use crate::loop_breaker::{Held, LastAnswer};
use crate::memory::Guarded;
use crate::upstream::Upstream;

/// Whether this request is not to be sent now.
pub(super) fn look(gateway: &Shared, upstream: &Upstream, asked: &Guarded) -> Option<Held> {
    upstream.loop_breaker.as_ref()?.held(&asked.fingerprint, gateway.clock.as_ref())
}

/// Whether an answer with this head counts as a failure, if it is complete.
pub(super) fn may_count(call: &Call, head: &response::Parts) -> bool {
    let upstream = &call.plan.upstream;
    upstream.loop_breaker.is_some() && told(upstream, head) == Told::Failure
}

fn told(upstream: &Upstream, head: &response::Parts) -> Told {
    let honor = upstream.guard.as_ref().is_none_or(|guard| guard.rules.honor_cache_control);
    Told::by(head.status, &head.headers, honor)
}

/// Counts a failure; any other answer of the upstream ends the count. `document` is what was sent.
pub(super) async fn take_note(
    gateway: &Shared,
    plan: &Plan,
    asked: &Guarded,
    document: Option<&Document>,
    answer: &Answer,
    record: &mut Record,
) {
    let upstream = &plan.upstream;
    let Some(breaker) = &upstream.loop_breaker else { return };
    let body = match (told(upstream, &answer.head), &answer.body) {
        (Told::Failure, AnswerBody::Whole(body)) => body,
        // not judged whole: nothing is known of it
        (Told::Failure, _) | (Told::Nothing, _) => return,
        (Told::Otherwise, _) => return breaker.clear(&asked.fingerprint),
    };
    let last = LastAnswer {
        status: answer.head.status,
        fields: remember::replay_fields(&answer.head),
        // a copy of its own: a slice would keep the connection's whole read buffer alive
        body: bytes::Bytes::copy_from_slice(body),
    };
    if !breaker.failed(asked, &plan.tenant.id, last, gateway.clock.as_ref()) {
        return;
    }
    tracing::warn!(
        upstream = %upstream.name(),
        fingerprint = %asked.fingerprint,
        status = answer.head.status.as_u16(),
        failures = breaker.policy.failures,
        hold_s = breaker.policy.hold_ms / 1000,
        "loop breaker: the upstream fails on one request again and again, it is not sent for a while"
    );
    // for an operator who knows the document; the hold is there without it
    let (Some(document), Some(guard)) = (document, &upstream.guard) else { return };
    let facts =
        tokio::time::timeout_at(remember::until(guard, answer).into(), document.facts(plan.document_keys()));
    if let Ok(Ok(facts)) = facts.await {
        breaker.is_of(&asked.fingerprint, facts.digest);
        record.document = Some(facts.digest);
    }
}
