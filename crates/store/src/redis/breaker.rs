//! Whether the store is asked at all. It opens when calls fail in a row or mostly, and while it is open nobody waits for the
//! store: the connection's own probe closes it.

use std::sync::atomic::{AtomicU32, Ordering};

/// Failures in a row that open it.
const IN_A_ROW: u32 = 5;
/// Failures among the latest calls that open it.
const OF_LATEST: u32 = 8;
/// How many calls are the latest.
const LATEST: u32 = 16;
const OPEN: u32 = 1 << 31;

/// The latest outcomes, the newest in the lowest bit (1 = it failed), and whether it is open.
#[derive(Debug, Default)]
pub(super) struct Breaker(AtomicU32);

impl Breaker {
    pub(super) fn is_open(&self) -> bool {
        self.0.load(Ordering::Acquire) & OPEN != 0
    }

    /// Takes note of a call. Returns whether this one opened it.
    pub(super) fn note(&self, failed: bool) -> bool {
        let step = |state: u32| {
            let latest = (((state & !OPEN) << 1) | u32::from(failed)) & ((1 << LATEST) - 1);
            let opens = failed && (latest.trailing_ones() >= IN_A_ROW || latest.count_ones() >= OF_LATEST);
            Some(latest | (state & OPEN) | if opens { OPEN } else { 0 })
        };
        let before = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, step).unwrap_or(0);
        before & OPEN == 0 && self.is_open()
    }

    /// The probe came back in time.
    pub(super) fn close(&self) {
        self.0.store(0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_opens_on_a_row_or_on_most_and_only_the_probe_closes_it() {
        let breaker = Breaker::default();
        for _ in 0..4 {
            assert!(!breaker.note(true));
        }
        assert!(!breaker.note(false) && !breaker.is_open());
        for _ in 0..3 {
            assert!(!breaker.note(true) && !breaker.note(false));
        }
        assert!(breaker.note(true), "the eighth of the latest sixteen");
        assert!(!breaker.note(true), "it is open already");
        breaker.note(false);
        assert!(breaker.is_open());
        breaker.close();
        assert!(!breaker.is_open());
        assert_eq!((0..5).filter(|_| breaker.note(true)).count(), 1);
    }
}
