//! An attempt that no client waits for: a worker's, at a job. The steps are those of a request.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::uri::PathAndQuery;
use http::{HeaderMap, Method, Request, StatusCode, header};
use nevertwice_domain::job::{Job, JobField, ResultFacts};
use nevertwice_domain::outcome::{Outcome, OwnCode};

use super::account::Record;
use super::identify::Tenant;
use super::intake::{self, Taken};
use super::judge::{self, Answer};
use super::recall::{self, Known, Recall};
use super::{Ending, Rejection, answer, plan, remember, reply, submit};
use crate::Shared;
use crate::jobs::Room;

/// How an attempt ended.
pub(crate) struct Ended {
    pub(crate) outcome: Outcome,
    /// What the upstream said, now or before.
    pub(crate) answer: Option<(ResultFacts, Bytes)>,
    /// Whether it is a verdict on the document.
    pub(crate) verdict: bool,
    /// Not to be tried again before so long.
    pub(crate) wait: Option<Duration>,
    /// Why the gateway itself ended it.
    pub(crate) detail: Option<&'static str>,
}

impl From<OwnCode> for Ended {
    fn from(code: OwnCode) -> Self {
        Rejection::from(code).into()
    }
}

impl From<Rejection> for Ended {
    fn from(Rejection { code, detail, retry_after_s }: Rejection) -> Self {
        Self {
            outcome: Outcome::Own(code),
            answer: None,
            verdict: false,
            wait: retry_after_s.map(Duration::from_secs),
            detail,
        }
    }
}

impl Ended {
    /// The status that stands in the audit.
    pub(crate) fn status(&self) -> u16 {
        match (&self.answer, self.outcome) {
            (Some((facts, _)), _) => facts.status,
            (None, Outcome::Own(code)) => code.status(),
            (None, _) => StatusCode::INTERNAL_SERVER_ERROR.as_u16(),
        }
    }
}

/// Says in the record whose job it is, and where it goes, as far as that is configured still.
pub(crate) fn introduce(gateway: &Shared, job: &Job, record: &mut Record) {
    let Some(tenant) = gateway.tenants.named(&job.tenant) else { return };
    record.tenant(&tenant);
    if let Ok(path) = PathAndQuery::from_maybe_shared(job.request.path.clone())
        && let Ok(plan) = plan::of_job(gateway, tenant, job.upstream.as_str(), path)
    {
        record.plan(&plan);
    }
}

/// Makes one attempt at a job. `sending` is awaited when the upstream is about to be called; `results` has the memory for answers, of
/// which at most `result_max` bytes are read.
pub(crate) async fn attempt(
    gateway: &Arc<Shared>,
    tenant: Arc<Tenant>,
    (job, input): (&Job, Bytes),
    (results, result_max): (&Room, u64),
    sending: impl Future<Output = Result<(), Rejection>> + Send,
    record: &mut Record,
) -> Ended {
    record.tenant(&tenant);
    match line(gateway, tenant, job, input, sending, record).await {
        Err(rejection) => rejection.into(),
        Ok(Ending::Known(known)) => self::known(gateway, known, record),
        Ok(Ending::Live(answer, place)) => {
            let ended = live(*answer, results, result_max, record).await;
            drop(place);
            ended
        }
    }
}

async fn line(
    gateway: &Arc<Shared>,
    tenant: Arc<Tenant>,
    job: &Job,
    input: Bytes,
    sending: impl Future<Output = Result<(), Rejection>> + Send,
    record: &mut Record,
) -> Result<Ending, Rejection> {
    let path = PathAndQuery::from_maybe_shared(job.request.path.clone()).map_err(|_| OwnCode::Internal)?;
    let plan = plan::of_job(gateway, tenant, job.upstream.as_str(), path)?;
    record.plan(&plan);
    let drive = plan.upstream.config.adapter.drive();
    let mut request = Request::new(());
    *request.method_mut() = Method::POST;
    *request.headers_mut() = submit::headers_of(&job.request.fields);
    let head = request.into_parts().0;
    let document = intake::at_hand(gateway, &plan, &head.headers, input).await?;
    match recall::recall(gateway, plan, head, Taken::Document(document), record).await? {
        Recall::Known(known) => Ok(Ending::Known(known)),
        Recall::Unknown(call) => answer(gateway, call, record, drive, sending).await,
    }
}

/// The upstream was not asked.
fn known(gateway: &Shared, known: Known, record: &mut Record) -> Ended {
    match known {
        Known::Refused(entry) => {
            let _ = reply::count_replay(gateway, &entry, record);
            Ended {
                outcome: Outcome::Replayed(entry.status),
                answer: Some((submit::result_of(&entry), entry.body.clone())),
                verdict: true,
                wait: None,
                detail: None,
            }
        }
        // nobody asks for an operation by a job
        Known::Minted(_) | Known::Failed(_) | Known::Removed => OwnCode::Internal.into(),
        Known::Held(held) => {
            reply::count_held(&held, record);
            let facts = ResultFacts {
                status: held.answer.status.as_u16(),
                fields: Vec::new(),
                bytes: held.answer.body.len() as u64,
            };
            Ended {
                outcome: Outcome::Held(held.answer.status),
                answer: Some((facts, held.answer.body.clone())),
                verdict: false,
                wait: Some(Duration::from_millis(held.left_ms)),
                detail: None,
            }
        }
    }
}

/// The upstream's answer, read to its end.
async fn live(answer: Answer, results: &Room, result_max: u64, record: &mut Record) -> Ended {
    let (outcome, verdict) = (answer.outcome(), answer.remembered);
    let idle = record.upstream().map_or(Duration::from_secs(60), |upstream| upstream.config.idle_timeout);
    let head = answer.head;
    match judge::to_the_end(answer.body, result_max, idle, results).await {
        Err(rejection) => {
            record.end = Some("answer_body");
            rejection.into()
        }
        Ok(body) => {
            let facts = ResultFacts {
                status: head.status.as_u16(),
                fields: fields(&head.headers),
                bytes: body.len() as u64,
            };
            record.bytes_out = facts.bytes;
            Ended {
                outcome,
                verdict,
                wait: retry_after(&head.headers).filter(|_| head.status != StatusCode::OK),
                answer: Some((facts, body)),
                detail: None,
            }
        }
    }
}

/// What of the head describes the body.
fn fields(headers: &HeaderMap) -> Vec<JobField> {
    [header::CONTENT_TYPE, header::CONTENT_ENCODING, header::CONTENT_LANGUAGE]
        .iter()
        .filter_map(|name| {
            let value = remember::joined(headers, name)?;
            Some(JobField { name: name.as_str().to_owned(), value })
        })
        .collect()
}

/// How long an answer asks to be left alone: seconds. A date is not read: clocks differ.
pub(crate) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(header::RETRY_AFTER)?.to_str().ok()?;
    text.trim().parse().ok().map(Duration::from_secs)
}
