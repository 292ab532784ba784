//! What there is in the file, counted. It is not written there: it is counted anew when the file is opened.

use std::collections::BTreeMap;

use nevertwice_domain::job::JobStatus;
use nevertwice_domain::tenant::{TenantId, UpstreamName};

/// How many there are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// Operations at upstreams.
    pub(super) operations: u64,
    /// Operations of the gateway's own making.
    pub(super) minted: u64,
    /// Of each upstream, the jobs that wait and those that run.
    pub(super) jobs: BTreeMap<UpstreamName, (u64, u64)>,
    /// Bytes of inputs and results.
    pub(super) bytes: u64,
}

impl Counts {
    /// Counts a job, by `1` in and by `-1` out.
    pub(super) fn add(&mut self, upstream: &UpstreamName, status: JobStatus, by: i64) {
        let counts = self.jobs.entry(upstream.clone()).or_default();
        match status {
            JobStatus::Queued => counts.0 = counts.0.saturating_add_signed(by),
            JobStatus::Running => counts.1 = counts.1.saturating_add_signed(by),
            _ => {}
        }
        if counts == &(0, 0) {
            self.jobs.remove(upstream);
        }
    }

    /// Operations of one kind.
    pub(super) fn of_kind(&mut self, minted: bool) -> &mut u64 {
        if minted { &mut self.minted } else { &mut self.operations }
    }

    pub(super) fn queued(&self, upstream: &UpstreamName) -> u64 {
        self.jobs.get(upstream).map_or(0, |(queued, _)| *queued)
    }
}

/// What a tenant has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Share {
    /// Bytes of its inputs and results.
    pub(super) bytes: u64,
    /// Of each upstream, its jobs that wait.
    queued: BTreeMap<UpstreamName, u64>,
}

impl Share {
    pub(super) fn queued(&self, upstream: &UpstreamName) -> u64 {
        self.queued.get(upstream).copied().unwrap_or_default()
    }
}

/// What each tenant has. There may be many, so a transaction does not work on a copy of all; what it has changed is as it was
/// again where it comes to nothing.
#[derive(Debug, Default)]
pub(super) struct Shares {
    of: BTreeMap<TenantId, Share>,
    /// As they were before the transaction, the latest change last.
    before: Vec<(TenantId, Share)>,
}

impl Shares {
    pub(super) fn of(&self, tenant: &TenantId) -> Share {
        self.of.get(tenant).cloned().unwrap_or_default()
    }

    pub(super) fn add_bytes(&mut self, tenant: &TenantId, by: i64) {
        let mut share = self.of(tenant);
        share.bytes = share.bytes.saturating_add_signed(by);
        self.change(tenant, share);
    }

    /// Counts a job that waits, by `1` in and by `-1` out.
    pub(super) fn add_queued(&mut self, tenant: &TenantId, upstream: &UpstreamName, by: i64) {
        let mut share = self.of(tenant);
        match share.queued(upstream).saturating_add_signed(by) {
            0 => share.queued.remove(upstream),
            queued => share.queued.insert(upstream.clone(), queued),
        };
        self.change(tenant, share);
    }

    fn change(&mut self, tenant: &TenantId, share: Share) {
        self.before.push((tenant.clone(), self.of(tenant)));
        self.set(tenant.clone(), share);
    }

    /// One that has nothing takes no room.
    fn set(&mut self, tenant: TenantId, share: Share) {
        if share == Share::default() {
            self.of.remove(&tenant);
        } else {
            self.of.insert(tenant, share);
        }
    }

    /// The changes stand.
    pub(super) fn keep(&mut self) {
        self.before.clear();
    }

    /// There were none.
    pub(super) fn undo(&mut self) {
        while let Some((tenant, share)) = self.before.pop() {
            self.set(tenant, share);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::work::suite::samples::{tenant, upstream};

    #[test]
    fn what_came_to_nothing_did_not_happen() {
        let mut shares = Shares::default();
        shares.add_bytes(&tenant("a"), 7);
        shares.add_queued(&tenant("a"), &upstream("ocr"), 1);
        shares.keep();
        let before = shares.of.clone();
        shares.add_bytes(&tenant("a"), -7);
        shares.add_queued(&tenant("a"), &upstream("ocr"), -1);
        assert!(shares.of.is_empty(), "one that has nothing takes no room");
        shares.add_bytes(&tenant("a"), 1);
        shares.add_queued(&tenant("b"), &upstream("ocr"), 1);
        shares.undo();
        assert_eq!(shares.of, before);
        assert_eq!((shares.of(&tenant("a")).bytes, shares.of(&tenant("b"))), (7, Share::default()));
        shares.add_bytes(&tenant("a"), -8);
        assert_eq!(shares.of(&tenant("a")).bytes, 0, "never below zero");
    }
}
