//! `nevertwice jobs`: what becomes of the jobs of a running gateway, and an operator's word on them.

mod list;
mod show;
mod wait;
mod word;

use clap::{Args, Subcommand};
use nevertwice_domain::clock::{Clock as _, Millis, SystemClock, parse_rfc3339};
use nevertwice_domain::job::{JobId, JobStatus};
use serde::Deserialize;
use serde_json::Value;

use crate::exit::{Exit, Failure};
use crate::table::span;

/// Where they are in the API.
const JOBS: &str = "/admin/v1/jobs";
/// How the API says that there is no such job.
const NO_JOB: &str = "NO_JOB";

/// What to do with the jobs.
#[derive(Args, Debug)]
pub struct Jobs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// List jobs, the latest first, and how many wait and run
    List(list::List),
    /// Show one job, without its input and its result
    Show(show::Show),
    /// Cancel jobs that wait or run
    Cancel(word::Cancel),
    /// Let jobs that have failed wait again, as if for their first attempt
    Retry(word::Retry),
    /// Wait until jobs have come to their ends
    Wait(wait::Wait),
}

/// Does it.
pub async fn run(jobs: &Jobs) -> Result<Exit, Failure> {
    match &jobs.command {
        Command::List(list) => list::run(list).await,
        Command::Show(show) => show::run(show).await,
        Command::Cancel(cancel) => word::cancel(cancel).await,
        Command::Retry(retry) => word::retry(retry).await,
        Command::Wait(wait) => wait::run(wait).await,
    }
}

/// A job, as the API shows it. What a gateway of another version does not tell stays empty.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Item {
    id: String,
    tenant: String,
    upstream: String,
    path: String,
    status: String,
    created_at: String,
    started_at: Option<String>,
    finished_at: Option<String>,
    expires_at: Option<String>,
    not_before: Option<String>,
    attempts: u64,
    sent: bool,
    cancelling: bool,
    bytes: u64,
    document_sha256: Option<String>,
    error: Option<Error>,
    result: Option<Outcome>,
}

/// Why a job, or its last attempt, failed.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Error {
    code: String,
    message: String,
    retryable: bool,
    verdict: bool,
}

/// What is known of a result.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Outcome {
    status: u16,
    content_type: Option<String>,
    bytes: u64,
}

impl Item {
    fn read(json: &Value) -> Result<Self, Failure> {
        Self::deserialize(json)
            .map_err(|e| Failure::failed(&format!("the gateway's answer is not understood: {e}")))
    }

    fn is_final(&self) -> bool {
        JobStatus::ALL.iter().any(|status| status.is_final() && status.name() == self.status)
    }

    /// How long it has been what it is now.
    fn for_how_long(&self, now: Millis) -> String {
        let since = self.finished_at.as_ref().or(self.started_at.as_ref()).unwrap_or(&self.created_at);
        parse_rfc3339(since).map_or_else(|_| "?".to_owned(), |since| span(now.since_ms(since)))
    }

    /// What there is to say beside its status.
    fn note(&self, now: Millis) -> String {
        let code = self.error.as_ref().map(|error| error.code.as_str());
        if self.cancelling {
            return "being cancelled".to_owned();
        }
        if self.is_final() {
            return code.unwrap_or("-").to_owned();
        }
        let waits = self.not_before.as_deref().and_then(|at| parse_rfc3339(at).ok()).filter(|at| *at > now);
        let now = match (waits, self.sent) {
            (Some(at), _) => format!("next attempt in {}", span(at.since_ms(now))),
            (None, true) => "call under way".to_owned(),
            (None, false) => String::new(),
        };
        let after = code.map(|code| format!("after {code}"));
        let parts: Vec<_> = [Some(now).filter(|now| !now.is_empty()), after].into_iter().flatten().collect();
        if parts.is_empty() { "-".to_owned() } else { parts.join(", ") }
    }
}

fn now() -> Millis {
    SystemClock.now()
}

fn an_id(text: &str) -> Result<JobId, String> {
    text.parse().map_err(|_| {
        "a job id has 36 characters, as in 019a2f6e-7c1b-7d3e-9a51-0d2c4b6f8e10; `jobs list` shows them"
            .into()
    })
}

fn a_status(text: &str) -> Result<JobStatus, String> {
    let known = JobStatus::ALL.iter().find(|status| status.name() == text);
    known.copied().ok_or_else(|| {
        let all: Vec<_> = JobStatus::ALL.iter().map(|status| status.name()).collect();
        format!("a status is one of {}", all.join(", "))
    })
}

#[cfg(test)]
mod tests;
