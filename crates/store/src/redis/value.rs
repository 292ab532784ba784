//! How an entry and a row of strikes look in Redis: a version, length-prefixed fields, and a checksum over all of it and the
//! body. Whatever does not decode is not an entry: foreign, truncated and newer values are told apart from ours here, and
//! nowhere else. What forgets go by stands in front, in a form that is the same in every version, see
//! docs/decisions/0011-versions-side-by-side.md.

use bytes::Bytes;
use nevertwice_domain::clock::Millis;
use nevertwice_domain::entry::{DocumentFacts, Entry, REDUCED_SCHEMA, ReplayFields};
use nevertwice_domain::fingerprint::{DocumentDigest, Fingerprint};
use nevertwice_domain::status::RefusalStatus;
use nevertwice_domain::strike::Strike;
use nevertwice_domain::tenant::{TenantId, UpstreamName};

/// The first bytes of an entry of whatever version; the next one is the version. It changes together with the schema, so that
/// look-ups pass over what they cannot read.
const ENTRY: &[u8; 3] = b"NTe";
/// The version of an entry.
const PLAIN: u8 = 1;
/// The version of an entry whose body was reduced: the same bytes, and replicas that know only the one before do not take it for
/// a whole one.
const REDUCED: u8 = 2;
const STRIKE: &[u8; 4] = b"NTs\x01";
/// The length of the checksum at the end.
const SUM: usize = 8;

/// A value that this version did not write, or that was damaged since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed;

/// What an entry says of itself in every version: what it is forgotten and marked by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Facts {
    pub(super) document: DocumentDigest,
    pub(super) status: u16,
    pub(super) first_refused_at: Millis,
    pub(super) recorded_at: Millis,
    pub(super) upstream: UpstreamName,
}

/// The refusals in a row under one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StoredStrike {
    pub(super) strike: Strike,
    pub(super) first_at: Millis,
    pub(super) document: DocumentDigest,
    pub(super) upstream: UpstreamName,
}

impl Facts {
    pub(super) fn of(entry: &Entry) -> Self {
        Self {
            document: entry.document.digest,
            status: entry.status.get(),
            first_refused_at: entry.first_refused_at,
            recorded_at: entry.recorded_at,
            upstream: entry.upstream.clone(),
        }
    }
}

/// All of an entry but its body.
pub(super) fn encode_entry(entry: &Entry) -> Vec<u8> {
    let mut out = Writer(ENTRY.to_vec());
    out.raw(&[version_of(entry.schema)]);
    // the facts: never in another form or another order
    out.raw(entry.document.digest.as_bytes());
    out.number(entry.status.get().into());
    out.number(entry.first_refused_at.0.cast_unsigned());
    out.number(entry.recorded_at.0.cast_unsigned());
    out.bytes(entry.upstream.as_str().as_bytes());
    // the rest is this version's
    out.number(entry.schema.into());
    out.raw(entry.fingerprint.as_bytes());
    out.bytes(entry.scope.as_bytes());
    out.bytes(entry.generation.as_bytes());
    out.bytes(entry.rule.as_bytes());
    out.bytes(entry.refused_tenant.as_str().as_bytes());
    out.number(entry.document.bytes);
    out.number(entry.document.parts.into());
    out.number(entry.ttl_ms);
    for field in [&entry.fields.content_type, &entry.fields.content_encoding, &entry.fields.content_language]
    {
        out.number(field.is_some().into());
        out.bytes(field.as_deref().unwrap_or_default());
    }
    out.raw(blake3::hash(&entry.body).as_bytes());
    out.sealed()
}

fn version_of(schema: u32) -> u8 {
    if schema == REDUCED_SCHEMA { REDUCED } else { PLAIN }
}

/// The entry; `body` is `None` where it is not wanted and not verified.
pub(super) fn decode_entry(value: &[u8], body: Option<Bytes>) -> Result<Entry, Malformed> {
    let mut from = Reader::open(value, ENTRY)?;
    let version = from.take(1)?;
    let Facts { document: digest, status, first_refused_at, recorded_at, upstream } = from.facts()?;
    let status = RefusalStatus::of_entry(status).map_err(|_| Malformed)?;
    let schema = from.small()?;
    if *version != [version_of(schema)] {
        return Err(Malformed);
    }
    let fingerprint = Fingerprint::from_bytes(from.digest()?);
    let scope = from.text()?.to_owned();
    let generation = from.text()?.to_owned();
    let rule = from.text()?.to_owned();
    let refused_tenant = TenantId::new(from.text()?).map_err(|_| Malformed)?;
    let document = DocumentFacts { digest, bytes: from.number()?, parts: from.small()? };
    let ttl_ms = from.number()?;
    let fields = ReplayFields {
        content_type: from.optional()?,
        content_encoding: from.optional()?,
        content_language: from.optional()?,
    };
    let body_hash = from.digest()?;
    from.end()?;
    let body = match body {
        None => Bytes::new(),
        Some(body) if *blake3::hash(&body).as_bytes() == body_hash => body,
        Some(_) => return Err(Malformed),
    };
    Ok(Entry {
        schema,
        fingerprint,
        scope,
        upstream,
        generation,
        status,
        fields,
        body,
        document,
        rule,
        refused_tenant,
        first_refused_at,
        recorded_at,
        ttl_ms,
    })
}

/// What an entry of another version is forgotten and marked by.
pub(super) fn decode_facts(value: &[u8]) -> Result<Facts, Malformed> {
    let mut from = Reader::open(value, ENTRY)?;
    let _version = from.take(1)?;
    from.facts()
}

impl StoredStrike {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Writer(STRIKE.to_vec());
        out.number(self.strike.status.into());
        out.bytes(self.strike.rule.as_bytes());
        out.number(self.strike.count.into());
        out.number(self.strike.last_at_ms.cast_unsigned());
        out.number(self.first_at.0.cast_unsigned());
        out.raw(self.document.as_bytes());
        out.bytes(self.upstream.as_str().as_bytes());
        out.sealed()
    }

    pub(super) fn decode(value: &[u8]) -> Result<Self, Malformed> {
        let mut from = Reader::open(value, STRIKE)?;
        let strike = Strike {
            status: from.small()?,
            rule: from.text()?.to_owned(),
            count: from.small()?,
            last_at_ms: from.number()?.cast_signed(),
        };
        let first_at = from.time()?;
        let document = DocumentDigest::from_bytes(from.digest()?);
        let upstream = from.upstream()?;
        from.end()?;
        Ok(Self { strike, first_at, document, upstream })
    }
}

struct Writer(Vec<u8>);

impl Writer {
    fn raw(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    fn number(&mut self, number: u64) {
        self.raw(&number.to_be_bytes());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.raw(bytes);
    }

    fn sealed(mut self) -> Vec<u8> {
        let sum = blake3::hash(&self.0);
        self.raw(&sum.as_bytes()[..SUM]);
        self.0
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn open(value: &'a [u8], magic: &[u8]) -> Result<Self, Malformed> {
        let (content, sum) = value.split_last_chunk::<SUM>().ok_or(Malformed)?;
        if blake3::hash(content).as_bytes()[..SUM] != *sum {
            return Err(Malformed);
        }
        Ok(Self(content.strip_prefix(magic).ok_or(Malformed)?))
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(Malformed)?;
        self.0 = rest;
        Ok(taken)
    }

    fn number(&mut self) -> Result<u64, Malformed> {
        Ok(u64::from_be_bytes(self.take(8)?.try_into().map_err(|_| Malformed)?))
    }

    fn small<T: TryFrom<u64>>(&mut self) -> Result<T, Malformed> {
        T::try_from(self.number()?).map_err(|_| Malformed)
    }

    fn time(&mut self) -> Result<Millis, Malformed> {
        Ok(Millis(self.number()?.cast_signed()))
    }

    fn digest(&mut self) -> Result<[u8; 32], Malformed> {
        self.take(32)?.try_into().map_err(|_| Malformed)
    }

    fn bytes(&mut self) -> Result<&'a [u8], Malformed> {
        let length = self.small()?;
        self.take(length)
    }

    fn text(&mut self) -> Result<&'a str, Malformed> {
        std::str::from_utf8(self.bytes()?).map_err(|_| Malformed)
    }

    fn upstream(&mut self) -> Result<UpstreamName, Malformed> {
        UpstreamName::new(self.text()?).map_err(|_| Malformed)
    }

    fn facts(&mut self) -> Result<Facts, Malformed> {
        Ok(Facts {
            document: DocumentDigest::from_bytes(self.digest()?),
            status: self.small()?,
            first_refused_at: self.time()?,
            recorded_at: self.time()?,
            upstream: self.upstream()?,
        })
    }

    fn optional(&mut self) -> Result<Option<Bytes>, Malformed> {
        let present = self.number()?;
        let bytes = self.bytes()?;
        match present {
            0 if bytes.is_empty() => Ok(None),
            1 => Ok(Some(Bytes::copy_from_slice(bytes))),
            _ => Err(Malformed),
        }
    }

    fn end(self) -> Result<(), Malformed> {
        if self.0.is_empty() { Ok(()) } else { Err(Malformed) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::samples;

    #[test]
    fn what_was_written_is_read_back() {
        let entry = samples::entry(7);
        let value = encode_entry(&entry);
        assert_eq!(decode_entry(&value, Some(entry.body.clone())), Ok(entry.clone()));
        assert_eq!(decode_entry(&value, None), Ok(Entry { body: Bytes::new(), ..entry.clone() }));
        let reduced = Entry { schema: REDUCED_SCHEMA, ..entry };
        assert_eq!(decode_entry(&encode_entry(&reduced), Some(reduced.body.clone())), Ok(reduced));
        let strike = StoredStrike {
            strike: Strike { status: 400, rule: "status".into(), count: 2, last_at_ms: -1 },
            first_at: Millis(5),
            document: samples::document(1),
            upstream: samples::upstream("ocr"),
        };
        assert_eq!(StoredStrike::decode(&strike.encode()), Ok(strike));
    }

    #[test]
    fn nothing_else_is_an_entry() {
        let entry = samples::entry(7);
        let value = encode_entry(&entry);
        for length in 0..value.len() {
            assert_eq!(decode_entry(&value[..length], None), Err(Malformed));
        }
        for at in 0..value.len() {
            let mut damaged = value.clone();
            damaged[at] ^= 1;
            assert_eq!(decode_entry(&damaged, None), Err(Malformed), "byte {at}");
        }
        let longer = [&value[..], b"x"].concat();
        assert_eq!(decode_entry(&longer, None), Err(Malformed));
        assert_eq!(decode_entry(&value, Some(Bytes::from_static(b"cut"))), Err(Malformed));
        assert_eq!(StoredStrike::decode(&value), Err(Malformed));
        // another version of the layout, well formed
        let mut newer = Writer(value[..value.len() - SUM].to_vec());
        newer.0[3] = 3;
        assert_eq!(decode_entry(&newer.sealed(), Some(entry.body.clone())), Err(Malformed));
        // a version and a schema that do not go together
        let mut other = Writer(value[..value.len() - SUM].to_vec());
        other.0[3] = REDUCED;
        assert_eq!(decode_entry(&other.sealed(), Some(entry.body.clone())), Err(Malformed));
        let value = encode_entry(&Entry { schema: REDUCED_SCHEMA, ..entry.clone() });
        let mut other = Writer(value[..value.len() - SUM].to_vec());
        other.0[3] = PLAIN;
        assert_eq!(decode_entry(&other.sealed(), Some(entry.body)), Err(Malformed));
    }

    #[test]
    fn what_forgets_go_by_stands_where_every_version_finds_it() {
        let entry = samples::entry(7);
        let value = encode_entry(&entry);
        // bytes that are written down here: a version that moves them is not read by those before it
        let fixed = [
            b"NTe\x01",
            &entry.document.digest.as_bytes()[..],
            &u64::from(entry.status.get()).to_be_bytes(),
            &entry.first_refused_at.0.to_be_bytes(),
            &entry.recorded_at.0.to_be_bytes(),
            &(entry.upstream.as_str().len() as u64).to_be_bytes(),
            entry.upstream.as_str().as_bytes(),
        ]
        .concat();
        assert!(value.starts_with(&fixed));
        let reduced = encode_entry(&Entry { schema: REDUCED_SCHEMA, ..entry.clone() });
        assert!(reduced.starts_with(b"NTe\x02") && reduced[4..].starts_with(&fixed[4..]));
        let mut newer = Writer(fixed);
        newer.0[3] = 9;
        newer.raw(b"whatever comes");
        let newer = newer.sealed();
        assert_eq!(decode_facts(&newer), Ok(Facts::of(&entry)));
        assert_eq!(decode_entry(&newer, None), Err(Malformed));
        for at in 0..newer.len() {
            let mut damaged = newer.clone();
            damaged[at] ^= 1;
            assert_eq!(decode_facts(&damaged), Err(Malformed), "byte {at}");
            assert_eq!(decode_facts(&newer[..at]), Err(Malformed));
        }
    }
}
