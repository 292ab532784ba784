//! What of a request a judgement looks at: whether the input is in it, or only named by it.
//!
//! A request that names its input by reference (a URL, a file id, an earlier response) is refused for reasons that no byte
//! of it holds, so nothing about it is remembered. The body may be as long as a document, so it is read as a stream, and
//! only far enough to see the keys: this is no JSON parser, and errs towards seeing a reference.

use std::borrow::Cow;

mod document;
mod json;
#[cfg(test)]
mod tests;

pub use document::DocumentSearch;
use json::{Json, KEY_MAX, NotJson, Values, json_begins};

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
    /// Its `Content-Type`, as the key has it: letter case and blanks do not count, nor the boundary of a form.
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

/// What an inline value begins with (RFC 2397).
const INLINE: &[u8] = b"data:";

/// Looks for references in a request, piece by piece.
#[derive(Debug)]
pub struct ReferenceSearch<'k> {
    keys: Keys<'k>,
    found: Option<Reference>,
    reading: Reading,
    /// What the type says.
    kind: Kind,
    /// What the text under a key of ours says so far.
    said: Vec<u8>,
}

/// What is looked for.
#[derive(Clone, Copy, Debug)]
struct Keys<'k> {
    keys: &'k [Box<str>],
    /// Of these the ones that carry the document or name it.
    documents: &'k [Box<str>],
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

impl<'k> ReferenceSearch<'k> {
    /// A search for these keys, in the body of a request with this content type. A key that is one of `documents` too carries
    /// the document in base64 or names it: what base64 cannot say is a name.
    #[must_use]
    pub fn new(keys: &'k [Box<str>], documents: &'k [Box<str>], content_type: Option<&[u8]>) -> Self {
        let kind = Kind::of(content_type.unwrap_or_default());
        let reading = if kind == Kind::Pairs { Reading::Pairs(Pairs::default()) } else { Reading::Start };
        Self { keys: Keys { keys, documents }, found: None, reading, kind, said: Vec::new() }
    }

    /// A query, without the `?`.
    pub fn query(&mut self, query: &[u8]) {
        let mut pairs = Pairs::default();
        pairs.feed(query, self.keys, &mut self.found);
        pairs.end(self.keys, &mut self.found);
    }

    /// A form field that holds a value and not a file. What is fed next is the value; a JSON text in it is looked into.
    pub fn field(&mut self, name: &[u8]) {
        self.field_ends();
        self.reading = Reading::Start;
        self.kind = Kind::Other;
        if let Some(key) = self.keys.of_field(name) {
            self.found.get_or_insert_with(|| Reference::Named(key.into()));
        }
    }

    /// A value that only looked like JSON, or is cut off, is a text.
    fn field_ends(&mut self) {
        if matches!(self.reading, Reading::Json(_)) {
            self.found.take_if(|found| *found == Reference::Unsure);
        }
        self.said.clear();
    }

    /// There are no more form fields.
    pub fn fields_end(&mut self) {
        self.field_ends();
        self.reading = Reading::Opaque;
    }

    /// The body is not what its type says, or cannot be read: it may say anything.
    pub fn unreadable(&mut self) {
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
                Some(Err(NotJson(first))) => {
                    self.reading = Reading::Opaque;
                    // JSON that begins with neither an object nor a list has no keys; in another encoding it begins otherwise
                    let keyless = self.kind == Kind::Json && first.is_ascii_graphic();
                    if matches!(self.kind, Kind::Json | Kind::Structured) && !keyless {
                        self.unreadable();
                    }
                }
            }
        }
        match &mut self.reading {
            Reading::Json(json) => {
                let mut finder = Finder { keys: self.keys, found: &mut self.found, said: &mut self.said };
                json.feed(bytes, self.keys.keys, &mut finder);
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
            Reading::Json(json) if json.is_open() => {
                self.found.get_or_insert(Reference::Unsure);
            }
            _ => {}
        }
        self.found
    }
}

struct Finder<'s> {
    keys: Keys<'s>,
    found: &'s mut Option<Reference>,
    said: &'s mut Vec<u8>,
}

impl Values for Finder<'_> {
    fn text(&mut self, _: usize, piece: &[u8]) {
        let piece = if self.said.is_empty() { piece.trim_ascii_start() } else { piece };
        let room = KEY_MAX.saturating_sub(self.said.len());
        self.said.extend_from_slice(&piece[..piece.len().min(room)]);
    }

    fn text_ends(&mut self, key: usize) {
        if self.keys.names(key, self.said) {
            self.number(key);
        }
        self.said.clear();
    }

    fn number(&mut self, key: usize) {
        *self.found = self.keys.keys.get(key).map(|key| Reference::Named(key.clone()));
    }

    fn lost(&mut self) {
        *self.found = Some(Reference::Unsure);
    }

    fn done(&self) -> bool {
        self.found.is_some()
    }
}

impl<'k> Keys<'k> {
    /// Whether the value of a key names something. One that may carry the document as well does not where it is base64.
    fn names(&self, key: usize, value: &[u8]) -> bool {
        let base64 = |b: &u8| b.is_ascii_alphanumeric() || b"+/=-_ \t\r\n".contains(b);
        let carries = self.keys.get(key).is_some_and(|key| self.documents.contains(key));
        names(value) && !(carries && value.iter().all(base64))
    }

    /// The key that a field of a form or a query is: frameworks write those of nested values as `a[b]`, `a.b` and `b[]`.
    fn of_field(&self, name: &[u8]) -> Option<&'k str> {
        let is = |key: &&str, name: &[u8]| key.as_bytes().eq_ignore_ascii_case(name);
        let of = |name: &[u8]| self.keys.iter().map(AsRef::as_ref).find(|key| is(key, name));
        let mut last = name;
        while let Some(open) = last.strip_suffix(b"]").and_then(|rest| rest.iter().rposition(|b| *b == b'['))
        {
            let inner = &last[open + 1..last.len() - 1];
            if !inner.iter().all(u8::is_ascii_digit) {
                return of(name).or_else(|| of(inner));
            }
            last = &last[..open];
        }
        let last = last.rsplit(|b| *b == b'.').next().unwrap_or(last);
        of(name).or_else(|| of(last))
    }
}

/// What a content type says of the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// `application/x-www-form-urlencoded`.
    Pairs,
    /// JSON, in one of its names.
    Json,
    /// Keys and values in another form, which is not read here.
    Structured,
    /// A document, or nothing is said.
    Other,
}

impl Kind {
    fn of(content_type: &[u8]) -> Self {
        let value = content_type.split(|b| *b == b';').next().unwrap_or_default().trim_ascii();
        let value = value.to_ascii_lowercase();
        let has = |word: &str| memchr::memmem::find(&value, word.as_bytes()).is_some();
        // a form that could be read as one is not read here
        let structured = value.starts_with(b"multipart/")
            || !value.starts_with(b"image/")
                && (value.ends_with(b"/xml")
                    || value.ends_with(b"+xml")
                    || ["cbor", "msgpack", "protobuf", "grpc", "yaml"].into_iter().any(has));
        match value.as_slice() {
            b"application/x-www-form-urlencoded" => Self::Pairs,
            _ if structured => Self::Structured,
            _ if has("json") => Self::Json,
            _ => Self::Other,
        }
    }
}

/// Whether a value of a reference's key names something: it says anything, and that is not the input itself.
fn names(value: &[u8]) -> bool {
    let value = value.trim_ascii();
    let inline = value.len() >= INLINE.len() && value[..INLINE.len()].eq_ignore_ascii_case(INLINE);
    !value.is_empty() && !inline
}

/// The most of a value in a query or an urlencoded form that is looked at, in bytes as it is written.
const VALUE_MAX: usize = 4096;

/// `name=value&...`, as in a query or an urlencoded form.
#[derive(Debug, Default)]
struct Pairs {
    name: Vec<u8>,
    value: Option<Vec<u8>>,
}

impl Pairs {
    fn feed(&mut self, bytes: &[u8], keys: Keys<'_>, found: &mut Option<Reference>) {
        for byte in bytes {
            match (byte, &mut self.value) {
                (b'&', _) => self.end(keys, found),
                (b'=', value @ None) => *value = Some(Vec::new()),
                (_, None) if self.name.len() <= 3 * KEY_MAX => self.name.push(*byte),
                (_, Some(value)) if value.len() <= VALUE_MAX => value.push(*byte),
                _ => {}
            }
        }
    }

    fn end(&mut self, keys: Keys<'_>, found: &mut Option<Reference>) {
        let (name, value) = (std::mem::take(&mut self.name), self.value.take());
        let name = unescape(&name);
        let value = value.unwrap_or_default();
        let cut = value.len() > VALUE_MAX;
        let value = unescape(&value);
        if let Some(key) = keys.of_field(&name)
            && names(&value)
        {
            found.get_or_insert_with(|| Reference::Named(key.into()));
        }
        if let Some(Ok(begin)) = json_begins(&value) {
            let mut inner = ReferenceSearch::new(keys.keys, keys.documents, None);
            inner.feed(&value[begin..]);
            // what only looked like JSON is a text
            match inner.found.filter(|found| *found != Reference::Unsure) {
                Some(named) => *found = found.take().or(Some(named)),
                None if cut => *found = found.take().or(Some(Reference::Unsure)),
                None => {}
            }
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
