//! The sequence of forgets of one process, and which attempts each of them fences off.
//!
//! Bounded: only the latest forgets are known by what they selected. An attempt older than that is fenced whatever it is
//! about, which costs one more refusal from the upstream and never a forget that did not hold. Forgets of single keys, which
//! come from the traffic too, are kept apart and cannot crowd out those of operators.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;

use nevertwice_domain::clock::Millis;
use nevertwice_domain::entry::{Entry, Selector};
use nevertwice_domain::fingerprint::Fingerprint;

use crate::Fence;

/// How many forgets that name no key are remembered by what they selected.
const LOG_LENGTH: usize = 1024;

/// How many forgets that name a key are remembered by what they selected.
const KEYS: usize = 8192;

/// The forgets so far, numbered from 1.
#[derive(Debug, Default)]
pub(crate) struct FenceLog {
    epoch: u64,
    /// The number of the latest forget that is remembered no more.
    floor: u64,
    /// The forgets that are not durable yet.
    pending: Vec<(u64, Selector)>,
    /// Those that name no key.
    wide: VecDeque<(u64, Selector)>,
    /// Those that name a key, without those that a later one makes superfluous.
    keyed: BTreeMap<(Fingerprint, u64), Selector>,
    /// The key of each of them, by its number.
    key_order: BTreeMap<u64, Fingerprint>,
}

impl FenceLog {
    /// The position now: what an attempt that begins now takes with it.
    pub(crate) fn now(&self) -> Fence {
        Fence(self.epoch)
    }

    /// Notes a forget, which can be taken back until it is settled.
    pub(crate) fn push(&mut self, which: Selector) {
        self.epoch += 1;
        self.pending.push((self.epoch, which));
    }

    /// Takes back the forgets after `to` that are not settled: they could not be made durable.
    pub(crate) fn roll_back(&mut self, to: Fence) {
        self.pending.retain(|(epoch, _)| *epoch <= to.0);
        self.epoch = to.0;
    }

    /// The forgets so far are durable.
    pub(crate) fn settle(&mut self) {
        for (epoch, which) in std::mem::take(&mut self.pending) {
            let dropped = match which.fingerprint {
                Some(key) => self.settle_keyed(epoch, key, which),
                None => {
                    self.wide.push_back((epoch, which));
                    if self.wide.len() > LOG_LENGTH {
                        self.wide.pop_front().map(|(old, _)| old)
                    } else {
                        None
                    }
                }
            };
            self.floor = self.floor.max(dropped.unwrap_or(0));
        }
    }

    /// Returns the number of the forget that had to go for it.
    fn settle_keyed(&mut self, epoch: u64, key: Fingerprint, which: Selector) -> Option<u64> {
        let whole_key = which == Selector::key(key);
        let superfluous: Vec<u64> = self
            .keyed
            .range((key, 0)..=(key, u64::MAX))
            .filter(|(_, earlier)| whole_key || **earlier == which)
            .map(|((_, number), _)| *number)
            .collect();
        for number in superfluous {
            self.keyed.remove(&(key, number));
            self.key_order.remove(&number);
        }
        self.keyed.insert((key, epoch), which);
        self.key_order.insert(epoch, key);
        if self.key_order.len() <= KEYS {
            return None;
        }
        let (oldest, of_key) = self.key_order.pop_first()?;
        self.keyed.remove(&(of_key, oldest));
        Some(oldest)
    }

    /// Whether an attempt that began at `fence` may no longer record `entry`, which would have been first refused at
    /// `first_refused_at`.
    pub(crate) fn bars(&self, fence: Fence, entry: &Entry, first_refused_at: Millis) -> bool {
        let key = entry.fingerprint;
        let selects = |which: &Selector| {
            which.matches(&key, &entry.document.digest, &entry.upstream, entry.status.get(), first_refused_at)
        };
        let of_key = (Bound::Excluded((key, fence.0)), Bound::Included((key, u64::MAX)));
        fence.0 < self.floor
            || self.pending.iter().any(|(epoch, which)| *epoch > fence.0 && selects(which))
            || self
                .wide
                .iter()
                .rev()
                .take_while(|(epoch, _)| *epoch > fence.0)
                .any(|(_, which)| selects(which))
            || fence.0 < self.epoch && self.keyed.range(of_key).any(|(_, which)| selects(which))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::samples;

    fn log_of(forgets: impl IntoIterator<Item = Selector>) -> FenceLog {
        let mut log = FenceLog::default();
        for which in forgets {
            forget(&mut log, which);
        }
        log
    }

    fn forget(log: &mut FenceLog, which: Selector) {
        log.push(which);
        log.settle();
    }

    fn bars(log: &FenceLog, fence: u64) -> bool {
        log.bars(Fence(fence), &samples::entry(1), Millis(0))
    }

    fn others(n: usize) -> impl Iterator<Item = Selector> {
        (0..n as u64).map(|i| Selector::key(samples::fingerprint(100 + i)))
    }

    #[test]
    fn a_fence_older_than_the_log_bars_everything() {
        let unrelated = Selector { document: Some(samples::document(9)), ..Selector::default() };
        let mut log = log_of(vec![unrelated.clone(); LOG_LENGTH]);
        assert!(!bars(&log, 0));
        forget(&mut log, unrelated);
        assert!(bars(&log, 0));
        assert!(!bars(&log, 1));
    }

    #[test]
    fn forgets_of_keys_do_not_crowd_out_the_others() {
        let wide = Selector { upstream: Some(samples::upstream("ocr")), ..Selector::default() };
        let log = log_of(std::iter::once(wide).chain(others(KEYS)));
        assert!(bars(&log, 0));
        assert!(!bars(&log, 1), "it began after the one that matches");
    }

    #[test]
    fn a_fence_older_than_the_keys_that_are_known_bars_everything() {
        let mut log = log_of(others(KEYS));
        assert!(!bars(&log, 0));
        // The same key again takes no more room.
        others(KEYS).for_each(|which| forget(&mut log, which));
        assert!(!bars(&log, 0));
        forget(&mut log, Selector::key(samples::fingerprint(9)));
        assert!(bars(&log, 0));
        assert!(bars(&log, KEYS as u64));
        assert!(!bars(&log, KEYS as u64 + 1));
        assert_eq!((log.keyed.len(), log.key_order.len()), (KEYS, KEYS));
    }

    #[test]
    fn only_what_a_later_forget_covers_is_superfluous() {
        let key = samples::fingerprint(1);
        let of_status = |status| Selector { status: Some(samples::status(status)), ..Selector::key(key) };
        let mut log = log_of([of_status(400), of_status(422), of_status(422)]);
        assert!(bars(&log, 0), "the first one matches");
        assert!(!bars(&log, 1), "the others do not");
        assert_eq!(log.keyed.len(), 2);
        forget(&mut log, Selector::key(key));
        assert!(bars(&log, 3));
        assert!(!bars(&log, 4));
        assert_eq!(log.keyed.len(), 1);
    }

    #[test]
    fn a_forget_that_failed_fences_nobody() {
        let key = Selector::key(samples::fingerprint(1));
        let mut log = log_of([key.clone()]);
        let before = log.now();
        log.push(Selector::default());
        log.push(key);
        assert!(bars(&log, 1), "it counts for what comes after it in the same commit");
        log.roll_back(before);
        assert!(!bars(&log, 1));
        assert!(bars(&log, 0), "the one before it still counts");
        assert_eq!(log.now(), before);
    }
}
