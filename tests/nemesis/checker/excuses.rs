//! What excuses an attempt beside or after another one, or a hit after a forget.

use super::admissions::{Admitted, Claim};
use super::{Case, Checker, Known, overlap};
use crate::fleet::{JUDGE_MS, WAIT_MS};
use crate::history::{At, Forget, MS, Op, Outcome, SECOND, Said, Trouble, What};

/// For so long a lease certainly lives when nobody prolongs it: 5 s, less what may have gone by since it was prolonged last.
const LEASE: At = 4 * SECOND;
/// Seconds. An entry that seems to come from more than a minute in the future is not used (docs/refusal-memory.md, "Life").
const AHEAD: i64 = 59;
/// Seconds. One that is a day old has expired.
const LIFE: i64 = 86_400;
/// How long a replica may lag behind a forget (docs/operating.md, "A fleet on Redis"): when messages arrive, and when they do not.
const TOLD: At = SECOND;
const UNTOLD: At = 5 * SECOND;

type Excuse = Option<&'static str>;

impl Checker<'_> {
    /// Why the verdict of `earlier` need not bind `later`.
    pub(super) fn not_remembered(
        &mut self,
        case: &Case<'_>,
        earlier: &Known<'_>,
        later: &Known<'_>,
    ) -> Excuse {
        let asked = (later.op.invoked, later.attempt.arrived);
        if case.forgets.iter().any(|f| f.invoked <= asked.1 && self.done_by(f) >= earlier.op.invoked) {
            return Some("forgotten");
        }
        let accepted = |k: &Known<'_>| {
            k.attempt.outcome == Outcome::Accepted
                && k.attempt.due <= asked.1
                && self.landed(k) >= earlier.op.invoked
        };
        if case.attempts.iter().any(accepted) {
            return Some("accepted");
        }
        for t in &self.h.troubles {
            let (since, until, why) = match t.what {
                What::Lost { since } => (since, t.healed, "the store lost all its data"),
                What::Failover { since } => (since, t.settled, "a failover lost what was not replicated"),
                _ => continue,
            };
            if t.from <= asked.1 && earlier.attempt.due <= until && self.landed(earlier) >= since {
                return Some(why);
            }
        }
        // that one's, or one that was recorded in its place by a replica with another clock
        let unusable = |k: &Known<'_>| self.landed(k) >= earlier.attempt.due && self.is_unusable(k, later);
        if case.attempts.iter().any(unusable) {
            return Some("by the clock of its replica the entry was from the future, or had expired");
        }
        // a unit that is given to the wrong one is missed by the right one: what was replayed was recorded
        let replayed = case.ops.iter().any(|op| {
            matches!(op.said, Said::Answer { hit: true, attempt, .. } if attempt == Some(earlier.number))
                && op.returned.is_some_and(|returned| returned < later.attempt.arrived)
        });
        if replayed {
            self.unknown(later).or_else(|| self.not_recorded(case, earlier))
        } else {
            self.not_recorded(case, earlier).or_else(|| self.unknown(later))
        }
    }

    /// Why `later` may go although the outcome of `earlier` is unknown.
    pub(super) fn goes_beside(&mut self, case: &Case<'_>, earlier: &Known<'_>, later: &Known<'_>) -> Excuse {
        if let Some(why) = self.is_free(case, later) {
            return Some(why);
        }
        let elsewhere = earlier.op.replica != later.op.replica || self.died_between(earlier, later);
        let free = self.may_be_free(case, earlier);
        if elsewhere {
            if free {
                return Some("the one before went without a lease, for a reason of its own");
            }
            return self.lease_gone(earlier, later);
        }
        let left = earlier.op.said == Said::Left
            && earlier.op.returned.is_some_and(|left| left <= later.attempt.arrived);
        if free && left {
            return Some("the one before led nobody, and ended with its client");
        }
        None
    }

    /// Why this attempt may go whatever others are under way.
    fn is_free(&mut self, case: &Case<'_>, who: &Known<'_>) -> Excuse {
        self.needs_no_lease(case, who).or_else(|| self.unknown(who))
    }

    /// Whether there may be such a reason.
    fn may_be_free(&self, case: &Case<'_>, who: &Known<'_>) -> bool {
        self.needs_no_lease(case, who).is_some() || self.admissions.may_admit(unknown(who))
    }

    fn needs_no_lease(&self, case: &Case<'_>, who: &Known<'_>) -> Excuse {
        let asked = (who.op.invoked, who.attempt.arrived);
        if asked.1 - asked.0 >= WAIT_MS * MS {
            return Some("it had waited as long as one waits");
        }
        let accepted_here = |k: &Known<'_>| {
            k.attempt.outcome == Outcome::Accepted
                && k.op.replica == who.op.replica
                && k.attempt.due < asked.1
                && !self.killed(who.op.replica, (k.attempt.due, asked.0))
        };
        if case.attempts.iter().any(accepted_here) {
            return Some("accepted lately, as this replica knows");
        }
        let full = |t: &Trouble| t.what == What::Full && overlap((t.from, t.healed), asked);
        if self.h.troubles.iter().any(full) {
            return Some("the store was full and gave no lease");
        }
        let released = case.attempts.iter().any(|other| {
            other.number != who.number
                && other.attempt.due <= asked.1
                && self.told(other) >= asked.0
                && !self.killed(other.op.replica, (other.attempt.arrived, other.attempt.due))
                && self.leaves_nothing(case, other)
        });
        released.then_some("released by an outcome without a verdict")
    }

    /// Whether an attempt landed without an entry.
    fn leaves_nothing(&self, case: &Case<'_>, which: &Known<'_>) -> bool {
        if !which.is_verdict() {
            return true;
        }
        let time = (which.op.invoked, self.landed(which));
        // written, and lost in the same moment: those who waited found nothing
        let lost = self.h.troubles.iter().any(|t| match t.what {
            What::Lost { .. } => overlap((t.from, t.healed), (which.attempt.due, time.1)),
            What::Failover { .. } => overlap((t.from, t.settled), (which.attempt.due, time.1)),
            _ => false,
        });
        let fenced = case.forgets.iter().any(|f| overlap((f.invoked, self.done_by(f)), time));
        let overtaken = case.attempts.iter().any(|k| {
            k.attempt.outcome == Outcome::Accepted && overlap((k.attempt.due, self.landed(k)), time)
        });
        let unrecorded =
            || self.unrecorded(case, which).into_iter().flatten().any(|c| self.admissions.may_admit(c));
        lost || fenced || overtaken || unrecorded()
    }

    /// Why the lease of `earlier` did not stop `later`.
    fn lease_gone(&self, earlier: &Known<'_>, later: &Known<'_>) -> Excuse {
        let (asked, went) = (later.op.invoked, later.attempt.arrived);
        let long_ago = went.saturating_sub(LEASE);
        for t in &self.h.troubles {
            let flight = t.from <= long_ago && earlier.attempt.arrived <= long_ago;
            let why = match t.what {
                What::Killed(r) | What::Paused(r)
                    if r == earlier.op.replica && flight && t.healed >= earlier.op.invoked =>
                {
                    "the lease of a replica that stood still or died had lapsed"
                }
                What::Unreachable(which)
                    if which.is_none_or(|r| r == earlier.op.replica)
                        && flight
                        && t.settled >= earlier.attempt.arrived =>
                {
                    "the lease could not be prolonged, and had lapsed"
                }
                What::Paused(r)
                    if r == later.op.replica
                        && overlap((t.from, t.healed), (asked, went))
                        && earlier.attempt.arrived >= t.from.max(asked) + LEASE =>
                {
                    "it stood still for longer than its own lease before it went"
                }
                What::Lost { .. } if t.from <= went && t.healed >= earlier.op.invoked => {
                    "the store lost the lease"
                }
                What::Failover { .. } if t.from <= went && t.settled >= earlier.op.invoked => {
                    "a failover lost the lease"
                }
                What::StoreClock(_)
                    if [t.from, t.healed].iter().any(|step| (earlier.op.invoked..=went).contains(step)) =>
                {
                    "the store's clock was stepped, and leases with it"
                }
                _ => continue,
            };
            return Some(why);
        }
        None
    }

    /// How long after this forget this request may still be answered from a copy.
    pub(super) fn bound(&self, forget: &Forget, op: &Op) -> At {
        if forget.replica == op.replica {
            return 0;
        }
        let deaf = self.h.troubles.iter().any(|t| {
            let here = match t.what {
                What::Unreachable(which) => which.is_none_or(|r| r == op.replica),
                What::Paused(r) => r == op.replica,
                What::Lost { .. } | What::Failover { .. } => true,
                What::Killed(_) | What::Full | What::ReplicaClock(..) | What::StoreClock(_) => false,
            };
            here && overlap((t.from, t.settled), (forget.invoked, op.invoked))
        });
        if deaf { UNTOLD } else { TOLD }
    }

    /// Why this forget may be undone.
    pub(super) fn forget_lost(&self, forget: &Forget, op: &Op) -> Excuse {
        let lost = self.h.troubles.iter().any(|t| match t.what {
            What::Failover { since } => {
                forget.ended >= since && forget.invoked <= t.settled && op.returned >= Some(t.from)
            }
            _ => false,
        });
        lost.then_some("a failover lost the forget")
    }

    fn unknown(&mut self, who: &Known<'_>) -> Excuse {
        self.admissions.admits(unknown(who))
    }

    fn not_recorded(&mut self, case: &Case<'_>, who: &Known<'_>) -> Excuse {
        let [failed, fenced] = self.unrecorded(case, who);
        self.admissions.admits(failed?).or_else(|| self.admissions.admits(fenced?))
    }

    /// What would have to be admitted: that its record failed, or that it was fenced, where it may have been.
    fn unrecorded(&self, case: &Case<'_>, who: &Known<'_>) -> [Option<Claim>; 2] {
        // what began, or was last heard of, before the store lost its data is not recorded (decision 0010)
        let time = (who.op.invoked, self.landed(who));
        let before_a_loss = self.h.troubles.iter().any(|t| {
            matches!(t.what, What::Lost { .. } | What::Failover { .. }) && overlap((t.from, t.settled), time)
        });
        // an attempt whose look-up failed is as old as what its replica heard last: a forget since then bars it too
        let before_a_forget = self.admissions.may_admit(unknown(who))
            && case.forgets.iter().any(|f| f.invoked <= who.attempt.arrived);
        let fenced = before_a_loss || before_a_forget;
        [
            Some(self.record_of(who, Admitted::NotRecorded)),
            fenced.then(|| self.record_of(who, Admitted::Fenced)),
        ]
    }

    fn record_of(&self, who: &Known<'_>, what: Admitted) -> Claim {
        let (from, to) = (who.attempt.due, self.landed(who));
        Claim { what, attempt: who.number, replica: who.op.replica, from, to }
    }

    /// When an attempt had landed for certain: what it brought is recorded or not, and those who wait are told.
    fn landed(&self, who: &Known<'_>) -> At {
        // an answer is released when what it means is known; an acceptance may be told to the store behind it
        let answered = matches!(who.op.said, Said::Answer { attempt, .. } if attempt == Some(who.number));
        if let (true, Some(returned)) =
            (answered && who.attempt.outcome != Outcome::Accepted, who.op.returned)
        {
            return returned;
        }
        let mut landed = who.attempt.due + (JUDGE_MS * MS) + SECOND;
        for t in &self.h.troubles {
            // what stood still does it later
            if matches!(t.what, What::Paused(r) if r == who.op.replica)
                && overlap((t.from, t.healed), (who.attempt.due, landed))
            {
                landed = landed.max(t.healed + (JUDGE_MS * MS) + SECOND);
            }
            // an acceptance that cannot be told waits
            if matches!(t.what, What::Unreachable(_) | What::Failover { .. })
                && who.attempt.outcome == Outcome::Accepted
                && overlap((t.from, t.settled), (who.attempt.due, landed))
            {
                landed = landed.max(t.settled);
            }
        }
        landed
    }

    /// When those who waited for an attempt in other processes were told for certain, or its lease had ended.
    fn told(&self, who: &Known<'_>) -> At {
        let landed = self.landed(who);
        let soon = landed + 500 * MS;
        let late = self.h.troubles.iter().filter(|t| overlap((t.from, t.settled), (landed, soon)));
        late.map(|t| t.settled.min(landed + 6 * SECOND)).fold(soon, At::max)
    }

    /// When a forget had been carried out for certain. One that was not answered well may still be on its way.
    fn done_by(&self, forget: &Forget) -> At {
        let mut done = forget.ended;
        if !forget.done {
            for t in &self.h.troubles {
                if overlap((t.from, t.settled), (forget.invoked, forget.ended)) {
                    done = done.max(t.settled);
                }
            }
        }
        done
    }

    fn killed(&self, replica: usize, time: (At, At)) -> bool {
        self.h.troubles.iter().any(|t| t.what == What::Killed(replica) && overlap((t.from, t.from), time))
    }

    /// Whether the process that made the one had been killed before the other was asked of it.
    fn died_between(&self, earlier: &Known<'_>, later: &Known<'_>) -> bool {
        self.killed(earlier.op.replica, (earlier.attempt.arrived, later.op.invoked))
    }

    /// By how much the clock of the replica may have been wrong within this time: the least and the most.
    fn wrong_by(&self, replica: usize, time: (At, At)) -> (i64, i64) {
        let steps = self.h.troubles.iter().filter_map(|t| match t.what {
            What::ReplicaClock(r, by) if r == replica && overlap((t.from, t.healed), time) => Some(by),
            _ => None,
        });
        steps.fold((0, 0), |(least, most), by| (least.min(by), most.max(by)))
    }

    /// Whether the entry of the one, if it was recorded, is none by the clock of the other.
    fn is_unusable(&self, entry: &Known<'_>, reader: &Known<'_>) -> bool {
        entry.is_verdict() && entry.attempt.due <= reader.attempt.arrived && self.clocks_apart(entry, reader)
    }

    fn clocks_apart(&self, earlier: &Known<'_>, later: &Known<'_>) -> bool {
        let written = self.wrong_by(earlier.op.replica, (earlier.attempt.due, self.landed(earlier)));
        let read = self.wrong_by(later.op.replica, (later.op.invoked, later.attempt.arrived));
        written.1 - read.0 > AHEAD || read.1 - written.0 >= LIFE
    }
}

/// That its look-up failed.
fn unknown(who: &Known<'_>) -> Claim {
    Claim {
        what: Admitted::Unknown,
        attempt: who.number,
        replica: who.op.replica,
        from: who.op.invoked,
        to: who.attempt.arrived,
    }
}
