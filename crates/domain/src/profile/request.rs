//! What of a request a judgement looks at: whether the input is in it, or only named by it.
//!
//! A request that names its input by reference (a URL, a file id, an earlier response) is refused for reasons that no byte
//! of it holds, so nothing about it is remembered. The body may be as long as a document, so it is read as a stream, and
//! only far enough to see the keys: this is no JSON parser, and errs towards seeing a reference.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use sha2::{Digest, Sha256};

use crate::fingerprint::DocumentDigest;

/// At which step of an operation an answer was given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Phase {
    /// In answer to the request that carried the document.
    #[default]
    Submit,
    /// In answer to a question for the operation's state.
    Poll,
}

/// What is known of the request that was refused.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestFacts {
    /// The step.
    pub phase: Phase,
    /// Its `Content-Type`, as sent.
    pub content_type: Option<String>,
    /// How it names its input.
    pub reference: Option<Reference>,
}

/// How a request names its input instead of carrying it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reference {
    /// Under this key, form field or query parameter.
    Named(Box<str>),
    /// It could not be read far enough to be sure that it does not.
    Unsure,
}

/// The longest key that is compared, in bytes.
const KEY_MAX: usize = 64;
/// The deepest nesting that is followed.
const DEPTH_MAX: usize = 256;
/// What an inline value begins with (RFC 2397).
const INLINE: &[u8] = b"data:";

/// Looks for references in a request, piece by piece.
#[derive(Debug)]
pub struct ReferenceSearch<'k> {
    keys: &'k [Box<str>],
    found: Option<Reference>,
    reading: Reading,
    /// What the text under a key of ours says so far.
    said: Vec<u8>,
}

#[derive(Debug)]
enum Reading {
    /// Nothing but blanks so far.
    Start,
    Json(Json),
    /// `application/x-www-form-urlencoded`.
    Pairs(Pairs),
    /// A document itself, or something that no rule looks into.
    Opaque,
}

/// Behind a byte order mark and blanks: where a JSON object or list begins; `None` = not in these bytes yet.
fn json_begins(bytes: &[u8]) -> Option<Result<usize, NotJson>> {
    let begin = bytes.iter().position(|b| !b.is_ascii_whitespace() && !b"\xef\xbb\xbf".contains(b))?;
    Some(if b"{[".contains(&bytes[begin]) { Ok(begin) } else { Err(NotJson) })
}

struct NotJson;

impl<'k> ReferenceSearch<'k> {
    /// A search for these keys, in the body of a request with this content type.
    #[must_use]
    pub fn new(keys: &'k [Box<str>], content_type: Option<&[u8]>) -> Self {
        let urlencoded = content_type.is_some_and(|value| {
            let value = value.split(|b| *b == b';').next().unwrap_or_default().trim_ascii();
            value.eq_ignore_ascii_case(b"application/x-www-form-urlencoded")
        });
        let reading = if urlencoded { Reading::Pairs(Pairs::default()) } else { Reading::Start };
        Self { keys, found: None, reading, said: Vec::new() }
    }

    /// A query, without the `?`.
    pub fn query(&mut self, query: &[u8]) {
        let mut pairs = Pairs::default();
        pairs.feed(query, self.keys, &mut self.found);
        pairs.end(self.keys, &mut self.found);
    }

    /// The name of a form field that holds a value and not a file.
    pub fn field(&mut self, name: &[u8]) {
        if let Some(key) = self.keys.iter().find(|key| key.as_bytes() == name) {
            self.found.get_or_insert_with(|| Reference::Named(key.clone()));
        }
    }

    /// There are more form fields than were told.
    pub fn more_fields(&mut self) {
        self.found.get_or_insert(Reference::Unsure);
    }

    /// The next bytes of the body. Whether more are of use.
    pub fn feed(&mut self, mut bytes: &[u8]) -> bool {
        if matches!(self.reading, Reading::Start) {
            match json_begins(bytes) {
                None => return true,
                Some(Ok(begin)) => {
                    bytes = &bytes[begin..];
                    self.reading = Reading::Json(Json::default());
                }
                Some(Err(NotJson)) => self.reading = Reading::Opaque,
            }
        }
        match &mut self.reading {
            Reading::Json(json) => {
                let mut finder = Finder { keys: self.keys, found: &mut self.found, said: &mut self.said };
                json.feed(bytes, self.keys, &mut finder);
            }
            Reading::Pairs(pairs) => pairs.feed(bytes, self.keys, &mut self.found),
            Reading::Start | Reading::Opaque => return false,
        }
        self.found.is_none()
    }

    /// The body is complete.
    #[must_use]
    pub fn finish(mut self) -> Option<Reference> {
        match &mut self.reading {
            Reading::Pairs(pairs) => pairs.end(self.keys, &mut self.found),
            // what is cut off may have gone on with a reference
            Reading::Json(json) if !json.open.is_empty() => {
                self.found.get_or_insert(Reference::Unsure);
            }
            _ => {}
        }
        self.found
    }
}

struct Finder<'s> {
    keys: &'s [Box<str>],
    found: &'s mut Option<Reference>,
    said: &'s mut Vec<u8>,
}

impl Values for Finder<'_> {
    fn text(&mut self, _: usize, piece: &[u8]) {
        let room = KEY_MAX.saturating_sub(self.said.len());
        self.said.extend_from_slice(&piece[..piece.len().min(room)]);
    }

    fn text_ends(&mut self, key: usize) {
        if names(self.said) {
            self.number(key);
        }
        self.said.clear();
    }

    fn number(&mut self, key: usize) {
        *self.found = self.keys.get(key).map(|key| Reference::Named(key.clone()));
    }

    fn too_deep(&mut self) {
        *self.found = Some(Reference::Unsure);
    }

    fn done(&self) -> bool {
        self.found.is_some()
    }
}

/// Who is told of the values under keys of ours, and of nothing else.
trait Values {
    /// A piece of a text, without escapes.
    fn text(&mut self, key: usize, piece: &[u8]);
    fn text_ends(&mut self, key: usize);
    fn number(&mut self, key: usize);
    fn too_deep(&mut self);
    /// Whether nothing more is of use.
    fn done(&self) -> bool;
}

/// A container that is open: whether it is an object, and the key of ours that its values stand under.
#[derive(Clone, Copy, Debug)]
struct Open {
    object: bool,
    under: Option<usize>,
}

#[derive(Debug, Default)]
struct Json {
    open: Vec<Open>,
    /// The next string is a key.
    key_next: bool,
    /// The key of ours whose value comes next.
    under: Option<usize>,
    text: Option<Text>,
}

/// A string that is being read.
#[derive(Debug, Default)]
struct Text {
    /// It is a key, and says this so far; one byte more than [`KEY_MAX`] is kept, so that a longer one equals none.
    key: Option<Vec<u8>>,
    escape: Escape,
}

#[derive(Debug, Default, Clone, Copy)]
enum Escape {
    #[default]
    None,
    Begun,
    /// So many hex digits of `\u`, and their value.
    Unicode(u8, u32),
}

impl Json {
    fn feed(&mut self, mut bytes: &[u8], keys: &[Box<str>], values: &mut impl Values) {
        while let Some((byte, rest)) = bytes.split_first() {
            if values.done() {
                return;
            }
            if let Some(text) = &mut self.text {
                let mut say = |piece: &[u8]| match (&mut text.key, self.under) {
                    (Some(key), _) => {
                        let room = (KEY_MAX + 1).saturating_sub(key.len());
                        key.extend_from_slice(&piece[..piece.len().min(room)]);
                    }
                    (None, Some(under)) => values.text(under, piece),
                    (None, None) => {}
                };
                match text.escape.next(*byte) {
                    // a long value is skipped at the speed of memory
                    None => {
                        let plain = memchr::memchr2(b'"', b'\\', bytes).unwrap_or(bytes.len());
                        say(&bytes[..plain]);
                        bytes = &bytes[plain..];
                        match bytes.split_first() {
                            None => return,
                            Some((b'\\', rest)) => {
                                text.escape = Escape::Begun;
                                bytes = rest;
                            }
                            Some((_, rest)) => {
                                bytes = rest;
                                self.text_ends(keys, values);
                            }
                        }
                    }
                    Some(said) => {
                        if let Some(said) = said {
                            say(said.encode_utf8(&mut [0; 4]).as_bytes());
                        }
                        bytes = rest;
                    }
                }
                continue;
            }
            bytes = rest;
            match byte {
                b'"' => {
                    self.text = Some(Text { key: self.key_next.then(Vec::new), ..Text::default() });
                }
                b'{' | b'[' => {
                    if self.open.len() == DEPTH_MAX {
                        return values.too_deep();
                    }
                    let object = *byte == b'{';
                    // the items of a list under a key stand under it; those of an object have keys of their own
                    self.open.push(Open { object, under: self.under.filter(|_| !object) });
                    self.key_next = object;
                    self.under = if object { None } else { self.under };
                }
                b'}' | b']' => {
                    self.open.pop();
                    self.key_next = false;
                    self.under = None;
                }
                b',' => {
                    let open = self.open.last();
                    self.key_next = open.is_some_and(|o| o.object);
                    self.under = open.and_then(|o| o.under);
                }
                b':' => self.key_next = false,
                b'-' | b'0'..=b'9' => {
                    if let Some(under) = self.under {
                        values.number(under);
                    }
                }
                _ => {}
            }
        }
    }

    fn text_ends(&mut self, keys: &[Box<str>], values: &mut impl Values) {
        match self.text.take().and_then(|text| text.key) {
            Some(name) => {
                self.key_next = false;
                self.under = keys.iter().position(|key| key.as_bytes() == name.as_slice());
            }
            None => {
                if let Some(under) = self.under {
                    values.text_ends(under);
                }
            }
        }
    }
}

/// Whether a value of a reference's key names something: it says anything, and that is not the input itself.
fn names(value: &[u8]) -> bool {
    let value = value.trim_ascii();
    let inline = value.len() >= INLINE.len() && value[..INLINE.len()].eq_ignore_ascii_case(INLINE);
    !value.is_empty() && !inline
}

impl Escape {
    /// `None`: there is no escape here. Else the next byte belongs to it; with the last one comes what it says.
    fn next(&mut self, byte: u8) -> Option<Option<char>> {
        let (next, said) = match *self {
            Self::None => return None,
            Self::Begun if byte == b'u' => (Self::Unicode(0, 0), None),
            Self::Begun => {
                let said = match byte {
                    b'n' => '\n',
                    b't' => '\t',
                    b'r' => '\r',
                    b'b' => '\u{8}',
                    b'f' => '\u{c}',
                    other => char::from(other),
                };
                (Self::None, Some(said))
            }
            Self::Unicode(digits, value) => {
                let value = value * 16 + char::from(byte).to_digit(16).unwrap_or(0);
                match digits {
                    0..3 => (Self::Unicode(digits + 1, value), None),
                    // no key of ours has a surrogate in it
                    _ => (Self::None, Some(char::from_u32(value).unwrap_or(char::REPLACEMENT_CHARACTER))),
                }
            }
        };
        *self = next;
        Some(said)
    }
}

/// Looks for the document in a JSON request: the first text under one of some keys, in base64 (RFC 4648 section 4), alone or
/// behind the head of a data URL (RFC 2397).
#[derive(Debug)]
pub struct DocumentSearch<'k> {
    keys: &'k [Box<str>],
    reading: Option<Json>,
    decoder: Decoder,
}

impl<'k> DocumentSearch<'k> {
    /// A search for these keys.
    #[must_use]
    pub fn new(keys: &'k [Box<str>]) -> Self {
        Self { keys, reading: None, decoder: Decoder::default() }
    }

    /// The next bytes of the body. Whether more are of use.
    pub fn feed(&mut self, mut bytes: &[u8]) -> bool {
        let json = match &mut self.reading {
            Some(json) => json,
            none => match json_begins(bytes) {
                None => return true,
                Some(Err(NotJson)) => return false,
                Some(Ok(begin)) => {
                    bytes = &bytes[begin..];
                    none.insert(Json::default())
                }
            },
        };
        json.feed(bytes, self.keys, &mut self.decoder);
        !self.decoder.done()
    }

    /// SHA-256 and length of the document, if there was one that could be decoded.
    #[must_use]
    pub fn finish(self) -> Option<(DocumentDigest, u64)> {
        match self.decoder.state {
            Decoding::Ended => {
                Some((DocumentDigest::from_bytes(self.decoder.hasher.finalize().into()), self.decoder.length))
            }
            _ => None,
        }
    }
}

#[derive(Debug, Default)]
struct Decoder {
    state: Decoding,
    /// Characters that wait for the rest of their four.
    waiting: Vec<u8>,
    hasher: Sha256,
    length: u64,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Decoding {
    /// Nothing seen yet, or the head of a data URL.
    #[default]
    Head,
    Body,
    Ended,
    Broken,
}

/// Senders differ in whether they pad.
const ENGINE: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// The longest head of a data URL.
const DATA_HEAD_MAX: usize = 256;
/// What is decoded at once, in characters; a multiple of four.
const DECODE_AT_ONCE: usize = 8192;

impl Decoder {
    fn decode(&mut self, last: bool) {
        let whole = if last { self.waiting.len() } else { self.waiting.len() / 4 * 4 };
        let decoded = ENGINE.decode(&self.waiting[..whole]);
        match decoded {
            Ok(bytes) => {
                self.hasher.update(&bytes);
                self.length += bytes.len() as u64;
                self.waiting.drain(..whole);
            }
            Err(_) => self.state = Decoding::Broken,
        }
    }
}

impl Values for Decoder {
    fn text(&mut self, _: usize, mut piece: &[u8]) {
        while !piece.is_empty() && !self.done() {
            let (now, later) = piece.split_at(piece.len().min(DECODE_AT_ONCE));
            piece = later;
            self.waiting.extend(now.iter().filter(|b| !b.is_ascii_whitespace()));
            if self.state == Decoding::Head {
                let inline = self.waiting.len().min(INLINE.len());
                if !self.waiting[..inline].eq_ignore_ascii_case(&INLINE[..inline]) {
                    self.state = Decoding::Body;
                } else if let Some(comma) = self.waiting.iter().position(|b| *b == b',') {
                    let head = self.waiting.drain(..=comma).collect::<Vec<_>>().to_ascii_lowercase();
                    self.state = if head.ends_with(b";base64,") { Decoding::Body } else { Decoding::Broken };
                } else if self.waiting.len() > DATA_HEAD_MAX {
                    self.state = Decoding::Broken;
                }
            }
            // the end, with its padding, waits for the end of the text
            if self.state == Decoding::Body && self.waiting.len() > DECODE_AT_ONCE {
                let end = self.waiting.split_off(self.waiting.len() / 4 * 4 - 4);
                self.decode(false);
                self.waiting.extend(end);
            }
        }
    }

    fn text_ends(&mut self, _: usize) {
        match self.state {
            Decoding::Body => {
                self.decode(true);
                if self.state == Decoding::Body {
                    self.state = Decoding::Ended;
                }
            }
            // an empty text is no document; another one may come
            Decoding::Head if self.waiting.is_empty() => {}
            _ => self.state = Decoding::Broken,
        }
    }

    fn number(&mut self, _: usize) {}

    fn too_deep(&mut self) {
        self.state = Decoding::Broken;
    }

    fn done(&self) -> bool {
        matches!(self.state, Decoding::Ended | Decoding::Broken)
    }
}

/// `name=value&...`, as in a query or an urlencoded form.
#[derive(Debug, Default)]
struct Pairs {
    name: Vec<u8>,
    value: Option<Vec<u8>>,
}

impl Pairs {
    fn feed(&mut self, bytes: &[u8], keys: &[Box<str>], found: &mut Option<Reference>) {
        for byte in bytes {
            match (byte, &mut self.value) {
                (b'&', _) => self.end(keys, found),
                (b'=', value @ None) => *value = Some(Vec::new()),
                (_, None) if self.name.len() <= 3 * KEY_MAX => self.name.push(*byte),
                (_, Some(value)) if value.len() <= 3 * KEY_MAX => value.push(*byte),
                _ => {}
            }
        }
    }

    fn end(&mut self, keys: &[Box<str>], found: &mut Option<Reference>) {
        let (name, value) = (std::mem::take(&mut self.name), self.value.take());
        let (name, value) = (unescape(&name), value.map(|value| unescape(&value).into_owned()));
        if let Some(key) = keys.iter().find(|key| key.as_bytes() == &*name)
            && value.is_some_and(|value| names(&value))
        {
            found.get_or_insert_with(|| Reference::Named(key.clone()));
        }
    }
}

/// Percent-decoding and `+`.
fn unescape(text: &[u8]) -> Cow<'_, [u8]> {
    if !text.iter().any(|b| b"%+".contains(b)) {
        return Cow::Borrowed(text);
    }
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.iter();
    while let Some(byte) = bytes.next() {
        let digit = |b: &u8| char::from(*b).to_digit(16).and_then(|d| u8::try_from(d).ok());
        match byte {
            b'+' => out.push(b' '),
            b'%' => match bytes.as_slice() {
                [high, low, ..] if let (Some(high), Some(low)) = (digit(high), digit(low)) => {
                    out.push(high * 16 + low);
                    bytes.nth(1);
                }
                _ => out.push(b'%'),
            },
            other => out.push(*other),
        }
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn keys() -> Vec<Box<str>> {
        ["urlSource", "image_url", "url", "file_id"].map(Into::into).into()
    }

    fn search(content_type: &str, pieces: &[&[u8]]) -> Option<Reference> {
        let keys = keys();
        let mut search = ReferenceSearch::new(&keys, Some(content_type.as_bytes()));
        for piece in pieces {
            search.feed(piece);
        }
        search.finish()
    }

    fn in_json(text: &str) -> Option<Reference> {
        let whole = search("application/json", &[text.as_bytes()]);
        let bytes: Vec<&[u8]> = text.as_bytes().chunks(1).collect();
        assert_eq!(search("application/json", &bytes), whole, "{text}");
        whole
    }

    fn named(key: &str) -> Option<Reference> {
        Some(Reference::Named(key.into()))
    }

    #[test]
    fn references_in_json() {
        for (text, found) in [
            (r#"{"urlSource":"https://a/b.pdf"}"#, named("urlSource")),
            (r#"{"base64Source":"JVBERi0="}"#, None),
            (r#"{"urlSource":""}"#, None),
            (r#"{"urlSource":null,"x":"https://a"}"#, None),
            (r#"{"image_url":"data:image/png;base64,AAAA"}"#, None),
            (r#"{"image_url":" DATA:image/png;base64,AAAA"}"#, None),
            (r#"{"image_url":{"url":"data:image/png;base64,AAAA","detail":"low"}}"#, None),
            (r#"{"image_url":{"url":"https://a/b.png"}}"#, named("url")),
            (r#"{"image_url":["data:x","https://a/b.png"]}"#, named("image_url")),
            (r#"[{"a":[{"b":{"file_id" : "file-1"}}]}]"#, named("file_id")),
            (r#"{"file_id":17}"#, named("file_id")),
            (r#"{"file_id":false}"#, None),
            // the words themselves are no keys
            (r#"{"text":"urlSource","list":["url","https://a"]}"#, None),
            // escapes do not hide a key, nor make one of the document's text
            (r#"{"\u0075rlSource":"https://a"}"#, named("urlSource")),
            (r#"{"text":"\",\"urlSource\":\"https://a"}"#, None),
            (r#"{"image_url":"\u0064ata:image/png;base64,AAAA"}"#, None),
            // a second key counts as well as the first
            (r#"{"url":"data:x","url":"https://a"}"#, named("url")),
            ("\u{feff} \n{\"url\":\"https://a\"}", named("url")),
            // cut off: who knows
            (r#"{"base64Source":"JVBE"#, Some(Reference::Unsure)),
        ] {
            assert_eq!(in_json(text), found, "{text}");
        }
        assert_eq!(in_json(&format!("{}1{}", "[".repeat(300), "]".repeat(300))), Some(Reference::Unsure));
    }

    #[test]
    fn documents_are_not_looked_into() {
        assert_eq!(search("application/pdf", &[b"%PDF-1.7 {\"urlSource\":\"https://a\"}"]), None);
        assert_eq!(search("application/octet-stream", &[b""]), None);
        assert_eq!(search("application/octet-stream", &[b"  ", b" "]), None);
        // a body counts as JSON whatever its type says
        assert_eq!(search("text/plain", &[b" ", b"{\"url\":\"x\"}"]), named("url"));
    }

    #[test]
    fn references_in_pairs_fields_and_queries() {
        let form = "application/x-www-form-urlencoded; charset=utf-8";
        assert_eq!(search(form, &[b"a=1&u", b"rl=htt", b"ps%3A%2F%2Fa"]), named("url"));
        assert_eq!(search(form, &[b"%75rl=x&a=1"]), named("url"));
        assert_eq!(search(form, &[b"url=&a=url"]), None);
        assert_eq!(search(form, &[b"url=data%3Aimage/png"]), None);
        let keys = keys();
        let mut search = ReferenceSearch::new(&keys, None);
        search.field(b"strategy");
        search.query(b"api-version=2024-11-30&pages=1");
        assert_eq!(search.found, None);
        search.query(b"x&url=https://a");
        assert_eq!(search.finish(), named("url"));
        let mut search = ReferenceSearch::new(&keys, None);
        search.field(b"file_id");
        assert_eq!(search.finish(), named("file_id"));
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i32>().prop_map(Value::from),
            "[ -~]{0,12}|data:x|https://a|\\PC{0,6}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 4, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                proptest::collection::vec(("url|file_id|[a-z\"\\\\]{0,4}", inner), 0..4)
                    .prop_map(|members| Value::Object(members.into_iter().collect())),
            ]
        })
    }

    /// The plain reading of the rule, over the parsed value.
    fn expected(value: &Value, under: bool, keys: &[Box<str>]) -> bool {
        match value {
            Value::String(text) => under && names(text.as_bytes()),
            Value::Number(_) => under,
            Value::Array(items) => items.iter().any(|item| expected(item, under, keys)),
            Value::Object(map) => {
                map.iter().any(|(key, value)| expected(value, keys.iter().any(|k| **k == **key), keys))
            }
            _ => false,
        }
    }

    fn document(text: &str, piece: usize) -> Option<(DocumentDigest, u64)> {
        let keys: Vec<Box<str>> = vec!["base64Source".into(), "file".into()];
        let mut search = DocumentSearch::new(&keys);
        for piece in text.as_bytes().chunks(piece) {
            search.feed(piece);
        }
        search.finish()
    }

    #[test]
    fn documents_in_base64() {
        let of = |document: &[u8]| Some((DocumentDigest::of(document), document.len() as u64));
        for (text, found) in [
            (r#"{"base64Source":"aGVsbG8="}"#, of(b"hello")),
            (r#"{"base64Source":"aGVsbG8"}"#, of(b"hello")),
            (r#"{"base64Source":"aGVs\nbG8="}"#, of(b"hello")),
            (r#"{"a":{"file":"data:application/pdf;base64,aGVsbG8="}}"#, of(b"hello")),
            (r#"{"a":[{"file":""},{"file":"Pz8\/"},{"file":"aGVsbG8="}]}"#, of(b"???")),
            (r#"{"file":"data:text/plain,hello"}"#, None),
            (r#"{"file":"https://a.example/b.pdf"}"#, None),
            (r#"{"file":"aGVsbG8=aGVsbG8="}"#, None),
            (r#"{"file":"aGVsb"}"#, None),
            (r#"{"text":"aGVsbG8="}"#, None),
            (r#"{"file":"aGVsbG8="#, None),
            ("%PDF", None),
        ] {
            for piece in [1, 3, 1000] {
                assert_eq!(document(text, piece), found, "{text} by {piece}");
            }
        }
    }

    proptest! {
        #[test]
        fn a_document_is_found_in_any_pieces(bytes in proptest::collection::vec(any::<u8>(), 1..40_000), piece in 1_usize..20_000) {
            let text = base64::engine::general_purpose::STANDARD.encode(&bytes);
            let text = json!({ "urlSource": null, "base64Source": text }).to_string();
            prop_assert_eq!(document(&text, piece), Some((DocumentDigest::of(&bytes), bytes.len() as u64)));
        }

        #[test]
        fn the_stream_sees_what_a_parser_sees(value in any_json(), at in 0_usize..64) {
            let value = json!([value]);
            let text = value.to_string();
            let (a, b) = text.as_bytes().split_at(at.min(text.len()));
            let keys = keys();
            prop_assert_eq!(search("application/json", &[a, b]).is_some(), expected(&value, false, &keys));
        }

        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = search("application/json", &[b"[", &bytes]);
            let _ = search("application/x-www-form-urlencoded", &[&bytes]);
        }
    }
}
