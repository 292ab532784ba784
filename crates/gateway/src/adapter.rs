//! How an upstream is driven to an outcome where its answer to a submit is none: it is polled until it has one. The attempt, and with it
//! the wait of everybody who has the same document, lasts until then.

mod job_api;
mod submit_and_poll;

use std::sync::Arc;
use std::time::{Duration, Instant};

use http::uri::PathAndQuery;
use http::{HeaderMap, Method, Request, StatusCode, header};
use nevertwice_config::checked::Drive;
use nevertwice_domain::operation::State;
use nevertwice_domain::outcome::OwnCode;
use nevertwice_domain::profile::NotRecorded;

use crate::Shared;
use crate::body::outbound::Outbound;
use crate::exchange::account::Record;
use crate::exchange::judge::{self, Answer, AnswerBody, Meaning};
use crate::exchange::recall::Call;
use crate::exchange::{Rejection, headers, unattended};
use crate::pool::Permit;
use crate::upstream::client::Address;

/// The longest pause between two polls, whatever the upstream asks for.
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// The shortest.
const PAUSE_MIN: Duration = Duration::from_millis(50);

/// What became of a submit.
enum Begun {
    /// Its answer is the outcome.
    Answered(Answer),
    /// It is polled here.
    At(Address, HeaderMap),
}

/// How the upstream's outcome is read from a poll's body; `None` = it says nothing of it.
type StateOf = fn(&[u8]) -> Option<State>;

/// The outcome of a submit that was answered like this.
pub(crate) async fn outcome(
    gateway: &Shared,
    drive: Drive,
    call: &Call,
    place: &Arc<Permit>,
    answer: Answer,
    record: &mut Record,
) -> Result<Answer, Rejection> {
    let began = answer.at.checked_sub(record.upstream_wait).unwrap_or(answer.at);
    let until = began + call.plan.upstream.config.operation_timeout;
    let (begun, state_of): (Begun, StateOf) = match drive {
        Drive::OnePost => return Ok(answer),
        Drive::SubmitAndPoll => (submit_and_poll::begun(answer)?, submit_and_poll::state),
        Drive::JobApi => (job_api::begun(gateway, call, answer).await?, job_api::state),
    };
    match begun {
        Begun::Answered(answer) => Ok(answer),
        Begun::At(address, head) => {
            let pause = pause(call, unattended::retry_after(&head));
            let uploaded = record.uploaded();
            let poll = Poll { gateway, call, place, address, until, state_of, uploaded };
            let began = Instant::now();
            let outcome = poll.to_the_end(pause, record).await;
            record.upstream_wait += began.elapsed();
            outcome
        }
    }
}

/// How long to wait for the next poll.
fn pause(call: &Call, asked: Option<Duration>) -> Duration {
    asked.unwrap_or(call.plan.upstream.config.poll_interval).clamp(PAUSE_MIN, PAUSE_MAX)
}

struct Poll<'a> {
    gateway: &'a Shared,
    call: &'a Call,
    place: &'a Arc<Permit>,
    address: Address,
    until: Instant,
    state_of: StateOf,
    /// Whether the submit took the whole document up. Else its outcome says nothing of the document.
    uploaded: bool,
}

impl Poll<'_> {
    async fn to_the_end(&self, mut pause: Duration, record: &mut Record) -> Result<Answer, Rejection> {
        loop {
            if Instant::now() + pause >= self.until {
                record.end = Some("operation_timeout");
                return Err(Rejection::with(
                    OwnCode::UpstreamTimeout,
                    "the upstream's operation did not end in time",
                ));
            }
            tokio::time::sleep(pause).await;
            match tokio::time::timeout_at(self.until.into(), self.once(record)).await {
                Ok(Ok(Polled::Over(answer))) => return Ok(*answer),
                Ok(Ok(Polled::GoesOn(asked))) => pause = self::pause(self.call, asked),
                Ok(Err(rejection)) => return Err(rejection),
                // said above
                Err(_) => pause = Duration::ZERO,
            }
        }
    }

    /// One poll. One that fails says nothing of the operation, which goes on.
    async fn once(&self, record: &mut Record) -> Result<Polled, Rejection> {
        let upstream = &self.call.plan.upstream;
        let mut head = Request::new(()).into_parts().0;
        head.method = Method::GET;
        head.headers = headers::guarded(&HeaderMap::new(), &[], &record.trace);
        headers::set_credential(&mut head.headers, upstream);
        let path = PathAndQuery::from_maybe_shared(self.address.path.clone())
            .map_err(|_| OwnCode::UpstreamMalformed)?;
        let body = Outbound::nothing(Arc::clone(self.place));
        record.attempts += 1;
        let sent = upstream.client.send_at(&self.address.authority, &path, &mut head, body).await;
        let at = Instant::now();
        let (head, body) = match sent {
            Ok(answer) => answer.into_parts(),
            Err(error) => {
                record.attempts -= u32::from(error.unsent);
                return Ok(Polled::GoesOn(None));
            }
        };
        let asked = unattended::retry_after(&head.headers);
        let passing = [StatusCode::REQUEST_TIMEOUT, StatusCode::TOO_MANY_REQUESTS];
        if head.status.is_server_error() || passing.contains(&head.status) {
            return Ok(Polled::GoesOn(asked));
        }
        let incomplete = judge::ends_with_the_connection(&head, &body) || judge::fields_too_large(&head);
        let Some(jobs) = &self.gateway.jobs else { return Err(OwnCode::Internal.into()) };
        let limit = jobs.rules.result_max_bytes;
        let read =
            judge::to_the_end(AnswerBody::Live(body), limit, upstream.config.idle_timeout, &jobs.results);
        let body = match read.await {
            Ok(body) => body,
            Err(rejection) if rejection.code == OwnCode::ResultTooLarge => return Err(rejection),
            Err(_) => return Ok(Polled::GoesOn(asked)),
        };
        let over = |meaning, body| {
            Ok(Polled::Over(Box::new(Answer::new(head.clone(), AnswerBody::Whole(body), meaning, at))))
        };
        if head.status.is_success() && head.status != StatusCode::OK {
            return Err(malformed("a poll is answered 200"));
        }
        if head.status != StatusCode::OK {
            // the upstream does not know it any more, or does not let it be seen
            return over(Meaning::Nothing, body);
        }
        match (self.state_of)(&body) {
            Some(State::Running) => Ok(Polled::GoesOn(asked)),
            Some(State::Succeeded) if !self.uploaded => over(Meaning::Nothing, body),
            Some(State::Succeeded) => over(Meaning::Accepted, body),
            Some(State::Ended) => over(Meaning::NotRecorded(NotRecorded::Rule), body),
            Some(State::Failed) if incomplete || !self.uploaded => {
                over(Meaning::NotRecorded(NotRecorded::Incomplete), body)
            }
            Some(State::Failed) => {
                let meaning =
                    judge::failed_operation(self.gateway, self.call, &head.headers, &body, at).await;
                over(meaning, body)
            }
            None => {
                record.end = Some("poll_status");
                Err(Rejection::with(
                    OwnCode::UpstreamMalformed,
                    "a poll's answer tells no status that is known",
                ))
            }
        }
    }
}

enum Polled {
    /// Ask again, after so long if the upstream said.
    GoesOn(Option<Duration>),
    Over(Box<Answer>),
}

/// An answer that cannot be the beginning of anything.
fn malformed(detail: &'static str) -> Rejection {
    Rejection::with(OwnCode::UpstreamMalformed, detail)
}

/// `Location`, of an answer.
fn location(headers: &HeaderMap) -> Option<&str> {
    headers.get(header::LOCATION)?.to_str().ok()
}
