//! The grammar of single lines: request line, field line, chunk-size line (RFC 9112 sections 3, 5 and 7.1, RFC 9110
//! section 5). Every function here takes the content of one whole line and keeps nothing.

use super::ViolationKind;
use memchr::memchr;

/// The two versions whose framing is defined here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    Http10,
    Http11,
}

/// Most digits of a chunk size: sixteen hold every `u64`, and a longer one is refused even if its value would fit.
const CHUNK_SIZE_DIGITS_MAX: usize = 16;

/// The bytes of a token (RFC 9110 section 5.6.2).
const TOKEN: [bool; 256] = byte_set(b"!#$%&'*+-.^_`|~");

/// The bytes of a Host value (RFC 9110 section 7.2, RFC 3986 section 3.2.2): a name, an address or an IP literal in
/// brackets, and a port. User information, paths and spaces, which readers take apart in different ways, are not
/// among them.
const HOST: [bool; 256] = byte_set(b"-._~%!$&'()*+,;=:[]");

/// The bytes of a path and query (RFC 3986 sections 3.3 and 3.4). Escapes are not looked at.
const TARGET: [bool; 256] = byte_set(b"-._~%!$&'()*+,;=:@/?");

/// ASCII letters, digits and the bytes of `others`.
const fn byte_set(others: &[u8]) -> [bool; 256] {
    let mut set = [false; 256];
    let mut byte = 0;
    while byte < set.len() {
        set[byte] = (byte as u8).is_ascii_alphanumeric();
        byte += 1;
    }
    let mut at = 0;
    while at < others.len() {
        set[others[at] as usize] = true;
        at += 1;
    }
    set
}

fn is_token(bytes: &[u8]) -> bool {
    !bytes.is_empty() && bytes.iter().all(|byte| TOKEN[usize::from(*byte)])
}

/// True for the control bytes that no line may hold. HTAB is not among them.
fn is_control(byte: u8) -> bool {
    (byte < 0x20 && byte != b'\t') || byte == 0x7f
}

fn trim_ows(mut bytes: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = bytes {
        bytes = rest;
    }
    bytes
}

/// True if the bytes may start a request line, or the empty or wrongly ended line that is judged at its LF.
pub(super) fn may_start_request(bytes: &[u8]) -> bool {
    bytes.first().is_some_and(|byte| TOKEN[usize::from(*byte)] || matches!(byte, b'\r' | b'\n'))
}

/// The line without its CRLF, if it ends in one and holds no control byte but HTAB.
pub(super) fn line_content(line: &[u8]) -> Result<&[u8], ViolationKind> {
    let content = line.strip_suffix(b"\r\n").ok_or(ViolationKind::BareLineFeed)?;
    // No early exit, so that the compiler can test many bytes at a time; lines are clean nearly always.
    let any_control = content.iter().fold(false, |found, byte| found | is_control(*byte));
    if any_control {
        return Err(match memchr(b'\r', content) {
            Some(_) => ViolationKind::BareCarriageReturn,
            None => ViolationKind::ControlByte,
        });
    }
    Ok(content)
}

/// `method SP request-target SP HTTP-version` (RFC 9112 section 3), with exactly one space at each place.
pub(super) fn request_line(content: &[u8]) -> Result<Version, ViolationKind> {
    let (method, rest) = split_at_space(content)?;
    let (target, version) = split_at_space(rest)?;
    if !is_token(method) || !is_target(target) {
        return Err(ViolationKind::MalformedRequestLine);
    }
    let version = match version {
        b"HTTP/1.1" => Version::Http11,
        b"HTTP/1.0" => Version::Http10,
        [b'H', b'T', b'T', b'P', b'/', major, b'.', minor]
            if major.is_ascii_digit() && minor.is_ascii_digit() =>
        {
            return Err(ViolationKind::UnsupportedVersion);
        }
        _ => return Err(ViolationKind::MalformedRequestLine),
    };
    if method == b"CONNECT" {
        return Err(ViolationKind::Connect);
    }
    Ok(version)
}

/// A request target that the HTTP library reads as well: what it refuses by itself would be answered without the
/// gateway's mark.
fn is_target(bytes: &[u8]) -> bool {
    let plain = bytes.starts_with(b"/") && bytes.iter().all(|byte| TARGET[usize::from(*byte)]);
    if plain && bytes.len() < usize::from(u16::MAX) {
        return true;
    }
    // A fragment is no part of a target (RFC 9112 section 3.2): readers that cut it off see another path.
    memchr(b'#', bytes).is_none() && http::Uri::try_from(bytes).is_ok()
}

fn split_at_space(bytes: &[u8]) -> Result<(&[u8], &[u8]), ViolationKind> {
    let space = memchr(b' ', bytes).ok_or(ViolationKind::MalformedRequestLine)?;
    Ok((&bytes[..space], &bytes[space + 1..]))
}

/// `field-name ":" OWS field-value OWS` (RFC 9112 section 5), as name and value. The content is not empty.
pub(super) fn field_line(content: &[u8]) -> Result<(&[u8], &[u8]), ViolationKind> {
    if let [b' ' | b'\t', ..] = content {
        return Err(ViolationKind::FoldedLine);
    }
    let name_end = content.iter().position(|byte| !TOKEN[usize::from(*byte)]);
    match name_end.map(|at| content.split_at(at)) {
        Some((name, [b':', value @ ..])) if !name.is_empty() => Ok((name, trim_ows(value))),
        Some((_, [b' ' | b'\t', rest @ ..])) if matches!(trim_ows(rest), [b':', ..]) => {
            Err(ViolationKind::WhitespaceBeforeColon)
        }
        _ => Err(ViolationKind::MalformedFieldLine),
    }
}

/// A Host value. Empty is valid: a target may have no authority (RFC 9112 section 3.2).
pub(super) fn host(value: &[u8]) -> Result<(), ViolationKind> {
    if value.iter().all(|byte| HOST[usize::from(*byte)]) { Ok(()) } else { Err(ViolationKind::MalformedHost) }
}

/// `1*DIGIT` that fits a `u64` (RFC 9110 section 8.6). The list of equal values that RFC 9112 section 6.3 lets a
/// recipient accept is refused.
pub(super) fn content_length(value: &[u8]) -> Result<u64, ViolationKind> {
    if value.is_empty() {
        return Err(ViolationKind::MalformedContentLength);
    }
    value
        .iter()
        .try_fold(0_u64, |length, byte| {
            let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
            length.checked_mul(10)?.checked_add(digit)
        })
        .ok_or(ViolationKind::MalformedContentLength)
}

/// Accepts exactly `chunked`. For the rest, what is not a list of codings, or says chunked twice, is told apart from
/// a well-formed list with a coding we do not know (RFC 9112 section 6.1: 501).
pub(super) fn transfer_encoding(value: &[u8]) -> Result<(), ViolationKind> {
    if value.eq_ignore_ascii_case(b"chunked") {
        return Ok(());
    }
    let mut chunked_times = 0_u32;
    for coding in value.split(|byte| *byte == b',').map(trim_ows) {
        let (name, has_parameters) = match memchr(b';', coding) {
            Some(end) => (trim_ows(&coding[..end]), true),
            None => (coding, false),
        };
        let is_chunked = name.eq_ignore_ascii_case(b"chunked");
        // RFC 9112 section 7.1 gives chunked no parameters and asks to treat any as an error.
        if !is_token(name) || (is_chunked && has_parameters) {
            return Err(ViolationKind::MalformedTransferEncoding);
        }
        chunked_times = chunked_times.saturating_add(u32::from(is_chunked));
    }
    match chunked_times {
        0 | 1 => Err(ViolationKind::UnknownTransferCoding),
        _ => Err(ViolationKind::RepeatedTransferEncoding),
    }
}

/// `chunk-size [";" extensions]` (RFC 9112 section 7.1). Whitespace after the size is refused, before an extension
/// too: the grammar has it only for old senders, and readers disagree on it. Extensions are not taken apart; that they
/// hold no control byte is what keeps the line's end certain.
pub(super) fn chunk_size(content: &[u8]) -> Result<u64, ViolationKind> {
    let digits = match memchr(b';', content) {
        Some(end) => &content[..end],
        None => content,
    };
    if digits.is_empty() || digits.len() > CHUNK_SIZE_DIGITS_MAX {
        return Err(ViolationKind::MalformedChunkSize);
    }
    digits
        .iter()
        .try_fold(0_u64, |size, byte| Some(size << 4 | u64::from(char::from(*byte).to_digit(16)?)))
        .ok_or(ViolationKind::MalformedChunkSize)
}
