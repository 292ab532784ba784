//! The names of keys. All of a deployment share one hash tag, so they live in one slot of a cluster and a script may touch
//! all of them. No key is longer than the prefix and 72 bytes more, and none says anything of a document but its fingerprint.

use nevertwice_domain::fingerprint::Fingerprint;
use nevertwice_domain::job::{IdempotencyKey, JobId};
use nevertwice_domain::operation::OperationId;
use nevertwice_domain::tenant::{TenantId, UpstreamName};

/// The names under one prefix.
#[derive(Clone, Debug)]
pub(super) struct Keys {
    tag: String,
    db: i64,
}

macro_rules! names {
    ($($(#[$doc:meta])* $name:ident = $word:literal;)*) => {$(
        $(#[$doc])*
        pub(super) fn $name(&self) -> String {
            format!(concat!("{}:", $word), self.tag)
        }
    )*};
}

macro_rules! names_by_key {
    ($($(#[$doc:meta])* $name:ident = $word:literal;)*) => {$(
        $(#[$doc])*
        pub(super) fn $name(&self, key: &Fingerprint) -> String {
            format!(concat!("{}:", $word, ":{}"), self.tag, key)
        }
    )*};
}

macro_rules! names_of {
    ($($(#[$doc:meta])* $name:ident($of:ty) = $word:literal;)*) => {$(
        $(#[$doc])*
        pub(super) fn $name(&self, of: &$of) -> String {
            format!(concat!("{}:", $word, ":{}"), self.tag, of)
        }
    )*};
}

impl Keys {
    pub(super) fn new(prefix: &str, db: i64) -> Self {
        Self { tag: format!("{{{prefix}}}"), db }
    }

    /// The channel of what happens. Unlike keys, channels are of all databases of a server: each database has its own.
    pub(super) fn events(&self) -> String {
        match self.db {
            0 => format!("{}:events", self.tag),
            db => format!("{}:events:{db}", self.tag),
        }
    }

    names_by_key! {
        /// A hash: head `m`, body `b`, expiry `x`, schema `c`, number `q`, suspect `s`, and the tally: `n`, `f`, `l`, `t`.
        entry = "e";
        /// The refusals in a row, until they make a verdict.
        strike = "s";
        /// Who makes the attempt.
        lease = "l";
        /// Whether another process waits for how that attempt ends.
        waited = "w";
        /// The id of a job.
        idempotency_of = "jk";
    }

    names! {
        /// The number of the latest forget.
        epoch = "epoch";
        /// Forgets that name no single key, by their number.
        wide = "wide";
        /// Forgets of single keys, by their number.
        keyed = "keyed";
        /// The number of the latest forget that is remembered no more.
        floor = "floor";
        /// Fingerprints in the order of recording.
        index = "index";
        /// Fingerprints by when their entries expire.
        expiry = "expiry";
        /// The number of the latest record.
        seq = "seq";
        /// Fingerprints of strikes in the order of their latest change.
        strikes = "strikes";
        /// The number of the latest change of strikes.
        turn = "turn";
        /// Upstreams that accepted something.
        accepted = "accepted";
        /// Upstreams whose mass-refusal guard is on, and since when nothing is used.
        tripped = "tripped";
        /// Upstreams whose mass-refusal guard was on and is off: since when nothing was used, and until when.
        recovered = "recovered";
        /// The layout of all this.
        schema = "schema";
        /// Operations at upstreams in the order in which they came.
        operations = "ops";
        /// Operations of the gateway's own making, likewise.
        minted = "ops:minted";
        /// Operations with an outcome that is not known, by when they are looked at next.
        looks = "ops:looks";
        /// The number of the latest operation.
        op_seq = "ops:seq";
        /// Jobs by their ids.
        jobs = "jobs";
        /// Jobs by when they are removed: id, tenant and upstream.
        ends = "jobs:ends";
        /// Tenants with ends that are to be told, by when the first of them is.
        untold = "jobs:untold";
        /// Upstreams that have jobs, or had.
        job_upstreams = "jobs:upstreams";
        /// What each job counts for, by when it is removed: id, tenant, bytes of its input and result, and its upstream if it waits.
        job_records = "jobs:records";
        /// A hash, the sums of that: bytes, of all under an empty name and of a tenant under its name, and jobs that wait, under tenant
        /// and upstream.
        job_sums = "jobs:sums";
    }

    names_of! {
        /// A hash: value `v`, expiry `x`, looks `n`.
        operation(OperationId) = "op";
        /// A hash: value `v`, revision `r`, number of the latest commit `d`, token of the claim `t`, place in the stream `e`, whether it
        /// was given up `c`, when it is removed `b`, and if it was given up `g`, name of the result `o`, what it counts for `k`; of the end
        /// that is to be told how often it was handed out `w`, and the token of the latest time `u`.
        job(JobId) = "j";
        /// The body that a job sends, as a [body](super::work).
        job_input(JobId) = "ji";
        /// The body of a result by its name, likewise.
        job_result(str) = "jr";
        /// The ids of a tenant's jobs.
        tenant_jobs(TenantId) = "jt";
        /// A tenant's jobs with ends that are to be told, by when they are.
        tenant_untold(TenantId) = "ju";
        /// The stream of the jobs of an upstream that are not at their end.
        stream(UpstreamName) = "jq";
        /// Those of them that were handed out and wait again, by when their time comes.
        later(UpstreamName) = "jl";
    }

    /// The job that an idempotency key stands for.
    pub(super) fn idempotency(&self, key: &IdempotencyKey) -> String {
        self.idempotency_of(&Fingerprint::from_bytes(*key.as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_keys_share_a_slot_and_none_is_long() {
        let keys = Keys::new("nevertwice", 0);
        let key = Fingerprint::from_bytes([0xab; 32]);
        for name in [keys.entry(&key), keys.strike(&key), keys.lease(&key), keys.epoch(), keys.events()] {
            assert!(name.starts_with("{nevertwice}:") && name.len() <= 128, "{name}");
        }
        let longest = "x".repeat(64);
        let of = |made: Option<String>| made.unwrap_or_default();
        for name in [
            keys.idempotency_of(&key),
            of(TenantId::new(&longest).ok().map(|tenant| keys.tenant_jobs(&tenant))),
            of(TenantId::new(&longest).ok().map(|tenant| keys.tenant_untold(&tenant))),
            of(UpstreamName::new(&longest).ok().map(|upstream| keys.stream(&upstream))),
            keys.job_result("0123456789abcdef-18446744073709551615"),
            keys.job_upstreams(),
        ] {
            assert!(name.starts_with("{nevertwice}:j") && name.len() <= 12 + 72, "{name}");
        }
        assert_eq!(keys.entry(&key), format!("{{nevertwice}}:e:{}", "ab".repeat(32)));
    }
}
