//! A second parser, written for clarity and not for speed: all of the body at once, line by line. It shares no code with the
//! reader, so that a mistake would have to be made twice.

use super::FileNameRule;

/// A form as the second parser sees it.
pub(super) struct Naive {
    pub(super) digest: [u8; 32],
    pub(super) parts: usize,
    pub(super) file_contents: Vec<Vec<u8>>,
    pub(super) empty: bool,
}

fn lines(body: &[u8]) -> Vec<Vec<u8>> {
    let mut out = vec![Vec::new()];
    let mut rest = body;
    while let Some((&first, after)) = rest.split_first() {
        if rest.starts_with(b"\r\n") {
            out.push(Vec::new());
            rest = &rest[2..];
            continue;
        }
        if let Some(line) = out.last_mut() {
            line.push(first);
        }
        rest = after;
    }
    out
}

fn contains(line: &[u8], needle: &[u8]) -> bool {
    line.windows(needle.len()).any(|window| window == needle)
}

fn component(out: &mut Vec<u8>, tag: u8, value: &[u8]) {
    out.push(tag);
    out.extend((value.len() as u64).to_le_bytes());
    out.extend(value);
}

fn hashed(content: &[u8]) -> Vec<u8> {
    let mut out = (content.len() as u64).to_le_bytes().to_vec();
    out.extend(blake3::hash(content).as_bytes());
    out
}

/// Reads a body; `None` when it is no strict form.
pub(super) fn parse(boundary: &str, body: &[u8], rule: FileNameRule) -> Option<Naive> {
    let open = format!("--{boundary}").into_bytes();
    let close = format!("--{boundary}--").into_bytes();
    let lines = lines(body);
    if lines.iter().any(|line| contains(line, &open) && *line != open && *line != close) {
        return None;
    }
    let marks: Vec<usize> = (0..lines.len()).filter(|i| lines[*i] == open || lines[*i] == close).collect();
    let (&last, opens) = marks.split_last()?;
    if lines[last] != close || opens.iter().any(|i| lines[*i] == close) || opens.len() > 10_000 {
        return None;
    }
    let mut text = b"nevertwice form 1\0".to_vec();
    if marks[0] > 0 {
        let mut preamble = lines[..marks[0]].join(&b"\r\n"[..]);
        preamble.extend(b"\r\n");
        component(&mut text, 1, &hashed(&preamble));
    }
    let mut file_contents = Vec::new();
    for pair in marks.windows(2) {
        let part = &lines[pair[0] + 1..pair[1]];
        let blank = part.iter().position(Vec::is_empty)?;
        if blank == 0
            || blank + 1 == part.len()
            || part[..blank].iter().map(|l| l.len() + 2).sum::<usize>() > 16382
        {
            return None;
        }
        let content = part[blank + 1..].join(&b"\r\n"[..]);
        let (fields, is_file) = fields(&part[..blank], rule)?;
        for (name, value) in fields {
            component(&mut text, 2, name.as_bytes());
            component(&mut text, 3, &value);
        }
        component(&mut text, 4, &hashed(&content));
        if is_file {
            file_contents.push(content);
        }
    }
    if last + 1 < lines.len() {
        let mut epilogue = b"\r\n".to_vec();
        epilogue.extend(lines[last + 1..].join(&b"\r\n"[..]));
        component(&mut text, 5, &hashed(&epilogue));
    }
    let empty = opens.is_empty() || (!file_contents.is_empty() && file_contents.iter().all(Vec::is_empty));
    Some(Naive { digest: *blake3::hash(&text).as_bytes(), parts: opens.len(), file_contents, empty })
}

type Fields = std::collections::BTreeMap<String, Vec<u8>>;

fn fields(lines: &[Vec<u8>], rule: FileNameRule) -> Option<(Fields, bool)> {
    let mut out = Fields::new();
    let mut is_file = None;
    if lines.len() > 32 {
        return None;
    }
    for line in lines {
        if line.iter().any(|b| (*b < 32 && *b != 9) || *b == 127) {
            return None;
        }
        let colon = line.iter().position(|b| *b == b':')?;
        let name = String::from_utf8(line[..colon].to_vec()).ok()?.to_lowercase();
        if name.is_empty() || !name.chars().all(token) {
            return None;
        }
        // Controls but tab are gone, so these are the blanks: one in front at most.
        let written = &line[colon + 1..];
        let mut value = written.trim_ascii().to_vec();
        if ![value.clone(), [b" ", &value[..]].concat()].contains(&written.to_vec()) {
            return None;
        }
        if name == "content-disposition" {
            let (file, neutral) = disposition(&value)?;
            if rule == FileNameRule::Neutral {
                value = neutral?.unwrap_or(value);
            }
            is_file = Some(file);
        }
        if out.insert(name, value).is_some() {
            return None;
        }
    }
    is_file.map(|file| (out, file))
}

fn token(c: char) -> bool {
    c.is_ascii_graphic() && !"\"(),/:;<=>?@[\\]{}".contains(c)
}

/// Whether there is a file name, and the neutral value: outer `None` when there can be none, inner when none is needed.
fn disposition(value: &[u8]) -> Option<(bool, Option<Option<Vec<u8>>>)> {
    // One byte is one character here, so that text functions do.
    let value: String = value.iter().map(|b| char::from(*b)).collect();
    let mut rest = value.as_str();
    let (kind, after) = rest.split_at(rest.find(';').unwrap_or(rest.len()));
    if kind.trim().to_lowercase() != "form-data" {
        return None;
    }
    rest = after;
    let mut found = std::collections::BTreeMap::new();
    while !rest.is_empty() {
        rest = rest.strip_prefix(';')?.trim_start();
        let (name, after) = rest.split_once('=')?;
        if name.is_empty() || !name.chars().all(token) {
            return None;
        }
        let end = match after.strip_prefix('"') {
            Some(inner) => {
                let masked: String = mask_escapes(inner);
                masked.find('"')? + 2
            }
            None => after.find(|c| !token(c)).unwrap_or(after.len()),
        };
        if end == 0 || found.insert(name.to_lowercase(), &after[..end]).is_some() {
            return None;
        }
        rest = after[end..].trim_start();
    }
    let name = *found.get("name")?;
    let (plain, extended) = (found.get("filename"), found.get("filename*"));
    let is_file = plain.is_some() || extended.is_some();
    let others = found.len() - 1 - usize::from(plain.is_some()) - usize::from(extended.is_some());
    let neutral = if others > 0 { None } else { neutral(name, plain.copied(), extended.copied()) };
    Some((is_file, neutral))
}

fn mask_escapes(text: &str) -> String {
    let mut out = String::new();
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        out.push(c);
        if c == '\\'
            && let Some(next) = chars.next()
        {
            // As long as what it stands for.
            out.extend(std::iter::repeat_n('x', next.len_utf8()));
        }
    }
    out
}

fn neutral(name: &str, plain: Option<&str>, extended: Option<&str>) -> Option<Option<Vec<u8>>> {
    let mut names = Vec::new();
    if let Some(plain) = plain {
        names.push(stand_in(inner(plain)));
    }
    if let Some(extended) = extended {
        let pieces: Vec<&str> = inner(extended).split('\'').collect();
        if pieces.len() < 3 || !["utf-8", "iso-8859-1"].contains(&pieces[0].to_lowercase().as_str()) {
            return None;
        }
        let text = pieces[2..].join("'");
        let mut decoded = String::new();
        for (i, piece) in text.split('%').enumerate() {
            if i == 0 {
                decoded.push_str(piece);
                continue;
            }
            let digits = piece.get(..2)?;
            if !digits.chars().all(|c| c.is_ascii_hexdigit()) {
                return None;
            }
            decoded.push(char::from(u8::from_str_radix(digits, 16).ok()?));
            decoded.push_str(&piece[2..]);
        }
        names.push(stand_in(&decoded));
    }
    names.dedup();
    match names.as_slice() {
        [] => Some(None),
        [one] => {
            let text = format!("form-data; name={name}; filename=\"{one}\"");
            Some(Some(text.chars().map(|c| c as u8).collect()))
        }
        _ => None,
    }
}

fn inner(value: &str) -> &str {
    if value.starts_with('"') { &value[1..value.len() - 1] } else { value }
}

fn stand_in(name: &str) -> String {
    match name.rsplit_once('.') {
        _ if name.is_empty() => String::new(),
        Some((_, ext))
            if !ext.is_empty() && ext.len() <= 10 && ext.chars().all(|c| c.is_ascii_alphanumeric()) =>
        {
            format!("document.{}", ext.to_lowercase())
        }
        _ => "document".to_owned(),
    }
}
