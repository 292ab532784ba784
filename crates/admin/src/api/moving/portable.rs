//! An entry in full, as it goes from one gateway to another: nothing that a reader would have to guess, and each part
//! verified on the way in. What does not read is not imported.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::HeaderValue;
use nevertwice_domain::entry::{DocumentFacts, ENTRY_SCHEMA, Entry, REDUCED_SCHEMA, ReplayFields, Tally};
use nevertwice_domain::fingerprint::DocumentDigest;
use nevertwice_store::{Moved, Shown};
use serde::{Deserialize, Serialize};

use crate::near::quoted;
use crate::query;

/// The longest life that can be configured: ten years, in milliseconds.
const TTL_MAX_MS: u64 = 315_360_000_000;
/// The most replays that every reader of JSON reads exactly.
const REPLAYS_MAX: u64 = 1 << 53;
/// The longest text of a generation or a rule, in bytes.
const TEXT_MAX_BYTES: usize = 256;
/// The longest header field of a verdict, in bytes.
const FIELD_MAX_BYTES: usize = 4096;

/// An entry.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Portable {
    /// Where an export goes on after it; an import does not look at it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cursor: Option<String>,
    schema: u32,
    fingerprint: String,
    document_sha256: String,
    documents: u32,
    document_bytes: u64,
    upstream: String,
    scope: String,
    generation: String,
    status: u64,
    rule: String,
    suspect: bool,
    /// Said only where it is so; `schema` says it too.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    reduced: bool,
    first_refused_at: String,
    recorded_at: String,
    ttl_ms: u64,
    refused_tenant: String,
    replays: u64,
    first_replayed_at: Option<String>,
    last_replayed_at: Option<String>,
    tenants: Vec<String>,
    content_type: Option<Field>,
    content_encoding: Option<Field>,
    content_language: Option<Field>,
    body_base64: String,
    body_sha256: String,
}

/// The value of a header field, which need not be text.
#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
enum Field {
    Text(String),
    Bytes { base64: String },
}

impl Field {
    fn new(value: &Bytes) -> Self {
        match std::str::from_utf8(value) {
            Ok(text) if !text.chars().any(char::is_control) => Self::Text(text.to_owned()),
            _ => Self::Bytes { base64: STANDARD.encode(value) },
        }
    }

    fn read(self) -> Result<Bytes, String> {
        let bytes = match self {
            Self::Text(text) => text.into_bytes(),
            Self::Bytes { base64 } => from_base64(&base64)?,
        };
        if bytes.len() > FIELD_MAX_BYTES || HeaderValue::from_bytes(&bytes).is_err() {
            return Err(format!("no header has such a value, or it is longer than {FIELD_MAX_BYTES} bytes"));
        }
        Ok(bytes.into())
    }
}

impl Portable {
    pub(super) fn new(shown: &Shown, cursor: String) -> Self {
        let Shown { entry, tally, suspect } = shown;
        let fields = &entry.fields;
        Self {
            cursor: Some(cursor),
            schema: entry.schema,
            fingerprint: entry.fingerprint.to_string(),
            document_sha256: entry.document.digest.to_string(),
            documents: entry.document.parts,
            document_bytes: entry.document.bytes,
            upstream: entry.upstream.to_string(),
            scope: entry.scope.clone(),
            generation: entry.generation.clone(),
            status: entry.status.get().into(),
            rule: entry.rule.clone(),
            suspect: *suspect,
            reduced: entry.is_reduced(),
            first_refused_at: entry.first_refused_at.to_string(),
            recorded_at: entry.recorded_at.to_string(),
            ttl_ms: entry.ttl_ms,
            refused_tenant: entry.refused_tenant.to_string(),
            replays: tally.replays,
            first_replayed_at: tally.first_replayed_at.map(|at| at.to_string()),
            last_replayed_at: tally.last_replayed_at.map(|at| at.to_string()),
            tenants: tally.tenants.iter().map(ToString::to_string).collect(),
            content_type: fields.content_type.as_ref().map(Field::new),
            content_encoding: fields.content_encoding.as_ref().map(Field::new),
            content_language: fields.content_language.as_ref().map(Field::new),
            body_base64: STANDARD.encode(&entry.body),
            body_sha256: DocumentDigest::of(&entry.body).to_string(),
        }
    }

    /// The entry, and whether it is suspect.
    pub(super) fn read(self) -> Result<(Moved, bool), String> {
        if self.schema != if self.reduced { REDUCED_SCHEMA } else { ENTRY_SCHEMA } {
            let schema = self.schema;
            return Err(format!(
                "schema {schema}: this version knows {ENTRY_SCHEMA}, and {REDUCED_SCHEMA} with `reduced: true`"
            ));
        }
        let optional_time =
            |name, text: Option<String>| text.map(|text| named(name, query::time(&text))).transpose();
        let optional_field =
            |name, value: Option<Field>| value.map(|value| named(name, value.read())).transpose();
        let body = named("body_base64", from_base64(&self.body_base64))?;
        let digest = named("body_sha256", query::document(&self.body_sha256))?;
        if DocumentDigest::of(&body) != digest {
            return Err("the body is not the one whose SHA-256 stands beside it".to_owned());
        }
        if self.ttl_ms > TTL_MAX_MS {
            return Err(format!("the field `ttl_ms`: no life is longer than {TTL_MAX_MS}"));
        }
        let entry = Entry {
            schema: self.schema,
            fingerprint: named("fingerprint", query::fingerprint(&self.fingerprint))?,
            scope: named("scope", scope(self.scope))?,
            upstream: named("upstream", query::upstream(&self.upstream))?,
            generation: named("generation", text(self.generation))?,
            status: named("status", query::status(self.status))?,
            fields: ReplayFields {
                content_type: optional_field("content_type", self.content_type)?,
                content_encoding: optional_field("content_encoding", self.content_encoding)?,
                content_language: optional_field("content_language", self.content_language)?,
            },
            body: body.into(),
            document: DocumentFacts {
                digest: named("document_sha256", query::document(&self.document_sha256))?,
                bytes: self.document_bytes,
                parts: self.documents,
            },
            rule: named("rule", text(self.rule))?,
            refused_tenant: named("refused_tenant", query::tenant(&self.refused_tenant))?,
            first_refused_at: named("first_refused_at", query::time(&self.first_refused_at))?,
            recorded_at: named("recorded_at", query::time(&self.recorded_at))?,
            ttl_ms: self.ttl_ms,
        };
        let tally = Tally {
            replays: self.replays,
            first_replayed_at: optional_time("first_replayed_at", self.first_replayed_at)?,
            last_replayed_at: optional_time("last_replayed_at", self.last_replayed_at)?,
            tenants: self
                .tenants
                .iter()
                .map(|tenant| named("tenants", query::tenant(tenant)))
                .collect::<Result<_, _>>()?,
        };
        let none = tally.replays == 0;
        let named_without = !tally.tenants.is_empty() || tally.first_replayed_at.is_some();
        if tally.replays > REPLAYS_MAX
            || tally.tenants.len() > Tally::MAX_TENANTS
            || tally.first_replayed_at.is_some() != tally.last_replayed_at.is_some()
            || none && named_without
        {
            return Err(format!(
                "the replays are no tally: at most {REPLAYS_MAX}, to at most {} tenants, with a first and a last time",
                Tally::MAX_TENANTS
            ));
        }
        Ok((Moved { entry, tally }, self.suspect))
    }
}

fn named<T>(name: &str, read: Result<T, String>) -> Result<T, String> {
    read.map_err(|why| format!("the field `{name}`: {why}"))
}

fn from_base64(text: &str) -> Result<Vec<u8>, String> {
    STANDARD.decode(text).map_err(|e| format!("this is no base64: {e}"))
}

fn text(text: String) -> Result<String, String> {
    if text.len() > TEXT_MAX_BYTES || text.chars().any(char::is_control) {
        return Err(format!("has at most {TEXT_MAX_BYTES} bytes and no control characters"));
    }
    Ok(text)
}

/// `fleet`, `tenant:NAME` or `domain:NAME`.
fn scope(text: String) -> Result<String, String> {
    let name = text.strip_prefix("tenant:").or_else(|| text.strip_prefix("domain:"));
    if text == "fleet" || name.is_some_and(|name| query::tenant(name).is_ok()) {
        return Ok(text);
    }
    Err(format!("{} is none of `fleet`, `tenant:NAME`, `domain:NAME`", quoted(&text)))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use nevertwice_domain::clock::Millis;
    use nevertwice_store::suite::samples;
    use serde_json::{Value, json};

    use super::*;

    fn shown() -> Shown {
        let mut entry = samples::entry(1);
        entry.fields.content_type = Some(Bytes::from_static(b"text/plain; x=\xfc\""));
        entry.fields.content_language = Some(Bytes::from_static("de, ü".as_bytes()));
        entry.fields.content_encoding = Some(Bytes::new());
        entry.body = (0..=255).collect::<Vec<u8>>().into();
        entry.document.bytes = u64::MAX;
        (entry.first_refused_at, entry.recorded_at) = (Millis(1_700_000_000_001), Millis(1_700_000_100_999));
        entry.ttl_ms = 86_400_001;
        entry.scope = "tenant:a.b-c_d".into();
        entry.generation = "g ü".into();
        let mut tally = Tally::default();
        for n in 0..40 {
            tally.add(&samples::tenant(&format!("t{n}")), Millis(1_700_000_200_000 + n));
        }
        Shown { entry: Arc::new(entry), tally, suspect: false }
    }

    fn json() -> Value {
        serde_json::to_value(Portable::new(&shown(), "AQ".into())).unwrap_or_else(|e| unreachable!("{e}"))
    }

    fn read(json: &Value) -> Result<(Moved, bool), String> {
        serde_json::from_str::<Portable>(&json.to_string()).map_err(|e| e.to_string())?.read()
    }

    #[test]
    fn an_entry_comes_back_as_it_was() {
        let Shown { entry, tally, .. } = shown();
        assert_eq!(read(&json()), Ok((Moved { entry: (*entry).clone(), tally }, false)));
        assert_eq!(json()["content_language"], "de, ü");
        assert_eq!(json()["content_type"]["base64"], STANDARD.encode(b"text/plain; x=\xfc\""));
        let mut failed = shown();
        let entry = Entry { status: samples::status(200), ..(*failed.entry).clone() };
        failed.entry = Arc::new(entry.clone());
        let json = serde_json::to_value(Portable::new(&failed, String::new())).unwrap_or_default();
        assert!(json["status"] == 200 && read(&json).is_ok_and(|(moved, _)| moved.entry == entry));
        let mut reduced = shown();
        let entry = Entry { schema: REDUCED_SCHEMA, ..(*reduced.entry).clone() };
        reduced.entry = Arc::new(entry.clone());
        let json = serde_json::to_value(Portable::new(&reduced, String::new())).unwrap_or_default();
        assert_eq!((&json["schema"], &json["reduced"]), (&json!(2), &json!(true)));
        assert!(read(&json).is_ok_and(|(moved, _)| moved.entry == entry));
        // others are exported as they always were
        assert_eq!(self::json().get("reduced"), None);
        let suspect = Shown { suspect: true, ..shown() };
        let json = serde_json::to_value(Portable::new(&suspect, String::new())).unwrap_or_default();
        assert!(read(&json).is_ok_and(|(_, suspect)| suspect));
        // without replays, and without the cursor
        let mut json = self::json();
        for (name, value) in [
            ("replays", json!(0)),
            ("first_replayed_at", Value::Null),
            ("last_replayed_at", Value::Null),
            ("tenants", json!([])),
        ] {
            json[name] = value;
        }
        json.as_object_mut().map(|fields| fields.shift_remove("cursor"));
        assert!(read(&json).is_ok_and(|(moved, _)| moved.tally == Tally::default()));
    }

    #[test]
    fn whatever_is_wrong_with_an_entry_is_told() {
        for (name, value, part) in [
            ("schema", json!(2), "schema 2: this version knows 1, and 2 with `reduced: true`"),
            ("schema", json!(3), "schema 3: this version knows 1"),
            ("reduced", json!(true), "schema 1: this version knows 1, and 2 with"),
            ("reduced", Value::Null, "invalid type"),
            ("fingerprint", json!("abc"), "`fingerprint`: "),
            ("fingerprint", json!("g".repeat(64)), "64 hex digits"),
            ("document_sha256", json!(""), "`document_sha256`: "),
            ("upstream", json!("a b"), "`upstream`: a name has"),
            ("refused_tenant", json!("\n"), "`refused_tenant`: a name has"),
            ("tenants", json!(["ok", "a/b"]), "`tenants`: a name has"),
            ("tenants", json!(vec!["a"; 33]), "no tally"),
            ("tenants", json!("a"), "expected a sequence"),
            ("scope", json!("everyone"), "`everyone` is none of"),
            ("scope", json!("tenant:"), "none of `fleet`"),
            ("generation", json!("x".repeat(257)), "`generation`: has at most"),
            ("rule", json!("a\u{0}"), "`rule`: has at most"),
            ("status", json!(401), "`status`: 401 is never remembered: it speaks of the credential"),
            ("status", json!(404), "never remembered"),
            ("status", json!(204), "not a 4xx"),
            ("status", json!(500), "not a 4xx"),
            ("status", json!(66_000), "is no status"),
            ("status", json!("400"), "invalid type"),
            ("recorded_at", json!("yesterday"), "`recorded_at`: has to be a time"),
            ("first_refused_at", json!(0), "invalid type"),
            ("last_replayed_at", Value::Null, "no tally"),
            ("replays", json!(0), "no tally"),
            ("replays", json!(u64::MAX), "no tally"),
            ("replays", json!(-1), "invalid value"),
            ("ttl_ms", json!(u64::MAX), "no life is longer"),
            ("content_type", json!("a\r\nset-cookie: b"), "`content_type`: no header"),
            ("content_encoding", json!("x".repeat(4097)), "`content_encoding`: no header"),
            ("content_language", json!({ "base64": "?" }), "`content_language`: this is no base64"),
            ("content_type", json!(7), "did not match"),
            ("body_base64", json!("AAA"), "`body_base64`: this is no base64"),
            ("body_base64", json!("AAAA"), "not the one whose SHA-256"),
            ("body_sha256", json!("00"), "`body_sha256`: "),
            ("more", json!(1), "unknown field `more`"),
        ] {
            let mut json = json();
            json[name] = value.clone();
            let told = read(&json).err().unwrap_or_default();
            assert!(told.contains(part), "{name} {value}: {told}");
        }
        let mut json = json();
        json.as_object_mut().map(|fields| fields.shift_remove("scope"));
        assert!(read(&json).is_err_and(|told| told.contains("missing field `scope`")));
    }
}
