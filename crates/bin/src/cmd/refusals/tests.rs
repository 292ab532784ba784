#![expect(clippy::unwrap_used, reason = "test")]

use std::io::Write as _;

use clap::Parser;
use serde_json::json;

use super::*;
use crate::admin_client::tests::canned;

/// The command as `main` has it.
#[derive(Parser, Debug)]
struct Cli {
    #[command(flatten)]
    refusals: Refusals,
}

fn parse(line: &str) -> Result<Command, String> {
    let words = std::iter::once("refusals").chain(line.split_whitespace());
    Cli::try_parse_from(words).map(|cli| cli.refusals.command).map_err(|e| {
        assert_eq!(e.exit_code(), 2);
        e.to_string()
    })
}

fn a_list(line: &str) -> list::List {
    match parse(line).unwrap() {
        Command::List(list) => list,
        other => unreachable!("{other:?}"),
    }
}

fn a_forget(line: &str) -> forget::Forget {
    match parse(line).unwrap() {
        Command::Forget(forget) => forget,
        other => unreachable!("{other:?}"),
    }
}

fn item() -> Value {
    json!({
        "fingerprint": "ab".repeat(32), "document_sha256": "cd".repeat(32), "documents": 1, "document_bytes": 1001,
        "upstream": "ocr", "status": 400, "rule": "status", "suspect": false, "reduced": false, "replays": 3019,
        "first_refused_at": "2023-11-14T22:13:20.123Z",
        "first_replayed_at": "2023-11-14T22:13:21.500Z", "last_replayed_at": "2023-11-14T22:14:00.000Z",
        "expires_at": "2023-11-15T22:13:20.123Z", "ttl_s": 86400, "refused_tenant": "a",
        "tenants": ["b", "a", "c", "d", "e"], "content_type": "application/json", "body_bytes": 32,
    })
}

fn at(text: &str) -> Millis {
    parse_rfc3339(text).unwrap()
}

#[test]
fn a_forget_says_what_it_means() {
    let hex = "ab".repeat(32);
    let upstream = a_forget("forget --upstream ocr --status 422 --before 2026-01-31T13:00:00+01:00");
    assert_eq!(
        upstream.body(None),
        json!({ "upstream": "ocr", "status": 422, "before": "2026-01-31T12:00:00.000Z" })
    );
    assert_eq!(a_forget("forget --all --yes").body(None), json!({ "all": true }));
    let one = a_forget(&format!("forget {}", hex.to_uppercase()));
    assert_eq!(one.fingerprint.as_deref(), Some(hex.as_str()));
    assert_eq!(one.body(one.fingerprint.clone()), json!({ "fingerprint": hex }));
    for (line, part) in [
        ("forget", "required"),
        ("forget --json", "required"),
        ("forget --all", "--yes"),
        ("forget --yes", "required"),
        ("forget --all --yes --status 400", "cannot be used with"),
        ("forget --status 404", "never remembered"),
        ("forget --status 202", "not a 4xx status"),
        ("forget --status many", "a status is a number"),
        ("forget --before yesterday", "2026-01-31T12:00:00Z"),
        ("forget --document /no/such/file", "neither 64 hex digits nor a file"),
        ("forget --upstream a/b", "1 to 64 characters"),
        ("forget abc", "64 hex digits"),
        ("show", "required"),
        ("show abcdabcd --json --body", "cannot be used with"),
        ("list --limit 0", "0 is not in"),
        ("list --sort age", "replays, recent"),
    ] {
        let told = parse(line).unwrap_err();
        assert!(told.contains(part), "{line}: {told}");
    }
}

#[test]
fn a_file_stands_for_its_document() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    let document = vec![7; 200_000];
    file.write_all(&document).unwrap();
    let digest = DocumentDigest::of(&document);
    let path = file.path().to_str().unwrap();
    assert_eq!(a_document(path), Ok(digest));
    assert_eq!(a_list(&format!("list --document {path}")).document, Some(digest));
    assert_eq!(a_document(&digest.to_string()), Ok(digest));
}

#[test]
fn the_table_can_be_searched_for_a_document() {
    let now = at("2023-11-14T22:13:30Z");
    let other = |json| Item::read(&json).unwrap();
    let items = [
        other(item()),
        other(json!({ "suspect": true })),
        other(json!({ "reduced": true, "status": 422 })),
        other(json!({ "reduced": true, "suspect": true, "status": 200 })),
    ];
    let text = list::table(&items, false, now);
    let lines: Vec<_> = text.lines().collect();
    assert!(lines[0].starts_with("REPLAYS  STATUS"), "{text}");
    assert_eq!(
        lines[1].split_whitespace().collect::<Vec<_>>(),
        [
            "3019",
            "400",
            "ocr",
            &"cd".repeat(32),
            "abababababab",
            "2023-11-14T22:13:20Z",
            "2023-11-14T22:14:00Z",
            "23h",
            "59m",
            "a,",
            "b,",
            "c,",
            "d",
            "+1"
        ]
    );
    assert!(lines[2].contains("(suspect)") && !lines[2].contains("reduced"), "{text}");
    assert!(lines[3].contains("422 (reduced)") && lines[4].contains("200 (suspect, reduced)"), "{text}");
    let wide = list::table(&items, true, now);
    assert!(wide.contains(&"ab".repeat(32)) && wide.contains("a, b, c, d, e"), "{wide}");
}

#[test]
fn one_refusal_is_shown_with_its_body() {
    let mut shown = item();
    shown["body_text"] = "{\"error\":\n\"broken \u{1b}[2J\"}\n".into();
    shown["scope"] = "fleet".into();
    let text = show::text(&shown, at("2023-11-14T22:13:30Z")).unwrap();
    for part in [
        "fingerprint      abab",
        "document         1001 bytes\n",
        "refused          2023-11-14T22:13:20Z, to a\n",
        "replays          3019, from 2023-11-14T22:13:21Z to 2023-11-14T22:14:00Z, to b, a, c, d, e\n",
        "expires          2023-11-15T22:13:20Z (in 23h 59m)\n",
        "body             32 bytes\n\n{\"error\":\n\"broken \\u{1b}[2J\"}",
    ] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
    assert!(!text.contains("suspect") && !text.contains("generation"), "{text}");
    shown["reduced"] = true.into();
    let text = show::text(&shown, Millis(0)).unwrap();
    assert!(text.contains("reduced          the body was too long to keep: "), "{text}");
    shown["body_text"] = Value::Null;
    assert!(show::text(&shown, Millis(0)).unwrap().ends_with("(not text: --body writes it as it is)"));
}

#[test]
fn a_list_asks_for_what_was_said() {
    let list = a_list("list --limit 1200 --tenant t --sort recent");
    assert_eq!(list.parameters(), [("tenant", "t".to_owned()), ("sort", "recent".to_owned())]);
    assert_eq!(list.limit, 1200);
}

#[tokio::test]
async fn the_beginning_of_a_fingerprint_will_do() {
    let list = |all: &[&str]| {
        let items: Vec<_> = all.iter().map(|f| json!({ "fingerprint": f.repeat(16) })).collect();
        json!({ "items": items, "next_cursor": null })
    };
    let (client, _server) = canned(vec![list(&["abcd", "abce"])]).await;
    assert_eq!(whole_fingerprint(&client, "abcdABCD").await.unwrap(), "abcd".repeat(16));
    let (client, _server) = canned(vec![list(&["abcd", "abcd"])]).await;
    assert_eq!(whole_fingerprint(&client, "abcdabcd").await.unwrap_err().code, 2);
    let (client, _server) = canned(vec![list(&["abcd"])]).await;
    assert_eq!(whole_fingerprint(&client, "00000000").await.unwrap_err().code, 1);
}
