//! What an attempt means for its job: its end, or another attempt.

use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use nevertwice_config::checked::Jobs as Rules;
use nevertwice_domain::clock::Millis;
use nevertwice_domain::job::{Job, JobError, JobStatus, ResultFacts};
use nevertwice_domain::outcome::{Outcome, OwnCode};

use crate::exchange::unattended::Ended;
use crate::facade::jobs::shape;

/// The longest that an upstream's `Retry-After` is heeded.
const HEEDED: Duration = Duration::from_secs(3600);
/// How soon a job is tried again whose call could not even begin.
const SOON: Duration = Duration::from_secs(1);

/// What becomes of the job.
#[derive(Debug, PartialEq)]
pub(super) enum Next {
    /// It has come to its end.
    Over { status: JobStatus, error: Option<JobError>, result: Option<(ResultFacts, Bytes)> },
    /// It waits for another attempt.
    Again { error: Option<JobError>, not_before: Millis },
}

/// Decides. `sent` says whether a call began; `chance` is between 0 and 1.
pub(super) fn next(job: &Job, ended: Ended, sent: bool, rules: &Rules, now: Millis, chance: f64) -> Next {
    let Ended { outcome, answer, verdict, wait, detail } = ended;
    let status = answer.as_ref().map(|(facts, _)| facts.status);
    if outcome == Outcome::Ok && status.is_some_and(|status| (200..300).contains(&status)) {
        return Next::Over { status: JobStatus::Succeeded, error: None, result: answer };
    }
    let transient = !verdict && is_transient(outcome);
    let error = JobError {
        code: match (outcome, status) {
            // nobody is there who would follow
            (Outcome::Ok, Some(status)) => format!("HTTP_{status}"),
            _ => outcome.to_string(),
        },
        message: match (&answer, outcome) {
            (Some((facts, body)), _) => shape::message(facts, body),
            (None, Outcome::Own(code)) => detail.unwrap_or(code.title()).to_owned(),
            (None, _) => String::new(),
        },
        upstream_status: status,
        retryable: transient || (outcome == Outcome::FailedOperation && !verdict),
        replayed: matches!(outcome, Outcome::Replayed(_) | Outcome::Held(_)),
        verdict,
    };
    let later = |wait: Duration| now.plus_ms(u64::try_from(wait.as_millis()).unwrap_or(u64::MAX));
    match outcome {
        Outcome::Held(_) => Next::Again { error: Some(error), not_before: later(wait.unwrap_or(SOON)) },
        _ if !transient => Next::Over { status: JobStatus::Failed, error: Some(error), result: answer },
        // nothing of the job's has been used up
        _ if !sent => {
            Next::Again { error: job.error.clone(), not_before: later(wait.unwrap_or(SOON).min(HEEDED)) }
        }
        _ if job.attempts.saturating_add(1) >= rules.max_attempts => {
            Next::Over { status: JobStatus::Failed, error: Some(error), result: answer }
        }
        _ => {
            let back_off = back_off(rules, job.attempts, chance);
            let asked = wait.unwrap_or_default().min(HEEDED);
            Next::Again { error: Some(error), not_before: later(back_off.max(asked)) }
        }
    }
}

/// Whether another attempt may well end otherwise, and is made by itself.
fn is_transient(outcome: Outcome) -> bool {
    match outcome {
        Outcome::Upstream(status) => {
            status.is_server_error()
                || [StatusCode::REQUEST_TIMEOUT, StatusCode::TOO_MANY_REQUESTS].contains(&status)
        }
        Outcome::Held(_) => true,
        Outcome::Own(code) => matches!(
            code,
            OwnCode::UpstreamUnreachable
                | OwnCode::UpstreamClosed
                | OwnCode::UpstreamTimeout
                | OwnCode::PoolFull
                | OwnCode::QueueTimeout
                | OwnCode::StoreUnavailable
                | OwnCode::SpillFailed
                | OwnCode::Draining
        ),
        Outcome::Ok | Outcome::FailedOperation | Outcome::Replayed(_) => false,
    }
}

/// After so many attempts: twice as long each time, up to a bound, less a part by chance, so that what failed at once does not come
/// back at once.
fn back_off(rules: &Rules, attempts: u32, chance: f64) -> Duration {
    let doubled = rules.retry_first.saturating_mul(2_u32.saturating_pow(attempts.min(30)));
    doubled.min(rules.retry_max).mul_f64(1.0 - 0.25 * chance.clamp(0.0, 1.0))
}

/// A worker died, or was cut, in the middle of a call.
pub(super) fn interrupted() -> JobError {
    JobError {
        code: OwnCode::Interrupted.name().to_owned(),
        message: OwnCode::Interrupted.title().to_owned(),
        upstream_status: None,
        retryable: true,
        replayed: false,
        verdict: false,
    }
}
