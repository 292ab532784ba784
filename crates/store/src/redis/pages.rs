//! What goes through all entries, a page at a time: lists, forgets that name no single key, and marks.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use nevertwice_domain::clock::Millis;
use nevertwice_domain::entry::{Entry, Selector, Tally};
use nevertwice_domain::fingerprint::Fingerprint;
use nevertwice_domain::tenant::UpstreamName;
use redis::{FromRedisValue, Value, pipe};

use super::Shared;
use super::event::{self, Event};
use super::operations::{PAGE, STEP, corrupt, key_of, tally, text};
use super::value::{self, Facts, StoredStrike};
use crate::keeping::is_live;
use crate::{Cursor, ListOrder, ListQuery, Page, StoreError, Summary};

/// How many forgets that name no key are remembered by what they selected.
const WIDE: u64 = 1024;

/// An entry as a page of the index shows it.
struct Row {
    key: Fingerprint,
    number: u64,
    entry: Entry,
    body_bytes: u64,
    tally: Tally,
    suspect: bool,
}

/// An entry of another version: nothing is known of it but what it is forgotten and marked by.
struct Other {
    key: Fingerprint,
    number: u64,
    facts: Facts,
    expires_at: i64,
    suspect: bool,
}

/// Some entries in the order of recording.
#[derive(Default)]
struct Leaf {
    rows: Vec<Row>,
    others: Vec<Other>,
    /// What nobody can read.
    damaged: Vec<(Fingerprint, u64)>,
    /// Where the next leaf begins.
    next: Option<u64>,
}

impl Leaf {
    /// The key and the number of each entry of whatever version that these facts select, and whether it is live.
    fn selected(
        &self,
        now: Millis,
        selects: impl Fn(&Fingerprint, &Facts) -> bool,
    ) -> Vec<(Fingerprint, u64, bool)> {
        let rows = self.rows.iter().filter(|row| selects(&row.key, &Facts::of(&row.entry)));
        let rows = rows.map(|row| (row.key, row.number, is_live(&row.entry, now)));
        let others = self.others.iter().filter(|other| selects(&other.key, &other.facts));
        let others = others.map(|other| (other.key, other.number, other.expires_at > now.0));
        rows.chain(others).collect()
    }
}

impl Shared {
    pub(super) async fn forget(&self, which: &Selector) -> Result<u64, StoreError> {
        let selects = |key: &Fingerprint, of: &Facts| {
            which.matches(key, &of.document, &of.upstream, of.status, of.first_refused_at)
        };
        self.late().forget(which);
        if let Some(key) = which.fingerprint.filter(|key| *which == Selector::key(*key)) {
            return self.forget_key(&key).await;
        }
        let keys = &self.keys;
        let event = Event::Forgotten(which.clone());
        let mut call = self.scripts.forget.key(keys.epoch());
        call.key(keys.wide())
            .key(keys.floor())
            .key(keys.keyed())
            .arg(event::encode_selector(which))
            .arg(keys.events())
            .arg(event.encode())
            .arg(WIDE);
        // from here on no attempt that began before records any of them
        let epoch: u64 = self.link.call(&call, STEP).await?;
        self.seen.fetch_max(epoch, Ordering::Relaxed);
        self.happened(&event);

        let mut forgotten = 0;
        let mut after = 0;
        loop {
            let leaf = self.page(after, PAGE).await?;
            let selected = leaf.selected(self.now(), selects);
            let mut victims: Vec<_> = selected.iter().map(|(key, number, _)| (*key, Some(*number))).collect();
            if *which == Selector::default() {
                victims.extend(leaf.damaged.into_iter().map(|(key, number)| (key, Some(number))));
            }
            let gone = self.drop_entries(&victims, STEP).await?;
            forgotten += selected.iter().zip(gone).filter(|((.., live), gone)| *live && *gone).count() as u64;
            match leaf.next {
                Some(next) => after = next,
                None => break,
            }
        }
        self.forget_strikes(which).await?;
        // one that was still to be removed may have been looked up meanwhile, here or elsewhere
        self.happened(&event);
        self.publish(&event).await?;
        Ok(forgotten)
    }

    async fn forget_strikes(&self, which: &Selector) -> Result<(), StoreError> {
        let mut after = 0;
        loop {
            let members: Vec<(Vec<u8>, f64)> = self.members(&self.keys.strikes(), after, PAGE).await?;
            let Some((_, last)) = members.last() else { return Ok(()) };
            after = *last as u64;
            let mut reads = pipe();
            for (member, _) in &members {
                reads.get(key_of(member).map(|key| self.keys.strike(&key)).unwrap_or_default());
            }
            reads.ignore_errors();
            let rows: Vec<Value> = self.link.ask(&reads, STEP).await?;
            let victims: Vec<_> = members
                .iter()
                .zip(rows)
                .filter(|((member, _), row)| {
                    let row = Vec::<u8>::from_redis_value(row.clone()).ok();
                    let row = row.and_then(|row| StoredStrike::decode(&row).ok());
                    let (Some(key), Some(row)) = (key_of(member), row) else { return true };
                    which.matches(&key, &row.document, &row.upstream, row.strike.status, row.first_at)
                })
                .map(|(member, _)| member.clone())
                .collect();
            self.drop_strikes(&victims, STEP).await?;
            if members.len() < PAGE {
                return Ok(());
            }
        }
    }

    /// Marks what was recorded since then, or until then.
    pub(super) async fn suspect(
        &self,
        upstream: &UpstreamName,
        since: Millis,
        until: Option<Millis>,
    ) -> Result<u64, StoreError> {
        let event = Event::Suspect(upstream.clone(), since);
        // before, so that none is served while they are marked; and after, for those that were looked up meanwhile
        self.happened(&event);
        self.publish(&event).await?;
        let mut marked = 0;
        let mut after = 0;
        loop {
            let leaf = self.page(after, PAGE).await?;
            let is_marked: BTreeSet<u64> = {
                let rows = leaf.rows.iter().filter(|row| row.suspect).map(|row| row.number);
                rows.chain(leaf.others.iter().filter(|other| other.suspect).map(|other| other.number))
                    .collect()
            };
            let mut hit = leaf.selected(self.now(), |_, of| {
                of.upstream == *upstream
                    && of.recorded_at >= since
                    && until.is_none_or(|until| of.recorded_at <= until)
            });
            hit.retain(|(_, number, live)| *live && !is_marked.contains(number));
            if !hit.is_empty() {
                let mut call = self.scripts.suspect.prepare_invoke();
                for (key, number, _) in &hit {
                    call.key(self.keys.entry(key)).arg(number);
                }
                let answer: Vec<u64> = self.link.call(&call, STEP).await?;
                marked += answer.iter().sum::<u64>();
            }
            match leaf.next {
                Some(next) => after = next,
                None => break,
            }
        }
        self.happened(&event);
        self.publish(&event).await?;
        Ok(marked)
    }

    async fn publish(&self, event: &Event) -> Result<(), StoreError> {
        let mut publish = pipe();
        publish.cmd("PUBLISH").arg(self.keys.events()).arg(event.encode());
        let _: Vec<Value> = self.link.ask(&publish, STEP).await?;
        Ok(())
    }

    pub(super) async fn list(self: &Arc<Self>, query: &ListQuery) -> Result<Page, StoreError> {
        self.tell_replays().await?;
        let place = |row: &Row| query.place(row.tally.replays, row.number);
        // the best so far, one more than a page has
        let mut best = BTreeMap::new();
        let mut after = query.begins_after();
        loop {
            let Leaf { rows, next, .. } = self.page(after, PAGE).await?;
            let now = self.now();
            for row in rows {
                let place = place(&row);
                if is_live(&row.entry, now)
                    && query.selects(&row.entry, &row.tally)
                    && query.after.is_none_or(|after| place < (after.replays, after.sequence))
                {
                    best.insert(Reverse(place), row);
                    if best.len() > query.page_length() + 1 {
                        best.pop_last();
                    }
                }
            }
            let full = best.len() > query.page_length() && query.order == ListOrder::Oldest;
            match next {
                // later ones come later in this order
                Some(next) if !full => after = next,
                _ => break,
            }
        }
        let more = best.len() > query.page_length();
        if more {
            best.pop_last();
        }
        let next = best.last_key_value().filter(|_| more).map(|(Reverse(place), _)| Cursor::at(*place));
        let items = best.into_iter().map(|(Reverse(place), row)| Summary {
            entry: Arc::new(row.entry),
            place: Cursor::at(place),
            body_bytes: row.body_bytes,
            tally: row.tally,
            suspect: row.suspect,
        });
        Ok(Page { items: items.collect(), next })
    }

    async fn members(&self, set: &str, after: u64, most: usize) -> Result<Vec<(Vec<u8>, f64)>, StoreError> {
        let mut read = pipe();
        read.cmd("ZRANGEBYSCORE").arg(set).arg(format!("({after}")).arg("+inf");
        read.arg("WITHSCORES").arg("LIMIT").arg(0).arg(most);
        let mut answer: Vec<Vec<(Vec<u8>, f64)>> = self.link.ask(&read, STEP).await?;
        Ok(answer.pop().unwrap_or_default())
    }

    /// Entries in the order of recording, after the one with the number `after`. What the server has dropped on its own goes from
    /// the index too.
    async fn page(&self, after: u64, most: usize) -> Result<Leaf, StoreError> {
        let members = self.members(&self.keys.index(), after, most).await?;
        let Some((_, last)) = members.last() else { return Ok(Leaf::default()) };
        let mut leaf = Leaf { next: (members.len() == most).then_some(*last as u64), ..Leaf::default() };
        let members: Vec<(Fingerprint, u64)> =
            members.iter().filter_map(|(member, number)| Some((key_of(member)?, *number as u64))).collect();
        let mut reads = pipe();
        for (key, _) in &members {
            let entry = self.keys.entry(key);
            reads.cmd("HMGET").arg(&entry).arg(&["m", "n", "f", "l", "t", "s", "x"]);
            reads.cmd("HSTRLEN").arg(&entry).arg("b");
        }
        // a stranger's value among them is no reason to show nothing
        reads.ignore_errors();
        let answers: Vec<Value> = self.link.ask(&reads, STEP).await?;
        let mut orphans = Vec::new();
        for ((key, number), answer) in members.into_iter().zip(answers.chunks(2)) {
            let [fields, length] = answer else { return Err(corrupt("a page")) };
            let Some(fields) = self.fields(fields)? else {
                leaf.damaged.push((key, number));
                continue;
            };
            let of = |at: usize| fields.get(at).and_then(Option::as_deref).unwrap_or_default();
            let Some(Some(head)) = fields.first() else {
                orphans.push((key, Some(number)));
                continue;
            };
            let suspect = !of(5).is_empty();
            match value::decode_entry(head, None) {
                Ok(entry) if entry.fingerprint == key => leaf.rows.push(Row {
                    key,
                    number,
                    entry,
                    body_bytes: u64::from_redis_value(length.clone()).unwrap_or(0),
                    tally: tally(of(1), of(2), of(3), of(4)),
                    suspect,
                }),
                Ok(_) => leaf.damaged.push((key, number)),
                Err(value::Malformed) => match value::decode_facts(head) {
                    Ok(facts) => {
                        let expires_at = text(of(6)).and_then(|x| x.parse().ok()).unwrap_or(0);
                        leaf.others.push(Other { key, number, facts, expires_at, suspect });
                    }
                    Err(value::Malformed) => leaf.damaged.push((key, number)),
                },
            }
        }
        if !orphans.is_empty() {
            self.drop_entries(&orphans, STEP).await?;
        }
        Ok(leaf)
    }
}
