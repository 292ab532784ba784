//! What an answer to a poll says.

use std::fmt;

use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::clock::Millis;

/// The state of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It goes on.
    Running,
    /// The document was taken.
    Succeeded,
    /// It was not; the answer says why.
    Failed,
    /// It has ended, and nothing is known of the document.
    Ended,
}

/// The state in an answer's body, or in the beginning of it; `None` when it does not say. Read no further than to `status`.
#[must_use]
pub fn state(beginning: &[u8]) -> Option<State> {
    let mut found = None;
    let mut json = serde_json::Deserializer::from_slice(beginning);
    // a body that is cut off behind it is no matter
    let _ = json.deserialize_map(StatusIn(&mut found));
    found
}

struct StatusIn<'a>(&'a mut Option<State>);

impl<'de> Visitor<'de> for StatusIn<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(name) = map.next_key::<String>()? {
            if name == "status" {
                let word: String = map.next_value()?;
                *self.0 = of_word(&word);
                return Ok(());
            }
            map.next_value::<IgnoredAny>()?;
        }
        Ok(())
    }
}

/// The words of all versions; letter case does not count, as in the clients.
fn of_word(word: &str) -> Option<State> {
    Some(match word.to_ascii_lowercase().as_str() {
        "notstarted" | "running" => State::Running,
        "succeeded" => State::Succeeded,
        "failed" => State::Failed,
        "canceled" | "cancelled" | "skipped" | "completed" => State::Ended,
        _ => return None,
    })
}

/// A failed operation's answer once more, for an operation that began and ended now: all of it as it was, but for the times.
#[must_use]
pub fn failed_anew(body: &[u8], now: Millis) -> Vec<u8> {
    let mut json = serde_json::Deserializer::from_slice(body);
    let Ok(members) = json.deserialize_map(Members) else { return body.to_vec() };
    let times: Vec<&RawValue> = members
        .iter()
        .filter(|(name, _)| ["createdDateTime", "lastUpdatedDateTime"].contains(&name.as_str()))
        .map(|(_, value)| *value)
        .collect();
    // without milliseconds, as the service writes them
    let now = now.to_string();
    let now = format!("\"{}Z\"", now.split('.').next().unwrap_or_default());
    let mut out = Vec::with_capacity(body.len());
    let mut rest = body;
    for time in times {
        // a raw value is a slice of the body
        let at = (time.get().as_ptr() as usize).saturating_sub(rest.as_ptr() as usize);
        let Some((before, behind)) = rest.split_at_checked(at) else { return body.to_vec() };
        let Some(behind) = behind.get(time.get().len()..) else { return body.to_vec() };
        out.extend_from_slice(before);
        out.extend_from_slice(now.as_bytes());
        rest = behind;
    }
    out.extend_from_slice(rest);
    out
}

struct Members;

impl<'de> Visitor<'de> for Members {
    type Value = Vec<(String, &'de RawValue)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut members = Vec::new();
        while let Some(member) = map.next_entry()? {
            members.push(member);
        }
        Ok(members)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_state_is_found_wherever_it_stands_and_read_no_further() {
        assert_eq!(state(br#"{"status":"succeeded","analyzeResult":{"cut"#), Some(State::Succeeded));
        assert_eq!(state(br#"{"createdDateTime":"x","status":"Running"}"#), Some(State::Running));
        assert_eq!(state(br#"{"error":{"status":"succeeded"},"status":"failed"}"#), Some(State::Failed));
        assert_eq!(state(br#"{"status":"canceled"}"#), Some(State::Ended));
        for other in [
            &b""[..],
            b"[]",
            b"{",
            br#"{"status":"new"}"#,
            br#"{"status":1}"#,
            br#"{"error":{"status":"failed"}}"#,
            b"<html>",
        ] {
            assert_eq!(state(other), None, "{}", String::from_utf8_lossy(other));
        }
    }

    #[test]
    fn a_failure_is_told_again_with_new_times_and_nothing_else_is_new() {
        let body = br#"{ "status":"failed", "createdDateTime": "2021-09-24T13:00:46Z",
 "lastUpdatedDateTime":"2021-09-24T13:00:49Z", "error": {"code":"InvalidRequest", "createdDateTime": "stays", "n": 1.50} }"#;
        let anew = String::from_utf8(failed_anew(body, Millis(1_700_000_000_123))).unwrap_or_default();
        assert_eq!(
            anew,
            r#"{ "status":"failed", "createdDateTime": "2023-11-14T22:13:20Z",
 "lastUpdatedDateTime":"2023-11-14T22:13:20Z", "error": {"code":"InvalidRequest", "createdDateTime": "stays", "n": 1.50} }"#
        );
        for other in [&b""[..], b"[]", b"\xff", br#"{"status":"failed"}"#] {
            assert_eq!(failed_anew(other, Millis(0)), other);
        }
    }

    proptest! {
        #[test]
        fn no_body_breaks_it(body in any::<Vec<u8>>(), cut in 0_usize..80) {
            let _ = (state(&body), failed_anew(&body, Millis(0)));
            let whole = br#"{"createdDateTime":"a","status":"failed","lastUpdatedDateTime":"b","error":{}}"#;
            let part = &whole[..cut.min(whole.len())];
            let _ = (state(part), failed_anew(part, Millis(0)));
        }
    }
}
