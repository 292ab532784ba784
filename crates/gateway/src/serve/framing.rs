//! Strict HTTP/1.x request framing, checked before the HTTP library sees a byte.
//!
//! The HTTP library is lenient: it takes `Transfer-Encoding` beside `Content-Length`, lines that end in a bare LF,
//! folded lines. Each leniency is a place where another proxy in front of us may see a different number of requests
//! (request smuggling), so every connection passes through [`Framing`] first. It does no I/O and alters no byte: it
//! says whether the bytes so far have exactly one reading under RFC 9112, and where a refused message began.
//!
//! Three properties hold whatever the input, and the tests check them:
//! - how the bytes are cut into feeds never changes the outcome;
//! - memory is bounded: at most one unfinished line is kept, and none when a feed holds whole lines;
//! - after a violation every further feed is refused, because nobody can say where the next message starts.
//!
//! Bytes of an unfinished line are accepted before the line is judged. Those of a head are told by
//! [`Framing::unjudged`], and the wire keeps them from the HTTP library. Those of a chunk line are not kept: a reader
//! that takes any line end takes it at an LF, and no LF gets past this check unjudged.

mod grammar;
mod violation;

#[cfg(test)]
mod tests;

use grammar::Version;
use memchr::memchr;
pub use violation::{Violation, ViolationKind};

/// Empty lines accepted before a request line. RFC 9112 section 2.2 asks for at least one, as some clients send
/// CRLF after a body; more than a few is a way to keep a connection busy without sending a request.
const EMPTY_LINES_MAX: u32 = 4;

/// Longest chunk-size line in bytes, with its extensions and CRLF. RFC 9112 section 7.1.1 asks for such a limit.
const CHUNK_LINE_MAX: usize = 4096;

/// Bounds on a request head. A trailer section gets the same bounds, counted anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes from the request line through the empty line that ends the head, line ends included.
    pub head_max_bytes: usize,
    /// Number of field lines.
    pub head_max_fields: usize,
}

/// The framing state of one client connection. Feed it every byte the client sends, in order.
#[derive(Debug)]
pub struct Framing {
    limits: Limits,
    state: State,
    /// The unfinished line, when a feed ended inside one.
    line: Vec<u8>,
    head: Head,
    section: Section,
    empty_lines: u32,
    requests: u64,
    refused: Option<ViolationKind>,
}

/// What the next byte belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Line(Line),
    /// A body with Content-Length, and its bytes still to come (never zero).
    Body(u64),
    /// Chunk data still to come (never zero).
    ChunkData(u64),
    ChunkDataCr,
    ChunkDataLf,
}

/// The kinds of lines, each judged when its LF arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line {
    Request,
    Field,
    ChunkSize,
    Trailer,
}

/// What the current head has said about framing so far.
#[derive(Clone, Copy, Debug)]
struct Head {
    version: Version,
    has_host: bool,
    content_length: Option<u64>,
    chunked: bool,
}

/// Size so far of the head or trailer section being read, without the current line.
#[derive(Clone, Copy, Debug, Default)]
struct Section {
    bytes: usize,
    fields: usize,
}

/// How a line that ended well moves the connection on.
enum Next {
    Stay,
    Go(State),
    EndMessage,
}

impl Framing {
    /// A new connection, before its first byte.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            state: State::Line(Line::Request),
            line: Vec::new(),
            head: Head::new(Version::Http11),
            section: Section::default(),
            empty_lines: 0,
            requests: 0,
            refused: None,
        }
    }

    /// Validates the next bytes of the connection. Costs no allocation unless a line spans feeds, and body bytes are
    /// skipped, not read.
    ///
    /// # Errors
    /// The first [`Violation`] in the bytes. The connection cannot be read further: every later call returns a
    /// violation of the same kind with `valid_prefix` 0.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<(), Violation> {
        let mut rest = bytes;
        let mut message_start = 0;
        let outcome = match self.refused {
            Some(kind) => Err(kind),
            None => loop {
                if self.between_messages() {
                    message_start = bytes.len() - rest.len();
                }
                if rest.is_empty() {
                    break Ok(());
                }
                match self.step(rest) {
                    Ok(remaining) => rest = remaining,
                    Err(kind) => break Err(kind),
                }
            },
        };
        outcome.map_err(|kind| {
            self.refused = Some(kind);
            self.line = Vec::new();
            Violation { kind, in_body: self.in_body(), valid_prefix: message_start }
        })
    }

    /// True while the head is complete and its body, chunk framing or trailer section is not. After a violation: true
    /// if it was found there.
    pub fn in_body(&self) -> bool {
        !matches!(self.state, State::Line(Line::Request | Line::Field))
    }

    /// True if no byte of a next request has arrived, so that the end of the connection here cuts nothing off. Empty
    /// lines before a request line do not count. False after a violation.
    pub fn between_messages(&self) -> bool {
        self.state == State::Line(Line::Request) && self.line.is_empty() && self.refused.is_none()
    }

    /// How many bytes of the head line that is being read have arrived: they are not judged yet.
    pub fn unjudged(&self) -> usize {
        if self.in_body() { 0 } else { self.line.len() }
    }

    /// Number of valid request heads completed on this connection.
    pub fn requests(&self) -> u64 {
        self.requests
    }

    /// Consumes at least one byte of `bytes`, which is not empty, and returns the others.
    fn step<'a>(&mut self, bytes: &'a [u8]) -> Result<&'a [u8], ViolationKind> {
        match self.state {
            State::Body(left) => {
                let (left, rest) = skip(left, bytes);
                if left == 0 {
                    self.end_message();
                } else {
                    self.state = State::Body(left);
                }
                Ok(rest)
            }
            State::ChunkData(left) => {
                let (left, rest) = skip(left, bytes);
                self.state = if left == 0 { State::ChunkDataCr } else { State::ChunkData(left) };
                Ok(rest)
            }
            State::ChunkDataCr => {
                let rest = bytes.strip_prefix(b"\r").ok_or(ViolationKind::MissingChunkEnd)?;
                self.state = State::ChunkDataLf;
                Ok(rest)
            }
            State::ChunkDataLf => {
                let rest = bytes.strip_prefix(b"\n").ok_or(ViolationKind::MissingChunkEnd)?;
                self.state = State::Line(Line::ChunkSize);
                Ok(rest)
            }
            State::Line(Line::Request) if self.line.is_empty() && !grammar::may_start_request(bytes) => {
                // Said at once, not at the line end: a TLS hello on a plain port may hold no LF and would wait for
                // its time-out.
                Err(ViolationKind::MalformedRequestLine)
            }
            State::Line(kind) => self.read_line(kind, bytes),
        }
    }

    fn read_line<'a>(&mut self, kind: Line, bytes: &'a [u8]) -> Result<&'a [u8], ViolationKind> {
        let line_end = memchr(b'\n', bytes).map(|at| at + 1);
        let (piece, rest) = bytes.split_at(line_end.unwrap_or(bytes.len()));
        let (line_max, too_long) = self.line_bound(kind);
        if self.line.len() + piece.len() > line_max {
            return Err(too_long);
        }
        if line_end.is_none() {
            self.line.extend_from_slice(piece);
            return Ok(rest);
        }
        let next = if self.line.is_empty() {
            self.end_line(kind, piece)?
        } else {
            let mut line = std::mem::take(&mut self.line);
            line.extend_from_slice(piece);
            let next = self.end_line(kind, &line)?;
            line.clear();
            self.line = line;
            next
        };
        // The buffer serves the lines of one section and is then given back: an idle connection holds none.
        if kind == Line::Request || !matches!(next, Next::Stay) {
            self.line = Vec::new();
        }
        match next {
            Next::Stay => {}
            Next::Go(state) => self.state = state,
            Next::EndMessage => self.end_message(),
        }
        Ok(rest)
    }

    /// Bytes a line may have in all, and what a longer one is refused as.
    fn line_bound(&self, kind: Line) -> (usize, ViolationKind) {
        match kind {
            Line::ChunkSize => (CHUNK_LINE_MAX, ViolationKind::ChunkLineTooLong),
            Line::Request | Line::Field | Line::Trailer => {
                (self.limits.head_max_bytes.saturating_sub(self.section.bytes), ViolationKind::HeadTooLarge)
            }
        }
    }

    /// Judges one whole line, its line end included.
    fn end_line(&mut self, kind: Line, line: &[u8]) -> Result<Next, ViolationKind> {
        let content = grammar::line_content(line)?;
        match kind {
            Line::Request if content.is_empty() => {
                self.empty_lines += 1;
                if self.empty_lines > EMPTY_LINES_MAX {
                    return Err(ViolationKind::TooManyEmptyLines);
                }
                Ok(Next::Stay)
            }
            Line::Request => {
                self.head = Head::new(grammar::request_line(content)?);
                self.section.bytes = line.len();
                Ok(Next::Go(State::Line(Line::Field)))
            }
            Line::Field if content.is_empty() => {
                let body = self.head.finish()?;
                self.requests += 1;
                self.section = Section::default();
                Ok(body.map_or(Next::EndMessage, Next::Go))
            }
            Line::Field => {
                self.count_field(line)?;
                let (name, value) = grammar::field_line(content)?;
                self.head.field(name, value)?;
                Ok(Next::Stay)
            }
            Line::ChunkSize => match grammar::chunk_size(content)? {
                0 => Ok(Next::Go(State::Line(Line::Trailer))),
                size => Ok(Next::Go(State::ChunkData(size))),
            },
            Line::Trailer if content.is_empty() => Ok(Next::EndMessage),
            Line::Trailer => {
                self.count_field(line)?;
                let (name, _) = grammar::field_line(content)?;
                if FramingField::of(name).is_some() {
                    return Err(ViolationKind::ForbiddenTrailer);
                }
                Ok(Next::Stay)
            }
        }
    }

    fn count_field(&mut self, line: &[u8]) -> Result<(), ViolationKind> {
        self.section.bytes += line.len();
        self.section.fields += 1;
        if self.section.fields > self.limits.head_max_fields {
            return Err(ViolationKind::TooManyFields);
        }
        Ok(())
    }

    fn end_message(&mut self) {
        self.state = State::Line(Line::Request);
        self.section = Section::default();
        self.empty_lines = 0;
    }
}

impl Head {
    fn new(version: Version) -> Self {
        Self { version, has_host: false, content_length: None, chunked: false }
    }

    fn field(&mut self, name: &[u8], value: &[u8]) -> Result<(), ViolationKind> {
        match FramingField::of(name) {
            None => {}
            Some(FramingField::Host) => {
                if self.has_host {
                    return Err(ViolationKind::RepeatedHost);
                }
                grammar::host(value)?;
                self.has_host = true;
            }
            Some(FramingField::ContentLength) => {
                if self.content_length.is_some() {
                    return Err(ViolationKind::RepeatedContentLength);
                }
                self.content_length = Some(grammar::content_length(value)?);
            }
            Some(FramingField::TransferEncoding) => {
                if self.chunked {
                    return Err(ViolationKind::RepeatedTransferEncoding);
                }
                if self.version == Version::Http10 {
                    return Err(ViolationKind::TransferEncodingInHttp10);
                }
                grammar::transfer_encoding(value)?;
                self.chunked = true;
            }
        }
        if self.chunked && self.content_length.is_some() {
            return Err(ViolationKind::LengthAndTransferEncoding);
        }
        Ok(())
    }

    /// The state of the body this head announces; `None` if there is none (RFC 9112 section 6.3).
    fn finish(&self) -> Result<Option<State>, ViolationKind> {
        if self.version == Version::Http11 && !self.has_host {
            return Err(ViolationKind::MissingHost);
        }
        if self.chunked {
            return Ok(Some(State::Line(Line::ChunkSize)));
        }
        Ok(self.content_length.filter(|length| *length > 0).map(State::Body))
    }
}

/// The fields that decide where a message ends or whom it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FramingField {
    Host,
    ContentLength,
    TransferEncoding,
}

impl FramingField {
    fn of(name: &[u8]) -> Option<Self> {
        // By length first: nearly every field is told apart without comparing a byte.
        match name.len() {
            4 if name.eq_ignore_ascii_case(b"host") => Some(Self::Host),
            14 if name.eq_ignore_ascii_case(b"content-length") => Some(Self::ContentLength),
            17 if name.eq_ignore_ascii_case(b"transfer-encoding") => Some(Self::TransferEncoding),
            _ => None,
        }
    }
}

/// Skips up to `left` bytes; returns how many are still to come, and the bytes after them.
fn skip(left: u64, bytes: &[u8]) -> (u64, &[u8]) {
    match usize::try_from(left) {
        Ok(left) if left <= bytes.len() => (0, bytes.split_at(left).1),
        // `left` exceeds the length of a slice, so the subtraction cannot wrap.
        _ => (left - bytes.len() as u64, &[]),
    }
}
