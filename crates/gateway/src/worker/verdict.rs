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
/// How long a job is left to others by a worker that does not know its tenant, or not its right or its path: while a fleet takes over
/// a new configuration, another one may.
const ELSEWHERE: Duration = Duration::from_secs(30);
/// A job that is older than this and that a worker does not know is one that nobody knows.
const KNOWN_BY: Duration = Duration::from_secs(600);

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
    let again = if verdict { Again::No } else { again(outcome, sent) };
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
        retryable: again != Again::No,
        replayed: matches!(outcome, Outcome::Replayed(_) | Outcome::Held(_)),
        verdict,
    };
    let later = |wait: Duration| now.plus_ms(u64::try_from(wait.as_millis()).unwrap_or(u64::MAX));
    match outcome {
        Outcome::Held(_) => Next::Again { error: Some(error), not_before: later(wait.unwrap_or(SOON)) },
        Outcome::Own(OwnCode::NoRoute | OwnCode::ForbiddenRoute)
            if !sent && u128::from(now.since_ms(job.created_at)) < KNOWN_BY.as_millis() =>
        {
            Next::Again { error: Some(error), not_before: later(ELSEWHERE) }
        }
        _ if again != Again::ByItself => {
            Next::Over { status: JobStatus::Failed, error: Some(error), result: answer }
        }
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

/// Whether another attempt may well end otherwise, and who decides on it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Again {
    /// It is made by itself: the upstream has not done the work, or has said that it could not.
    ByItself,
    /// The upstream may have done the work: the job's owner or an operator decides.
    WhenAsked,
    /// It would end alike.
    No,
}

fn again(outcome: Outcome, sent: bool) -> Again {
    match outcome {
        Outcome::Upstream(status)
            if status.is_server_error()
                || [StatusCode::REQUEST_TIMEOUT, StatusCode::TOO_MANY_REQUESTS].contains(&status) =>
        {
            Again::ByItself
        }
        Outcome::Held(_) | Outcome::Own(OwnCode::UpstreamUnreachable) => Again::ByItself,
        Outcome::FailedOperation => Again::WhenAsked,
        Outcome::Own(OwnCode::UpstreamClosed | OwnCode::UpstreamTimeout | OwnCode::UpstreamMalformed)
            if sent =>
        {
            Again::WhenAsked
        }
        Outcome::Own(
            OwnCode::PoolFull
            | OwnCode::QueueTimeout
            | OwnCode::StoreUnavailable
            | OwnCode::SpillFailed
            | OwnCode::AuditUnavailable
            | OwnCode::Draining,
        ) => match sent {
            true => Again::WhenAsked,
            false => Again::ByItself,
        },
        Outcome::Own(_) | Outcome::Upstream(_) | Outcome::Ok | Outcome::Replayed(_) => Again::No,
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

/// A job of so many attempts.
#[cfg(test)]
pub(super) fn sample(attempts: u32) -> Job {
    use nevertwice_domain::fingerprint::Fingerprint;
    use nevertwice_domain::job::{JobId, JobRequest};
    use nevertwice_domain::tenant::{TenantId, UpstreamName};

    const NOW: Millis = Millis(1_000_000);
    let request = JobRequest {
        path: "/x".into(),
        fields: Vec::new(),
        bytes: 1,
        digest: Fingerprint::from_bytes([0; 32]),
        document: None,
    };
    Job {
        id: JobId::new(NOW, [1; 10]),
        tenant: TenantId::anonymous(),
        upstream: UpstreamName::new("ocr").unwrap_or_else(|e| unreachable!("{e}")),
        request,
        key: None,
        status: JobStatus::Running,
        created_at: NOW,
        started_at: None,
        finished_at: None,
        expires_at: None,
        attempts,
        not_before: None,
        sent: false,
        cancel: false,
        error: None,
        result: None,
        webhook: None,
        retries: 0,
    }
}

#[cfg(test)]
mod tests {
    use nevertwice_domain::status::RefusalStatus;

    use super::sample as job;
    use super::*;

    const NOW: Millis = Millis(1_000_000);

    fn rules() -> Rules {
        Rules {
            input_max_bytes: 1,
            result_max_bytes: 1,
            max_queued: 1,
            max_bytes: 1,
            retention: Duration::from_secs(1),
            max_attempts: 3,
            retry_first: Duration::from_secs(1),
            retry_max: Duration::from_secs(10),
            webhooks: None,
        }
    }

    fn answered(status: u16, wait: Option<u64>) -> Ended {
        let code = StatusCode::from_u16(status).unwrap_or_default();
        Ended {
            outcome: Outcome::of_upstream(code),
            answer: Some((ResultFacts { status, fields: Vec::new(), bytes: 4 }, Bytes::from_static(b"text"))),
            verdict: false,
            wait: wait.map(Duration::from_secs),
            detail: None,
        }
    }

    /// When it is tried again, in milliseconds from now; `None` = not.
    fn again(attempts: u32, ended: Ended, sent: bool) -> Option<u64> {
        match next(&job(attempts), ended, sent, &rules(), NOW, 0.0) {
            Next::Again { not_before, .. } => Some(not_before.since_ms(NOW)),
            Next::Over { .. } => None,
        }
    }

    #[test]
    fn what_may_pass_is_tried_again_later_and_later_and_not_for_ever() {
        for status in [408, 429, 500, 502, 503, 504, 599] {
            assert_eq!(again(0, answered(status, None), true), Some(1000), "{status}");
            assert_eq!(again(1, answered(status, None), true), Some(2000), "{status}");
            assert_eq!(again(2, answered(status, None), true), None, "{status}");
        }
        assert_eq!(again(0, OwnCode::UpstreamUnreachable.into(), true), Some(1000));
        assert_eq!(again(0, answered(503, Some(7)), true), Some(7000));
        assert_eq!(again(0, answered(503, Some(u64::MAX)), true), Some(3_600_000));
        assert_eq!(back_off(&rules(), 60, 0.0), Duration::from_secs(10));
        assert_eq!(back_off(&rules(), 0, 1.0), Duration::from_millis(750));
    }

    #[test]
    fn what_will_not_pass_is_not_tried_again() {
        for status in [200, 204, 301, 400, 401, 403, 404, 409, 413, 422] {
            assert_eq!(again(0, answered(status, None), true), None, "{status}");
        }
        for code in [OwnCode::UpstreamMalformed, OwnCode::ResultTooLarge, OwnCode::Internal] {
            assert_eq!(again(0, code.into(), false), None);
        }
        // a verdict on the document is one whatever its status
        assert_eq!(again(0, Ended { verdict: true, ..answered(503, None) }, true), None);
    }

    #[test]
    fn what_may_have_been_processed_is_tried_again_by_its_owner_alone() {
        for code in [
            OwnCode::UpstreamClosed,
            OwnCode::UpstreamTimeout,
            OwnCode::UpstreamMalformed,
            OwnCode::SpillFailed,
            OwnCode::StoreUnavailable,
        ] {
            let Next::Over { status: JobStatus::Failed, error: Some(error), result: None } =
                next(&job(0), code.into(), true, &rules(), NOW, 0.0)
            else {
                unreachable!("{code:?}")
            };
            assert!(error.retryable && !error.verdict && error.code == code.name(), "{error:?}");
        }
    }

    #[test]
    fn a_job_that_a_worker_does_not_know_is_left_to_others_for_a_while() {
        for code in [OwnCode::NoRoute, OwnCode::ForbiddenRoute] {
            assert_eq!(again(99, code.into(), false), Some(30_000));
            let later = |ms: u64| next(&job(0), code.into(), false, &rules(), NOW.plus_ms(ms), 0.0);
            assert!(matches!(later(599_999), Next::Again { error: Some(_), .. }));
            let Next::Over { status: JobStatus::Failed, error: Some(error), .. } = later(600_000) else {
                unreachable!("{code:?}")
            };
            assert!(!error.retryable, "{error:?}");
        }
    }

    #[test]
    fn a_call_that_did_not_begin_uses_nothing_up() {
        for code in
            [OwnCode::PoolFull, OwnCode::QueueTimeout, OwnCode::StoreUnavailable, OwnCode::AuditUnavailable]
        {
            assert_eq!(again(99, code.into(), false), Some(1000));
        }
        let held = Ended {
            outcome: Outcome::Held(StatusCode::INTERNAL_SERVER_ERROR),
            wait: Some(Duration::from_secs(1800)),
            ..answered(500, None)
        };
        assert_eq!(again(99, held, false), Some(1_800_000));
    }

    #[test]
    fn the_error_says_whose_word_it_is() {
        let refused = RefusalStatus::new(422).unwrap_or_else(|e| unreachable!("{e}"));
        let replay = Ended { outcome: Outcome::Replayed(refused), verdict: true, ..answered(422, None) };
        let Next::Over { status: JobStatus::Failed, error: Some(error), result: Some(_) } =
            next(&job(0), replay, false, &rules(), NOW, 0.0)
        else {
            unreachable!()
        };
        assert_eq!((error.code.as_str(), error.message.as_str()), ("REFUSED_HTTP_422", "text"));
        assert!(error.replayed && error.verdict && !error.retryable && error.upstream_status == Some(422));
        let failed = Ended { outcome: Outcome::FailedOperation, ..answered(200, None) };
        let Next::Over { status: JobStatus::Failed, error: Some(error), .. } =
            next(&job(0), failed, true, &rules(), NOW, 0.0)
        else {
            unreachable!()
        };
        assert!(error.retryable && !error.verdict && error.code == "FAILED_HTTP_200");
    }
}
