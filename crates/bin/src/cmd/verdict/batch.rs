//! `nevertwice verdict --batch`: a line of JSON in, a line of JSON out, in order, each as soon as it is judged.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, ErrorKind, Write};
use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use nevertwice_config::corpus::unknown;
use nevertwice_config::profiles::Catalog;
use nevertwice_domain::profile::{Answer, Explanation, Phase, Profile, SavedRequest, Terms};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use super::{MAX_BYTES, a_phase, a_status, class, word};
use crate::exit::{Exit, Failure};
use crate::lines::{Line, Lines};

/// Profiles that are kept ready; more are read again each time.
const PROFILES_MAX: usize = 200;

/// A line. What may be missing is an `Option`; members that are not known here are left alone.
#[derive(Deserialize)]
#[serde(expecting = "an object with `profile`, `status` and `body`")]
struct Question<'a> {
    profile: String,
    phase: Option<String>,
    status: Value,
    headers: Option<serde_json::Map<String, Value>>,
    #[serde(borrow)]
    body: &'a RawValue,
    #[serde(borrow)]
    request: Option<Request<'a>>,
}

#[derive(Deserialize)]
#[serde(expecting = "an object with what is known of the request")]
struct Request<'a> {
    path: Option<String>,
    content_type: Option<String>,
    #[serde(borrow)]
    body: Option<&'a RawValue>,
}

/// A line's answer.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Judgement<'a> {
    remember: &'static str,
    class: &'static str,
    rule: Option<&'a str>,
    reason: &'a str,
}

/// A broken line's answer.
#[derive(Serialize)]
struct Broken {
    error: String,
}

pub(super) fn run(file: &str, catalog: &Catalog) -> Result<Exit, Failure> {
    let out = io::stdout().lock();
    let broken = if file == "-" {
        all("standard input", io::stdin().lock(), out, catalog)?
    } else {
        let unread = |e: io::Error| Failure::input(&format!("cannot read {file}: {e}"));
        all(file, BufReader::with_capacity(1 << 16, File::open(file).map_err(unread)?), out, catalog)?
    };
    match broken {
        0 => Ok(Exit::Done),
        1 => Err(Failure::input("1 line is not valid; the others were judged")),
        n => Err(Failure::input(&format!("{n} lines are not valid; the others were judged"))),
    }
}

/// Answers every line; how many are broken.
fn all(name: &str, from: impl BufRead, mut out: impl Write, catalog: &Catalog) -> Result<u64, Failure> {
    let mut lines = Lines::new(from, MAX_BYTES);
    let mut judge = Judge { catalog, profiles: HashMap::new() };
    let mut broken = 0;
    loop {
        let line = lines.next();
        let failed = |e| Failure::failed(&format!("cannot read {name} after line {}: {e}", lines.number));
        let text = match line.map_err(failed)? {
            None => return Ok(broken),
            Some(Line::Whole(bytes) | Line::Cut(bytes)) if bytes.trim_ascii().is_empty() => continue,
            Some(Line::Whole(bytes) | Line::Cut(bytes)) => judge.answer(&bytes),
            Some(Line::TooLong) => Err(format!("it has more than {MAX_BYTES} bytes")),
        };
        let text = text.or_else(|why| {
            broken += 1;
            serde_json::to_string(&Broken { error: format!("line {}: {why}", lines.number) })
        });
        let text = text.map_err(|e| Failure::failed(&format!("cannot write: {e}")))?;
        match writeln!(out, "{text}").and_then(|()| out.flush()) {
            // a reader that went away is no failure
            Err(e) if e.kind() == ErrorKind::BrokenPipe => return Ok(0),
            Err(e) => return Err(Failure::failed(&format!("cannot write: {e}"))),
            Ok(()) => {}
        }
    }
}

struct Judge<'c> {
    catalog: &'c Catalog,
    profiles: HashMap<String, Arc<Profile>>,
}

impl Judge<'_> {
    fn profile(&mut self, name: &str) -> Option<Arc<Profile>> {
        if let Some(known) = self.profiles.get(name) {
            return Some(Arc::clone(known));
        }
        let profile = self.catalog.get(name)?;
        if self.profiles.len() < PROFILES_MAX {
            self.profiles.insert(name.to_owned(), Arc::clone(&profile));
        }
        Some(profile)
    }

    /// The answer to a line, or what is wrong with it.
    fn answer(&mut self, line: &[u8]) -> Result<String, String> {
        let text = std::str::from_utf8(line).map_err(|_| "it is not UTF-8")?;
        let explanation = self.explain(text)?;
        let judgement = Judgement {
            remember: word(explanation.remember),
            class: class(&explanation),
            rule: explanation.rule.as_deref(),
            reason: &explanation.reason,
        };
        serde_json::to_string(&judgement).map_err(|e| e.to_string())
    }

    fn explain(&mut self, line: &str) -> Result<Explanation, String> {
        let question: Question<'_> = serde_json::from_str(line).map_err(|e| on_this_line(&e))?;
        let phase = question.phase.as_deref().map_or(Ok(Phase::default()), a_phase)?;
        let status = status(&question.status)?;
        let headers = headers(question.headers.as_ref())?;
        let body = bytes(question.body)?;
        let request = question.request.as_ref();
        let request_body =
            request.and_then(|r| r.body).filter(|body| body.get() != "null").map(bytes).transpose()?;
        let Some(profile) = self.profile(&question.profile) else {
            return Ok(unknown(self.catalog, &question.profile));
        };
        let request = SavedRequest {
            path: request.and_then(|r| r.path.as_deref()),
            content_type: request.and_then(|r| r.content_type.as_deref()),
            body: request_body.as_deref(),
        };
        let facts = request.facts(phase, &profile);
        let answer = Answer { status, headers: &headers, body: &body };
        Ok(profile.explain(&facts, &answer, &Terms::default()))
    }
}

/// The parser's words, which count lines within what it was given.
fn on_this_line(error: &serde_json::Error) -> String {
    error.to_string().replace(" at line 1 column ", " at column ")
}

fn status(value: &Value) -> Result<StatusCode, String> {
    match value {
        Value::Number(number) => a_status(&number.to_string()),
        Value::String(text) => a_status(text),
        _ => Err("a status is a number from 100 to 999".into()),
    }
}

/// A text, or any other value as the JSON that it is. Null is no body.
fn bytes(value: &RawValue) -> Result<Vec<u8>, String> {
    match value.get() {
        "null" => Ok(Vec::new()),
        text if text.starts_with('"') => {
            let text: String = serde_json::from_str(text).map_err(|e| on_this_line(&e))?;
            Ok(text.into_bytes())
        }
        json => Ok(json.as_bytes().to_vec()),
    }
}

fn headers(given: Option<&serde_json::Map<String, Value>>) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    for (name, value) in given.into_iter().flatten() {
        let wrong = || format!("the header {name:.60?} has a name or a value that no header field can have");
        let field = HeaderName::try_from(name.as_str()).map_err(|_| wrong())?;
        let values = match value {
            Value::Array(values) => values.as_slice(),
            one => std::slice::from_ref(one),
        };
        for value in values {
            let text = match value {
                Value::String(text) => text.clone(),
                Value::Number(number) => number.to_string(),
                _ => return Err(wrong()),
            };
            headers.append(&field, HeaderValue::try_from(text.trim()).map_err(|_| wrong())?);
        }
    }
    Ok(headers)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "test")]

    use serde_json::json;

    use super::*;

    fn answers(text: &str) -> (Vec<Value>, u64) {
        let mut out = Vec::new();
        let broken = all("x", text.as_bytes(), &mut out, &Catalog::default()).unwrap();
        let lines = String::from_utf8(out).unwrap();
        (lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect(), broken)
    }

    fn one(question: &Value) -> Value {
        let (mut answers, broken) = answers(&question.to_string());
        assert_eq!((answers.len(), broken), (1, 0), "{answers:?}");
        answers.remove(0)
    }

    fn asked(change: impl FnOnce(&mut Value)) -> Value {
        let mut question = json!({
            "profile": "azure-document-intelligence", "phase": "submit", "status": 400,
            "headers": { "Content-Type": "application/json" },
            "body": json!({"error": {"code": "InvalidRequest", "innererror": {"code": "InvalidContentDimensions"}}}).to_string(),
            "request": { "path": "/documentintelligence/x:analyze?api-version=1", "content_type": "image/png", "body": "x" },
        });
        change(&mut question);
        one(&question)
    }

    #[test]
    fn an_answer_has_four_members_in_order() {
        let mut out = Vec::new();
        let line = br#"{"profile":"status","status":400,"body":""}"#;
        all("x", &line[..], &mut out, &Catalog::default()).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(
            text.starts_with(r#"{"remember":"full","class":"unclassified","rule":"status","reason":""#),
            "{text}"
        );
        assert!(text.ends_with("\"}\n"));
    }

    #[test]
    fn what_may_be_missing_or_written_in_another_way() {
        let known = asked(|_| ());
        assert_eq!((&known["remember"], &known["class"]), (&json!("full"), &json!("content")), "{known}");
        for name in ["phase", "headers", "request"] {
            assert_eq!(asked(|q| drop(q.as_object_mut().unwrap().remove(name))), known, "{name}");
            assert_eq!(asked(|q| q[name] = Value::Null), known, "{name}");
        }
        assert_eq!(asked(|q| q["request"] = json!({})), known);
        assert_eq!(asked(|q| q["status"] = "400".into()), known);
        assert_eq!(asked(|q| q["id"] = 7.into()), known);
        let body = |q: &Value| serde_json::from_str::<Value>(q["body"].as_str().unwrap()).unwrap();
        assert_eq!(asked(|q| q["body"] = body(q)), known, "a value stands for its text");
        assert_eq!(
            asked(|q| q["headers"] = json!({"content-type": ["application/json"], "Content-Length": 7})),
            known
        );
    }

    #[test]
    fn what_the_request_was_counts() {
        let by_url = asked(|q| q["request"]["body"] = json!({"urlSource": "https://a/b.pdf"}));
        assert_eq!((&by_url["remember"], &by_url["class"]), (&json!("no"), &json!("reference")));
        assert_eq!(asked(|q| q["headers"]["Retry-After"] = 5.into())["remember"], "no");
        assert_eq!(asked(|q| q["status"] = 429.into())["remember"], "no");
        assert_eq!(asked(|q| q["phase"] = "poll".into())["remember"], "no");
    }

    #[test]
    fn a_profile_that_is_not_there_remembers_nothing() {
        let answer = asked(|q| q["profile"] = "azure-document-inteligence".into());
        assert_eq!(
            (&answer["remember"], &answer["class"], &answer["rule"]),
            (&json!("no"), &json!("unclassified"), &Value::Null)
        );
        let reason = answer["reason"].as_str().unwrap();
        assert!(reason.contains("no profile") && reason.contains("azure-document-intelligence"), "{reason}");
    }

    #[test]
    fn broken_lines_are_answered_in_their_place() {
        let good = r#"{"profile":"status","status":400,"body":"x"}"#;
        let long = format!("{{\"profile\":\"{}\"}}", "x".repeat(MAX_BYTES));
        let text = format!(
            "{good}\n\n  \r\n{{\n[]\n{{\"profile\":\"status\",\"status\":400}}\n{}\n{}\n{}\n{long}\n{good}",
            r#"{"profile":"status","status":40,"body":""}"#,
            r#"{"profile":"status","status":400,"body":"","headers":{"a b":"c"}}"#,
            r#"{"profile":"status","status":400,"body":"","phase":"later"}"#,
        );
        let (answers, broken) = answers(&text);
        assert_eq!((answers.len(), broken), (9, 7));
        assert_eq!((&answers[0]["remember"], &answers[8]["remember"]), (&json!("full"), &json!("full")));
        for (at, part) in [
            (1, "line 4: EOF"),
            (2, "line 5: "),
            (3, "line 6: missing field `body`"),
            (4, "line 7: a status is"),
            (5, "line 8: the header \"a b\""),
            (6, "line 9: a phase is"),
            (7, "line 10: it has more than"),
        ] {
            let error = answers[at]["error"].as_str().unwrap_or_else(|| unreachable!("{}", answers[at]));
            assert!(error.starts_with(part), "{error}");
        }
        assert_eq!(answers[1].as_object().unwrap().len(), 1);
    }
}
