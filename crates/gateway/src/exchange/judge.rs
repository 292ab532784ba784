//! What the upstream's answer says about the document. Only an answer that may become a verdict is read to its end here: a
//! refusal, or a 200 where the profile knows operations that failed; everything else streams on at once.

use std::io;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, StatusCode, Version, header, response};
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use nevertwice_domain::canonical::fields;
use nevertwice_domain::canonical::form::FieldValue;
use nevertwice_domain::outcome::{Outcome, OwnCode};
use nevertwice_domain::profile::{
    self, Judgement, NotRecorded, Phase, Profile, Reference, ReferenceSearch, RequestFacts, Verdict,
};
use nevertwice_domain::status::RefusalStatus;

use super::intake::Document;
use super::operation::{self, News};
use super::plan::Plan;
use super::recall::{Call, CallBody};
use super::{Rejection, hold};
use crate::Shared;
use crate::body::budget::Reservation;
use crate::jobs::Room;
use crate::memory::UpstreamGuard;

/// What an upstream can tell before it has read the document: that it is too long, or of the wrong type.
const SEEN_IN_THE_HEAD: [u16; 2] = [413, 415];

/// How much is read of a refusal that is longer than what is kept of one, where the profile says what may be left out, in bytes.
const LONGEST_REFUSAL: u64 = 8 * 1024 * 1024;

/// A result up to this length asks for no room, here or on its way to a client.
pub(crate) const SMALL_RESULT: u64 = 64 << 10;

/// The longest header value that a replay keeps, in bytes.
const MAX_FIELD: usize = 4096;

/// An upstream's answer, and what it means.
pub(crate) struct Answer {
    pub(crate) head: response::Parts,
    pub(crate) body: AnswerBody,
    /// Of a body that is too long to keep: what is left without the values that the profile says may be left out.
    pub(super) reduced: Option<Bytes>,
    pub(crate) meaning: Meaning,
    /// What it says of an operation.
    pub(crate) news: Option<News>,
    /// When the head arrived.
    pub(crate) at: Instant,
    /// Whether it was recorded as a verdict.
    pub(super) remembered: bool,
}

/// The body, as far as it was read.
pub(crate) enum AnswerBody {
    /// Not at all.
    Live(Incoming),
    /// To its end.
    Whole(Bytes),
    /// These chunks; more may follow.
    Begun(Vec<Bytes>, Incoming),
}

/// What an answer means for the memory.
#[derive(Debug)]
pub(crate) enum Meaning {
    /// Nothing.
    Nothing,
    /// The document is fine.
    Accepted,
    /// The document will never be accepted.
    Verdict(RefusalStatus, Verdict),
    /// A refusal that is not remembered.
    NotRecorded(NotRecorded),
}

impl Answer {
    /// One that is not reduced, and says nothing of an operation.
    pub(crate) fn new(head: response::Parts, body: AnswerBody, meaning: Meaning, at: Instant) -> Self {
        Self { head, body, reduced: None, meaning, news: None, at, remembered: false }
    }

    pub(super) fn status(&self) -> StatusCode {
        self.head.status
    }

    /// How the exchange ends with it.
    pub(super) fn outcome(&self) -> Outcome {
        match self.meaning {
            // of a 200 it is said after a look at its body alone
            Meaning::Verdict(..) | Meaning::NotRecorded(_) if self.head.status == StatusCode::OK => {
                Outcome::FailedOperation
            }
            _ => Outcome::of_upstream(self.head.status),
        }
    }

    /// What was judged of a body that was read to its end: as much as is kept of one.
    pub(super) fn judged(&self) -> Option<&Bytes> {
        match (&self.reduced, &self.body) {
            (Some(reduced), _) => Some(reduced),
            (None, AnswerBody::Whole(body)) => Some(body),
            (None, _) => None,
        }
    }
}

/// Judges an answer to a guarded request; lets every other pass.
pub(super) async fn judge(
    gateway: &Shared,
    call: &Call,
    mut answer: Response<Incoming>,
    uploaded: bool,
) -> Result<Answer, Rejection> {
    let at = Instant::now();
    let begun = operation::begun(&call.plan, &mut answer)?;
    if let Some(polled) = &call.polled {
        return operation::judge(gateway, call, polled, answer).await;
    }
    let (head, body) = answer.into_parts();
    if let Some(address) = begun {
        // of the document it says nothing yet
        let (body, news) = (AnswerBody::Live(body), Some(News::Begun(address)));
        return Ok(Answer { news, ..Answer::new(head, body, Meaning::Nothing, at) });
    }
    let (Some(_), Some(memory), Some(guard), Some(guarded)) =
        (&call.asked, &gateway.memory, &call.plan.upstream.guard, &call.plan.guarded)
    else {
        return Ok(Answer::new(head, AnswerBody::Live(body), Meaning::Nothing, at));
    };
    let rules = &guard.rules;
    let profile = &*guarded.profile;
    if uploaded && head.status == StatusCode::OK && profile.judges_200() && is_json(&head.headers) {
        return judge_200(memory.max_body_bytes, call, (guard, profile), (head, body), at).await;
    }
    let refusal =
        profile::may_be_verdict(&memory.statuses, rules.honor_cache_control, head.status, &head.headers);
    let refusal = match refusal {
        None if head.status.is_success() && uploaded => Err(Meaning::Accepted),
        None => Err(Meaning::Nothing),
        Some(Err(reason)) => Err(Meaning::NotRecorded(reason)),
        Some(Ok(status)) if !uploaded && !SEEN_IN_THE_HEAD.contains(&status.get()) => {
            Err(Meaning::NotRecorded(NotRecorded::Incomplete))
        }
        Some(Ok(_)) if ends_with_the_connection(&head, &body) => {
            Err(Meaning::NotRecorded(NotRecorded::Incomplete))
        }
        Some(Ok(_)) if fields_too_large(&head) => Err(Meaning::NotRecorded(NotRecorded::FieldsTooLarge)),
        Some(Ok(status)) => Ok(status),
    };
    let status = match refusal {
        Ok(status) => status,
        Err(meaning) => {
            let counts = hold::may_count(call, &head)
                && uploaded
                && !ends_with_the_connection(&head, &body)
                && !fields_too_large(&head);
            let body = match counts {
                true => {
                    let reach = Reach { kept: memory.max_body_bytes, beyond: None, wait: rules.judge_wait };
                    read(body, reach).await?.0
                }
                false => AnswerBody::Live(body),
            };
            return Ok(Answer::new(head, body, meaning, at));
        }
    };
    let reach = Reach {
        kept: memory.max_body_bytes,
        beyond: is_reducible(profile, &head.headers).then(|| gateway.budget.reserve()),
        wait: rules.judge_wait,
    };
    let (body, reason) = read(body, reach).await?;
    let meaning = Meaning::NotRecorded(reason);
    let mut answer = Answer::new(head, body, meaning, at);
    let AnswerBody::Whole(whole) = &answer.body else { return Ok(answer) };
    if whole.len() as u64 > memory.max_body_bytes {
        // before it is judged: a judgement takes many times the memory of what it reads
        let most = usize::try_from(memory.max_body_bytes).unwrap_or(usize::MAX);
        answer.reduced = profile::reduce(profile.reduce(), whole, most).map(Bytes::from);
        if answer.reduced.is_none() {
            answer.meaning = Meaning::NotRecorded(NotRecorded::BodyTooLarge);
            return Ok(answer);
        }
    }
    let Some(body) = answer.judged() else { return Ok(answer) };
    let request = Request::of(call);
    let reference = reference(&request, profile, at + rules.judge_wait).await;
    let request = RequestFacts { reference, ..facts(&request) };
    let seen = profile::Answer { status: answer.head.status, headers: &answer.head.headers, body };
    answer.meaning = match profile.judge(&request, &seen, &guard.terms()) {
        Judgement::Verdict(verdict) => Meaning::Verdict(status, verdict),
        Judgement::Accepted => Meaning::Nothing,
        Judgement::Not(reason) => Meaning::NotRecorded(reason),
    };
    Ok(answer)
}

/// The request that was answered.
pub(super) struct Request<'a> {
    pub(super) plan: &'a Plan,
    pub(super) body: &'a CallBody,
    pub(super) content_type: Option<&'a HeaderValue>,
    pub(super) is_opaque: bool,
}

impl<'a> Request<'a> {
    fn of(call: &'a Call) -> Self {
        let Call { plan, body, content_type, is_opaque, .. } = call;
        Self { plan, body, content_type: content_type.as_ref(), is_opaque: *is_opaque }
    }
}

/// What the rules want to know of the request, but for [`reference`].
pub(super) fn facts(request: &Request<'_>) -> RequestFacts {
    // as the key has it: what the key does not tell apart, a rule cannot
    let text = |value: &HeaderValue| {
        let form = matches!(request.body, CallBody::Document(document) if document.form);
        String::from_utf8_lossy(&fields::content_type(value.as_bytes(), form)).into_owned()
    };
    RequestFacts { phase: Phase::Submit, content_type: request.content_type.map(text), reference: None }
}

/// Whether the request names its input by reference: looked for in all of it, which may be long and on disk.
pub(super) async fn reference(request: &Request<'_>, profile: &Profile, until: Instant) -> Option<Reference> {
    if profile.references().is_empty() {
        return None;
    }
    let content_type = request.content_type.map(HeaderValue::as_bytes);
    let mut search = ReferenceSearch::new(profile.references(), profile.documents(), content_type);
    search.query(request.plan.path.query().unwrap_or_default().as_bytes());
    match request.body {
        CallBody::Document(_) if request.is_opaque => {
            search.unreadable();
            search.finish()
        }
        CallBody::Document(document) => {
            let read = tokio::time::timeout_at(until.into(), document.search(&mut search));
            match read.await {
                Ok(Ok(())) => search.finish(),
                _ => Some(Reference::Unsure),
            }
        }
        // a guarded call always holds its document
        CallBody::Passing(_) | CallBody::Nothing => Some(Reference::Unsure),
    }
}

/// What an operation that failed says of its document, where the gateway itself has followed it from the submit.
pub(crate) async fn failed_operation(
    gateway: &Shared,
    call: &Call,
    headers: &HeaderMap,
    body: &Bytes,
    at: Instant,
) -> Meaning {
    let (Some(_), Some(memory), Some(guard), Some(guarded)) =
        (&call.asked, &gateway.memory, &call.plan.upstream.guard, &call.plan.guarded)
    else {
        return Meaning::NotRecorded(NotRecorded::Unclassified);
    };
    if body.len() as u64 > memory.max_body_bytes {
        return Meaning::NotRecorded(NotRecorded::BodyTooLarge);
    }
    let asked = Request::of(call);
    let reference = reference(&asked, &guarded.profile, at + guard.rules.judge_wait).await;
    let request = RequestFacts { phase: Phase::Poll, reference, ..facts(&asked) };
    of_failed(guard, &guarded.profile, &request, headers, body)
}

/// What a failed operation says of its document, by this profile.
pub(super) fn of_failed(
    guard: &UpstreamGuard,
    profile: &Profile,
    request: &RequestFacts,
    headers: &HeaderMap,
    body: &Bytes,
) -> Meaning {
    // a `Retry-After` on a poll speaks of the next poll, and `no-store` of this answer: the operation is over, so neither counts
    let answer = profile::Answer { status: StatusCode::OK, headers, body };
    match profile.judge(request, &answer, &guard.terms()) {
        Judgement::Verdict(verdict) => Meaning::Verdict(RefusalStatus::failed_operation(), verdict),
        // failed, and no shape of the profile says so
        Judgement::Accepted => Meaning::NotRecorded(NotRecorded::Unclassified),
        Judgement::Not(reason) => Meaning::NotRecorded(reason),
    }
}

impl Document {
    /// Looks for references in a form's fields, or in the body.
    async fn search(&self, search: &mut ReferenceSearch<'_>) -> io::Result<()> {
        if self.form {
            let Some(values) = &self.values else {
                search.unreadable();
                return Ok(());
            };
            for FieldValue { name, content } in values {
                search.field(name);
                let piece = |bytes: &[u8]| {
                    search.feed(bytes);
                };
                self.body.visit(std::slice::from_ref(content), piece).await?;
            }
            search.fields_end();
            return Ok(());
        }
        self.read(|chunk| search.feed(chunk)).await
    }
}

/// Judges a 200 of an upstream that tells in the body whether the operation failed. One that is too long, or too late, for
/// the memory is a success.
async fn judge_200(
    cap: u64,
    call: &Call,
    (guard, profile): (&UpstreamGuard, &Profile),
    (head, body): (response::Parts, Incoming),
    at: Instant,
) -> Result<Answer, Rejection> {
    let rules = &guard.rules;
    // what forbids to remember it does not make a failure of a success, so that the body is asked first
    let forbidden = if ends_with_the_connection(&head, &body) {
        Some(NotRecorded::Incomplete)
    } else if fields_too_large(&head) {
        Some(NotRecorded::FieldsTooLarge)
    } else {
        profile::check_head(rules.honor_cache_control, &head.headers).err()
    };
    let bytes = match read(body, Reach { kept: cap, beyond: None, wait: rules.judge_wait }).await? {
        (AnswerBody::Whole(bytes), _) => bytes,
        (body, _) => return Ok(Answer::new(head, body, Meaning::Accepted, at)),
    };
    let asked = Request::of(call);
    let mut request = facts(&asked);
    let answer = profile::Answer { status: head.status, headers: &head.headers, body: &bytes };
    let mut judgement = profile.judge(&request, &answer, &guard.terms());
    // most are successes, and their requests need not be looked through
    if judgement != Judgement::Accepted {
        request.reference = reference(&asked, profile, at + rules.judge_wait).await;
        judgement = profile.judge(&request, &answer, &guard.terms());
    }
    let meaning = match judgement {
        Judgement::Accepted => Meaning::Accepted,
        Judgement::Not(reason) => Meaning::NotRecorded(reason),
        Judgement::Verdict(verdict) => {
            let verdict = Meaning::Verdict(RefusalStatus::failed_operation(), verdict);
            forbidden.map_or(verdict, Meaning::NotRecorded)
        }
    };
    Ok(Answer::new(head, AnswerBody::Whole(bytes), meaning, at))
}

/// Whether the answer says that its body is one JSON text, and no stream of them (`application/stream+json`).
fn is_json(headers: &HeaderMap) -> bool {
    let value = headers.get(header::CONTENT_TYPE).map_or(&b""[..], |value| value.as_bytes());
    if memchr::memmem::find(&value.to_ascii_lowercase(), b"stream").is_some() {
        return false;
    }
    let media = value.split(|b| *b == b';').next().unwrap_or_default().trim_ascii().to_ascii_lowercase();
    media == b"application/json" || media.ends_with(b"+json") || media.starts_with(b"application/x-amz-json-")
}

/// Whether what is too long to keep of a refusal can be kept without the values that the profile names.
fn is_reducible(profile: &Profile, headers: &HeaderMap) -> bool {
    let plain = |value: &HeaderValue| value.as_bytes().trim_ascii().eq_ignore_ascii_case(b"identity");
    !profile.reduce().is_empty()
        && is_json(headers)
        && headers.get_all(header::CONTENT_ENCODING).iter().all(plain)
}

/// How far an answer is read.
pub(super) struct Reach {
    /// What is kept of it at most, in bytes.
    pub(super) kept: u64,
    /// Where more is read than is kept: the memory that it is counted in, on top of [`LONGEST_REFUSAL`] as its bound.
    pub(super) beyond: Option<Reservation>,
    /// How long it may take.
    pub(super) wait: Duration,
}

impl Reach {
    /// Whether an answer of this length, or more, is read on.
    fn includes(&mut self, length: u64) -> bool {
        let room = |memory: &mut Reservation| length <= LONGEST_REFUSAL && memory.grow_to(length);
        length <= self.kept || self.beyond.as_mut().is_some_and(room)
    }

    /// What was read, in one piece.
    fn whole(self, chunks: Vec<Bytes>) -> Bytes {
        let length: usize = chunks.iter().map(Bytes::len).sum();
        let whole = match chunks.as_slice() {
            [one] => one.clone(),
            many => many.concat().into(),
        };
        match self.beyond {
            Some(memory) if length as u64 > self.kept => memory.holding(whole),
            _ => whole,
        }
    }
}

/// Reads a body: to its end, or until it is too long or too late to be remembered.
pub(super) async fn read(
    mut body: Incoming,
    mut reach: Reach,
) -> Result<(AnswerBody, NotRecorded), Rejection> {
    let until = tokio::time::Instant::now() + reach.wait;
    let mut chunks: Vec<Bytes> = Vec::new();
    let mut length = 0;
    loop {
        if !reach.includes(length + body.size_hint().lower()) {
            return Ok((begun(reach, chunks, body), NotRecorded::BodyTooLarge));
        }
        let chunk = match tokio::time::timeout_at(until, body.frame()).await {
            Err(_) => return Ok((begun(reach, chunks, body), NotRecorded::Incomplete)),
            Ok(Some(Err(error))) => return Err(broken(&error).into()),
            Ok(Some(Ok(frame))) => frame.into_data().unwrap_or_default(),
            // the verdict comes from the profile; the reason is not used
            Ok(None) => return Ok((AnswerBody::Whole(reach.whole(chunks)), NotRecorded::Unclassified)),
        };
        length += chunk.len() as u64;
        if !chunk.is_empty() {
            chunks.push(chunk);
        }
    }
}

/// Reads the beginning of a body that is not read whole: until it tells enough, is `limit` long, or is late.
pub(super) async fn beginning(
    mut body: Incoming,
    limit: usize,
    wait: Duration,
    tells: impl Fn(&[u8]) -> bool,
) -> Result<AnswerBody, Rejection> {
    let until = tokio::time::Instant::now() + wait;
    let mut read = Vec::new();
    while read.len() < limit && !tells(&read) {
        match tokio::time::timeout_at(until, body.frame()).await {
            Ok(Some(Err(error))) => return Err(broken(&error).into()),
            Ok(Some(Ok(frame))) => read.extend_from_slice(&frame.into_data().unwrap_or_default()),
            Ok(None) | Err(_) => break,
        }
    }
    Ok(match read.is_empty() {
        true => AnswerBody::Live(body),
        false => AnswerBody::Begun(vec![read.into()], body),
    })
}

/// Reads what is left of a body, in memory of `room`.
pub(crate) async fn to_the_end(
    body: AnswerBody,
    limit: u64,
    idle: Duration,
    room: &Room,
) -> Result<Bytes, Rejection> {
    let (mut chunks, mut rest) = match body {
        AnswerBody::Whole(bytes) if bytes.len() as u64 > limit => return Err(OwnCode::ResultTooLarge.into()),
        AnswerBody::Whole(bytes) => return Ok(bytes),
        AnswerBody::Live(rest) => (Vec::new(), rest),
        AnswerBody::Begun(chunks, rest) => (chunks, rest),
    };
    let mut length: u64 = chunks.iter().map(|chunk| chunk.len() as u64).sum();
    let stated = rest.size_hint().exact().map(|rest| length + rest);
    if length > limit || stated.is_some_and(|all| all > limit) {
        return Err(OwnCode::ResultTooLarge.into());
    }
    let mut held = None;
    loop {
        if length > SMALL_RESULT && held.is_none() {
            held = Some(room.take(stated.unwrap_or(limit)).await);
        }
        let frame = tokio::time::timeout(idle, rest.frame()).await;
        let chunk = match frame.map_err(|_| Rejection::from(OwnCode::UpstreamTimeout))? {
            Some(Err(error)) => return Err(broken(&error).into()),
            Some(Ok(frame)) => frame.into_data().unwrap_or_default(),
            None => {
                let whole = chunks.concat().into();
                return Ok(match held {
                    Some(held) => held.holding(whole),
                    None => whole,
                });
            }
        };
        length += chunk.len() as u64;
        if length > limit {
            return Err(OwnCode::ResultTooLarge.into());
        }
        chunks.push(chunk);
    }
}

/// A body that is not read on.
fn begun(reach: Reach, chunks: Vec<Bytes>, body: Incoming) -> AnswerBody {
    match chunks.is_empty() {
        true => AnswerBody::Live(body),
        // what came so far stays counted until the client has taken it
        false if reach.beyond.is_some() => AnswerBody::Begun(vec![reach.whole(chunks)], body),
        false => AnswerBody::Begun(chunks, body),
    }
}

/// What a broken body says of the upstream: the HTTP library reports bad chunks as invalid input.
fn broken(error: &hyper::Error) -> OwnCode {
    use io::ErrorKind::{InvalidData, InvalidInput};
    let cause = std::error::Error::source(error).and_then(|source| source.downcast_ref::<io::Error>());
    match cause.map(io::Error::kind) {
        Some(InvalidData | InvalidInput) => OwnCode::UpstreamMalformed,
        _ => OwnCode::UpstreamClosed,
    }
}

/// A body without a length ends when the connection does (RFC 9112 section 6.3): whether it is complete cannot be known.
pub(crate) fn ends_with_the_connection(head: &response::Parts, body: &Incoming) -> bool {
    head.version < Version::HTTP_2
        && body.size_hint().exact().is_none()
        && !head.headers.contains_key(header::TRANSFER_ENCODING)
        && head.status != StatusCode::NO_CONTENT
}

pub(crate) fn fields_too_large(head: &response::Parts) -> bool {
    [header::CONTENT_TYPE, header::CONTENT_ENCODING, header::CONTENT_LANGUAGE]
        .iter()
        .any(|name| head.headers.get_all(name).iter().map(|v| v.len() + 2).sum::<usize>() > MAX_FIELD + 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_of_json_texts_is_not_read_to_its_end() {
        for (value, json) in [
            ("application/json", true),
            ("Application/JSON; charset=utf-8", true),
            ("application/problem+json", true),
            ("application/stream+json", false),
            ("application/json;stream=watch", false),
            ("application/x-ndjson", false),
            ("text/event-stream", false),
        ] {
            let headers = [(header::CONTENT_TYPE, HeaderValue::from_static(value))].into_iter().collect();
            assert_eq!(is_json(&headers), json, "{value}");
        }
    }
}
