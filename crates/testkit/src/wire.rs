//! HTTP/1.1 message bytes: heads, and bodies by their framing. Shared by the stub upstream and the client; it
//! keeps what it read and notes what is odd instead of repairing it.

use bytes::{Buf, Bytes, BytesMut};

/// Header fields in the order of the wire: names as they were spelt, values as bytes without the blanks around.
pub type Headers = Vec<(String, Vec<u8>)>;

/// The longest head that is read, bytes.
pub(crate) const HEAD_MAX: usize = 4 << 20;
/// The longest chunk-size or trailer line that is read, bytes.
const LINE_MAX: usize = 64 << 10;

/// Where a head ends: the index after its empty line.
pub(crate) fn head_end(bytes: &[u8]) -> Option<usize> {
    bytes.windows(4).position(|window| window == b"\r\n\r\n").map(|at| at + 4)
}

/// The start line and the fields of a head (with or without its empty line), and what is wrong with it.
pub(crate) fn parse_head(head: &[u8]) -> (Vec<u8>, Headers, Vec<String>) {
    let mut problems = Vec::new();
    let mut fields = Headers::new();
    let mut lines = split_lines(head).into_iter();
    let start = lines.next().unwrap_or_default().to_vec();
    for line in std::iter::once(start.as_slice()).chain(lines) {
        if line.contains(&b'\n') || line.contains(&b'\r') || line.contains(&0) {
            problems.push(format!("bare CR, LF or NUL in {:?}", String::from_utf8_lossy(line)));
        }
    }
    for line in split_lines(head).into_iter().skip(1).filter(|line| !line.is_empty()) {
        if line.starts_with(b" ") || line.starts_with(b"\t") {
            problems.push("folded header line".to_owned());
        }
        let Some(colon) = line.iter().position(|byte| *byte == b':') else {
            problems.push(format!("header line without a colon: {:?}", String::from_utf8_lossy(line)));
            continue;
        };
        let name = String::from_utf8_lossy(&line[..colon]).into_owned();
        if name.is_empty() || name.contains([' ', '\t']) {
            problems.push(format!("blank in the header name {name:?}"));
        }
        fields.push((name, trim(&line[colon + 1..]).to_vec()));
    }
    (start, fields, problems)
}

fn split_lines(head: &[u8]) -> Vec<&[u8]> {
    let mut lines = Vec::new();
    let mut rest = head;
    while let Some(at) = rest.windows(2).position(|window| window == b"\r\n") {
        lines.push(&rest[..at]);
        rest = &rest[at + 2..];
    }
    if !rest.is_empty() {
        lines.push(rest);
    }
    lines
}

/// Without the blanks (space, tab) around.
pub(crate) fn trim(mut bytes: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] = bytes {
        bytes = rest;
    }
    while let [rest @ .., b' ' | b'\t'] = bytes {
        bytes = rest;
    }
    bytes
}

/// All values of a field, in order; names are compared without regard to case.
pub(crate) fn values<'a>(headers: &'a Headers, name: &str) -> Vec<&'a [u8]> {
    headers.iter().filter(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, v)| v.as_slice()).collect()
}

/// Whether a comma-separated field has this token, without regard to case.
pub(crate) fn has_token(headers: &Headers, name: &str, token: &str) -> bool {
    values(headers, name)
        .iter()
        .flat_map(|value| value.split(|byte| *byte == b','))
        .any(|part| trim(part).eq_ignore_ascii_case(token.as_bytes()))
}

/// How a message says where its body ends (RFC 9112, section 6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    Length(u64),
    Chunked,
    UntilClose,
}

/// The framing by the fields; `None` where neither field says one.
pub(crate) fn framing(headers: &Headers, problems: &mut Vec<String>) -> Option<Framing> {
    let lengths = values(headers, "content-length");
    let codings = values(headers, "transfer-encoding");
    if lengths.len() > 1 {
        problems.push(format!("{} content-length fields", lengths.len()));
    }
    if codings.len() > 1 {
        problems.push(format!("{} transfer-encoding fields", codings.len()));
    }
    if !codings.is_empty() {
        if !lengths.is_empty() {
            problems.push("content-length and transfer-encoding together".to_owned());
        }
        if !codings.iter().all(|coding| coding.eq_ignore_ascii_case(b"chunked")) {
            problems.push("transfer-encoding other than chunked".to_owned());
        }
        return Some(Framing::Chunked);
    }
    let digits = lengths.first()?;
    let number = std::str::from_utf8(digits).ok().filter(|text| text.bytes().all(|b| b.is_ascii_digit()));
    let Some(length) = number.and_then(|text| text.parse().ok()) else {
        problems.push(format!("content-length {:?}", String::from_utf8_lossy(digits)));
        return Some(Framing::Length(0));
    };
    Some(Framing::Length(length))
}

/// What a [`Decoder`] found next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// Content.
    Data(Bytes),
    /// Bytes that are on the wire but not content: chunk sizes, line ends, trailers.
    Frame(Bytes),
    /// The buffer is used up and the body goes on.
    More,
    /// The body is complete; what is left in the buffer belongs to the next message.
    Done,
}

#[derive(Debug)]
enum State {
    Fixed(u64),
    UntilClose,
    Size,
    Chunk(u64),
    ChunkEnd,
    Trailers,
    Done,
}

/// Takes a body apart by its framing.
#[derive(Debug)]
pub(crate) struct Decoder {
    state: State,
    trailers: Headers,
}

impl Decoder {
    pub(crate) fn new(framing: Framing) -> Self {
        let state = match framing {
            Framing::Length(length) => State::Fixed(length),
            Framing::Chunked => State::Size,
            Framing::UntilClose => State::UntilClose,
        };
        Self { state, trailers: Headers::new() }
    }

    /// The trailer fields seen so far.
    pub(crate) fn trailers(&self) -> &Headers {
        &self.trailers
    }

    /// Whether the end of the connection is a proper end of this body.
    pub(crate) fn ends_with_connection(&self) -> bool {
        matches!(self.state, State::UntilClose | State::Done)
    }

    /// Takes the next piece out of the buffer; an error says how the chunked framing is broken.
    pub(crate) fn next(&mut self, buffer: &mut BytesMut) -> Result<Piece, String> {
        match self.state {
            State::Done | State::Fixed(0) => {
                self.state = State::Done;
                Ok(Piece::Done)
            }
            State::UntilClose if buffer.is_empty() => Ok(Piece::More),
            State::UntilClose => Ok(Piece::Data(buffer.split().freeze())),
            State::Fixed(left) => {
                let data = take(buffer, left);
                self.state = State::Fixed(left - data.len() as u64);
                Ok(if data.is_empty() { Piece::More } else { Piece::Data(data) })
            }
            State::Chunk(left) => {
                let data = take(buffer, left);
                let left = left - data.len() as u64;
                self.state = if left == 0 { State::ChunkEnd } else { State::Chunk(left) };
                Ok(if data.is_empty() { Piece::More } else { Piece::Data(data) })
            }
            State::ChunkEnd => {
                if buffer.len() < 2 {
                    return Ok(Piece::More);
                }
                if &buffer[..2] != b"\r\n" {
                    return Err("chunk longer than its size says".to_owned());
                }
                self.state = State::Size;
                Ok(Piece::Frame(buffer.copy_to_bytes(2)))
            }
            State::Size => {
                let Some(line) = take_line(buffer)? else { return Ok(Piece::More) };
                let size = chunk_size(&line[..line.len() - 2])?;
                self.state = if size == 0 { State::Trailers } else { State::Chunk(size) };
                Ok(Piece::Frame(line))
            }
            State::Trailers => {
                let Some(line) = take_line(buffer)? else { return Ok(Piece::More) };
                let field = &line[..line.len() - 2];
                if field.is_empty() {
                    self.state = State::Done;
                } else if let Some(colon) = field.iter().position(|byte| *byte == b':') {
                    let name = String::from_utf8_lossy(&field[..colon]).into_owned();
                    self.trailers.push((name, trim(&field[colon + 1..]).to_vec()));
                } else {
                    return Err("trailer line without a colon".to_owned());
                }
                Ok(Piece::Frame(line))
            }
        }
    }
}

fn take(buffer: &mut BytesMut, most: u64) -> Bytes {
    let length = usize::try_from(most).unwrap_or(usize::MAX).min(buffer.len());
    buffer.split_to(length).freeze()
}

fn take_line(buffer: &mut BytesMut) -> Result<Option<Bytes>, String> {
    match buffer.windows(2).position(|window| window == b"\r\n") {
        Some(at) => Ok(Some(buffer.copy_to_bytes(at + 2))),
        None if buffer.len() > LINE_MAX => Err("chunk line without an end".to_owned()),
        None => Ok(None),
    }
}

/// The size of a chunk; an extension after `;` is passed over (RFC 9112, section 7.1.1).
fn chunk_size(line: &[u8]) -> Result<u64, String> {
    let digits = line.split(|byte| *byte == b';').next().unwrap_or_default();
    let text = std::str::from_utf8(digits).unwrap_or_default();
    if text.is_empty() || text.len() > 15 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(format!("chunk size {:?}", String::from_utf8_lossy(line)));
    }
    u64::from_str_radix(text, 16).map_err(|error| error.to_string())
}

/// The bytes in chunks of at most `size` bytes, with the last chunk.
pub(crate) fn in_chunks(body: &[u8], size: usize) -> Vec<u8> {
    let mut wire = Vec::with_capacity(body.len() + body.len() / size.max(1) * 6 + 16);
    for piece in body.chunks(size.max(1)) {
        wire.extend(chunk(piece));
    }
    wire.extend_from_slice(b"0\r\n\r\n");
    wire
}

/// One chunk; an empty one would end the body, so it is nothing.
pub(crate) fn chunk(piece: &[u8]) -> Vec<u8> {
    if piece.is_empty() {
        return Vec::new();
    }
    let mut wire = format!("{:x}\r\n", piece.len()).into_bytes();
    wire.extend_from_slice(piece);
    wire.extend_from_slice(b"\r\n");
    wire
}

/// Lower-case hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(framing: Framing, wire: &[u8], step: usize) -> Result<(Vec<u8>, Vec<u8>, bool), String> {
        let mut decoder = Decoder::new(framing);
        let (mut buffer, mut data, mut raw) = (BytesMut::new(), Vec::new(), Vec::new());
        let mut rest = wire.chunks(step);
        loop {
            match decoder.next(&mut buffer)? {
                Piece::Data(bytes) => {
                    data.extend_from_slice(&bytes);
                    raw.extend_from_slice(&bytes);
                }
                Piece::Frame(bytes) => raw.extend_from_slice(&bytes),
                Piece::Done => return Ok((data, raw, true)),
                Piece::More => match rest.next() {
                    Some(bytes) => buffer.extend_from_slice(bytes),
                    None => return Ok((data, raw, false)),
                },
            }
        }
    }

    #[test]
    fn chunked_is_decoded_in_any_steps() {
        let wire = b"5\r\n{\"a\":\r\n3;x=y\r\n12}\r\n0\r\nX-Sum: 1\r\n\r\n";
        for step in 1..wire.len() {
            assert_eq!(
                decode(Framing::Chunked, wire, step),
                Ok((b"{\"a\":12}".to_vec(), wire.to_vec(), true)),
                "step {step}"
            );
        }
        assert_eq!(decode(Framing::Chunked, &wire[..wire.len() - 2], 3).map(|got| got.2), Ok(false));
    }

    #[test]
    fn broken_chunks_are_named() {
        for wire in
            [&b"0x5\r\nabcde\r\n"[..], b"5 \r\nabcde\r\n", b"\r\n", b"2\r\nabc\r\n", b"00000000000000005\r\n"]
        {
            assert!(decode(Framing::Chunked, wire, 100).is_err(), "{wire:?}");
        }
    }

    #[test]
    fn a_length_leaves_the_next_message_alone() {
        let mut buffer = BytesMut::from(&b"abcdGET /"[..]);
        let mut decoder = Decoder::new(Framing::Length(4));
        assert_eq!(decoder.next(&mut buffer), Ok(Piece::Data(Bytes::from_static(b"abcd"))));
        assert_eq!(decoder.next(&mut buffer), Ok(Piece::Done));
        assert_eq!(&buffer[..], b"GET /");
    }

    #[test]
    fn odd_heads_are_noted() {
        let (start, headers, problems) =
            parse_head(b"POST / HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\nTransfer-Encoding: chunked\r\nbad\r\nx\ny: 1\r\n\r\n");
        assert_eq!(start, b"POST / HTTP/1.1");
        assert_eq!(values(&headers, "content-LENGTH"), [b"5", b"6"]);
        assert_eq!(problems.len(), 2, "{problems:?}");
        let mut more = Vec::new();
        assert_eq!(framing(&headers, &mut more), Some(Framing::Chunked));
        assert_eq!(more.len(), 2, "{more:?}");
    }

    #[test]
    fn chunks_round_trip() {
        let wire = in_chunks(b"abcdefgh", 3);
        assert_eq!(wire, b"3\r\nabc\r\n3\r\ndef\r\n2\r\ngh\r\n0\r\n\r\n");
        assert_eq!(in_chunks(b"", 3), b"0\r\n\r\n");
    }
}
