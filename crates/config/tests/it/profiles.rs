//! What rules mean: profiles as text, answers as bytes, judgements with their reasons.
#![expect(clippy::unwrap_used, clippy::panic, reason = "test")]

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use nevertwice_config::profiles::from_text;
use nevertwice_domain::profile::{
    Answer, Class, Dependency, Explanation, Judgement, NotRecorded, Phase, Profile, Reference,
    ReferenceSearch, Remember, RequestFacts, Terms,
};

const ABOUT: &str = "profile: own\nabout: ours\n";

fn profile(text: &str) -> Profile {
    from_text(&format!("{ABOUT}{text}"), "own.yaml").unwrap_or_else(|problems| panic!("{problems}"))
}

struct Said<'a> {
    status: u16,
    headers: &'a [(&'a str, &'a str)],
    body: &'a [u8],
}

fn said(status: u16, body: &str) -> Said<'_> {
    Said { status, headers: &[("content-type", "application/json")], body: body.as_bytes() }
}

fn headers(list: &[(&str, &str)]) -> HeaderMap {
    let one = |(name, value): &(&str, &str)| {
        (HeaderName::from_bytes(name.as_bytes()).unwrap(), HeaderValue::from_str(value).unwrap())
    };
    list.iter().map(one).collect()
}

fn explain_to(profile: &Profile, request: &RequestFacts, said: &Said<'_>) -> Explanation {
    let headers = headers(said.headers);
    let answer =
        Answer { status: StatusCode::from_u16(said.status).unwrap(), headers: &headers, body: said.body };
    profile.explain(request, &answer, &Terms::default())
}

fn explain(profile: &Profile, said: &Said<'_>) -> Explanation {
    explain_to(profile, &RequestFacts::default(), said)
}

/// Whether the rule `r` matches.
fn matches(when: &str, said: &Said<'_>) -> bool {
    let rules = format!(
        "answers: any\nfailures: [{{at: /status, is: failed, case: ignore}}]\nrules:\n- rule: r\n  status: [400, 422, 200]\n  when: [{when}]\n  class: content\n  remember: full\n"
    );
    let explained = explain(&profile(&rules), said);
    assert_eq!(explained.rule.is_some(), explained.remember == Remember::Full, "{explained:?}");
    explained.rule.is_some()
}

#[test]
fn codes_are_compared_as_text() {
    for body in [r#"{"code":"401"}"#, r#"{"code":401}"#] {
        assert!(matches("{at: /code, is: 401}", &said(400, body)));
        assert!(matches("{at: /code, is: \"401\"}", &said(400, body)));
        assert!(!matches("{at: /code, is: \"0401\"}", &said(400, body)));
    }
    assert!(matches("{at: /retryable, is: false}", &said(400, r#"{"retryable":false}"#)));
    assert!(matches("{at: /retryable, is: \"false\"}", &said(400, r#"{"retryable":false}"#)));
    assert!(matches("{at: /code, is: [null, x]}", &said(400, r#"{"code":null}"#)));
    assert!(!matches("{at: /code, is: [null, x]}", &said(400, "{}")));
    assert!(!matches("{at: /code, is: \"null\"}", &said(400, r#"{"code":null}"#)));
    // case counts, unless it is said not to
    assert!(!matches("{at: /code, is: Bad}", &said(400, r#"{"code":"bad"}"#)));
    assert!(matches("{at: /code, is: Bad, case: ignore}", &said(400, r#"{"code":"BAD"}"#)));
    // what is no scalar equals nothing
    assert!(!matches("{at: /code, is: x}", &said(400, r#"{"code":["x"]}"#)));
}

#[test]
fn tests_of_texts() {
    let body = r#"{"m":"Invalid image (Base64) data."}"#;
    assert!(matches("{at: /m, contains: \"invalid IMAGE (base64)\"}", &said(400, body)));
    assert!(matches("{at: /m, contains: [nothing, data]}", &said(400, body)));
    assert!(!matches("{at: /m, contains: nothing}", &said(400, body)));
    assert!(matches("{at: /m, starts_with: Invalid}", &said(400, body)));
    assert!(!matches("{at: /m, starts_with: invalid}", &said(400, body)));
    assert!(matches("{at: /m, starts_with: invalid, case: ignore}", &said(400, body)));
    assert!(matches("{at: /m, present: true}", &said(400, body)));
    assert!(matches("{at: /n, absent: true}", &said(400, body)));
    assert!(!matches("{at: /m, absent: true}", &said(400, body)));
    assert!(!matches("{at: /n, present: true}", &said(400, body)));
    let text = Said { status: 400, headers: &[("content-type", "text/plain")], body: b"Not a PDF, sorry" };
    assert!(matches("{at: text, contains: not a pdf}", &text));
    assert!(matches("{at: text, is: \"Not a PDF, sorry\"}", &text));
    assert!(!matches("{at: /m, absent: true}", &text), "there is no JSON in which it could be absent");
}

#[test]
fn all_conditions_must_hold() {
    let when = "{at: /error/code, is: InvalidRequest}, {at: /error/innererror/code, is: InvalidContent}";
    let inner =
        |outer: &str| format!(r#"{{"error":{{"code":"{outer}","innererror":{{"code":"InvalidContent"}}}}}}"#);
    assert!(matches(when, &said(400, &inner("InvalidRequest"))));
    assert!(!matches(when, &said(400, &inner("InternalServerError"))));
}

#[test]
fn every_leaf_must_be_content() {
    let leaves = "{leaves: /error, is: [InvalidContent, InvalidContentDimensions]}";
    for (body, all) in [
        (r#"{"error":{"code":"InvalidContent"}}"#, true),
        (r#"{"error":{"code":"A","innererror":{"code":"InvalidContent"}}}"#, true),
        (r#"{"error":{"code":"A","innererror":{"code":"B","innererror":{"code":"InvalidContent"}}}}"#, true),
        (r#"{"error":{"code":"InvalidContent","innererror":{"code":"Other"}}}"#, false),
        (
            r#"{"error":{"code":"A","details":[{"code":"InvalidContent"},{"code":"InvalidContentDimensions","target":"3"}]}}"#,
            true,
        ),
        (
            r#"{"error":{"code":"A","details":[{"code":"InvalidContent"},{"code":"FailedToSerializeAnalyzeResult"}]}}"#,
            false,
        ),
        (
            r#"{"error":{"code":"A","details":[{"code":"A","innererror":{"code":"InvalidContent"}},{"message":"m"}]}}"#,
            false,
        ),
        (
            r#"{"error":{"code":"A","details":[{"code":"InvalidContent"}],"innererror":{"code":"ServiceFault"}}}"#,
            false,
        ),
        (r#"{"error":{"code":"InvalidContent","details":[]}}"#, true),
        (r#"{"error":{"code":"InvalidContent","innererror":null}}"#, true),
        (r#"{"error":"InvalidContent"}"#, false),
        (r#"{"code":"InvalidContent"}"#, false),
    ] {
        assert_eq!(matches(leaves, &said(400, body)), all, "{body}");
    }
    // flat bodies of the same service
    assert!(matches("{leaves: \"\", is: NotFound}", &said(400, r#"{"code":"NotFound","message":"m"}"#)));
    let deep =
        format!("{}{}{}", r#"{"error":"#, r#"{"innererror":"#.repeat(40), r#"{"code":"InvalidContent"}"#);
    let deep = format!("{deep}{}", "}".repeat(41));
    assert!(!matches(leaves, &said(400, &deep)), "so deep that nobody looks");
}

#[test]
fn every_item_must_be_content() {
    let when = "{at: /errors/*/component_type, is: user_input}";
    for (body, all) in [
        (r#"{"status":"failed","errors":[{"component_type":"user_input"}]}"#, true),
        (
            r#"{"status":"failed","errors":[{"component_type":"user_input"},{"component_type":"pipeline"}]}"#,
            false,
        ),
        (r#"{"status":"failed","errors":[]}"#, false),
        (r#"{"status":"failed"}"#, false),
        // case of a status counts not, and without a failure it is a success
        (r#"{"status":"FAILED","errors":[{"component_type":"user_input"}]}"#, true),
        (r#"{"status":"succeeded","errors":[{"component_type":"user_input"}]}"#, false),
    ] {
        assert_eq!(matches(when, &said(200, body)), all, "{body}");
    }
}

#[test]
fn names_of_aws_errors_from_header_or_body() {
    let when = "{at: aws-error, is: BadDocumentException}";
    for (header, body) in [
        (Some("BadDocumentException"), "{}"),
        (Some("BadDocumentException:http://internal.example/coral/"), "{}"),
        (Some("com.amazonaws.textract#BadDocumentException"), "{}"),
        (None, r#"{"__type":"BadDocumentException","Message":"m"}"#),
        (None, r#"{"__type":"com.amazonaws.textract#BadDocumentException"}"#),
    ] {
        let mut list = vec![("content-type", "application/x-amz-json-1.1")];
        list.extend(header.map(|value| ("x-amzn-errortype", value)));
        assert!(
            matches(when, &Said { status: 400, headers: &list, body: body.as_bytes() }),
            "{header:?} {body}"
        );
    }
    let list = [("x-amzn-errortype", "ThrottlingException"), ("content-type", "application/json")];
    let body = br#"{"__type":"BadDocumentException"}"#;
    assert!(!matches(when, &Said { status: 400, headers: &list, body }), "the header has the word");
}

fn gzip(body: &[u8]) -> Vec<u8> {
    use std::io::Write as _;
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(body).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn bodies_are_decoded_before_they_are_judged() {
    const WHEN: &str = "{at: /code, is: CORRUPT_FILE}";
    let plain = br#"{"code":"CORRUPT_FILE"}"#;
    let json = ("content-type", "application/json");
    let zipped = gzip(plain);
    let coded = |coding, body| {
        matches(WHEN, &Said { status: 400, headers: &[json, ("content-encoding", coding)], body })
    };
    assert!(coded("gzip", &zipped));
    assert!(coded("identity", plain));
    // `{"code":"CORRUPT_FILE"}`, uncompressed meta-block of brotli (RFC 7932 section 9.2)
    let brotli = [&[0x0b, 0x0b, 0x80][..], plain, &[0x03]].concat();
    assert!(coded("br", &brotli));
    for (coding, body) in [
        ("gzip", &zipped[..zipped.len() - 9]),
        ("gzip", &plain[..]),
        ("zstd", &plain[..]),
        ("gzip, br", &zipped[..]),
    ] {
        assert!(!coded(coding, body), "{coding}");
    }
    // a bomb is not unpacked
    assert!(!coded("gzip", &gzip(&vec![b' '; 3 << 20])));
    // {"__type": "BadDocumentException"} in CBOR, as smithy-rpc-v2-cbor has it
    let cbor = [&[0xa1, 0x66][..], b"__type", &[0x74], b"BadDocumentException"].concat();
    let headers = [("content-type", "application/cbor"), ("smithy-protocol", "rpc-v2-cbor")];
    assert!(matches(
        "{at: aws-error, is: BadDocumentException}",
        &Said { status: 400, headers: &headers, body: &cbor }
    ));
}

const CONTENT: &str = "rules:\n- rule: bad\n  status: [400, 413]\n  when: [{at: /code, is: BAD}]\n  class: content\n  remember: full\n";

#[test]
fn what_something_in_between_says_is_no_verdict() {
    let profile = profile(CONTENT);
    let bad = br#"{"code":"BAD"}"#;
    assert_eq!(explain(&profile, &Said { status: 400, headers: &[], body: bad }).remember, Remember::Full);
    for (headers, body) in [
        (&[("content-type", "text/html")][..], &b"<html>413 Request Entity Too Large</html>"[..]),
        (&[("content-type", "text/plain")], b"Payload Too Large"),
        (&[("content-type", "text/plain")], bad),
        (&[("content-type", "application/json")], b""),
        (&[("content-type", "application/json")], b"  "),
        (&[("content-type", "application/json")], b"not json"),
        (&[("content-type", "application/json")], b"\"BAD\""),
        (&[("content-type", "application/json")], br#"{"statusCode":400,"message":"BAD","code":"BAD"}"#),
        (&[("content-type", "application/json")], br#"{"statusCode":400,"message":"BAD"}"#),
        (
            &[("content-type", "application/problem+json")],
            br#"{"type":"https://api.example/Idempotency","title":"t","code":"BAD"}"#,
        ),
        (&[("content-type", "application/json"), ("retry-after", "5")], bad),
        (&[("content-type", "application/json"), ("retry-after-ms", "5")], bad),
        (&[("content-type", "application/json"), ("x-should-retry", "true")], bad),
        (&[("content-type", "application/json"), ("cache-control", "no-store")], bad),
    ] {
        for status in [400, 413] {
            let explained = explain(&profile, &Said { status, headers, body });
            let exact = body.windows(4).filter(|w| w == b"BAD\"").count() == 2;
            // three keys are not the two of the gateway in front
            let expected = if exact && headers.len() == 1 { Remember::Full } else { Remember::Never };
            assert_eq!(explained.remember, expected, "{headers:?} {}", String::from_utf8_lossy(body));
        }
    }
}

#[test]
fn the_rail_holds_whatever_a_profile_says() {
    let rules: String = (400..=499)
        .filter(|status| ![401, 403, 404, 408, 429].contains(status))
        .map(|status| status.to_string())
        .collect::<Vec<_>>()
        .join(", ");
    let text = format!(
        "answers: any\nrules:\n- rule: all\n  status: [{rules}]\n  when: [{{at: text, contains: x}}]\n  class: content\n  remember: full\n"
    );
    let profile = profile(&text);
    for status in 100..=599 {
        let explained = explain(&profile, &said(status, "x"));
        let allowed = (400..=499).contains(&status) && ![401, 403, 404, 408, 429].contains(&status);
        assert_eq!(explained.remember == Remember::Full, allowed, "{status} {explained:?}");
        // and where the gateway's own check before it was left out
        let headers = HeaderMap::new();
        let answer = Answer { status: StatusCode::from_u16(status).unwrap(), headers: &headers, body: b"x" };
        let judged = profile.judge(&RequestFacts::default(), &answer, &Terms::default());
        assert_eq!(matches!(judged, Judgement::Verdict(_)), allowed, "{status}");
    }
}

#[test]
fn a_request_that_names_its_input_is_never_remembered() {
    let profile = profile(&format!("references: [urlSource, file_id]\n{CONTENT}"));
    let bad = said(400, r#"{"code":"BAD"}"#);
    let with = |content_type: &str, body: &str| {
        let mut search = ReferenceSearch::new(profile.references(), &[], Some(content_type.as_bytes()));
        search.feed(body.as_bytes());
        let request = RequestFacts { reference: search.finish(), ..RequestFacts::default() };
        let explained = explain_to(&profile, &request, &bad);
        (explained.remember, explained.class)
    };
    assert_eq!(with("application/octet-stream", "%PDF"), (Remember::Full, Some(Class::Content)));
    assert_eq!(with("application/json", r#"{"base64Source":"AA"}"#), (Remember::Full, Some(Class::Content)));
    for body in [r#"{"urlSource":"https://a"}"#, r#"{"x":[{"file_id":"f"}]}"#, r#"{"base64Source":"AA"#] {
        assert_eq!(with("application/json", body), (Remember::Never, Some(Class::Reference)), "{body}");
    }
    let request = RequestFacts { reference: Some(Reference::Unsure), ..RequestFacts::default() };
    assert_eq!(explain_to(&profile, &request, &bad).remember, Remember::Never);
}

#[test]
fn phases_and_requests_are_told_apart() {
    let text = "failures: [{at: /status, is: failed}]\nrules:\n\
                - {rule: polled, status: 200, phase: poll, when: [{at: /code, is: BAD}], class: content, remember: full}\n\
                - {rule: typed, status: 400, when: [{at: /code, is: BAD}, {request: content-type, absent: true}], class: request, remember: keyed, depends_on: content_type}\n\
                - {rule: inline, status: [400, 200], when: [{at: /code, is: BAD}], class: content, remember: short}\n";
    let profile = profile(text);
    let rule = |phase, content_type: Option<&str>, status| {
        let request = RequestFacts { phase, content_type: content_type.map(str::to_owned), reference: None };
        let explained = explain_to(&profile, &request, &said(status, r#"{"status":"failed","code":"BAD"}"#));
        explained.rule.map(|rule| rule.to_string())
    };
    assert_eq!(rule(Phase::Poll, None, 200).as_deref(), Some("polled"));
    assert_eq!(rule(Phase::Submit, None, 200).as_deref(), Some("inline"));
    assert_eq!(rule(Phase::Submit, None, 400).as_deref(), Some("typed"));
    assert_eq!(rule(Phase::Submit, Some("application/pdf"), 400).as_deref(), Some("inline"));
    // a refused question is not a refused document
    assert_eq!(rule(Phase::Poll, Some("application/pdf"), 400), None);
}

#[test]
fn keyed_verdicts_need_a_word_and_a_key() {
    let text = "rules:\n- {rule: r, status: 400, when: [{at: /code, is: BAD}], class: request, remember: keyed, depends_on: [body, params, tier]}\n";
    let profile = profile(text);
    let judge = |keyed: Option<&[Dependency]>| {
        let headers = headers(&[]);
        let answer =
            Answer { status: StatusCode::BAD_REQUEST, headers: &headers, body: br#"{"code":"BAD"}"# };
        profile.judge(&RequestFacts::default(), &answer, &Terms { keyed, ..Terms::default() })
    };
    use Dependency::{Body, Params, Route, Tier};
    for (held, remembered) in [
        (None, false),
        (Some(&[][..]), false),
        (Some(&[Body, Params, Route]), false),
        (Some(&[Body, Params, Tier]), true),
        (Some(&[Tier, Route, Params, Body]), true),
    ] {
        let judged = judge(held);
        assert_eq!(matches!(judged, Judgement::Verdict(_)), remembered, "{held:?}");
        assert!(remembered || judged == Judgement::Not(NotRecorded::Keyed));
    }
    assert_eq!(explain(&profile, &said(400, r#"{"code":"BAD"}"#)).remember, Remember::Keyed);
}

#[test]
fn the_upstreams_own_word_counts_where_it_is_trusted() {
    let judge = |profile: &Profile, class: &[&str], status: u16, trust: bool| {
        let mut list = vec![("content-type", "application/json")];
        list.extend(class.iter().map(|class| ("x-refusal-class", *class)));
        let headers = headers(&list);
        let answer = Answer {
            status: StatusCode::from_u16(status).unwrap(),
            headers: &headers,
            body: br#"{"code":"OTHER"}"#,
        };
        let terms = Terms { trust_refusal_class: trust, keyed: None };
        matches!(profile.judge(&RequestFacts::default(), &answer, &terms), Judgement::Verdict(_))
    };
    let (rules, status) = (profile(CONTENT), Profile::status());
    for (class, rules_say, status_says) in [
        (&["content"][..], true, true),
        (&[" Content "], true, true),
        (&["request"], false, false),
        (&["transient"], false, false),
        (&["something"], false, false),
        (&[""], false, false),
        (&["content", "transient"], false, false),
        (&[], false, true),
    ] {
        assert_eq!(judge(&rules, class, 400, true), rules_say, "{class:?}");
        assert_eq!(judge(&status, class, 400, true), status_says, "{class:?}");
        // without trust it is a header like any other
        assert!(!judge(&rules, class, 400, false));
        assert!(judge(&status, class, 400, false));
    }
    // it makes no 200 a verdict
    assert!(!judge(&rules, &["content"], 200, true) && !judge(&status, &["content"], 200, true));
}

#[test]
fn an_explanation_shows_the_path() {
    let text = "rules:\n\
                - {rule: first, status: 400, when: [{at: /code, is: [A, B]}], class: caller, remember: never}\n\
                - {rule: second, status: 400, when: [{at: /code, is: C}, {at: /m, contains: pdf}], class: content, remember: full, source: \"https://a.example\"}\n";
    let profile = profile(text);
    let explained = explain(&profile, &said(400, r#"{"code":"C","m":"Broken PDF"}"#));
    assert_eq!(explained.rule.as_deref(), Some("second"));
    assert_eq!(explained.source.as_deref(), Some("https://a.example"));
    let path = explained.steps.join("\n");
    assert!(path.contains("rule first: no: /code is \"A\" or \"B\"; found \"C\""), "{path}");
    assert!(path.ends_with("rule second: yes"), "{path}");
    let explained = explain(&profile, &said(400, r#"{"code":"C","m":"Other"}"#));
    assert_eq!((explained.remember, explained.class), (Remember::Never, None));
    assert!(explained.steps.join("\n").contains("rule second: no: /m contains \"pdf\"; found \"Other\""));
    let explained = explain(&profile, &said(400, r#"{"code":"A"}"#));
    assert_eq!(
        (explained.remember, explained.class, explained.rule.as_deref()),
        (Remember::Never, Some(Class::Caller), Some("first"))
    );
}
