//! The line: what happens to a request, in order. Each step is a file beside this one.
//!
//! `identify -> plan -> intake -> recall -> admit -> dispatch -> judge -> remember -> reply -> account`
//!
//! Recall comes before admit, so a known-bad document takes no place in a pool; intake comes before recall, because the
//! key needs the bytes. `account` has no call: its record travels with the answer and is written when the answer's body
//! ends, however it ends.

pub(crate) mod account;
mod admit;
pub(crate) mod connection;
mod detach;
mod dispatch;
pub(crate) mod headers;
mod hold;
pub(crate) mod identify;
mod intake;
pub(crate) mod judge;
pub(crate) mod operation;
pub(crate) mod plan;
pub(crate) mod recall;
mod remember;
pub(crate) mod reply;
pub(crate) mod submit;
pub(crate) mod unattended;

use std::sync::Arc;

use http::request::Parts;
use http::{Method, Request, Response};
use hyper::body::Incoming;
use nevertwice_config::checked::Drive;
use nevertwice_domain::operation::Operation;
use nevertwice_domain::outcome::{Outcome, OwnCode};

use crate::Shared;
use crate::adapter;
use crate::facade::azure_di::Asked;
use crate::facade::jobs as jobs_facade;
use crate::pool::Permit;
use account::Record;
use connection::OnConnection;
use identify::Tenant;
use judge::Answer;
use plan::Plan;
use recall::{Call, CallBody, Known, Recall};
use reply::Reply;

/// Why a request ends with an answer of the gateway's own.
#[derive(Debug)]
pub(crate) struct Rejection {
    pub(crate) code: OwnCode,
    /// For the caller: what exactly, and what to do. Never holds what the caller sent.
    detail: Option<&'static str>,
    retry_after_s: Option<u64>,
}

impl From<OwnCode> for Rejection {
    fn from(code: OwnCode) -> Self {
        // another replica, or this one a moment later, may well serve it
        let retry_after_s = matches!(code, OwnCode::Draining | OwnCode::AuditUnavailable).then_some(1);
        Self { code, detail: None, retry_after_s }
    }
}

impl Rejection {
    pub(crate) fn with(code: OwnCode, detail: &'static str) -> Self {
        Self { code, detail: Some(detail), retry_after_s: None }
    }

    /// The same, with a word on when to try again.
    pub(crate) fn again_in(self, seconds: u64) -> Self {
        Self { retry_after_s: Some(seconds), ..self }
    }
}

/// One request, from its head to its answer.
pub(crate) fn run(
    gateway: Arc<Shared>,
    request: Request<Incoming>,
    connection: OnConnection,
) -> impl Future<Output = Response<Reply>> + Send {
    // now, not when it is first polled: a client that has left by then is accounted for like any other
    let record = Record::open(&gateway, &request, &connection);
    follow(gateway, request, record)
}

async fn follow(
    gateway: Arc<Shared>,
    request: Request<Incoming>,
    mut record: Box<Record>,
) -> Response<Reply> {
    let (head, body) = request.into_parts();
    let tenant = match admit_tenant(&gateway, &head, &mut record) {
        Ok(tenant) => tenant,
        Err(rejection) => return reply::own(rejection, record),
    };
    if let Some(jobs) = gateway.jobs.as_ref().filter(|_| jobs_facade::is_its_own(head.uri.path())) {
        return Box::pin(jobs_facade::serve(&gateway, jobs, tenant, head, body, record)).await;
    }
    match approach(&gateway, tenant, head, body, &mut record).await {
        Err(rejection) => reply::own(rejection, record),
        Ok(Recall::Known(known)) => reply::known(&gateway, &known, record),
        Ok(Recall::Unknown(call)) if call.leads() => {
            let tracker = gateway.tracker.clone();
            let cut = gateway.stop.cut.clone();
            detach::to_the_end(tracker, cut, attempt(gateway, call, record), reply::abandon).await
        }
        // in a box of its own: an answer from the memory does not carry the room for it along
        Ok(Recall::Unknown(call)) => Box::pin(attempt(gateway, call, record)).await,
    }
}

/// Who asks, if work is taken at all.
fn admit_tenant(gateway: &Arc<Shared>, head: &Parts, record: &mut Record) -> Result<Arc<Tenant>, Rejection> {
    gateway.accepts_work()?;
    let tenant = identify::tenant(gateway, &head.headers)?;
    record.tenant(&tenant);
    Ok(tenant)
}

/// Up to the question whether the answer is known already.
async fn approach(
    gateway: &Arc<Shared>,
    tenant: Arc<Tenant>,
    head: Parts,
    body: Incoming,
    record: &mut Record,
) -> Result<Recall, Rejection> {
    let plan = plan::route(gateway, tenant, &head, record.connection.caller())?;
    record.plan(&plan);
    if let Asked::Operation { id, rest } = &plan.asked {
        let (id, rest) = (*id, rest.clone());
        let body = CallBody::passing(gateway, &plan, body);
        return operation::find(gateway, plan, (id, &rest), head, body, record).await;
    }
    let taken = intake::take(gateway, &plan, &head, body, record).await?;
    recall::recall(gateway, plan, head, taken, record).await
}

/// The gateway's own look at an operation whose outcome nobody has asked for. It takes no place that a request waits for.
pub(crate) async fn look(gateway: Arc<Shared>, operation: Operation) {
    // a tenant or an upstream that is not known here may be at another replica, while a new configuration is rolled out
    let Some(plan) = Plan::of_look(&gateway, &operation) else { return };
    let Some(place) = plan.upstream.pool.try_admit() else { return };
    let place = Arc::new(place);
    let mut record = Record::of_the_gateway(&gateway, Method::GET, plan.path.path());
    record.tenant(&plan.tenant);
    record.plan(&plan);
    let ended = async {
        let mut call = operation::look(plan, Arc::new(operation), &record)?;
        let answer = dispatch::send(&mut call, &place, &mut record).await?;
        let judged = judge::judge(&gateway, &call, answer, true).await?;
        remember::remember(&gateway, call, judged, &mut record).await
    };
    match ended.await {
        Ok(answer) => record.answered(answer.outcome(), answer.status()),
        Err(rejection) => record.answered(Outcome::Own(rejection.code), rejection.code.status_code()),
    }
}

/// One attempt at the upstream. Runs to its end even if the client leaves, when others wait for how it lands.
async fn attempt(gateway: Arc<Shared>, call: Box<Call>, mut record: Box<Record>) -> Response<Reply> {
    match answer(&gateway, call, &mut record, Drive::OnePost, std::future::ready(Ok(()))).await {
        Ok(Ending::Live(answer, permit)) => reply::live(*answer, permit, record),
        Ok(Ending::Known(known)) => reply::known(&gateway, &known, record),
        Err(rejection) => reply::own(rejection, record),
    }
}

/// What an attempt ends with.
enum Ending {
    /// The upstream's answer, which keeps its place until its body ends.
    Live(Box<Answer>, Arc<Permit>),
    /// The answer became known while it waited for a place.
    Known(Known),
}

/// `drive` says what the outcome is; `sending` is awaited when the call is about to be made, and may forbid it.
async fn answer(
    gateway: &Shared,
    mut call: Box<Call>,
    record: &mut Record,
    drive: Drive,
    sending: impl Future<Output = Result<(), Rejection>> + Send,
) -> Result<Ending, Rejection> {
    // a request that found no place says nothing about the document: if it led, another one leads
    let (place, waited) = admit::place(&call, record).await?;
    if waited && let Some(known) = recall::look_again(gateway, &mut call).await {
        match known {
            Known::Held(_) => call.land_without_verdict(),
            _ => call.land_with_verdict(),
        }
        return Ok(Ending::Known(known));
    }
    let judged = async {
        sending.await?;
        let answer = dispatch::send(&mut call, &place, record).await?;
        let answer = judge::judge(gateway, &call, answer, record.uploaded())
            .await
            .inspect_err(|_| record.end = Some("answer_body"))?;
        match drive {
            Drive::OnePost => Ok(answer),
            Drive::SubmitAndPoll | Drive::JobApi => {
                adapter::outcome(gateway, drive, &call, &place, answer, record).await
            }
        }
    };
    match judged.await {
        Ok(judged) => {
            let answer = remember::remember(gateway, call, judged, record).await?;
            Ok(Ending::Live(Box::new(answer), place))
        }
        Err(rejection) => {
            call.land_without_verdict();
            Err(rejection)
        }
    }
}
