//! The mass-refusal guard: a vendor's ten-minute bug must not become a day of refusals.
//!
//! Per upstream, over a sliding window: when many distinct documents were judged and nearly all of them refused, at an
//! upstream that used to accept, the refusals say something about the upstream and not about the documents.

use std::collections::VecDeque;
use std::collections::hash_map::{Entry, HashMap};

use crate::clock::Millis;

/// When the guard trips.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GuardPolicy {
    /// Whether it watches at all.
    pub enabled: bool,
    /// Distinct refused documents that it takes.
    pub distinct: u32,
    /// The window, in milliseconds.
    pub window_ms: u64,
    /// The share of refused among all distinct judged documents that must be exceeded, 0 to 1.
    pub share: f64,
}

impl Default for GuardPolicy {
    fn default() -> Self {
        Self { enabled: true, distinct: 20, window_ms: 300_000, share: 0.9 }
    }
}

/// What a judged document meant for the guard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuardStep {
    /// Nothing changed.
    Steady,
    /// The guard tripped now: entries recorded at `since` or later are suspect.
    Tripped {
        /// The beginning of the window.
        since: Millis,
    },
    /// The guard recovered now.
    Recovered,
}

/// What is counted as one document: the document digest of a refusal, so that one file under many names counts once; the
/// fingerprint of an acceptance, whose digest nobody works out.
pub type Counted = [u8; 32];

/// The guard of one upstream. Bounded: it remembers at most [`MassRefusalGuard::MAX_DOCUMENTS`] documents.
#[derive(Debug, Default)]
pub struct MassRefusalGuard {
    judged: HashMap<Counted, Judged>,
    order: VecDeque<(Millis, Counted)>,
    refused: u32,
    tripped_at: Option<Millis>,
}

#[derive(Clone, Copy, Debug)]
struct Judged {
    at: Millis,
    refused: bool,
}

impl MassRefusalGuard {
    /// The most documents that a window holds; older ones leave early when more are judged.
    pub const MAX_DOCUMENTS: usize = 10_000;

    /// When the guard tripped, if it is on.
    #[must_use]
    pub fn tripped_at(&self) -> Option<Millis> {
        self.tripped_at
    }

    /// Distinct documents in the window: refused, and judged in all.
    #[must_use]
    pub fn window(&self) -> (u32, usize) {
        (self.refused, self.judged.len())
    }

    /// The upstream refused this document with what would be a verdict.
    pub fn refused(
        &mut self,
        policy: &GuardPolicy,
        used_to_accept: bool,
        document: Counted,
        now: Millis,
    ) -> GuardStep {
        if !policy.enabled {
            return GuardStep::Steady;
        }
        self.put(policy, document, true, now);
        let judged = self.judged.len() as f64;
        let refused = f64::from(self.refused);
        // a share of 1 means all of them
        let nearly_all = refused > policy.share * judged || refused >= judged;
        let over = self.refused >= policy.distinct && nearly_all;
        if self.tripped_at.is_none() && used_to_accept && over {
            self.tripped_at = Some(now);
            let window = i64::try_from(policy.window_ms).unwrap_or(i64::MAX);
            return GuardStep::Tripped { since: Millis(now.0.saturating_sub(window)) };
        }
        GuardStep::Steady
    }

    /// The upstream accepted this document: it works again.
    pub fn accepted(&mut self, policy: &GuardPolicy, document: Counted, now: Millis) -> GuardStep {
        if !policy.enabled {
            return GuardStep::Steady;
        }
        if self.tripped_at.is_some() {
            self.recover();
            self.put(policy, document, false, now);
            return GuardStep::Recovered;
        }
        self.put(policy, document, false, now);
        GuardStep::Steady
    }

    /// An operator's word: the guard is off and its window empty.
    pub fn recover(&mut self) {
        *self = Self::default();
    }

    /// Takes note of what another process saw: it counts, and what follows from it follows there, or here with the next judgement.
    pub fn judged_elsewhere(&mut self, policy: &GuardPolicy, document: Counted, refused: bool, now: Millis) {
        if policy.enabled {
            self.put(policy, document, refused, now);
        }
    }

    /// Another process found that the upstream is not to be believed. Returns whether this one believed it still.
    pub fn trip(&mut self, now: Millis) -> bool {
        let believed = self.tripped_at.is_none();
        self.tripped_at = self.tripped_at.or(Some(now));
        believed
    }

    fn put(&mut self, policy: &GuardPolicy, document: Counted, refused: bool, now: Millis) {
        while let Some(&(at, old)) = self.order.front() {
            if now.since_ms(at) <= policy.window_ms && self.order.len() < Self::MAX_DOCUMENTS {
                break;
            }
            self.order.pop_front();
            // a document that was judged again since has a later place in the order
            if let Entry::Occupied(seen) = self.judged.entry(old)
                && seen.get().at == at
            {
                self.refused -= u32::from(seen.remove().refused);
            }
        }
        if let Some(before) = self.judged.insert(document, Judged { at: now, refused }) {
            self.refused -= u32::from(before.refused);
        }
        self.refused += u32::from(refused);
        self.order.push_back((now, document));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn doc(n: u32) -> Counted {
        let mut bytes = [0; 32];
        bytes[..4].copy_from_slice(&n.to_le_bytes());
        bytes
    }

    #[test]
    fn it_trips_on_many_distinct_refusals_of_an_upstream_that_used_to_accept() {
        let policy = GuardPolicy::default();
        let mut guard = MassRefusalGuard::default();
        for n in 0..19 {
            assert_eq!(guard.refused(&policy, true, doc(n), Millis(1_000_000)), GuardStep::Steady);
        }
        // the same document again is not another one
        assert_eq!(guard.refused(&policy, true, doc(3), Millis(1_000_000)), GuardStep::Steady);
        let step = guard.refused(&policy, true, doc(19), Millis(1_000_001));
        assert_eq!(step, GuardStep::Tripped { since: Millis(700_001) });
        assert_eq!(
            guard.refused(&policy, true, doc(20), Millis(1_000_002)),
            GuardStep::Steady,
            "it trips once"
        );
        assert_eq!(guard.accepted(&policy, doc(21), Millis(1_000_003)), GuardStep::Recovered);
        assert_eq!(guard.window(), (0, 1));
    }

    #[test]
    fn what_others_saw_counts_and_what_they_found_holds() {
        let policy = GuardPolicy::default();
        let mut guard = MassRefusalGuard::default();
        for n in 0..19 {
            guard.judged_elsewhere(&policy, doc(n), true, Millis(1_000_000));
        }
        assert_eq!(guard.tripped_at(), None);
        assert!(matches!(
            guard.refused(&policy, true, doc(19), Millis(1_000_001)),
            GuardStep::Tripped { .. }
        ));
        assert!(!guard.trip(Millis(1_000_002)), "it is on already");
        guard.recover();
        assert!(guard.trip(Millis(1_000_003)));
        assert_eq!(guard.accepted(&policy, doc(1), Millis(1_000_004)), GuardStep::Recovered);
    }

    #[test]
    fn an_upstream_that_never_accepted_is_not_suspected() {
        let mut guard = MassRefusalGuard::default();
        for n in 0..1000 {
            assert_eq!(guard.refused(&GuardPolicy::default(), false, doc(n), Millis(5)), GuardStep::Steady);
        }
    }

    #[test]
    fn a_share_of_acceptances_keeps_it_quiet() {
        let policy = GuardPolicy::default();
        let mut guard = MassRefusalGuard::default();
        for n in 0..900 {
            let step = if n % 9 == 0 {
                guard.accepted(&policy, doc(n), Millis(5))
            } else {
                guard.refused(&policy, true, doc(n), Millis(5))
            };
            assert_eq!(step, GuardStep::Steady);
        }
    }

    #[test]
    fn the_window_slides_and_is_bounded() {
        let policy = GuardPolicy::default();
        let mut guard = MassRefusalGuard::default();
        for n in 0..10 {
            guard.refused(&policy, true, doc(n), Millis(0));
        }
        guard.refused(&policy, true, doc(10), Millis(300_001));
        assert_eq!(guard.window(), (1, 1));
        for n in 0..30_000 {
            guard.accepted(&policy, doc(n), Millis(300_002));
        }
        assert!(guard.judged.len() <= MassRefusalGuard::MAX_DOCUMENTS);
        assert!(guard.order.len() <= MassRefusalGuard::MAX_DOCUMENTS);
        // hammering one document does not grow the order without bound either
        for _ in 0..30_000 {
            guard.refused(&policy, true, doc(1), Millis(300_003));
        }
        assert!(guard.order.len() <= MassRefusalGuard::MAX_DOCUMENTS);
        assert_eq!(guard.window().0, u32::from(guard.judged.contains_key(&doc(1))));
    }
}
