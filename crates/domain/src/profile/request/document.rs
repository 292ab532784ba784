//! The document inside a JSON request, in base64: people know it by the digest of its bytes.

use base64::Engine as _;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use sha2::{Digest, Sha256};

use super::INLINE;
use super::json::{Json, NotJson, Values, json_begins};
use crate::fingerprint::DocumentDigest;

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
                Some(Err(NotJson(_))) => return false,
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

    fn lost(&mut self) {
        self.state = Decoding::Broken;
    }

    fn done(&self) -> bool {
        matches!(self.state, Decoding::Ended | Decoding::Broken)
    }
}
