//! What each operation of the store asks of Redis.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;
use nevertwice_domain::clock::Millis;
use nevertwice_domain::entry::{ENTRY_SCHEMA, Entry, REDUCED_SCHEMA, Tally};
use nevertwice_domain::fingerprint::Fingerprint;
use nevertwice_domain::tenant::{TenantId, UpstreamName};
use redis::{FromRedisValue, Value, pipe};

use super::event::Event;
use super::leases::{self, Token};
use super::{Shared, value};
use crate::keeping::{is_live, is_servable};
use crate::{Fence, Shown, StoreError, StoreErrorKind};

/// How long one step of an operator's operation may take; those have many.
pub(super) const STEP: Duration = Duration::from_secs(5);
/// How many entries are looked at in one step.
pub(super) const PAGE: usize = 256;
/// How many forgets that name a key are.
const KEYED: u64 = 8192;

/// What a look-up says of the lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LeaseAnswer {
    None,
    Held,
    /// Whose it is.
    Elsewhere(Token),
}

/// What is found when one asks.
enum Found {
    Answer(Option<Arc<Entry>>, Fence, LeaseAnswer),
    /// An entry that this process cannot use: damaged, or from the future by its clock. With it comes no lease.
    Unusable(Fence),
}

pub(super) fn corrupt(what: &str) -> StoreError {
    StoreErrorKind::Corrupt.error(format!("the refusal store answered something else: {what}"))
}

pub(super) fn text(value: &[u8]) -> Option<&str> {
    std::str::from_utf8(value).ok()
}

pub(super) fn number(value: &[u8]) -> Option<u64> {
    text(value)?.parse().ok()
}

pub(super) fn tally(replays: &[u8], first: &[u8], last: &[u8], tenants: &[u8]) -> Tally {
    let time = |value: &[u8]| text(value)?.parse().ok().map(Millis);
    let names = text(tenants).unwrap_or_default().split_ascii_whitespace();
    Tally {
        replays: number(replays).unwrap_or(0),
        first_replayed_at: time(first),
        last_replayed_at: time(last),
        tenants: names.filter_map(|name| TenantId::new(name).ok()).take(Tally::MAX_TENANTS).collect(),
    }
}

pub(super) fn key_of(member: &[u8]) -> Option<Fingerprint> {
    Some(Fingerprint::from_bytes(member.try_into().ok()?))
}

/// The time that is left.
pub(super) fn left(until: Instant) -> Duration {
    until.saturating_duration_since(Instant::now())
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl Shared {
    pub(super) fn now(&self) -> Millis {
        self.clock.now()
    }

    /// Looks an entry up within the time for it; with a `token`, takes the lease where there is none.
    pub(super) async fn look(
        &self,
        key: &Fingerprint,
        token: Option<&Token>,
    ) -> Result<(Option<Arc<Entry>>, Fence, LeaseAnswer), StoreError> {
        self.check_open()?;
        // both questions together have the time that a look-up may take
        let until = Instant::now() + self.options.read;
        let found = self.ask(key, token, false, until).await?;
        match (found, token) {
            (Found::Unusable(fence), None) => Ok((None, fence, LeaseAnswer::None)),
            // what nobody can use is no reason for all to go at once
            (Found::Unusable(fence), Some(_)) => match self.ask(key, token, true, until).await? {
                Found::Unusable(_) => Ok((None, fence, LeaseAnswer::None)),
                Found::Answer(entry, fence, lease) => Ok((entry, fence, lease)),
            },
            (Found::Answer(entry, fence, lease), _) => Ok((entry, fence, lease)),
        }
    }

    /// Asks once; with `past_entry` as if there were no entry.
    async fn ask(
        &self,
        key: &Fingerprint,
        token: Option<&Token>,
        past_entry: bool,
        until: Instant,
    ) -> Result<Found, StoreError> {
        let mark = self.near.mark();
        let keys = &self.keys;
        let mut call = self.scripts.look.key(keys.entry(key));
        call.key(keys.lease(key))
            .key(keys.epoch())
            .key(keys.floor())
            .key(keys.index())
            .key(keys.waited(key))
            .arg(self.now().0)
            .arg(ENTRY_SCHEMA)
            .arg(token.map_or("", String::as_str))
            .arg(millis(leases::LIFE))
            .arg(key.as_bytes())
            .arg(u8::from(past_entry))
            .arg(REDUCED_SCHEMA);
        let answer: Vec<Vec<u8>> = self.link.call(&call, left(until)).await?;
        let epoch = answer.get(1).and_then(|epoch| number(epoch)).ok_or_else(|| corrupt("no epoch"))?;
        self.seen.fetch_max(epoch, Ordering::Relaxed);
        let fence = Fence(epoch);
        let none = |lease| Ok(Found::Answer(None, fence, lease));
        match (answer[0].as_slice(), &answer[2..]) {
            (b"none", _) => none(LeaseAnswer::None),
            (b"lease", _) => none(LeaseAnswer::Held),
            // the client of a cluster asks again where an answer was lost with its connection
            (b"elsewhere", [holder, ..]) if token.is_some_and(|token| token.as_bytes() == holder) => {
                none(LeaseAnswer::Held)
            }
            (b"elsewhere", [holder, ..]) => {
                none(LeaseAnswer::Elsewhere(text(holder).unwrap_or_default().to_owned()))
            }
            (b"trouble", [error, ..]) => {
                // the entry is not there, that much is known; the rest is for the log
                let _ = self.link.reported(&String::from_utf8_lossy(error));
                none(LeaseAnswer::None)
            }
            (b"entry", [head, body, replays, ..]) => {
                match value::decode_entry(head, Some(Bytes::copy_from_slice(body))) {
                    Ok(entry) if entry.fingerprint == *key && is_servable(&entry, self.now()) => {
                        let entry = Arc::new(entry);
                        self.near.put(&entry, number(replays).unwrap_or(0), mark);
                        Ok(Found::Answer(Some(entry), fence, LeaseAnswer::None))
                    }
                    Ok(_) => Ok(Found::Unusable(fence)),
                    Err(value::Malformed) => {
                        if self.link.first_in_a_while("damaged") {
                            tracing::error!(fingerprint = %key, "a stored entry is damaged and not used: the next refusal is recorded in its place");
                        }
                        Ok(Found::Unusable(fence))
                    }
                }
            }
            _ => Err(corrupt("a look-up")),
        }
    }

    /// Tells the store of an acceptance. `removes` the entry, unless that is newer.
    pub(super) async fn accept(
        &self,
        key: &Fingerprint,
        upstream: &UpstreamName,
        removes: bool,
    ) -> Result<bool, StoreError> {
        let keys = &self.keys;
        let token = self.leases.let_go(key);
        let mut call = self.scripts.accept.key(keys.entry(key));
        call.key(keys.strike(key))
            .key(keys.lease(key))
            .key(keys.index())
            .key(keys.expiry())
            .key(keys.strikes())
            .key(keys.accepted())
            .key(keys.waited(key))
            .arg(key.as_bytes())
            .arg(token.as_deref().unwrap_or_default())
            .arg(upstream.as_str())
            .arg(keys.events())
            .arg(Event::Accepted(upstream.clone()).encode())
            .arg(Event::Gone(*key).encode())
            .arg(Event::Released(*key, token.clone().unwrap_or_default()).encode())
            .arg(u8::from(removes));
        self.near.remove(key);
        self.accepted().insert(upstream.clone());
        // what this process has to know it knows; a caller that does not wait for Redis goes on before it is asked
        tokio::task::yield_now().await;
        let expires: Vec<u8> = self.link.call(&call, self.options.write).await?;
        Ok(self.was_live(&expires))
    }

    /// Whether an entry with this expiry counted until now.
    fn was_live(&self, expires: &[u8]) -> bool {
        text(expires).and_then(|x| x.parse::<i64>().ok()).is_some_and(|x| x > self.now().0)
    }

    pub(super) async fn forget_key(&self, key: &Fingerprint) -> Result<u64, StoreError> {
        let keys = &self.keys;
        let mut call = self.scripts.forget_key.key(keys.entry(key));
        call.key(keys.strike(key))
            .key(keys.index())
            .key(keys.expiry())
            .key(keys.strikes())
            .key(keys.epoch())
            .key(keys.keyed())
            .key(keys.floor())
            .key(keys.wide())
            .arg(key.as_bytes())
            .arg(keys.events())
            .arg(Event::Gone(*key).encode())
            .arg(KEYED);
        let expires: Vec<u8> = self.link.call(&call, STEP).await?;
        self.near.remove(key);
        Ok(self.was_live(&expires).into())
    }

    /// Adds the replays that this process counted to the tallies in the store. When an answer is lost they are told again: a
    /// tally may be too high by what was on its way then, and is never too low.
    pub(super) async fn tell_replays(self: &Arc<Self>) -> Result<(), StoreError> {
        let shared = Arc::clone(self);
        // in a task of its own: whoever is cancelled while it waits takes no counts with it
        let telling = self.tasks.spawn(async move { shared.tell_untold().await });
        telling.await.unwrap_or_else(|_| Err(StoreErrorKind::Io.error("the counts were not told")))
    }

    async fn tell_untold(&self) -> Result<(), StoreError> {
        let mut untold = self.near.take_untold();
        while !untold.is_empty() {
            let rest = untold.split_off(untold.len().min(PAGE));
            match self.tell_some(&untold).await {
                Ok(totals) => {
                    for ((key, _), total) in untold.iter().zip(totals) {
                        self.near.told(key, total);
                    }
                }
                Err(error) => {
                    untold.extend(rest);
                    self.near.put_back(untold);
                    return Err(error);
                }
            }
            untold = rest;
        }
        Ok(())
    }

    async fn tell_some(&self, untold: &[(Fingerprint, Tally)]) -> Result<Vec<u64>, StoreError> {
        let mut call = self.scripts.count.prepare_invoke();
        call.arg(Tally::MAX_TENANTS);
        for (key, tally) in untold {
            let time = |at: Option<Millis>| at.map_or(0, |at| at.0);
            let tenants: String = tally.tenants.iter().map(|t| format!("{t} ")).collect();
            call.key(self.keys.entry(key))
                .arg(tally.replays)
                .arg(time(tally.first_replayed_at))
                .arg(time(tally.last_replayed_at))
                .arg(tenants);
        }
        self.link.call(&call, STEP).await
    }

    pub(super) async fn entries(&self) -> Result<u64, StoreError> {
        let mut count = pipe();
        count.cmd("ZCOUNT").arg(self.keys.expiry()).arg(format!("({}", self.now().0)).arg("+inf");
        let counted: Vec<u64> = self.link.ask(&count, self.options.write).await?;
        Ok(counted.first().copied().unwrap_or(0))
    }

    pub(super) async fn show(self: &Arc<Self>, key: &Fingerprint) -> Result<Option<Shown>, StoreError> {
        self.tell_replays().await?;
        let mut read = pipe();
        read.cmd("HMGET").arg(self.keys.entry(key)).arg(&["m", "b", "n", "f", "l", "t", "s"]);
        read.ignore_errors();
        let answers: Vec<Value> = self.link.ask(&read, STEP).await?;
        let Some(fields) = answers.first().map(|fields| self.fields(fields)).transpose()?.flatten() else {
            return Ok(None);
        };
        let [Some(head), Some(body), replays, first, last, tenants, suspect] = &fields[..] else {
            return Ok(None);
        };
        let of = |field: &Option<Vec<u8>>| field.clone().unwrap_or_default();
        let entry = value::decode_entry(head, Some(Bytes::copy_from_slice(body)));
        let entry = entry.ok().filter(|entry| entry.fingerprint == *key && is_live(entry, self.now()));
        Ok(entry.map(|entry| Shown {
            entry: Arc::new(entry),
            tally: tally(&of(replays), &of(first), &of(last), &of(tenants)),
            suspect: suspect.is_some(),
        }))
    }

    /// What was read of an entry; `None` for a value that is none.
    pub(super) fn fields(&self, answer: &Value) -> Result<Option<Vec<Option<Vec<u8>>>>, StoreError> {
        match answer {
            Value::ServerError(error) if error.code() == "WRONGTYPE" => Ok(None),
            Value::ServerError(error) => Err(self.link.failed(&error.clone().into())),
            fields => Vec::from_redis_value(fields.clone()).map(Some).map_err(|_| corrupt("an entry")),
        }
    }

    /// Removes entries, each if it is still the one with this number, or still in no index where there is none. Says which went.
    pub(super) async fn drop_entries(
        &self,
        victims: &[(Fingerprint, Option<u64>)],
        budget: Duration,
    ) -> Result<Vec<bool>, StoreError> {
        let mut gone = Vec::new();
        for victims in victims.chunks(PAGE) {
            let mut call = self.scripts.drop.key(self.keys.index());
            call.key(self.keys.expiry());
            for (key, number) in victims {
                call.key(self.keys.entry(key)).arg(key.as_bytes());
                call.arg(number.map(|n| n.to_string()).unwrap_or_default());
            }
            let answer: Vec<u8> = self.link.call(&call, budget).await?;
            for ((key, _), went) in victims.iter().zip(&answer) {
                if *went == 1 {
                    self.near.remove(key);
                }
            }
            gone.extend(answer.into_iter().map(|went| went == 1));
        }
        Ok(gone)
    }

    pub(super) async fn drop_strikes(
        &self,
        victims: &[(Vec<u8>, f64)],
        budget: Duration,
    ) -> Result<(), StoreError> {
        for victims in victims.chunks(PAGE) {
            let mut call = self.scripts.drop_strikes.key(self.keys.strikes());
            for (member, turn) in victims {
                let Some(key) = key_of(member) else { continue };
                call.key(self.keys.strike(&key)).arg(&member[..]).arg(*turn as u64);
            }
            let _: i64 = self.link.call(&call, budget).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use nevertwice_domain::clock::ManualClock;
    use nevertwice_testkit::Redis;

    use super::*;
    use crate::redis::{RedisOptions, RedisStore, Topology};
    use crate::suite::samples;

    #[tokio::test]
    async fn a_look_up_that_a_cluster_s_client_repeats_does_not_wait_for_itself() {
        let server = Redis::start();
        let options = RedisOptions {
            topology: Topology::One { host: server.addr().ip().to_string(), port: server.addr().port() },
            tls: false,
            ca: None,
            client_cert: None,
            username: None,
            password: None,
            db: 0,
            prefix: "nt".to_owned(),
            read: STEP,
            write: STEP,
            near_bytes: 1 << 20,
        };
        let store = RedisStore::start(options, Arc::new(ManualClock::at(Millis(1_000)))).await;
        let (shared, key) = (&store.shared, samples::fingerprint(1));
        let (token, other) = (shared.leases.token(), shared.leases.token());
        for (asks, expected) in [
            (&token, LeaseAnswer::Held),
            (&token, LeaseAnswer::Held),
            (&other, LeaseAnswer::Elsewhere(token.clone())),
        ] {
            let looked = shared.look(&key, Some(asks)).await;
            assert_eq!(looked.ok().map(|(_, _, lease)| lease), Some(expected));
        }
    }
}
