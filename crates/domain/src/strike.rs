//! How often a document was refused in a row, and what follows from it: confirmations before anything is remembered, and a
//! ladder of lifetimes that climbs with every fresh refusal.
//!
//! [`LifePolicy`] alone decides how long a verdict lives: nobody else adds up lives, and nobody can ask it for one without
//! saying which status it is about.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::clock::Millis;
use crate::status::RefusalStatus;

/// How long verdicts of one upstream live, and how many refusals make one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LifePolicy {
    confirmations: u32,
    /// The longest life of all.
    longest_ms: u64,
    /// Where lives start short and climb.
    ladder: Option<Ladder>,
    /// The longest lives of single statuses, where they are shorter.
    by_status: BTreeMap<RefusalStatus, u64>,
}

/// The first life of an entry, and how much longer each fresh refusal makes the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ladder {
    /// The first life, in milliseconds.
    pub first_ms: u64,
    /// What each fresh refusal multiplies the life by; at least 1.
    pub factor: u32,
}

/// The refusals of one fingerprint in a row, all with the same status and rule. Kept in the store only where a policy needs it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Strike {
    /// The status of the refusals.
    pub status: u16,
    /// The profile rule that judged them.
    pub rule: String,
    /// How many in a row.
    pub count: u32,
    /// When the latest came, in milliseconds since the epoch.
    pub last_at_ms: i64,
}

/// What one more refusal means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StrikeOutcome {
    /// Too few yet: nothing is remembered.
    Unconfirmed {
        /// How many there are.
        count: u32,
    },
    /// Remember it for this long.
    Remember {
        /// The life of the entry, in milliseconds.
        ttl_ms: u64,
    },
}

impl LifePolicy {
    /// One refusal is enough, and every verdict lives for this long, in milliseconds.
    #[must_use]
    pub fn flat(ttl_ms: u64) -> Self {
        Self { confirmations: 1, longest_ms: ttl_ms, ladder: None, by_status: BTreeMap::new() }
    }

    /// It takes this many refusals with the same status and rule before anything is remembered; none is the same as one.
    #[must_use]
    pub fn confirmed_by(self, confirmations: u32) -> Self {
        Self { confirmations: confirmations.max(1), ..self }
    }

    /// Lives start short and climb.
    #[must_use]
    pub fn climbing(self, ladder: Ladder) -> Self {
        Self { ladder: Some(ladder), ..self }
    }

    /// Verdicts with this status live for at most this long, in milliseconds. It can only shorten.
    #[must_use]
    pub fn capped_for(mut self, status: RefusalStatus, ttl_ms: u64) -> Self {
        self.by_status.insert(status, ttl_ms);
        self
    }

    /// No verdict lives longer than this, in milliseconds. It can only shorten.
    #[must_use]
    pub fn capped(mut self, ttl_ms: u64) -> Self {
        self.longest_ms = self.longest_ms.min(ttl_ms);
        self
    }

    /// The longest life of a verdict with this status, in milliseconds.
    #[must_use]
    pub fn ttl_ms(&self, status: RefusalStatus) -> u64 {
        self.by_status.get(&status).map_or(self.longest_ms, |own| self.longest_ms.min(*own))
    }

    /// Whether strikes have to be kept at all: with one confirmation and a flat life they say nothing.
    #[must_use]
    pub fn needs_strikes(&self) -> bool {
        self.confirmations > 1 || self.ladder.is_some()
    }

    /// Counts a fresh refusal on top of `before`. Another status or rule starts again at one.
    #[must_use]
    pub fn strike(
        &self,
        before: Option<&Strike>,
        status: RefusalStatus,
        rule: &str,
        now: Millis,
    ) -> (Strike, StrikeOutcome) {
        let earlier = before.filter(|b| b.status == status.get() && b.rule == rule).map_or(0, |b| b.count);
        let count = earlier.saturating_add(1);
        let outcome = if count < self.confirmations {
            StrikeOutcome::Unconfirmed { count }
        } else {
            StrikeOutcome::Remember { ttl_ms: self.life_ms(status, count - self.confirmations) }
        };
        (Strike { status: status.get(), rule: rule.to_owned(), count, last_at_ms: now.0 }, outcome)
    }

    /// The life on rung `rung`, never above that of the status.
    fn life_ms(&self, status: RefusalStatus, rung: u32) -> u64 {
        let climbed = self.ladder.and_then(|l| {
            u64::from(l.factor.max(1)).checked_pow(rung).and_then(|f| l.first_ms.checked_mul(f))
        });
        // without a ladder, and far up on one, the life is the longest
        self.ttl_ms(status).min(climbed.unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn status(s: u16) -> RefusalStatus {
        RefusalStatus::new(s).unwrap_or_else(|e| unreachable!("{e}"))
    }

    #[test]
    fn the_ladder_climbs_to_the_ttl_and_stays() {
        let policy = LifePolicy::flat(86_400_000)
            .climbing(Ladder { first_ms: 300_000, factor: 4 })
            .capped_for(status(413), 3_600_000);
        let lives = |status: RefusalStatus| {
            let (mut before, mut lives) = (None, vec![]);
            for _ in 0..8 {
                let (strike, outcome) = policy.strike(before.as_ref(), status, "status", Millis(0));
                before = Some(strike);
                if let StrikeOutcome::Remember { ttl_ms } = outcome {
                    lives.push(ttl_ms / 1000);
                }
            }
            lives
        };
        assert_eq!(lives(status(400)), [300, 1200, 4800, 19200, 76800, 86400, 86400, 86400]);
        assert_eq!(lives(status(413)), [300, 1200, 3600, 3600, 3600, 3600, 3600, 3600]);
    }

    #[test]
    fn another_verdict_starts_again() {
        let policy = LifePolicy::flat(1000).confirmed_by(2);
        let (one, outcome) = policy.strike(None, status(400), "a", Millis(1));
        assert_eq!(outcome, StrikeOutcome::Unconfirmed { count: 1 });
        let (_, other) = policy.strike(Some(&one), status(422), "a", Millis(2));
        assert_eq!(other, StrikeOutcome::Unconfirmed { count: 1 });
        let (_, same) = policy.strike(Some(&one), status(400), "a", Millis(2));
        assert_eq!(same, StrikeOutcome::Remember { ttl_ms: 1000 });
    }

    #[test]
    fn a_huge_rung_does_not_overflow() {
        let policy = LifePolicy::flat(500).climbing(Ladder { first_ms: u64::MAX, factor: u32::MAX });
        let before = Strike { status: 400, rule: "a".into(), count: u32::MAX, last_at_ms: 0 };
        assert_eq!(
            policy.strike(Some(&before), status(400), "a", Millis(0)).1,
            StrikeOutcome::Remember { ttl_ms: 500 }
        );
    }

    proptest! {
        #[test]
        fn a_cap_shortens_its_own_status_and_no_other(
            longest in 0..100_000_u64,
            cap in 0..200_000_u64,
            ladder in prop::option::of((0..50_000_u64, 0..9_u32)),
            confirmations in 0..4_u32,
            earlier in 0..40_u32,
        ) {
            let mut uncapped = LifePolicy::flat(longest).confirmed_by(confirmations);
            if let Some((first_ms, factor)) = ladder {
                uncapped = uncapped.climbing(Ladder { first_ms, factor });
            }
            let capped = uncapped.clone().capped_for(status(413), cap);
            prop_assert_eq!(capped.ttl_ms(status(413)), cap.min(longest));
            prop_assert_eq!(capped.ttl_ms(status(400)), longest);
            for s in [400, 413] {
                let before = Strike { status: s, rule: "a".into(), count: earlier, last_at_ms: 0 };
                let strike = |policy: &LifePolicy| policy.strike(Some(&before), status(s), "a", Millis(1));
                let (plain, shortened) = (strike(&uncapped), strike(&capped));
                prop_assert_eq!(plain.0, shortened.0);
                let expected = match plain.1 {
                    StrikeOutcome::Remember { ttl_ms } if s == 413 => {
                        StrikeOutcome::Remember { ttl_ms: ttl_ms.min(cap) }
                    }
                    other => other,
                };
                prop_assert_eq!(shortened.1, expected);
            }
        }
    }
}
