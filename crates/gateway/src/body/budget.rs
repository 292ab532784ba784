//! The memory that request bodies may take together, and answers that are read beyond what is kept of them.
//!
//! A body stays in memory while it is smaller than an eighth of what is free; beyond that it goes to disk. So a few big
//! bodies on an idle gateway are never written to disk, many at once share what there is, and the total is never exceeded.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;

use crate::metrics::Metrics;

/// The part of the free memory that one body may hold.
const SHARE: u64 = 8;

/// The bound, and what is left of it.
pub(crate) struct Budget {
    free: AtomicU64,
    metrics: Arc<Metrics>,
}

/// Memory taken by one body. Given back when dropped.
pub(crate) struct Reservation {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Budget {
    pub(crate) fn new(bytes: u64, metrics: Arc<Metrics>) -> Arc<Self> {
        Arc::new(Self { free: AtomicU64::new(bytes), metrics })
    }

    /// Nothing yet.
    pub(crate) fn reserve(self: &Arc<Self>) -> Reservation {
        Reservation { budget: Arc::clone(self), bytes: 0 }
    }
}

impl Reservation {
    /// Takes what is missing to `bytes` in all, on the same terms.
    pub(crate) fn grow_to(&mut self, bytes: u64) -> bool {
        bytes <= self.bytes || self.grow(bytes - self.bytes)
    }

    /// The same bytes, which give this memory back when nobody holds any of them.
    pub(crate) fn holding(self, bytes: Bytes) -> Bytes {
        Bytes::from_owner(Held { bytes, _memory: self })
    }

    /// Takes `more` bytes, unless that would be more than one body's share or than there is.
    pub(crate) fn grow(&mut self, more: u64) -> bool {
        let held = self.bytes;
        let taken = self.budget.free.fetch_update(Ordering::AcqRel, Ordering::Acquire, |free| {
            if held + more <= free / SHARE { Some(free - more) } else { None }
        });
        if taken.is_err() {
            return false;
        }
        self.bytes += more;
        self.budget.metrics.buffer_memory.inc_by(i64::try_from(more).unwrap_or(i64::MAX));
        true
    }
}

/// Bytes, and the memory that they were counted in.
struct Held {
    bytes: Bytes,
    _memory: Reservation,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.budget.free.fetch_add(self.bytes, Ordering::AcqRel);
        self.budget.metrics.buffer_memory.dec_by(i64::try_from(self.bytes).unwrap_or(i64::MAX));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_body_takes_an_eighth_of_what_is_free_and_all_is_given_back() {
        let budget = Budget::new(800, Arc::new(Metrics::new(false)));
        let mut one = budget.reserve();
        assert!(one.grow(60) && one.grow(30) && !one.grow(30));
        let mut two = budget.reserve();
        assert!(two.grow(80) && !two.grow(80));
        drop(one);
        assert!(!two.grow_to(101) && two.grow_to(80) && two.grow_to(90) && two.grow_to(1));
        let bytes = two.holding(Bytes::from_static(b"as long as anybody has some of it"));
        let some = bytes.slice(3..5);
        drop(bytes);
        assert_eq!(budget.free.load(Ordering::Acquire), 710);
        drop(some);
        assert_eq!(budget.free.load(Ordering::Acquire), 800);
    }

    #[test]
    fn the_total_is_never_exceeded() {
        let budget = Budget::new(1000, Arc::new(Metrics::new(false)));
        let mut all: Vec<_> = (0..100).map(|_| budget.reserve()).collect();
        let mut total = 0;
        for round in 0..1000 {
            if all[round % 100].grow(7) {
                total += 7;
            }
        }
        assert!(total <= 1000, "{total}");
    }
}
