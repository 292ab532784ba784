//! What the replicas admit by their counters: so many look-ups failed in this time, so many verdicts were not recorded. Each unit
//! excuses one attempt, so what is excused is never more than what was admitted.

use std::collections::HashMap;

use crate::history::{At, Sample};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Admitted {
    /// A look-up failed.
    Unknown,
    /// A verdict was not recorded because of the store.
    NotRecorded,
    /// A verdict was not recorded because of something that came after its attempt began.
    Fenced,
}

/// Something that has to be admitted: by this replica, within this time.
#[derive(Clone, Copy, Debug)]
pub struct Claim {
    pub what: Admitted,
    pub attempt: usize,
    pub replica: usize,
    pub from: At,
    pub to: At,
}

pub struct Admissions<'a> {
    samples: &'a [Sample],
    /// The claims that each unit of each sample meets.
    given: HashMap<(usize, Admitted), Vec<Claim>>,
    answers: HashMap<(usize, Admitted), Option<&'static str>>,
}

impl<'a> Admissions<'a> {
    pub fn new(samples: &'a [Sample]) -> Self {
        Self { samples, given: HashMap::new(), answers: HashMap::new() }
    }

    /// Whether there is something that the claim may be about; it takes nothing from others. For what is not the excuse itself.
    pub fn may_admit(&self, claim: Claim) -> bool {
        self.matching(claim).into_iter().any(|n| self.samples[n].blind || self.units(n, claim.what) > 0)
    }

    fn units(&self, n: usize, what: Admitted) -> usize {
        match what {
            Admitted::Unknown => self.samples[n].unknown,
            Admitted::NotRecorded => self.samples[n].not_recorded,
            Admitted::Fenced => self.samples[n].fenced,
        }
    }

    /// Whether the claim is admitted; the same answer for the same attempt each time.
    pub fn admits(&mut self, claim: Claim) -> Option<&'static str> {
        let name = (claim.attempt, claim.what);
        if let Some(answer) = self.answers.get(&name) {
            return *answer;
        }
        let answer = match claim.what {
            _ if !self.place(claim, &mut vec![false; self.samples.len()]) => self.died_untold(claim),
            Admitted::Unknown => Some("its look-up failed, as the replica counted"),
            Admitted::NotRecorded => Some("not recorded because of the store, as the replica counted"),
            Admitted::Fenced => {
                Some("fenced, as the replica counted: it last heard of the store before a loss or a forget")
            }
        };
        self.answers.insert(name, answer);
        answer
    }

    /// Finds a unit for the claim; one that is taken is freed if its claim finds another.
    fn place(&mut self, claim: Claim, visited: &mut [bool]) -> bool {
        for n in self.matching(claim) {
            if std::mem::replace(&mut visited[n], true) {
                continue;
            }
            let units = self.units(n, claim.what);
            let place = (n, claim.what);
            let taken = self.given.entry(place).or_default().clone();
            if taken.len() < units {
                self.given.entry(place).or_default().push(claim);
                return true;
            }
            for (at, other) in taken.into_iter().enumerate() {
                if self.place(other, visited) {
                    self.given.entry(place).or_default()[at] = claim;
                    return true;
                }
            }
        }
        false
    }

    fn matching(&self, claim: Claim) -> Vec<usize> {
        let fits = |s: &Sample| s.replica == claim.replica && s.from <= claim.to && claim.from <= s.to;
        (0..self.samples.len()).filter(|n| fits(&self.samples[*n])).collect()
    }

    fn died_untold(&self, claim: Claim) -> Option<&'static str> {
        let blind = self.matching(claim).into_iter().any(|n| self.samples[n].blind);
        blind.then_some("the replica was killed a moment later, with its counters")
    }
}
