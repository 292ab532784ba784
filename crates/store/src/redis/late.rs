//! What was learned while the store could not be told: verdicts, and acceptances. Kept in the order in which it was learned, a
//! thousand verdicts and some thousand acceptances at most, and told when the store is back. What comes and goes costs the same however
//! much waits: every acceptance of an outage passes here.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use nevertwice_domain::clock::Millis;
use nevertwice_domain::entry::{Candidate, Selector};
use nevertwice_domain::fingerprint::Fingerprint;
use nevertwice_domain::tenant::UpstreamName;

use super::{Shared, is_passing};
use crate::{Fence, Recorded, StoreError};

/// So many verdicts wait, and so many bytes of bodies.
const MOST: usize = 1000;
/// So many acceptances wait: of all that is accepted, while hardly any of it was ever refused. They leave the verdicts their room.
const MOST_ACCEPTED: usize = 8192;
const BYTES: usize = 16 << 20;
/// How old something may be that is told late.
const OLD_MS: u64 = 60 * 60 * 1000;
/// How long a verdict lives at most that is told late: another process may have seen the document accepted meanwhile.
const LIFE_MS: u64 = 60 * 60 * 1000;
/// What was recorded so long after an acceptance is newer: as long as an attempt takes, since it may have been sent before, and more than
/// the clocks of two processes differ.
const DOUBT_MS: u64 = 60_000;

/// What waits, each under its number, which goes up: in the order in which it was learned.
#[derive(Debug, Default)]
pub(super) struct Late {
    waiting: BTreeMap<u64, Learned>,
    /// The numbers of what waits, by document.
    of: BTreeSet<(Fingerprint, u64)>,
    /// The numbers of acceptances.
    acceptances: BTreeSet<u64>,
    /// Of the bodies of verdicts.
    bytes: usize,
    /// The number of the latest that was learned.
    number: u64,
}

#[derive(Clone, Debug)]
struct Learned {
    key: Fingerprint,
    at: Millis,
    what: What,
}

#[derive(Clone, Debug)]
enum What {
    /// A verdict, with the fence of its attempt.
    Verdict(Box<Candidate>, Fence),
    /// The upstream accepted the document.
    Accepted(UpstreamName),
}

impl Learned {
    fn is_acceptance(&self) -> bool {
        matches!(self.what, What::Accepted(_))
    }

    fn bytes(&self) -> usize {
        match &self.what {
            What::Verdict(candidate, _) => candidate.entry.body.len(),
            What::Accepted(_) => 0,
        }
    }
}

impl Late {
    /// Keeps a verdict, if there is room. Returns whether it did. Behind an acceptance of the document there is nothing to keep: the
    /// attempt may be from before it.
    pub(super) fn verdict(&mut self, mut candidate: Candidate, fence: Fence, at: Millis) -> bool {
        candidate.life = candidate.life.capped(LIFE_MS);
        let key = candidate.entry.fingerprint;
        if self.numbers_of(&key).iter().any(|number| self.acceptances.contains(number)) {
            return true;
        }
        if !candidate.life.needs_strikes() {
            // a document that is refused again and again takes one place; the latest attempt is the least likely to be fenced
            self.forget(&Selector::key(key));
        }
        let verdicts = self.waiting.len() - self.acceptances.len();
        let room = verdicts < MOST && self.bytes + candidate.entry.body.len() <= BYTES;
        if room {
            self.push(Learned { key, at, what: What::Verdict(Box::new(candidate), fence) });
        }
        room
    }

    /// Keeps an acceptance in place of what was learned of the document before it, and of the oldest acceptance if there is no room.
    pub(super) fn accepted(&mut self, key: Fingerprint, upstream: UpstreamName, at: Millis) {
        self.accepted_now(&key);
        if self.acceptances.len() == MOST_ACCEPTED
            && let Some(oldest) = self.acceptances.first().copied()
        {
            self.remove(oldest);
        }
        self.push(Learned { key, at, what: What::Accepted(upstream) });
    }

    /// An acceptance reached the store: nothing from before it counts.
    pub(super) fn accepted_now(&mut self, key: &Fingerprint) {
        for number in self.numbers_of(key) {
            self.remove(number);
        }
    }

    /// These verdicts are not to be told: they were forgotten, or another process has seen the document accepted.
    pub(super) fn forget(&mut self, which: &Selector) {
        let candidates = match &which.fingerprint {
            Some(key) => self.numbers_of(key),
            None => self.waiting.keys().copied().collect(),
        };
        let selects = |number: &u64| match self.waiting.get(number) {
            Some(Learned { at, what: What::Verdict(candidate, _), .. }) => {
                let e = &candidate.entry;
                which.matches(&e.fingerprint, &e.document.digest, &e.upstream, e.status.get(), *at)
            }
            _ => false,
        };
        for number in candidates.into_iter().filter(selects).collect::<Vec<_>>() {
            self.remove(number);
        }
    }

    /// The upstream refused documents that it should not have refused: what was learned since then is not to be told, or until then.
    pub(super) fn suspect(&mut self, upstream: &UpstreamName, since: Millis, until: Option<Millis>) {
        let of = |learned: &Learned| {
            learned.at >= since
                && until.is_none_or(|until| learned.at <= until)
                && matches!(&learned.what, What::Verdict(candidate, _) if candidate.entry.upstream == *upstream)
        };
        let numbers: Vec<_> = self.waiting.iter().filter(|(_, l)| of(l)).map(|(n, _)| *n).collect();
        for number in numbers {
            self.remove(number);
        }
    }

    fn numbers_of(&self, key: &Fingerprint) -> Vec<u64> {
        self.of.range((*key, 0)..=(*key, u64::MAX)).map(|(_, number)| *number).collect()
    }

    fn push(&mut self, learned: Learned) {
        self.number += 1;
        self.of.insert((learned.key, self.number));
        if learned.is_acceptance() {
            self.acceptances.insert(self.number);
        }
        self.bytes += learned.bytes();
        self.waiting.insert(self.number, learned);
    }

    /// Returns whether it was there.
    fn remove(&mut self, number: u64) -> bool {
        let Some(learned) = self.waiting.remove(&number) else { return false };
        self.of.remove(&(learned.key, number));
        self.acceptances.remove(&number);
        self.bytes -= learned.bytes();
        true
    }

    /// The first that is not too old, with its number.
    fn first(&mut self, now: Millis) -> Option<(u64, Learned)> {
        loop {
            let (number, learned) = self.waiting.first_key_value()?;
            if now.since_ms(learned.at) <= OLD_MS {
                return Some((*number, learned.clone()));
            }
            let number = *number;
            self.remove(number);
        }
    }

    /// The documents of what waits.
    #[cfg(test)]
    pub(super) fn keys(&self) -> Vec<Fingerprint> {
        self.waiting.values().map(|learned| learned.key).collect()
    }

    /// It was told. Returns whether it still was to be told: what was learned of the document since is another thing.
    fn told(&mut self, number: u64) -> bool {
        self.remove(number)
    }
}

/// Tells what waits, until something cannot be told. One task does it at a time.
pub(super) async fn tell(shared: &Arc<Shared>) {
    while !shared.closed.load(Ordering::Acquire) {
        // it stays there until it is told: who forgets or accepts meanwhile finds it
        let Some((number, Learned { key, at, what })) = shared.late().first(shared.now()) else { return };
        let told = match what {
            What::Verdict(candidate, fence) => match shared.record(&candidate, fence, Some(at)).await {
                Ok(recorded) => Ok(matches!(recorded, Recorded::Stored(_))),
                Err(unrecorded) if unrecorded.may_be_told_again(&candidate) => return,
                Err(unrecorded) => Err(unrecorded.error),
            },
            What::Accepted(upstream) => match tell_acceptance(shared, &key, &upstream, at).await {
                Ok(_) => Ok(false),
                Err(error) if is_passing(&error) => return,
                Err(error) => Err(error),
            },
        };
        match told {
            Err(error) => {
                tracing::debug!(%error, fingerprint = %key, "learned while the refusal store was away, and lost");
                shared.late().told(number);
            }
            Ok(stored) => {
                if !shared.late().told(number) && stored {
                    // accepted or forgotten while it was being written
                    let _ = shared.forget_key(&key).await;
                }
            }
        }
    }
}

/// The entry goes, unless it is surely newer. One that goes by mistake costs a call, one that stays by mistake keeps a good document away.
async fn tell_acceptance(
    shared: &Shared,
    key: &Fingerprint,
    upstream: &UpstreamName,
    at: Millis,
) -> Result<bool, StoreError> {
    let known = shared.look(key, None).await.ok().and_then(|(entry, ..)| entry);
    let is_newer = known.is_some_and(|entry| entry.recorded_at.since_ms(at) > DOUBT_MS);
    shared.accept(key, upstream, !is_newer).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::samples;

    fn verdict(late: &mut Late, n: u64) -> bool {
        late.verdict(samples::candidate(n), Fence(1), Millis(0))
    }

    #[test]
    fn what_was_forgotten_or_accepted_since_does_not_wait() {
        let mut late = Late::default();
        for n in 0..4 {
            assert!(verdict(&mut late, n));
        }
        late.forget(&Selector::key(samples::fingerprint(1)));
        late.accepted_now(&samples::fingerprint(2));
        late.accepted(samples::fingerprint(3), samples::upstream("ocr"), Millis(0));
        assert_eq!(late.keys(), [samples::fingerprint(0), samples::fingerprint(3)]);
        late.forget(&Selector::default());
        assert_eq!(late.keys(), [samples::fingerprint(3)], "an acceptance is not forgotten");
        let number = late.first(Millis(0)).map_or(0, |(number, _)| number);
        assert!(late.told(number) && !late.told(number));
    }

    #[test]
    fn an_acceptance_that_came_while_a_verdict_was_told_is_still_to_be_told() {
        let (mut late, key) = (Late::default(), samples::fingerprint(1));
        assert!(verdict(&mut late, 1));
        let on_its_way = late.first(Millis(0)).map_or(0, |(number, _)| number);
        late.accepted(key, samples::upstream("ocr"), Millis(1));
        assert!(!late.told(on_its_way), "it does not count any more");
        assert_eq!(late.keys(), [key]);
        // and what was being recorded when the document was accepted does not come after that
        assert!(verdict(&mut late, 1) && verdict(&mut late, 2));
        assert_eq!(late.keys(), [key, samples::fingerprint(2)]);
    }

    #[test]
    fn it_is_bounded_and_one_document_takes_one_place() {
        let mut late = Late::default();
        for _ in 0..2000 {
            assert!(verdict(&mut late, 7));
        }
        assert_eq!(late.waiting.len(), 1);
        let kept = (100..2100).filter(|n| verdict(&mut late, *n)).count();
        assert_eq!((kept, late.waiting.len()), (MOST - 1, MOST));
        assert!(late.first(Millis(i64::try_from(OLD_MS).unwrap_or(0) + 1)).is_none());
        assert!(late.waiting.is_empty(), "all are too old");

        let mut large = samples::candidate(1);
        large.entry.body = vec![0; BYTES / 2 + 1].into();
        assert!(late.verdict(large.clone(), Fence(1), Millis(0)));
        large.entry.fingerprint = samples::fingerprint(2);
        assert!(!late.verdict(large, Fence(1), Millis(0)), "its body is one too many");
    }

    #[test]
    fn it_is_known_by_all_its_sides_alike() {
        let mut late = Late::default();
        let ocr = || samples::upstream("ocr");
        for n in 0..2000_u64 {
            let key = samples::fingerprint(n * 7 % 31);
            let confirmed = Candidate { life: samples::confirmed(2), ..samples::candidate(n * 7 % 31) };
            match n % 13 {
                0 | 5 => late.accepted(key, ocr(), Millis(0)),
                1 => late.accepted_now(&key),
                2 => late.forget(&Selector::key(key)),
                3 => {
                    let first = late.first(Millis(0)).map_or(0, |(number, _)| number);
                    late.told(first);
                }
                4 => _ = verdict(&mut late, n % 31),
                _ => _ = late.verdict(confirmed, Fence(1), Millis(0)),
            }
            let numbers: BTreeSet<_> = late.waiting.iter().map(|(number, l)| (l.key, *number)).collect();
            assert_eq!(late.of, numbers);
            let accepted: BTreeSet<_> =
                late.waiting.iter().filter(|(_, l)| l.is_acceptance()).map(|(number, _)| *number).collect();
            assert_eq!(late.acceptances, accepted);
            assert_eq!(late.bytes, late.waiting.values().map(Learned::bytes).sum::<usize>());
            for number in accepted {
                let alone = late.numbers_of(&late.waiting[&number].key);
                assert_eq!(alone, [number], "nothing else of it counts");
            }
        }
        late.forget(&Selector { upstream: Some(ocr()), ..Selector::default() });
        assert!(!late.waiting.is_empty() && late.waiting.values().all(Learned::is_acceptance));
    }

    #[test]
    fn good_traffic_leaves_room_for_verdicts_and_the_latest_of_it_is_kept() {
        let mut late = Late::default();
        assert!(verdict(&mut late, 1));
        for n in 0..MOST_ACCEPTED as u64 + 5 {
            late.accepted(samples::fingerprint(1000 + n), samples::upstream("ocr"), Millis(0));
        }
        assert!(verdict(&mut late, 2));
        let kept = late.keys();
        assert_eq!(kept.len(), MOST_ACCEPTED + 2);
        assert_eq!(kept[..2], [samples::fingerprint(1), samples::fingerprint(1005)]);
    }
}
