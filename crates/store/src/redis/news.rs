//! News of upstreams: gathered for half a second, sent on the channel of the fleet, and handed on when heard. That a guard is on
//! or off again is kept in the store too, for processes that start or come back later, or did not hear of it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nevertwice_domain::clock::Millis;
use nevertwice_domain::entry::Selector;
use nevertwice_domain::fingerprint::Fingerprint;
use nevertwice_domain::tenant::UpstreamName;
use redis::{Pipeline, pipe};
use tokio::sync::mpsc;

use super::Shared;
use super::event::Event;
use crate::{News, StoreError};

/// The most judgements of one kind that are told of one upstream in one tick. More of them would not change what follows.
const JUDGED: usize = 256;
/// The most upstreams that are told of in one tick.
const UPSTREAMS: usize = 1024;
/// How far the clocks of two processes may be apart, where it is about which of two things came first.
const APART_MS: u64 = 10_000;
/// News that wait to be taken; beyond that they are lost.
const HEARD: usize = 4096;

/// Judgements to be told: of which upstream, whether refused, and what of.
type Untold = BTreeMap<(UpstreamName, bool), Vec<[u8; 32]>>;

/// Upstreams whose guard is on, and since when nothing is used; and those whose guard is off again: since when, and until when, nothing
/// was used.
pub(super) type Guards = (BTreeMap<String, i64>, BTreeMap<String, String>);

/// A guard that is on, as far as this process knows.
#[derive(Clone, Copy)]
struct On {
    /// Nothing from since then is used.
    since: Millis,
    /// When this process learned of it.
    learned: Millis,
}

/// That a guard is on, and since when nothing is used; or that it is off: since when, and until when, nothing was used.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Owed {
    is_on: bool,
    since: Millis,
    at: Millis,
}

/// What is to be marked suspect: recorded since then, and until the guard went off, if it has.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Window {
    since: Millis,
    until: Option<Millis>,
}

/// What is to be told, and where what is heard goes.
pub(super) struct Desk {
    untold: Mutex<Untold>,
    /// Guards whose state the store does not know yet. The latest of each.
    owed: Mutex<BTreeMap<UpstreamName, Owed>>,
    /// What is still to be marked suspect of these upstreams, also where the guard is off again.
    unmarked: Mutex<BTreeMap<UpstreamName, Window>>,
    /// Guards that are on, as far as this process knows.
    on: Mutex<BTreeMap<UpstreamName, On>>,
    /// How often a guard went on or off, here or elsewhere.
    turns: AtomicU64,
    heard: mpsc::Sender<News>,
    /// Taken once, by whoever wants to hear.
    ear: Mutex<Option<mpsc::Receiver<News>>>,
}

impl Desk {
    pub(super) fn new() -> Self {
        let (heard, ear) = mpsc::channel(HEARD);
        Self {
            untold: Mutex::default(),
            owed: Mutex::default(),
            unmarked: Mutex::default(),
            on: Mutex::default(),
            turns: AtomicU64::new(0),
            heard,
            ear: Mutex::new(Some(ear)),
        }
    }

    pub(super) fn ear(&self) -> Option<mpsc::Receiver<News>> {
        self.ear.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Hands news on that came from another process.
    pub(super) fn hear(&self, news: News) {
        // nobody listens, or nobody keeps up
        let _ = self.heard.try_send(news);
    }

    fn owed(&self) -> MutexGuard<'_, BTreeMap<UpstreamName, Owed>> {
        self.owed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn unmarked(&self) -> MutexGuard<'_, BTreeMap<UpstreamName, Window>> {
        self.unmarked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn on(&self) -> MutexGuard<'_, BTreeMap<UpstreamName, On>> {
        self.on.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The marks could not all be made, and are to be made later.
    pub(super) fn owe_marks(&self, upstream: &UpstreamName, since: Millis) {
        let mut unmarked = self.unmarked();
        let since = unmarked.get(upstream).map_or(since, |other| since.min(other.since));
        unmarked.insert(upstream.clone(), Window { since, until: None });
    }

    /// A guard is on, or off again, here or elsewhere. Returns since when nothing is used, or was.
    fn turned(&self, upstream: &UpstreamName, since: Option<Millis>, now: Millis) -> Millis {
        self.turns.fetch_add(1, Ordering::AcqRel);
        if let Some(since) = since {
            self.on().insert(upstream.clone(), On { since, learned: now });
            return since;
        }
        if let Some(window) = self.unmarked().get_mut(upstream) {
            window.until = window.until.or(Some(now));
        }
        self.on().remove(upstream).map_or(now, |on| on.since)
    }

    /// How often a guard went on or off.
    pub(super) fn turns(&self) -> u64 {
        self.turns.load(Ordering::Acquire)
    }

    /// What was judged before there was a connection is not news.
    pub(super) fn begin_anew(&self) {
        self.untold().clear();
    }

    pub(super) fn owes_marks(&self) -> bool {
        !self.unmarked().is_empty()
    }

    fn untold(&self) -> MutexGuard<'_, Untold> {
        self.untold.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether what this process says on the channel comes back to it. A subscription that is lost is lost in silence: a cluster's
/// node that comes back may take calls and have nobody who listens.
#[derive(Default)]
pub(super) struct Echo {
    number: AtomicU64,
    said: AtomicU64,
    heard: AtomicU64,
}

impl Echo {
    /// Whether the latest that was said has come back.
    pub(super) fn is_heard(&self) -> bool {
        self.said.load(Ordering::Relaxed) <= self.heard.load(Ordering::Relaxed)
    }

    fn hear(&self, number: u64) {
        self.heard.fetch_max(number, Ordering::Relaxed);
    }

    /// A new connection: what was said on the one before is not waited for.
    pub(super) fn begin_anew(&self) {
        self.said.store(0, Ordering::Relaxed);
    }
}

impl Shared {
    /// Says something that this process itself should hear.
    pub(super) async fn say(&self) {
        let number = 1 + self.echo.number.fetch_add(1, Ordering::Relaxed);
        let mut commands = pipe();
        publish(&mut commands, self, &Event::Echo(self.leases.process(), number));
        let said: Result<(), StoreError> = self.link.ask(&commands, self.options.write).await;
        // what was not said cannot come back
        if said.is_ok() {
            self.echo.said.store(number, Ordering::Relaxed);
        }
    }

    /// Tells the fleet: judgements with the next tick, the rest at once.
    pub(super) fn tell(self: &Arc<Self>, news: News) {
        let (upstream, since) = match news {
            News::Judged { upstream, document, refused } => {
                let mut untold = self.desk.untold();
                if untold.len() < UPSTREAMS {
                    let judged = untold.entry((upstream, refused)).or_default();
                    if judged.len() < JUDGED {
                        judged.push(document);
                    }
                }
                return;
            }
            News::Tripped { upstream, since } => (upstream, Some(since)),
            News::Recovered { upstream } => (upstream, None),
        };
        let at = self.now();
        let owed = Owed { is_on: since.is_some(), since: self.desk.turned(&upstream, since, at), at };
        self.desk.owed().insert(upstream, owed);
        let shared = Arc::clone(self);
        self.tasks.spawn(async move { shared.tell_guards().await });
    }

    /// Tells the store and the fleet of guards. What cannot be told is told later: a guard that the store has on by mistake would be
    /// on for everybody who connects.
    pub(super) async fn tell_guards(&self) {
        let (sender, tripped, recovered) =
            (self.leases.process(), self.keys.tripped(), self.keys.recovered());
        let all = self.desk.owed().clone();
        for (upstream, told) in all {
            let Owed { is_on, since, at } = told;
            let (mut commands, mut off) = (pipe(), pipe());
            let event = if is_on {
                commands.hset(&tripped, upstream.as_str(), since.0).ignore();
                commands.hdel(&recovered, upstream.as_str()).ignore();
                Event::Tripped(sender, upstream.clone(), since)
            } else {
                commands.hdel(&tripped, upstream.as_str()).ignore();
                off.hset(&recovered, upstream.as_str(), format!("{} {}", since.0, at.0)).ignore();
                Event::Recovered(sender, upstream.clone())
            };
            publish(&mut commands, self, &event);
            let answer: Result<(), StoreError> = self.link.ask(&commands, self.options.write).await;
            if answer.is_err() {
                continue;
            }
            if !is_on {
                // a full server does not take it: then those who missed the message do not find out
                let _: Result<(), StoreError> = self.link.ask(&off, self.options.write).await;
            }
            let mut owed = self.desk.owed();
            if owed.get(&upstream) == Some(&told) {
                owed.remove(&upstream);
                self.desk.turns.fetch_add(1, Ordering::AcqRel);
            }
        }
    }

    /// Sends the judgements that were gathered.
    pub(super) async fn tell_judgements(&self) {
        let untold = std::mem::take(&mut *self.desk.untold());
        if untold.is_empty() {
            return;
        }
        let mut commands = pipe();
        for ((upstream, refused), documents) in untold {
            publish(&mut commands, self, &Event::Judged(self.leases.process(), upstream, refused, documents));
        }
        let _: Result<(), StoreError> = self.link.ask(&commands, self.options.write).await;
    }

    /// News from the channel; one's own come back too.
    pub(super) fn heard(&self, event: &Event) {
        let own = |sender: &u64| *sender == self.leases.process();
        match event {
            Event::Judged(sender, upstream, refused, documents) if !own(sender) => {
                for document in documents {
                    if !*refused {
                        // what waits to be told of it is older
                        self.late().forget(&Selector::key(Fingerprint::from_bytes(*document)));
                    }
                    let upstream = upstream.clone();
                    self.desk.hear(News::Judged { upstream, document: *document, refused: *refused });
                }
            }
            Event::Tripped(sender, upstream, since) if !own(sender) => {
                self.desk.turned(upstream, Some(*since), self.now());
                // it is later than what this process has to tell
                self.desk.owed().remove(upstream);
                self.late().suspect(upstream, *since, None);
                self.desk.hear(News::Tripped { upstream: upstream.clone(), since: *since });
            }
            Event::Recovered(sender, upstream) if !own(sender) => {
                self.desk.turned(upstream, None, self.now());
                self.desk.owed().remove(upstream);
                self.desk.hear(News::Recovered { upstream: upstream.clone() });
            }
            Event::Echo(sender, number) if own(sender) => self.echo.hear(*number),
            _ => {}
        }
    }

    /// Asks the store which guards are on, and which are off again.
    pub(super) async fn read_guards(&self) {
        let turns = self.desk.turns();
        let mut commands = pipe();
        commands.hgetall(self.keys.tripped()).hgetall(self.keys.recovered());
        let guards: Result<Guards, StoreError> = self.link.ask(&commands, self.options.write).await;
        if let Ok(guards) = guards {
            self.heard_of_guards(&guards, turns);
        }
    }

    /// What the store says of guards. What this process knows better is not news, nor is what was read before a guard went on or off.
    pub(super) fn heard_of_guards(&self, (tripped, recovered): &Guards, turns: u64) {
        if self.desk.turns() != turns {
            return;
        }
        let owed = self.desk.owed().clone();
        let named = |name: &String| UpstreamName::new(name).ok().filter(|name| !owed.contains_key(name));
        for (name, since) in tripped {
            if let Some(upstream) = named(name) {
                let since = Millis(*since);
                self.late().suspect(&upstream, since, None);
                if self.desk.on().get(&upstream).is_none_or(|on| on.since != since) {
                    self.desk.turned(&upstream, Some(since), self.now());
                    self.desk.hear(News::Tripped { upstream, since });
                }
            }
        }
        for (name, window) in recovered.iter().filter(|(name, _)| !tripped.contains_key(*name)) {
            let window = window
                .split_once(' ')
                .and_then(|(since, until)| Some((since.parse().ok()?, until.parse().ok()?)));
            let (Some(upstream), Some((since, until))) = (named(name), window) else { continue };
            let (since, until) = (Millis(since), Millis(until));
            self.late().suspect(&upstream, since, Some(until));
            // a server that lost its latest data speaks of a time before this one
            let on = self.desk.on().get(&upstream).copied();
            if on.is_some_and(|on| on.learned <= until.plus_ms(APART_MS)) {
                self.desk.turned(&upstream, None, until);
                self.desk.hear(News::Recovered { upstream });
            }
        }
    }

    /// Makes the marks that could not be made.
    pub(super) async fn mark_suspects(&self) {
        let unmarked = self.desk.unmarked().clone();
        for (upstream, window) in unmarked {
            match self.suspect(&upstream, window.since, window.until).await {
                Ok(marked) => {
                    let mut unmarked = self.desk.unmarked();
                    if unmarked.get(&upstream) == Some(&window) {
                        unmarked.remove(&upstream);
                    }
                    tracing::warn!(%upstream, marked, "entries from before the mass-refusal guard went on are marked suspect now");
                }
                Err(error) if self.link.first_in_a_while("marks") => {
                    tracing::warn!(%upstream, %error, "entries from before the mass-refusal guard went on are not all marked suspect, and other replicas may replay them; tried again");
                }
                Err(_) => {}
            }
        }
    }
}

fn publish(commands: &mut Pipeline, shared: &Shared, event: &Event) {
    commands.cmd("PUBLISH").arg(shared.keys.events()).arg(event.encode()).ignore();
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use nevertwice_domain::clock::ManualClock;
    use tokio::net::TcpListener;

    use super::*;
    use crate::redis::{RedisOptions, RedisStore, Topology};
    use crate::suite::samples;
    use crate::{Fence, RefusalStore};

    /// A store that never reaches a server.
    async fn cut_off() -> RedisStore {
        let nobody = TcpListener::bind("127.0.0.1:0").await.and_then(|l| l.local_addr());
        let options = RedisOptions {
            topology: Topology::One {
                host: "127.0.0.1".to_owned(),
                port: nobody.map_or(1, |addr| addr.port()),
            },
            tls: false,
            ca: None,
            client_cert: None,
            username: None,
            password: None,
            db: 0,
            prefix: "nt".to_owned(),
            read: Duration::from_secs(1),
            write: Duration::from_secs(1),
            near_bytes: 1 << 20,
        };
        RedisStore::start(options, Arc::new(ManualClock::at(Millis(1_000)))).await
    }

    #[tokio::test]
    async fn a_verdict_that_waits_is_not_told_when_the_document_was_accepted_elsewhere_meanwhile() {
        let store = cut_off().await;
        for n in 1..=3 {
            assert!(store.record(samples::candidate(n), Fence(1)).await.is_err());
        }
        assert!(store.accept(&samples::fingerprint(4), &samples::upstream("ocr")).await.is_err());
        let judged = |sender, refused, n| {
            let documents = vec![*samples::fingerprint(n).as_bytes()];
            Event::Judged(sender, samples::upstream("ocr"), refused, documents)
        };
        let own = store.shared.leases.process();
        let other = own.wrapping_add(1);
        store.shared.happened(&judged(own, false, 1));
        store.shared.happened(&judged(other, true, 2));
        store.shared.happened(&judged(other, false, 3));
        store.shared.happened(&judged(other, false, 4));
        let waiting = store.shared.late().keys();
        assert_eq!(waiting, [1, 2, 4].map(samples::fingerprint), "an acceptance is still to be told");
    }
}
