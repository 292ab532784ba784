//! Operations on the line: a submit that is answered with one, and the polls of it.
//!
//! The upstream's answer to a submit says nothing of the document yet. So what would have to be remembered is kept with the
//! operation, and the attempt is under way until a poll shows how it ended: whose poll, at which replica, does not matter.
//! A verdict that was learned from a poll is replayed by one: the next submit gets an operation of the gateway's own, whose
//! poll tells the failure again.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, header};
use hyper::body::Incoming;
use nevertwice_config::checked::Facade;
use nevertwice_domain::entry::Entry;
use nevertwice_domain::fingerprint::Fingerprint;
use nevertwice_domain::operation::{self, Operation, OperationId, Pending, State, Whereabouts, path};
use nevertwice_domain::outcome::OwnCode;
use nevertwice_domain::profile::{NotRecorded, Phase, Reference, RequestFacts};
use nevertwice_domain::tenant::UpstreamName;
use nevertwice_store::Fence;

use super::account::Record;
use super::judge::{self, Answer, AnswerBody, Meaning, Reach};
use super::plan::Plan;
use super::recall::{Call, CallBody, Known, Recall};
use super::remember::{self, Refused};
use super::{Rejection, headers};
use crate::Shared;
use crate::body::outbound::ClientBody;
use crate::facade::azure_di::{Asked, OPERATION_LOCATION};
use crate::memory::{Guarded, Landing, Memory, UpstreamGuard};
use crate::operations::{FIRST_LOOK_MS, LIFE_MS, Operations};
use crate::upstream::client::{Address, AnsweredBy};

/// How far an answer is read for the state, which the service writes first, in bytes.
const STATE_WITHIN: usize = 4096;
/// How long the recording of what a poll has shown may take.
const RECORD_WAIT: Duration = Duration::from_secs(5);
/// How often the record of another poll is looked for.
const RECORD_LOOKS: u32 = 20;

/// A poll of an operation that is at the upstream.
pub(super) struct Polled {
    pub(super) operation: Arc<Operation>,
    pub(super) authority: String,
    /// Path and query as the upstream knows them.
    pub(super) path: PathAndQuery,
    /// Whether it asks for the operation itself, and no part of its result.
    asks_state: bool,
}

/// What an answer means for an operation.
#[derive(Debug)]
pub(crate) enum News {
    /// One has begun.
    Begun(Address),
    /// Its outcome is known, whatever it is.
    Over,
    /// It is no more.
    Removed,
}

/// An operation of the gateway's own making, for a document whose operations are known to fail.
pub(crate) struct Minted {
    pub(super) entry: Arc<Entry>,
    /// Where it can be polled.
    pub(super) location: String,
}

impl Polled {
    /// What is still to be learned from it.
    pub(super) fn pending(&self) -> Option<&Pending> {
        match &self.operation.at {
            Whereabouts::Upstream { pending, .. } => pending.as_ref(),
            Whereabouts::Known { .. } => None,
        }
    }
}

fn not_found() -> Rejection {
    Rejection::with(
        OwnCode::OperationNotFound,
        "there is no such operation here: it has expired or was deleted, or it is another tenant's",
    )
}

/// Looks the operation up that a request names.
pub(super) async fn find(
    gateway: &Shared,
    plan: Plan,
    (id, rest): (Option<OperationId>, &str),
    head: Parts,
    body: CallBody,
    record: &Record,
) -> Result<Recall, Rejection> {
    let Some(operations) = &gateway.operations else { return Err(OwnCode::Internal.into()) };
    let id = id.ok_or_else(not_found)?;
    let found = operations.find(&id).await.map_err(|error| {
        tracing::warn!(%error, "an operation could not be looked up");
        Rejection { retry_after_s: Some(1), ..OwnCode::StoreUnavailable.into() }
    })?;
    let own = |operation: &Arc<Operation>| {
        operation.tenant == plan.tenant.id && operation.upstream == *plan.upstream.name()
    };
    let operation = found.filter(own).ok_or_else(not_found)?;
    if let Whereabouts::Known { .. } = operation.at {
        return match (rest, &head.method) {
            ("", &Method::DELETE) => {
                operations.remove(&id).await;
                Ok(Recall::Known(Known::Removed))
            }
            ("", _) => Ok(Recall::Known(Known::Failed(operation))),
            // a failed operation has no results
            _ => Err(not_found()),
        };
    }
    let passing = headers::passing(&head.headers, &gateway.tenants, &plan.upstream, &record.trace);
    let mut call = poll(plan, operation, rest, head, body)?;
    // what an answer teaches is for everybody: nothing of it is the choice of one
    let teaches = call.polled.as_ref().is_some_and(|polled| polled.asks_state && polled.pending().is_some());
    call.head.headers = match teaches {
        true => headers::guarded(&HeaderMap::new(), &[], &record.trace),
        false => passing,
    };
    finish_head(&mut call);
    Ok(Recall::Unknown(call))
}

impl Plan {
    /// That of the gateway's own look at an operation; `None` when its tenant or its upstream is not configured any more.
    pub(super) fn of_look(gateway: &Shared, operation: &Operation) -> Option<Self> {
        let upstream = gateway.upstreams.iter().find(|upstream| *upstream.name() == operation.upstream)?;
        let Whereabouts::Upstream { path, .. } = &operation.at else { return None };
        Some(Self {
            tenant: gateway.tenants.named(&operation.tenant)?,
            upstream: Arc::clone(upstream),
            route: Arc::clone(&gateway.any_route),
            path: PathAndQuery::from_maybe_shared(path.clone()).ok()?,
            guarded: None,
            asked: Asked::Else,
            origin: None,
        })
    }
}

/// The gateway's own look at an operation.
pub(super) fn look(plan: Plan, operation: Arc<Operation>, record: &Record) -> Result<Box<Call>, Rejection> {
    let (mut head, ()) = http::Request::new(()).into_parts();
    head.headers = headers::guarded(&HeaderMap::new(), &[], &record.trace);
    let mut call = poll(plan, operation, "", head, CallBody::Nothing)?;
    finish_head(&mut call);
    Ok(call)
}

/// A poll's answer has to be read here, and the upstream has to know who asks.
fn finish_head(call: &mut Call) {
    call.head.headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    headers::set_credential(&mut call.head.headers, &call.plan.upstream);
}

fn poll(
    plan: Plan,
    operation: Arc<Operation>,
    rest: &str,
    head: Parts,
    body: CallBody,
) -> Result<Box<Call>, Rejection> {
    let Whereabouts::Upstream { authority, path, .. } = &operation.at else { return Err(not_found()) };
    if !plan.upstream.client.knows(authority) {
        return Err(Rejection::with(
            OwnCode::OperationGone,
            "the server that had this operation is no longer part of this gateway's configuration",
        ));
    }
    let (authority, path) = (authority.clone(), sub_resource(path, rest));
    let path = PathAndQuery::from_maybe_shared(path).map_err(|_| not_found())?;
    let asks_state = rest.is_empty() && head.method == Method::GET;
    let polled = Polled { operation, authority, path, asks_state };
    Ok(Box::new(Call {
        plan,
        head,
        body,
        asked: None,
        content_type: None,
        is_opaque: true,
        polled: Some(Box::new(polled)),
    }))
}

/// An address with a sub-resource behind its path.
fn sub_resource(address: &str, rest: &str) -> String {
    let (path, query) = address.split_at(address.find('?').unwrap_or(address.len()));
    format!("{path}{rest}{query}")
}

/// Where the operation is that this answer to a submit speaks of. No address of the upstream's own goes on to the caller.
pub(super) fn begun(plan: &Plan, answer: &mut Response<Incoming>) -> Result<Option<Address>, Rejection> {
    if plan.upstream.config.adapter.facade() != Facade::AzureDi {
        return Ok(None);
    }
    let mut locations = answer.headers().get_all(&OPERATION_LOCATION).iter().cloned().collect::<Vec<_>>();
    answer.headers_mut().remove(&OPERATION_LOCATION);
    if answer.status() != StatusCode::ACCEPTED {
        return Ok(None);
    }
    // clients would ask there once more for the result
    answer.headers_mut().remove(header::LOCATION);
    let location = match (locations.pop(), locations.is_empty()) {
        (Some(one), true) => one,
        (None, _) if !matches!(plan.asked, Asked::Submit) => return Ok(None),
        _ => {
            let detail = "the upstream took the document, and did not say where its operation is";
            return Err(Rejection::with(OwnCode::UpstreamMalformed, detail));
        }
    };
    let by = answer.extensions().get::<AnsweredBy>();
    let address = by.zip(location.to_str().ok()).and_then(|(by, l)| plan.upstream.client.locate(by, l));
    // any id will do for the question
    let is_one = |a: &Address| path::with_id(a.within(), &OperationId::from_random([0; 16])).is_some();
    address.filter(is_one).map(Some).ok_or_else(|| {
        Rejection::with(
            OwnCode::UpstreamMalformed,
            "the upstream's Operation-Location does not lead to itself; list the host in `poll_hosts` if it is to be trusted",
        )
    })
}

/// An operation has begun: it gets an id of the gateway's own, and what a poll may teach is kept with it.
pub(super) async fn open(
    gateway: &Shared,
    call: Box<Call>,
    address: &Address,
    answer: &mut Answer,
    record: &mut Record,
) -> Result<(), Rejection> {
    let Call { plan, body, asked, content_type, is_opaque, .. } = *call;
    let (Some(operations), Some(origin), Some(id)) =
        (&gateway.operations, &plan.origin, Operations::new_id())
    else {
        return Err(OwnCode::Internal.into());
    };
    let within = path::with_id(address.within(), &id).ok_or(OwnCode::UpstreamMalformed)?;
    let location = format!("{origin}{within}");
    let location = HeaderValue::from_maybe_shared(Bytes::from(location)).map_err(|_| OwnCode::Internal)?;
    let now = operations.now();
    let mut pending = None;
    // an upstream that has not taken all of the document will speak of something else
    if let (Some(asked), Some(guard), Some(guarded), CallBody::Document(document), true) =
        (&asked, &plan.upstream.guard, &plan.guarded, &body, record.uploaded())
    {
        let until = remember::until(guard, answer);
        let facts = tokio::time::timeout_at(until.into(), document.facts(plan.document_keys())).await;
        let request =
            judge::Request { plan: &plan, body: &body, content_type: content_type.as_ref(), is_opaque };
        let reference = judge::reference(&request, &guarded.profile, until).await;
        // a document that could not be read again in time is not remembered
        let facts = facts.ok().and_then(Result::ok);
        record.document = facts.map(|facts| facts.digest);
        pending = facts.map(|document| Pending {
            fingerprint: asked.key.fingerprint,
            scope: asked.key.scope.to_string(),
            generation: guard.rules.generation.clone(),
            document,
            referenced: reference.is_some(),
            content_type: judge::facts(&request).content_type,
            profile: guarded.profile.revision().map(|revision| Fingerprint::from_bytes(*revision)),
            fence: asked.fence.map(|Fence(at)| at),
            process: operations.process,
            looks: 0,
            next_look_at: now.plus_ms(FIRST_LOOK_MS),
        });
    }
    let is_pending = pending.is_some();
    let operation = Operation {
        id,
        tenant: plan.tenant.id.clone(),
        upstream: plan.upstream.name().clone(),
        created_at: now,
        expires_at: now.plus_ms(LIFE_MS),
        at: Whereabouts::Upstream {
            authority: address.authority.clone(),
            path: address.path.clone(),
            pending,
        },
    };
    // before the answer: whoever has the address can ask, wherever
    operations.keep(operation).await;
    if let (Some(asked), Some(breaker)) = (&asked, &plan.upstream.loop_breaker) {
        // it was taken, whatever becomes of it
        breaker.clear(&asked.key.fingerprint);
    }
    if let (Some(attempt), Some(guard)) = (asked.and_then(|asked| asked.attempt), &plan.upstream.guard) {
        match is_pending {
            true => operations.hold_flight(id, attempt, guard.rules.single_flight_wait),
            false => attempt.land(Landing::NoVerdict),
        }
    }
    answer.head.headers.insert(OPERATION_LOCATION.clone(), location);
    Ok(())
}

/// A document whose operations are known to fail gets one that has failed.
pub(super) async fn mint(gateway: &Shared, plan: &Plan, known: Known) -> Known {
    let Known::Refused(entry) = known else { return known };
    let (Asked::Submit, true) = (&plan.asked, entry.status.is_failed_operation()) else {
        return Known::Refused(entry);
    };
    let (Some(operations), Some(origin), Some(id)) =
        (&gateway.operations, &plan.origin, Operations::new_id())
    else {
        return Known::Refused(entry);
    };
    let Some(address) = path::of_submit(&path::as_read(plan.path.path()), &id) else {
        return Known::Refused(entry);
    };
    // clients look for the version in the address
    let query = plan.path.query().unwrap_or_default();
    let version = query.split('&').find(|pair| pair.starts_with("api-version="));
    let version = version.map(|version| format!("?{version}")).unwrap_or_default();
    let now = operations.now();
    let content_type = entry.fields.content_type.as_ref();
    let operation = Operation {
        id,
        tenant: plan.tenant.id.clone(),
        upstream: plan.upstream.name().clone(),
        created_at: now,
        expires_at: now.plus_ms(LIFE_MS),
        at: Whereabouts::Known {
            fingerprint: entry.fingerprint,
            body: entry.body.clone(),
            content_type: content_type.and_then(|value| String::from_utf8(value.to_vec()).ok()),
            recorded_at: entry.recorded_at,
            valid_until: entry.expires_at(),
        },
    };
    operations.keep(operation).await;
    Known::Minted(Minted { location: format!("{origin}{address}{version}"), entry })
}

/// Judges an answer to a poll.
pub(super) async fn judge(
    gateway: &Shared,
    call: &Call,
    polled: &Polled,
    answer: Response<Incoming>,
) -> Result<Answer, Rejection> {
    let at = Instant::now();
    let (head, body) = answer.into_parts();
    let answer = |body, meaning, news| Answer { news, ..Answer::new(head.clone(), body, meaning, at) };
    if call.head.method == Method::DELETE
        && (head.status.is_success() || head.status == StatusCode::NOT_FOUND)
    {
        return Ok(answer(AnswerBody::Live(body), Meaning::Nothing, Some(News::Removed)));
    }
    let (Some(pending), Some(memory), Some(guard)) =
        (polled.pending().filter(|_| polled.asks_state), &gateway.memory, &call.plan.upstream.guard)
    else {
        return Ok(answer(AnswerBody::Live(body), Meaning::Nothing, None));
    };
    match head.status {
        StatusCode::OK => {}
        // the upstream knows it no more
        StatusCode::NOT_FOUND | StatusCode::GONE => {
            return Ok(answer(AnswerBody::Live(body), Meaning::Nothing, Some(News::Over)));
        }
        _ => return Ok(answer(AnswerBody::Live(body), Meaning::Nothing, None)),
    }
    let incomplete = judge::ends_with_the_connection(&head, &body) || judge::fields_too_large(&head);
    let reach = Reach { kept: memory.max_body_bytes, beyond: None, wait: guard.rules.judge_wait };
    let body = match judge::read(body, reach).await? {
        // too long to be kept, as most results are: the state is all there is to know
        (AnswerBody::Live(body), _) => {
            let tells = |read: &[u8]| operation::state(read).is_some();
            judge::beginning(body, STATE_WITHIN, guard.rules.judge_wait, tells).await?
        }
        (body, _) => body,
    };
    let state = match &body {
        AnswerBody::Whole(bytes) => operation::state(bytes),
        AnswerBody::Begun(chunks, _) => operation::state(&chunks.concat()),
        AnswerBody::Live(_) => None,
    };
    let (meaning, news) = match (state, &body) {
        (Some(State::Succeeded), _) => (Meaning::Accepted, Some(News::Over)),
        (Some(State::Ended), _) => (Meaning::Nothing, Some(News::Over)),
        (Some(State::Failed), AnswerBody::Whole(bytes)) if !incomplete => {
            let meaning = failed(guard, &call.plan, pending, &head.headers, bytes);
            (meaning, Some(News::Over))
        }
        (Some(State::Failed), _) => {
            let reason = if incomplete { NotRecorded::Incomplete } else { NotRecorded::BodyTooLarge };
            (Meaning::NotRecorded(reason), Some(News::Over))
        }
        (Some(State::Running) | None, _) => (Meaning::Nothing, None),
    };
    Ok(answer(body, meaning, news))
}

/// What a failed operation says of its document.
fn failed(
    guard: &UpstreamGuard,
    plan: &Plan,
    pending: &Pending,
    headers: &HeaderMap,
    body: &Bytes,
) -> Meaning {
    // the key names the rules that judge; under other ones the entry would be found by nobody
    let profile = plan.upstream.profile().filter(|profile| {
        profile.revision().map(|revision| Fingerprint::from_bytes(*revision)) == pending.profile
    });
    let Some(profile) = profile.filter(|profile| profile.judges_200()) else {
        return Meaning::NotRecorded(NotRecorded::Fenced);
    };
    let request = RequestFacts {
        phase: Phase::Poll,
        content_type: pending.content_type.clone(),
        reference: pending.referenced.then_some(Reference::Unsure),
    };
    judge::of_failed(guard, &profile, &request, headers, body)
}

/// Carries out what a poll has shown, once for each operation, and tells those who wait for its outcome.
pub(super) async fn learn(
    gateway: &Shared,
    call: Box<Call>,
    mut answer: Answer,
    record: &mut Record,
) -> Answer {
    let Call { plan, polled, .. } = *call;
    let (Some(operations), Some(polled)) = (&gateway.operations, polled) else { return answer };
    let id = &polled.operation.id;
    match answer.news.take() {
        Some(News::Removed) => {
            operations.remove(id).await;
            return answer;
        }
        Some(News::Over) => {}
        Some(News::Begun(_)) | None => return answer,
    }
    let (Some(pending), Some(memory), Some(guard)) =
        (polled.pending(), &gateway.memory, &plan.upstream.guard)
    else {
        return answer;
    };
    record.fingerprint = Some(pending.fingerprint);
    let key = Guarded { fingerprint: pending.fingerprint, scope: pending.scope.as_str().into() };
    // the fence comes before the question whether it is pending still: a forget is either seen by the one or bars the other
    let (_, now) = memory.recall(&key, plan.upstream.name(), guard).await;
    let fence_holds = memory.store.fences_last() || pending.process == operations.process;
    let fence = if fence_holds { pending.fence.map(Fence) } else { now };
    // taken first: whoever waits is not to be released between the question and the record
    let held = operations.take_flight(id);
    let settled = operations.settle(id).await;
    if let Err(error) = &settled {
        tracing::warn!(%error, "the outcome of an operation could not be noted, the next poll of it will tell");
    }
    if !settled.is_ok_and(|first| first) {
        if let Some(attempt) = held {
            operations.hold_flight(*id, attempt, guard.rules.single_flight_wait);
        }
        if matches!(answer.meaning, Meaning::Verdict(..)) {
            recorded_elsewhere(memory, &key, plan.upstream.name(), guard).await;
        }
        return answer;
    }
    let attempt = held.unwrap_or_else(|| memory.flights.join(key.fingerprint));
    let deadline = Instant::now() + RECORD_WAIT;
    let landing = match &answer.meaning {
        Meaning::Nothing => Landing::NoVerdict,
        Meaning::Accepted => {
            memory.accept(&key, plan.upstream.name(), guard, RECORD_WAIT).await;
            Landing::NoVerdict
        }
        Meaning::NotRecorded(reason) => {
            memory.not_recorded(*reason);
            remember::unclassified(memory, &plan, *reason, key.fingerprint, &answer);
            Landing::NoVerdict
        }
        // what was learned of the upstream, or of the document, since then is newer than this failure
        Meaning::Verdict(..) if guard.distrusts_since(polled.operation.created_at) => {
            memory.not_recorded(NotRecorded::Guard);
            Landing::NoVerdict
        }
        Meaning::Verdict(..) if memory.accepted_since(&key.fingerprint, polled.operation.created_at) => {
            memory.not_recorded(NotRecorded::Fenced);
            Landing::NoVerdict
        }
        Meaning::Verdict(status, verdict) => {
            let refused = Refused {
                gateway,
                memory,
                guard,
                key: &key,
                fence,
                generation: &pending.generation,
                attempt: &attempt,
                tenant: &polled.operation.tenant,
                upstream: plan.upstream.name(),
                status: *status,
                verdict,
            };
            record.document = Some(pending.document.digest);
            match refused.record(pending.document, &answer, deadline).await {
                Ok(()) => Landing::Verdict,
                Err(reason) => {
                    memory.not_recorded(reason);
                    Landing::NoVerdict
                }
            }
        }
    };
    attempt.land(landing);
    answer
}

/// Another poll was first, and records what this one has seen: the caller is told when that is done, so that its next submit finds it.
/// A second at most, in case nothing is recorded.
async fn recorded_elsewhere(memory: &Memory, key: &Guarded, upstream: &UpstreamName, guard: &UpstreamGuard) {
    for _ in 0..RECORD_LOOKS {
        if memory.known(key, upstream, guard).await.is_some() {
            return;
        }
        tokio::time::sleep(RECORD_WAIT / 100).await;
    }
}

impl CallBody {
    /// A client's body, which a poll usually has none of.
    pub(super) fn passing(gateway: &Shared, plan: &Plan, body: Incoming) -> Self {
        Self::Passing(ClientBody::new(body, gateway.body_bounds(plan.upstream.config.idle_timeout)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sub_resource_goes_in_front_of_the_query() {
        assert_eq!(sub_resource("/a/7?v=1", "/pdf"), "/a/7/pdf?v=1");
        assert_eq!(sub_resource("/a/7", ""), "/a/7");
    }
}
