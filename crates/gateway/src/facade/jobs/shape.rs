//! Jobs as JSON.

use bytes::Bytes;
use nevertwice_domain::clock::Millis;
use nevertwice_domain::job::{Job, JobError, JobId, ResultFacts};
use nevertwice_store::work::JobPage;
use serde_json::{Value, json};

/// Where a job is.
pub(crate) fn link(id: &JobId, base: &str) -> String {
    format!("{base}/jobs/{id}")
}

fn links(id: &JobId, base: &str) -> Value {
    let link = link(id, base);
    json!({ "self": link, "result": format!("{link}/result") })
}

/// What is answered to a submit.
pub(super) fn accepted(job: &Job, base: &str) -> Value {
    json!({
        "id": job.id.to_string(),
        "status": job.status.name(),
        "created_at": job.created_at.to_string(),
        "links": links(&job.id, base),
    })
}

/// All that its owner may know of a job.
pub(crate) fn job(job: &Job, base: &str) -> Value {
    let time = |at: Option<Millis>| at.map(|at| at.to_string());
    let mut shown = json!({
        "id": job.id.to_string(),
        "upstream": job.upstream.as_str(),
        "path": job.request.path,
        "status": job.status.name(),
        "created_at": job.created_at.to_string(),
        "started_at": time(job.started_at),
        "finished_at": time(job.finished_at),
        "expires_at": time(job.expires_at),
        "attempts": job.attempts,
    });
    if let Some(error) = &job.error {
        shown["error"] = json!({
            "code": error.code,
            "message": error.message,
            "upstream_status": error.upstream_status,
            "retryable": error.retryable,
            "replayed": error.replayed,
        });
    }
    if let Some(result) = &job.result {
        let content_type = result.fields.iter().find(|field| field.name == "content-type");
        shown["result"] = json!({
            "status": result.status,
            "content_type": content_type.map(|field| String::from_utf8_lossy(&field.value)),
            "bytes": result.bytes,
        });
    }
    shown["links"] = links(&job.id, base);
    shown
}

/// A page of a list.
pub(super) fn page(page: &JobPage, base: &str) -> Value {
    json!({
        "items": page.items.iter().map(|item| job(item, base)).collect::<Vec<_>>(),
        "next_cursor": page.next.map(|id| id.to_string()),
    })
}

/// The places where services write what is wrong, the likeliest first.
const PLACES: [&str; 9] = [
    "/error/message",
    "/error/innererror/message",
    "/analyzeResult/errors/0/message",
    "/message",
    "/Message",
    "/detail",
    "/errorMsg",
    "/errors/0/error_message",
    "/error",
];
/// How long a body may be to be looked at for that, in bytes.
const LOOKED_AT: usize = 64 << 10;

/// What an upstream's answer says to people: what it calls its message, or else its text.
pub(crate) fn message(facts: &ResultFacts, body: &Bytes) -> String {
    let coded =
        facts.fields.iter().any(|field| field.name == "content-encoding" && field.value != "identity");
    if coded {
        return format!("HTTP {}; the body is in a content coding", facts.status);
    }
    if body.len() <= LOOKED_AT
        && let Ok(json) = serde_json::from_slice::<Value>(body)
        && let Some(text) = PLACES.iter().find_map(|place| json.pointer(place).and_then(Value::as_str))
    {
        return cut(text);
    }
    let head = &body[..body.len().min(JobError::MESSAGE_MAX)];
    match std::str::from_utf8(head) {
        Ok(text) => cut(text.trim()),
        // cut in the middle of a character
        Err(error) if error.error_len().is_none() => {
            cut(String::from_utf8_lossy(&head[..error.valid_up_to()]).trim())
        }
        Err(_) => format!("HTTP {}; the body is no text", facts.status),
    }
}

fn cut(text: &str) -> String {
    let mut end = text.len().min(JobError::MESSAGE_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}

#[cfg(test)]
mod tests {
    use nevertwice_domain::job::JobField;
    use proptest::prelude::*;

    use super::*;

    fn of(body: &[u8]) -> String {
        message(&ResultFacts { status: 422, fields: Vec::new(), bytes: 0 }, &Bytes::copy_from_slice(body))
    }

    #[test]
    fn a_message_is_the_upstream_s_own_word() {
        assert_eq!(of(br#"{"error":{"code":"x","message":"the file is corrupt"}}"#), "the file is corrupt");
        assert_eq!(of(br#"{"detail":"no page"}"#), "no page");
        assert_eq!(of(br#"{"detail":[{"msg":"x"}]}"#), r#"{"detail":[{"msg":"x"}]}"#);
        assert_eq!(of(br#"{"error":"text"}"#), "text");
        assert_eq!(of(b" unreadable \n"), "unreadable");
        assert_eq!(of(b""), "");
        assert_eq!(of(b"\xff\xfe"), "HTTP 422; the body is no text");
        let coded = ResultFacts {
            status: 400,
            fields: vec![JobField { name: "content-encoding".into(), value: Bytes::from_static(b"gzip") }],
            bytes: 1,
        };
        assert!(message(&coded, &Bytes::from_static(b"x")).starts_with("HTTP 400"));
    }

    proptest! {
        #[test]
        fn no_body_breaks_it_and_none_makes_it_long(body in any::<Vec<u8>>(), text in "\\PC{0,3000}") {
            prop_assert!(of(&body).len() <= JobError::MESSAGE_MAX);
            prop_assert!(of(text.as_bytes()).len() <= JobError::MESSAGE_MAX);
        }
    }
}
