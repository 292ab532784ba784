//! What the processes of a fleet tell each other: short messages on one channel. A lost one costs time and nothing else.

use nevertwice_domain::clock::Millis;
use nevertwice_domain::entry::Selector;
use nevertwice_domain::fingerprint::{DocumentDigest, Fingerprint};
use nevertwice_domain::status::RefusalStatus;
use nevertwice_domain::tenant::UpstreamName;

use super::leases::Token;

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// A verdict was recorded: whoever waits finds it.
    Recorded(Fingerprint),
    /// The attempt with this lease ended without a verdict: whoever waits for it goes up.
    Released(Fingerprint, Token),
    /// An attempt was given up: one of those who wait makes the next.
    GivenUp(Fingerprint),
    /// An entry is gone.
    Gone(Fingerprint),
    /// Entries are gone.
    Forgotten(Selector),
    /// An upstream accepted something for the first time.
    Accepted(UpstreamName),
    /// What this upstream refused since then is not to be used.
    Suspect(UpstreamName, Millis),
    /// Documents were judged: by which process's upstream, whether they were refused, and which.
    Judged(u64, UpstreamName, bool, Vec<[u8; 32]>),
    /// A process's mass-refusal guard of an upstream is on.
    Tripped(u64, UpstreamName, Millis),
    /// It is off again.
    Recovered(u64, UpstreamName),
    /// A job of this upstream has come, or is back.
    Waiting(UpstreamName),
    /// A process listens for what it says itself: which, and the number of what it said.
    Echo(u64, u64),
}

impl Event {
    pub(super) fn encode(&self) -> Vec<u8> {
        let of_key = |tag: u8, key: &Fingerprint| [&[tag], &key.as_bytes()[..]].concat();
        match self {
            Self::Recorded(key) => of_key(b'v', key),
            Self::Released(key, token) => [&of_key(b'n', key)[..], token.as_bytes()].concat(),
            Self::GivenUp(key) => of_key(b'u', key),
            Self::Gone(key) => of_key(b'g', key),
            Self::Forgotten(which) => [b"f", &encode_selector(which)[..]].concat(),
            Self::Accepted(upstream) => [b"a", upstream.as_str().as_bytes()].concat(),
            Self::Suspect(upstream, since) => {
                [b"s", &since.0.to_be_bytes()[..], upstream.as_str().as_bytes()].concat()
            }
            Self::Judged(sender, upstream, refused, documents) => {
                let name = upstream.as_str().as_bytes();
                let length = u8::try_from(name.len()).unwrap_or(u8::MAX);
                let head = [&[b'j'][..], &sender.to_be_bytes(), &[u8::from(*refused), length], name].concat();
                [&head[..], documents.as_flattened()].concat()
            }
            Self::Tripped(sender, upstream, since) => {
                let times = [sender.to_be_bytes(), since.0.to_be_bytes()];
                [b"t", times.as_flattened(), upstream.as_str().as_bytes()].concat()
            }
            Self::Recovered(sender, upstream) => {
                [b"r", &sender.to_be_bytes()[..], upstream.as_str().as_bytes()].concat()
            }
            Self::Waiting(upstream) => [b"w", upstream.as_str().as_bytes()].concat(),
            Self::Echo(sender, number) => {
                [b"e", [sender.to_be_bytes(), number.to_be_bytes()].as_flattened()].concat()
            }
        }
    }

    /// `None` for what this version does not know, but for [forgets](selector).
    pub(super) fn decode(message: &[u8]) -> Option<Self> {
        let (tag, rest) = message.split_first()?;
        let key = || Some(Fingerprint::from_bytes(rest.try_into().ok()?));
        let upstream = |bytes| UpstreamName::new(std::str::from_utf8(bytes).ok()?).ok();
        match tag {
            b'v' => key().map(Self::Recorded),
            b'n' => {
                let (key, token) = rest.split_first_chunk()?;
                Some(Self::Released(
                    Fingerprint::from_bytes(*key),
                    std::str::from_utf8(token).ok()?.to_owned(),
                ))
            }
            b'u' => key().map(Self::GivenUp),
            b'g' => key().map(Self::Gone),
            b'f' => Some(Self::Forgotten(selector(rest))),
            b'a' => upstream(rest).map(Self::Accepted),
            b's' => {
                let (since, name) = rest.split_first_chunk()?;
                Some(Self::Suspect(upstream(name)?, Millis(i64::from_be_bytes(*since))))
            }
            b'j' => {
                let (sender, rest) = rest.split_first_chunk()?;
                let (&[refused @ (0 | 1), length], rest) = rest.split_first_chunk()? else { return None };
                let (name, documents) = rest.split_at_checked(length.into())?;
                let (documents, rest) = documents.as_chunks();
                let event = Self::Judged(
                    u64::from_be_bytes(*sender),
                    upstream(name)?,
                    refused == 1,
                    documents.to_vec(),
                );
                rest.is_empty().then_some(event)
            }
            b't' => {
                let (sender, rest) = rest.split_first_chunk()?;
                let (since, name) = rest.split_first_chunk()?;
                let since = Millis(i64::from_be_bytes(*since));
                Some(Self::Tripped(u64::from_be_bytes(*sender), upstream(name)?, since))
            }
            b'r' => {
                let (sender, name) = rest.split_first_chunk()?;
                Some(Self::Recovered(u64::from_be_bytes(*sender), upstream(name)?))
            }
            b'w' => upstream(rest).map(Self::Waiting),
            b'e' => {
                let (sender, number) = rest.split_first_chunk()?;
                Some(Self::Echo(u64::from_be_bytes(*sender), u64::from_be_bytes(number.try_into().ok()?)))
            }
            _ => None,
        }
    }
}

const KEY: u8 = 1;
const DOCUMENT: u8 = 2;
const STATUS: u8 = 4;
const BEFORE: u8 = 8;
const UPSTREAM: u8 = 16;

/// Which conditions there are, then each; the upstream last, since it is the only one without a fixed length.
pub(super) fn encode_selector(which: &Selector) -> Vec<u8> {
    let mut out = vec![0];
    let mut condition = |bit: u8, bytes: &[u8]| {
        out[0] |= bit;
        out.extend_from_slice(bytes);
    };
    if let Some(key) = &which.fingerprint {
        condition(KEY, key.as_bytes());
    }
    if let Some(document) = &which.document {
        condition(DOCUMENT, document.as_bytes());
    }
    if let Some(status) = which.status {
        condition(STATUS, &status.get().to_be_bytes());
    }
    if let Some(before) = which.before {
        condition(BEFORE, &before.0.to_be_bytes());
    }
    if let Some(upstream) = &which.upstream {
        condition(UPSTREAM, upstream.as_str().as_bytes());
    }
    out
}

/// What was forgotten. One that this version does not know may be of anything, and is taken for all: that costs look-ups and
/// refusals, where the other would be a forget that does not hold.
pub(super) fn selector(bytes: &[u8]) -> Selector {
    decode_selector(bytes).unwrap_or_default()
}

/// `None` for what this version does not know.
fn decode_selector(bytes: &[u8]) -> Option<Selector> {
    let (&bits, mut rest) = bytes.split_first()?;
    if bits & !(KEY | DOCUMENT | STATUS | BEFORE | UPSTREAM) != 0 {
        return None;
    }
    let mut which = Selector::default();
    if bits & KEY != 0 {
        which.fingerprint = Some(Fingerprint::from_bytes(take(&mut rest)?));
    }
    if bits & DOCUMENT != 0 {
        which.document = Some(DocumentDigest::from_bytes(take(&mut rest)?));
    }
    if bits & STATUS != 0 {
        which.status = Some(RefusalStatus::of_entry(u16::from_be_bytes(take(&mut rest)?)).ok()?);
    }
    if bits & BEFORE != 0 {
        which.before = Some(Millis(i64::from_be_bytes(take(&mut rest)?)));
    }
    if bits & UPSTREAM != 0 {
        which.upstream = Some(UpstreamName::new(std::str::from_utf8(std::mem::take(&mut rest)).ok()?).ok()?);
    }
    rest.is_empty().then_some(which)
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, after) = rest.split_first_chunk()?;
    *rest = after;
    Some(*taken)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::samples;

    #[test]
    fn messages_come_back_as_they_were_and_others_are_nothing() {
        let key = samples::fingerprint(3);
        let mut events = vec![
            Event::Recorded(key),
            Event::Released(key, "0123456789abcdef-7".to_owned()),
            Event::Released(key, String::new()),
            Event::GivenUp(key),
            Event::Gone(key),
            Event::Accepted(samples::upstream("ocr")),
            Event::Suspect(samples::upstream("ocr"), Millis(-5)),
            Event::Judged(u64::MAX, samples::upstream("ocr"), true, vec![[1; 32], [2; 32]]),
            Event::Judged(7, samples::upstream("tika"), false, Vec::new()),
            Event::Tripped(1, samples::upstream("ocr"), Millis(5)),
            Event::Recovered(2, samples::upstream("ocr")),
            Event::Waiting(samples::upstream("ocr")),
            Event::Echo(u64::MAX, 7),
        ];
        for bits in 0..32_u8 {
            events.push(Event::Forgotten(Selector {
                fingerprint: (bits & 1 != 0).then_some(key),
                document: (bits & 2 != 0).then(|| samples::document(1)),
                upstream: (bits & 4 != 0).then(|| samples::upstream("tika")),
                status: (bits & 8 != 0).then(|| samples::status(422)),
                before: (bits & 16 != 0).then_some(Millis(77)),
            }));
        }
        for event in events {
            let message = event.encode();
            assert_eq!(Event::decode(&message).as_ref(), Some(&event));
            let longer = Event::decode(&[&message[..], b"\n"].concat());
            // a forget that cannot be read is one of all
            assert!(longer != Some(event.clone()) || event == Event::Forgotten(Selector::default()));
        }
        for message in [&b""[..], b"v", b"vshort", b"z123", b"a!", b"s1234567"] {
            assert_eq!(Event::decode(message), None, "{message:?}");
        }
        for message in [&b"f"[..], b"f\xff", b"f\x20what comes later", b"f\x04\x01\x91"] {
            assert_eq!(Event::decode(message), Some(Event::Forgotten(Selector::default())), "{message:?}");
        }
    }
}
