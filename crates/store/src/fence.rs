//! The sequence of forgets of one process, and which attempts each of them fences off.
//!
//! Bounded: only the latest forgets are known by what they selected. An attempt older than that is fenced whatever it is
//! about, which costs one more refusal from the upstream and never a forget that did not hold.

use std::collections::VecDeque;

use nevertwice_domain::clock::Millis;
use nevertwice_domain::entry::{Entry, Selector};

use crate::Fence;

/// How many forgets are remembered by what they selected.
pub(crate) const LOG_LENGTH: usize = 1024;

/// The forgets so far, numbered from 1.
#[derive(Debug, Default)]
pub(crate) struct FenceLog {
    epoch: u64,
    /// The number of the latest forget that is not in the log any more.
    floor: u64,
    recent: VecDeque<(u64, Selector)>,
}

impl FenceLog {
    /// The position now: what an attempt that begins now takes with it.
    pub(crate) fn now(&self) -> Fence {
        Fence(self.epoch)
    }

    /// Notes a forget.
    pub(crate) fn push(&mut self, which: Selector) {
        self.epoch += 1;
        self.recent.push_back((self.epoch, which));
        if self.recent.len() > LOG_LENGTH
            && let Some((dropped, _)) = self.recent.pop_front()
        {
            self.floor = dropped;
        }
    }

    /// Takes back the forgets after `to`: they could not be made durable.
    pub(crate) fn roll_back(&mut self, to: Fence) {
        while self.recent.back().is_some_and(|(epoch, _)| *epoch > to.0) {
            self.recent.pop_back();
        }
        self.epoch = to.0;
        self.floor = self.floor.min(to.0);
    }

    /// Whether an attempt that began at `fence` may no longer record `entry`, which would have been first refused at
    /// `first_refused_at`.
    pub(crate) fn bars(&self, fence: Fence, entry: &Entry, first_refused_at: Millis) -> bool {
        fence.0 < self.floor
            || self.recent.iter().rev().take_while(|(epoch, _)| *epoch > fence.0).any(|(_, which)| {
                which.matches(
                    &entry.fingerprint,
                    &entry.document.digest,
                    &entry.upstream,
                    entry.status.get(),
                    first_refused_at,
                )
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::samples;

    #[test]
    fn a_fence_older_than_the_log_bars_everything() {
        let mut log = FenceLog::default();
        let before = log.now();
        let entry = samples::entry(1);
        let unrelated = || Selector::key(samples::fingerprint(9));
        for _ in 0..LOG_LENGTH {
            log.push(unrelated());
        }
        assert!(!log.bars(before, &entry, Millis(0)));
        log.push(unrelated());
        assert!(log.bars(before, &entry, Millis(0)));
        assert!(!log.bars(Fence(1), &entry, Millis(0)));
    }

    #[test]
    fn a_forget_that_failed_fences_nobody() {
        let mut log = FenceLog::default();
        let before = log.now();
        log.push(Selector::default());
        log.roll_back(before);
        assert!(!log.bars(before, &samples::entry(1), Millis(0)));
        assert_eq!(log.now(), before);
    }
}
