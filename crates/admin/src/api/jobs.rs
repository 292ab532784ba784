//! Jobs of all tenants: list, show, cancel, retry. Never their inputs and results.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, RawQuery, State};
use axum::{Extension, Json};
use nevertwice_domain::clock::Millis;
use nevertwice_domain::fingerprint::DocumentDigest;
use nevertwice_domain::job::{Job, JobError, JobId, ResultFacts};
use nevertwice_domain::tenant::{TenantId, UpstreamName};
use nevertwice_gateway::Gateway;
use nevertwice_store::StoreError;
use nevertwice_store::work::{JobDepth, JobQuery, JobStore};
use serde::Serialize;

use super::refusals::{known_upstreams, page_length};
use super::shapes::escaped;
use super::{Answer, segment};
use crate::access::Who;
use crate::near;
use crate::problem::{Code, Problem};
use crate::query::{self, no_parameters, parameters};
use crate::{Peer, Shared};

/// How long the store may take for what goes on when the caller has left.
const DO_TIMEOUT: Duration = Duration::from_secs(7);

const PARAMETERS: [&str; 5] = ["tenant", "upstream", "status", "limit", "cursor"];

/// Part of a list.
#[derive(Serialize)]
pub(super) struct Jobs {
    items: Vec<Item>,
    next_cursor: Option<String>,
    depth: Vec<Depth>,
    /// What inputs and results take, of all jobs.
    stored_bytes: u64,
}

/// How many jobs of an upstream are not final, whatever was asked for.
#[derive(Serialize)]
struct Depth {
    upstream: UpstreamName,
    queued: u64,
    running: u64,
}

/// One job.
#[derive(Serialize)]
pub(super) struct Item {
    id: String,
    tenant: TenantId,
    upstream: UpstreamName,
    /// Without its query, in which there may be secrets.
    path: String,
    status: &'static str,
    created_at: Millis,
    started_at: Option<Millis>,
    finished_at: Option<Millis>,
    expires_at: Option<Millis>,
    not_before: Option<Millis>,
    attempts: u32,
    sent: bool,
    cancelling: bool,
    bytes: u64,
    document_sha256: Option<DocumentDigest>,
    error: Option<Failure>,
    result: Option<Outcome>,
}

#[derive(Serialize)]
struct Failure {
    code: String,
    message: String,
    upstream_status: Option<u16>,
    retryable: bool,
    replayed: bool,
    verdict: bool,
}

#[derive(Serialize)]
struct Outcome {
    status: u16,
    content_type: Option<String>,
    bytes: u64,
}

impl From<Job> for Item {
    fn from(job: Job) -> Self {
        let path = job.request.path.split('?').next().unwrap_or_default().to_owned();
        Self {
            id: job.id.to_string(),
            tenant: job.tenant,
            upstream: job.upstream,
            path,
            status: job.status.name(),
            created_at: job.created_at,
            started_at: job.started_at,
            finished_at: job.finished_at,
            expires_at: job.expires_at,
            not_before: job.not_before,
            attempts: job.attempts,
            sent: job.sent,
            // the wish stays in the record when it has been fulfilled, or came too late
            cancelling: job.cancel && !job.status.is_final(),
            bytes: job.request.bytes,
            document_sha256: job.request.document,
            error: job.error.map(Failure::from),
            result: job.result.map(Outcome::from),
        }
    }
}

impl From<JobError> for Failure {
    fn from(error: JobError) -> Self {
        let JobError { code, message, upstream_status, retryable, replayed, verdict } = error;
        Self { code, message, upstream_status, retryable, replayed, verdict }
    }
}

impl From<ResultFacts> for Outcome {
    fn from(facts: ResultFacts) -> Self {
        let content_type = facts.fields.iter().find(|field| field.name == "content-type");
        Self {
            status: facts.status,
            content_type: content_type.map(|field| escaped(&field.value)),
            bytes: facts.bytes,
        }
    }
}

impl From<JobDepth> for Depth {
    fn from(JobDepth { upstream, queued, running }: JobDepth) -> Self {
        Self { upstream, queued, running }
    }
}

pub(super) async fn list(State(state): State<Arc<Shared>>, RawQuery(query): RawQuery) -> Answer<Jobs> {
    let (gateway, store) = state.jobs()?;
    let given = parameters(query.as_deref(), &PARAMETERS)?;
    let query = JobQuery {
        tenant: given.get("tenant", |text| query::tenant(text))?,
        upstream: given.get("upstream", |text| query::upstream(text))?,
        status: given.get("status", |text| query::job_status(text))?,
        limit: page_length(&given)?,
        after: given.get("cursor", |text| {
            query::job(text).map_err(|_| "has to be the `next_cursor` of the page before".to_owned())
        })?,
    };
    let page = store.list(&query).await?;
    if let (true, Some(upstream)) = (page.items.is_empty(), query.upstream) {
        check_upstream(&gateway, store.as_ref(), upstream).await?;
    }
    let depth = store.depth().await?;
    Ok(Json(Jobs {
        items: page.items.into_iter().map(Item::from).collect(),
        next_cursor: page.next.map(|id| id.to_string()),
        depth: depth.into_iter().map(Depth::from).collect(),
        stored_bytes: store.stored_bytes().await?,
    }))
}

/// Refuses a name that is neither configured nor in the store, as the list of refusals does.
async fn check_upstream(gateway: &Gateway, store: &dyn JobStore, name: UpstreamName) -> Result<(), Problem> {
    if gateway.has_upstream(&name) {
        return Ok(());
    }
    let detail = format!("there is no upstream `{name}`; {}", known_upstreams(gateway));
    let any = JobQuery { upstream: Some(name), limit: 1, ..JobQuery::default() };
    if store.list(&any).await?.items.is_empty() { Err(Problem::bad(detail)) } else { Ok(()) }
}

pub(super) async fn show(
    State(state): State<Arc<Shared>>,
    RawQuery(query): RawQuery,
    path: Result<Path<String>, PathRejection>,
) -> Answer<Item> {
    let (_, store) = state.jobs()?;
    no_parameters(query.as_deref())?;
    let job = store.job(&id(path)?).await?;
    job.map(|job| Json(Item::from(job))).ok_or_else(no_job)
}

/// What became of a job that was to be cancelled.
#[derive(Serialize)]
pub(super) struct Cancelled {
    cancelled: bool,
    job: Item,
}

pub(super) async fn cancel(
    State(state): State<Arc<Shared>>,
    Extension(who): Extension<Who>,
    Extension(peer): Extension<Peer>,
    RawQuery(query): RawQuery,
    path: Result<Path<String>, PathRejection>,
) -> Answer<Cancelled> {
    let (gateway, _) = state.jobs()?;
    no_parameters(query.as_deref())?;
    let id = id(path)?;
    let doing = async move { gateway.cancel_job(&id).await };
    let (job, cancelled) = carry_out(&state, "cancel", id, doing, who, peer).await?;
    Ok(Json(Cancelled { cancelled, job: job.into() }))
}

/// What became of a job that was to be tried again.
#[derive(Serialize)]
pub(super) struct Retried {
    retried: bool,
    job: Item,
}

pub(super) async fn retry(
    State(state): State<Arc<Shared>>,
    Extension(who): Extension<Who>,
    Extension(peer): Extension<Peer>,
    RawQuery(query): RawQuery,
    path: Result<Path<String>, PathRejection>,
) -> Answer<Retried> {
    let (gateway, _) = state.jobs()?;
    no_parameters(query.as_deref())?;
    let id = id(path)?;
    let doing = async move { gateway.retry_job(&id).await };
    let (job, retried) = carry_out(&state, "retry", id, doing, who, peer).await?;
    Ok(Json(Retried { retried, job: job.into() }))
}

/// Does it, and leaves an audit line whether or not the caller waits for the answer.
async fn carry_out(
    state: &Shared,
    what: &'static str,
    id: JobId,
    doing: impl Future<Output = Result<Option<(Job, bool)>, StoreError>> + Send + 'static,
    who: Who,
    Peer(peer): Peer,
) -> Result<(Job, bool), Problem> {
    let task = state.tasks.spawn(async move {
        let who = who.name();
        match tokio::time::timeout(DO_TIMEOUT, doing).await {
            Ok(Ok(Some((job, changed)))) => {
                let (tenant, upstream, status) = (&job.tenant, &job.upstream, job.status.name());
                tracing::info!(
                    target: "nevertwice::audit",
                    who, %peer, what, job = %id, %tenant, %upstream, changed, status,
                    "an operator's word on a job"
                );
                Ok((job, changed))
            }
            Ok(Ok(None)) => Err(no_job()),
            Ok(Err(error)) => {
                tracing::error!(target: "nevertwice::audit", who, %peer, what, job = %id, %error, "an operator's word on a job failed");
                Err(Problem::from(error))
            }
            Err(_) => {
                tracing::error!(target: "nevertwice::audit", who, %peer, what, job = %id, "an operator's word on a job took too long, it may still happen");
                Err(Problem::new(Code::TimedOut, format!("the store has not answered, the {what} may still happen")))
            }
        }
    });
    task.await.unwrap_or_else(|_| Err(Problem::new(Code::StoreFailed, format!("the {what} was cut off"))))
}

fn id(path: Result<Path<String>, PathRejection>) -> Result<JobId, Problem> {
    let text = segment(path)?;
    query::job(&text)
        .map_err(|why| Problem::bad(format!("the id {} in the path: {why}", near::quoted(&text))))
}

fn no_job() -> Problem {
    Problem::new(Code::NoJob, "it was removed when its time was over, or never was")
}
