//! Every metric series of the gateway, with its labels and help text. Labels come from closed lists and configured names
//! alone, `(none)` and `(unlisted)` beside them; the series of the memory exist only while the memory is on.

mod by_status;
mod jobs;
mod loop_breaker;

use std::sync::atomic::{AtomicI64, AtomicU64};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use nevertwice_domain::entry::Mismatch;
use nevertwice_domain::outcome::{Outcome, OwnCode};
use nevertwice_domain::profile::{Doubt, NotRecorded};
use nevertwice_domain::status::RefusalStatus;
use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::lock::Lock;
use by_status::{ByStatus, UpstreamStatus};
pub(crate) use jobs::{JobMetrics, WebhookMetrics};
use loop_breaker::LoopBreakerFamilies;
pub(crate) use loop_breaker::LoopBreakerMetrics;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct UpstreamCode {
    upstream: Arc<str>,
    code: Arc<str>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct UpstreamLabel {
    upstream: Arc<str>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TenantResult {
    tenant: Arc<str>,
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Reason {
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Op {
    op: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

/// Upper bounds of the request duration buckets, in seconds.
const DURATION: [f64; 14] =
    [0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];
/// Upper bounds of the overhead buckets, in seconds: what the gateway itself adds.
const OVERHEAD: [f64; 12] =
    [0.000_025, 0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.25];

/// Upstream statuses that have a `code` of their own; others are counted as `HTTP_4xx` and `HTTP_5xx`, so that no upstream
/// can make series at will.
const NAMED: [u16; 21] =
    [400, 401, 402, 403, 404, 405, 408, 409, 410, 411, 413, 415, 418, 422, 424, 429, 500, 501, 502, 503, 504];

/// The registry and all handles.
pub struct Metrics {
    registry: Lock<Registry>,
    requests: Family<UpstreamCode, Counter>,
    tenants: Family<TenantResult, Counter>,
    durations: Family<UpstreamLabel, Histogram, fn() -> Histogram>,
    overheads: Family<UpstreamLabel, Histogram, fn() -> Histogram>,
    attempts: Family<UpstreamLabel, Counter>,
    in_flight: Family<UpstreamLabel, Gauge>,
    queued: Family<UpstreamLabel, Gauge>,
    limits: Family<UpstreamLabel, Gauge>,
    framing: Family<Reason, Counter>,
    pub(crate) connections: Gauge<i64, AtomicI64>,
    pub(crate) connections_refused: Counter,
    pub(crate) buffer_memory: Gauge<i64, AtomicI64>,
    pub(crate) spilled_bytes: Counter,
    pub(crate) audit_written: Counter,
    pub(crate) audit_dropped: Counter,
    pub(crate) audit_errors: Counter,
    /// The memory's series; `None` while the memory is off.
    pub(crate) memory: Option<MemoryMetrics>,
    /// The loop breaker's series; there are none before one is on.
    loop_breaker: OnceLock<LoopBreakerFamilies>,
}

/// The series of the memory.
pub(crate) struct MemoryMetrics {
    refusals: Family<UpstreamStatus, Counter>,
    would_replay: Family<UpstreamStatus, Counter>,
    not_recorded: Family<Reason, Counter>,
    store_errors: Family<Op, Counter>,
    doubts: Family<Reason, Counter>,
    verify_failures: Family<Reason, Counter>,
    waits: Family<ResultLabel, Counter>,
    guard: Family<UpstreamLabel, Gauge>,
    pub(crate) recorded: Counter,
    pub(crate) suspects: Counter,
    pub(crate) unclassified_dropped: Counter,
    entries: Gauge,
    evictions: Counter<u64, AtomicU64>,
    /// When a store failure was last logged.
    logged: Lock<Option<Instant>>,
}

/// The handles of one upstream, taken once: no lock and no label is touched per request.
pub(crate) struct UpstreamMetrics {
    name: Arc<str>,
    requests: Family<UpstreamCode, Counter>,
    codes: [OnceLock<Counter>; CODE_SLOTS],
    pub(crate) duration: Histogram,
    pub(crate) overhead: Histogram,
    pub(crate) attempts: Counter,
    in_flight: Gauge,
    queued: Gauge,
    replays: Option<ByStatus>,
    would_replay: Option<ByStatus>,
    guard: Option<Gauge>,
}

/// The handles of one tenant.
#[derive(Clone)]
pub(crate) struct TenantMetrics([Counter; 6]);

const RESULTS: [&str; 6] = ["ok", "refused", "failed", "replayed", "shed", "gateway"];

/// OK, a replay and a held request of any status, a failed operation, two remainders, each named status, and the gateway's own codes.
const CODE_SLOTS: usize = FIRST_NAMED + NAMED.len() + OwnCode::ALL.len();
/// The slot of the first named status.
const FIRST_NAMED: usize = 6;

impl Metrics {
    /// Registers everything; the memory's series only when it is on.
    pub(crate) fn new(memory: bool) -> Self {
        let mut registry = Registry::default();
        let r = &mut registry;
        let metrics = Self {
            requests: register(r, "gateway_requests", "Requests by upstream and outcome code"),
            tenants: register(r, "gateway_tenant_requests", "Requests by tenant and kind of result"),
            durations: histogram(
                r,
                "gateway_request_duration_seconds",
                "From a request's head to the end of its answer",
                || Histogram::new(DURATION),
            ),
            overheads: histogram(
                r,
                "gateway_overhead_seconds",
                "Time to an answer's head that was spent in the gateway: without reading the body, queueing and the upstream",
                || Histogram::new(OVERHEAD),
            ),
            attempts: register(r, "gateway_upstream_attempts", "Requests sent to the upstream"),
            in_flight: register(r, "gateway_pool_in_use", "Places taken in the upstream's pool"),
            queued: register(r, "gateway_pool_queued", "Requests waiting for a place in the upstream's pool"),
            limits: register(r, "gateway_pool_limit", "Places in the upstream's pool"),
            framing: register(
                r,
                "gateway_refused_framing",
                "Requests refused before they were read, by reason",
            ),
            connections: register(r, "gateway_connections", "Open client connections"),
            connections_refused: register(
                r,
                "gateway_connections_refused",
                "Connections closed at once: too many",
            ),
            buffer_memory: register(r, "gateway_body_memory_bytes", "Memory that holds request bodies"),
            spilled_bytes: register(
                r,
                "gateway_body_spilled_bytes",
                "Bytes of request bodies that went to disk",
            ),
            audit_written: register(r, "gateway_audit_lines", "Audit lines written"),
            audit_dropped: register(
                r,
                "gateway_audit_dropped",
                "Audit lines dropped: the queue was full or the sink failed",
            ),
            audit_errors: register(r, "gateway_audit_errors", "Failed writes of the audit"),
            memory: memory.then(|| MemoryMetrics::new(r)),
            loop_breaker: OnceLock::new(),
            registry: Lock::default(),
        };
        *metrics.registry.hold() = registry;
        metrics
    }

    /// All series in the OpenMetrics text format.
    #[must_use]
    pub fn text(&self) -> String {
        let mut out = String::new();
        // writing to a string does not fail
        let _ = text::encode(&mut out, &self.registry.hold());
        out
    }

    /// The handles of one upstream; `guarded` are the statuses that are replayed there, where the memory is on.
    pub(crate) fn upstream(
        &self,
        name: &str,
        limit: usize,
        guarded: Option<&[RefusalStatus]>,
    ) -> UpstreamMetrics {
        let name: Arc<str> = name.into();
        let label = UpstreamLabel { upstream: Arc::clone(&name) };
        self.limits.get_or_create_owned(&label).set(i64::try_from(limit).unwrap_or(i64::MAX));
        let by_status = |family| ByStatus::new(family, &name, guarded.unwrap_or_default());
        let memory = self.memory.as_ref().filter(|_| guarded.is_some());
        UpstreamMetrics {
            requests: self.requests.clone(),
            codes: std::array::from_fn(|_| OnceLock::new()),
            duration: self.durations.get_or_create_owned(&label),
            overhead: self.overheads.get_or_create_owned(&label),
            attempts: self.attempts.get_or_create_owned(&label),
            in_flight: self.in_flight.get_or_create_owned(&label),
            queued: self.queued.get_or_create_owned(&label),
            replays: memory.map(|m| by_status(&m.refusals)),
            would_replay: memory.map(|m| by_status(&m.would_replay)),
            guard: memory.map(|m| m.guard.get_or_create_owned(&label)),
            name,
        }
    }

    /// The series of a loop breaker that is on.
    pub(crate) fn loop_breaker(&self, upstream: &str) -> LoopBreakerMetrics {
        let register = || LoopBreakerFamilies::register(&mut self.registry.hold());
        self.loop_breaker.get_or_init(register).of(upstream)
    }

    pub(crate) fn tenant(&self, id: &str) -> TenantMetrics {
        let tenant: Arc<str> = id.into();
        TenantMetrics(RESULTS.map(|result| {
            self.tenants.get_or_create_owned(&TenantResult { tenant: Arc::clone(&tenant), result })
        }))
    }

    pub(crate) fn refused_framing(&self, reason: &'static str) {
        self.framing.get_or_create_owned(&Reason { reason }).inc();
    }
}

impl MemoryMetrics {
    fn new(r: &mut Registry) -> Self {
        let metrics = Self {
            refusals: register(r, "gateway_negative_cache_refusals", "Refusals replayed from the memory"),
            would_replay: register(
                r,
                "gateway_negative_cache_would_replay",
                "Refusals that observe mode would have replayed",
            ),
            not_recorded: register(
                r,
                "gateway_negative_cache_not_recorded",
                "Refusals with an allowed status that were not remembered",
            ),
            store_errors: register(r, "gateway_negative_cache_store_errors", "Failed store operations"),
            doubts: register(
                r,
                "gateway_negative_cache_doubtful",
                "Remembered refusals that an operator should look at",
            ),
            verify_failures: register(
                r,
                "gateway_negative_cache_verify_failures",
                "Entries that failed verification on read",
            ),
            waits: register(
                r,
                "gateway_negative_cache_waits",
                "Requests that waited for another attempt's verdict",
            ),
            guard: register(r, "gateway_negative_cache_guard", "1 while the mass-refusal guard is on"),
            recorded: register(r, "gateway_negative_cache_recorded", "Refusals remembered"),
            suspects: register(
                r,
                "gateway_negative_cache_suspects",
                "Entries that the mass-refusal guard marked suspect",
            ),
            unclassified_dropped: register(
                r,
                "gateway_negative_cache_unclassified_dropped",
                "Rows of the list of unclassified refusals that made room for others",
            ),
            entries: register(r, "gateway_negative_cache_entries", "Entries in the store"),
            evictions: register(
                r,
                "gateway_negative_cache_evictions",
                "Entries evicted by the bound on their number",
            ),
            logged: Lock::default(),
        };
        // all there from the start: an alert on an increase does not see a series that is born with its first fault
        for reason in NotRecorded::ALL {
            metrics.not_recorded.get_or_create_owned(&Reason { reason: reason.label() });
        }
        for op in ["recall", "record", "accept", "forget", "suspect"] {
            metrics.store_errors.get_or_create_owned(&Op { op });
        }
        for result in ["verdict", "released", "given_up", "timed_out"] {
            metrics.waits.get_or_create_owned(&ResultLabel { result });
        }
        for mismatch in Mismatch::ALL {
            metrics.verify_failures.get_or_create_owned(&Reason { reason: mismatch.label() });
        }
        for doubt in [Doubt::Html, Doubt::Empty] {
            metrics.doubts.get_or_create_owned(&Reason { reason: doubt.label() });
        }
        metrics
    }

    pub(crate) fn not_recorded(&self, reason: NotRecorded) {
        self.not_recorded.get_or_create_owned(&Reason { reason: reason.label() }).inc();
    }

    pub(crate) fn store_error(&self, op: &'static str) {
        self.store_errors.get_or_create_owned(&Op { op }).inc();
    }

    /// Whether a store failure may be logged now: once in ten seconds.
    pub(crate) fn may_log(&self) -> bool {
        let mut logged = self.logged.hold();
        let now = Instant::now();
        let due = logged.is_none_or(|at| now.duration_since(at) >= Duration::from_secs(10));
        if due {
            *logged = Some(now);
        }
        due
    }

    pub(crate) fn doubt(&self, doubt: Doubt) {
        self.doubts.get_or_create_owned(&Reason { reason: doubt.label() }).inc();
    }

    pub(crate) fn verify_failure(&self, reason: &'static str) {
        self.verify_failures.get_or_create_owned(&Reason { reason }).inc();
    }

    pub(crate) fn wait(&self, result: &'static str) {
        self.waits.get_or_create_owned(&ResultLabel { result }).inc();
    }

    /// Takes over the store's own counts; called when the series are read.
    /// `None` leaves the last count of entries standing.
    pub(crate) fn set_store(&self, entries: Option<u64>, evictions: u64) {
        if let Some(entries) = entries {
            self.entries.set(i64::try_from(entries).unwrap_or(i64::MAX));
        }
        // two readers at once must not count the same evictions twice
        let _one = self.logged.hold();
        let behind = evictions.saturating_sub(self.evictions.get());
        self.evictions.inc_by(behind);
    }
}

impl UpstreamMetrics {
    pub(crate) fn request(&self, outcome: Outcome) {
        self.codes[slot(outcome)]
            .get_or_init(|| {
                let label = UpstreamCode { upstream: Arc::clone(&self.name), code: label(outcome).into() };
                self.requests.get_or_create_owned(&label)
            })
            .inc();
    }

    pub(crate) fn replayed(&self, status: RefusalStatus) {
        self.replays.iter().for_each(|replays| replays.count(status));
    }

    pub(crate) fn would_replay(&self, status: RefusalStatus) {
        self.would_replay.iter().for_each(|replays| replays.count(status));
    }

    pub(crate) fn set_load(&self, (in_flight, queued): (usize, usize)) {
        self.in_flight.set(i64::try_from(in_flight).unwrap_or(i64::MAX));
        self.queued.set(i64::try_from(queued).unwrap_or(i64::MAX));
    }

    pub(crate) fn set_guard(&self, on: bool) {
        if let Some(gauge) = &self.guard {
            gauge.set(i64::from(on));
        }
    }
}

impl TenantMetrics {
    pub(crate) fn request(&self, outcome: Outcome) {
        let result = match outcome {
            Outcome::Ok => 0,
            Outcome::FailedOperation => 1,
            Outcome::Upstream(status) if status.is_client_error() => 1,
            Outcome::Upstream(_) => 2,
            Outcome::Replayed(_) | Outcome::Held(_) => 3,
            Outcome::Own(OwnCode::PoolFull | OwnCode::QueueTimeout | OwnCode::JobsFull) => 4,
            Outcome::Own(
                OwnCode::UpstreamUnreachable
                | OwnCode::UpstreamClosed
                | OwnCode::UpstreamMalformed
                | OwnCode::UpstreamTimeout
                | OwnCode::ResultTooLarge,
            ) => 2,
            Outcome::Own(_) => 5,
        };
        self.0[result].inc();
    }
}

/// The `code` label of an outcome: bounded, whatever an upstream answers.
fn label(outcome: Outcome) -> String {
    match outcome {
        Outcome::Upstream(status) if !NAMED.contains(&status.as_u16()) => {
            if status.is_client_error() {
                "HTTP_4xx".into()
            } else {
                "HTTP_5xx".into()
            }
        }
        Outcome::Replayed(_) => "REFUSED".into(),
        Outcome::Held(_) => "HELD".into(),
        other => other.to_string(),
    }
}

fn slot(outcome: Outcome) -> usize {
    match outcome {
        Outcome::Ok => 0,
        Outcome::Replayed(_) => 1,
        Outcome::Held(_) => 2,
        Outcome::Upstream(status) => match NAMED.iter().position(|n| *n == status.as_u16()) {
            Some(i) => FIRST_NAMED + i,
            None if status.is_client_error() => 3,
            None => 4,
        },
        Outcome::FailedOperation => 5,
        Outcome::Own(code) => FIRST_NAMED + NAMED.len() + code as usize,
    }
}

fn register<M>(registry: &mut Registry, name: &str, help: &str) -> M
where
    M: prometheus_client::registry::Metric + Default + Clone,
{
    let metric = M::default();
    registry.register(name, help, metric.clone());
    metric
}

fn histogram(
    registry: &mut Registry,
    name: &str,
    help: &str,
    make: fn() -> Histogram,
) -> Family<UpstreamLabel, Histogram, fn() -> Histogram> {
    let family = Family::new_with_constructor(make);
    registry.register(name, help, family.clone());
    family
}

#[cfg(test)]
mod tests {
    use http::StatusCode;

    use super::*;

    #[test]
    fn no_upstream_can_make_series_at_will() {
        let metrics = Metrics::new(true);
        let upstream = metrics.upstream("ocr", 8, Some(&[RefusalStatus::failed_operation()]));
        let before = metrics.text().lines().count();
        for status in 400..=999 {
            upstream.request(Outcome::of_upstream(StatusCode::from_u16(status).unwrap_or_default()));
        }
        for code in OwnCode::ALL {
            upstream.request(Outcome::Own(*code));
        }
        assert!(metrics.text().lines().count() - before < OwnCode::ALL.len() + 30);
    }

    #[test]
    fn every_outcome_has_a_slot_of_its_own() {
        let mut slots: Vec<_> = OwnCode::ALL.iter().map(|c| slot(Outcome::Own(*c))).collect();
        slots.push(slot(Outcome::FailedOperation));
        slots.extend(
            NAMED.iter().map(|n| slot(Outcome::of_upstream(StatusCode::from_u16(*n).unwrap_or_default()))),
        );
        slots.sort_unstable();
        slots.dedup();
        assert_eq!(slots.len(), OwnCode::ALL.len() + NAMED.len() + 1);
        assert!(slots.iter().all(|s| *s < CODE_SLOTS));
    }

    #[test]
    fn the_loop_breaker_has_no_series_before_one_is_on_and_few_then() {
        let metrics = Metrics::new(true);
        metrics.upstream("ocr", 8, Some(&[]));
        assert!(!metrics.text().contains("loop_breaker"));
        let one = metrics.loop_breaker("ocr");
        for status in (429..=429).chain(500..=599) {
            one.held(status);
        }
        metrics.loop_breaker("other").set_fingerprints(2);
        let text = metrics.text();
        for (labels, value) in [
            ("held_total{upstream=\"ocr\",status=\"429\"}", 1),
            ("held_total{upstream=\"ocr\",status=\"500\"}", 1),
            ("held_total{upstream=\"ocr\",status=\"5xx\"}", 98),
            ("fingerprints{upstream=\"ocr\"}", 0),
            ("fingerprints{upstream=\"other\"}", 2),
        ] {
            assert!(text.contains(&format!("gateway_loop_breaker_{labels} {value}\n")), "{labels}: {text}");
        }
        assert_eq!(text.matches("\ngateway_loop_breaker_").count(), 10, "{text}");
    }

    #[test]
    fn the_memory_has_no_series_while_it_is_off() {
        assert!(!Metrics::new(false).text().contains("negative_cache"));
        let on = Metrics::new(true).text();
        assert!(on.contains("gateway_negative_cache_recorded_total 0"), "{on}");
        assert!(on.contains("gateway_negative_cache_entries 0"));
        assert!(on.contains("gateway_negative_cache_not_recorded_total{reason=\"retry_after\"} 0"));
    }
}
