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
    /// A form, of which there are its fields to tell, and no bytes.
    Form,
    /// A document itself, or something that no rule looks into.
    Opaque,
}

impl<'k> ReferenceSearch<'k> {
    /// A search for these keys, in the body of a request with this content type.
    #[must_use]
    pub fn new(keys: &'k [Box<str>], content_type: Option<&[u8]>) -> Self {
        let media = content_type.and_then(|value| value.split(|b| *b == b';').next()).unwrap_or_default();
        let reading = match media.trim_ascii().to_ascii_lowercase().as_slice() {
            b"application/x-www-form-urlencoded" => Reading::Pairs(Pairs::default()),
            media if media.starts_with(b"multipart/") => Reading::Form,
            _ => Reading::Start,
        };
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

    /// There is more than can be looked at: form fields that were not told, or a body in a content coding.
    pub fn unsure(&mut self) {
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
            // no strict form: what the upstream reads in it is not known here
            Reading::Form => self.unsure(),
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

/// Whether a value of a reference's key names something: it says anything, and that is not the input itself.
fn names(value: &[u8]) -> bool {
    let value = value.trim_ascii();
    let inline = value.len() >= INLINE.len() && value[..INLINE.len()].eq_ignore_ascii_case(INLINE);
    !value.is_empty() && !inline
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
