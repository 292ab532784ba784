//! The jobs API: `POST /jobs/{upstream}/{path}` hands a document over, `GET /jobs/{id}` tells what became of it.

mod query;
pub(crate) mod shape;

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, header};
use hyper::body::Incoming;
use nevertwice_domain::clock::Millis;
use nevertwice_domain::job::{IdempotencyKey, Job, JobError, JobId, JobStatus};
use nevertwice_domain::outcome::{Outcome, OwnCode};
use nevertwice_store::StoreError;
use nevertwice_store::work::{Full, JobQuery, Submitted};

use crate::Shared;
use crate::exchange::account::Record;
use crate::exchange::identify::Tenant;
use crate::exchange::judge::SMALL_RESULT;
use crate::exchange::reply::{self, Reply};
use crate::exchange::{Rejection, plan, submit};
use crate::jobs::Jobs;
use crate::webhook;
use query::Query;

/// Where the API is.
const ROOT: &str = "/jobs";
/// How long a client may wait for the end of a job.
const WAIT_MAX_S: u64 = 60;
/// How often somebody who waits looks into the store: the job may end in another process.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long a result waits for memory.
const ROOM_WAIT: Duration = Duration::from_secs(10);

static IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
static IDEMPOTENT_REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");
static WEBHOOK_URL: HeaderName = HeaderName::from_static("webhook-url");

/// Whether a path is the API's.
pub(crate) fn is_its_own(path: &str) -> bool {
    path.strip_prefix(ROOT).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// An answer of the API.
struct Answer {
    outcome: Outcome,
    status: StatusCode,
    fields: HeaderMap,
    body: Bytes,
}

/// Answers a request to the API.
pub(crate) async fn serve(
    gateway: &Arc<Shared>,
    jobs: &Jobs,
    tenant: Arc<Tenant>,
    head: Parts,
    body: Incoming,
    mut record: Box<Record>,
) -> Response<Reply> {
    let api = Api { gateway, jobs, tenant };
    match api.answer(head, body, &mut record).await {
        Err(rejection) => reply::own(rejection, record),
        Ok(Answer { outcome, status, fields, body }) => {
            record.answered(outcome, status);
            let mut response = Response::new(Reply::whole(body, record));
            *response.status_mut() = status;
            *response.headers_mut() = fields;
            response
        }
    }
}

struct Api<'a> {
    gateway: &'a Arc<Shared>,
    jobs: &'a Jobs,
    tenant: Arc<Tenant>,
}

impl Api<'_> {
    async fn answer(&self, head: Parts, body: Incoming, record: &mut Record) -> Result<Answer, Rejection> {
        plan::check_head(self.gateway, &head)?;
        let whole = head.uri.path_and_query().ok_or(OwnCode::NoRoute)?.clone();
        let below = whole.path().strip_prefix(ROOT).unwrap_or_default();
        if head.method == Method::POST {
            let named = below.strip_prefix('/').ok_or(OwnCode::NoRoute)?;
            let name = named.split('/').next().unwrap_or_default();
            // from the slash after the name to the end, bytes as they are
            let rest = &whole.as_str()[ROOT.len() + 1 + name.len()..];
            let rest = if rest.starts_with('/') { rest.to_owned() } else { format!("/{rest}") };
            let path = PathAndQuery::from_maybe_shared(rest).map_err(|_| OwnCode::BadRequest)?;
            return self.submit(name, path, (head, body), record).await;
        }
        let reads = head.method == Method::GET || head.method == Method::HEAD;
        let query = Query::of(whole.query());
        let segments: Vec<&str> = below.split('/').skip(1).collect();
        match segments.as_slice() {
            [] | [""] if reads => self.list(&query?).await,
            [id] if reads => self.show(id, &query?).await,
            [id, "result"] if reads => self.result(id).await,
            [id] if head.method == Method::DELETE => self.cancel(id).await,
            _ => Err(Rejection::with(
                OwnCode::NoRoute,
                "POST /jobs/{upstream}/{path}; GET /jobs, /jobs/{id} and /jobs/{id}/result; DELETE /jobs/{id}",
            )),
        }
    }

    async fn submit(
        &self,
        upstream: &str,
        path: PathAndQuery,
        (head, body): (Parts, Incoming),
        record: &mut Record,
    ) -> Result<Answer, Rejection> {
        let Self { gateway, jobs, tenant } = self;
        let key = match one(&head.headers, &IDEMPOTENCY_KEY).map_err(|()| OwnCode::BadIdempotencyKey)? {
            None => None,
            Some(value) => {
                let key = IdempotencyKey::of(&tenant.id, value.as_bytes());
                Some(key.map_err(|_| OwnCode::BadIdempotencyKey)?)
            }
        };
        let webhook = self.webhook(&head.headers)?;
        let limit = gateway.limits.body_max_bytes.min(jobs.rules.input_max_bytes);
        let handed =
            submit::take(gateway, Arc::clone(tenant), (upstream, path), (head, body), limit, record).await?;
        let room = jobs.submitted.take(handed.request.bytes).await;
        let input = handed.input().await?;
        let now = gateway.clock.now();
        let known = handed.known.as_deref();
        let result = known.map(|entry| (submit::result_of(entry), entry.body.clone()));
        let job = Job {
            id: new_id(now)?,
            tenant: tenant.id.clone(),
            upstream: handed.upstream.name().clone(),
            request: handed.request.clone(),
            key,
            status: if known.is_some() { JobStatus::Failed } else { JobStatus::Queued },
            created_at: now,
            started_at: None,
            finished_at: known.map(|_| now),
            expires_at: known.map(|_| jobs.expires_at(now)),
            attempts: 0,
            not_before: None,
            sent: false,
            cancel: false,
            error: known.zip(result.as_ref()).map(|(entry, (facts, body))| JobError {
                code: Outcome::Replayed(entry.status).to_string(),
                message: shape::message(facts, body),
                upstream_status: Some(facts.status),
                retryable: false,
                replayed: true,
                verdict: true,
            }),
            result: result.as_ref().map(|(facts, _)| facts.clone()),
            webhook,
            retries: 0,
        };
        let body = result.map(|(_, body)| body);
        let bounds = jobs.bounds(now, job.status);
        let submitted = jobs.store.submit(job, input, body, &bounds).await;
        drop(room);
        let (job, same) = match submitted.map_err(|error| self.unavailable(&error))? {
            Submitted::New(job) => (job, false),
            Submitted::Same(job) => (job, true),
            Submitted::Conflict(_) => return Err(OwnCode::IdempotencyMismatch.into()),
            Submitted::Full(full) => {
                return Err(Rejection::with(OwnCode::JobsFull, detail(full)).again_in(10));
            }
        };
        let mut outcome = Outcome::Ok;
        // not of one that was accepted under this key before
        if let Some(entry) = known.filter(|_| job.error.as_ref().is_some_and(|error| error.verdict)) {
            submit::count_replay(gateway, entry, record);
            outcome = Outcome::Replayed(entry.status);
        }
        if !same && job.status.is_final() {
            jobs.tell_end(job.id, &job.upstream, job.status, job.webhook.is_some());
        }
        let mut answer = json(StatusCode::ACCEPTED, &shape::accepted(&job, &jobs.base));
        answer.outcome = outcome;
        let location = shape::link(&job.id, &jobs.base);
        answer.fields.extend(HeaderValue::try_from(location).ok().map(|value| (header::LOCATION, value)));
        if same {
            answer.fields.insert(IDEMPOTENT_REPLAYED.clone(), HeaderValue::from_static("true"));
        }
        Ok(answer.unless_final(&job))
    }

    fn webhook(&self, headers: &HeaderMap) -> Result<Option<String>, Rejection> {
        let refused = |detail| Rejection::with(OwnCode::WebhookRefused, detail);
        let one = one(headers, &WEBHOOK_URL).map_err(|()| refused("there is more than one Webhook-Url"))?;
        let Some(value) = one else { return Ok(None) };
        let Some(webhooks) = self.jobs.webhooks() else {
            return Err(refused("this gateway calls no webhooks: its jobs.webhooks is not set"));
        };
        let text = value.to_str().map_err(|_| refused("the Webhook-Url is no URL"))?;
        webhook::check(text, webhooks.allow_private).map_err(refused)?;
        Ok(Some(text.to_owned()))
    }

    /// A job of this tenant; of others nobody learns that they exist.
    async fn find(&self, id: &JobId) -> Result<Job, Rejection> {
        let found = self.jobs.store.job(id).await.map_err(|error| self.unavailable(&error))?;
        found.filter(|job| job.tenant == self.tenant.id).ok_or_else(|| OwnCode::JobNotFound.into())
    }

    fn unavailable(&self, error: &StoreError) -> Rejection {
        self.jobs.store_failed("a request could not be answered", error);
        Rejection::from(OwnCode::StoreUnavailable).again_in(1)
    }

    async fn show(&self, id: &str, query: &Query) -> Result<Answer, Rejection> {
        query.only(&["wait"])?;
        let id = id.parse().map_err(|_| OwnCode::JobNotFound)?;
        let job = match query.number("wait", 0..=WAIT_MAX_S)? {
            None | Some(0) => self.find(&id).await?,
            Some(seconds) => self.end_of(&id, Duration::from_secs(seconds)).await?,
        };
        Ok(json(StatusCode::OK, &shape::job(&job, &self.jobs.base)).unless_final(&job))
    }

    /// The job when it has come to its end, or after `wait`. The wait ends with the gateway, and when the client leaves.
    async fn end_of(&self, id: &JobId, wait: Duration) -> Result<Job, Rejection> {
        let Some((_place, mut ended)) = self.jobs.wait() else { return self.find(id).await };
        let (until, drain) = (Instant::now() + wait, &self.gateway.stop.drain);
        loop {
            let job = self.find(id).await?;
            let now = Instant::now();
            if job.status.is_final() || now >= until || drain.is_cancelled() {
                return Ok(job);
            }
            tokio::select! {
                () = ended.of(id) => {}
                () = drain.cancelled() => {}
                () = tokio::time::sleep_until(until.min(now + LOOK_EVERY).into()) => {}
            }
        }
    }

    async fn result(&self, id: &str) -> Result<Answer, Rejection> {
        let id = id.parse().map_err(|_| OwnCode::JobNotFound)?;
        let job = self.find(&id).await?;
        if !job.status.is_final() {
            return Err(Rejection::from(OwnCode::JobNotFinished).again_in(1));
        }
        let facts = job.result.ok_or(OwnCode::NoResult)?;
        let status = StatusCode::from_u16(facts.status).map_err(|_| OwnCode::NoResult)?;
        let room = match facts.bytes {
            // however many long ones are on their way to clients that read slowly
            ..=SMALL_RESULT => None,
            bytes => {
                let room = self.jobs.fetched.take_for(&self.tenant.id, bytes);
                let room = tokio::time::timeout(ROOM_WAIT, room).await;
                Some(room.map_err(|_| Rejection::from(OwnCode::StoreUnavailable).again_in(1))?)
            }
        };
        let body = self.jobs.store.result(&id).await.map_err(|error| self.unavailable(&error))?;
        let mut fields = HeaderMap::new();
        for field in facts.fields {
            let name = HeaderName::from_bytes(field.name.as_bytes()).ok();
            let value = HeaderValue::from_maybe_shared(field.value).ok();
            fields.extend(name.zip(value));
        }
        let body = body.ok_or(OwnCode::NoResult)?;
        let body = match room {
            Some(room) => room.holding(body),
            None => body,
        };
        Ok(Answer { outcome: Outcome::Ok, status, fields, body })
    }

    async fn cancel(&self, id: &str) -> Result<Answer, Rejection> {
        let id = id.parse().map_err(|_| OwnCode::JobNotFound)?;
        // of others nobody gives anything up
        self.find(&id).await?;
        let cancelled = self.jobs.cancel(&id, self.gateway.clock.now()).await;
        let (job, _) = cancelled.map_err(|error| self.unavailable(&error))?.ok_or(OwnCode::JobNotFound)?;
        Ok(json(StatusCode::OK, &shape::job(&job, &self.jobs.base)).unless_final(&job))
    }

    async fn list(&self, query: &Query) -> Result<Answer, Rejection> {
        query.only(&["status", "upstream", "limit", "cursor"])?;
        let asked = JobQuery {
            tenant: Some(self.tenant.id.clone()),
            upstream: query.upstream("upstream")?,
            status: query.status("status")?,
            limit: query.number("limit", 1..=1000)?.and_then(|n| usize::try_from(n).ok()).unwrap_or(100),
            after: query.cursor("cursor")?,
        };
        let page = self.jobs.store.list(&asked).await.map_err(|error| self.unavailable(&error))?;
        Ok(json(StatusCode::OK, &shape::page(&page, &self.jobs.base)))
    }
}

impl Answer {
    /// A word on when to ask again, as long as there is more to come.
    fn unless_final(mut self, job: &Job) -> Self {
        if !job.status.is_final() {
            self.fields.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        self
    }
}

fn json(status: StatusCode, value: &serde_json::Value) -> Answer {
    let fields = [(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))];
    Answer {
        outcome: Outcome::Ok,
        status,
        fields: fields.into_iter().collect(),
        body: value.to_string().into(),
    }
}

/// The one value of a field; `Err` = there are several.
fn one<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a HeaderValue>, ()> {
    let mut values = headers.get_all(name).iter();
    let first = values.next();
    if values.next().is_some() { Err(()) } else { Ok(first) }
}

/// Which bound leaves no room.
fn detail(full: Full) -> &'static str {
    match full {
        Full::Queue => "jobs.max_queued jobs wait for this upstream",
        Full::TenantQueue => "half of jobs.max_queued jobs of this tenant wait for this upstream",
        Full::Bytes => "the inputs and results that are kept leave no room for it in jobs.max_bytes",
        Full::TenantBytes => "what is kept of this tenant leaves no room for it in half of jobs.max_bytes",
    }
}

/// Nobody can guess the id of a job.
fn new_id(now: Millis) -> Result<JobId, Rejection> {
    let mut random = [0; 10];
    getrandom::fill(&mut random).map_err(|_| OwnCode::Internal)?;
    Ok(JobId::new(now, random))
}
