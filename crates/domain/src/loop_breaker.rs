//! The loop breaker: permanent refusals that a service codes as 5xx or 429.
//!
//! Per fingerprint: so many equal failures within a window, and the fingerprint is held for a while. It is no memory of
//! refusals: what it knows is a guess, so it is short-lived, and one good answer ends it.

use std::collections::VecDeque;

use http::{HeaderMap, StatusCode};

use crate::clock::Millis;
use crate::profile;
use crate::tenant::TenantId;

/// When a fingerprint is held, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoopBreakerPolicy {
    /// Equal failures that it takes.
    pub failures: u32,
    /// Within how many milliseconds.
    pub window_ms: u64,
    /// How long it is held, in milliseconds.
    pub hold_ms: u64,
    /// Whether one tenant's failures alone do not suffice.
    pub two_tenants: bool,
}

/// What an upstream's answer says to the loop breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// The upstream failed on this request, and did not say that it might do better later.
    Failure,
    /// Nothing: the upstream is overloaded, or something stands between, or the answer speaks of later.
    Nothing,
    /// The upstream can answer this request in another way.
    Otherwise,
}

impl Told {
    /// What an answer with this head says.
    #[must_use]
    pub fn by(status: StatusCode, headers: &HeaderMap, honor_cache_control: bool) -> Self {
        match status.as_u16() {
            // said by proxies and by services that are overloaded; 520 to 530 by vendors of both
            502..=504 | 520..=527 | 529 | 530 => Self::Nothing,
            429 | 500..=599 => match profile::check_head(honor_cache_control, headers) {
                Ok(()) => Self::Failure,
                Err(_) => Self::Nothing,
            },
            _ => Self::Otherwise,
        }
    }
}

/// The failures of one fingerprint, all with the same status. Bounded: it keeps no more times than the policy asks for.
#[derive(Clone, Debug)]
pub struct FailureRun {
    status: StatusCode,
    /// The latest, oldest first; within the window, and not more than it takes.
    times: VecDeque<Millis>,
    /// The two tenants that failed last, and when.
    tenants: Vec<(TenantId, Millis)>,
    hold: Option<Hold>,
    /// The latest time that was seen.
    latest: Millis,
}

/// A time in which a fingerprint is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hold {
    /// From when.
    pub since: Millis,
    /// Until when; no longer in it.
    pub until: Millis,
}

impl FailureRun {
    /// A run without a failure yet.
    #[must_use]
    pub fn new(status: StatusCode) -> Self {
        Self { status, times: VecDeque::new(), tenants: Vec::new(), hold: None, latest: Millis(i64::MIN) }
    }

    /// The status of its failures.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// The earliest failure that still counts.
    #[must_use]
    pub fn first_at(&self) -> Millis {
        self.times.front().copied().unwrap_or(self.latest)
    }

    /// One more failure. Returns whether the fingerprint is held from now on; one that is held already is not held any longer
    /// for it.
    pub fn failed(
        &mut self,
        policy: &LoopBreakerPolicy,
        status: StatusCode,
        tenant: &TenantId,
        now: Millis,
    ) -> bool {
        if status != self.status || now < self.latest || self.is_over(policy, now) {
            *self = Self::new(status);
        }
        self.latest = now;
        let again = match self.hold {
            // it was under way already when the hold began
            Some(hold) if now < hold.until => return false,
            Some(_) => true,
            None => false,
        };
        self.times.push_back(now);
        let most = policy.failures.max(1) as usize;
        while self.times.len() > most || self.times.front().is_some_and(|at| late(*at, policy, now)) {
            self.times.pop_front();
        }
        self.seen_from(tenant, now);
        let tenants = self.tenants.iter().filter(|(_, at)| !late(*at, policy, now)).count();
        if !again && self.times.len() < most || policy.two_tenants && tenants < 2 {
            return false;
        }
        self.hold = Some(Hold { since: now, until: now.plus_ms(policy.hold_ms) });
        true
    }

    /// The hold that the fingerprint is in.
    pub fn held(&mut self, now: Millis) -> Option<Hold> {
        if now < self.latest {
            // the clock stepped back: how long it has been held cannot be known
            *self = Self::new(self.status);
        }
        self.latest = now;
        self.hold.filter(|hold| now < hold.until)
    }

    /// Whether nothing of it counts any more: the window has passed since the latest failure, or since the end of the hold.
    #[must_use]
    pub fn is_over(&self, policy: &LoopBreakerPolicy, now: Millis) -> bool {
        let last = match self.hold {
            Some(hold) => Some(hold.until),
            None => self.times.back().copied(),
        };
        last.is_none_or(|last| late(last, policy, now))
    }

    fn seen_from(&mut self, tenant: &TenantId, now: Millis) {
        if let Some((_, at)) = self.tenants.iter_mut().find(|(known, _)| known == tenant) {
            *at = now;
            return;
        }
        if self.tenants.len() == 2 {
            let older = usize::from(self.tenants[1].1 < self.tenants[0].1);
            self.tenants.remove(older);
        }
        self.tenants.push((tenant.clone(), now));
    }
}

fn late(at: Millis, policy: &LoopBreakerPolicy, now: Millis) -> bool {
    now.since_ms(at) > policy.window_ms
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use proptest::prelude::*;

    use super::*;

    const POLICY: LoopBreakerPolicy =
        LoopBreakerPolicy { failures: 3, window_ms: 100, hold_ms: 1000, two_tenants: false };
    const TWO: LoopBreakerPolicy = LoopBreakerPolicy { two_tenants: true, ..POLICY };

    fn tenant(n: u8) -> TenantId {
        TenantId::new(&format!("t{n}")).unwrap_or_else(|e| unreachable!("{e}"))
    }

    fn status(s: u16) -> StatusCode {
        StatusCode::from_u16(s).unwrap_or_else(|e| unreachable!("{e}"))
    }

    /// Failures as (time, status, tenant), and which of them begin a hold.
    fn holds(policy: &LoopBreakerPolicy, failures: &[(i64, u16, u8)]) -> Vec<bool> {
        let mut run = FailureRun::new(status(500));
        failures
            .iter()
            .map(|(at, code, from)| run.failed(policy, status(*code), &tenant(*from), Millis(*at)))
            .collect()
    }

    #[test]
    fn it_takes_equal_failures_within_the_window() {
        for (why, failures, expected) in [
            ("in time", &[(0, 500, 1), (50, 500, 1), (100, 500, 1)][..], &[false, false, true][..]),
            ("at once", &[(5, 500, 1), (5, 500, 1), (5, 500, 1)], &[false, false, true]),
            (
                "too slow",
                &[(0, 500, 1), (50, 500, 1), (101, 500, 1), (150, 500, 1)],
                &[false, false, false, true],
            ),
            ("spread out", &[(0, 500, 1), (90, 500, 1), (180, 500, 1), (270, 500, 1)], &[false; 4]),
            (
                "another status",
                &[(0, 500, 1), (1, 500, 1), (2, 429, 1), (3, 500, 1), (4, 500, 1), (5, 500, 1)],
                &[false, false, false, false, false, true],
            ),
            (
                "the clock stepped back",
                &[(50, 500, 1), (51, 500, 1), (49, 500, 1), (50, 500, 1), (51, 500, 1)],
                &[false, false, false, false, true],
            ),
        ] {
            assert_eq!(holds(&POLICY, failures), expected, "{why}");
        }
    }

    #[test]
    fn one_tenant_alone_does_not_suffice_where_two_are_asked_for() {
        for (why, failures, expected) in [
            ("one", &[(0, 500, 1), (1, 500, 1), (2, 500, 1), (3, 500, 1)][..], &[false; 4][..]),
            ("two", &[(0, 500, 1), (1, 500, 1), (2, 500, 2)], &[false, false, true]),
            ("the other one first", &[(0, 500, 2), (1, 500, 1), (2, 500, 1)], &[false, false, true]),
            (
                "the other one late",
                &[(0, 500, 1), (1, 500, 1), (2, 500, 1), (3, 500, 2)],
                &[false, false, false, true],
            ),
            (
                "the other one is not among the latest three, and within the window",
                &[(0, 500, 2), (60, 500, 1), (120, 500, 1), (121, 500, 1), (122, 500, 2)],
                &[false, false, false, false, true],
            ),
            (
                "the other one is out of the window",
                &[(0, 500, 2), (60, 500, 1), (120, 500, 1), (121, 500, 1), (122, 500, 1)],
                &[false; 5],
            ),
            ("three take turns", &[(0, 500, 1), (1, 500, 2), (2, 500, 3)], &[false, false, true]),
        ] {
            assert_eq!(holds(&TWO, failures), expected, "{why}");
        }
    }

    /// Held from 2 to 1002.
    fn held() -> FailureRun {
        let mut run = FailureRun::new(status(500));
        for at in 0..3 {
            run.failed(&POLICY, status(500), &tenant(1), Millis(at));
        }
        run
    }

    #[test]
    fn a_hold_ends_in_time_and_the_count_is_kept_for_a_window() {
        let mut run = held();
        let hold = Some(Hold { since: Millis(2), until: Millis(1002) });
        assert_eq!(run.held(Millis(2)), hold);
        // what was under way when it began changes nothing
        assert!(!run.failed(&POLICY, status(500), &tenant(1), Millis(500)));
        assert_eq!(run.held(Millis(1001)), hold);
        assert_eq!(run.held(Millis(1002)), None);
        assert!(!run.is_over(&POLICY, Millis(1102)) && run.is_over(&POLICY, Millis(1103)));
        let mut late = run.clone();
        // the next failure within the window holds it again, but where two tenants are asked for it takes both of them again
        assert!(run.clone().failed(&POLICY, status(500), &tenant(1), Millis(1101)));
        assert!(!run.failed(&TWO, status(500), &tenant(1), Millis(1101)));
        assert!(run.failed(&TWO, status(500), &tenant(2), Millis(1102)));
        assert_eq!(run.held(Millis(1102)), Some(Hold { since: Millis(1102), until: Millis(2102) }));
        assert!(!late.failed(&POLICY, status(500), &tenant(1), Millis(1103)), "that one is the first anew");
        assert!(!late.failed(&POLICY, status(500), &tenant(1), Millis(1104)));
        assert!(late.failed(&POLICY, status(500), &tenant(1), Millis(1105)));
    }

    #[test]
    fn another_status_and_a_clock_that_steps_back_end_a_hold() {
        let mut run = held();
        assert!(!run.failed(&POLICY, status(429), &tenant(1), Millis(3)));
        assert_eq!((run.held(Millis(4)), run.status()), (None, status(429)));
        let mut run = held();
        assert_eq!(run.held(Millis(1)), None);
        assert_eq!(run.held(Millis(3)), None);
    }

    #[test]
    fn what_answers_say() {
        let plain = HeaderMap::new();
        for (code, told) in [
            (200, Told::Otherwise),
            (307, Told::Otherwise),
            (400, Told::Otherwise),
            (404, Told::Otherwise),
            (429, Told::Failure),
            (500, Told::Failure),
            (501, Told::Failure),
            (502, Told::Nothing),
            (503, Told::Nothing),
            (504, Told::Nothing),
            (505, Told::Failure),
            (507, Told::Failure),
            (520, Told::Nothing),
            (529, Told::Nothing),
            (599, Told::Failure),
            (600, Told::Otherwise),
        ] {
            assert_eq!(Told::by(status(code), &plain, true), told, "{code}");
        }
        for (name, value) in [
            ("retry-after", "1"),
            ("retry-after", ""),
            ("retry-after-ms", "100"),
            ("x-ms-retry-after-ms", "100"),
            ("x-should-retry", "true"),
            ("cache-control", "no-store"),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(name, HeaderValue::from_static(value));
            for code in [429, 500] {
                assert_eq!(Told::by(status(code), &headers, true), Told::Nothing, "{code} {name}: {value}");
            }
            let heard = if name == "cache-control" { Told::Failure } else { Told::Nothing };
            assert_eq!(Told::by(status(500), &headers, false), heard, "{name}");
        }
    }

    proptest! {
        /// Against the definition, in steps of time that only go forward.
        #[test]
        fn a_hold_begins_exactly_when_it_should_and_never_lasts_longer(
            steps in prop::collection::vec((0..40_i64, 0..2_u8, 0..3_u8, any::<bool>()), 1..60),
            failures in 1..5_u32,
            two_tenants in any::<bool>(),
            hold_ms in 0..120_u64,
        ) {
            let policy = LoopBreakerPolicy { failures, window_ms: 60, hold_ms, two_tenants };
            let mut run = FailureRun::new(status(500));
            let mut now = 0;
            // since the count began: when and who; and the hold, as the definition has them
            let mut counted: Vec<(i64, u8)> = Vec::new();
            let mut hold: Option<(i64, i64)> = None;
            let mut before = 0;
            for (wait, code, from, fails) in steps {
                now += wait;
                if !fails {
                    let is = run.held(Millis(now));
                    prop_assert_eq!(is.is_some(), hold.is_some_and(|(_, until)| now < until));
                    continue;
                }
                let ended = hold.is_some_and(|(_, until)| now > until + 60);
                let begun = run.failed(&policy, status(500 + u16::from(code)), &tenant(from), Millis(now));
                if code != before || ended {
                    (counted, hold, before) = (Vec::new(), None, code);
                }
                if hold.is_some_and(|(_, until)| now < until) {
                    prop_assert!(!begun);
                    continue;
                }
                counted.push((now, from));
                counted.retain(|(at, _)| now - at <= 60);
                let mut who: Vec<u8> = counted.iter().map(|(_, who)| *who).collect();
                who.sort_unstable();
                who.dedup();
                let enough = hold.is_some() || counted.len() >= failures as usize;
                prop_assert_eq!(begun, enough && (!two_tenants || who.len() >= 2));
                if begun {
                    hold = Some((now, now + i64::try_from(hold_ms).unwrap_or(0)));
                }
            }
        }

        /// Whatever the clock does, nothing is held for longer than the policy says, by that clock.
        #[test]
        fn no_clock_makes_a_hold_longer(times in prop::collection::vec((-50..2000_i64, any::<bool>()), 1..80)) {
            let mut run = FailureRun::new(status(500));
            for (at, fails) in times {
                if fails {
                    run.failed(&POLICY, status(500), &tenant(1), Millis(at));
                }
                if let Some(hold) = run.held(Millis(at)) {
                    prop_assert!(hold.since <= Millis(at) && Millis(at) < hold.until);
                    prop_assert_eq!(hold.until.since_ms(hold.since), POLICY.hold_ms);
                }
                prop_assert!(run.times.len() <= 3 && run.tenants.len() <= 2);
            }
        }
    }
}
