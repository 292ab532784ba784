//! A body to show to an operator: its shape, with whatever may be personal or secret masked.

use serde_json::Value;

use super::code::is_code;
use super::mask::{LOOKED_AT, masked};

/// The longest sample, in bytes.
pub const SAMPLE_MAX_BYTES: usize = 512;
/// The longest string in it, in characters.
const STRING_MAX: usize = 80;
/// Deeper levels are left out.
const DEPTH_MAX: usize = 8;
/// So many items of a list are shown.
const ITEMS: usize = 3;
/// What stands for what was left out.
const MORE: &str = "…";
/// What stands for a value that is not shown at all.
const MARKER: &str = "\"<masked>\"";
/// Keys whose values are codes, in lower case and without `_` and `-`.
const CODE_KEYS: [&str; 7] = ["code", "type", "status", "errorcode", "errortype", "reason", "state"];
/// Keys whose values may be personal or secret, spelt as above.
const PRIVATE_KEYS: [&str; 25] = [
    "input",
    "inputs",
    "filename",
    "file",
    "files",
    "url",
    "uri",
    "requestid",
    "id",
    "param",
    "params",
    "path",
    "email",
    "account",
    "tenant",
    "token",
    "key",
    "apikey",
    "secret",
    "password",
    "prompt",
    "content",
    "host",
    "ip",
    "subscription",
];

pub(super) fn of_json(json: &Value) -> String {
    let mut out = String::new();
    write(json, 0, &mut out);
    bounded(out)
}

pub(super) fn of_text(text: &str) -> String {
    // blanks first, so that what is cut off for its length is text
    let text: Vec<&str> = text.split_whitespace().take(LOOKED_AT).collect();
    bounded(masked(&text.join(" ")))
}

/// Writes the value, and not much more than fits.
fn write(value: &Value, depth: usize, out: &mut String) {
    if out.len() > SAMPLE_MAX_BYTES {
        return;
    }
    match value {
        Value::Null | Value::Bool(_) => out.push_str(&value.to_string()),
        Value::Number(number) => {
            let text = number.to_string();
            let personal = text.bytes().filter(u8::is_ascii_digit).count() >= 4;
            out.push_str(if personal { "\"<number>\"" } else { &text });
        }
        Value::String(text) => string(&shortened(&masked(text)), out),
        Value::Array(items) if depth == DEPTH_MAX && !items.is_empty() => out.push_str("[…]"),
        Value::Object(fields) if depth == DEPTH_MAX && !fields.is_empty() => out.push_str("{…}"),
        Value::Array(items) => {
            out.push('[');
            for (index, item) in items.iter().take(ITEMS).enumerate() {
                separate(index, out);
                write(item, depth + 1, out);
            }
            if items.len() > ITEMS {
                out.push(',');
                out.push_str(MORE);
            }
            out.push(']');
        }
        Value::Object(fields) => {
            out.push('{');
            for (index, (key, value)) in fields.iter().enumerate() {
                if out.len() > SAMPLE_MAX_BYTES {
                    return;
                }
                separate(index, out);
                string(&shortened(&masked(key)), out);
                out.push(':');
                field(key, value, depth, out);
            }
            out.push('}');
        }
    }
}

fn field(key: &str, value: &Value, depth: usize, out: &mut String) {
    let plain: String =
        key.chars().filter(|c| !"_-".contains(*c)).map(|c| c.to_ascii_lowercase()).take(STRING_MAX).collect();
    if is_private(key, &plain) && !matches!(value, Value::Null | Value::Bool(_)) {
        out.push_str(MARKER);
        return;
    }
    let is_code_key = CODE_KEYS.contains(&plain.as_str());
    match value {
        Value::String(text) if is_code_key && is_code(text) => string(text, out),
        Value::Number(number) if is_code_key && is_code(&number.to_string()) => {
            out.push_str(&number.to_string())
        }
        _ => write(value, depth + 1, out),
    }
}

fn is_private(key: &str, plain: &str) -> bool {
    let ends_with_id = ["_id", "-id", "Id", "ID"].iter().any(|end| key.ends_with(end));
    ends_with_id
        || PRIVATE_KEYS.contains(&plain)
        || ["org", "user", "document"].iter().any(|start| plain.starts_with(start))
}

fn separate(index: usize, out: &mut String) {
    if index > 0 {
        out.push(',');
    }
}

fn string(text: &str, out: &mut String) {
    out.push_str(&Value::from(text).to_string());
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(STRING_MAX) {
        None => text.to_owned(),
        Some((at, _)) => format!("{}{MORE}", &text[..at]),
    }
}

fn bounded(mut text: String) -> String {
    if text.len() > SAMPLE_MAX_BYTES {
        let mut end = SAMPLE_MAX_BYTES - MORE.len();
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
        text.push_str(MORE);
    }
    text
}
