//! The header block of one part: its fields for the key, and what its `Content-Disposition` says.

use std::borrow::Cow;
use std::ops::Range;

use super::{BLANK_LINE, CRLF, Edit, FileNameRule, MAX_BLOCK};

/// Most fields of one part.
const MAX_FIELDS: usize = 32;
/// Most letters of an extension that is kept.
const MAX_EXTENSION: usize = 10;

const DISPOSITION: &[u8] = b"content-disposition";
const REBUILT: &[u8] = b"form-data; name=";

/// What a header block says.
#[derive(Debug)]
pub(super) struct PartHead<'a> {
    /// Names in lower case and values without outer blanks, by name.
    pub(super) fields: Vec<(Vec<u8>, Cow<'a, [u8]>)>,
    /// The name of the part, without its quotes.
    pub(super) name: Vec<u8>,
    /// There is a file name.
    pub(super) is_file: bool,
    /// How to rewrite the block, counted from its start.
    pub(super) edits: Vec<Edit>,
}

/// Reads a header block that ends with its blank line.
pub(super) fn read(block: &[u8], rule: FileNameRule) -> Result<PartHead<'_>, &'static str> {
    let lines = block.strip_suffix(BLANK_LINE).ok_or("header block without a blank line")?;
    let mut head = PartHead { fields: Vec::new(), name: Vec::new(), is_file: false, edits: Vec::new() };
    let mut disposed = false;
    let mut at = 0;
    while at <= lines.len() {
        let end = memchr::memmem::find(&lines[at..], CRLF).map_or(lines.len(), |length| at + length);
        if head.fields.len() == MAX_FIELDS {
            return Err("more than 32 header fields in a part");
        }
        let (name, range) = field(lines, at..end)?;
        let mut value = Cow::Borrowed(&lines[range.clone()]);
        if name == DISPOSITION {
            disposed = true;
            let disposition = Disposition::parse(&value)?;
            head.is_file = disposition.is_file();
            head.name = plain(&value[disposition.name.clone()]);
            if rule == FileNameRule::Neutral
                && let Some((neutral, edits)) = disposition.neutral(&value, range.start)?
            {
                value = Cow::Owned(neutral);
                head.edits = edits;
            }
        }
        head.fields.push((name, value));
        at = end + CRLF.len();
    }
    if !disposed {
        return Err("part without content-disposition");
    }
    head.fields.sort_by(|a, b| a.0.cmp(&b.0));
    if head.fields.windows(2).any(|pair| pair[0].0 == pair[1].0) {
        return Err("header field twice in a part");
    }
    // The rewritten body is a form too.
    let inserted: usize = head.edits.iter().map(|edit| edit.insert.len()).sum();
    let removed: u64 = head.edits.iter().map(|edit| edit.remove).sum();
    if (block.len() + inserted) as u64 - removed > MAX_BLOCK as u64 {
        return Err("header block of a part over 16 KiB once rewritten");
    }
    Ok(head)
}

/// One line: the name in lower case, and where the value is, without the blanks around it.
fn field(lines: &[u8], line: Range<usize>) -> Result<(Vec<u8>, Range<usize>), &'static str> {
    let text = &lines[line.clone()];
    if text.iter().any(|b| b.is_ascii_control() && *b != b'\t') {
        return Err("control byte in a header field of a part");
    }
    // A folded line begins with a blank and fails here too.
    let colon = text.iter().position(|b| *b == b':').ok_or("header line of a part without a colon")?;
    let name = &text[..colon];
    if name.is_empty() || !name.iter().all(|b| is_token(*b)) {
        return Err("malformed header field name in a part");
    }
    let first = text[colon + 1..].iter().position(|b| !is_blank(*b)).map_or(text.len(), |i| colon + 1 + i);
    let last = text[first..].iter().rposition(|b| !is_blank(*b)).map_or(first, |i| first + i + 1);
    // one blank or none is what every sender writes; more of them may be refused by a reader, so they are not the same
    if first - colon > 2 || last != text.len() || text[colon + 1..first].contains(&b'\t') {
        return Err("more blanks around a field value of a part than one in front");
    }
    Ok((name.to_ascii_lowercase(), line.start + first..line.start + last))
}

/// A parameter's value without quotes, and without the backslashes of quoted pairs.
fn plain(value: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(value.len());
    let mut bytes = unquoted(value).iter();
    while let Some(byte) = bytes.next() {
        out.extend(if *byte == b'\\' { bytes.next() } else { Some(byte) });
    }
    out
}

fn is_blank(b: u8) -> bool {
    b == b' ' || b == b'\t'
}

fn is_token(b: u8) -> bool {
    b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b)
}

/// A rewritten value, and the edits that make it.
type Neutral = (Vec<u8>, Vec<Edit>);

/// A `Content-Disposition` (RFC 7578 section 4.2): where its parameters' values are, with their quotes.
#[derive(Debug, Default)]
struct Disposition {
    name: Range<usize>,
    file_name: Option<Range<usize>>,
    extended_file_name: Option<Range<usize>>,
    has_others: bool,
}

impl Disposition {
    fn parse(value: &[u8]) -> Result<Self, &'static str> {
        let kind = value.iter().position(|b| *b == b';').unwrap_or(value.len());
        if !value[..kind].trim_ascii_end().eq_ignore_ascii_case(b"form-data") {
            return Err("content-disposition other than form-data");
        }
        let mut found: Vec<(Vec<u8>, Range<usize>)> = Vec::new();
        let mut at = kind;
        while at < value.len() {
            let (name, range) = parameter(value, at + 1)?;
            at = range.end + blanks(&value[range.end..]);
            if at < value.len() && value[at] != b';' {
                return Err(MALFORMED);
            }
            found.push((name, range));
        }
        found.sort_by(|a, b| a.0.cmp(&b.0));
        if found.windows(2).any(|pair| pair[0].0 == pair[1].0) {
            return Err("parameter twice in content-disposition");
        }
        let mut out = Self::default();
        let mut named = false;
        for (name, range) in found {
            match name.as_slice() {
                b"name" => (named, out.name) = (true, range),
                b"filename" => out.file_name = Some(range),
                b"filename*" => out.extended_file_name = Some(range),
                _ => out.has_others = true,
            }
        }
        if named { Ok(out) } else { Err("content-disposition without a name") }
    }

    fn is_file(&self) -> bool {
        self.file_name.is_some() || self.extended_file_name.is_some()
    }

    /// The value with a neutral file name, and the edits that make it out of `value`, which begins at `at`. `None` when it
    /// is neutral already or names no file.
    fn neutral(&self, value: &[u8], at: usize) -> Result<Option<Neutral>, &'static str> {
        if self.has_others {
            return Err("content-disposition with parameters that a neutral one cannot keep");
        }
        let plain = self.file_name.clone().map(|range| neutral_name(unquoted(&value[range])));
        let extended = match self.extended_file_name.clone() {
            Some(range) => Some(neutral_name(&decode_extended(unquoted(&value[range]))?)),
            None => None,
        };
        let name = match (plain, extended) {
            (None, None) => return Ok(None),
            (Some(plain), Some(extended)) if plain != extended => {
                return Err("filename and filename* with different extensions");
            }
            (Some(name), _) | (None, Some(name)) => name,
        };
        let file_name = [b"; filename=\"", name.as_slice(), b"\""].concat();
        // The field's name stays in place, so that an edit is short whatever the name is.
        let before = 0..self.name.start;
        let after = self.name.end..value.len();
        let edits: Vec<Edit> = [(before, REBUILT), (after, file_name.as_slice())]
            .into_iter()
            .filter(|(range, insert)| value[range.clone()] != **insert)
            .map(|(range, insert)| Edit {
                at: (at + range.start) as u64,
                remove: range.len() as u64,
                insert: insert.to_vec(),
            })
            .collect();
        if edits.is_empty() {
            return Ok(None);
        }
        let rebuilt = [REBUILT, &value[self.name.clone()], file_name.as_slice()].concat();
        Ok(Some((rebuilt, edits)))
    }
}

const MALFORMED: &str = "malformed content-disposition";

fn blanks(bytes: &[u8]) -> usize {
    bytes.iter().take_while(|b| is_blank(**b)).count()
}

/// The parameter at `at`, behind its `;`: the name in lower case, and where the value is, with its quotes.
fn parameter(value: &[u8], at: usize) -> Result<(Vec<u8>, Range<usize>), &'static str> {
    let at = at + blanks(&value[at..]);
    let length = value[at..].iter().take_while(|b| is_token(**b)).count();
    let equals = at + length;
    if length == 0 || value.get(equals) != Some(&b'=') {
        return Err(MALFORMED);
    }
    let start = equals + 1;
    let length = match value.get(start) {
        Some(b'"') => quoted_length(&value[start..]).ok_or(MALFORMED)?,
        _ => value[start..].iter().take_while(|b| is_token(**b)).count(),
    };
    if length == 0 {
        return Err(MALFORMED);
    }
    Ok((value[at..equals].to_ascii_lowercase(), start..start + length))
}

/// The length, with its quotes, of the quoted string that `text` begins with (RFC 9110 section 5.6.4).
fn quoted_length(text: &[u8]) -> Option<usize> {
    let mut escaped = false;
    for (i, b) in text.iter().enumerate().skip(1) {
        match b {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return Some(i + 1),
            _ => {}
        }
    }
    None
}

/// Without the quotes around it. Escapes stay: an extension has none.
fn unquoted(value: &[u8]) -> &[u8] {
    value.strip_prefix(b"\"").and_then(|v| v.strip_suffix(b"\"")).unwrap_or(value)
}

/// The bytes of an extended value, `charset'language'text` (RFC 8187 section 3.2).
fn decode_extended(value: &[u8]) -> Result<Vec<u8>, &'static str> {
    const MALFORMED: &str = "malformed filename*";
    let mut pieces = value.splitn(3, |b| *b == b'\'');
    let charset = pieces.next().unwrap_or_default();
    if !charset.eq_ignore_ascii_case(b"utf-8") && !charset.eq_ignore_ascii_case(b"iso-8859-1") {
        return Err(MALFORMED);
    }
    let text = pieces.nth(1).ok_or(MALFORMED)?;
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.iter();
    while let Some(&b) = rest.next() {
        if b != b'%' {
            out.push(b);
            continue;
        }
        let mut digit = || rest.next().and_then(|b| char::from(*b).to_digit(16));
        let (Some(high), Some(low)) = (digit(), digit()) else { return Err(MALFORMED) };
        out.push((high * 16 + low) as u8);
    }
    Ok(out)
}

/// `document` with the extension of `name`, as far as it is a plain one.
fn neutral_name(name: &[u8]) -> Vec<u8> {
    if name.is_empty() {
        return Vec::new();
    }
    let dot = name.iter().rposition(|b| *b == b'.');
    let extension = dot.map_or(&[][..], |dot| &name[dot + 1..]);
    let plain =
        (1..=MAX_EXTENSION).contains(&extension.len()) && extension.iter().all(u8::is_ascii_alphanumeric);
    if plain {
        [b"document.", extension.to_ascii_lowercase().as_slice()].concat()
    } else {
        b"document".to_vec()
    }
}
