//! The strict streaming reader of `multipart/form-data` (RFC 7578, RFC 2046 section 5.1).
//!
//! Clients draw a new boundary for every request, so a form is keyed by its parts and not by its bytes. That is only safe
//! for a body that every parser reads the same way: whatever is ambiguous is [`NotAForm`], is keyed raw and is forwarded
//! untouched. This module must never let two bodies share a digest that an upstream could tell apart by anything but what
//! [`Form::digest`] names.
//!
//! The body is seen once, in whatever pieces it arrives. Content is searched and hashed in place; what is held over from
//! one piece to the next is at most a delimiter, or the header block of one part.

use std::ops::Range;

use memchr::memmem::{self, Finder};

mod part;
#[cfg(test)]
mod tests;

/// First bytes of the digest. A change of the recipe changes the number, which leaves all old entries behind.
const DOMAIN: &[u8] = b"nevertwice form 1\0";

const TAG_PREAMBLE: u8 = 1;
const TAG_FIELD_NAME: u8 = 2;
const TAG_FIELD_VALUE: u8 = 3;
const TAG_CONTENT: u8 = 4;
const TAG_EPILOGUE: u8 = 5;

/// Most bytes of one part's header block, with the blank line that ends it.
const MAX_BLOCK: usize = 16 * 1024;
/// Most parts of a form.
const MAX_PARTS: u32 = 10_000;

/// Most names of value parts that are kept, and most bytes of one.
const MAX_VALUES: usize = 200;
const MAX_VALUE_NAME: usize = 256;

const CRLF: &[u8] = b"\r\n";
const BLANK_LINE: &[u8] = b"\r\n\r\n";

/// What of a file name counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileNameRule {
    /// The name as it came: it is keyed and sent.
    Keyed,
    /// The extension alone. The name is rewritten to `document.<ext>`, for callers that draw a new temporary name for every
    /// attempt; an empty name, which means that no file was chosen, stays empty.
    Neutral,
}

/// A body that was read as a form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Form {
    /// BLAKE3 over the form. Two bodies with equal digests are equal apart from their boundary and, in the header blocks of
    /// their parts, the letter case of field names, the one blank before field values and the order of the fields. Preamble,
    /// epilogue and the order of the parts count.
    ///
    /// With [`FileNameRule::Neutral`] it is the digest of the body that the edits make, read with [`FileNameRule::Keyed`].
    pub digest: [u8; 32],
    /// How many parts there are.
    pub parts: u32,
    /// Where in the body, as it was fed, the contents of the file parts are, in order. A file part is one with a `filename`
    /// or `filename*` parameter.
    pub files: Vec<Range<u64>>,
    /// There is no document: no part at all, or there are file parts and all of them are empty.
    pub empty: bool,
    /// How to rewrite the body before it is sent. Always empty with [`FileNameRule::Keyed`].
    pub edits: Vec<Edit>,
    /// The parts that are no files and say anything, in order; `None` when they are too many or too long to keep.
    pub values: Option<Vec<FieldValue>>,
}

/// A part of a form that is no file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldValue {
    /// Its name.
    pub name: Vec<u8>,
    /// Where in the body, as it was fed, its content is.
    pub content: Range<u64>,
}

/// A replacement in the body. The edits of a form are in rising order, do not overlap and count in bytes of the body as it
/// was fed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edit {
    /// Where it begins.
    pub at: u64,
    /// How many bytes go.
    pub remove: u64,
    /// What comes instead; a few dozen bytes at most.
    pub insert: Vec<u8>,
}

/// The body is not a strict form, with the reason. It is keyed raw and forwarded untouched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("body is not a strict form: {0}")]
pub struct NotAForm(pub &'static str);

/// Where in the body the reader is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Before the first delimiter.
    Preamble,
    /// Right behind `--boundary`.
    Delimiter,
    /// In the header block of a part.
    Fields,
    /// In the content of a part.
    Content,
    /// Right behind `--boundary--`.
    Close,
    /// Behind the line of the close delimiter.
    Epilogue,
    /// Not a form; nothing is read any more.
    Lost(&'static str),
}

/// Reads a `multipart/form-data` body piece by piece.
///
/// It takes lines that end in CRLF only; delimiters that stand at the very start or behind CRLF, without padding; a close
/// delimiter, behind which nothing or CRLF stands; no `--boundary` anywhere else, since parsers differ in what they make of
/// it; at most 10,000 parts; at most 16 KiB and 32 fields in a part's header block, no field twice, none folded, no control
/// byte but tab; and in every part a `Content-Disposition` of type `form-data` with a `name` and no parameter twice.
#[derive(Debug)]
pub struct FormReader {
    /// Finds `--boundary`.
    finder: Finder<'static>,
    rule: FileNameRule,
    place: Place,
    /// Bytes of the body that are behind `place`, with what is held.
    position: u64,
    /// Bytes that cannot be judged before more of the body is there.
    held: Vec<u8>,
    /// Preamble, content or epilogue as far as it is hashed.
    region: blake3::Hasher,
    region_length: u64,
    digest: blake3::Hasher,
    parts: u32,
    /// Of the part that is open.
    content_at: u64,
    is_file: bool,
    name: Vec<u8>,
    files: Vec<Range<u64>>,
    edits: Vec<Edit>,
    values: Option<Vec<FieldValue>>,
}

impl FormReader {
    /// A reader for a body with this boundary, of 1 to 70 of the characters that RFC 2046 allows and no blank at the end.
    /// With another one, no body is a form.
    #[must_use]
    pub fn new(boundary: &[u8], rule: FileNameRule) -> Self {
        let fits = (1..=70).contains(&boundary.len())
            && boundary.last() != Some(&b' ')
            && boundary.iter().all(|b| b.is_ascii_alphanumeric() || b"'()+_,-./:=? ".contains(b));
        let needle = if fits { [b"--", boundary].concat() } else { Vec::new() };
        let mut digest = blake3::Hasher::new();
        digest.update(DOMAIN);
        Self {
            finder: Finder::new(&needle).into_owned(),
            rule,
            place: if fits { Place::Preamble } else { Place::Lost("boundary of an impossible form") },
            position: 0,
            held: Vec::new(),
            region: blake3::Hasher::new(),
            region_length: 0,
            digest,
            parts: 0,
            content_at: 0,
            is_file: false,
            name: Vec::new(),
            files: Vec::new(),
            edits: Vec::new(),
            values: Some(Vec::new()),
        }
    }

    /// Takes the next bytes of the body, however it is cut. It never fails; once the body turned out not to be a form it
    /// does nothing.
    pub fn feed(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        while !rest.is_empty() {
            let step = match self.place {
                Place::Preamble | Place::Content | Place::Epilogue => self.scan(rest),
                Place::Delimiter | Place::Close => self.behind_delimiter(rest),
                Place::Fields => self.fields(rest),
                Place::Lost(_) => return,
            };
            match step {
                Ok(after) => {
                    self.position += (rest.len() - after.len()) as u64;
                    rest = after;
                }
                Err(reason) => return self.lose(reason),
            }
        }
    }

    /// The form, now that all of the body was fed.
    ///
    /// # Errors
    /// [`NotAForm`] when the body was not a strict form, or not all of one.
    pub fn finish(mut self) -> Result<Form, NotAForm> {
        match self.place {
            Place::Lost(reason) => return Err(NotAForm(reason)),
            Place::Close if self.held.is_empty() => {}
            Place::Close => return Err(NotAForm(BEHIND_CLOSE)),
            Place::Epilogue => {
                let held = std::mem::take(&mut self.held);
                self.hash(&held);
                self.close_region(TAG_EPILOGUE);
            }
            Place::Preamble => return Err(NotAForm("no delimiter")),
            Place::Delimiter | Place::Fields | Place::Content => return Err(NotAForm("no close delimiter")),
        }
        let empty = self.parts == 0 || (!self.files.is_empty() && self.files.iter().all(Range::is_empty));
        Ok(Form {
            digest: *self.digest.finalize().as_bytes(),
            parts: self.parts,
            files: self.files,
            empty,
            edits: self.edits,
            values: self.values,
        })
    }

    fn lose(&mut self, reason: &'static str) {
        self.place = Place::Lost(reason);
        self.held = Vec::new();
        self.files = Vec::new();
        self.edits = Vec::new();
        self.values = None;
    }

    fn go(&mut self, place: Place) {
        self.held.clear();
        self.place = place;
    }

    fn hash(&mut self, bytes: &[u8]) {
        self.region.update(bytes);
        self.region_length += bytes.len() as u64;
    }

    /// Writes the region that ends here into the digest.
    fn close_region(&mut self, tag: u8) {
        let mut value = [0; 40];
        value[..8].copy_from_slice(&self.region_length.to_le_bytes());
        value[8..].copy_from_slice(self.region.finalize().as_bytes());
        put(&mut self.digest, tag, &value);
        self.region.reset();
        self.region_length = 0;
    }

    /// Takes bytes of a region up to and with the `--boundary` that ends it, and gives back those behind it.
    fn scan<'b>(&mut self, bytes: &'b [u8]) -> Result<&'b [u8], &'static str> {
        let needle = self.finder.needle().len();
        if !self.held.is_empty() {
            // The seam: a delimiter that began in the piece before ends in it.
            let before = self.held.len();
            let seam = bytes.len().min(needle + CRLF.len());
            let mut held = std::mem::take(&mut self.held);
            held.extend_from_slice(&bytes[..seam]);
            if let Some(at) = self.finder.find(&held) {
                self.delimiter(&held[..at])?;
                return Ok(&bytes[at + needle - before..]);
            }
            if seam == bytes.len() {
                let known = self.known(&held);
                self.hash(&held[..known]);
                held.drain(..known);
                self.held = held;
                return Ok(&[]);
            }
            self.hash(&held[..before]);
            held.clear();
            self.held = held;
        }
        if let Some(at) = self.finder.find(bytes) {
            self.delimiter(&bytes[..at])?;
            return Ok(&bytes[at + needle..]);
        }
        let known = self.known(bytes);
        self.hash(&bytes[..known]);
        self.held.extend_from_slice(&bytes[known..]);
        Ok(&[])
    }

    /// How many of these bytes, which hold no `--boundary`, belong to the region whatever comes next. The others may be the
    /// start of a delimiter, with the CRLF before it.
    fn known(&self, bytes: &[u8]) -> usize {
        let needle = self.finder.needle();
        let longest = bytes.len().min(CRLF.len() + needle.len() - 1);
        let is_start = |tail: &[u8]| {
            let (line_end, rest) = tail.split_at(tail.len().min(CRLF.len()));
            needle.starts_with(tail) || (CRLF.starts_with(line_end) && needle.starts_with(rest))
        };
        (bytes.len() - longest..bytes.len()).find(|at| is_start(&bytes[*at..])).unwrap_or(bytes.len())
    }

    /// A `--boundary` ends the region; `last` is what of the region is not hashed yet, with the CRLF if there is one.
    fn delimiter(&mut self, last: &[u8]) -> Result<(), &'static str> {
        match self.place {
            Place::Content => {
                let content = last.strip_suffix(CRLF).ok_or(INSIDE)?;
                self.hash(content);
                if self.is_file {
                    self.files.push(self.content_at..self.content_at + self.region_length);
                } else if self.region_length > 0 {
                    let name = std::mem::take(&mut self.name);
                    self.values =
                        self.values.take().filter(|v| v.len() < MAX_VALUES && name.len() <= MAX_VALUE_NAME);
                    let content = self.content_at..self.content_at + self.region_length;
                    self.values.iter_mut().for_each(|values| {
                        values.push(FieldValue { name: name.clone(), content: content.clone() });
                    });
                }
                self.close_region(TAG_CONTENT);
            }
            Place::Preamble if last.is_empty() && self.region_length == 0 => {}
            Place::Preamble if last.ends_with(CRLF) => {
                // With its CRLF, so that a body that begins with an empty line is not one that begins with the delimiter.
                self.hash(last);
                self.close_region(TAG_PREAMBLE);
            }
            _ => return Err(INSIDE),
        }
        self.go(Place::Delimiter);
        Ok(())
    }

    /// The two bytes behind a delimiter say what it is; behind a close delimiter they can only be CRLF.
    fn behind_delimiter<'b>(&mut self, bytes: &'b [u8]) -> Result<&'b [u8], &'static str> {
        let (taken, rest) = bytes.split_at(bytes.len().min(2 - self.held.len()));
        self.held.extend_from_slice(taken);
        if self.held.len() < 2 {
            return Ok(rest);
        }
        match (self.place, self.held.as_slice()) {
            (Place::Delimiter, b"\r\n") => {
                if self.parts == MAX_PARTS {
                    return Err("more than 10000 parts");
                }
                self.parts += 1;
                self.go(Place::Fields);
            }
            (Place::Delimiter, b"--") => self.go(Place::Close),
            (Place::Delimiter, _) => return Err("delimiter followed by something else than a line end"),
            (_, b"\r\n") => {
                // As with the preamble, the CRLF belongs to the region.
                self.go(Place::Epilogue);
                self.hash(CRLF);
            }
            _ => return Err(BEHIND_CLOSE),
        }
        Ok(rest)
    }

    /// Takes bytes of a header block up to and with its blank line, and gives back those behind it.
    fn fields<'b>(&mut self, bytes: &'b [u8]) -> Result<&'b [u8], &'static str> {
        // A blank line that began in the piece before ends within three bytes of this one.
        let room = MAX_BLOCK - self.held.len();
        let seam = bytes.len().min(BLANK_LINE.len() - 1).min(room);
        for (i, b) in bytes[..seam].iter().enumerate() {
            self.held.push(*b);
            if self.held == CRLF {
                return Err("part without header fields");
            }
            if self.held.ends_with(BLANK_LINE) {
                return self.part(&bytes[i + 1..], i + 1);
            }
        }
        let reach = bytes.len().min(room);
        if let Some(at) = memmem::find(&bytes[..reach], BLANK_LINE) {
            let end = at + BLANK_LINE.len();
            self.held.extend_from_slice(&bytes[seam..end]);
            return self.part(&bytes[end..], end);
        }
        if reach == room {
            return Err("header block of a part over 16 KiB");
        }
        self.held.extend_from_slice(&bytes[seam..]);
        Ok(&[])
    }

    /// A whole header block is held; its last `taken` bytes are not counted in the position yet. `rest` is handed through.
    fn part<'b>(&mut self, rest: &'b [u8], taken: usize) -> Result<&'b [u8], &'static str> {
        let block = std::mem::take(&mut self.held);
        if self.finder.find(&block).is_some() {
            return Err(INSIDE);
        }
        let head = part::read(&block, self.rule)?;
        for (name, value) in &head.fields {
            put(&mut self.digest, TAG_FIELD_NAME, name);
            put(&mut self.digest, TAG_FIELD_VALUE, value);
        }
        self.content_at = self.position + taken as u64;
        let block_at = self.content_at - block.len() as u64;
        self.edits.extend(head.edits.into_iter().map(|edit| Edit { at: block_at + edit.at, ..edit }));
        self.is_file = head.is_file;
        self.name = head.name;
        drop(head.fields);
        self.held = block;
        self.go(Place::Content);
        Ok(rest)
    }
}

const INSIDE: &str = "boundary elsewhere than in a delimiter line";
const BEHIND_CLOSE: &str = "close delimiter followed by something else than a line end";

fn put(digest: &mut blake3::Hasher, tag: u8, value: &[u8]) {
    digest.update(&[tag]).update(&(value.len() as u64).to_le_bytes()).update(value);
}
