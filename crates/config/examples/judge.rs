//! What judging a refusal of 4 KiB costs, by profile.
//!
//! ```sh
//! cargo run --release -p nevertwice-config --example judge
//! ```
#![expect(clippy::print_stdout, reason = "a program that prints a table")]
#![expect(clippy::panic, reason = "what fails here should stop it")]

use std::hint::black_box;
use std::time::Instant;

use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, StatusCode};
use nevertwice_config::profiles::Catalog;
use nevertwice_domain::profile::{Answer, Judgement, RequestFacts, Terms};
use serde_json::{Value, json};

/// How long the bodies are, in bytes.
const BODY: usize = 4096;
/// How often each is judged.
const TIMES: usize = 50_000;

/// A refusal, and the rule that it is known by.
struct Case {
    profile: &'static str,
    what: &'static str,
    status: u16,
    body: Value,
    rule: Option<&'static str>,
}

fn main() {
    println!("bodies of {BODY} bytes, {TIMES} judgements each, in µs");
    println!("{:<28} {:<34} {:>8} {:>8}", "profile", "refusal", "median", "p99");
    for case in cases() {
        measure(&case);
    }
}

fn measure(case: &Case) {
    let profile = Catalog::default().get(case.profile).unwrap_or_else(|| panic!("{}", case.profile));
    let headers =
        HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static("application/json; charset=utf-8"))]);
    let body = case.body.to_string();
    assert_eq!(body.len(), BODY, "{}", case.what);
    let status = StatusCode::from_u16(case.status).unwrap_or_default();
    let request =
        RequestFacts { content_type: Some("application/pdf".to_owned()), ..RequestFacts::default() };
    let judge = || {
        let answer = Answer { status, headers: &headers, body: black_box(body.as_bytes()) };
        profile.judge(&request, &answer, &Terms::default())
    };
    match judge() {
        Judgement::Verdict(verdict) => assert_eq!(Some(&*verdict.rule), case.rule, "{}", case.what),
        other => assert!(case.rule.is_none(), "{}: {other:?}", case.what),
    }
    let mut times: Vec<u128> = (0..TIMES)
        .map(|_| {
            let began = Instant::now();
            black_box(judge());
            began.elapsed().as_nanos()
        })
        .collect();
    times.sort_unstable();
    let micros = |nanos: u128| nanos as f64 / 1000.0;
    let (median, p99) = (micros(times[TIMES / 2]), micros(times[TIMES / 100 * 99]));
    println!("{:<28} {:<34} {median:>8.1} {p99:>8.1}", case.profile, case.what);
}

/// `build` with a text in it that makes the body as long as it should be.
fn filled(build: impl Fn(&str) -> Value) -> Value {
    let text = "The quick brown fox jumps over the lazy dog, page 7. ".repeat(BODY / 50 + 1);
    let bare = build("").to_string().len();
    build(&text[..BODY.saturating_sub(bare)])
}

fn cases() -> Vec<Case> {
    let openai = |code: &'static str| {
        filled(
            |text| json!({ "error": { "message": text, "type": "invalid_request_error", "param": "messages", "code": code } }),
        )
    };
    let azure = filled(|text| {
        let detail = |n: usize| {
            let inner = json!({ "code": "InvalidContent", "message": "The file is corrupted or its format is unsupported." });
            json!({ "code": "InvalidRequest", "message": "Invalid request.", "target": n.to_string(), "innererror": inner })
        };
        let details: Vec<_> = (0..20).map(detail).collect();
        json!({ "error": { "code": "InvalidRequest", "message": text, "details": details } })
    });
    let anthropic = |says: &'static str| {
        filled(|text| {
            let message = format!("messages.4.content.0.image.source.base64.data: {text}{says}");
            json!({ "type": "error", "error": { "type": "invalid_request_error", "message": message }, "request_id": "req_011CSHoEeqs5C35K2UUqR7Fy" })
        })
    };
    let echo = filled(|text| {
        let input = text.replace([' ', ',', '.'], "A");
        json!({ "detail": [{ "type": "string_type", "loc": ["body", "document"], "msg": "Input should be a valid string", "input": input }] })
    });
    let detail = |begin: &'static str, end: &'static str| {
        filled(|text| json!({ "detail": format!("{begin}{text}{end}") }))
    };
    let docling = filled(|text| {
        let error = json!({
            "component_type": "user_input", "module_name": "", "category": "backend_failure",
            "error_message": "Input document scan.pdf is not valid.",
        });
        json!({
            "document": { "filename": "scan.pdf", "md_content": text, "json_content": null, "html_content": null, "text_content": null },
            "status": "failure", "errors": vec![error; 8], "processing_time": 0.25, "timings": {},
        })
    });
    let fine = filled(
        |text| json!({ "document": { "filename": "a.pdf", "md_content": text }, "status": "success", "errors": [] }),
    );
    let case = |profile, what, status, body, rule| Case { profile, what, status, body, rule };
    vec![
        case(
            "openai",
            "context_length_exceeded",
            400,
            openai("context_length_exceeded"),
            Some("context-length"),
        ),
        case("openai", "a code that no rule knows", 400, openai("something_new"), None),
        case(
            "azure-document-intelligence",
            "InvalidContent on 20 pages",
            400,
            azure,
            Some("invalid-content"),
        ),
        case(
            "anthropic",
            "Could not process image",
            400,
            anthropic("Could not process image"),
            Some("unreadable-image"),
        ),
        case("anthropic", "a text that no rule knows", 400, anthropic("Something new"), None),
        case("fastapi", "422 that echoes its input", 422, echo, None),
        case(
            "unstructured-api",
            "File type is not supported",
            422,
            detail("File type ", " is not supported."),
            Some("file-type"),
        ),
        case("unstructured-api", "a text that no rule knows", 422, detail("Something new: ", "."), None),
        case("docling-serve", "200, status failure", 200, docling, Some("user-input")),
        case("docling-serve", "200, status success", 200, fine, None),
        case("status", "any", 400, openai("context_length_exceeded"), Some("status")),
    ]
}
