//! The key of the memory: a 256-bit BLAKE3 hash of (scope, upstream, generation, canonical outbound request).
//!
//! What goes in is encoded as tagged, length-prefixed components under a versioned domain string, so that two different
//! inputs can never be written the same way ([`decode`] proves it). `docs/refusal-memory.md` lists every input for people.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest, Sha256};

use crate::tenant::{Scope, UpstreamName};

/// First bytes of every encoded key. A change of the recipe changes the number, which leaves all old entries behind.
const DOMAIN: &[u8] = b"nevertwice key 1\0";

/// Reads 64 hex digits.
pub(crate) fn parse_hex32(text: &str) -> Option<[u8; 32]> {
    let text = text.as_bytes();
    if text.len() != 64 {
        return None;
    }
    let mut out = [0; 32];
    for (byte, pair) in out.iter_mut().zip(text.chunks_exact(2)) {
        let digit = |b: u8| char::from(b).to_digit(16);
        *byte = u8::try_from(digit(pair[0])? * 16 + digit(pair[1])?).ok()?;
    }
    Some(out)
}

/// Lower-case hex digits.
pub(crate) fn hex<const N: usize, const D: usize>(bytes: &[u8; N]) -> [u8; D] {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = [b'0'; D];
    for (pair, byte) in text.chunks_exact_mut(2).zip(bytes) {
        pair[0] = DIGITS[usize::from(byte >> 4)];
        pair[1] = DIGITS[usize::from(byte & 15)];
    }
    text
}

macro_rules! digest_type {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub struct $name([u8; 32]);

        /// The first eight bytes are as good as all: they are those of a hash. Maps still use a randomly keyed hasher, since
        /// whoever sends documents can choose among their digests.
        impl std::hash::Hash for $name {
            fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
                let mut first = [0; 8];
                first.copy_from_slice(&self.0[..8]);
                state.write_u64(u64::from_ne_bytes(first));
            }
        }

        impl $name {
            /// From its 32 bytes.
            #[must_use]
            pub fn from_bytes(bytes: [u8; 32]) -> Self {
                Self(bytes)
            }

            /// As 64 lower-case hex digits.
            #[must_use]
            pub fn to_hex(&self) -> [u8; 64] {
                hex(&self.0)
            }

            /// Its 32 bytes.
            #[must_use]
            pub fn as_bytes(&self) -> &[u8; 32] {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(std::str::from_utf8(&self.to_hex()).unwrap_or_default())
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl FromStr for $name {
            type Err = NotADigest;

            fn from_str(text: &str) -> Result<Self, NotADigest> {
                parse_hex32(text).map(Self).ok_or(NotADigest)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = std::borrow::Cow::<str>::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

/// A text that should have been 64 hex digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected 64 hex digits")]
pub struct NotADigest;

digest_type! {
    /// The key of an entry: what `X-Negative-Cache-Entry` shows and `refusals forget` takes.
    Fingerprint
}
digest_type! {
    /// SHA-256 of a document: what `sha256sum` prints and what databases hold.
    DocumentDigest
}

impl DocumentDigest {
    /// The digest of a document at hand.
    #[must_use]
    pub fn of(document: &[u8]) -> Self {
        Self(Sha256::digest(document).into())
    }
}

/// The digest of a request body, and of which kind: a raw body and a form never share one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BodyDigest {
    /// BLAKE3 of the bytes as they arrived.
    Raw([u8; 32]),
    /// Of the ordered parts of a `multipart/form-data` body, without the boundary (see [`crate::canonical`]).
    Form([u8; 32]),
}

/// Everything that decides whether two requests are the same one. There is no default and no optional scope: a key without
/// a scope cannot be written down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyInput<'a> {
    /// Whose refusals count.
    pub scope: &'a str,
    /// The upstream's name.
    pub upstream: &'a str,
    /// Its identity: base URLs and a keyed digest of the credential (see [`UpstreamIdentity`]).
    pub identity: &'a [u8],
    /// The operator's generation.
    pub generation: &'a str,
    /// The method.
    pub method: &'a str,
    /// The outbound path, raw bytes.
    pub path: &'a [u8],
    /// The outbound query as far as it counts, raw; `None` = there was no `?`.
    pub query: Option<&'a [u8]>,
    /// The header fields that go upstream, canonical (see [`crate::canonical::fields`]), in the order they are keyed.
    pub fields: &'a [(&'a str, Vec<u8>)],
    /// The body.
    pub body: BodyDigest,
}

/// The secret of this deployment, with which fingerprints are keyed so that nobody outside can compute one.
#[derive(Clone)]
pub struct DeploymentKey(Option<[u8; 32]>);

impl DeploymentKey {
    /// No secret: fingerprints are plain BLAKE3.
    pub const NONE: Self = Self(None);

    /// Keyed with this secret, of any length.
    #[must_use]
    pub fn from_secret(secret: &[u8]) -> Self {
        Self(Some(blake3::derive_key("nevertwice deployment key 1", secret)))
    }

    fn hasher(&self) -> blake3::Hasher {
        match &self.0 {
            Some(key) => blake3::Hasher::new_keyed(key),
            None => blake3::Hasher::new(),
        }
    }
}

impl fmt::Debug for DeploymentKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "DeploymentKey(…)" } else { "DeploymentKey(none)" })
    }
}

/// What an upstream is, beside its name: whatever of it a refusal may depend on. Another key, a bigger plan, other rules: each leaves
/// the old entries behind.
#[derive(Clone, Copy, Debug, Default)]
pub struct UpstreamIdentity<'a> {
    /// Its base URLs, in configured order.
    pub base_urls: &'a [String],
    /// The gateway's credential for it: header and value. It cannot be read back.
    pub credential: Option<(&'a str, &'a [u8])>,
    /// The tier of the account; empty = not told.
    pub tier: &'a str,
    /// The revision of the profile's rules, where there are rules.
    pub profile: Option<&'a [u8; 32]>,
    /// Whether its own word on a refusal counts.
    pub trust_refusal_class: bool,
    /// Whether verdicts that depend on more than the document are remembered.
    pub remember_keyed: bool,
}

impl UpstreamIdentity<'_> {
    /// As one component of the key, with a keyed digest in the credential's place.
    #[must_use]
    pub fn encode(&self, key: &DeploymentKey) -> Vec<u8> {
        let mut out = Vec::new();
        for url in self.base_urls {
            put(&mut out, TAG_URL, url.as_bytes());
        }
        if let Some((header, value)) = self.credential {
            let mut hasher = key.hasher();
            let mut text = Vec::new();
            put(&mut text, TAG_FIELD_NAME, header.as_bytes());
            put(&mut text, TAG_FIELD_VALUE, value);
            hasher.update(b"nevertwice credential 1\0").update(&text);
            put(&mut out, TAG_CREDENTIAL, hasher.finalize().as_bytes());
        }
        if !self.tier.is_empty() {
            put(&mut out, TAG_TIER, self.tier.as_bytes());
        }
        if let Some(revision) = self.profile {
            put(&mut out, TAG_PROFILE, revision);
        }
        // what was remembered on wider terms is not used on narrower ones
        for (tag, on) in [(TAG_TRUST, self.trust_refusal_class), (TAG_KEYED, self.remember_keyed)] {
            if on {
                put(&mut out, tag, &[]);
            }
        }
        out
    }
}

const TAG_SCOPE: u8 = 1;
const TAG_UPSTREAM: u8 = 2;
const TAG_IDENTITY: u8 = 3;
const TAG_GENERATION: u8 = 4;
const TAG_METHOD: u8 = 5;
const TAG_PATH: u8 = 6;
const TAG_QUERY: u8 = 7;
const TAG_FIELD_NAME: u8 = 8;
const TAG_FIELD_VALUE: u8 = 9;
const TAG_BODY_RAW: u8 = 10;
const TAG_BODY_FORM: u8 = 11;
const TAG_URL: u8 = 12;
const TAG_CREDENTIAL: u8 = 13;
const TAG_TIER: u8 = 14;
const TAG_PROFILE: u8 = 15;
const TAG_TRUST: u8 = 16;
const TAG_KEYED: u8 = 17;

fn put(out: &mut Vec<u8>, tag: u8, value: &[u8]) {
    out.push(tag);
    out.extend_from_slice(&(value.len() as u64).to_le_bytes());
    out.extend_from_slice(value);
}

/// The key as bytes, before hashing.
#[must_use]
pub fn encode(input: &KeyInput<'_>) -> Vec<u8> {
    let mut out = Vec::with_capacity(512);
    out.extend_from_slice(DOMAIN);
    put(&mut out, TAG_SCOPE, input.scope.as_bytes());
    put(&mut out, TAG_UPSTREAM, input.upstream.as_bytes());
    put(&mut out, TAG_IDENTITY, input.identity);
    put(&mut out, TAG_GENERATION, input.generation.as_bytes());
    put(&mut out, TAG_METHOD, input.method.as_bytes());
    put(&mut out, TAG_PATH, input.path);
    if let Some(query) = input.query {
        put(&mut out, TAG_QUERY, query);
    }
    for (name, value) in input.fields {
        put(&mut out, TAG_FIELD_NAME, name.as_bytes());
        put(&mut out, TAG_FIELD_VALUE, value);
    }
    match &input.body {
        BodyDigest::Raw(digest) => put(&mut out, TAG_BODY_RAW, digest),
        BodyDigest::Form(digest) => put(&mut out, TAG_BODY_FORM, digest),
    }
    out
}

/// The fingerprint of a request.
#[must_use]
pub fn fingerprint(key: &DeploymentKey, input: &KeyInput<'_>) -> Fingerprint {
    let mut hasher = key.hasher();
    hasher.update(&encode(input));
    Fingerprint(*hasher.finalize().as_bytes())
}

/// A key read back from its encoding.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are those of `KeyInput`, owned")]
pub struct DecodedKey {
    pub scope: String,
    pub upstream: String,
    pub identity: Vec<u8>,
    pub generation: String,
    pub method: String,
    pub path: Vec<u8>,
    pub query: Option<Vec<u8>>,
    pub fields: Vec<(String, Vec<u8>)>,
    pub body: BodyDigest,
}

/// Reads an encoded key back: the inverse of [`encode`], which is what makes the encoding injective.
///
/// # Errors
/// A short text when the bytes are not the encoding of any key. Never panics, whatever the bytes.
pub fn decode(bytes: &[u8]) -> Result<DecodedKey, &'static str> {
    let mut rest = bytes.strip_prefix(DOMAIN).ok_or("not an encoded key of this version")?;
    let scope = take_text(&mut rest, TAG_SCOPE)?;
    let upstream = take_text(&mut rest, TAG_UPSTREAM)?;
    let identity = take(&mut rest, TAG_IDENTITY)?.to_vec();
    let generation = take_text(&mut rest, TAG_GENERATION)?;
    let method = take_text(&mut rest, TAG_METHOD)?;
    let path = take(&mut rest, TAG_PATH)?.to_vec();
    let query =
        if rest.first() == Some(&TAG_QUERY) { Some(take(&mut rest, TAG_QUERY)?.to_vec()) } else { None };
    let mut fields = Vec::new();
    while rest.first() == Some(&TAG_FIELD_NAME) {
        let name = take_text(&mut rest, TAG_FIELD_NAME)?;
        fields.push((name, take(&mut rest, TAG_FIELD_VALUE)?.to_vec()));
    }
    let digest = |value: &[u8]| <[u8; 32]>::try_from(value).map_err(|_| "a body digest has 32 bytes");
    let body = match rest.first() {
        Some(&TAG_BODY_RAW) => BodyDigest::Raw(digest(take(&mut rest, TAG_BODY_RAW)?)?),
        _ => BodyDigest::Form(digest(take(&mut rest, TAG_BODY_FORM)?)?),
    };
    if !rest.is_empty() {
        return Err("bytes after the body digest");
    }
    Ok(DecodedKey { scope, upstream, identity, generation, method, path, query, fields, body })
}

fn take<'a>(rest: &mut &'a [u8], tag: u8) -> Result<&'a [u8], &'static str> {
    let (head, tail) = rest.split_at_checked(9).ok_or("cut short")?;
    if head[0] != tag {
        return Err("unexpected component");
    }
    let mut length = [0; 8];
    length.copy_from_slice(&head[1..]);
    let length = usize::try_from(u64::from_le_bytes(length)).map_err(|_| "impossible length")?;
    let (value, after) = tail.split_at_checked(length).ok_or("cut short")?;
    *rest = after;
    Ok(value)
}

fn take_text(rest: &mut &[u8], tag: u8) -> Result<String, &'static str> {
    String::from_utf8(take(rest, tag)?.to_vec()).map_err(|_| "not UTF-8")
}

/// The parts of a [`KeyInput`] that stay the same for all requests of one tenant to one upstream.
#[derive(Clone, Debug)]
pub struct KeyBase {
    /// The scope in its text form.
    pub scope: Arc<str>,
    /// The upstream.
    pub upstream: UpstreamName,
    /// See [`UpstreamIdentity`].
    pub identity: Vec<u8>,
    /// The operator's generation.
    pub generation: String,
}

impl KeyBase {
    /// The base for callers of `scope`.
    #[must_use]
    pub fn new(scope: &Scope, upstream: UpstreamName, identity: Vec<u8>, generation: String) -> Self {
        Self { scope: scope.to_string().into(), upstream, identity, generation }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn owned(key: &KeyInput<'_>) -> DecodedKey {
        DecodedKey {
            scope: key.scope.into(),
            upstream: key.upstream.into(),
            identity: key.identity.into(),
            generation: key.generation.into(),
            method: key.method.into(),
            path: key.path.into(),
            query: key.query.map(Into::into),
            fields: key.fields.iter().map(|(n, v)| ((*n).to_owned(), v.clone())).collect(),
            body: key.body,
        }
    }

    #[test]
    fn the_recipe_of_version_1_does_not_change_unnoticed() {
        let input = KeyInput {
            scope: "fleet",
            upstream: "doc-classifier",
            identity: b"id",
            generation: "",
            method: "POST",
            path: b"/classify",
            query: None,
            fields: &[("content-type", b"application/pdf".to_vec())],
            body: BodyDigest::Raw([1; 32]),
        };
        assert_eq!(
            fingerprint(&DeploymentKey::NONE, &input).to_string(),
            "e89ea7b5899d1be31672142f13ba62f5f8078b08cf52dd56813abf5a23c4e171"
        );
        assert_ne!(
            fingerprint(&DeploymentKey::NONE, &input),
            fingerprint(&DeploymentKey::from_secret(b"s"), &input)
        );
    }

    #[test]
    fn digests_read_what_they_print() {
        let digest = DocumentDigest::of(b"");
        assert_eq!(digest.to_string(), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
        assert_eq!(digest.to_string().parse(), Ok(digest));
        assert_eq!("zz".parse::<Fingerprint>(), Err(NotADigest));
        assert_eq!("é".repeat(32).parse::<Fingerprint>(), Err(NotADigest));
    }

    #[test]
    fn whatever_a_refusal_depends_on_makes_another_identity() {
        let (urls, others) = (vec!["http://a".to_owned()], vec!["http://b".to_owned()]);
        let plain = UpstreamIdentity { base_urls: &urls, ..UpstreamIdentity::default() };
        let all = [
            plain,
            UpstreamIdentity { base_urls: &others, ..plain },
            UpstreamIdentity { credential: Some(("authorization", b"Bearer one")), ..plain },
            UpstreamIdentity { credential: Some(("authorization", b"Bearer two")), ..plain },
            UpstreamIdentity { credential: Some(("x-key", b"Bearer two")), ..plain },
            UpstreamIdentity { tier: "F0", ..plain },
            UpstreamIdentity { tier: "S0", ..plain },
            UpstreamIdentity { profile: Some(&[1; 32]), ..plain },
            UpstreamIdentity { profile: Some(&[2; 32]), ..plain },
            UpstreamIdentity { trust_refusal_class: true, ..plain },
            UpstreamIdentity { remember_keyed: true, ..plain },
            UpstreamIdentity { trust_refusal_class: true, remember_keyed: true, ..plain },
        ]
        .map(|identity| identity.encode(&DeploymentKey::NONE));
        for (i, one) in all.iter().enumerate() {
            assert!(all[i + 1..].iter().all(|other| other != one), "{i}");
            assert!(!one.windows(3).any(|w| w == b"one"));
        }
        // the plain one is that of older versions, so that they share their entries
        assert_eq!(all[0], [&[TAG_URL, 8, 0, 0, 0, 0, 0, 0, 0][..], b"http://a"].concat());
    }

    prop_compose! {
        fn keys()(
            scope in ".{0,8}", upstream in ".{0,8}", identity in any::<Vec<u8>>(), generation in ".{0,4}",
            method in "[A-Z]{1,7}", path in any::<Vec<u8>>(), query in any::<Option<Vec<u8>>>(),
            fields in prop::collection::vec((".{0,5}", any::<Vec<u8>>()), 0..4),
            raw in any::<bool>(), digest in any::<[u8; 32]>(),
        ) -> DecodedKey {
            let body = if raw { BodyDigest::Raw(digest) } else { BodyDigest::Form(digest) };
            DecodedKey { scope, upstream, identity, generation, method, path, query, fields, body }
        }
    }

    fn encode_owned(key: &DecodedKey) -> (Vec<u8>, DecodedKey) {
        let fields: Vec<_> = key.fields.iter().map(|(n, v)| (n.as_str(), v.clone())).collect();
        let input = KeyInput {
            scope: &key.scope,
            upstream: &key.upstream,
            identity: &key.identity,
            generation: &key.generation,
            method: &key.method,
            path: &key.path,
            query: key.query.as_deref(),
            fields: &fields,
            body: key.body,
        };
        (encode(&input), owned(&input))
    }

    proptest! {
        #[test]
        fn the_encoding_is_injective(key in keys()) {
            let (bytes, input) = encode_owned(&key);
            prop_assert_eq!(decode(&bytes), Ok(input));
        }

        #[test]
        fn two_keys_have_one_encoding_only_if_they_are_equal(a in keys(), b in keys()) {
            prop_assert_eq!(a == b, encode_owned(&a).0 == encode_owned(&b).0);
        }

        #[test]
        fn decoding_never_panics(bytes in any::<Vec<u8>>()) {
            let _ = decode(&bytes);
            let mut prefixed = DOMAIN.to_vec();
            prefixed.extend(bytes);
            if let Ok(key) = decode(&prefixed) {
                prop_assert_eq!(encode_owned(&key).0, prefixed);
            }
        }

        #[test]
        fn moving_a_byte_between_components_changes_the_key(scope in "[a-z]{2,6}", upstream in "[a-z]{1,6}") {
            let (head, tail) = scope.split_at(scope.len() - 1);
            let moved = format!("{tail}{upstream}");
            let base = |scope: &str, upstream: &str| DecodedKey {
                scope: scope.into(), upstream: upstream.into(), identity: vec![], generation: String::new(),
                method: "POST".into(), path: vec![], query: None, fields: vec![], body: BodyDigest::Raw([0; 32]),
            };
            prop_assert_ne!(encode_owned(&base(&scope, &upstream)).0, encode_owned(&base(head, &moved)).0);
        }
    }
}
