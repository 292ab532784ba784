//! A memory moves: what one gateway refused, another one replays byte for byte without asking its upstream, with the same lives
//! and tallies; nothing else comes with it, and neither a cut file nor a broken line stops the rest.
#![expect(clippy::unwrap_used, reason = "test")]

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::Duration;

use nevertwice_testkit::{
    Answer, Chaos, Client, Fault, Gateway, Redis, Reply, Request, Setup, Upstream, r400, random_document,
    sha256_hex,
};
use serde_json::{Value, json};

use crate::bench::settle;
use crate::caller::{CLASSIFY, assert_live, assert_replay, entries, entry_count, forget, submit, submit_as};

const EXPORT: &str = "/admin/v1/refusals/export";
const IMPORT: &str = "/admin/v1/refusals/import";

/// An upstream whose refusals tell the documents apart and are no text.
async fn refusing() -> Upstream {
    let upstream = Upstream::start().await;
    upstream.by(|seen, _| {
        let mut body = format!("refused, {} bytes: ", seen.body_len).into_bytes();
        body.extend(0..=255);
        Reply::status(422)
            .header("Content-Type", "text/plain; charset=\"latin1\"")
            .header("Content-Language", "de")
            .body(body)
    });
    upstream
}

fn digest(bytes: &[u8]) -> String {
    sha256_hex(&[bytes])
}

fn document(n: u64) -> Vec<u8> {
    random_document(7000 + n, 1000 + usize::try_from(n).unwrap())
}

/// Refuses the first `n` documents on this gateway; the `i`th is replayed `i` times.
async fn refuse(gateway: &Gateway, n: u64) -> Vec<Answer> {
    let mut live = Vec::new();
    for i in 0..n {
        live.push(submit(gateway, CLASSIFY).body(document(i)).send().await);
        assert_live(&live[live.len() - 1], 422);
        for tenant in 0..u8::try_from(i).unwrap() {
            let again = submit_as(gateway, 1 + tenant % 3, CLASSIFY).body(document(i)).send().await;
            assert!(again.is_hit());
        }
    }
    live
}

fn text(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

async fn export(gateway: &Gateway, more: &[&str]) -> (PathBuf, Output) {
    let path = gateway.dir().join("refusals.jsonl");
    let out = path.display().to_string();
    let output = gateway.cli(&[&["refusals", "export", "--out", &out], more].concat()).await;
    (path, output)
}

async fn exported(gateway: &Gateway) -> PathBuf {
    let (path, output) = export(gateway, &[]).await;
    assert!(output.status.success(), "{:?}", text(&output));
    path
}

/// Imports a file and returns the exit code, what became of its lines, and what was said.
async fn import(gateway: &Gateway, path: &Path) -> (Option<i32>, Value, String) {
    let file = path.display().to_string();
    let (code, out, err) = text(&gateway.cli(&["refusals", "import", &file, "--json"]).await);
    let sum = serde_json::from_str(&out).unwrap_or_else(|_| json!({ "out": out }));
    (code, sum, err)
}

fn counts(sum: &Value) -> [u64; 6] {
    ["imported", "present", "expired", "skipped", "fenced", "broken"]
        .map(|name| sum[name].as_u64().unwrap_or(u64::MAX))
}

/// The refusals in a file.
fn refusals(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().skip(1).map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// A file with these refusals.
fn file(gateway: &Gateway, like: &Path, refusals: &[Value]) -> PathBuf {
    let first = std::fs::read_to_string(like).unwrap().lines().next().unwrap().to_owned();
    let lines = refusals.iter().map(|item| format!("{item}\n")).collect::<String>();
    let path = gateway.dir().join("changed.jsonl");
    std::fs::write(&path, format!("{first}\n{lines}")).unwrap();
    path
}

#[tokio::test]
async fn another_gateway_replays_what_this_one_refused() {
    let upstream = refusing().await;
    let (a, mut b) = (Gateway::simple(&upstream.url()).await, Gateway::simple(&upstream.url()).await);
    let live = refuse(&a, 3).await;
    let path = exported(&a).await;
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let items = refusals(&path);
    assert_eq!(items.iter().map(|item| &item["replays"]).collect::<Vec<_>>(), [0, 1, 2], "in order");
    for (n, item) in items.iter().enumerate() {
        assert_eq!(item["document_sha256"], digest(&document(n as u64)), "{item}");
    }

    // The second time nothing is left to do.
    assert_eq!(upstream.calls(), 3);
    for expected in [[3, 0, 0, 0, 0, 0], [0, 3, 0, 0, 0, 0]] {
        let (code, sum, err) = import(&b, &path).await;
        assert_eq!((code, counts(&sum)), (Some(0), expected), "{sum} {err}");
        assert_eq!(entries(&b, "?sort=recent").await, entries(&a, "?sort=recent").await, "lives and tallies");
    }
    assert_eq!(entry_count(&b).await, 3);
    assert_eq!(b.log().matches("refusals imported").count(), 2, "{}", b.log());
    assert!(a.log().contains("export of all refusals begun"), "{}", a.log());
    for (n, live) in live.iter().enumerate() {
        assert_replay(live, &submit(&b, CLASSIFY).body(document(n as u64)).send().await);
    }
    // It is as durable as what was recorded here, and counted on.
    b.restart().await;
    assert_replay(&live[2], &submit_as(&b, 3, CLASSIFY).body(document(2)).send().await);
    assert_eq!(upstream.calls(), 3);
    let item = entries(&b, &format!("?document={}", digest(&document(2)))).await.remove(0);
    assert_eq!((&item["replays"], &item["tenants"]), (&json!(4), &json!(["dev_1", "dev_2", "dev_3"])));
    settle(&a, 6).await;
    settle(&b, 4).await;

    // A file that is there is not written over, and standard output will do.
    let (code, _, err) = text(&export(&a, &[]).await.1);
    assert!(code == Some(2) && err.contains("--resume"), "{err}");
    assert_eq!(refusals(&path), items);
    let (code, out, err) = text(&a.cli(&["refusals", "export", "--out", "-"]).await);
    assert_eq!((code, out.lines().count()), (Some(0), 4), "{err}");
    assert!(err.contains("3 refusals exported"), "{err}");
}

#[tokio::test]
async fn suspect_and_expired_ones_and_those_that_are_too_long_stay_behind() {
    let upstream = Upstream::start().await;
    let guard = "negative_cache:\n  mass_refusal_guard: {distinct: 3, share: 0.5, window_s: 600}";
    let a = Gateway::with(&upstream.url(), &[("UPSTREAM", guard)]).await;
    let b = Gateway::with(&upstream.url(), &[("MEMORY", "max_body_bytes: 100")]).await;
    assert_live(&submit(&a, CLASSIFY).body(document(0)).send().await, 200);
    upstream.always(r400());
    for n in 1..=3 {
        assert_live(&submit(&a, CLASSIFY).body(document(n)).send().await, 400);
    }
    let path = exported(&a).await;
    let mut items = refusals(&path);
    assert_eq!(items.iter().map(|item| &item["suspect"]).collect::<Vec<_>>(), [true, true]);
    let (code, sum, err) = import(&b, &path).await;
    assert_eq!((code, counts(&sum)), (Some(0), [0, 0, 0, 2, 0, 0]), "{err}");

    items[0]["suspect"] = false.into();
    items[0]["recorded_at"] = "2024-01-01T00:00:00Z".into();
    items[1]["suspect"] = false.into();
    let body = "x".repeat(101);
    items[1]["body_sha256"] = digest(body.as_bytes()).into();
    // What `base64` makes of it.
    items[1]["body_base64"] = format!("{}eHg=", "eHh4".repeat(33)).into();
    let (code, sum, err) = import(&b, &file(&a, &path, &items)).await;
    assert_eq!((code, counts(&sum)), (Some(0), [0, 0, 1, 1, 0, 0]), "{sum} {err}");
    assert_eq!(entry_count(&b).await, 0);
    let calls = upstream.calls();
    assert_live(&submit(&b, CLASSIFY).body(document(1)).send().await, 400);
    assert_eq!(upstream.calls(), calls + 1);
    settle(&a, 4).await;
    settle(&b, 1).await;
}

#[tokio::test]
async fn a_cut_file_is_read_as_far_as_it_goes_and_an_export_goes_on_with_it() {
    let upstream = refusing().await;
    let (a, b) = (Gateway::simple(&upstream.url()).await, Gateway::simple(&upstream.url()).await);
    let live = refuse(&a, 3).await;
    let path = exported(&a).await;
    let whole = std::fs::read(&path).unwrap();
    std::fs::write(&path, &whole[..whole.len() - 20]).unwrap();
    let (code, sum, err) = import(&b, &path).await;
    assert_eq!((code, counts(&sum)), (Some(1), [2, 0, 0, 0, 0, 1]), "{err}");
    assert_eq!(sum["broken_lines"][0]["line"], 4);
    assert!(err.contains("line 4: it is cut") && err.contains("1 line is broken"), "{err}");

    let (code, out, err) = text(&export(&a, &["--resume"]).await.1);
    assert_eq!(code, Some(0), "{err}");
    assert!(out.starts_with("1 more refusals exported, 3 in all"), "{out}");
    let again = std::fs::read(&path).unwrap();
    assert!(again == whole, "{}", String::from_utf8_lossy(&again));
    let (code, sum, err) = import(&b, &path).await;
    assert_eq!((code, counts(&sum)), (Some(0), [1, 2, 0, 0, 0, 0]), "{err}");
    for (n, live) in live.iter().enumerate() {
        assert_replay(live, &submit(&b, CLASSIFY).body(document(n as u64)).send().await);
    }
    assert_eq!(upstream.calls(), 3);

    // Going on with a whole file adds what is new, and a file of another gateway is none to go on with.
    submit(&a, CLASSIFY).body(document(3)).send().await;
    let (code, out, _) = text(&export(&a, &["--resume", "--json"]).await.1);
    assert_eq!((code, out.trim()), (Some(0), r#"{"exported":1,"in_file":4}"#));
    assert_eq!(refusals(&path).len(), 4);
    let out = path.display().to_string();
    let (code, _, err) = text(&b.cli(&["refusals", "export", "--resume", "--out", &out]).await);
    assert!(code == Some(2) && err.contains("comes from http://"), "{err}");
    settle(&a, 7).await;
    settle(&b, 3).await;
}

#[tokio::test]
async fn nothing_of_a_broken_line_is_imported_and_the_rest_is() {
    let upstream = refusing().await;
    let (a, b) = (Gateway::simple(&upstream.url()).await, Gateway::simple(&upstream.url()).await);
    let live = refuse(&a, 3).await;
    let path = exported(&a).await;
    let items = refusals(&path);
    let with = |name: &str, value: Value| {
        let mut item = items[1].clone();
        item[name] = value;
        item
    };
    let mut lines = vec![items[0].clone()];
    let broken = [
        (with("status", json!(404)), "`status`: 404 is never remembered"),
        (with("status", json!(429)), "`status`: 429 is never remembered"),
        (with("status", json!(503)), "`status`: 503 is not a 4xx"),
        (with("schema", json!(2)), "schema 2: this version knows 1"),
        (with("fingerprint", json!("ab")), "`fingerprint`: "),
        (with("upstream", json!("../ocr")), "`upstream`: a name has"),
        (with("body_base64", json!("%%")), "`body_base64`: this is no base64"),
        (with("body_base64", json!("b3RoZXI=")), "the body is not the one whose SHA-256"),
        (with("status_text", json!("gone")), "unknown field `status_text`"),
        (json!({}), "missing field"),
        (json!("{"), "it is no JSON object"),
    ];
    lines.extend(broken.iter().map(|(item, _)| item.clone()));
    lines.push(items[2].clone());
    let (code, sum, err) = import(&b, &file(&a, &path, &lines)).await;
    assert_eq!((code, counts(&sum)), (Some(1), [2, 0, 0, 0, 0, broken.len() as u64]), "{sum} {err}");
    for (n, (_, why)) in broken.iter().enumerate() {
        let told = &sum["broken_lines"][n];
        assert_eq!(told["line"], n + 3, "{sum}");
        assert!(told["reason"].as_str().unwrap().contains(why), "{why}: {told}");
        assert!(err.lines().any(|line| line.starts_with(&format!("line {}: ", n + 3))), "{err}");
    }
    assert!(err.contains(&format!("{} lines are broken", broken.len())), "{err}");
    // The one whose lines were broken goes upstream, the others do not.
    assert_replay(&live[0], &submit(&b, CLASSIFY).body(document(0)).send().await);
    assert_replay(&live[2], &submit(&b, CLASSIFY).body(document(2)).send().await);
    assert_eq!(upstream.calls(), 3);
    assert_live(&submit(&b, CLASSIFY).body(document(1)).send().await, 422);
    assert_eq!(upstream.calls(), 4);

    // What is no export is no input.
    std::fs::write(&path, "{\"error\":\"unreadable page\"}\n").unwrap();
    for file in [path, a.dir().join("nothing")] {
        let (code, _, err) = import(&b, &file).await;
        assert_eq!(code, Some(2), "{err}");
    }
    settle(&a, 6).await;
    settle(&b, 3).await;
}

#[tokio::test]
async fn what_is_forgotten_while_an_import_runs_stays_forgotten() {
    let upstream = refusing().await;
    let (a, b) = (Gateway::simple(&upstream.url()).await, Gateway::simple(&upstream.url()).await);
    refuse(&a, 3).await;
    let (status, page) = a.admin_get(&format!("{EXPORT}?limit=2")).await;
    assert_eq!((status, page["items"].as_array().map(Vec::len), &page["entries"]), (200, Some(2), &json!(3)));
    let cursor = page["items"][0]["cursor"].as_str().unwrap();
    let (_, rest) = a.admin_get(&format!("{EXPORT}?cursor={cursor}")).await;
    assert_eq!((&rest["items"][0], &rest["next_cursor"]), (&page["items"][1], &Value::Null));
    let items = json!([page["items"][0], rest["items"][0], rest["items"][1]]);

    let (status, first) = b.admin_post(IMPORT, &json!({ "items": [items[0]] })).await;
    assert_eq!(
        (
            status,
            counts(&json!({ "broken": 0, "imported": first["imported"], "present": first["present"],
        "expired": first["expired"], "skipped": first["skipped"], "fenced": first["fenced"] }))
        ),
        (200, [1, 0, 0, 0, 0, 0])
    );
    // One that has come, and one that has not.
    for n in 0..2 {
        let gone = forget(&b, &json!({ "document": digest(&document(n)) })).await;
        assert_eq!(gone, u64::from(n == 0));
    }
    let rest = json!({ "items": items, "fence": first["fence"] });
    let (status, answer) = b.admin_post(IMPORT, &rest).await;
    assert_eq!((status, &answer["imported"], &answer["fenced"]), (200, &json!(1), &json!(2)), "{answer}");
    assert_eq!(answer["fence"], first["fence"]);
    // An operator who imports again wants it back.
    let (status, answer) = b.admin_post(IMPORT, &json!({ "items": items })).await;
    assert_eq!((status, &answer["imported"], &answer["present"]), (200, &json!(2), &json!(1)), "{answer}");

    let many = vec![json!({}); 1001];
    for (body, part) in [
        (json!({ "items": [], "fence": "99999" }), "`fence`"),
        (json!({ "items": [], "fence": "x" }), "`fence`"),
        (json!({ "items": many }), "more than 1000"),
        (json!({ "item": [] }), "unknown field"),
        (json!({}), "missing field"),
    ] {
        let (status, problem) = b.admin_post(IMPORT, &body).await;
        assert_eq!((status, &problem["code"]), (400, &json!("BAD_REQUEST")), "{problem}");
        assert!(problem["detail"].as_str().unwrap().contains(part), "{part}: {problem}");
    }
    let long = Request::post(IMPORT).body(vec![b' '; (24 << 20) + 1]);
    let answer = b.admin_request(long).await;
    assert_eq!((answer.status, &answer.json()["code"]), (413, &json!("BODY_TOO_LARGE")));
    for (query, part) in [("limit=1001", "1000"), ("cursor=abc", "next_cursor"), ("upstream=x", "unknown")] {
        let (status, problem) = a.admin_get(&format!("{EXPORT}?{query}")).await;
        assert!(status == 400 && problem["detail"].as_str().unwrap().contains(part), "{query}: {problem}");
    }
    settle(&a, 6).await;
    settle(&b, 0).await;
}

#[tokio::test]
async fn nobody_exports_or_imports_without_the_token() {
    let upstream = refusing().await;
    let yaml = Gateway::simple_yaml(&upstream.url(), &[]);
    let plain = "admin:\n  listen: \"@ADMIN@\"\n";
    assert!(yaml.contains(plain));
    let yaml = yaml.replace(plain, "admin: {listen: \"@ADMIN@\", token: env:ADMIN_TOKEN}\n");
    let gateway = Setup::new(&yaml).env("ADMIN_TOKEN", "s3cret").admin_token("s3cret").start().await;
    refuse(&gateway, 1).await;
    for request in [Request::get(EXPORT), Request::post(IMPORT).body("{\"items\":[]}")] {
        let answer = Client::connect(gateway.admin).await.request(request).await;
        assert_eq!(answer.status, 401, "{}", answer.text());
    }
    let path = exported(&gateway).await;
    let (code, sum, err) = import(&gateway, &path).await;
    assert_eq!((code, counts(&sum)), (Some(0), [0, 1, 0, 0, 0, 0]), "{err}");
    settle(&gateway, 1).await;
}

#[tokio::test]
async fn thousands_move_from_an_embedded_store_to_redis_in_their_order() {
    const MANY: usize = 2500;
    let (upstream, redis) = (refusing().await, Redis::start());
    let yaml = Gateway::simple_yaml(&upstream.url(), &[]);
    let embedded = "embedded:\n    path: \"@DIR@/data\"";
    assert!(yaml.contains(embedded));
    let shared = format!("redis:\n    url: \"{}\"\n    read_ms: 2000\n    write_ms: 2000", redis.url());
    let (a, b) = (Gateway::start(&yaml).await, Gateway::start(&yaml.replace(embedded, &shared)).await);
    let live = refuse(&a, 3).await;
    let path = exported(&a).await;
    let mut items = refusals(&path);
    for n in 0..MANY {
        let mut item = items[1].clone();
        item["fingerprint"] = digest(&n.to_le_bytes()).into();
        item["document_sha256"] = digest(&n.to_be_bytes()).into();
        item["replays"] = (n + 1).into();
        items.push(item);
    }
    let told = |items: &[Value]| -> Vec<Value> {
        let without_place = |item: &Value| {
            let mut item = item.clone();
            item["cursor"] = Value::Null;
            item
        };
        items.iter().map(without_place).collect()
    };
    let all = file(&a, &path, &items);
    for (gateway, before) in [(&a, 3), (&b, 0)] {
        let (code, sum, err) = import(gateway, &all).await;
        let expected = [MANY as u64 + 3 - before, before, 0, 0, 0, 0];
        assert_eq!((code, counts(&sum)), (Some(0), expected), "{err}");
        let path = gateway.dir().join("all.jsonl").display().to_string();
        let output = gateway.cli(&["refusals", "export", "--out", &path]).await;
        assert!(output.status.success(), "{:?}", text(&output));
        let moved = refusals(Path::new(&path));
        assert!(told(&moved) == told(&items), "the same, in the same order");
    }
    for (n, live) in live.iter().enumerate() {
        assert_replay(live, &submit(&b, CLASSIFY).body(document(n as u64)).send().await);
    }
    assert_eq!(upstream.calls(), 3);
    settle(&a, 6).await;
    settle(&b, 3).await;
}

#[tokio::test]
async fn slow_an_import_gets_to_its_end_through_a_redis_that_is_far_away() {
    const MANY: usize = 400;
    let (upstream, redis) = (refusing().await, Redis::start());
    let chaos = Chaos::start(redis.addr()).await;
    let yaml = Gateway::simple_yaml(&upstream.url(), &[]);
    let embedded = "embedded:\n    path: \"@DIR@/data\"";
    let shared =
        format!("redis:\n    url: \"redis://{}\"\n    read_ms: 2000\n    write_ms: 2000", chaos.addr());
    let gateway = Gateway::start(&yaml.replace(embedded, &shared)).await;
    refuse(&gateway, 1).await;
    let path = exported(&gateway).await;
    let one = refusals(&path).remove(0);
    let another = |n: usize| {
        let mut item = one.clone();
        item["fingerprint"] = digest(&n.to_le_bytes()).into();
        item
    };
    let mut items: Vec<_> = (0..MANY).map(another).collect();
    items[MANY - 1]["status"] = 500.into();
    let all = file(&gateway, &path, &items);
    // more than a request may take for all of them
    chaos.set(Fault::Late(Duration::from_millis(15)));
    let (code, sum, err) = import(&gateway, &all).await;
    assert_eq!((code, counts(&sum)), (Some(1), [MANY as u64 - 1, 0, 0, 0, 0, 1]), "{err}");
    assert_eq!(sum["broken_lines"][0]["line"], MANY + 1, "{sum}");
    chaos.set(Fault::None);
    let path = gateway.dir().join("all.jsonl").display().to_string();
    let output = gateway.cli(&["refusals", "export", "--out", &path]).await;
    assert!(output.status.success(), "{:?}", text(&output));
    let moved = refusals(Path::new(&path));
    let fingerprints =
        |items: &[Value]| items.iter().map(|item| item["fingerprint"].clone()).collect::<Vec<_>>();
    assert_eq!(fingerprints(&moved[1..]), fingerprints(&items[..MANY - 1]));
    settle(&gateway, 1).await;
}
