//! Refusals that no rule of the profile knows go up each time, and operators see which: with a sample that gives nothing away,
//! and with the rule that remembers them.

use std::process::Output;

use nevertwice_testkit::{DOC, DOC2, Gateway, Reply, Upstream};
use serde_json::Value;

use crate::bench::settle;
use crate::caller::{CLASSIFY, assert_live, assert_replay, entry_count, submit};

const UNKNOWN: &str = r#"{"error":{"code":"scan_too_dark","message":"Page 'Jane Doe.pdf' of https://in.example/9?sig=x is too dark","param":"Jane"}}"#;

fn refusal(body: &'static str) -> Reply {
    Reply::status(400).header("Content-Type", "application/json").body(body)
}

async fn judged_by(profile: &str, upstream: &Upstream, top: &str) -> Gateway {
    let memory = format!("negative_cache: {{ profile: {profile} }}");
    Gateway::with(&upstream.url(), &[("UPSTREAM", &memory), ("TOP", top)]).await
}

async fn listed(gateway: &Gateway, query: &str) -> Vec<Value> {
    let (status, answer) = gateway.admin_get(&format!("/admin/v1/unclassified{query}")).await;
    assert_eq!(status, 200, "{answer}");
    answer["items"].as_array().cloned().unwrap_or_default()
}

fn out(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[tokio::test]
async fn an_unknown_code_is_shown_with_the_rule_that_then_remembers_it() {
    let upstream = Upstream::start().await;
    upstream.always(refusal(UNKNOWN));
    let gateway = judged_by("openai", &upstream, "").await;
    for document in [&DOC[..], &DOC2[..], &DOC[..]] {
        assert_live(&submit(&gateway, CLASSIFY).body(document).send().await, 400);
    }
    assert!(!gateway.log().contains("no rule knows"));
    assert_live(&submit(&gateway, CLASSIFY).body(&DOC[..]).send().await, 400);
    assert_eq!(upstream.calls(), 4);
    let reason = [("reason", "unclassified")];
    gateway.wait_metric("gateway_negative_cache_not_recorded_total", &reason, 4.0).await;
    assert_eq!(entry_count(&gateway).await, 0);

    let rows = listed(&gateway, "").await;
    let [row] = rows.as_slice() else { unreachable!("{rows:?}") };
    assert_eq!((&row["upstream"], &row["code"]), (&"doc-classifier".into(), &"scan_too_dark".into()));
    assert_eq!((&row["at"], &row["profile"]), (&"/error/code".into(), &"openai".into()));
    let counts = ["refusals", "documents", "repeated"].map(|name| row[name].as_u64());
    assert_eq!(counts, [Some(4), Some(2), Some(1)]);
    assert!(
        !row["sample"].to_string().contains("Jane") && !row["sample"].to_string().contains("in.example"),
        "{row}"
    );
    let log = gateway.log();
    assert_eq!(log.matches("a code that no rule knows").count(), 1, "{log}");
    assert!(log.contains("scan_too_dark") && !log.contains("Jane"), "{log}");

    // What the command prints is a profile's rule as it stands.
    let text = out(&gateway.cli(&["refusals", "unclassified"]).await);
    assert!(text.contains("\ndoc-classifier: 400 scan_too_dark at /error/code"), "{text}");
    let rule = text.split_once("  - rule:").map(|(_, rule)| format!("  - rule:{rule}")).unwrap_or_default();
    let profile = format!("profile: openai\nextends: openai\nabout: with a rule of ours\nrules:\n{rule}");
    let dir = tempfile::tempdir().unwrap_or_else(|error| unreachable!("{error}"));
    let file = dir.path().join("openai.yaml");
    std::fs::write(&file, profile).unwrap_or_else(|error| unreachable!("{error}"));
    settle(&gateway, 4).await;

    let gateway = judged_by("openai", &upstream, &format!("profiles: [\"{}\"]", file.display())).await;
    let live = submit(&gateway, CLASSIFY).body(&DOC[..]).send().await;
    assert_live(&live, 400);
    assert_replay(&live, &submit(&gateway, CLASSIFY).body(&DOC[..]).send().await);
    assert_eq!(upstream.calls(), 5);
    assert_eq!(listed(&gateway, "?all=true").await, Vec::<Value>::new());
    settle(&gateway, 2).await;
}

#[tokio::test]
async fn what_came_once_is_shown_only_when_it_is_asked_for() {
    let upstream = Upstream::start().await;
    let gateway = judged_by("openai", &upstream, "").await;
    upstream.always(refusal(UNKNOWN));
    assert_live(&submit(&gateway, CLASSIFY).body(&DOC[..]).send().await, 400);
    // A rule knows this one: it is no verdict, and nothing is missing.
    upstream.always(refusal(r#"{"error":{"code":"insufficient_quota","message":"m"}}"#));
    for _ in 0..3 {
        assert_live(&submit(&gateway, CLASSIFY).body(&DOC2[..]).send().await, 400);
    }
    assert_eq!(upstream.calls(), 4);
    assert_eq!(listed(&gateway, "").await, Vec::<Value>::new());
    let codes: Vec<_> = listed(&gateway, "?all=true").await.iter().map(|row| row["code"].clone()).collect();
    assert_eq!(codes, ["scan_too_dark"]);
    let text = out(&gateway.cli(&["refusals", "unclassified"]).await);
    assert!(text.starts_with("no unclassified code came back"), "{text}");
    let json = out(&gateway.cli(&["refusals", "unclassified", "--all", "--json"]).await);
    let json: Value = serde_json::from_str(&json).unwrap_or_else(|error| unreachable!("{error}: {json}"));
    assert_eq!(json["items"][0]["refusals"], 1);
    settle(&gateway, 4).await;
}
