//! What becomes of a document.

use serde_json::{Value, json};

use crate::upstream::Gate;

/// What becomes of a document.
#[derive(Clone, Debug)]
pub struct Fate {
    /// Status and error of a refusal at the submit.
    pub(super) refused: Option<(u16, Value)>,
    /// How many polls say `running` before the last word.
    pub(super) running: u64,
    /// The error of an operation that fails.
    pub(super) failed: Option<Value>,
    /// How many words its result has beside the first ones.
    pub(super) more_words: usize,
    /// What holds the answers to polls back.
    pub(super) gate: Option<Gate>,
    /// The word for it, as this service spells it.
    pub(super) failed_word: &'static str,
}

impl Fate {
    /// It is analyzed.
    pub fn succeeds() -> Self {
        Self { refused: None, running: 0, failed: None, more_words: 0, gate: None, failed_word: "failed" }
    }

    /// It is analyzed, and the result is so many words long.
    pub fn succeeds_at_length(words: usize) -> Self {
        Self { more_words: words, ..Self::succeeds() }
    }

    /// The submit is answered with this status and `{"error": …}`.
    pub fn refused(status: u16, error: Value) -> Self {
        Self { refused: Some((status, error)), ..Self::succeeds() }
    }

    /// The submit is accepted, and a poll shows that the operation failed with this error (in v2.1 the only one of its list).
    pub fn fails(error: Value) -> Self {
        Self { failed: Some(error), ..Self::succeeds() }
    }

    /// So many polls say `running` first.
    pub fn after(mut self, polls: u64) -> Self {
        self.running = polls;
        self
    }

    /// Polls are answered when the gate is open.
    pub fn polled_through(mut self, gate: &Gate) -> Self {
        self.gate = Some(gate.clone());
        self
    }

    /// Another spelling of `failed`.
    pub fn spelt(mut self, word: &'static str) -> Self {
        self.failed_word = word;
        self
    }
}

/// An error object of v3.x and v4.0: the code of its class, and the inner code that carries the meaning.
pub fn fault(code: &str, inner: &str) -> Value {
    json!({
        "code": code,
        "message": format!("The operation could not be done: {code}."),
        "innererror": { "code": inner, "message": format!("What it was: {inner} é.") },
    })
}
