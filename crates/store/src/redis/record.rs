//! Recording: what is there is read by one script, the rules of every store decide here, and another script writes if nothing
//! of what was decided on has changed.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use bytes::Bytes;
use nevertwice_domain::clock::Millis;
use nevertwice_domain::entry::{Candidate, Entry, Selector, Tally};
use nevertwice_domain::fingerprint::Fingerprint;
use nevertwice_domain::strike::StrikeOutcome;
use redis::{FromRedisValue, Value};

use super::event::{self, Event};
use super::operations::{STEP, corrupt, key_of, left, number, tally, text};
use super::value::{self, StoredStrike};
use super::{Shared, is_passing};
use crate::keeping::{REMNANT_MS, STRIKE_MS, goes_on, is_in_a_row, is_live, is_servable};
use crate::{Fence, Imported, Moved, Recorded, StoreError, StoreErrorKind};

/// How often a record is decided anew because something changed meanwhile.
const DECISIONS: u32 = 16;
/// How many entries one record evicts at most.
const VICTIMS: u64 = 500;

/// All that a record is decided on.
struct Before {
    present: Option<(Entry, Tally)>,
    suspect: bool,
    strike: Option<StoredStrike>,
    /// As they stand in the store, to be compared when it is written.
    number: Vec<u8>,
    suspect_raw: Vec<u8>,
    strike_raw: Vec<u8>,
    epoch: String,
    floor: u64,
    keyed: u64,
    wide: Vec<Selector>,
}

/// What is written.
struct Decision {
    strike: Option<StoredStrike>,
    entry: Option<Entry>,
    carried: bool,
    /// The tally that an imported entry brings.
    tally: Tally,
}

/// Why nothing is known to be recorded.
pub(super) struct Unrecorded {
    pub(super) error: StoreError,
    /// The server may have written it all the same.
    may_be_written: bool,
}

impl Unrecorded {
    /// Whether the same may be told again later. Of two refusals in a row the second is not to be the first one told twice.
    pub(super) fn may_be_told_again(&self, candidate: &Candidate) -> bool {
        is_passing(&self.error) && !(self.may_be_written && candidate.life.needs_strikes())
    }
}

impl From<StoreError> for Unrecorded {
    fn from(error: StoreError) -> Self {
        Self { error, may_be_written: false }
    }
}

impl Before {
    /// Whether a forget bars an attempt that began at `fence` from putting `entry`.
    fn bars(&self, fence: Fence, entry: &Entry, first_refused_at: Millis) -> bool {
        let (key, document) = (&entry.fingerprint, &entry.document.digest);
        let forgotten = |which: &Selector| {
            which.matches(key, document, &entry.upstream, entry.status.get(), first_refused_at)
        };
        // a fence from a time that the store does not remember bars too
        let known = self.epoch.parse::<u64>().is_ok_and(|epoch| fence.0 <= epoch);
        !known || fence.0 < self.floor || fence.0 < self.keyed || self.wide.iter().any(forgotten)
    }
}

impl Shared {
    /// Decides on what is there, and writes if that has not changed.
    pub(super) async fn record(&self, candidate: &Candidate, fence: Fence) -> Result<Recorded, Unrecorded> {
        let key = &candidate.entry.fingerprint;
        // all steps together have the time that a record may take
        let until = Instant::now() + self.options.write;
        for _ in 0..DECISIONS {
            let now = self.now();
            let mark = self.near.mark();
            let before = self.before(key, fence, until).await?;
            let (decision, recorded) = match decide(&before, candidate, fence, now) {
                Ok(decided) => decided,
                Err(recorded) => {
                    if let Recorded::AlreadyThere(entry) = &recorded {
                        let replays = before.present.as_ref().map_or(0, |(_, tally)| tally.replays);
                        self.near.put(entry, replays, mark);
                    }
                    return Ok(recorded);
                }
            };
            let carried = before.present.as_ref().filter(|_| decision.carried).map_or(0, |(_, t)| t.replays);
            let most = candidate.max_entries.max(1);
            let committed = self.commit(key, &before, &decision, most, now, until).await;
            if committed.map_err(|error| Unrecorded { error, may_be_written: true })? {
                if let Recorded::Stored(entry) = &recorded {
                    if decision.carried {
                        self.near.put(entry, carried, mark);
                    } else {
                        self.near.put_anew(entry, 0, mark);
                    }
                    // told to the others by the script
                    self.leases.tell(&Event::Recorded(*key));
                }
                return Ok(recorded);
            }
        }
        Err(StoreErrorKind::Busy.error("others kept changing the entry under this fingerprint").into())
    }

    /// Puts an entry as it is, if nothing live is there.
    pub(super) async fn import(
        &self,
        Moved { entry, tally }: &Moved,
        fence: Fence,
        max_entries: u64,
    ) -> Result<Imported, StoreError> {
        let key = &entry.fingerprint;
        let until = Instant::now() + STEP;
        for _ in 0..DECISIONS {
            let now = self.now();
            if !is_live(entry, now) {
                return Ok(Imported::Expired);
            }
            let mark = self.near.mark();
            let before = self.before(key, fence, until).await?;
            if before.bars(fence, entry, entry.first_refused_at) {
                return Ok(Imported::Fenced);
            }
            if before.present.as_ref().is_some_and(|(present, _)| is_live(present, now)) {
                return Ok(Imported::AlreadyThere);
            }
            let decision =
                Decision { strike: None, entry: Some(entry.clone()), carried: false, tally: tally.clone() };
            if self.commit(key, &before, &decision, max_entries.max(1), now, until).await? {
                self.near.put_anew(&Arc::new(entry.clone()), tally.replays, mark);
                self.leases.tell(&Event::Recorded(*key));
                return Ok(Imported::Stored);
            }
        }
        Err(StoreErrorKind::Busy.error("others kept changing the entry under this fingerprint"))
    }

    async fn before(&self, key: &Fingerprint, fence: Fence, until: Instant) -> Result<Before, StoreError> {
        let keys = &self.keys;
        let mut call = self.scripts.prepare.key(keys.entry(key));
        call.key(keys.strike(key))
            .key(keys.epoch())
            .key(keys.floor())
            .key(keys.wide())
            .key(keys.keyed())
            .key(keys.index())
            .arg(fence.0)
            .arg(key.as_bytes());
        let mut answer: Vec<Value> = self.link.call(&call, left(until)).await?;
        let wide = answer.pop().ok_or_else(|| corrupt("nothing"))?;
        let wide: Vec<Vec<u8>> = Vec::from_redis_value(wide).map_err(|_| corrupt("forgets"))?;
        let fields: Vec<Vec<u8>> = answer
            .into_iter()
            .map(Vec::from_redis_value)
            .collect::<Result<_, _>>()
            .map_err(|_| corrupt("fields"))?;
        let [n, s, head, body, replays, first, last, tenants, expires, schema, strike, epoch, floor, keyed] =
            &fields[..]
        else {
            return Err(corrupt("fields"));
        };
        // what cannot be read is not there, and is replaced
        let present = value::decode_entry(head, Some(Bytes::copy_from_slice(body))).ok();
        // nor is what a look-up would not find
        let present = present.filter(|entry| {
            entry.fingerprint == *key
                && text(expires).is_some_and(|x| x == entry.expires_at().0.to_string())
                && number(schema) == Some(entry.schema.into())
        });
        Ok(Before {
            present: present.map(|entry| (entry, tally(replays, first, last, tenants))),
            suspect: !s.is_empty(),
            strike: StoredStrike::decode(strike).ok(),
            number: n.clone(),
            suspect_raw: s.clone(),
            strike_raw: strike.clone(),
            epoch: text(epoch).unwrap_or_default().to_owned(),
            floor: number(floor).unwrap_or(0),
            keyed: number(keyed).unwrap_or(0),
            // the number of the forget comes first
            wide: wide.iter().map(|member| event::selector(member.get(20..).unwrap_or_default())).collect(),
        })
    }

    /// Whether it was written.
    async fn commit(
        &self,
        key: &Fingerprint,
        before: &Before,
        decision: &Decision,
        most: u64,
        now: Millis,
        until: Instant,
    ) -> Result<bool, StoreError> {
        let keys = &self.keys;
        let token = self.leases.held_token(key);
        let mut call = self.scripts.commit.key(keys.entry(key));
        call.key(keys.strike(key))
            .key(keys.epoch())
            .key(keys.lease(key))
            .key(keys.index())
            .key(keys.expiry())
            .key(keys.seq())
            .key(keys.strikes())
            .key(keys.turn())
            .key(keys.waited(key));
        call.arg(&before.epoch)
            .arg(&before.number[..])
            .arg(&before.suspect_raw[..])
            .arg(&before.strike_raw[..])
            .arg(key.as_bytes())
            .arg(token.as_deref().unwrap_or_default())
            .arg(keys.events())
            .arg(Event::Recorded(*key).encode())
            .arg(now.0)
            .arg(decision.strike.as_ref().map(StoredStrike::encode).unwrap_or_default())
            .arg(STRIKE_MS)
            .arg(most);
        match &decision.entry {
            Some(entry) => call
                .arg(1)
                .arg(value::encode_entry(entry))
                .arg(&entry.body[..])
                .arg(entry.expires_at().0)
                .arg(entry.schema)
                .arg(u8::from(decision.carried))
                .arg(entry.ttl_ms.saturating_add(REMNANT_MS).min(i64::MAX.cast_unsigned() / 4)),
            None => call.arg(0).arg("").arg("").arg(0).arg(0).arg(0).arg(0),
        };
        call.arg(most).arg(VICTIMS);
        let tally = &decision.tally;
        let time = |at: Option<Millis>| at.map(|at| at.0.to_string()).unwrap_or_default();
        call.arg(tally.replays)
            .arg(time(tally.first_replayed_at))
            .arg(time(tally.last_replayed_at))
            .arg(tally.tenants.iter().map(|tenant| format!("{tenant} ")).collect::<String>());
        let answer: Vec<Value> = self.link.call(&call, left(until)).await?;
        let mut answer = answer.into_iter();
        let word: String = answer.next().and_then(|v| String::from_redis_value(v).ok()).unwrap_or_default();
        if word != "done" {
            return Ok(false);
        }
        if let (Some(token), true) = (&token, decision.entry.is_some()) {
            self.leases.let_go_of(key, token);
        }
        let lists: Vec<Value> = answer.skip(1).collect();
        let [excess, expired, oldest, strikes] =
            <[Value; 4]>::try_from(lists).map_err(|_| corrupt("a record"))?;
        let excess = i64::from_redis_value(excess).unwrap_or(0);
        let expired: Vec<(Vec<u8>, String)> = Vec::from_redis_value(expired).unwrap_or_default();
        let oldest: Vec<(Vec<u8>, f64)> = Vec::from_redis_value(oldest).unwrap_or_default();
        let strikes: Vec<(Vec<u8>, f64)> = Vec::from_redis_value(strikes).unwrap_or_default();
        // it is recorded, whatever becomes of this: what stays now goes with the next record
        let _ = self.evict(usize::try_from(excess).unwrap_or(0), &expired, &oldest, until).await;
        let _ = self.drop_strikes(&strikes, left(until)).await;
        if excess.cast_unsigned() >= VICTIMS && excess > 0 && self.link.first_in_a_while("excess") {
            // the bound was lowered by a lot: the rest goes with the next records
            tracing::info!("the refusal store holds more entries than `max_entries`, the oldest go in steps");
        }
        Ok(true)
    }

    /// Those that have expired go first, then the oldest, `excess` in all.
    async fn evict(
        &self,
        excess: usize,
        expired: &[(Vec<u8>, String)],
        oldest: &[(Vec<u8>, f64)],
        until: Instant,
    ) -> Result<(), StoreError> {
        if excess == 0 {
            return Ok(());
        }
        let first = expired.iter().take(excess);
        let first: Vec<_> = first.map(|(member, number)| (member, number.parse().ok())).collect();
        let is_over = |member| first.iter().any(|(over, _)| *over == member);
        let then = oldest.iter().filter(|(member, _)| !is_over(member));
        let then = then.map(|(member, number)| (member, Some(*number as u64)));
        let victims: Vec<_> = first.iter().copied().chain(then).take(excess).collect();
        let keyed: Vec<_> =
            victims.iter().filter_map(|(member, number)| Some((key_of(member)?, *number))).collect();
        let gone = self.drop_entries(&keyed, left(until)).await?;
        // those that had expired were over anyway
        let evicted = gone.iter().skip(first.len()).filter(|gone| **gone).count();
        self.evictions.fetch_add(evicted as u64, Ordering::Relaxed);
        Ok(())
    }
}

/// The rules of every store, on what was read. `Err` = nothing is to be written.
fn decide(
    before: &Before,
    candidate: &Candidate,
    fence: Fence,
    now: Millis,
) -> Result<(Decision, Recorded), Recorded> {
    let Candidate { entry, life, .. } = candidate;
    let row = before.strike.as_ref().filter(|row| life.needs_strikes() && is_in_a_row(&row.strike, now));
    let (strike, outcome) = life.strike(row.map(|row| &row.strike), entry.status, &entry.rule, now);
    let first_at = row.filter(|_| strike.count > 1).map_or(now, |row| row.first_at);
    let old = before.present.as_ref().filter(|(old, _)| goes_on(old, entry, now));
    let first_refused_at = old.map_or(first_at, |(old, _)| first_at.min(old.first_refused_at));

    if before.bars(fence, entry, first_refused_at) {
        return Err(Recorded::Fenced);
    }
    if let Some((present, _)) = &before.present
        && !before.suspect
        && is_servable(present, now)
        && present.remaining_under(life, now).is_some()
    {
        return Err(Recorded::AlreadyThere(Arc::new(present.clone())));
    }
    let strike = life.needs_strikes().then(|| StoredStrike {
        strike,
        first_at,
        document: entry.document.digest,
        upstream: entry.upstream.clone(),
    });
    let (entry, recorded) = match outcome {
        StrikeOutcome::Unconfirmed { count } => (None, Recorded::Unconfirmed(count)),
        StrikeOutcome::Remember { ttl_ms } => {
            let entry = Entry { ttl_ms, recorded_at: now, first_refused_at, ..entry.clone() };
            (Some(entry.clone()), Recorded::Stored(Arc::new(entry)))
        }
    };
    Ok((Decision { strike, entry, carried: old.is_some(), tally: Tally::default() }, recorded))
}
