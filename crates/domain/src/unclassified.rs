//! What a refusal that no rule knows says of itself, for the list that operators see: its code and where it stands, a sample
//! without anything personal or secret, and the rule that would remember it.

mod code;
mod mask;
mod rule;
mod sample;

use http::HeaderMap;
use serde_json::Value;

pub use code::{Code, DEFAULT_POINTERS, NO_CODE, Place};
pub use sample::SAMPLE_MAX_BYTES;

/// A longer body is not read as JSON, in bytes; it is then a refusal without a code.
const JSON_MAX_BYTES: usize = 1024 * 1024;

/// A refusal's complete answer, read once.
#[derive(Debug)]
pub struct Refused<'a> {
    headers: &'a HeaderMap,
    body: &'a [u8],
    json: Option<Value>,
}

impl<'a> Refused<'a> {
    /// Reads it. Whatever the body holds, this neither fails nor goes deeper than 128 levels.
    #[must_use]
    pub fn new(headers: &'a HeaderMap, body: &'a [u8]) -> Self {
        let json = (body.len() <= JSON_MAX_BYTES).then(|| serde_json::from_slice(body).ok()).flatten();
        Self { headers, body, json }
    }

    /// The error code: the first that stands at one of `pointers`, where the profile says that its service has them, or else
    /// at one of [`DEFAULT_POINTERS`].
    pub fn code<'p>(&self, pointers: impl IntoIterator<Item = &'p str>) -> Option<Code> {
        code::find(self.headers, self.json.as_ref(), pointers)
    }

    /// The shape of the body with everything masked that may be personal or secret, on one line of at most
    /// [`SAMPLE_MAX_BYTES`].
    #[must_use]
    pub fn sample(&self) -> String {
        match &self.json {
            Some(json) => sample::of_json(json),
            None => sample::of_text(&String::from_utf8_lossy(self.body)),
        }
    }

    /// The rule that would remember such refusals, as a profile has it, with words on whether and where to add it. `None` when
    /// nothing in the answer tells it from others.
    #[must_use]
    pub fn rule(&self, status: u16, code: Option<&Code>, profile: &str) -> Option<String> {
        match code {
            Some(code) => Some(rule::for_code(status, code, profile)),
            None => rule::for_message(status, self.json.as_ref(), self.body, profile),
        }
    }
}

#[cfg(test)]
mod tests;
