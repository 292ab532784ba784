//! What was learned while the store could not be told: verdicts, and acceptances. Kept in the order in which it was learned, a
//! thousand verdicts and some thousand acceptances at most, and told when the store is back.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use nevertwice_domain::clock::Millis;
use nevertwice_domain::entry::{Candidate, Entry, Selector};
use nevertwice_domain::fingerprint::Fingerprint;
use nevertwice_domain::tenant::UpstreamName;

use super::{Shared, is_passing};
use crate::{Fence, Recorded};

/// So many verdicts wait, and so many bytes of bodies.
const MOST: usize = 1000;
/// So many acceptances wait: of all that is accepted, while hardly any of it was ever refused. They leave the verdicts their room.
const MOST_ACCEPTED: usize = 8192;
const BYTES: usize = 16 << 20;
/// How old something may be that is told late.
const OLD_MS: u64 = 60 * 60 * 1000;
/// How long a verdict lives at most that is told late: another process may have seen the document accepted meanwhile.
const LIFE_MS: u64 = 60 * 60 * 1000;

/// What waits.
#[derive(Debug, Default)]
pub(super) struct Late {
    waiting: VecDeque<Learned>,
    /// The number of the latest that was learned.
    number: u64,
}

#[derive(Clone, Debug)]
struct Learned {
    number: u64,
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
        if self.waiting.iter().any(|learned| learned.key == key && matches!(learned.what, What::Accepted(_)))
        {
            return true;
        }
        if !candidate.life.needs_strikes() {
            // a document that is refused again and again takes one place; the latest attempt is the least likely to be fenced
            self.drop_verdicts(|other, _| other.fingerprint == key);
        }
        let verdicts = self.waiting.iter().filter(|learned| !learned.is_acceptance()).count();
        let bytes: usize = self.waiting.iter().map(Learned::bytes).sum();
        let room = verdicts < MOST && bytes + candidate.entry.body.len() <= BYTES;
        if room {
            self.push(key, at, What::Verdict(Box::new(candidate), fence));
        }
        room
    }

    /// Keeps an acceptance in place of the verdicts before it, and of the oldest acceptance if there is no room.
    pub(super) fn accepted(&mut self, key: Fingerprint, upstream: UpstreamName, at: Millis) {
        self.waiting.retain(|learned| learned.key != key);
        if self.waiting.iter().filter(|learned| learned.is_acceptance()).count() == MOST_ACCEPTED
            && let Some(oldest) = self.waiting.iter().position(Learned::is_acceptance)
        {
            self.waiting.remove(oldest);
        }
        self.push(key, at, What::Accepted(upstream));
    }

    /// An acceptance reached the store: nothing from before it counts.
    pub(super) fn accepted_now(&mut self, key: &Fingerprint) {
        self.waiting.retain(|learned| learned.key != *key);
    }

    pub(super) fn forget(&mut self, which: &Selector) {
        self.drop_verdicts(|e, at| {
            which.matches(&e.fingerprint, &e.document.digest, &e.upstream, e.status.get(), at)
        });
    }

    fn drop_verdicts(&mut self, goes: impl Fn(&Entry, Millis) -> bool) {
        self.waiting.retain(|learned| {
            !matches!(&learned.what, What::Verdict(candidate, _) if goes(&candidate.entry, learned.at))
        });
    }

    fn push(&mut self, key: Fingerprint, at: Millis, what: What) {
        self.number += 1;
        self.waiting.push_back(Learned { number: self.number, key, at, what });
    }

    /// The first that is not too old.
    fn first(&mut self, now: Millis) -> Option<Learned> {
        while self.waiting.front().is_some_and(|learned| now.since_ms(learned.at) > OLD_MS) {
            self.waiting.pop_front();
        }
        self.waiting.front().cloned()
    }

    /// It was told. Returns whether it still was to be told: what was learned of the document since is another thing.
    fn told(&mut self, number: u64) -> bool {
        let still = self.waiting.front().is_some_and(|learned| learned.number == number);
        if still {
            self.waiting.pop_front();
        }
        still
    }
}

/// Tells what waits, until something cannot be told. One task does it at a time.
pub(super) async fn tell(shared: &Arc<Shared>) {
    while !shared.closed.load(Ordering::Acquire) {
        // it stays there until it is told: who forgets or accepts meanwhile finds it
        let Some(learned) = shared.late().first(shared.now()) else { return };
        let (number, key) = (learned.number, learned.key);
        let told = match learned.what {
            What::Verdict(candidate, fence) => match shared.record(&candidate, fence).await {
                Ok(recorded) => Ok(matches!(recorded, Recorded::Stored(_))),
                Err(unrecorded) if unrecorded.may_be_told_again(&candidate) => return,
                Err(unrecorded) => Err(unrecorded.error),
            },
            What::Accepted(upstream) => match shared.accept(&key, &upstream).await {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::samples;

    fn verdict(late: &mut Late, n: u64) -> bool {
        late.verdict(samples::candidate(n), Fence(1), Millis(0))
    }

    fn keys(late: &Late) -> Vec<Fingerprint> {
        late.waiting.iter().map(|learned| learned.key).collect()
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
        assert_eq!(keys(&late), [samples::fingerprint(0), samples::fingerprint(3)]);
        late.forget(&Selector::default());
        assert_eq!(keys(&late), [samples::fingerprint(3)], "an acceptance is not forgotten");
        let number = late.first(Millis(0)).map_or(0, |learned| learned.number);
        assert!(late.told(number) && !late.told(number));
    }

    #[test]
    fn an_acceptance_that_came_while_a_verdict_was_told_is_still_to_be_told() {
        let (mut late, key) = (Late::default(), samples::fingerprint(1));
        assert!(verdict(&mut late, 1));
        let on_its_way = late.first(Millis(0)).map_or(0, |learned| learned.number);
        late.accepted(key, samples::upstream("ocr"), Millis(1));
        assert!(!late.told(on_its_way), "it does not count any more");
        assert_eq!(keys(&late), [key]);
        // and what was being recorded when the document was accepted does not come after that
        assert!(verdict(&mut late, 1) && verdict(&mut late, 2));
        assert_eq!(keys(&late), [key, samples::fingerprint(2)]);
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
    fn good_traffic_leaves_room_for_verdicts_and_the_latest_of_it_is_kept() {
        let mut late = Late::default();
        assert!(verdict(&mut late, 1));
        for n in 0..MOST_ACCEPTED as u64 + 5 {
            late.accepted(samples::fingerprint(1000 + n), samples::upstream("ocr"), Millis(0));
        }
        assert!(verdict(&mut late, 2));
        let kept = keys(&late);
        assert_eq!(kept.len(), MOST_ACCEPTED + 2);
        assert_eq!(kept[..2], [samples::fingerprint(1), samples::fingerprint(1005)]);
    }
}
