//! Answers that somebody saved, judged on the command line: what comes out, and with which exit code.

use std::path::{Path, PathBuf};
use std::process::Output;

use serde_json::Value;

const CORPUS: &str = "profiles/corpus/upstream-errors.yaml";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

async fn verdict(args: &[&str]) -> Output {
    nevertwice_testkit::gateway::run(&[&["verdict"], args].concat(), &[], &root()).await
}

fn told(output: &Output, code: i32) -> String {
    assert_eq!(output.status.code(), Some(code), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn write(dir: &Path, name: &str, text: &str) -> String {
    let file = dir.join(name);
    std::fs::write(&file, text).unwrap_or_else(|error| unreachable!("{error}"));
    file.display().to_string()
}

#[tokio::test]
async fn a_saved_answer_is_judged_with_its_reasons() {
    let dir = tempfile::tempdir().unwrap_or_else(|error| unreachable!("{error}"));
    let body = r#"{"error":{"code":"invalid_image_format","message":"m"}}"#;
    let whole = format!(
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\n\r\n{body}"
    );
    let (body, whole) = (write(dir.path(), "body.json", body), write(dir.path(), "answer.http", &whole));
    let text = told(&verdict(&["--profile", "openai", &whole]).await, 0);
    assert!(text.contains("remember  full\nclass     content\n") && text.contains(": yes"), "{text}");
    let same = told(&verdict(&["--profile", "openai", "--status", "400", "--json", &body]).await, 0);
    let same: Value = serde_json::from_str(&same).unwrap_or_else(|error| unreachable!("{error}: {same}"));
    assert_eq!((&same["remember"], &same["class"]), (&"full".into(), &"content".into()));
    let later = told(&verdict(&["--profile", "openai", "--header", "Retry-After: 5", &whole]).await, 0);
    assert!(later.contains("remember  no\n"), "{later}");
    let by_url = write(dir.path(), "request.json", r#"{"image_url":{"url":"https://example.com/a.png"}}"#);
    let by_url = told(&verdict(&["--profile", "openai", "--request-body", &by_url, &whole]).await, 0);
    assert!(by_url.contains("class     reference\n"), "{by_url}");
    for (args, part) in [
        (&["--profile", "openia", &whole][..], "did you mean `openai`?"),
        (&["--profile", "openai", &body], "say --status"),
        (&["--profile", "openai", "/nowhere/answer"], "cannot read"),
        (&["--profile", "openai", "--profiles", "/nowhere/own.yaml", &whole], "cannot be read"),
    ] {
        let output = verdict(args).await;
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains(part), "{output:?}");
    }
}

#[tokio::test]
async fn every_line_is_answered_in_its_place() {
    let dir = tempfile::tempdir().unwrap_or_else(|error| unreachable!("{error}"));
    let good = r#"{"profile":"openai","status":400,"body":{"error":{"code":"invalid_image_format"}}}"#;
    let all = write(dir.path(), "good", &format!("{good}\n{good}\n"));
    assert_eq!(told(&verdict(&["--batch", &all]).await, 0).lines().count(), 2);
    let broken = write(dir.path(), "broken", &format!("{good}\nno\n{good}\n"));
    let text = told(&verdict(&["--batch", &broken]).await, 2);
    let lines: Vec<_> = text.lines().collect();
    assert!(lines.len() == 3 && lines[1].starts_with("{\"error\":\"line 2: "), "{text}");
    assert!(lines[2].starts_with("{\"remember\":\"full\",\"class\":\"content\",\"rule\":\""), "{text}");
}

#[tokio::test]
async fn a_corpus_is_held_against_profiles() {
    let text = told(&verdict(&["--corpus", CORPUS]).await, 0);
    assert!(text.starts_with("RIGHT") && !text.contains("must not be"), "{text}");
    // A profile that remembers whatever it is told is found out.
    let dir = tempfile::tempdir().unwrap_or_else(|error| unreachable!("{error}"));
    let own = "profile: openai\nabout: believes everything\nrules:\n- rule: all\n  status: 400\n  when: [{at: /error, present: true}]\n  class: content\n  remember: full\n";
    let own = write(dir.path(), "own.yaml", own);
    let output = verdict(&["--corpus", CORPUS, "--profiles", &own, "--json"]).await;
    let json: Value = serde_json::from_str(&told(&output, 1)).unwrap_or_default();
    let wrong = json["wrong"].as_array().cloned().unwrap_or_default();
    assert!(
        wrong.len() > 3 && wrong.iter().all(|one| one["profile"] == "openai" && one["rule"] == "all"),
        "{json}"
    );
    assert!(String::from_utf8_lossy(&output.stderr).contains("that must not be"), "{output:?}");
}
