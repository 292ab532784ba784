//! The error code of an answer: a short identifier at one of the places where services put it.

use std::fmt;

use http::HeaderMap;
use serde_json::Value;

use crate::profile::Pointer;

/// Where services put their error codes, the most exact place first.
pub const DEFAULT_POINTERS: [&str; 14] = [
    "/error/innererror/code",
    "/error/details/error_code",
    "/error/code",
    "/error/type",
    "/error/status",
    "/error_code",
    "/errorCode",
    "/code",
    "/Code",
    "/type",
    "/__type",
    "/error_type",
    "/detail/0/type",
    "/status",
];

/// What stands in place of a code where there is none.
pub const NO_CODE: &str = "(none)";

/// The longest code, in bytes.
const CODE_MAX_BYTES: usize = 64;
/// So many hex digits in a row, one of them a digit, are an id and no code.
const ID_HEX_DIGITS: usize = 16;
/// More digits than this are an id or a time and no code.
const DIGITS_MAX: usize = 10;

/// An error code.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Code {
    /// The code itself: letters, digits, `.`, `_` and `-`.
    pub value: String,
    /// Where it stands.
    pub place: Place,
}

/// Where a code stands in an answer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// In the body, at this JSON pointer.
    Pointer(String),
    /// Where AWS has it: in the header `x-amzn-errortype`, or in the body at `/__type`.
    Aws,
}

/// As a rule of a profile has it behind `at:`.
impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pointer(pointer) => pointer,
            Self::Aws => "aws-error",
        })
    }
}

pub(super) fn find(headers: &HeaderMap, json: Option<&Value>, pointers: &[Pointer]) -> Option<Code> {
    let header = headers.get("x-amzn-errortype").and_then(|value| value.to_str().ok());
    if let Some(value) = header.map(without_namespace).filter(|value| is_code(value)) {
        return Some(Code { value: value.to_owned(), place: Place::Aws });
    }
    let json = json?;
    let own = pointers.iter().filter_map(|pointer| at(pointer.as_str(), pointer.first(json)?));
    let usual = DEFAULT_POINTERS.iter().filter_map(|pointer| at(pointer, json.pointer(pointer)?));
    let mut codes = own.chain(usual);
    let first = codes.next()?;
    if !is_bare_status(&first.value) {
        return Some(first);
    }
    // a status tells nothing that the status does not
    Some(codes.find(|code| !is_bare_status(&code.value)).unwrap_or(first))
}

fn at(pointer: &str, found: &Value) -> Option<Code> {
    let aws = pointer == "/__type";
    let value = match found {
        Value::String(text) if aws => without_namespace(text).to_owned(),
        Value::String(text) => text.trim_ascii().to_owned(),
        Value::Number(number) => number.to_string(),
        _ => return None,
    };
    let place = if aws { Place::Aws } else { Place::Pointer(pointer.to_owned()) };
    is_code(&value).then_some(Code { value, place })
}

/// `com.amazonaws.textract#BadDocumentException:http://...` is `BadDocumentException`.
fn without_namespace(name: &str) -> &str {
    let name = name.rsplit_once('#').map_or(name, |(_, name)| name);
    name.split(':').next().unwrap_or(name).trim_ascii()
}

/// Whether this is a code: a short identifier, and not the id of a request.
pub(super) fn is_code(text: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
    !text.is_empty()
        && text.len() <= CODE_MAX_BYTES
        && text.bytes().all(plain)
        && text.bytes().any(|b| b.is_ascii_alphanumeric())
        && !is_id(text)
}

fn is_id(text: &str) -> bool {
    // the groups of a UUID are one
    let groups: String = text.chars().filter(|c| *c != '-').collect();
    let hex = groups.split(|c: char| !c.is_ascii_hexdigit());
    let digits = text.bytes().filter(u8::is_ascii_digit).count();
    digits > DIGITS_MAX
        || hex.into_iter().any(|run| run.len() >= ID_HEX_DIGITS && run.bytes().any(|b| b.is_ascii_digit()))
}

fn is_bare_status(code: &str) -> bool {
    code.len() == 3 && code.parse::<u16>().is_ok_and(|number| (100..600).contains(&number))
}
