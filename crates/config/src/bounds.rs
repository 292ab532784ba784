//! The bounds and defaults of all numbers, in one table. The JSON schema and `docs/config.md` take them from here.

use nevertwice_domain::guard::MassRefusalGuard;

use crate::problem::Findings;
use crate::raw::read::{At, Whole};

/// Between which values a number must lie, and what it is when it is not given.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bound {
    /// The key, with `[]` for the items of a list and `{}` for the values of a map.
    pub(crate) path: &'static str,
    pub(crate) min: u64,
    pub(crate) max: u64,
    /// `None`: not given means something of its own, which the key's description says.
    pub(crate) default: Option<u64>,
}

macro_rules! bounds {
    ($($name:ident $path:literal $min:expr, $max:expr, $default:expr;)*) => {
        $(pub(crate) const $name: Bound = Bound { path: $path, min: $min, max: $max, default: $default };)*
        /// The table.
        pub(crate) const ALL: &[Bound] = &[$($name),*];
    };
}

const MIB: u64 = 1024 * 1024;
const GIB: u64 = 1024 * MIB;
const TIB: u64 = MIB * MIB;
const HOUR_MS: u64 = 3_600_000;
const DAY_MS: u64 = 24 * HOUR_MS;
/// Thirty days, in seconds.
const MONTH_S: u64 = 30 * 86_400;
/// Ten years, in seconds.
const LONG_S: u64 = 315_360_000;
/// The guard remembers no more documents than these.
const GUARD_MAX: u64 = MassRefusalGuard::MAX_DOCUMENTS as u64;

bounds! {
    DRAIN_S "drain_s" 0, 3600, Some(30);
    BODY_MAX_BYTES "limits.body_max_bytes" 1, TIB, Some(512 * MIB);
    BUFFER_MEMORY_BYTES "limits.buffer_memory_bytes" 65_536, TIB, Some(256 * MIB);
    HEADER_MAX_BYTES "http.header_max_bytes" 1024, MIB, Some(65_536);
    HEADER_MAX_COUNT "http.header_max_count" 8, 10_000, Some(200);
    HEADER_TIMEOUT_MS "http.header_timeout_ms" 1, HOUR_MS, Some(10_000);
    BODY_IDLE_TIMEOUT_MS "http.body_idle_timeout_ms" 1, HOUR_MS, Some(30_000);
    BODY_MIN_RATE_BYTES_S "http.body_min_rate_bytes_s" 0, 1024 * MIB, Some(256);
    WRITE_STALL_TIMEOUT_MS "http.write_stall_timeout_ms" 1, HOUR_MS, Some(60_000);
    KEEP_ALIVE_TIMEOUT_MS "http.keep_alive_timeout_ms" 1, HOUR_MS, Some(75_000);
    MAX_CONNECTIONS "http.max_connections" 1, 1_000_000, Some(10_000);
    READ_MS "store.redis.read_ms" 1, 10_000, Some(25);
    WRITE_MS "store.redis.write_ms" 1, 10_000, Some(50);
    INPUT_MAX_BYTES "jobs.input_max_bytes" 1, 256 * MIB, Some(32 * MIB);
    RESULT_MAX_BYTES "jobs.result_max_bytes" 1, 256 * MIB, Some(32 * MIB);
    MAX_QUEUED "jobs.max_queued" 1, 10_000_000, Some(100_000);
    MAX_BYTES "jobs.max_bytes" 1, 64 * TIB, Some(8 * GIB);
    RETENTION_S "jobs.retention_s" 1, MONTH_S, Some(86_400);
    MAX_ATTEMPTS "jobs.max_attempts" 1, 100, Some(5);
    RETRY_FIRST_MS "jobs.retry_first_ms" 1, HOUR_MS, Some(1000);
    RETRY_MAX_MS "jobs.retry_max_ms" 1, DAY_MS, Some(300_000);
    ROTATE_BYTES "audit.rotate_bytes" 1024, TIB, None;
    KEEP "audit.keep" 0, 1000, Some(5);
    TTL_S "negative_cache.ttl_s" 1, LONG_S, Some(86_400);
    MAX_ENTRIES "negative_cache.max_entries" 1, 100_000_000, Some(10_000);
    MAX_BODY_BYTES "negative_cache.max_body_bytes" 1, 16 * MIB, Some(65_536);
    MAX_IN_FLIGHT "upstreams[].pool.max_in_flight" 1, 100_000, Some(64);
    MAX_QUEUE "upstreams[].pool.max_queue" 0, 1_000_000, Some(1024);
    QUEUE_TIMEOUT_MS "upstreams[].pool.queue_timeout_ms" 0, HOUR_MS, Some(5000);
    IDLE_CONNECTION_MS "upstreams[].pool.idle_connection_ms" 0, HOUR_MS, Some(4000);
    TIMEOUT_MS "upstreams[].timeout_ms" 1, DAY_MS, Some(60_000);
    IDLE_TIMEOUT_MS "upstreams[].idle_timeout_ms" 1, DAY_MS, Some(60_000);
    CONNECT_TIMEOUT_MS "upstreams[].connect_timeout_ms" 1, HOUR_MS, Some(5000);
    STREAM_MAX_MS "upstreams[].stream_max_ms" 1, 7 * DAY_MS, None;
    POLL_INTERVAL_MS "upstreams[].poll_interval_ms" 10, HOUR_MS, Some(1000);
    OPERATION_TIMEOUT_MS "upstreams[].operation_timeout_ms" 1, DAY_MS, Some(600_000);
    UPSTREAM_TTL_S "upstreams[].negative_cache.ttl_s" 1, LONG_S, None;
    STATUS_TTL_S "upstreams[].negative_cache.status_ttl_s{}" 1, LONG_S, None;
    SHORT_TTL_S "upstreams[].negative_cache.short_ttl_s" 1, LONG_S, Some(1800);
    FIRST_S "upstreams[].negative_cache.ttl_ladder.first_s" 1, LONG_S, Some(300);
    FACTOR "upstreams[].negative_cache.ttl_ladder.factor" 1, 1000, Some(4);
    CONFIRMATIONS "upstreams[].negative_cache.confirmations" 1, 1000, Some(1);
    SINGLE_FLIGHT_WAIT_MS "upstreams[].negative_cache.single_flight_wait_ms" 0, HOUR_MS, Some(10_000);
    JUDGE_WAIT_MS "upstreams[].negative_cache.judge_wait_ms" 1, HOUR_MS, Some(5000);
    DISTINCT "upstreams[].negative_cache.mass_refusal_guard.distinct" 1, GUARD_MAX, Some(20);
    WINDOW_S "upstreams[].negative_cache.mass_refusal_guard.window_s" 1, 86_400, Some(300);
    FAILURES "upstreams[].negative_cache.loop_breaker.failures" 2, 100, Some(5);
    FAILURES_WINDOW_S "upstreams[].negative_cache.loop_breaker.window_s" 1, 86_400, Some(600);
    HOLD_S "upstreams[].negative_cache.loop_breaker.hold_s" 1, 86_400, Some(1800);
}

impl Bound {
    /// The number, if one is given and within bounds; out of bounds is a problem.
    pub(crate) fn given(&self, number: Option<&At<Whole>>, found: &mut Findings) -> Option<u64> {
        let At { value: Whole(number), place } = number?;
        let fits = u64::try_from(*number).ok().filter(|n| (self.min..=self.max).contains(n));
        if fits.is_none() {
            let cause = format!("{number} is out of bounds");
            found.error(place, cause, format!("write a number from {} to {}", self.min, self.max));
        }
        fits
    }

    /// The number, or its default.
    pub(crate) fn take(&self, number: Option<&At<Whole>>, found: &mut Findings) -> u64 {
        self.given(number, found).or(self.default).unwrap_or(self.min)
    }
}
