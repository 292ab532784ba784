//! The checker on histories made by hand: what it must flag, what it must accept, and that an excuse of another document,
//! another replica or another time is none.

use super::*;
use crate::history::{Document, Kind, Sample, Trouble};

/// A history in milliseconds.
#[derive(Clone, Default)]
struct Tale(History);

impl Tale {
    /// One document that is always refused, with a verdict of replica 0: looked up at 1000, acknowledged at 1020.
    fn with_verdict() -> Self {
        let mut tale = Self::default();
        tale.document(false);
        tale.attempt(0, 0, (1000, 1002), (1010, 1020), Outcome::Verdict(400));
        tale
    }

    /// One that is refused by replica 0, from 1000 to 12000: nobody knows how it ends.
    fn under_way() -> Self {
        let mut tale = Self::default();
        tale.document(false);
        tale.attempt(0, 0, (1000, 1002), (12000, 12010), Outcome::Verdict(400));
        tale
    }

    fn document(&mut self, probe: bool) -> usize {
        self.0.documents.push(Document { kind: Kind::Refused, probe, attempts: 0 });
        self.0.documents.len() - 1
    }

    fn op(&mut self, document: usize, replica: usize, invoked: At, returned: At, said: Said) -> usize {
        let op = Op { document, replica, invoked: invoked * MS, returned: Some(returned * MS), said };
        self.0.ops.push(op);
        self.0.ops.len() - 1
    }

    /// A submission that goes up: when it is invoked and arrives, when it is due and returns.
    fn attempt(
        &mut self,
        document: usize,
        replica: usize,
        (invoked, arrived): (At, At),
        (due, returned): (At, At),
        outcome: Outcome,
    ) -> usize {
        let number = self.0.attempts.len();
        let said = Said::Answer { status: outcome.status(), hit: false, attempt: Some(number) };
        let op = self.op(document, replica, invoked, returned, said);
        self.0.attempts.push(Attempt { document, op, arrived: arrived * MS, due: due * MS, outcome });
        number
    }

    fn verdict(&mut self, replica: usize, invoked: At) -> usize {
        self.attempt(0, replica, (invoked, invoked + 2), (invoked + 10, invoked + 12), Outcome::Verdict(400))
    }

    fn hit(&mut self, replica: usize, invoked: At, attempt: usize) {
        self.op(
            0,
            replica,
            invoked,
            invoked + 2,
            Said::Answer { status: 400, hit: true, attempt: Some(attempt) },
        );
    }

    fn forget(&mut self, document: usize, replica: usize, invoked: At, ended: At) {
        let (invoked, ended) = (invoked * MS, ended * MS);
        self.0.forgets.push(Forget { document, replica, invoked, ended, done: true });
    }

    fn trouble(&mut self, what: What, from: At, healed: At) {
        let (from, healed) = (from * MS, healed * MS);
        self.0.troubles.push(Trouble { what, from, healed, settled: healed + SECOND });
    }

    fn sample(&mut self, replica: usize, (from, to): (At, At), counts: (usize, usize, usize)) {
        let (unknown, not_recorded, fenced) = counts;
        let (from, to) = (from * MS, to * MS);
        self.0.samples.push(Sample { replica, from, to, unknown, not_recorded, fenced, blind: false });
    }

    /// The same with more.
    fn and<T>(&self, more: impl FnOnce(&mut Self) -> T) -> Self {
        let mut tale = self.clone();
        more(&mut tale);
        tale
    }

    #[track_caller]
    fn breaks(&self, promise: &str) {
        let report = check(&self.0);
        let broken: Vec<&str> = report.violations.iter().map(|violation| violation.promise).collect();
        assert_eq!(broken, [promise], "{report}");
    }

    #[track_caller]
    fn holds(&self) {
        let report = check(&self.0);
        assert!(report.violations.is_empty() && report.excused.is_empty(), "{report}");
    }

    #[track_caller]
    fn is_excused(&self, why: &str) {
        let report = check(&self.0);
        assert!(report.violations.is_empty(), "{report}");
        assert!(report.excused.keys().any(|excuse| excuse.contains(why)), "{report}");
    }
}

#[test]
fn one_call_and_replays_are_as_promised() {
    Tale::with_verdict().and(|t| t.hit(1, 1100, 0)).and(|t| t.hit(2, 1200, 0)).holds();
}

#[test]
fn i1_an_attempt_after_a_verdict() {
    let again = Tale::with_verdict().and(|t| t.verdict(1, 2000));
    again.breaks(I1);
    // it was acknowledged to others, though not to who made the attempt
    let untold = again.and(|t| t.0.ops[0].said = Said::Left);
    untold.holds();
    let replayed = Tale(History { ops: untold.0.ops.clone(), ..untold.0.clone() });
    replayed.and(|t| t.hit(2, 1500, 0)).breaks(I1);
}

#[test]
fn i1_a_forget_excuses_its_own_document_and_what_was_before_it() {
    let again = Tale::with_verdict().and(|t| t.verdict(1, 2000));
    again.and(|t| t.forget(0, 2, 1500, 1510)).is_excused("forgotten");
    again.and(|t| t.forget(0, 2, 500, 510)).breaks(I1);
    again.and(|t| t.forget(0, 2, 2100, 2110)).breaks(I1);
    let other = again.and(|t| t.document(false));
    other.and(|t| t.forget(1, 2, 1500, 1510)).breaks(I1);
    // one that said that it failed may come later
    let doubtful =
        Tale::with_verdict().and(|t| t.forget(0, 2, 500, 700)).and(|t| t.0.forgets[0].done = false);
    let doubtful = doubtful.and(|t| t.verdict(1, 2000));
    doubtful.breaks(I1);
    doubtful.and(|t| t.trouble(What::Unreachable(None), 600, 900)).is_excused("forgotten");
}

#[test]
fn i1_a_success_excuses_what_comes_after_it() {
    let accepted = |t: &mut Tale| t.attempt(0, 1, (900, 1003), (1500, 1501), Outcome::Accepted);
    let again = |t: &mut Tale| t.verdict(2, 2000);
    let report = check(&Tale::with_verdict().and(accepted).and(again).0);
    assert!(report.excused.contains_key("I1: accepted"), "{report}");
    let late = |t: &mut Tale| t.attempt(0, 1, (900, 1003), (2100, 2101), Outcome::Accepted);
    assert!(check(&Tale::with_verdict().and(late).and(again).0).violations.iter().any(|v| v.promise == I1));
}

#[test]
fn i1_lost_data_excuse_what_was_recorded_before() {
    let again = Tale::with_verdict().and(|t| t.verdict(1, 2000));
    again.and(|t| t.trouble(What::Lost { since: 0 }, 1500, 1510)).is_excused("lost all its data");
    again.and(|t| t.trouble(What::Lost { since: 0 }, 500, 510)).breaks(I1);
    again.and(|t| t.trouble(What::Lost { since: 0 }, 2500, 2510)).breaks(I1);
    again.and(|t| t.trouble(What::Failover { since: 0 }, 1500, 1600)).is_excused("failover");
    // it had been replicated
    again.and(|t| t.trouble(What::Failover { since: 1100 * MS }, 1500, 1600)).breaks(I1);
    // no loss at all
    for what in [What::Unreachable(None), What::Paused(1), What::Killed(1), What::Full] {
        again.and(|t| t.trouble(what, 1500, 1600)).breaks(I1);
    }
}

#[test]
fn i1_counters_excuse_as_many_attempts_as_they_count() {
    let again = Tale::with_verdict().and(|t| t.verdict(1, 2000));
    again.and(|t| t.sample(1, (1900, 2100), (1, 0, 0))).is_excused("look-up failed");
    again.and(|t| t.sample(1, (2100, 2300), (1, 0, 0))).breaks(I1);
    again.and(|t| t.sample(2, (1900, 2100), (1, 0, 0))).breaks(I1);
    again.and(|t| t.sample(0, (1015, 1100), (0, 1, 0))).is_excused("not recorded");
    again.and(|t| t.sample(0, (1100, 1200), (0, 1, 0))).breaks(I1);
    again.and(|t| t.sample(1, (1015, 1100), (0, 1, 0))).breaks(I1);
    // a look-up that failed is no record that failed
    again.and(|t| t.sample(0, (1015, 1100), (1, 0, 0))).breaks(I1);
    let twice = again.and(|t| t.attempt(0, 1, (2001, 2001), (2001, 2003), Outcome::Neither(503)));
    let one = twice.and(|t| t.sample(1, (1900, 2100), (1, 0, 0)));
    assert_eq!(check(&one.0).violations.len(), 1);
    let two = twice.and(|t| t.sample(1, (1900, 2100), (2, 0, 0)));
    assert_eq!(check(&two.0).violations.len(), 0, "{}", check(&two.0));
}

#[test]
fn i1_a_unit_goes_to_whom_no_other_serves() {
    // the first may have either, the second only the one of the first sample
    let tale = Tale::with_verdict()
        .and(|t| t.attempt(0, 1, (2000, 2600), (2600, 2603), Outcome::Neither(503)))
        .and(|t| t.attempt(0, 1, (2610, 2620), (2620, 2621), Outcome::Neither(503)))
        .and(|t| t.sample(1, (2590, 2650), (1, 0, 0)))
        .and(|t| t.sample(1, (2000, 2100), (1, 0, 0)));
    assert_eq!(check(&tale.0).violations.len(), 0, "{}", check(&tale.0));
}

#[test]
fn i1_who_died_untold_could_not_admit() {
    let again = Tale::with_verdict().and(|t| t.verdict(1, 2000));
    let dead = |replica, from: At, to: At| {
        again.and(|t| {
            t.sample(replica, (from, to), (0, 0, 0));
            t.0.samples[0].blind = true;
        })
    };
    dead(1, 1900, 2100).is_excused("killed a moment later");
    dead(1, 2100, 2300).breaks(I1);
    dead(2, 1900, 2100).breaks(I1);
}

#[test]
fn i1_what_began_before_a_loss_is_fenced_where_that_is_counted() {
    let again = Tale::with_verdict().and(|t| t.verdict(1, 3000));
    let lost = again.and(|t| t.trouble(What::Lost { since: 0 }, 900, 1001));
    let fenced = |t: &mut Tale| t.sample(0, (1005, 1100), (0, 0, 1));
    lost.breaks(I1);
    again.and(fenced).breaks(I1);
    lost.and(fenced).is_excused("fenced");
    // or before a forget, where the look-up failed; a forget of another document is none
    let deaf = again.and(fenced).and(|t| t.sample(0, (900, 1005), (1, 0, 0)));
    deaf.breaks(I1);
    deaf.and(|t| t.forget(0, 1, 800, 810)).is_excused("fenced");
    deaf.and(|t| t.document(false)).and(|t| t.forget(1, 1, 800, 810)).breaks(I1);
    again.and(fenced).and(|t| t.forget(0, 1, 800, 810)).breaks(I1);
}

#[test]
fn i1_clocks_excuse_when_they_are_far_enough_apart() {
    let again = Tale::with_verdict().and(|t| t.verdict(1, 2000));
    again.and(|t| t.trouble(What::ReplicaClock(0, 200), 900, 1100)).is_excused("from the future");
    again.and(|t| t.trouble(What::ReplicaClock(1, -200), 1900, 2100)).is_excused("from the future");
    again.and(|t| t.trouble(What::ReplicaClock(1, 200_000), 1900, 2100)).is_excused("expired");
    // a third replica has put its own in place of it
    let replaced = Tale::with_verdict().and(|t| t.verdict(2, 1500)).and(|t| t.verdict(1, 2000));
    let report = check(&replaced.and(|t| t.trouble(What::ReplicaClock(2, 200_000), 1400, 1600)).0);
    assert!(report.violations.is_empty(), "{report}");
    for (replica, by) in [(2, 30), (2, 200)] {
        let wrong = replaced.and(|t| t.trouble(What::ReplicaClock(replica, by), 2500, 2600));
        assert!(!check(&wrong.0).violations.is_empty());
    }
    for (replica, by, from) in [(0, 30, 900), (1, -30, 1900), (1, 200, 1900), (2, 200, 900), (0, 200, 2500)] {
        again.and(|t| t.trouble(What::ReplicaClock(replica, by), from, from + 200)).breaks(I1);
    }
}

#[test]
fn i2_two_at_once() {
    let beside = Tale::under_way().and(|t| t.verdict(1, 2000));
    beside.breaks(I2);
    // one that waited, and went after the verdict
    let after =
        Tale::with_verdict().and(|t| t.attempt(0, 1, (1001, 1100), (1110, 1111), Outcome::Verdict(400)));
    after.breaks(I2);
    // a forget excuses nobody who goes beside, not even in that very moment
    beside.and(|t| t.forget(0, 2, 1500, 1510)).breaks(I2);
    beside.and(|t| t.forget(0, 2, 1990, 2001)).breaks(I2);
    beside.and(|t| t.sample(0, (12000, 12100), (0, 1, 0))).breaks(I2);
}

#[test]
fn i2_whose_time_is_up_goes() {
    let waited = |ms: At| {
        Tale::under_way().and(|t| t.attempt(0, 1, (2000, 2000 + ms), (11000, 11001), Outcome::Verdict(400)))
    };
    waited(WAIT_MS + 1).is_excused("waited as long");
    waited(WAIT_MS - 100).breaks(I2);
}

#[test]
fn i2_accepted_lately_is_known_to_one_replica() {
    let accepted = Tale::default().and(|t| {
        t.document(false);
        t.attempt(0, 1, (100, 102), (110, 112), Outcome::Accepted);
        t.attempt(0, 0, (5000, 5002), (9000, 9010), Outcome::Accepted);
    });
    let then =
        |replica| accepted.and(|t| t.attempt(0, replica, (6000, 6002), (6010, 6012), Outcome::Accepted));
    then(1).is_excused("accepted lately");
    then(2).breaks(I2);
    then(1).and(|t| t.trouble(What::Killed(1), 3000, 3100)).breaks(I2);
    then(1).and(|t| t.trouble(What::Killed(2), 3000, 3100)).is_excused("accepted lately");
}

#[test]
fn i2_an_outcome_without_a_verdict_releases_those_who_waited() {
    let tale = |outcome, invoked| {
        Tale::default().and(|t| {
            t.document(false);
            t.attempt(0, 0, (1000, 1002), (2000, 2002), outcome);
            for replica in [1, 2] {
                t.attempt(0, replica, (invoked, invoked.max(2003)), (4000, 4002), Outcome::Neither(503));
            }
        })
    };
    tale(Outcome::Neither(503), 1500).is_excused("released");
    // it came later, and should have waited for the next
    tale(Outcome::Neither(503), 3000).breaks(I2);
    // a verdict releases nobody, unless it could not be recorded
    assert!(check(&tale(Outcome::Verdict(400), 1500).0).violations.iter().all(|v| v.promise == I2));
    assert!(!check(&tale(Outcome::Verdict(400), 1500).0).violations.is_empty());
    tale(Outcome::Verdict(400), 1500).and(|t| t.sample(0, (1990, 2050), (0, 1, 0))).is_excused("released");
}

#[test]
fn i2_a_lease_lapses_when_its_holder_is_away_for_longer_than_it_lives() {
    let beside = |invoked: At| Tale::under_way().and(|t| t.verdict(1, invoked));
    for (what, why) in [
        (What::Killed(0), "stood still or died"),
        (What::Paused(0), "stood still or died"),
        (What::Unreachable(Some(0)), "could not be prolonged"),
        (What::Unreachable(None), "could not be prolonged"),
    ] {
        beside(6000).and(|t| t.trouble(what, 1500, 7000)).is_excused(why);
        beside(5000).and(|t| t.trouble(what, 1500, 7000)).breaks(I2);
        beside(6000).and(|t| t.trouble(what, 5500, 7000)).breaks(I2);
    }
    for other in [What::Killed(2), What::Paused(2), What::Unreachable(Some(1)), What::ReplicaClock(0, 200)] {
        beside(6000).and(|t| t.trouble(other, 1500, 7000)).breaks(I2);
    }
}

#[test]
fn i2_a_store_that_loses_leases_excuses() {
    let beside = Tale::under_way().and(|t| t.verdict(1, 2000));
    beside.and(|t| t.trouble(What::Lost { since: 0 }, 1500, 1510)).is_excused("the store lost the lease");
    beside.and(|t| t.trouble(What::Lost { since: 0 }, 500, 510)).breaks(I2);
    beside.and(|t| t.trouble(What::Lost { since: 0 }, 2500, 2510)).breaks(I2);
    beside
        .and(|t| t.trouble(What::Failover { since: 0 }, 1500, 1600))
        .is_excused("a failover lost the lease");
    beside.and(|t| t.trouble(What::StoreClock(20), 1500, 8000)).is_excused("clock was stepped");
    beside.and(|t| t.trouble(What::StoreClock(20), 500, 8000)).breaks(I2);
    beside.and(|t| t.trouble(What::Full, 1900, 2100)).is_excused("gave no lease");
    beside.and(|t| t.trouble(What::Full, 3000, 3100)).breaks(I2);
    beside.and(|t| t.sample(1, (1900, 2100), (1, 0, 0))).is_excused("look-up failed");
    beside.and(|t| t.sample(2, (1900, 2100), (1, 0, 0))).breaks(I2);
}

#[test]
fn i2_one_without_a_lease_stops_its_own_process_alone() {
    let without = Tale::under_way().and(|t| t.sample(0, (900, 1100), (1, 0, 0)));
    without.and(|t| t.verdict(1, 2000)).is_excused("without a lease");
    without.and(|t| t.verdict(0, 2000)).breaks(I2);
    // it ended with its client
    let left = without.and(|t| (t.0.ops[0].said, t.0.ops[0].returned) = (Said::Left, Some(1500 * MS)));
    left.and(|t| t.verdict(0, 2000)).is_excused("ended with its client");
    left.and(|t| t.verdict(0, 1200)).breaks(I2);
    // a lease that is gone does not free who is in the same process
    let same = Tale::under_way().and(|t| t.verdict(0, 6000));
    same.and(|t| t.trouble(What::Unreachable(None), 1500, 7000)).breaks(I2);
}

#[test]
fn i3_answers_are_the_first_one_s() {
    let tale = Tale::with_verdict().and(|t| {
        let other = t.document(false);
        t.attempt(other, 0, (3000, 3002), (3010, 3012), Outcome::Neither(503));
    });
    tale.and(|t| t.hit(1, 4000, 1)).breaks(I3);
    tale.and(|t| t.hit(1, 4000, 77)).breaks(I3);
    tale.and(|t| t.0.ops[0].said = Said::Answer { status: 422, hit: false, attempt: Some(0) }).breaks(I3);
    let hit = Said::Answer { status: 503, hit: true, attempt: Some(1) };
    tale.and(|t| t.op(1, 1, 4000, 4002, hit)).breaks(I3);
    let anothers = Said::Answer { status: 400, hit: false, attempt: Some(0) };
    tale.and(|t| t.op(0, 1, 4000, 4002, anothers)).breaks(I3);
}

#[test]
fn i6_no_request_fails_but_where_the_replica_is_away() {
    for said in [Said::Own("INTERNAL".to_owned()), Said::Failed("reset".to_owned())] {
        let failed = Tale::with_verdict().and(|t| t.op(0, 1, 2000, 2010, said));
        failed.breaks(I6_FAILED);
        failed.and(|t| t.trouble(What::Killed(1), 1900, 2100)).holds();
        failed.and(|t| t.trouble(What::Killed(2), 1900, 2100)).breaks(I6_FAILED);
        failed.and(|t| t.trouble(What::Killed(1), 3900, 4100)).breaks(I6_FAILED);
        failed.and(|t| t.trouble(What::Unreachable(None), 1900, 2100)).breaks(I6_FAILED);
    }
    Tale::with_verdict().and(|t| t.op(0, 1, 2000, 2010, Said::Left)).holds();
}

#[test]
fn i6_the_store_costs_its_deadline() {
    let hit = |ms: At| {
        let said = Said::Answer { status: 400, hit: true, attempt: Some(0) };
        Tale::with_verdict().and(|t| t.op(0, 1, 3000, 3000 + ms, said))
    };
    hit(READ_MS + 1400).holds();
    hit(READ_MS + 1600).breaks(I6);
    hit(READ_MS + 1600).and(|t| t.0.stalls.push((3000 * MS, 4000 * MS))).holds();
    hit(READ_MS + 1600).and(|t| t.0.stalls.push((1000 * MS, 2000 * MS))).breaks(I6);
    hit(READ_MS + 1600).and(|t| t.trouble(What::Paused(1), 3000, 3100)).holds();
    let recorded = |ms: At| {
        Tale::default().and(|t| {
            t.document(false);
            t.attempt(0, 0, (1000, 1002), (1010, 1010 + ms), Outcome::Verdict(400));
        })
    };
    recorded(WRITE_MS + 1400).holds();
    recorded(WRITE_MS + 1600).breaks(I6);
    // who waits for another may take longer, within bounds
    let waits = |ms: At| {
        Tale::under_way().and(|t| {
            t.attempt(0, 1, (2000, 2000 + ms), (11900, 11901), Outcome::Verdict(400));
        })
    };
    waits(WAIT_MS + READ_MS + 1400).is_excused("waited as long");
    waits(WAIT_MS + READ_MS + 1600).breaks(I6);
}

#[test]
fn i7_a_hit_after_a_forget() {
    let tale = Tale::with_verdict().and(|t| t.forget(0, 1, 2000, 2010));
    tale.and(|t| t.hit(1, 2005, 0)).holds();
    tale.and(|t| t.hit(1, 2011, 0)).breaks(I7);
    tale.and(|t| t.hit(0, 3005, 0)).holds();
    tale.and(|t| t.hit(0, 3011, 0)).breaks(I7);
    // of another document, or in doubt
    let other = Tale::with_verdict().and(|t| t.document(false));
    other.and(|t| t.forget(1, 1, 2000, 2010)).and(|t| t.hit(1, 2011, 0)).holds();
    tale.and(|t| t.0.forgets[0].done = false).and(|t| t.hit(1, 2011, 0)).holds();
    // of an attempt since
    tale.and(|t| t.verdict(0, 3000)).and(|t| t.hit(1, 4000, 1)).is_excused("I1: forgotten");
}

#[test]
fn i7_who_hears_nothing_may_lag_for_five_seconds() {
    let tale = Tale::with_verdict().and(|t| t.forget(0, 1, 2000, 2010));
    for what in
        [What::Unreachable(None), What::Unreachable(Some(0)), What::Paused(0), What::Lost { since: 0 }]
    {
        let deaf = tale.and(|t| t.trouble(what, 1900, 2100));
        deaf.and(|t| t.hit(0, 7005, 0)).holds();
        deaf.and(|t| t.hit(0, 7011, 0)).breaks(I7);
        deaf.and(|t| t.hit(1, 2011, 0)).breaks(I7);
    }
    for what in [What::Unreachable(Some(2)), What::Paused(1), What::Full, What::ReplicaClock(0, 200)] {
        tale.and(|t| t.trouble(what, 1900, 2100)).and(|t| t.hit(0, 4000, 0)).breaks(I7);
    }
    tale.and(|t| t.trouble(What::Unreachable(None), 100, 200)).and(|t| t.hit(0, 4000, 0)).breaks(I7);
}

#[test]
fn i7_a_forget_may_be_lost_in_a_failover() {
    let late = Tale::with_verdict().and(|t| t.forget(0, 1, 2000, 2010)).and(|t| t.hit(1, 9000, 0));
    late.and(|t| t.trouble(What::Failover { since: 1900 * MS }, 2500, 2600)).is_excused("lost the forget");
    // it had been replicated; or the failover was before
    late.and(|t| t.trouble(What::Failover { since: 2100 * MS }, 2500, 2600)).breaks(I7);
    late.and(|t| t.trouble(What::Failover { since: 0 }, 200, 300)).breaks(I7);
    // who loses all loses entries too
    late.and(|t| t.trouble(What::Lost { since: 0 }, 2500, 2600)).breaks(I7);
}

#[test]
fn a_probe_has_no_excuse() {
    let tale = |calls: u64| {
        Tale::default().and(|t| {
            t.document(true);
            for n in 0..calls {
                t.verdict(1, 1000 + 100 * n);
            }
        })
    };
    tale(1).holds();
    tale(2).breaks(PROBE);
    tale(0).breaks(PROBE);
    tale(2).and(|t| t.forget(0, 1, 1050, 1060)).holds();
    for what in [What::Lost { since: 0 }, What::Failover { since: 0 }, What::Unreachable(None), What::Full] {
        tale(2).and(|t| t.trouble(what, 900, 1500)).breaks(PROBE);
    }
    tale(2).and(|t| t.sample(2, (900, 1010), (1, 0, 0))).is_excused("in time");
    tale(2).and(|t| t.sample(2, (2000, 2010), (1, 0, 0))).breaks(PROBE);
}
