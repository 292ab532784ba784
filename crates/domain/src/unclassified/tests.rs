#![expect(clippy::unwrap_used, reason = "test")]

use http::HeaderValue;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::mask::masked;
use super::*;

fn code_of(body: &Value) -> Option<(String, String)> {
    code_with(&HeaderMap::new(), body, &[])
}

fn code_with(headers: &HeaderMap, body: &Value, pointers: &[&str]) -> Option<(String, String)> {
    let pointers: Vec<_> = pointers.iter().map(|pointer| Pointer::parse(pointer).unwrap()).collect();
    let code = Refused::new(headers, body.to_string().as_bytes()).code(&pointers);
    code.map(|code| (code.value, code.place.to_string()))
}

fn some(value: &str, place: &str) -> Option<(String, String)> {
    Some((value.to_owned(), place.to_owned()))
}

#[test]
fn the_most_exact_code_counts() {
    let azure = json!({"error": {"code": "InvalidRequest", "innererror": {"code": "InvalidContent"}}});
    assert_eq!(code_of(&azure), some("InvalidContent", "/error/innererror/code"));
    let openai = json!({"error": {"message": "m", "type": "invalid_request_error", "code": null}});
    assert_eq!(code_of(&openai), some("invalid_request_error", "/error/type"));
    let google = json!({"error": {"code": 400, "status": "INVALID_ARGUMENT", "message": "m"}});
    assert_eq!(code_of(&google), some("INVALID_ARGUMENT", "/error/status"));
    assert_eq!(code_of(&json!({"error": {"code": "422"}})), some("422", "/error/code"));
    assert_eq!(code_of(&json!({"errorCode": 3013})), some("3013", "/errorCode"));
    assert_eq!(
        code_of(&json!({"detail": [{"type": "missing", "msg": "m"}]})),
        some("missing", "/detail/0/type")
    );
    let own = code_with(&HeaderMap::new(), &json!({"code": "A", "fault": {"kind": "B"}}), &["/fault/kind"]);
    assert_eq!(own, some("B", "/fault/kind"));
    let every = code_with(&HeaderMap::new(), &json!({"faults": [{}, {"kind": "B"}]}), &["/faults/*/kind"]);
    assert_eq!(every, some("B", "/faults/*/kind"));
    let other = code_with(&HeaderMap::new(), &json!({"code": "A"}), &["/fault/kind"]);
    assert_eq!(other, some("A", "/code"));
}

#[test]
fn names_of_aws_lose_their_namespace() {
    let body = json!({"__type": "com.amazonaws.textract#BadDocumentException"});
    assert_eq!(code_of(&body), some("BadDocumentException", "aws-error"));
    let mut headers = HeaderMap::new();
    headers.insert("x-amzn-errortype", HeaderValue::from_static("ValidationException:http://internal/x"));
    assert_eq!(code_with(&headers, &json!({"code": "A"}), &[]), some("ValidationException", "aws-error"));
}

#[test]
fn a_body_is_read_as_a_judgement_reads_it() {
    let mut headers = HeaderMap::new();
    headers.insert("content-type", HeaderValue::from_static("application/cbor"));
    let mut body = Vec::new();
    ciborium::into_writer(&json!({"__type": "aws#BadDocumentException", "message": "m"}), &mut body).unwrap();
    let refused = Refused::new(&headers, &body);
    assert_eq!(refused.code(&[]).unwrap().value, "BadDocumentException");
    headers.insert("content-encoding", HeaderValue::from_static("gzip"));
    let refused = Refused::new(&headers, &body);
    assert_eq!(
        (refused.code(&[]), refused.sample(), refused.rule(400, None, "x")),
        (None, String::new(), None)
    );
}

#[test]
fn what_is_no_identifier_is_no_code() {
    for value in [
        json!("two words"),
        json!(""),
        json!("..."),
        json!("x".repeat(65)),
        json!("123e4567-e89b-12d3-a456-426614174000"),
        json!("a3f2c4d5e6f7a8b9"),
        json!(1_700_000_000_123_u64),
        json!(true),
        json!({"a": 1}),
        json!("https://x"),
    ] {
        assert_eq!(code_of(&json!({"code": value})), None, "{value}");
    }
    let headers = HeaderMap::new();
    for body in [&b""[..], b"<html>", b"\xff\xfe", b"[1", b"\"text\""] {
        assert_eq!(Refused::new(&headers, body).code(&[]), None);
    }
}

#[test]
fn a_message_stays_readable() {
    for (message, shown) in [
        ("The document has no pages.", "The document has no pages."),
        ("Invalid value: 'secret stuff'. Use 'a' or 'b'.", "Invalid value: <quoted>."),
        ("the document's pages can't be read", "the document's pages can't be read"),
        ("cannot identify image file b'\\x89PNG it's here'", "cannot identify image file b<quoted>"),
        ("an open \"quote", "an open <quoted>"),
        (
            "prompt is too long: 345320 tokens > 199999 maximum",
            "prompt is too long: <number> tokens > <number> maximum",
        ),
        ("at most 500 MB, version 3.5", "at most 500 MB, version 3.5"),
        ("Could not fetch https://host/a?sig=b now", "Could not fetch <url> now"),
        ("see file report.pdf, or /tmp/x", "see file <file> or <path>"),
        (
            "type image/heic and/or application/vnd.ms-excel",
            "type image/heic and/or application/vnd.ms-excel",
        ),
        ("text/secret.txt", "<path>"),
        ("ask john@example.com", "ask <email>"),
        ("context_length_exceeded in base64-encoded data", "context_length_exceeded in base64-encoded data"),
        ("key AKIAIOSFODNN7EXAMPLE", "key <token>"),
        ("file-9x8yzz is broken", "<id> is broken"),
        ("<Code>InvalidImage</Code>", "<Code>InvalidImage</Code>"),
        ("at 10.0.0.12 or db.internal", "at <number> or <file>"),
    ] {
        assert_eq!(masked(message), shown);
    }
}

#[test]
fn a_sample_has_the_shape_of_the_body() {
    let headers = HeaderMap::new();
    let sample = |body: &str| Refused::new(&headers, body.as_bytes()).sample();
    let body = r#"{"error":{"code":"invalid_image","type":400,"message":"Cannot read \"scan.png\"","param":"image","n":123456},
        "request_id":"req_1","organisation":{"a":"b"},"detail":[1,2,3,4],"input":null,"retryable":false}"#;
    assert_eq!(
        sample(body),
        "{\"error\":{\"code\":\"invalid_image\",\"type\":400,\"message\":\"Cannot read <quoted>\",\"param\":\"<masked>\",\
         \"n\":\"<number>\"},\"request_id\":\"<masked>\",\"organisation\":\"<masked>\",\"detail\":[1,2,3,…],\
         \"input\":null,\"retryable\":false}"
    );
    assert_eq!(sample(&format!("{{\"m\":\"{}\"}}", "word ".repeat(100))).chars().count(), 6 + 80 + 1 + 2);
    assert_eq!(sample("<html>\n\n<b>too   large</b>"), "<html> <b>too large</b>");
    assert_eq!(sample(""), "");
    let deep = format!("{}1{}", "[".repeat(100), "]".repeat(100));
    assert_eq!(sample(&deep), "[[[[[[[[[…]]]]]]]]]");
    let wide: Value =
        (0..500).map(|n| (format!("k{n}"), json!("word"))).collect::<serde_json::Map<_, _>>().into();
    let wide = sample(&wide.to_string());
    assert!(wide.len() <= SAMPLE_MAX_BYTES && wide.ends_with('…'), "{wide}");
}

fn rule_of(status: u16, body: &str) -> Option<String> {
    let headers = HeaderMap::new();
    let refused = Refused::new(&headers, body.as_bytes());
    refused.rule(status, refused.code(&[]).as_ref(), "openai")
}

#[test]
fn the_rule_can_be_pasted() {
    let rule = rule_of(400, r#"{"error":{"code":"InvalidImageFormat"}}"#).unwrap();
    let (comment, rule) = rule.split_once("- rule").unwrap();
    assert_eq!(comment.lines().count(), 3);
    assert!(
        comment.lines().all(|line| line.starts_with("# ")) && comment.contains("`extends: openai`"),
        "{comment}"
    );
    assert_eq!(
        rule,
        ": invalid-image-format\n  status: 400\n  when:\n    - {at: /error/code, is: InvalidImageFormat}\n  \
         class: content\n  remember: full\n  confidence: observed\n"
    );
    for (body, name, test) in [
        (r#"{"code":"HTTPError_2"}"#, "http-error-2", "{at: /code, is: HTTPError_2}"),
        (r#"{"code":"3013"}"#, "code-3013", "{at: /code, is: \"3013\"}"),
        (r#"{"code":"null"}"#, "\"null\"", "{at: /code, is: \"null\"}"),
        (
            r#"{"__type":"a#BadDocumentException"}"#,
            "bad-document-exception",
            "{at: aws-error, is: BadDocumentException}",
        ),
        (
            r#"{"error":"Cannot read 'x.png': the image is truncated (3 bytes)"}"#,
            "the-image-is-truncated",
            "{at: /error, contains: \": the image is truncated (\"}",
        ),
        ("File is encrypted.", "file-is-encrypted", "{at: text, contains: \"File is encrypted.\"}"),
    ] {
        let rule = rule_of(422, body).unwrap();
        assert!(rule.contains(&format!("- rule: {name}\n")) && rule.contains(test), "{body}: {rule}");
    }
    for body in ["", "{}", "[]", "{\"message\":\"no\"}", "{\"message\":\"'all of it'\"}"] {
        assert_eq!(rule_of(422, body), None, "{body}");
    }
}

/// Words between which a secret is planted.
fn message() -> impl Strategy<Value = (Vec<&'static str>, usize)> {
    let word = prop::sample::select(vec![
        "cannot",
        "read",
        "the",
        "document's",
        "image",
        "it's",
        "at",
        "page",
        "3",
        "of",
        "10,",
        "(see",
        "docs)",
        "isn't",
        "valid.",
        "users'",
        "é",
        "b'x'",
        "\"ok\"",
        "'",
        "\"",
    ]);
    prop::collection::vec(word, 0..12).prop_flat_map(|words| {
        let places = words.len();
        (Just(words), 0..=places)
    })
}

/// A secret that no words have by chance.
fn secret() -> impl Strategy<Value = String> {
    "Zq[a-z]{3,9}Xj"
}

/// The ways in which a secret stands in a message.
fn planted() -> impl Strategy<Value = (String, String)> {
    let quotes = prop::sample::select(vec![
        ("'", "'"),
        ("\"", "\""),
        ("`", "`"),
        ("“", "”"),
        ("‘", "’"),
        ("«", "»"),
        ("„", "“"),
        ("b'", "'"),
        ("u\"", "\""),
        ("('", "')"),
        ("name='", "'"),
    ]);
    prop_oneof![
        (secret(), quotes, "[a-z ]{0,8}", "[a-z ]{0,8}").prop_map(|(s, (open, close), before, after)| {
            let text = format!("{open}{before}{s}{after}{close}");
            (s, text)
        }),
        secret().prop_map(|s| (s.clone(), format!("https://host.example/{s}?sig=1"))),
        secret().prop_map(|s| (s.clone(), format!("{s}.{s}@example.com"))),
        secret().prop_map(|s| (s.clone(), format!("/srv/in/{s}"))),
        secret().prop_map(|s| (s.clone(), format!("C:\\in\\{s}"))),
        secret().prop_map(|s| (s.clone(), format!("{s}.pdf"))),
        secret().prop_map(|s| (s.clone(), format!("file={s}.pdf,"))),
        "[A-Za-z0-9]{16,64}".prop_map(|s| (s.clone(), s)),
        "[A-Za-z0-9+/]{16,64}={0,2}".prop_map(|s| (s.clone(), format!("token:{s}"))),
        "[0-9]{4,20}".prop_map(|s| (s.clone(), s)),
        "[0-9a-f]{16,64}".prop_map(|s| (s.clone(), format!("({s})"))),
    ]
}

proptest! {
    #[test]
    fn no_secret_survives(((words, place), (secret, text)) in (message(), planted())) {
        let mut words: Vec<String> = words.into_iter().map(ToOwned::to_owned).collect();
        words.insert(place, text);
        let message = words.join(" ");
        let headers = HeaderMap::new();
        let bodies = [
            // a text alone in quotes would be JSON, and no quotes be in it
            format!("no: {message}"),
            json!({"error": {"message": message, "code": "x"}}).to_string(),
            json!({"detail": [{"msg": message}]}).to_string(),
            json!({"error": message}).to_string(),
            json!({ message.as_str(): 1 }).to_string(),
            json!({"input": secret, "request_id": secret, "org_name": [secret]}).to_string(),
        ];
        for body in bodies {
            let refused = Refused::new(&headers, body.as_bytes());
            let sample = refused.sample();
            prop_assert!(!sample.contains(&secret), "{sample} of {body}");
            let rule = refused.rule(400, None, "x").unwrap_or_default();
            prop_assert!(!rule.contains(&secret), "{rule} of {body}");
        }
    }

    #[test]
    fn a_long_message_is_cut_where_nothing_shows(lead in 1900_usize..2100, (secret, text) in planted()) {
        let message = format!("{} {text} and so on", "x ".repeat(lead / 2));
        prop_assert!(!masked(&message).contains(&secret));
    }

    #[test]
    fn any_bytes_have_a_bounded_sample_and_no_panic(body in prop::collection::vec(any::<u8>(), 0..2000)) {
        let headers = HeaderMap::new();
        let refused = Refused::new(&headers, &body);
        prop_assert!(refused.sample().len() <= SAMPLE_MAX_BYTES);
        prop_assert!(!refused.sample().contains('\n'));
        let code = refused.code(&[]);
        let _ = refused.rule(400, code.as_ref(), "x");
    }

    #[test]
    fn any_text_has_a_bounded_sample_and_no_panic(text in "\\PC{0,300}", key in "\\PC{0,40}") {
        let headers = HeaderMap::new();
        let bodies = [text.clone(), json!({"error": text}).to_string(), json!({ key: [text.as_str(), "x"] }).to_string()];
        for body in bodies {
            let refused = Refused::new(&headers, body.as_bytes());
            prop_assert!(refused.sample().len() <= SAMPLE_MAX_BYTES);
            let rule = refused.rule(400, None, "x").unwrap_or_default();
            prop_assert!(rule.lines().count() <= 11, "{rule}");
        }
    }
}
