//! Who makes the attempt, fleet-wide: the leases that this process holds, and the attempts elsewhere that it waits for.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nevertwice_domain::fingerprint::Fingerprint;
use tokio::sync::watch;

use super::event::Event;

/// How long a lease lives when nobody prolongs it: so long a dead holder blocks others.
pub(super) const LIFE: Duration = Duration::from_secs(5);
/// How often those who wait look for themselves, should a message have been lost.
const POLL: Duration = Duration::from_millis(500);

/// What holds a lease: unlike any other, also of another process.
pub(super) type Token = String;

/// The leases and the waiting of this process.
pub(super) struct Leases {
    process: u64,
    issued: AtomicU64,
    held: Mutex<HashMap<Fingerprint, Token>>,
    waiting: Mutex<HashMap<Fingerprint, watch::Sender<Option<Heard>>>>,
}

/// What those who wait are told.
#[derive(Clone, Debug)]
enum Heard {
    /// It is time to look.
    LookAgain,
    /// The attempt with this lease has landed without a verdict.
    Released(Token),
}

/// How an attempt elsewhere ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemoteLanding {
    /// With a verdict, or it was given up, or nothing was heard for a while: look again.
    LookAgain,
    /// Without a verdict: everybody goes upstream.
    Released,
}

impl Leases {
    pub(super) fn new() -> Self {
        let random = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), std::process::id());
        Self { process: random, issued: AtomicU64::new(0), held: Mutex::default(), waiting: Mutex::default() }
    }

    pub(super) fn token(&self) -> Token {
        format!("{:016x}-{}", self.process, self.issued.fetch_add(1, Ordering::Relaxed))
    }

    /// A number of this process: what it tells is known by it.
    pub(super) fn process(&self) -> u64 {
        self.process
    }

    /// A number that differs among processes and from call to call.
    pub(super) fn jitter(&self) -> u64 {
        let call = self.issued.fetch_add(1, Ordering::Relaxed);
        std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), (self.process, call))
    }

    pub(super) fn hold(&self, key: Fingerprint, token: Token) {
        self.held().insert(key, token);
    }

    /// The token of the lease on `key`, which is given up with it; `None` when this process does not hold it.
    pub(super) fn let_go(&self, key: &Fingerprint) -> Option<Token> {
        self.held().remove(key)
    }

    /// As [`Leases::let_go`], if it is this one.
    pub(super) fn let_go_of(&self, key: &Fingerprint, token: &Token) -> bool {
        let mut held = self.held();
        let same = held.get(key) == Some(token);
        if same {
            held.remove(key);
        }
        same
    }

    /// The token of the lease on `key`, which is kept.
    pub(super) fn held_token(&self, key: &Fingerprint) -> Option<Token> {
        self.held().get(key).cloned()
    }

    /// All leases that are held.
    pub(super) fn all(&self) -> Vec<(Fingerprint, Token)> {
        self.held().iter().map(|(key, token)| (*key, token.clone())).collect()
    }

    /// To be told how the attempt elsewhere ends. Subscribed before the store is asked, so that no end is missed; the store says
    /// then [which](RemoteAttempt::of) attempt it is.
    pub(super) fn watch(self: &Arc<Self>, key: &Fingerprint) -> RemoteAttempt {
        let mut waiting = self.waiting();
        let landing = waiting.entry(*key).or_insert_with(|| watch::Sender::new(None)).subscribe();
        RemoteAttempt { landing, of: Token::new(), key: *key, leases: Arc::clone(self) }
    }

    /// Tells those who wait what happened.
    pub(super) fn tell(&self, event: &Event) {
        let (key, heard) = match event {
            Event::Recorded(key) | Event::GivenUp(key) => (key, Heard::LookAgain),
            Event::Released(key, token) => (key, Heard::Released(token.clone())),
            _ => return,
        };
        if let Some(sender) = self.waiting().remove(key) {
            sender.send_replace(Some(heard));
        }
    }

    /// Nothing is heard any more: everybody looks again.
    pub(super) fn tell_all(&self) {
        for (_, sender) in self.waiting().drain() {
            sender.send_replace(Some(Heard::LookAgain));
        }
    }

    fn held(&self) -> MutexGuard<'_, HashMap<Fingerprint, Token>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<Fingerprint, watch::Sender<Option<Heard>>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An attempt that another process makes.
pub struct RemoteAttempt {
    landing: watch::Receiver<Option<Heard>>,
    of: Token,
    key: Fingerprint,
    leases: Arc<Leases>,
}

impl RemoteAttempt {
    /// The attempt with this lease.
    pub(super) fn of(mut self, holder: Token) -> Self {
        self.of = holder;
        self
    }

    /// Waits until it has landed, or until it is time to look for oneself. The caller has the time-out.
    pub async fn landed(mut self) -> RemoteLanding {
        let heard = self.landing.wait_for(Option::is_some);
        match tokio::time::timeout(POLL, heard).await {
            // one from before may be heard of only now; whose attempt it is by now is to be looked up
            Ok(Ok(heard)) if matches!(&*heard, Some(Heard::Released(token)) if *token == self.of) => {
                RemoteLanding::Released
            }
            _ => RemoteLanding::LookAgain,
        }
    }
}

impl Drop for RemoteAttempt {
    fn drop(&mut self) {
        let mut waiting = self.leases.waiting();
        // this one is counted still
        if waiting.get(&self.key).is_some_and(|sender| sender.receiver_count() <= 1) {
            waiting.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::samples;

    #[tokio::test]
    async fn only_the_attempt_that_one_waits_for_releases() {
        let leases = Arc::new(Leases::new());
        let key = samples::fingerprint(1);
        let (before, now) = (leases.token(), leases.token());
        for (landed, expected) in [(&before, RemoteLanding::LookAgain), (&now, RemoteLanding::Released)] {
            let attempt = leases.watch(&key).of(now.clone());
            leases.tell(&Event::Released(key, landed.clone()));
            assert_eq!(attempt.landed().await, expected);
        }
    }
}
