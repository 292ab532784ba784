//! What a refusal that no rule knows says of itself, for the list that operators see: its code and where it stands, a sample
//! without anything personal or secret, and the rule that would remember it.

mod code;
mod mask;
mod rule;
mod sample;

use http::HeaderMap;
use serde_json::Value;

use crate::profile::{Body, Pointer, decode};

pub use code::{Code, DEFAULT_POINTERS, NO_CODE, Place};
pub use sample::SAMPLE_MAX_BYTES;

/// A refusal's complete answer, read once.
pub struct Refused<'a> {
    headers: &'a HeaderMap,
    /// `None` = it cannot be decoded.
    body: Option<Decoded>,
}

/// A body without its content coding.
struct Decoded {
    text: Vec<u8>,
    json: Option<Value>,
}

impl<'a> Refused<'a> {
    /// Reads it, as a judgement does.
    #[must_use]
    pub fn new(headers: &'a HeaderMap, body: &[u8]) -> Self {
        let text = decode(headers, body).ok();
        let body =
            text.map(|text| Decoded { json: Body::read(headers, &text).value(), text: text.into_owned() });
        Self { headers, body }
    }

    /// The error code: the first that stands at one of `pointers`, where the profile says that its service has them, or else
    /// at one of [`DEFAULT_POINTERS`].
    #[must_use]
    pub fn code(&self, pointers: &[Pointer]) -> Option<Code> {
        code::find(self.headers, self.body.as_ref().and_then(|body| body.json.as_ref()), pointers)
    }

    /// The shape of the body with everything masked that may be personal or secret, on one line of at most
    /// [`SAMPLE_MAX_BYTES`].
    #[must_use]
    pub fn sample(&self) -> String {
        match &self.body {
            Some(Decoded { json: Some(json), .. }) => sample::of_json(json),
            Some(body) => sample::of_text(&String::from_utf8_lossy(&body.text)),
            None => String::new(),
        }
    }

    /// The rule that would remember such refusals, as a profile has it, with words on whether and where to add it. `None` when
    /// nothing in the answer tells it from others.
    #[must_use]
    pub fn rule(&self, status: u16, code: Option<&Code>, profile: &str) -> Option<String> {
        match code {
            Some(code) => Some(rule::for_code(status, code, profile)),
            None => rule::for_message(status, self.body.as_ref()?, profile),
        }
    }
}

#[cfg(test)]
mod tests;
