//! `nevertwice jobs cancel` and `retry`: an operator's word on jobs.

use clap::Args;
use nevertwice_domain::job::JobId;
use serde_json::{Value, json};

use super::{Item, JOBS, an_id};
use crate::admin_client::{AdminArgs, Client};
use crate::exit::{Exit, Failure};
use crate::print;

const CANCEL_EXAMPLES: &str = "\
Examples:
  nevertwice jobs cancel 019a2f6e-7c1b-7d3e-9a51-0d2c4b6f8e10
  nevertwice jobs list --upstream ocr --status queued --limit 1000 --json \\
      | jq -r '.items[].id' | xargs nevertwice jobs cancel";

const RETRY_EXAMPLES: &str = "\
A job that failed by a verdict on its document may be retried too. The memory is asked first: while
it knows the refusal, the job fails again without a call. Forget the refusal before.

Examples:
  nevertwice jobs retry 019a2f6e-7c1b-7d3e-9a51-0d2c4b6f8e10
  nevertwice jobs list --status failed --limit 1000 --json \\
      | jq -r '.items[] | select(.error.code == \"INTERRUPTED\").id' | xargs nevertwice jobs retry";

/// Which jobs to cancel.
#[derive(Args, Debug)]
#[command(after_help = CANCEL_EXAMPLES)]
pub(super) struct Cancel {
    #[command(flatten)]
    which: Which,
}

/// Which jobs to retry.
#[derive(Args, Debug)]
#[command(after_help = RETRY_EXAMPLES)]
pub(super) struct Retry {
    #[command(flatten)]
    which: Which,
}

#[derive(Args, Debug)]
struct Which {
    /// Their ids
    #[arg(required = true, value_name = "ID", value_parser = an_id)]
    ids: Vec<JobId>,
    /// JSON instead of text: what the API answers to each, one a line
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    admin: AdminArgs,
}

pub(super) async fn cancel(cancel: &Cancel) -> Result<Exit, Failure> {
    say(&cancel.which, "cancel", |answer, job| match (answer["cancelled"] == true, job.cancelling) {
        (true, false) => Ok("cancelled".to_owned()),
        (true, true) => Ok("its worker is told, it is cancelled in a moment".to_owned()),
        (false, true) => Ok("it is being cancelled already".to_owned()),
        (false, false) => Ok(format!("nothing to cancel: it is {}", job.status)),
    })
    .await
}

pub(super) async fn retry(retry: &Retry) -> Result<Exit, Failure> {
    say(&retry.which, "retry", |answer, job| {
        if answer["retried"] == true {
            return Ok("waits again".to_owned());
        }
        Err(match job.status.as_str() {
            "cancelled" => {
                "not retried: it was cancelled, and its input is gone; submit the document again".into()
            }
            // it was known to fail when it came
            "failed" => "not retried: its input is not kept; submit the document again".into(),
            status => format!("not retried: only a job that has failed is, and it is {status}"),
        })
    })
    .await
}

/// Says it of each job, the others too when one cannot be found. `told` puts an answer into words; `Err` is what was not wanted.
async fn say(
    which: &Which,
    what: &str,
    told: impl Fn(&Value, &Item) -> Result<String, String>,
) -> Result<Exit, Failure> {
    let client = which.admin.client()?;
    let (mut done, mut not_done) = (Ok(Exit::Done), 0);
    for id in &which.ids {
        let (line, well) = match one(&client, id, what).await? {
            None if which.json => (json!({ "id": id.to_string(), "code": super::NO_JOB }).to_string(), false),
            None => (format!("{id}: there is no such job"), false),
            Some(answer) => {
                let told = told(&answer, &Item::read(&answer["job"])?);
                let well = told.is_ok();
                let words = told.unwrap_or_else(|why| why);
                (if which.json { answer.to_string() } else { format!("{id}: {words}") }, well)
            }
        };
        not_done += usize::from(!well);
        done = print::line(&line);
    }
    match not_done {
        0 => done,
        _ => Err(Failure::failed(&format!("{what}: not done for {not_done} of {} jobs", which.ids.len()))),
    }
}

/// The API's answer; `None` when there is no such job.
async fn one(client: &Client, id: &JobId, what: &str) -> Result<Option<Value>, Failure> {
    client.post_if_there(&format!("{JOBS}/{id}/{what}"), super::NO_JOB).await
}
