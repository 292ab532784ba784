//! An answer's body, decoded as far as rules look at it.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::io::Read;

use http::HeaderMap;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use serde_json::Value;

use super::json::Json;

/// The most that a compressed body may grow to, in bytes. What is longer is not read.
const DECODED_MAX: u64 = 1 << 20;

/// What kind of body the answer says that it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Media {
    /// JSON in one of its names, `application/x-amz-json-1.1` among them.
    Json,
    /// CBOR (RFC 8949), which AWS services use for the same objects.
    Cbor,
    /// An HTML page.
    Html,
    /// Anything else.
    Other,
    /// The answer does not say.
    Unsaid,
}

impl Media {
    pub(super) fn of(headers: &HeaderMap) -> Self {
        let Some(value) = headers.get(CONTENT_TYPE) else { return Self::Unsaid };
        let value = value.as_bytes().split(|b| *b == b';').next().unwrap_or_default().trim_ascii();
        let value = value.to_ascii_lowercase();
        let has = |word: &str| memchr::memmem::find(&value, word.as_bytes()).is_some();
        if value.is_empty() {
            Self::Unsaid
        } else if value.starts_with(b"text/html") {
            Self::Html
        } else if has("json") {
            Self::Json
        } else if has("cbor") {
            Self::Cbor
        } else {
            Self::Other
        }
    }
}

/// Why a body cannot be looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unreadable {
    /// A coding that is not known here, or several.
    Coding,
    /// It is broken, or longer than the bound once decoded.
    Broken,
}

/// The body without its content coding.
pub(crate) fn decode<'a>(headers: &HeaderMap, body: &'a [u8]) -> Result<Cow<'a, [u8]>, Unreadable> {
    let mut codings = headers
        .get_all(CONTENT_ENCODING)
        .iter()
        .flat_map(|value| value.as_bytes().split(|b| *b == b','))
        .map(|coding| coding.trim_ascii().to_ascii_lowercase())
        .filter(|coding| !coding.is_empty() && coding != b"identity");
    let (coding, more) = (codings.next(), codings.next());
    if more.is_some() {
        return Err(Unreadable::Coding);
    }
    match coding.as_deref() {
        None => Ok(Cow::Borrowed(body)),
        Some(b"gzip" | b"x-gzip") => bounded(flate2::read::MultiGzDecoder::new(body)),
        // RFC 9110 section 8.4.1.2: the zlib format
        Some(b"deflate") => bounded(flate2::read::ZlibDecoder::new(body)),
        Some(b"br") => bounded(brotli_decompressor::Decompressor::new(body, 4096)),
        Some(_) => Err(Unreadable::Coding),
    }
}

/// A decoded body as rules see it.
pub(crate) struct Body<'a> {
    text: &'a [u8],
    /// The JSON value, or what CBOR says in JSON's terms.
    pub(super) json: Option<Json<'a>>,
    lower: OnceCell<Vec<u8>>,
}

impl<'a> Body<'a> {
    pub(crate) fn read(headers: &HeaderMap, text: &'a [u8]) -> Self {
        let json = match Media::of(headers) {
            Media::Cbor => ciborium::from_reader::<Value, _>(text).ok().map(Json::from),
            _ => serde_json::from_slice(text).ok(),
        };
        Self { text, json, lower: OnceCell::new() }
    }

    /// The text in lower case, for searches.
    pub(super) fn lower(&self) -> &[u8] {
        self.lower.get_or_init(|| self.text.to_ascii_lowercase())
    }

    pub(super) fn text(&self) -> &'a [u8] {
        self.text
    }

    /// The JSON value, for who keeps it.
    pub(crate) fn value(&self) -> Option<Value> {
        self.json.as_ref().map(Json::to_value)
    }
}

fn bounded(reader: impl Read) -> Result<Cow<'static, [u8]>, Unreadable> {
    let mut out = Vec::new();
    reader.take(DECODED_MAX + 1).read_to_end(&mut out).map_err(|_| Unreadable::Broken)?;
    if out.len() as u64 > DECODED_MAX { Err(Unreadable::Broken) } else { Ok(Cow::Owned(out)) }
}
