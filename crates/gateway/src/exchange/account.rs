//! The record of one request: it travels with the request and then with its answer, and becomes one audit line and its
//! series when it is dropped, so that every way out is accounted for, once.

use std::sync::Arc;
use std::time::{Duration, Instant};

use http::{Method, Request, StatusCode, Version};
use hyper::body::{Body, Incoming};
use nevertwice_domain::audit::{AuditEvent, bounded_path};
use nevertwice_domain::clock::Millis;
use nevertwice_domain::fingerprint::{DocumentDigest, Fingerprint};
use nevertwice_domain::job::{Job, JobId};
use nevertwice_domain::outcome::{Outcome, OwnCode};
use nevertwice_domain::tenant::TenantId;
use nevertwice_domain::trace::Trace;

use super::connection::{Exchanging, OnConnection};
use super::headers;
use super::identify::Tenant;
use super::plan::Plan;
use crate::Shared;
use crate::body::outbound::Progress;
use crate::upstream::Upstream;

/// What is known of a request so far. It is moved along with the request, so it lives in a box.
pub(crate) struct Record {
    gateway: Arc<Shared>,
    began: Instant,
    ts: Millis,
    pub(crate) trace: Trace,
    pub(crate) method: Method,
    path: String,
    /// Whether unread body bytes may follow, and on which protocol.
    pub(crate) version: Version,
    pub(crate) body_unread: bool,
    tenant: Option<Arc<Tenant>>,
    upstream: Option<Arc<Upstream>>,
    route: Option<Arc<str>>,
    outcome: Option<Outcome>,
    status: u16,
    pub(crate) fingerprint: Option<Fingerprint>,
    pub(crate) document: Option<DocumentDigest>,
    pub(crate) bytes_in: u64,
    pub(crate) bytes_out: u64,
    /// A body that was passed on as it came.
    pub(crate) upload: Option<Arc<Progress>>,
    pub(crate) attempts: u32,
    pub(crate) would_replay: Option<bool>,
    /// Waiting for others: the client's body, another attempt, the pool.
    pub(crate) read_wait: Duration,
    pub(crate) flight_wait: Duration,
    pub(crate) queue_wait: Duration,
    pub(crate) upstream_wait: Duration,
    /// What broke.
    pub(crate) end: Option<&'static str>,
    /// Whether the whole answer was handed to the connection.
    pub(crate) complete: bool,
    /// Whether the client had left when the answer was there.
    pub(crate) abandoned: bool,
    pub(super) connection: Exchanging,
    /// The job that this is an attempt of.
    job: Option<JobId>,
}

impl Record {
    pub(super) fn open(
        gateway: &Arc<Shared>,
        request: &Request<Incoming>,
        connection: &OnConnection,
    ) -> Box<Self> {
        let traceparent = request.headers().get(&headers::TRACEPARENT).map(|v| v.as_bytes());
        let mut record = Self::begin(gateway, request.method().clone(), request.uri().path(), connection);
        record.trace = Trace::from_header(traceparent, || fastrand::u64(..));
        record.version = request.version();
        record.body_unread = !request.body().is_end_stream();
        record
    }

    /// A call of the gateway's own, on a tenant's behalf: nobody is connected, and nobody leaves.
    pub(crate) fn of_the_gateway(gateway: &Arc<Shared>, method: Method, path: &str) -> Box<Self> {
        let mut record = Self::begin(gateway, method, path, &OnConnection::default());
        // until an answer says otherwise, and where none comes
        record.complete = true;
        record
    }

    /// A worker's attempt at a job.
    pub(crate) fn of_job(gateway: &Arc<Shared>, job: &Job) -> Box<Self> {
        let path = job.request.path.split('?').next().unwrap_or_default();
        let mut record =
            Self::of_the_gateway(gateway, Method::POST, &format!("/jobs/{}{path}", job.upstream));
        record.job = Some(job.id);
        record.bytes_in = job.request.bytes;
        record
    }

    fn begin(gateway: &Arc<Shared>, method: Method, path: &str, connection: &OnConnection) -> Box<Self> {
        Box::new(Self {
            gateway: Arc::clone(gateway),
            began: Instant::now(),
            ts: gateway.clock.now(),
            trace: Trace::from_header(None, || fastrand::u64(..)),
            method,
            path: bounded_path(path),
            version: Version::HTTP_11,
            body_unread: false,
            tenant: None,
            upstream: None,
            route: None,
            outcome: None,
            status: 0,
            fingerprint: None,
            document: None,
            bytes_in: 0,
            bytes_out: 0,
            upload: None,
            attempts: 0,
            would_replay: None,
            read_wait: Duration::ZERO,
            flight_wait: Duration::ZERO,
            queue_wait: Duration::ZERO,
            upstream_wait: Duration::ZERO,
            end: None,
            complete: false,
            abandoned: false,
            connection: Exchanging::new(connection),
            job: None,
        })
    }

    pub(super) fn tenant(&mut self, tenant: &Arc<Tenant>) {
        self.tenant = Some(Arc::clone(tenant));
    }

    pub(super) fn plan(&mut self, plan: &Plan) {
        self.upstream = Some(Arc::clone(&plan.upstream));
        self.route = Some(Arc::clone(&plan.route));
    }

    /// Runs something beside this exchange.
    pub(super) fn watch_beside(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.gateway.tracker.spawn(task);
    }

    /// How long the client may take nothing of its answer.
    pub(super) fn write_stall(&self) -> Duration {
        self.gateway.http.write_stall_timeout
    }

    /// Whether the whole request body went up.
    pub(crate) fn uploaded(&self) -> bool {
        self.upload.as_ref().is_none_or(|progress| progress.state().1)
    }

    /// The upstream, once a route matched.
    pub(super) fn upstream(&self) -> Option<Arc<Upstream>> {
        self.upstream.clone()
    }

    /// Who asked, once that is known.
    pub(super) fn tenant_id(&self) -> Option<TenantId> {
        self.tenant.as_ref().map(|t| t.id.clone())
    }

    /// The answer's head is ready: what it is, and what the gateway itself added to the time it took.
    pub(crate) fn answered(&mut self, outcome: Outcome, status: StatusCode) {
        self.outcome = Some(outcome);
        self.status = status.as_u16();
        // what a job waits for is not an overhead that anybody sees
        if let (Some(upstream), None) = (&self.upstream, self.job) {
            let others = self.read_wait + self.flight_wait + self.queue_wait + self.upstream_wait;
            upstream.metrics.overhead.observe(self.began.elapsed().saturating_sub(others).as_secs_f64());
        }
    }

    /// An attempt that no client waits for has ended like this. Its line is written when it is dropped.
    pub(crate) fn ended(&mut self, outcome: Outcome, status: u16) {
        self.outcome = Some(outcome);
        self.status = status;
    }

    /// A held body was counted while it was read; one that passes, while it went up.
    fn bytes_in(&self) -> u64 {
        match (&self.upload, self.bytes_in) {
            (Some(upload), 0) => upload.sent(),
            (_, read) => read,
        }
    }

    fn finish(&mut self) {
        // who ended it early: the end of a drain cuts what is left
        let (who, code) = match self.gateway.stop.cut.is_cancelled() {
            true => ("gateway_stopped", OwnCode::Draining),
            false => ("client_closed", OwnCode::ClientAborted),
        };
        if !self.complete && self.end.is_none() {
            self.end = Some(who);
        }
        let outcome = self.outcome.unwrap_or(Outcome::Own(code));
        if self.outcome.is_none() {
            // nobody was answered
            self.status = code.status();
        }
        let total = self.began.elapsed();
        if let Some(tenant) = &self.tenant {
            tenant.metrics.request(outcome);
        }
        match &self.upstream {
            Some(upstream) => {
                upstream.metrics.request(outcome);
                upstream.metrics.attempts.inc_by(self.attempts.into());
                upstream.metrics.duration.observe(total.as_secs_f64());
            }
            None => self.gateway.unrouted.request(outcome),
        }
        let Some(audit) = &self.gateway.audit else { return };
        audit.emit(&AuditEvent {
            ts: self.ts,
            trace_id: self.trace.id(),
            tenant: self.tenant_id(),
            upstream: self.upstream.as_ref().map(|u| u.name().clone()),
            route: self.route.clone(),
            method: bounded_path(self.method.as_str()),
            path: std::mem::take(&mut self.path),
            status: self.status,
            code: outcome,
            cache_hit: matches!(outcome, Outcome::Replayed(_) | Outcome::Held(_)),
            fingerprint: self.fingerprint,
            document_sha256: self.document,
            bytes_in: self.bytes_in(),
            bytes_out: self.bytes_out,
            upstream_ms: ceil_ms(self.upstream_wait),
            total_ms: ceil_ms(total),
            queue_ms: u64::try_from(self.queue_wait.as_millis()).unwrap_or(u64::MAX),
            attempts: self.attempts,
            end: self.end,
            would_replay: self.would_replay,
            job: self.job,
        });
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        self.finish();
    }
}

/// Whole milliseconds, rounded up: a call that was made never shows as none.
fn ceil_ms(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}
