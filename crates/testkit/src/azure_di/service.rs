//! What the service knows and says.

use std::collections::HashMap;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::fate::{Fate, fault};
use super::path::{Target, is_v2};
use crate::upstream::{Reply, Seen};
use crate::wire::hex;

const JSON: &str = "application/json; charset=utf-8";
const CREATED: &str = "2026-03-01T10:00:00Z";
const UPDATED: &str = "2026-03-01T10:00:01Z";

/// A document's SHA-256 in hex.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct DigestOf(String);

impl DigestOf {
    pub(super) fn bytes(document: &[u8]) -> Self {
        Self(hex(&Sha256::digest(document)))
    }

    /// Of the document in this request.
    fn request(seen: &Seen) -> Self {
        let inline = serde_json::from_slice::<Value>(&seen.body)
            .ok()
            .and_then(|body| BASE64_STANDARD.decode(body.get("base64Source")?.as_str()?).ok())
            .filter(|document| !document.is_empty());
        inline.map_or_else(|| Self(seen.body_sha256.clone()), |document| Self::bytes(&document))
    }
}

struct Operation {
    document: DigestOf,
    fate: Fate,
    v2: bool,
    polls: u64,
}

pub(super) struct Service {
    pub(super) fates: HashMap<DigestOf, Fate>,
    pub(super) location: String,
    operations: HashMap<String, Operation>,
    /// Answers given so far; what an answer has of its own is made of it.
    answers: u64,
}

impl Default for Service {
    fn default() -> Self {
        Self {
            fates: HashMap::new(),
            location: "http://@AUTHORITY@@PATH@".to_owned(),
            operations: HashMap::new(),
            answers: 0,
        }
    }
}

impl Service {
    pub(super) fn forget_operations(&mut self) {
        self.operations.clear();
    }

    /// `authority` is that of the address it came to.
    pub(super) fn answer(&mut self, seen: &Seen, authority: &str) -> Reply {
        self.answers += 1;
        let request_id = self.guid(authority);
        let reply = match (seen.method.as_str(), Target::of(seen.path())) {
            ("POST", Some(Target::Submit(model))) => self.submit(seen, authority, model),
            ("GET", Some(Target::Operation { id, part: "" })) => self.poll(id),
            ("GET", Some(Target::Operation { id, part })) => self.part(id, part),
            ("DELETE", Some(Target::Operation { id, part: "" })) => match self.operations.remove(id) {
                Some(_) => Reply::status(204),
                None => no_operation(),
            },
            _ => json_reply(404, &json!({ "error": fault("NotFound", "ResourceNotFound") })),
        };
        reply.header("apim-request-id", request_id).header("x-envoy-upstream-service-time", "7")
    }

    fn submit(&mut self, seen: &Seen, authority: &str, model: &str) -> Reply {
        let document = DigestOf::request(seen);
        let fate = self.fates.get(&document).cloned().unwrap_or_else(Fate::succeeds);
        if let Some((status, error)) = fate.refused {
            return json_reply(status, &json!({ "error": error }));
        }
        let (id, v2) = (self.guid(&format!("operation at {authority}")), is_v2(seen.path()));
        let version = seen.target.split(['?', '&']).find(|item| item.starts_with("api-version="));
        let query = version.map_or_else(String::new, |version| format!("?{version}"));
        let results = if model.contains("/custom/") { "analyzeresults" } else { "analyzeResults" };
        let path = format!("{model}/{results}/{id}{query}");
        self.operations.insert(id, Operation { document, fate, v2, polls: 0 });
        let location = self.location.replace("@AUTHORITY@", authority).replace("@PATH@", &path);
        Reply::status(202).header("Operation-Location", location).header("Retry-After", "1")
    }

    fn poll(&mut self, id: &str) -> Reply {
        let Some(operation) = self.operations.get_mut(id) else { return no_operation() };
        operation.polls += 1;
        let is_running = operation.polls <= operation.fate.running;
        let (status, more) = match &operation.fate.failed {
            _ if is_running => ("running", None),
            Some(error) if operation.v2 => (
                operation.fate.failed_word,
                Some(("analyzeResult", json!({ "version": "2.1.0", "readResults": [], "errors": [error] }))),
            ),
            Some(error) => (operation.fate.failed_word, Some(("error", error.clone()))),
            None => ("succeeded", Some(("analyzeResult", result(operation)))),
        };
        // in the order in which the service writes it: the state comes first, however long the rest is
        let more = more.map_or_else(String::new, |(name, value)| format!(r#","{name}":{value}"#));
        let body = format!(
            r#"{{"status":"{status}","createdDateTime":"{CREATED}","lastUpdatedDateTime":"{UPDATED}"{more}}}"#
        );
        let reply = Reply::status(200).header("Content-Type", JSON).body(body);
        let reply = match &operation.fate.gate {
            Some(gate) => reply.wait_for(gate),
            None => reply,
        };
        if is_running { reply.header("Retry-After", "1") } else { reply }
    }

    fn part(&self, id: &str, part: &str) -> Reply {
        let Some(operation) = self.operations.get(id) else { return no_operation() };
        let kind = if part == "/pdf" { "application/pdf" } else { "image/png" };
        Reply::status(200).header("Content-Type", kind).body(format!("{part} of {}", operation.document.0))
    }

    /// One that no other answer of any service has, in the spelling of the real ones.
    fn guid(&self, of: &str) -> String {
        let text = hex(&Sha256::digest(format!("{} of {of}", self.answers)));
        format!("{}-{}-4{}-a{}-{}", &text[..8], &text[8..12], &text[13..16], &text[17..20], &text[20..32])
    }
}

/// A result that tells which document it is of.
fn result(operation: &Operation) -> Value {
    let content = format!("read from {}{}", operation.document.0, " x".repeat(operation.fate.more_words));
    if operation.v2 {
        let line = json!({ "text": content, "boundingBox": [0, 0, 1, 0, 1, 1, 0, 1], "words": [] });
        let page = json!({
            "page": 1, "angle": 0, "width": 8.5, "height": 11, "unit": "inch", "lines": [line],
        });
        return json!({ "version": "2.1.0", "readResults": [page], "pageResults": [] });
    }
    json!({
        "apiVersion": "2024-11-30", "modelId": "prebuilt-read", "stringIndexType": "textElements",
        "content": content, "pages": [], "styles": [],
    })
}

fn no_operation() -> Reply {
    json_reply(404, &json!({ "error": fault("NotFound", "OperationNotFound") }))
}

fn json_reply(status: u16, body: &Value) -> Reply {
    Reply::status(status)
        .header("Content-Type", JSON)
        .body(serde_json::to_vec(body).unwrap_or_else(|error| panic!("stub service: {error}")))
}
