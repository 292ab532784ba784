//! What the upstream's answer says about the document. Only a refusal that may become a verdict is read to its end here;
//! everything else streams on at once.

use std::io;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, Version, header, response};
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use nevertwice_domain::outcome::OwnCode;
use nevertwice_domain::profile::{
    self, Judgement, NotRecorded, Phase, Profile, Reference, ReferenceSearch, RequestFacts, Verdict,
};
use nevertwice_domain::status::RefusalStatus;

use super::intake::Document;
use super::recall::{Call, CallBody};
use super::{Rejection, hold};
use crate::Shared;

/// What an upstream can tell before it has read the document: that it is too long, or of the wrong type.
const SEEN_IN_THE_HEAD: [u16; 2] = [413, 415];

/// The longest header value that a replay keeps, in bytes.
const MAX_FIELD: usize = 4096;

/// An upstream's answer, and what it means.
pub(crate) struct Answer {
    pub(super) head: response::Parts,
    pub(super) body: AnswerBody,
    pub(super) meaning: Meaning,
    /// When the head arrived.
    pub(super) at: Instant,
}

/// The body, as far as it was read.
pub(super) enum AnswerBody {
    /// Not at all.
    Live(Incoming),
    /// To its end.
    Whole(Bytes),
    /// These chunks; more may follow.
    Begun(Vec<Bytes>, Incoming),
}

/// What an answer means for the memory.
#[derive(Debug)]
pub(super) enum Meaning {
    /// Nothing.
    Nothing,
    /// The document is fine.
    Accepted,
    /// The document will never be accepted.
    Verdict(RefusalStatus, Verdict),
    /// A refusal that is not remembered.
    NotRecorded(NotRecorded),
}

/// Judges an answer to a guarded request; lets every other pass.
pub(super) async fn judge(
    gateway: &Shared,
    call: &Call,
    answer: Response<Incoming>,
    uploaded: bool,
) -> Result<Answer, Rejection> {
    let at = Instant::now();
    let (head, body) = answer.into_parts();
    let (Some(_), Some(memory), Some(guard), Some(guarded)) =
        (&call.asked, &gateway.memory, &call.plan.upstream.guard, &call.plan.guarded)
    else {
        return Ok(Answer { head, body: AnswerBody::Live(body), meaning: Meaning::Nothing, at });
    };
    let rules = &guard.rules;
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
                true => read(body, memory.max_body_bytes, rules.judge_wait).await?.0,
                false => AnswerBody::Live(body),
            };
            return Ok(Answer { head, body, meaning, at });
        }
    };
    let (body, meaning) = match read(body, memory.max_body_bytes, rules.judge_wait).await? {
        (AnswerBody::Whole(bytes), _) => {
            let request = facts(call, &guarded.profile, at + rules.judge_wait).await;
            let answer = profile::Answer { status: head.status, headers: &head.headers, body: &bytes };
            let meaning = match guarded.profile.judge(&request, &answer, &guard.terms()) {
                Judgement::Verdict(verdict) => Meaning::Verdict(status, verdict),
                Judgement::Accepted => Meaning::Accepted,
                Judgement::Not(reason) => Meaning::NotRecorded(reason),
            };
            (AnswerBody::Whole(bytes), meaning)
        }
        (body, reason) => (body, Meaning::NotRecorded(reason)),
    };
    Ok(Answer { head, body, meaning, at })
}

/// What the rules want to know of the request. Whether it names its input by reference is looked for in all of it, which may be
/// on disk.
async fn facts(call: &Call, profile: &Profile, until: Instant) -> RequestFacts {
    let content_type = call.content_type.as_ref();
    let mut facts = RequestFacts {
        phase: Phase::Submit,
        content_type: content_type.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned()),
        reference: None,
    };
    if profile.references().is_empty() {
        return facts;
    }
    let mut search = ReferenceSearch::new(profile.references(), content_type.map(HeaderValue::as_bytes));
    search.query(call.plan.path.query().unwrap_or_default().as_bytes());
    facts.reference = match &call.body {
        CallBody::Document(document) => {
            let read = tokio::time::timeout_at(until.into(), document.search(&mut search));
            match read.await {
                Ok(Ok(())) => search.finish(),
                _ => Some(Reference::Unsure),
            }
        }
        // a guarded call always holds its document
        CallBody::Passing(_) => Some(Reference::Unsure),
    };
    facts
}

impl Document {
    /// Looks for references in a form's fields, or in the body.
    async fn search(&self, search: &mut ReferenceSearch<'_>) -> io::Result<()> {
        if self.form {
            match &self.values {
                Some(names) => names.iter().for_each(|name| search.field(name)),
                None => search.more_fields(),
            }
            return Ok(());
        }
        self.read(|chunk| search.feed(chunk)).await
    }
}

/// Reads a refusal's body: to its end, or until it is too long or too late to be remembered.
async fn read(mut body: Incoming, cap: u64, wait: Duration) -> Result<(AnswerBody, NotRecorded), Rejection> {
    if body.size_hint().lower() > cap {
        return Ok((AnswerBody::Live(body), NotRecorded::BodyTooLarge));
    }
    let until = tokio::time::Instant::now() + wait;
    let mut chunks: Vec<Bytes> = Vec::new();
    let mut length = 0;
    loop {
        let chunk = match tokio::time::timeout_at(until, body.frame()).await {
            Err(_) => return Ok((AnswerBody::Begun(chunks, body), NotRecorded::Incomplete)),
            Ok(Some(Err(error))) => return Err(broken(&error).into()),
            Ok(Some(Ok(frame))) => frame.into_data().unwrap_or_default(),
            Ok(None) => {
                let whole = match chunks.as_slice() {
                    [one] => one.clone(),
                    many => many.concat().into(),
                };
                // the verdict comes from the profile; the reason is not used
                return Ok((AnswerBody::Whole(whole), NotRecorded::Unclassified));
            }
        };
        length += chunk.len() as u64;
        if !chunk.is_empty() {
            chunks.push(chunk);
        }
        if length > cap {
            return Ok((AnswerBody::Begun(chunks, body), NotRecorded::BodyTooLarge));
        }
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
fn ends_with_the_connection(head: &response::Parts, body: &Incoming) -> bool {
    head.version < Version::HTTP_2
        && body.size_hint().exact().is_none()
        && !head.headers.contains_key(header::TRANSFER_ENCODING)
        && head.status != StatusCode::NO_CONTENT
}

fn fields_too_large(head: &response::Parts) -> bool {
    [header::CONTENT_TYPE, header::CONTENT_ENCODING, header::CONTENT_LANGUAGE]
        .iter()
        .any(|name| head.headers.get_all(name).iter().map(|v| v.len() + 2).sum::<usize>() > MAX_FIELD + 2)
}
