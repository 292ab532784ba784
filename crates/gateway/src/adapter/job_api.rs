//! A service with a job API of its own: a submit is answered with a job's id or its `Location`, and `GET {base_url}/jobs/{id}` tells its
//! status. The shape is in docs/jobs.md.

use http::StatusCode;
use nevertwice_domain::operation::State;
use serde::Deserialize;

use super::{Begun, location, malformed};
use crate::Shared;
use crate::exchange::Rejection;
use crate::exchange::judge::{self, Answer, Meaning};
use crate::exchange::recall::Call;
use crate::upstream::client::AnsweredBy;

/// The longest answer to a submit.
const ANSWER_MAX: u64 = 64 << 10;
/// The longest id of a job.
const ID_MAX: usize = 200;

/// An answer to a submit; other members do not matter.
#[derive(Deserialize)]
struct Submitted {
    job_id: Option<Id>,
    id: Option<Id>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Id {
    Text(String),
    Number(u64),
}

/// An answer to a poll.
#[derive(Deserialize)]
struct Told {
    status: String,
}

/// What an answer to a submit begins.
pub(super) async fn begun(gateway: &Shared, call: &Call, answer: Answer) -> Result<Begun, Rejection> {
    let begins = [StatusCode::OK, StatusCode::CREATED, StatusCode::ACCEPTED].contains(&answer.head.status);
    if !begins || matches!(answer.meaning, Meaning::Verdict(..) | Meaning::NotRecorded(_)) {
        return Ok(Begun::Answered(answer));
    }
    let Some(jobs) = &gateway.jobs else { return Ok(Begun::Answered(answer)) };
    let Answer { head, body, .. } = answer;
    let client = &call.plan.upstream.client;
    let by = head.extensions.get::<AnsweredBy>().ok_or_else(|| malformed("nobody answered"))?;
    if let Some(location) = location(&head.headers) {
        let address = client.locate(by, location);
        let address = address.ok_or_else(|| {
            malformed("the Location of the upstream's job does not lead to the upstream itself")
        })?;
        return Ok(Begun::At(address, head.headers));
    }
    let idle = call.plan.upstream.config.idle_timeout;
    let body = judge::to_the_end(body, ANSWER_MAX, idle, &jobs.results).await?;
    let id = id(&body)
        .ok_or_else(|| malformed("the upstream's answer names no job: neither job_id, id nor Location"))?;
    let address = client.below(by, &format!("/jobs/{id}"));
    address
        .map(|address| Begun::At(address, head.headers))
        .ok_or_else(|| malformed("the upstream's job id is no part of a path"))
}

/// The id in an answer to a submit, if it can stand in a path as it is.
fn id(body: &[u8]) -> Option<String> {
    let Submitted { job_id, id } = serde_json::from_slice(body).ok()?;
    let id = match job_id.or(id)? {
        Id::Text(text) => text,
        Id::Number(number) => number.to_string(),
    };
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._~".contains(&b);
    let fits = (1..=ID_MAX).contains(&id.len()) && id.bytes().all(plain) && id != "." && id != "..";
    fits.then_some(id)
}

/// What a poll's body says; letter case does not count.
pub(super) fn state(body: &[u8]) -> Option<State> {
    let Told { status } = serde_json::from_slice(body).ok()?;
    Some(match status.to_ascii_lowercase().as_str() {
        "queued" | "pending" | "running" | "processing" | "in_progress" => State::Running,
        "succeeded" | "completed" | "success" | "done" => State::Succeeded,
        "failed" | "error" | "failure" => State::Failed,
        "cancelled" | "canceled" => State::Ended,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_has_an_id_that_can_stand_in_a_path() {
        for (body, wanted) in [
            (r#"{"job_id":"a-1"}"#, Some("a-1")),
            (r#"{"id":7,"x":[1]}"#, Some("7")),
            (r#"{"job_id":"a","id":"b"}"#, Some("a")),
            (r#"{"id":"../x"}"#, None),
            (r#"{"id":".."}"#, None),
            (r#"{"id":""}"#, None),
            (r#"{"id":null}"#, None),
            ("[]", None),
            ("", None),
        ] {
            assert_eq!(id(body.as_bytes()).as_deref(), wanted, "{body}");
        }
    }

    #[test]
    fn the_words_of_a_status() {
        for (word, wanted) in [
            ("Queued", Some(State::Running)),
            ("in_progress", Some(State::Running)),
            ("DONE", Some(State::Succeeded)),
            ("error", Some(State::Failed)),
            ("canceled", Some(State::Ended)),
            ("who knows", None),
        ] {
            assert_eq!(state(format!(r#"{{"job":1,"status":"{word}"}}"#).as_bytes()), wanted, "{word}");
        }
        assert_eq!(state(b"{}"), None);
    }
}
