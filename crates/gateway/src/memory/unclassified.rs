//! Refusals that no rule knows, for operators: which codes come back, and what the rule would be. Of this process alone, and only
//! until it ends. Everything is bounded, whatever upstreams answer.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use http::{HeaderMap, StatusCode};
use nevertwice_domain::clock::Millis;
use nevertwice_domain::fingerprint::Fingerprint;
use nevertwice_domain::profile::Profile;
use nevertwice_domain::tenant::UpstreamName;
use nevertwice_domain::unclassified::{Code, NO_CODE, Refused};
use serde::Serialize;

use crate::lock::Lock;

/// The most rows of all upstreams.
const ROWS: usize = 512;
/// The most rows of an upstream.
const ROWS_OF_ONE: usize = 64;
/// Fingerprints that a row tells apart.
const FINGERPRINTS: usize = 256;
/// Codes that were logged and are not logged again; when there are so many, no further one is logged.
const LOGGED: usize = 1024;
/// With so many refusals of one fingerprint its code is logged.
const LOGGED_AT: u32 = 3;

/// One code that no rule knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UnclassifiedRow {
    /// The upstream.
    pub upstream: UpstreamName,
    /// The status of the refusals.
    pub status: u16,
    /// The code; `(none)` for answers without one.
    pub code: String,
    /// Where the code stands: a JSON pointer, or `aws-error`.
    pub at: Option<String>,
    /// The profile that does not know it.
    pub profile: Arc<str>,
    /// Refusals with it.
    pub refusals: u64,
    /// Distinct fingerprints that were refused with it, as far as they are kept apart.
    pub documents: usize,
    /// Whether there were more of them.
    pub more_documents: bool,
    /// Fingerprints that were refused with it more than once.
    pub repeated: u64,
    /// When it was first seen.
    pub first_seen_at: Millis,
    /// When it was last seen.
    pub last_seen_at: Millis,
    /// One such body, with everything masked that may be personal or secret.
    pub sample: String,
    /// The rule that would remember these refusals; absent when nothing tells them from others.
    pub rule: Option<String>,
}

/// All rows of this process.
#[derive(Debug, Default)]
pub(crate) struct Unclassified(Lock<Rows>);

/// What happened when a refusal was added.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Noted {
    /// A row made room for the one of this refusal.
    pub(crate) dropped: bool,
}

#[derive(Debug, Default)]
struct Rows {
    rows: HashMap<Key, Row>,
    logged: HashSet<(UpstreamName, String)>,
    dropped: u64,
    /// The refusals so far: which is the latest, within one millisecond too.
    turn: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    upstream: UpstreamName,
    status: u16,
    code: Option<Code>,
}

#[derive(Debug)]
struct Row {
    profile: Arc<str>,
    refusals: u64,
    repeated: u64,
    fingerprints: HashMap<Fingerprint, Tally>,
    more_documents: bool,
    first_seen_at: Millis,
    last_seen_at: Millis,
    latest: u64,
    sample: String,
    rule: Option<String>,
}

#[derive(Clone, Copy, Debug)]
struct Tally {
    refusals: u32,
    latest: u64,
}

/// A refusal that no rule knows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Refusal<'a> {
    pub(crate) upstream: &'a UpstreamName,
    pub(crate) profile: &'a Profile,
    pub(crate) fingerprint: Fingerprint,
    pub(crate) status: StatusCode,
    pub(crate) headers: &'a HeaderMap,
    pub(crate) body: &'a [u8],
}

impl Unclassified {
    /// Takes note of a refusal.
    pub(crate) fn note(&self, refusal: &Refusal<'_>, now: Millis) -> Noted {
        let refused = Refused::new(refusal.headers, refusal.body);
        let status = refusal.status.as_u16();
        let key =
            Key { upstream: refusal.upstream.clone(), status, code: refused.code(refusal.profile.codes()) };
        let known = self.0.hold().again(&key, refusal.fingerprint, now);
        let (noted, logs) = match known {
            Some(logs) => (Noted::default(), logs),
            None => {
                // made outside of the lock, and only for a row that is new
                let (sample, rule) =
                    (refused.sample(), refused.rule(status, key.code.as_ref(), refusal.profile.name()));
                let row = Row::new(refusal.profile.name(), sample, rule, now);
                let mut rows = self.0.hold();
                let dropped = rows.add(&key, row);
                (Noted { dropped }, rows.again(&key, refusal.fingerprint, now).unwrap_or_default())
            }
        };
        if logs {
            tracing::warn!(
                upstream = %key.upstream, status, code = key.code(),
                "a document is refused again and again with a code that no rule knows, so it is sent each time: \
                 see `nevertwice refusals unclassified`"
            );
        }
        noted
    }

    /// The rows, those of codes that came back for one fingerprint first. Of the others only with `all`.
    pub(crate) fn rows(&self, all: bool) -> Vec<UnclassifiedRow> {
        let rows = self.0.hold();
        let shown = rows.rows.iter().filter(|(_, row)| all || row.repeated > 0);
        let mut shown: Vec<_> = shown.map(|(key, row)| row.shown(key)).collect();
        drop(rows);
        shown.sort_by(|a, b| {
            let order = (b.repeated > 0, b.refusals).cmp(&(a.repeated > 0, a.refusals));
            order.then_with(|| {
                (&a.upstream, a.status, &a.code, &a.at).cmp(&(&b.upstream, b.status, &b.code, &b.at))
            })
        });
        shown
    }

    /// Other rules are in force on an upstream: what the old ones did not know says nothing of them.
    pub(crate) fn begin_anew(&self, upstream: &UpstreamName) {
        let mut rows = self.0.hold();
        rows.rows.retain(|key, _| key.upstream != *upstream);
        rows.logged.retain(|(logged, _)| logged != upstream);
    }

    /// Rows that made room for others.
    pub(crate) fn dropped(&self) -> u64 {
        self.0.hold().dropped
    }
}

impl Key {
    fn code(&self) -> &str {
        self.code.as_ref().map_or(NO_CODE, |code| &code.value)
    }
}

impl Rows {
    /// Counts one more in its row; whether it is to be logged. `None` when there is no such row.
    fn again(&mut self, key: &Key, fingerprint: Fingerprint, now: Millis) -> Option<bool> {
        let row = self.rows.get_mut(key)?;
        self.turn += 1;
        let of_document = row.count(fingerprint, now, self.turn);
        if of_document != LOGGED_AT || self.logged.len() == LOGGED {
            return Some(false);
        }
        Some(self.logged.insert((key.upstream.clone(), key.code().to_owned())))
    }

    /// Adds a row, unless it came meanwhile; whether another made room for it.
    fn add(&mut self, key: &Key, row: Row) -> bool {
        if self.rows.contains_key(key) {
            return false;
        }
        let of_one = self.rows.keys().filter(|k| k.upstream == key.upstream).count();
        let full = of_one >= ROWS_OF_ONE || self.rows.len() >= ROWS;
        if full {
            let among = self.rows.iter().filter(|(k, _)| of_one < ROWS_OF_ONE || k.upstream == key.upstream);
            // what came back says most: it goes last
            let oldest = among.min_by_key(|(_, row)| (row.repeated > 0, row.latest)).map(|(k, _)| k.clone());
            if let Some(oldest) = oldest {
                self.rows.remove(&oldest);
                self.dropped += 1;
            }
        }
        self.rows.insert(key.clone(), row);
        full
    }
}

impl Row {
    fn new(profile: &str, sample: String, rule: Option<String>, now: Millis) -> Self {
        Self {
            profile: profile.into(),
            refusals: 0,
            repeated: 0,
            fingerprints: HashMap::new(),
            more_documents: false,
            first_seen_at: now,
            last_seen_at: now,
            latest: 0,
            sample,
            rule,
        }
    }

    /// Counts a refusal; how many there were of this fingerprint.
    fn count(&mut self, fingerprint: Fingerprint, now: Millis, turn: u64) -> u32 {
        self.refusals += 1;
        self.last_seen_at = now;
        self.latest = turn;
        if !self.fingerprints.contains_key(&fingerprint) && self.fingerprints.len() >= FINGERPRINTS {
            let oldest = self.fingerprints.iter().min_by_key(|(_, tally)| (tally.refusals > 1, tally.latest));
            if let Some(oldest) = oldest.map(|(fingerprint, _)| *fingerprint) {
                self.fingerprints.remove(&oldest);
                self.more_documents = true;
            }
        }
        let tally = self.fingerprints.entry(fingerprint).or_insert(Tally { refusals: 0, latest: turn });
        tally.refusals = tally.refusals.saturating_add(1);
        tally.latest = turn;
        if tally.refusals == 2 {
            self.repeated += 1;
        }
        tally.refusals
    }

    fn shown(&self, key: &Key) -> UnclassifiedRow {
        UnclassifiedRow {
            upstream: key.upstream.clone(),
            status: key.status,
            code: key.code().to_owned(),
            at: key.code.as_ref().map(|code| code.place.to_string()),
            profile: Arc::clone(&self.profile),
            refusals: self.refusals,
            documents: self.fingerprints.len(),
            more_documents: self.more_documents,
            repeated: self.repeated,
            first_seen_at: self.first_seen_at,
            last_seen_at: self.last_seen_at,
            sample: self.sample.clone(),
            rule: self.rule.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "test")]

    use super::*;

    const NOW: Millis = Millis(1_700_000_000_000);

    fn named(name: &str) -> UpstreamName {
        UpstreamName::new(name).unwrap()
    }

    fn key(n: u64) -> Fingerprint {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&n.to_be_bytes());
        Fingerprint::from_bytes(bytes)
    }

    fn refuse(list: &Unclassified, upstream: &str, code: &str, document: u64, at: u64) -> Noted {
        let body = format!("{{\"error\":{{\"code\":\"{code}\",\"message\":\"cannot read 'a.pdf'\"}}}}");
        let refusal = Refusal {
            upstream: &named(upstream),
            profile: &Profile::status(),
            fingerprint: key(document),
            status: StatusCode::BAD_REQUEST,
            headers: &HeaderMap::new(),
            body: body.as_bytes(),
        };
        list.note(&refusal, NOW.plus_ms(at))
    }

    #[test]
    fn a_code_that_comes_back_for_one_document_is_listed() {
        let list = Unclassified::default();
        for (document, at) in [(1, 0), (2, 1), (1, 2), (1, 3)] {
            assert!(!refuse(&list, "ocr", "bad_scan", document, at).dropped);
        }
        refuse(&list, "ocr", "once", 1, 4);
        let rows = list.rows(false);
        let [row] = rows.as_slice() else { unreachable!("{rows:?}") };
        assert_eq!(
            (row.code.as_str(), row.at.as_deref(), row.status),
            ("bad_scan", Some("/error/code"), 400)
        );
        assert_eq!((row.refusals, row.documents, row.repeated, row.more_documents), (4, 2, 1, false));
        assert_eq!((row.first_seen_at, row.last_seen_at), (NOW, NOW.plus_ms(3)));
        assert_eq!(row.sample, r#"{"error":{"code":"bad_scan","message":"cannot read <quoted>"}}"#);
        assert!(row.rule.as_ref().unwrap().contains("- rule: bad-scan\n  status: 400\n"));
        let all = list.rows(true);
        assert_eq!(all.iter().map(|r| r.code.as_str()).collect::<Vec<_>>(), ["bad_scan", "once"]);
    }

    #[test]
    fn answers_without_a_code_are_one_row_for_each_status() {
        let list = Unclassified::default();
        let upstream = named("ocr");
        for (status, body) in [(400, "broken file"), (400, "other"), (422, ""), (400, "broken file")] {
            let refusal = Refusal {
                upstream: &upstream,
                profile: &Profile::status(),
                fingerprint: key(1),
                status: StatusCode::from_u16(status).unwrap(),
                headers: &HeaderMap::new(),
                body: body.as_bytes(),
            };
            list.note(&refusal, NOW);
        }
        let rows = list.rows(true);
        let told: Vec<_> =
            rows.iter().map(|r| (r.code.as_str(), r.at.is_none(), r.status, r.refusals)).collect();
        assert_eq!(told, [(NO_CODE, true, 400, 3), (NO_CODE, true, 422, 1)]);
        assert!(rows[0].rule.as_ref().unwrap().contains("{at: text, contains: \"broken file\"}"));
        assert_eq!(rows[1].rule, None);
    }

    #[test]
    fn other_rules_begin_anew_at_their_upstream_alone() {
        let list = Unclassified::default();
        for upstream in ["ocr", "other"] {
            for at in 0..3 {
                refuse(&list, upstream, "bad_scan", 1, at);
            }
        }
        list.begin_anew(&named("ocr"));
        let left = |list: &Unclassified| list.rows(true).into_iter().map(|r| r.upstream).collect::<Vec<_>>();
        assert_eq!(left(&list), [named("other")]);
        assert_eq!(list.0.hold().logged.len(), 1, "it is logged again when it comes back");
        refuse(&list, "ocr", "bad_scan", 1, 3);
        assert_eq!(list.rows(true).iter().map(|r| r.refusals).collect::<Vec<_>>(), [3, 1]);
    }

    #[test]
    fn a_code_is_logged_once_with_the_third_refusal_of_a_document() {
        let mut rows = Rows::default();
        let key_of = |code: &str| Key {
            upstream: named("ocr"),
            status: 400,
            code: Some(Code { value: code.to_owned(), place: nevertwice_domain::unclassified::Place::Aws }),
        };
        let mut logged = Vec::new();
        for (code, document) in
            [("a", 1), ("a", 2), ("a", 1), ("a", 1), ("a", 1), ("a", 2), ("a", 2), ("b", 1)]
        {
            rows.add(&key_of(code), Row::new("x", String::new(), None, NOW));
            logged.push(rows.again(&key_of(code), key(document), NOW).unwrap());
        }
        assert_eq!(logged, [false, false, false, true, false, false, false, false]);
        rows.logged.extend((0..LOGGED).map(|n| (named("x"), n.to_string())).take(LOGGED - 1));
        rows.again(&key_of("b"), key(1), NOW);
        assert_eq!(rows.again(&key_of("b"), key(1), NOW), Some(false), "the set is full");
    }

    #[test]
    fn an_upstream_that_draws_codes_fills_no_memory_and_hides_nothing_that_comes_back() {
        let list = Unclassified::default();
        refuse(&list, "other", "kept", 1, 0);
        refuse(&list, "ocr", "back", 1, 0);
        refuse(&list, "ocr", "back", 1, 1);
        let dropped = (0..1000).filter(|n| refuse(&list, "ocr", &format!("c{n}"), 1, 2).dropped).count();
        assert_eq!((dropped, list.dropped()), (1000 - (ROWS_OF_ONE - 1), 1000 - (ROWS_OF_ONE as u64 - 1)));
        assert_eq!(list.rows(true).len(), ROWS_OF_ONE + 1);
        assert_eq!(list.rows(false).len(), 1);
        assert!(list.rows(true).iter().any(|row| row.code == "c999"));
        for n in 0..20 {
            for code in 0..ROWS_OF_ONE {
                refuse(&list, &format!("u{n}"), &format!("c{code}"), 1, 3);
            }
        }
        assert_eq!(list.rows(true).len(), ROWS);
        assert!(list.rows(false).iter().any(|row| row.code == "back"));
    }

    #[test]
    fn many_documents_fill_no_memory_and_hide_none_that_comes_back() {
        let list = Unclassified::default();
        refuse(&list, "ocr", "bad", 0, 0);
        refuse(&list, "ocr", "bad", 0, 0);
        for n in 1..2000 {
            refuse(&list, "ocr", "bad", n, 1);
        }
        for _ in 0..2 {
            refuse(&list, "ocr", "bad", 5000, 2);
        }
        let row = list.rows(false).remove(0);
        assert_eq!((row.documents, row.more_documents, row.repeated), (FINGERPRINTS, true, 2));
        assert_eq!(row.refusals, 2003);
    }
}
