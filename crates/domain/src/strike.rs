//! How often a document was refused in a row, and what follows from it: confirmations before anything is remembered, and a
//! ladder of lifetimes that climbs with every fresh refusal.

use serde::{Deserialize, Serialize};

use crate::clock::Millis;
use crate::status::RefusalStatus;

/// How long verdicts of one upstream live, and how many refusals make one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LifePolicy {
    /// Refusals with the same status and rule that it takes before anything is remembered; at least 1.
    pub confirmations: u32,
    /// The longest life of an entry, in milliseconds.
    pub ttl_ms: u64,
    /// Where lives start short and climb; `None` = every entry lives `ttl_ms`.
    pub ladder: Option<Ladder>,
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
            StrikeOutcome::Remember { ttl_ms: self.life_ms(count - self.confirmations.max(1)) }
        };
        (Strike { status: status.get(), rule: rule.to_owned(), count, last_at_ms: now.0 }, outcome)
    }

    /// The life on rung `rung`, never above `ttl_ms`.
    fn life_ms(&self, rung: u32) -> u64 {
        match self.ladder {
            None => self.ttl_ms,
            Some(l) => u64::from(l.factor.max(1))
                .checked_pow(rung)
                .and_then(|f| l.first_ms.checked_mul(f))
                .map_or(self.ttl_ms, |ms| ms.min(self.ttl_ms)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(s: u16) -> RefusalStatus {
        RefusalStatus::new(s).unwrap_or_else(|e| unreachable!("{e}"))
    }

    #[test]
    fn the_ladder_climbs_to_the_ttl_and_stays() {
        let policy = LifePolicy {
            confirmations: 1,
            ttl_ms: 86_400_000,
            ladder: Some(Ladder { first_ms: 300_000, factor: 4 }),
        };
        let mut before = None;
        let mut lives = vec![];
        for _ in 0..8 {
            let (strike, outcome) = policy.strike(before.as_ref(), status(400), "status", Millis(0));
            before = Some(strike);
            if let StrikeOutcome::Remember { ttl_ms } = outcome {
                lives.push(ttl_ms / 1000);
            }
        }
        assert_eq!(lives, [300, 1200, 4800, 19200, 76800, 86400, 86400, 86400]);
    }

    #[test]
    fn another_verdict_starts_again() {
        let policy = LifePolicy { confirmations: 2, ttl_ms: 1000, ladder: None };
        let (one, outcome) = policy.strike(None, status(400), "a", Millis(1));
        assert_eq!(outcome, StrikeOutcome::Unconfirmed { count: 1 });
        let (_, other) = policy.strike(Some(&one), status(422), "a", Millis(2));
        assert_eq!(other, StrikeOutcome::Unconfirmed { count: 1 });
        let (_, same) = policy.strike(Some(&one), status(400), "a", Millis(2));
        assert_eq!(same, StrikeOutcome::Remember { ttl_ms: 1000 });
    }

    #[test]
    fn a_huge_rung_does_not_overflow() {
        let policy = LifePolicy {
            confirmations: 1,
            ttl_ms: 500,
            ladder: Some(Ladder { first_ms: u64::MAX, factor: u32::MAX }),
        };
        let before = Strike { status: 400, rule: "a".into(), count: u32::MAX, last_at_ms: 0 };
        assert_eq!(
            policy.strike(Some(&before), status(400), "a", Millis(0)).1,
            StrikeOutcome::Remember { ttl_ms: 500 }
        );
    }
}
