//! Attempts under way, by fingerprint: at most one at a time, unless there is a reason.
//!
//! The first request with a fingerprint makes the attempt, later ones wait for how it lands. A recorded verdict is theirs
//! too; anything else releases all of them at once. An attempt that is dropped is no outcome: when no other is under way,
//! one of those who wait makes the next. So nobody waits for requests that have all ended.
//!
//! Success beats memory: an acceptance, of this process or heard from another one, overtakes the attempts that are under way, which do
//! not record after it.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use nevertwice_domain::fingerprint::Fingerprint;
use nevertwice_store::redis::HeldLease;
use tokio::sync::watch;

use crate::lock::Lock;

const SHARDS: usize = 16;

/// All attempts under way in this process. Bounded by the requests under way.
pub(crate) struct Flights {
    shards: [Lock<HashMap<Fingerprint, Flight>>; SHARDS],
    hasher: RandomState,
}

struct Flight {
    /// Attempts at the upstream with this fingerprint.
    attempts: u32,
    /// How often the document was accepted meanwhile.
    acceptances: u64,
    /// How many of them are recording a verdict.
    recording: u32,
    /// Made for the first one who waits: nearly all attempts land without.
    landing: Option<watch::Sender<Landing>>,
}

impl Flight {
    fn new(attempts: u32) -> Self {
        Self { attempts, acceptances: 0, recording: 0, landing: None }
    }

    fn tell(&mut self, landing: Landing) {
        if let Some(waiting) = self.landing.take() {
            waiting.send_replace(landing);
        }
    }
}

/// How an attempt ended, for those who wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Landing {
    /// It has not.
    InFlight,
    /// With a recorded verdict: the answer of all.
    Verdict,
    /// With anything else: everybody goes upstream.
    NoVerdict,
    /// It was given up before anything was known: one of those who wait makes the next.
    GivenUp,
}

/// What a request may do.
pub(crate) enum Boarding {
    /// It makes the attempt.
    Attempt(Attempt),
    /// Another one does; this is how it will be known.
    Wait(watch::Receiver<Landing>),
}

/// One attempt. It ends at the latest when it is dropped.
pub(crate) struct Attempt {
    flights: Arc<Flights>,
    fingerprint: Fingerprint,
    leads: bool,
    /// The acceptances before it was sent.
    acceptances: u64,
    /// That no other process makes it meanwhile.
    lease: Option<HeldLease>,
    landed: bool,
}

/// An attempt that records its verdict, until it is dropped.
pub(crate) struct Recording<'a>(&'a Attempt);

impl Default for Flights {
    fn default() -> Self {
        Self { shards: std::array::from_fn(|_| Lock::default()), hasher: RandomState::new() }
    }
}

impl Flights {
    fn shard(&self, fingerprint: &Fingerprint) -> &Lock<HashMap<Fingerprint, Flight>> {
        let hash = usize::try_from(self.hasher.hash_one(fingerprint) % SHARDS as u64).unwrap_or(0);
        &self.shards[hash]
    }

    /// Makes the attempt if there is none under way, else waits.
    pub(crate) fn board(self: &Arc<Self>, fingerprint: Fingerprint) -> Boarding {
        let mut shard = self.shard(&fingerprint).hold();
        if let Some(flight) = shard.get_mut(&fingerprint) {
            let landing = flight.landing.get_or_insert_with(|| watch::Sender::new(Landing::InFlight));
            return Boarding::Wait(landing.subscribe());
        }
        shard.insert(fingerprint, Flight::new(1));
        drop(shard);
        Boarding::Attempt(self.attempt(fingerprint, true, 0))
    }

    /// Makes an attempt whatever else is under way.
    pub(crate) fn join(self: &Arc<Self>, fingerprint: Fingerprint) -> Attempt {
        let mut shard = self.shard(&fingerprint).hold();
        let flight = shard.entry(fingerprint).or_insert_with(|| Flight::new(0));
        flight.attempts += 1;
        let (leads, acceptances) = (flight.attempts == 1, flight.acceptances);
        drop(shard);
        self.attempt(fingerprint, leads, acceptances)
    }

    fn attempt(self: &Arc<Self>, fingerprint: Fingerprint, leads: bool, acceptances: u64) -> Attempt {
        Attempt { flights: Arc::clone(self), fingerprint, leads, acceptances, lease: None, landed: false }
    }

    /// The document was accepted, here or elsewhere: that overtakes the attempts under way. Returns whether one of them is recording
    /// at this moment: that one the store has to fence off.
    pub(crate) fn accepted(&self, fingerprint: &Fingerprint) -> bool {
        let mut shard = self.shard(fingerprint).hold();
        shard.get_mut(fingerprint).is_some_and(|flight| {
            flight.acceptances += 1;
            flight.recording > 0
        })
    }

    /// Requests that wait for a landing now.
    #[cfg(test)]
    fn waiting(&self, fingerprint: &Fingerprint) -> usize {
        self.shard(fingerprint)
            .hold()
            .get(fingerprint)
            .map_or(0, |f| f.landing.as_ref().map_or(0, watch::Sender::receiver_count))
    }
}

impl Attempt {
    /// Whether it began with no other under way, so that others may wait for it: it runs on when its own client leaves.
    pub(crate) fn leads(&self) -> bool {
        self.leads
    }

    fn with_flight<T>(&self, act: impl FnOnce(&mut Flight) -> T) -> Option<T> {
        self.flights.shard(&self.fingerprint).hold().get_mut(&self.fingerprint).map(act)
    }

    /// It has not been sent: what was accepted up to now does not overtake it.
    pub(crate) fn begins_now(&mut self) {
        self.acceptances = self.with_flight(|flight| flight.acceptances).unwrap_or(0);
    }

    /// Whether the document was accepted since it was sent, as far as this process has heard.
    pub(crate) fn is_overtaken(&self) -> bool {
        self.with_flight(|flight| flight.acceptances != self.acceptances).unwrap_or(true)
    }

    /// It records its verdict; `None` = it was overtaken.
    pub(crate) fn record(&self) -> Option<Recording<'_>> {
        let recording = self.with_flight(|flight| {
            let in_time = flight.acceptances == self.acceptances;
            flight.recording += u32::from(in_time);
            in_time
        });
        recording.unwrap_or(false).then_some(Recording(self))
    }

    /// It is this process's, until it ends.
    pub(crate) fn hold(&mut self, lease: HeldLease) {
        self.lease = Some(lease);
    }

    /// Whoever waits goes upstream: another process has found out that there is no verdict.
    pub(crate) fn release_waiting(&self) {
        self.with_flight(|flight| flight.tell(Landing::NoVerdict));
    }

    /// Tells everybody who waits, in this process and in others.
    pub(crate) fn land(mut self, landing: Landing) {
        if let (Landing::NoVerdict, Some(lease)) = (landing, self.lease.take()) {
            lease.land_without_verdict();
        }
        self.end(Some(landing));
    }

    fn end(&mut self, landing: Option<Landing>) {
        if std::mem::replace(&mut self.landed, true) {
            return;
        }
        let mut shard = self.flights.shard(&self.fingerprint).hold();
        let Some(flight) = shard.get_mut(&self.fingerprint) else { return };
        flight.attempts = flight.attempts.saturating_sub(1);
        if flight.attempts == 0 {
            flight.tell(landing.unwrap_or(Landing::GivenUp));
            shard.remove(&self.fingerprint);
        } else if let Some(landing) = landing {
            // whoever comes from now on waits for the attempts that are still under way
            flight.tell(landing);
        }
    }
}

impl Drop for Recording<'_> {
    fn drop(&mut self) {
        self.0.with_flight(|flight| flight.recording = flight.recording.saturating_sub(1));
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        self.end(None);
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, clippy::panic, reason = "a test that breaks should stop")]
mod tests {
    use super::*;

    fn key() -> Fingerprint {
        Fingerprint::from_bytes([1; 32])
    }

    fn lead(flights: &Arc<Flights>) -> Attempt {
        match flights.board(key()) {
            Boarding::Attempt(attempt) => attempt,
            Boarding::Wait(_) => panic!("somebody else leads"),
        }
    }

    fn wait(flights: &Arc<Flights>) -> watch::Receiver<Landing> {
        match flights.board(key()) {
            Boarding::Wait(landing) => landing,
            Boarding::Attempt(_) => panic!("nobody leads"),
        }
    }

    #[tokio::test]
    async fn a_landing_releases_everybody_at_once() {
        let flights = Arc::new(Flights::default());
        let leader = lead(&flights);
        assert!(leader.leads());
        let waiters: Vec<_> = (0..100).map(|_| wait(&flights)).collect();
        assert_eq!(flights.waiting(&key()), 100);
        leader.land(Landing::NoVerdict);
        for mut waiter in waiters {
            let landing = *waiter.wait_for(|l| !matches!(l, Landing::InFlight)).await.unwrap();
            assert!(matches!(landing, Landing::NoVerdict));
        }
        assert!(flights.shards.iter().all(|s| s.hold().is_empty()), "nothing is left of it");
    }

    #[test]
    fn a_dropped_attempt_gives_up_unless_another_is_under_way() {
        let flights = Arc::new(Flights::default());
        let leader = lead(&flights);
        let waiter = wait(&flights);
        let other = flights.join(key());
        assert!(!other.leads());
        drop(other);
        assert!(matches!(*waiter.borrow(), Landing::InFlight));
        drop(leader);
        assert!(matches!(*waiter.borrow(), Landing::GivenUp));
        assert!(flights.shards.iter().all(|s| s.hold().is_empty()));
    }

    #[test]
    fn newcomers_wait_for_attempts_that_go_on_after_a_landing() {
        let flights = Arc::new(Flights::default());
        let leader = lead(&flights);
        let other = flights.join(key());
        let early = wait(&flights);
        leader.land(Landing::NoVerdict);
        assert!(matches!(*early.borrow(), Landing::NoVerdict));
        let late = wait(&flights);
        assert!(matches!(*late.borrow(), Landing::InFlight));
        other.land(Landing::NoVerdict);
        assert!(matches!(*late.borrow(), Landing::NoVerdict));
    }

    #[test]
    fn an_acceptance_overtakes_what_was_sent_before_it() {
        let flights = Arc::new(Flights::default());
        let (early, accepted, mut queued) = (lead(&flights), flights.join(key()), flights.join(key()));
        assert!(early.record().is_some());
        assert!(!flights.accepted(&key()), "nobody is recording now");
        assert!(early.record().is_none() && queued.record().is_none());
        queued.begins_now();
        let late = flights.join(key());
        assert!(queued.record().is_some() && late.record().is_some());

        let recording = late.record();
        assert!(flights.accepted(&key()), "the store has to fence that one");
        drop(recording);
        assert!(late.record().is_none() && late.is_overtaken() && !flights.accepted(&key()));
        drop((early, accepted, queued, late));
        assert!(flights.shards.iter().all(|s| s.hold().is_empty()));
    }
}
