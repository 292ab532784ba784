//! Query strings and JSON bodies, read strictly: a filter that was mistyped must not widen what a request does.

use std::fmt;
use std::str::FromStr;

use nevertwice_domain::clock::{Millis, parse_rfc3339};
use nevertwice_domain::fingerprint::{DocumentDigest, Fingerprint};
use nevertwice_domain::job::{JobId, JobStatus};
use nevertwice_domain::status::RefusalStatus;
use nevertwice_domain::tenant::{TenantId, UpstreamName};
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;

use crate::near;
use crate::problem::Problem;

/// Named values, each known and at most once.
#[derive(Debug)]
pub(crate) struct Given<V> {
    kind: &'static str,
    values: Vec<(&'static str, V)>,
}

impl<V> Given<V> {
    fn new(
        kind: &'static str,
        known: &[&'static str],
        pairs: impl IntoIterator<Item = (String, V)>,
    ) -> Result<Self, Problem> {
        let mut values: Vec<(&'static str, V)> = Vec::new();
        for (name, value) in pairs {
            let Some(name) = known.iter().find(|k| **k == name) else {
                let cure = near::cure(&name, known, &format!("{kind}s here"));
                return Err(Problem::bad(format!("unknown {kind} {}; {cure}", near::quoted(&name))));
            };
            if values.iter().any(|(seen, _)| seen == name) {
                return Err(Problem::bad(format!("the {kind} `{name}` stands twice")));
            }
            values.push((name, value));
        }
        Ok(Self { kind, values })
    }

    /// Whether nothing was given.
    pub(crate) fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// How many were given.
    pub(crate) fn len(&self) -> usize {
        self.values.len()
    }

    /// The value of this name, read; a value that cannot be read is told with the name.
    pub(crate) fn get<T>(
        &self,
        name: &str,
        read: impl FnOnce(&V) -> Result<T, String>,
    ) -> Result<Option<T>, Problem> {
        let Some((_, value)) = self.values.iter().find(|(known, _)| *known == name) else { return Ok(None) };
        read(value).map(Some).map_err(|why| Problem::bad(format!("the {} `{name}`: {why}", self.kind)))
    }
}

/// The parameters of a query string. An empty one counts as not given.
pub(crate) fn parameters(query: Option<&str>, known: &[&'static str]) -> Result<Given<String>, Problem> {
    let pairs = form_urlencoded::parse(query.unwrap_or_default().as_bytes());
    let pairs = pairs.filter(|(name, value)| !(value.is_empty() && known.contains(&name.as_ref())));
    Given::new("parameter", known, pairs.map(|(name, value)| (name.into_owned(), value.into_owned())))
}

/// For paths that take no parameters.
pub(crate) fn no_parameters(query: Option<&str>) -> Result<(), Problem> {
    match query {
        None | Some("") => Ok(()),
        Some(_) => Err(Problem::bad("this path takes no parameters")),
    }
}

/// The fields of a JSON object.
pub(crate) fn fields(body: &[u8], known: &[&'static str]) -> Result<Given<Value>, Problem> {
    let Pairs(pairs) = serde_json::from_slice(body)
        .map_err(|e| Problem::bad(format!("the body has to be a JSON object: {e}")))?;
    Given::new("field", known, pairs)
}

/// A JSON object as it was written, doubles included.
struct Pairs(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Pairs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collect;
        impl<'de> Visitor<'de> for Collect {
            type Value = Pairs;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Pairs(pairs))
            }
        }
        deserializer.deserialize_map(Collect)
    }
}

pub(crate) fn string(value: &Value) -> Result<&str, String> {
    value.as_str().ok_or_else(|| "has to be a string".to_owned())
}

pub(crate) fn upstream(text: &str) -> Result<UpstreamName, String> {
    UpstreamName::new(text).map_err(|e| e.to_string())
}

pub(crate) fn tenant(text: &str) -> Result<TenantId, String> {
    TenantId::new(text).map_err(|e| e.to_string())
}

pub(crate) fn document(text: &str) -> Result<DocumentDigest, String> {
    DocumentDigest::from_str(text).map_err(|e| format!("{e}, as `sha256sum` prints them"))
}

pub(crate) fn fingerprint(text: &str) -> Result<Fingerprint, String> {
    Fingerprint::from_str(text).map_err(|e| e.to_string())
}

pub(crate) fn job(text: &str) -> Result<JobId, String> {
    JobId::from_str(text).map_err(|e| e.to_string())
}

pub(crate) fn job_status(text: &str) -> Result<JobStatus, String> {
    let known = JobStatus::ALL.iter().find(|status| status.name() == text);
    known.copied().ok_or_else(|| {
        let all: Vec<_> = JobStatus::ALL.iter().map(|status| status.name()).collect();
        format!("has to be one of {}", all.join(", "))
    })
}

pub(crate) fn status(number: u64) -> Result<RefusalStatus, String> {
    let number = u16::try_from(number).map_err(|_| format!("{number} is no status"))?;
    RefusalStatus::of_entry(number).map_err(|e| e.to_string())
}

pub(crate) fn time(text: &str) -> Result<Millis, String> {
    parse_rfc3339(text).map_err(|_| "has to be a time like 2026-01-31T12:00:00Z".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told<T: fmt::Debug>(result: Result<T, Problem>) -> String {
        match result {
            Ok(value) => unreachable!("{value:?}"),
            Err(problem) => format!("{problem:?}"),
        }
    }

    #[test]
    fn parameters_are_known_and_given_once() {
        let known = ["upstream", "status", "limit"];
        let given = parameters(Some("upstream=a&status=&limit=%35"), &known);
        let given = given.unwrap_or_else(|p| unreachable!("{p:?}"));
        assert_eq!(given.len(), 2);
        assert_eq!(given.get("limit", |v| Ok(v.clone())).ok().flatten(), Some("5".to_owned()));
        assert!(told(parameters(Some("upstraem=a"), &known)).contains("did you mean `upstream`?"));
        assert!(
            told(parameters(Some("token=a"), &known)).contains("parameters here: upstream, status, limit")
        );
        assert!(told(parameters(Some("limit=1&limit=2"), &known)).contains("stands twice"));
        assert!(told(parameters(Some("token"), &known)).contains("unknown parameter"));
    }

    #[test]
    fn fields_are_known_and_given_once() {
        let known = ["upstream", "all"];
        for (body, part) in [
            ("", "JSON object"),
            ("[]", "expected an object"),
            ("{\"upstream\":\"a\"} x", "JSON object"),
            ("{\"upstream\":\"a\",\"upstream\":\"b\"}", "stands twice"),
            ("{\"ALL\":true}", "did you mean `all`?"),
        ] {
            let told = told(fields(body.as_bytes(), &known));
            assert!(told.contains(part), "{body}: {told}");
        }
        assert!(fields(b" {} ", &known).is_ok_and(|given| given.is_empty()));
    }
}
