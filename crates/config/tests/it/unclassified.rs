//! The rule that operators are shown for a refusal which no rule knows can be pasted into a profile, and then knows it.

use http::{HeaderMap, StatusCode};
use nevertwice_config::profiles::Catalog;
use nevertwice_domain::profile::{Answer, Judgement, Profile, RequestFacts, Terms};
use nevertwice_domain::unclassified::Refused;

fn judged(profile: &Profile, status: StatusCode, headers: &HeaderMap, body: &[u8]) -> Judgement {
    let answer = Answer { status, headers, body };
    profile.judge(&RequestFacts::default(), &answer, &Terms::default())
}

#[test]
fn the_rule_that_is_shown_knows_the_refusal() {
    let folder = tempfile::tempdir().unwrap_or_else(|e| unreachable!("{e}"));
    let aws = HeaderMap::from_iter([(
        http::HeaderName::from_static("x-amzn-errortype"),
        http::HeaderValue::from_static("NewException:http://x"),
    )]);
    let none = HeaderMap::new();
    for (profile, headers, body) in [
        ("openai", &none, r#"{"error":{"code":"brand_new_code","message":"m"}}"#),
        ("openai", &none, r#"{"error":{"code":"null"}}"#),
        ("openai", &none, r#"{"error":{"code":"3013"}}"#),
        ("openai", &none, r#"{"error":{"code":4711}}"#),
        (
            "openai",
            &none,
            r#"{"error":{"message":"the page's \"a b\": {bad} #1 \\ - image, [x] is: blurred"}}"#,
        ),
        ("openai", &none, r#"{"message":"größe nicht lesbar…"}"#),
        ("aws-textract", &aws, r#"{"message":"m"}"#),
        ("aws-textract", &none, r#"{"__type":"x.y#NewException","message":"m"}"#),
        ("azure-document-intelligence", &none, r#"{"error":{"code":"NewCode","message":"m"}}"#),
        ("fastapi", &none, r#"{"detail":[{"type":"brand_new","msg":"m"}]}"#),
    ] {
        let status = StatusCode::UNPROCESSABLE_ENTITY;
        let program = Catalog::default().get(profile).unwrap_or_else(|| unreachable!("{profile}"));
        assert!(matches!(judged(&program, status, headers, body.as_bytes()), Judgement::Not(_)), "{body}");
        let refused = Refused::new(headers, body.as_bytes());
        let code = refused.code(program.codes());
        let rule = refused.rule(status.as_u16(), code.as_ref(), profile).unwrap_or_default();
        let text =
            format!("profile: {profile}\nextends: {profile}\nabout: with a rule of ours\nrules:\n{rule}");
        let file = folder.path().join("own.yaml");
        std::fs::write(&file, &text).unwrap_or_else(|e| unreachable!("{e}"));
        let own = Catalog::read(&[file]).unwrap_or_else(|problems| unreachable!("{problems:?}\n{text}"));
        let own = own.get(profile).unwrap_or_else(|| unreachable!("{profile}"));
        let judged = judged(&own, status, headers, body.as_bytes());
        assert!(matches!(judged, Judgement::Verdict(_)), "{judged:?}\n{text}");
    }
}
