//! `nevertwice jobs wait`.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use clap::{ArgGroup, Args};
use nevertwice_domain::job::JobId;
use nevertwice_domain::tenant::UpstreamName;
use serde::Serialize;

use super::{Item, JOBS, NO_JOB, an_id};
use crate::admin_client::{AdminArgs, Client};
use crate::args::an_upstream;
use crate::exit::{Exit, Failure};
use crate::pages::{self, Page};
use crate::patience::patiently;
use crate::print;
use crate::progress::Progress;
use crate::table::on_one_line;

/// The most jobs that are waited for.
const MOST: u32 = 100_000;
/// How long it is waited between two looks at all of them, at least; when a look takes long, four times as long as it took.
const PAUSE: Duration = Duration::from_secs(1);
/// The longest message of one that is told, in characters.
const MESSAGE: usize = 200;
/// So many that did not succeed are told one by one; the others are counted.
const TOLD: usize = 20;

const EXAMPLES: &str = "\
Exit codes: 0 all of them succeeded; 1 one failed, was cancelled or is gone, or the time is over.

Examples:
  nevertwice jobs wait 019a2f6e-7c1b-7d3e-9a51-0d2c4b6f8e10
  nevertwice jobs wait --all --upstream ocr --timeout-s 600";

/// Which jobs to wait for.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES, group = ArgGroup::new("which").required(true))]
pub(super) struct Wait {
    /// Their ids
    #[arg(group = "which", value_name = "ID", value_parser = an_id)]
    pub(super) ids: Vec<JobId>,
    /// All jobs that wait or run when the command begins
    #[arg(long, group = "which")]
    pub(super) all: bool,
    /// Only those of this upstream
    #[arg(long, requires = "all", conflicts_with = "ids", value_name = "NAME", value_parser = an_upstream)]
    pub(super) upstream: Option<UpstreamName>,
    /// At most so many seconds
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=31_536_000))]
    pub(super) timeout_s: Option<u64>,
    /// JSON instead of text at the end
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    admin: AdminArgs,
}

/// What became of the jobs.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Sum {
    pub(super) jobs: u64,
    pub(super) succeeded: u64,
    pub(super) failed: u64,
    pub(super) cancelled: u64,
    /// There is no such job, or none any more.
    pub(super) gone: u64,
    /// Not final when the time was over.
    pub(super) unfinished: u64,
    /// Those that came to another end than was wished.
    pub(super) not_succeeded: Vec<NotSucceeded>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct NotSucceeded {
    pub(super) id: String,
    pub(super) status: String,
    pub(super) code: Option<String>,
}

pub(super) async fn run(wait: &Wait) -> Result<Exit, Failure> {
    let client = wait.admin.client()?;
    let ids = if wait.all {
        under_way(&client, wait.upstream.as_ref()).await?
    } else {
        wait.ids.iter().map(ToString::to_string).collect()
    };
    let until = wait.timeout_s.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let sum = watch(&client, ids, until, PAUSE).await?;
    let done = if wait.json {
        let json = serde_json::to_string(&sum);
        print::line(&json.map_err(|e| Failure::failed(&format!("cannot write: {e}")))?)
    } else if sum.jobs == 0 {
        print::line("no job waits or runs")
    } else {
        print::line(&sum.text())
    };
    let not = sum.jobs - sum.succeeded;
    match (not, sum.unfinished) {
        (0, _) => done,
        (_, 0) => Err(Failure::failed(&format!("{not} of {} jobs did not succeed", sum.jobs))),
        (_, left) => {
            Err(Failure::failed(&format!("the time is over: {left} of {} jobs are not final", sum.jobs)))
        }
    }
}

/// The jobs that wait or run, in the order in which they came.
pub(super) async fn under_way(
    client: &Client,
    upstream: Option<&UpstreamName>,
) -> Result<BTreeSet<String>, Failure> {
    let mut ids = BTreeSet::new();
    // in the order in which a job goes through them
    for status in ["queued", "running"] {
        let mut parameters = vec![("status", status.to_owned())];
        parameters.extend(upstream.map(|name| ("upstream", name.to_string())));
        let Page { items, next, .. } = pages::all(client, JOBS, &parameters, MOST).await?;
        if next.is_some() {
            let message =
                format!("more than {MOST} jobs are {status}: choose some with --upstream, or name them");
            return Err(Failure::input(&message));
        }
        ids.extend(items.iter().filter_map(|item| item["id"].as_str()).map(ToOwned::to_owned));
    }
    Ok(ids)
}

/// Looks at the jobs until all are final, or the time is over.
pub(super) async fn watch(
    client: &Client,
    ids: BTreeSet<String>,
    until: Option<Instant>,
    pause: Duration,
) -> Result<Sum, Failure> {
    let mut sum = Sum { jobs: ids.len() as u64, ..Sum::default() };
    let mut progress = Progress::new(Some(sum.jobs));
    let mut pending: Vec<_> = ids.into_iter().collect();
    let mut worked = false;
    let left = |until: Option<Instant>| until.map(|at| at.saturating_duration_since(Instant::now()));
    let over = || left(until).is_some_and(|left| left.is_zero());
    loop {
        let began = Instant::now();
        let mut still = Vec::new();
        for (at, id) in pending.iter().enumerate() {
            // each is looked at once, also where there is hardly any time
            if worked && over() {
                still.extend(pending.get(at..).unwrap_or_default().iter().cloned());
                break;
            }
            let path = format!("{JOBS}/{id}");
            let job = patiently(worked, async || client.find(&path, NO_JOB).await).await?;
            worked = true;
            let job = job.as_ref().map(Item::read).transpose()?;
            if !sum.take(id, job.as_ref(), &progress) {
                still.push(id.clone());
            }
            progress.at(sum.ended(), &sum.text(), Some(sum.jobs));
        }
        pending = still;
        if pending.is_empty() || over() {
            sum.unfinished = pending.len() as u64;
            return Ok(sum);
        }
        let rest = pause.max(began.elapsed() * 4);
        tokio::time::sleep(left(until).map_or(rest, |left| left.min(rest))).await;
    }
}

impl Sum {
    /// Counts a job; returns whether it is final.
    fn take(&mut self, id: &str, job: Option<&Item>, progress: &Progress) -> bool {
        let status = match job {
            None => "gone",
            Some(job) if job.is_final() => job.status.as_str(),
            Some(_) => return false,
        };
        match status {
            "succeeded" => {
                self.succeeded += 1;
                return true;
            }
            "failed" => self.failed += 1,
            "cancelled" => self.cancelled += 1,
            _ => self.gone += 1,
        }
        let error = job.and_then(|job| job.error.as_ref());
        match self.not_succeeded.len() {
            told if told < TOLD => {
                let why = error.map(|error| {
                    let message: String = error.message.chars().take(MESSAGE).collect();
                    format!(": {} {message}", error.code)
                });
                let why = why.unwrap_or_default();
                progress.tell(&on_one_line(format!("{id} {status}{why}").trim_end()));
            }
            TOLD => progress.tell("more did not succeed: from here on they are counted only"),
            _ => {}
        }
        let code = error.map(|error| error.code.clone());
        self.not_succeeded.push(NotSucceeded { id: id.to_owned(), status: status.to_owned(), code });
        true
    }

    fn ended(&self) -> u64 {
        self.succeeded + self.failed + self.cancelled + self.gone
    }

    pub(super) fn text(&self) -> String {
        let mut text = format!("{} of {} jobs succeeded", self.succeeded, self.jobs);
        let others = [
            (self.failed, "failed"),
            (self.cancelled, "cancelled"),
            (self.gone, "gone"),
            (self.unfinished, "not final"),
        ];
        for (count, name) in others.into_iter().filter(|(count, _)| *count > 0) {
            text.push_str(&format!(", {count} {name}"));
        }
        text
    }
}
