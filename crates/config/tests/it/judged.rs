//! Whatever an upstream answers and whatever an operator writes: no panic, and no status on the rail is a verdict.
#![expect(clippy::unwrap_used, reason = "test")]

use std::path::Path;
use std::sync::{Arc, LazyLock};

use http::{HeaderMap, HeaderValue, StatusCode};
use nevertwice_config::profiles::Catalog;
use nevertwice_domain::profile::{
    Answer, Judgement, Phase, Profile, Remember, RequestFacts, RuleStatus, Terms,
};
use proptest::prelude::*;

use crate::holds::{Said, awaited, judged, profile_read};

/// Name and text of the program's profiles.
static TEXTS: LazyLock<Vec<(String, String)>> = LazyLock::new(|| {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../profiles");
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let yaml = files.filter(|file| file.extension().is_some_and(|extension| extension == "yaml"));
    let mut all: Vec<_> = yaml
        .map(|file| {
            let name = file.file_stem().unwrap().to_string_lossy().into_owned();
            (name, std::fs::read_to_string(file).unwrap())
        })
        .collect();
    all.sort();
    all
});

static PROFILES: LazyLock<Vec<Arc<Profile>>> = LazyLock::new(|| {
    let catalog = Catalog::default();
    catalog.names().into_iter().map(|name| catalog.get(name).unwrap()).collect()
});

#[test]
fn what_rules_wait_for_is_a_verdict_under_their_statuses_and_under_no_other() {
    let mut verdicts = 0;
    for (name, text) in TEXTS.iter() {
        assert!(profile_read(text, b"{}"), "{name}");
        let profile = Catalog::default().get(name).unwrap();
        for rule in &profile.rules().unwrap().rules {
            let body = awaited(rule).to_string();
            let headers = HeaderMap::from_iter([(
                http::header::CONTENT_TYPE,
                HeaderValue::from_static("application/json"),
            )]);
            for status in &rule.statuses {
                let RuleStatus::Refusal(status) = status else { continue };
                let answer =
                    Answer { status: status.status_code(), headers: &headers, body: body.as_bytes() };
                let request =
                    RequestFacts { content_type: Some("application/pdf".into()), ..RequestFacts::default() };
                let judgement = profile.judge(&request, &answer, &Terms::default());
                verdicts += usize::from(matches!(judgement, Judgement::Verdict(_)));
            }
        }
    }
    // else the bodies would be none that rules wait for, and the rest of the test would show nothing
    assert!(verdicts > 40, "{verdicts}");
}

#[test]
fn polls_that_failed_say_so_in_any_case() {
    let error = r#"{"code":"InvalidRequest","message":"m","innererror":{"code":"InvalidContent"}}"#;
    for name in ["azure-document-intelligence", "azure-content-understanding"] {
        let profile = Catalog::default().get(name).unwrap();
        for (status, remember) in [
            ("failed", Remember::Full),
            ("Failed", Remember::Full),
            ("FAILED", Remember::Full),
            ("succeeded", Remember::Never),
            ("running", Remember::Never),
            ("failing", Remember::Never),
        ] {
            let body = format!(r#"{{"status":"{status}","error":{error}}}"#);
            let headers = HeaderMap::new();
            let answer = Answer { status: StatusCode::OK, headers: &headers, body: body.as_bytes() };
            for phase in [Phase::Poll, Phase::Submit] {
                let request = RequestFacts { phase, ..RequestFacts::default() };
                let explained = profile.explain(&request, &answer, &Terms::default());
                assert_eq!(explained.remember, remember, "{name} {status} {explained:?}");
            }
        }
    }
}

/// Pieces of answers, of requests and of what breaks both.
const BITS: &[&str] = &[
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "\"",
    "\\",
    "null",
    "0",
    "-1",
    "1e999",
    "true",
    "\u{0}",
    "ä",
    "\n",
    "\"\":",
    "\"error\":",
    "\"code\":",
    "\"innererror\":",
    "\"details\":[",
    "\"message\":",
    "\"type\":",
    "\"status\":",
    "\"detail\":",
    "\"errors\":[",
    "\"component_type\":",
    "\"__type\":",
    "\"InvalidRequest\"",
    "\"InvalidContent\"",
    "\"context_length_exceeded\"",
    "\"invalid_request_error\"",
    "\"prompt is too long\"",
    "\"failed\"",
    "\"failure\"",
    "\"user_input\"",
    "\"BadDocumentException\"",
    "\"urlSource\":\"https://a\"",
    "--b\r\n",
    "Content-Disposition: form-data; name=\"url\"\r\n\r\n",
    "\u{1f}\u{8b}",
    "\u{a1}\u{66}",
];

const TYPES: [&str; 9] = [
    "",
    "application/json",
    "application/pdf",
    "text/html",
    "text/plain",
    "application/cbor",
    "application/problem+json",
    "multipart/form-data; boundary=b",
    "application/x-www-form-urlencoded",
];

fn body() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        3 => prop::collection::vec(prop::sample::select(BITS), 0..40).prop_map(|bits| bits.concat().into_bytes()),
        1 => prop::collection::vec(any::<u8>(), 0..300),
    ]
}

fn status() -> impl Strategy<Value = u16> {
    prop_oneof![3 => prop::sample::select(&[200, 400, 413, 415, 422, 409][..]), 1 => 100..=999_u16]
}

/// What is put into a profile's text: words that decide, and words that mean something in YAML.
const WORDS: &[&str] = &[
    "",
    " ",
    "\n",
    "- ",
    ": ",
    "{",
    "}",
    "[",
    "]",
    "'",
    "\"",
    "#",
    "&a ",
    "*a",
    "!!str ",
    "|",
    "null",
    "~",
    "0",
    "1e999",
    "401",
    "403",
    "404",
    "408",
    "429",
    "500",
    "503",
    "200",
    "[401, 400]",
    "status: 401",
    "status: [500]",
    "400",
    "0o620",
    "0x191",
    "'401'",
    "4_01",
    "full",
    "never",
    "content",
    "caller",
    "class: content\n",
    "remember: full\n",
    "extends: openai\n",
    "is: [x]",
    "contains: x",
    "at: text",
    "at: ''",
    "leaves: /error",
    "present: true",
    "absent: true",
    "when: []",
    "/*",
    "~2",
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_answer(
        status in status(), body in body(), request in body(),
        answer_type in prop::sample::select(&TYPES[..]), request_type in prop::sample::select(&TYPES[..]),
        coding in prop::sample::select(&["", "gzip", "br", "deflate", "identity", "zstd", "gzip, br"][..]),
        extra in prop::collection::vec(any::<u8>(), 0..20),
    ) {
        let headers = [
            ("content-type", answer_type.as_bytes()),
            ("content-encoding", coding.as_bytes()),
            ("x-amzn-errortype", &extra),
            ("x-refusal-class", &extra),
        ];
        let said = Said { status, headers: &headers, body: &body, path: "/read?url=", request_type, request: &request };
        for profile in PROFILES.iter() {
            judged(profile, &said);
        }
    }

    #[test]
    fn any_profile_text(text in any::<String>(), body in body()) {
        profile_read(&text, &body);
    }

    #[test]
    fn a_profile_with_words_put_in_and_cut_out(
        which in any::<prop::sample::Index>(),
        edits in prop::collection::vec((any::<prop::sample::Index>(), 0..12_usize, prop::sample::select(WORDS)), 1..5),
        body in body(),
    ) {
        let mut text = which.get(&TEXTS).1.clone();
        for (at, cut, word) in edits {
            let start = text.floor_char_boundary(at.index(text.len() + 1));
            let end = text.floor_char_boundary((start + cut).min(text.len())).max(start);
            text.replace_range(start..end, word);
        }
        profile_read(&text, &body);
    }
}
