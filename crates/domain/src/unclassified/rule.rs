//! The rule that would remember a refusal which no rule knows yet, written out as a profile has it.

use serde_json::Value;

use super::Decoded;
use super::code::{Code, Place};
use super::mask::{Piece, pieces};

/// Where services put their messages.
const MESSAGES: [&str; 12] = [
    "/error/message",
    "/message",
    "/Message",
    "/error/msg",
    "/errorMsg",
    "/msg",
    "/error_message",
    "/detail/0/msg",
    "/detail",
    "/error",
    "/errors/0/message",
    "/title",
];
/// A part of a message that can tell it from others has at least so many characters.
const PART_MIN: usize = 8;
/// And needs no more than these.
const PART_MAX: usize = 60;
/// The longest name of a rule, in characters.
const NAME_MAX: usize = 48;
/// Words of a message that go into the name of its rule.
const NAME_WORDS: usize = 5;

pub(super) fn for_code(status: u16, code: &Code, profile: &str) -> String {
    let test = match &code.place {
        Place::Pointer(pointer) => format!("at: {}, is: {}", scalar(pointer), scalar(&code.value)),
        Place::Aws => format!("at: aws-error, is: {}", scalar(&code.value)),
    };
    text(&name(&code.value), status, &test, "code", profile)
}

pub(super) fn for_message(status: u16, body: &Decoded, profile: &str) -> Option<String> {
    let (place, message) = match &body.json {
        Some(json) => MESSAGES
            .iter()
            .find_map(|pointer| Some(((*pointer).to_owned(), json.pointer(pointer)?.as_str()?.to_owned())))?,
        None => ("text".to_owned(), String::from_utf8_lossy(&body.text).into_owned()),
    };
    let part = part(&message)?;
    let words: Vec<&str> =
        part.split(|c: char| !c.is_ascii_alphanumeric()).filter(|w| !w.is_empty()).collect();
    let name = name(&words[..words.len().min(NAME_WORDS)].join("-"));
    let test = format!("at: {}, contains: {}", scalar(&place), scalar(&part));
    Some(text(&name, status, &test, "message", profile))
}

fn text(name: &str, status: u16, test: &str, what: &str, profile: &str) -> String {
    format!(
        "# Only if this {what} speaks about the document's bytes, and not about an account, a parameter, a URL or a\n\
         # passing fault: a wrong rule refuses good documents. It belongs under `rules:` of your file of this profile,\n\
         # or of a new one with `profile: {profile}`, `extends: {profile}` and `about:`, which `profiles:` names.\n\
         - rule: {}\n  \
           status: {status}\n  \
           when:\n    \
             - {{{test}}}\n  \
           class: content\n  \
           remember: full\n  \
           confidence: observed\n",
        scalar(name)
    )
}

/// The longest part of a message that nothing is masked in.
fn part(message: &str) -> Option<String> {
    let plain = pieces(message).into_iter().filter_map(|piece| match piece {
        Piece::Plain(words) => Some(words),
        Piece::Masked(_) => None,
    });
    // a line end or a digit may be another one next time
    let parts = plain.flat_map(|words| words.split(|c: char| c.is_control() || c.is_numeric()));
    let longest = parts.map(|part| cut(part.trim())).max_by_key(|part| part.chars().count())?;
    (longest.chars().count() >= PART_MIN).then(|| longest.to_owned())
}

/// At most [`PART_MAX`] characters, whole words if there are several.
fn cut(part: &str) -> &str {
    match part.char_indices().nth(PART_MAX) {
        None => part,
        Some((at, _)) => {
            let end = part[..at].rfind(' ').unwrap_or(at);
            part[..end].trim_end()
        }
    }
}

/// `InvalidImageFormat`, `INVALID_IMAGE_FORMAT` and `invalid.image.format` are `invalid-image-format`.
fn name(code: &str) -> String {
    let chars: Vec<char> = code.chars().collect();
    let mut name = String::new();
    for (i, c) in chars.iter().enumerate() {
        let (before, after) = (i.checked_sub(1).and_then(|i| chars.get(i)), chars.get(i + 1));
        let begins = c.is_ascii_uppercase()
            && (before.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
                || before.is_some_and(char::is_ascii_uppercase)
                    && after.is_some_and(char::is_ascii_lowercase));
        if (begins || !c.is_ascii_alphanumeric()) && !name.is_empty() && !name.ends_with('-') {
            name.push('-');
        }
        if c.is_ascii_alphanumeric() {
            name.push(c.to_ascii_lowercase());
        }
    }
    name.truncate(NAME_MAX);
    let name = name.trim_end_matches('-');
    match name.chars().next() {
        Some(first) if first.is_ascii_alphabetic() => name.to_owned(),
        Some(_) => format!("code-{name}"),
        None => "unnamed".to_owned(),
    }
}

/// A text as YAML reads it back, within a block in braces.
fn scalar(text: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"/._-".contains(&b);
    let begins = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/');
    let word = text.to_ascii_lowercase();
    let special = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"].contains(&word.as_str());
    if begins && !special && text.bytes().all(plain) {
        return text.to_owned();
    }
    // a text of JSON is one of YAML too
    Value::from(text).to_string()
}
