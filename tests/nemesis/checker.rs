//! Reads a history and says whether the promises held. Pure: it asks nobody and changes nothing.
//!
//! An attempt that follows another one at the same document is forbidden by I1 or I2 unless it has an excuse. What excuses it has
//! to be about this document, these replicas and this time, and to be admitted: by a counter of the replica (each unit of it
//! excuses one attempt), by what was done to the store, or by a line of the documentation that is named here.

mod admissions;
mod excuses;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::fleet::{JUDGE_MS, READ_MS, WAIT_MS, WRITE_MS};
use crate::history::{At, Attempt, Forget, History, MS, Op, Outcome, SECOND, Said, Shown, What};
use admissions::Admissions;

/// What a busy machine may add to anything that takes time, beside the times in which it is known to have stood still.
const ALLOWANCE: At = 1500 * MS;

pub const I1: &str = "I1: no attempt after an acknowledged verdict";
pub const I2: &str = "I2: no attempt while another's outcome is unknown";
pub const I3: &str = "I3: a replay is the first answer";
pub const I6: &str = "I6: store trouble adds its deadline at most";
pub const I6_FAILED: &str = "I6: no request fails";
pub const I7: &str = "I7: no hit after a forget";
pub const PROBE: &str = "probe: the healed fleet sends a refused document once";

/// A promise that was broken.
#[derive(Clone, Debug)]
pub struct Violation {
    pub promise: &'static str,
    pub document: usize,
    pub at: At,
    what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (document {}, at {}): {}", self.promise, self.document, Shown(self.at), self.what)
    }
}

/// What was found.
#[derive(Debug, Default)]
pub struct Report {
    pub violations: Vec<Violation>,
    /// How many attempts or answers each excuse was used for.
    pub excused: BTreeMap<String, usize>,
    counted: BTreeMap<&'static str, usize>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (what, n) in &self.counted {
            writeln!(f, "{n:>8} {what}")?;
        }
        for (what, n) in &self.excused {
            writeln!(f, "{n:>8} excused: {what}")?;
        }
        for violation in self.violations.iter().take(20) {
            writeln!(f, "VIOLATION {violation}")?;
        }
        Ok(())
    }
}

pub fn check(history: &History) -> Report {
    let mut checker =
        Checker { h: history, admissions: Admissions::new(&history.samples), report: Report::default() };
    checker.count();
    for case in cases(history) {
        if history.documents[case.document].probe {
            checker.probe(&case);
        } else {
            checker.attempts(&case);
        }
        checker.answers(&case);
        checker.forgets(&case);
        checker.delays(&case);
    }
    checker.report.violations.sort_by_key(|violation| violation.at);
    checker.report
}

/// One document: its attempts in the order in which they arrived, and what else is about it.
struct Case<'a> {
    document: usize,
    attempts: Vec<Known<'a>>,
    ops: Vec<&'a Op>,
    forgets: Vec<&'a Forget>,
}

/// An attempt, with the submission that made it.
#[derive(Clone, Copy)]
struct Known<'a> {
    number: usize,
    attempt: &'a Attempt,
    op: &'a Op,
}

impl Known<'_> {
    fn is_verdict(&self) -> bool {
        matches!(self.attempt.outcome, Outcome::Verdict(_))
    }
}

fn cases(h: &History) -> Vec<Case<'_>> {
    let case = |document| Case { document, attempts: Vec::new(), ops: Vec::new(), forgets: Vec::new() };
    let mut cases: Vec<Case<'_>> = (0..h.documents.len()).map(case).collect();
    for (number, attempt) in h.attempts.iter().enumerate() {
        cases[attempt.document].attempts.push(Known { number, attempt, op: &h.ops[attempt.op] });
    }
    for op in &h.ops {
        cases[op.document].ops.push(op);
    }
    for forget in &h.forgets {
        cases[forget.document].forgets.push(forget);
    }
    cases
}

/// Whether two times have a moment in common.
fn overlap(a: (At, At), b: (At, At)) -> bool {
    a.0 <= b.1 && b.0 <= a.1
}

struct Checker<'a> {
    h: &'a History,
    admissions: Admissions<'a>,
    report: Report,
}

impl Checker<'_> {
    fn count(&mut self) {
        let h = self.h;
        let hits = h.ops.iter().filter(|op| matches!(op.said, Said::Answer { hit: true, .. })).count();
        let counted = [
            ("documents", h.documents.len()),
            ("submissions", h.ops.len()),
            ("replays", hits),
            ("attempts", h.attempts.len()),
            ("forgets", h.forgets.len()),
            ("probes", h.documents.iter().filter(|document| document.probe).count()),
            ("troubles", h.troubles.len()),
            ("stalls of the machine", h.stalls.len()),
        ];
        self.report.counted.extend(counted);
    }

    fn violation(&mut self, promise: &'static str, document: usize, at: At, what: String) {
        self.report.violations.push(Violation { promise, document, at, what });
    }

    fn excuse(&mut self, promise: &str, why: &str) {
        let name = promise.split(':').next().unwrap_or(promise);
        *self.report.excused.entry(format!("{name}: {why}")).or_default() += 1;
    }

    /// The healed fleet: one attempt, and one more after each forget.
    fn probe(&mut self, case: &Case<'_>) {
        let expected = 1 + case.forgets.iter().filter(|forget| forget.done).count();
        // one that was in doubt may have been carried out
        let most = 1 + case.forgets.len();
        if !(expected..=most).contains(&case.attempts.len()) {
            let at = case.ops.first().map_or(0, |op| op.invoked);
            let until = case.ops.iter().filter_map(|op| op.returned).max().unwrap_or(At::MAX);
            let failed = self
                .h
                .samples
                .iter()
                .any(|s| s.unknown + s.not_recorded > 0 && overlap((s.from, s.to), (at, until)));
            if failed {
                // whoever probes tries again
                return self.excuse(
                    PROBE,
                    "a probe in which the store did not answer in time, as a replica counted",
                );
            }
            let what = format!("{} attempts, not {expected}", case.attempts.len());
            self.violation(PROBE, case.document, at, what);
        }
    }

    /// I1 and I2.
    fn attempts(&mut self, case: &Case<'_>) {
        for (n, later) in case.attempts.iter().enumerate() {
            let mut used = BTreeSet::new();
            for earlier in &case.attempts[..n] {
                let acknowledged = case.acknowledged(earlier);
                let under_way = later.attempt.arrived < earlier.attempt.due;
                let promise = match acknowledged {
                    Some(at) if earlier.is_verdict() && at < later.op.invoked => I1,
                    // it came before the verdict was told, and so waited for it
                    Some(_) if earlier.is_verdict() => I2,
                    _ if under_way => I2,
                    _ => continue,
                };
                // no outcome was known by then; or one that binds
                let mut excuse = None;
                if !under_way {
                    excuse = self.not_remembered(case, earlier, later);
                }
                if excuse.is_none() && promise == I2 {
                    excuse = self.goes_beside(case, earlier, later);
                }
                match excuse {
                    Some(why) if used.insert((promise, why)) => self.excuse(promise, why),
                    Some(_) => {}
                    None => {
                        let what = format!(
                            "attempt {} of replica {} after attempt {} of replica {}, acknowledged at {}",
                            later.number,
                            later.op.replica,
                            earlier.number,
                            earlier.op.replica,
                            Shown(acknowledged.unwrap_or(At::MAX)),
                        );
                        self.violation(promise, case.document, later.attempt.arrived, what);
                        break;
                    }
                }
            }
        }
    }

    /// I3: who is answered from the memory gets a verdict on this document, and who is not gets the answer to its own attempt.
    fn answers(&mut self, case: &Case<'_>) {
        for op in &case.ops {
            let Said::Answer { status, hit, attempt } = &op.said else { continue };
            let made = attempt.and_then(|number| self.h.attempts.get(number));
            let right = made.is_some_and(|made| {
                made.document == case.document
                    && made.outcome.status() == *status
                    && op.returned.is_some_and(|returned| made.due <= returned)
                    && if *hit {
                        matches!(made.outcome, Outcome::Verdict(_))
                    } else {
                        std::ptr::eq(&raw const self.h.ops[made.op], *op)
                    }
            });
            if !right {
                let at = op.returned.unwrap_or(op.invoked);
                self.violation(I3, case.document, at, format!("{:?} is not {made:?}", op.said));
            }
        }
    }

    /// I7.
    fn forgets(&mut self, case: &Case<'_>) {
        for op in &case.ops {
            let Said::Answer { hit: true, attempt: Some(number), .. } = op.said else { continue };
            let Some(made) = self.h.attempts.get(number) else { continue };
            for forget in case.forgets.iter().filter(|f| f.done && made.arrived < f.invoked) {
                let bound = self.bound(forget, op);
                if op.invoked <= forget.ended + bound {
                    continue;
                }
                match self.forget_lost(forget, op) {
                    Some(why) => self.excuse(I7, why),
                    None => {
                        let what = format!(
                            "a replay of attempt {number} by replica {}, asked for at {}, after a forget by replica {} that ended at {}",
                            op.replica,
                            Shown(op.invoked),
                            forget.replica,
                            Shown(forget.ended)
                        );
                        self.violation(I7, case.document, op.invoked, what);
                        break;
                    }
                }
            }
        }
    }

    /// I6: a request that comes to a replica which runs is answered, and in time.
    fn delays(&mut self, case: &Case<'_>) {
        for (n, op) in case.ops.iter().enumerate() {
            let Some(returned) = op.returned else { continue };
            let held_up = self.h.troubles.iter().any(|t| {
                matches!(t.what, What::Killed(r) | What::Paused(r) if r == op.replica)
                    && overlap((t.from, t.healed + SECOND), (op.invoked, returned))
            });
            let attempt = match &op.said {
                Said::Answer { attempt, hit, .. } => attempt
                    .and_then(|number| self.h.attempts.get(number))
                    .filter(|made| !hit && std::ptr::eq(&raw const self.h.ops[made.op], *op)),
                Said::Left => continue,
                Said::Own(_) | Said::Failed(_) if held_up => continue,
                Said::Own(_) | Said::Failed(_) => {
                    self.violation(I6_FAILED, case.document, returned, format!("{:?}", op.said));
                    continue;
                }
            };
            if held_up {
                continue;
            }
            let sent = attempt.map_or(returned, |attempt| attempt.arrived);
            let mut before = READ_MS * MS;
            if case.may_wait(n, self.h) {
                before += WAIT_MS * MS;
            }
            self.in_time(case, "before it went up or was answered", (op.invoked, sent), before);
            if let Some(attempt) = attempt {
                let after = match attempt.outcome {
                    Outcome::Verdict(_) => WRITE_MS * MS,
                    Outcome::Accepted => JUDGE_MS * MS,
                    Outcome::Neither(_) => 0,
                };
                self.in_time(case, "after the upstream's answer", (attempt.due, returned), after);
            }
        }
    }

    fn in_time(&mut self, case: &Case<'_>, when: &str, (from, to): (At, At), budget: At) {
        let stood: At =
            self.h.stalls.iter().filter(|s| overlap(**s, (from, to))).map(|(from, to)| to - from).sum();
        let took = to.saturating_sub(from);
        if took > budget + ALLOWANCE + stood {
            let what = format!("{} ms {when}, of {} ms that it may take", took / MS, budget / MS);
            self.violation(I6, case.document, to, what);
        }
    }
}

impl Case<'_> {
    /// When a caller was first told of this attempt's verdict, live or as a replay.
    fn acknowledged(&self, of: &Known<'_>) -> Option<At> {
        let told = self.ops.iter().filter(|op| match op.said {
            Said::Answer { attempt, .. } => attempt == Some(of.number),
            _ => false,
        });
        told.filter_map(|op| op.returned).min()
    }

    /// Whether somebody else's attempt may have held this request up: another request for the document was there, or had been a
    /// moment ago at a replica that could not say how it ended.
    fn may_wait(&self, n: usize, h: &History) -> bool {
        let op = self.ops[n];
        let time = (op.invoked, op.returned.unwrap_or(At::MAX));
        let other =
            self.ops.iter().enumerate().any(|(m, other)| {
                m != n && overlap((other.invoked, other.returned.unwrap_or(At::MAX)), time)
            });
        let detached = self.attempts.iter().any(|known| {
            !std::ptr::eq(known.op, op) && overlap((known.attempt.arrived, known.attempt.due + SECOND), time)
        });
        let orphan = h.troubles.iter().any(|t| overlap((t.from, t.settled.saturating_add(6 * SECOND)), time));
        other || detached || orphan
    }
}
