//! The audit is evidence: one parsable line per request whatever clients send and whatever happens to the file, lines that
//! could not be written are counted, and traffic never waits for it.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use nevertwice_testkit::{Client, DOC, Gateway, Part, Reply, Request, Setup, Upstream, multipart, r400};
use serde_json::Value;
use tokio::task::JoinSet;

use crate::bench::{assert_own, post, settle};
use crate::caller::{CLASSIFY, until};
use crate::tiny_disk::Tiny;

const SOON: Duration = Duration::from_secs(10);

/// Sends that many requests on one connection and returns the slowest one's time; all of them are served.
async fn send(gateway: &Gateway, count: usize) -> Duration {
    let mut client = Client::connect(gateway.addr).await;
    let mut slowest = Duration::ZERO;
    for _ in 0..count {
        let began = Instant::now();
        let answer =
            client.request(Request::get("/doc-classifier/some/path/that/makes/a/line").bearer("tok-1")).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        slowest = slowest.max(began.elapsed());
    }
    slowest
}

/// The lines of a file; every one parses and the last one is whole.
fn lines(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap_or_else(|error| unreachable!("{}: {error}", path.display()));
    assert!(text.is_empty() || text.ends_with('\n'), "a half line at the end of {}", path.display());
    let parse = |line| serde_json::from_str(line).unwrap_or_else(|error| unreachable!("{error}: {line:?}"));
    text.lines().map(parse).collect()
}

/// How many requests the lines speak of; none may stand twice.
fn distinct(lines: &[Value]) -> usize {
    let ids: HashSet<&str> = lines.iter().filter_map(|line| line["trace_id"].as_str()).collect();
    assert_eq!(ids.len(), lines.len());
    ids.len()
}

async fn wait_lines(path: &Path, count: usize) -> Vec<Value> {
    let enough = || {
        let text = fs::read_to_string(path).unwrap_or_default();
        std::future::ready((text.matches('\n').count() >= count).then_some(()))
    };
    until("the audit's lines", SOON, enough).await;
    let lines = lines(path);
    assert_eq!(lines.len(), count, "{lines:#?}");
    lines
}

/// What was written and what was dropped, once both together are this many.
async fn accounted(gateway: &Gateway, total: usize) -> (usize, usize) {
    let both = async || {
        let written = gateway.metric("gateway_audit_lines_total", &[]).await as usize;
        let dropped = gateway.metric("gateway_audit_dropped_total", &[]).await as usize;
        (written + dropped >= total).then_some((written, dropped))
    };
    let (written, dropped) = until("every line to be accounted for", SOON, both).await;
    assert_eq!(written + dropped, total);
    (written, dropped)
}

fn yaml(upstream: &Upstream, audit: &str) -> String {
    let yaml = Gateway::simple_yaml(&upstream.url(), &[]);
    let plain = "audit:\n  file: \"@DIR@/audit.jsonl\"\n";
    assert!(yaml.contains(plain), "{yaml}");
    yaml.replace(plain, &format!("audit: {audit}\n"))
}

#[tokio::test]
async fn ob_01_slow_a_full_disk_delays_lines_then_drops_and_counts_them_and_traffic_goes_on() {
    let Some(disk) = Tiny::mount(16 << 10) else { return };
    let upstream = Upstream::start().await;
    let (file, filler) = (disk.path("audit.jsonl"), disk.path("filler"));
    let fill = || {
        // All that is left; that the last bytes do not fit is the point.
        let _ = fs::write(&filler, vec![0; 16 << 20]);
    };
    let gateway = Gateway::start(&yaml(&upstream, &format!("{{file: \"{}\"}}", file.display()))).await;
    send(&gateway, 10).await;
    wait_lines(&file, 10).await;
    fill();
    let slowest = send(&gateway, 300).await;
    assert!(slowest < Duration::from_secs(1), "{slowest:?}");
    let failing = async || (gateway.metric("gateway_audit_errors_total", &[]).await > 0.0).then_some(());
    until("the disk to be full", SOON, failing).await;
    assert_eq!(
        gateway.log().matches("audit lines cannot be written").count(),
        1,
        "said once: {}",
        gateway.log()
    );
    // Room again: what waited is written, in order, with no line joined to a half one.
    fs::remove_file(&filler).unwrap_or_else(|error| unreachable!("{error}"));
    assert_eq!(accounted(&gateway, 310).await, (310, 0));
    assert_eq!(distinct(&lines(&file)), 310);

    // So long that no more can be kept: the rest is dropped and counted, and nobody waits.
    fill();
    let mut senders = JoinSet::new();
    for _ in 0..4 {
        let addr = gateway.addr;
        senders.spawn(async move {
            let mut client = Client::connect(addr).await;
            let path = format!("/doc-classifier/{}", "p".repeat(3_000));
            for _ in 0..1_100 {
                let began = Instant::now();
                assert_eq!(client.request(Request::get(&path).bearer("tok-1")).await.status, 200);
                assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
            }
        });
    }
    senders.join_all().await;
    let dropping = async || (gateway.metric("gateway_audit_dropped_total", &[]).await > 0.0).then_some(());
    until("lines to be dropped", SOON, dropping).await;
    fs::remove_file(&filler).unwrap_or_else(|error| unreachable!("{error}"));
    let (written, dropped) = accounted(&gateway, 4_710).await;
    assert!(dropped > 0 && dropped < 4_400, "{dropped}");
    assert_eq!(distinct(&lines(&file)), written, "the counter of dropped lines equals the gap");
    assert_eq!(upstream.calls(), 4_710);
}

#[tokio::test]
async fn ob_01_a_full_file_that_is_cut_by_hand_holds_nothing_but_lines() {
    let Some(disk) = Tiny::mount(96) else { return };
    let upstream = Upstream::start().await;
    let file = disk.path("audit.jsonl");
    let gateway = Gateway::start(&yaml(&upstream, &format!("{{file: \"{}\"}}", file.display()))).await;
    let seen = std::cell::Cell::new(0);
    send(&gateway, 1_000).await;
    // More waits than there is room for: the disk fills up again and again, until all has gone through it.
    until("all lines to have gone through the file", SOON, async || {
        let full = fs::metadata(&file).is_ok_and(|found| found.len() > 60 << 10);
        let written = gateway.metric("gateway_audit_lines_total", &[]).await as usize;
        if full || written == 1_000 {
            let bytes = fs::read(&file).unwrap_or_default();
            assert!(!bytes.contains(&0), "zero bytes in the audit");
            let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
            for line in String::from_utf8_lossy(&bytes[..whole]).lines() {
                assert!(serde_json::from_str::<Value>(line).is_ok(), "{line}");
                seen.set(seen.get() + 1);
            }
            assert!(fs::OpenOptions::new().write(true).truncate(true).open(&file).is_ok());
        }
        (written == 1_000).then_some(())
    })
    .await;
    // What was written between the look and the cut is gone with the cut.
    assert!(seen.get() > 500, "{}", seen.get());
    assert_eq!(accounted(&gateway, 1_000).await, (1_000, 0));
}

#[tokio::test]
async fn ob_01_on_full_refuse_serves_nothing_that_cannot_be_audited() {
    let Some(disk) = Tiny::mount(1 << 10) else { return };
    let upstream = Upstream::start().await;
    let (file, filler) = (disk.path("audit.jsonl"), disk.path("filler"));
    let audit = format!("{{file: \"{}\", on_full: refuse}}", file.display());
    let gateway = Gateway::start(&yaml(&upstream, &audit)).await;
    let sent = std::cell::Cell::new(0);
    let ask = async || {
        sent.set(sent.get() + 1);
        let request = Request::get(&format!("/doc-classifier/{}", "p".repeat(2_000))).bearer("tok-1");
        Client::connect(gateway.addr).await.request(request).await
    };
    for free in ["room", "cut", "remove"] {
        // All that is left, or so much that the audit itself fills the rest; that the last bytes do not fit is the point.
        let _ = fs::write(&filler, vec![0; if free == "room" { 1 << 20 } else { 896 << 10 }]);
        let refused = async || {
            for _ in 0..20 {
                let answer = ask().await;
                if answer.status != 200 {
                    return Some(answer);
                }
            }
            None
        };
        let answer = until("the disk to be full", SOON, refused).await;
        assert_own(&answer, 503, "AUDIT_UNAVAILABLE", free);
        assert!(answer.header("retry-after").is_some(), "{free}");
        let calls = upstream.calls();
        assert_eq!((ask().await.status, upstream.calls()), (503, calls), "{free}: nothing goes up");
        assert!(gateway.is_ready().await, "{free}");
        match free {
            "room" => fs::remove_file(&filler).unwrap_or_else(|error| unreachable!("{error}")),
            "cut" => {
                let cut = fs::OpenOptions::new().write(true).truncate(true).open(&file);
                assert!(cut.is_ok(), "{cut:?}");
            }
            _ => fs::remove_file(&file).unwrap_or_else(|error| unreachable!("{error}")),
        }
        let served = async || (ask().await.status == 200).then_some(());
        until("service to come back by itself", SOON, served).await;
        wait_parsable(&file).await;
        if free == "room" {
            // Nobody was served, or refused, without a line.
            assert_eq!(accounted(&gateway, sent.get()).await, (sent.get(), 0));
            assert_eq!(distinct(&lines(&file)), sent.get());
        }
    }
}

/// Waits for the first line of a new file, and looks at all.
async fn wait_parsable(file: &Path) {
    let some = || std::future::ready(fs::metadata(file).is_ok_and(|found| found.len() > 0).then_some(()));
    until("a line in the new file", SOON, some).await;
    assert!(!lines(file).is_empty());
}

#[tokio::test]
async fn ob_01_a_disk_that_blocks_slows_nothing_and_does_not_hold_up_the_stop() {
    let upstream = Upstream::start().await;
    let dir = tempfile::tempdir().unwrap_or_else(|error| unreachable!("{error}"));
    let pipe = dir.path().join("pipe");
    let made = Command::new("mkfifo").arg(&pipe).status();
    assert!(made.is_ok_and(|status| status.success()));
    // A pipe that nobody reads takes 64 KiB and then blocks its writer for good.
    let mut gateway = Gateway::start(&yaml(&upstream, &format!("{{file: \"{}\"}}", pipe.display()))).await;
    let slowest = send(&gateway, 600).await;
    assert!(slowest < Duration::from_secs(1), "{slowest:?}");
    assert_eq!(post(&gateway, CLASSIFY, &DOC[..]).await.status, 200);
    assert!(gateway.is_ready().await);
    gateway.signal("TERM");
    let status = gateway.wait_exit(Duration::from_secs(15)).await;
    assert_eq!(status.code(), Some(0), "{}", gateway.log());
}

#[tokio::test]
async fn ob_01_a_device_that_fails_every_write_costs_lines_and_says_how_many() {
    let upstream = Upstream::start().await;
    let mut gateway = Gateway::start(&yaml(&upstream, "{file: /dev/full}")).await;
    let slowest = send(&gateway, 50).await;
    assert!(slowest < Duration::from_secs(1), "{slowest:?}");
    let failing = async || (gateway.metric("gateway_audit_errors_total", &[]).await > 0.0).then_some(());
    until("the failure to be counted", SOON, failing).await;
    assert_eq!(gateway.metric("gateway_audit_lines_total", &[]).await, 0.0);
    gateway.signal("TERM");
    assert_eq!(gateway.wait_exit(SOON).await.code(), Some(0), "{}", gateway.log());
    let log = gateway.log();
    assert!(
        log.lines().any(|line| line.contains("audit lines are lost") && line.contains("lines=50")),
        "{log}"
    );
}

#[tokio::test]
async fn ob_01_a_directory_that_vanishes_is_counted_and_a_new_one_taken() {
    let upstream = Upstream::start().await;
    let dir = tempfile::tempdir().unwrap_or_else(|error| unreachable!("{error}"));
    let folder = dir.path().join("logs");
    fs::create_dir(&folder).unwrap_or_else(|error| unreachable!("{error}"));
    let file = folder.join("audit.jsonl");
    let gateway = Gateway::start(&yaml(&upstream, &format!("{{file: \"{}\"}}", file.display()))).await;
    send(&gateway, 3).await;
    wait_lines(&file, 3).await;
    fs::remove_dir_all(&folder).unwrap_or_else(|error| unreachable!("{error}"));
    gateway.signal("USR1");
    send(&gateway, 5).await;
    let failing = async || (gateway.metric("gateway_audit_errors_total", &[]).await > 0.0).then_some(());
    until("the failure to be counted", SOON, failing).await;
    fs::create_dir(&folder).unwrap_or_else(|error| unreachable!("{error}"));
    send(&gateway, 2).await;
    // What waited is there, and nothing is lost.
    wait_lines(&file, 7).await;
    assert_eq!(accounted(&gateway, 10).await, (10, 0));
    assert!(gateway.log().contains("audit lines are written again"), "{}", gateway.log());
}

#[tokio::test]
async fn ob_02_a_file_that_is_moved_or_removed_is_left_for_a_new_one() {
    let upstream = Upstream::start().await;
    let dir = tempfile::tempdir().unwrap_or_else(|error| unreachable!("{error}"));
    let file = dir.path().join("audit.jsonl");
    fs::write(&file, "{\"torn\":tr").unwrap_or_else(|error| unreachable!("{error}"));
    let gateway = Gateway::start(&yaml(&upstream, &format!("{{file: \"{}\"}}", file.display()))).await;
    send(&gateway, 2).await;
    let text = async || {
        let text = fs::read_to_string(&file).unwrap_or_default();
        (text.lines().count() >= 3).then_some(text)
    };
    let text = until("two lines after the torn one", SOON, text).await;
    assert!(text.starts_with("{\"torn\":tr\n{\"ts\":"), "a line left half by a crash is closed: {text}");

    // Moved, and told.
    let moved = dir.path().join("audit.jsonl.old");
    fs::rename(&file, &moved).unwrap_or_else(|error| unreachable!("{error}"));
    gateway.signal("USR1");
    until("the new file", SOON, || std::future::ready(file.exists().then_some(()))).await;
    send(&gateway, 4).await;
    wait_lines(&file, 4).await;
    assert_eq!(fs::read_to_string(&moved).unwrap_or_default(), text, "nothing more goes to the old one");
    let mode = fs::metadata(&file).map(|found| found.permissions().mode() & 0o777);
    assert!(matches!(mode, Ok(0o600)), "{mode:?}");

    // Moved or removed, and not told: noticed within 5 s.
    for remove in [false, true] {
        if remove {
            fs::remove_file(&file).unwrap_or_else(|error| unreachable!("{error}"));
        } else {
            fs::rename(&file, dir.path().join("again")).unwrap_or_else(|error| unreachable!("{error}"));
        }
        let began = Instant::now();
        until("a new file without being told", SOON, async || {
            send(&gateway, 1).await;
            fs::metadata(&file).is_ok_and(|found| found.len() > 0).then_some(())
        })
        .await;
        assert!(began.elapsed() < Duration::from_secs(6), "{:?}", began.elapsed());
        assert!(!lines(&file).is_empty());
    }
    let sent = upstream.calls() as usize;
    assert_eq!(accounted(&gateway, sent).await, (sent, 0), "no line was lost but those in the removed file");
}

#[tokio::test]
async fn ob_02_rotation_by_size_keeps_lines_whole_and_files_few() {
    let upstream = Upstream::start().await;
    let dir = tempfile::tempdir().unwrap_or_else(|error| unreachable!("{error}"));
    let file = dir.path().join("audit.jsonl");
    let audit = format!("{{file: \"{}\", rotate_bytes: 4096, keep: 2}}", file.display());
    let gateway = Gateway::start(&yaml(&upstream, &audit)).await;
    let mut sent = 0;
    while !dir.path().join("audit.jsonl.2").exists() {
        send(&gateway, 5).await;
        sent += 5;
        accounted(&gateway, sent).await;
        assert!(sent < 500, "no rotation");
    }
    // The first rotated files are all there still: nothing is lost or told twice.
    let names = ["audit.jsonl", "audit.jsonl.1", "audit.jsonl.2"];
    let all: Vec<Value> = names.iter().flat_map(|name| lines(&dir.path().join(name))).collect();
    let distinct: HashSet<&str> = all.iter().filter_map(|line| line["trace_id"].as_str()).collect();
    assert_eq!((all.len(), distinct.len()), (sent, sent));
    send(&gateway, 100).await;
    assert_eq!(accounted(&gateway, sent + 100).await.1, 0);
    let mut found: Vec<String> = fs::read_dir(dir.path())
        .map(|entries| {
            entries.filter_map(|e| Some(e.ok()?.file_name().to_string_lossy().into_owned())).collect()
        })
        .unwrap_or_default();
    found.sort();
    assert_eq!(found, names);
    for name in names {
        let path = dir.path().join(name);
        let size = fs::metadata(&path).map(|found| found.len()).unwrap_or_default();
        assert!(size <= 4096 && !lines(&path).is_empty(), "{name}: {size}");
    }
}

#[tokio::test]
async fn ob_02_an_audit_that_cannot_be_opened_is_a_refusal_to_start() {
    let upstream = Upstream::start().await;
    for path in ["@DIR@/missing/audit.jsonl", "@DIR@", "/proc/audit.jsonl"] {
        let reason = Setup::new(&yaml(&upstream, &format!("{{file: \"{path}\"}}"))).try_start().await;
        let reason = reason.err().unwrap_or_default();
        assert!(
            reason.contains("exit status: 1") && reason.contains("cannot open the audit"),
            "{path}: {reason}"
        );
        assert!(reason.contains(path.trim_start_matches("@DIR@")), "{path}: {reason}");
    }
    // On standard output it is the same lines.
    let gateway = Gateway::start(&yaml(&upstream, "{stdout: true}")).await;
    send(&gateway, 2).await;
    accounted(&gateway, 2).await;
    let out = gateway.stdout();
    assert!(
        out.lines().count() == 2 && out.lines().all(|line| serde_json::from_str::<Value>(line).is_ok()),
        "{out}"
    );
}

#[tokio::test]
async fn ob_03_a_line_says_what_the_contract_says_and_holds_no_body_and_no_secret() {
    let upstream = Upstream::start().await;
    upstream
        .by(|seen, _| if seen.body_len == 4096 { r400() } else { Reply::status(200).body("answer-body") });
    let setup = Setup::new(&Gateway::simple_yaml(
        &upstream.url(),
        &[("UPSTREAM", "credential: {header: Authorization, value: env:UP}")],
    ));
    let gateway = setup.env("UP", "Bearer up-secret").start().await;
    post(&gateway, CLASSIFY, &b"document-body"[..]).await;
    post(&gateway, CLASSIFY, &DOC[..]).await;
    post(&gateway, CLASSIFY, &DOC[..]).await;
    let wrong = Request::get("/doc-classifier/x?secret-query=1")
        .bearer("tok-wrong")
        .header("Cookie", "secret-cookie");
    Client::connect(gateway.addr).await.request(wrong).await;
    Client::connect(gateway.addr)
        .await
        .request(Request::get("/doc-classifier/x?secret-query=1").bearer("tok-2"))
        .await;
    let lines = settle(&gateway, 5).await;
    let expected = [
        ("OK", 200, false, "dev_1", "/classify", 13, 11, true),
        ("HTTP_400", 400, false, "dev_1", "/classify", 4096, 27, true),
        ("REFUSED_HTTP_400", 400, true, "dev_1", "/classify", 4096, 27, false),
        ("UNAUTHENTICATED", 401, false, "", "", 0, 121, false),
        ("OK", 200, false, "dev_2", "*", 0, 11, true),
    ];
    for (line, (code, status, hit, tenant, route, bytes_in, bytes_out, went_up)) in lines.iter().zip(expected)
    {
        assert_eq!(
            (&line["code"], &line["status"], &line["cache_hit"]),
            (&code.into(), &status.into(), &hit.into())
        );
        assert_eq!(
            (line["tenant"].as_str().unwrap_or(""), line["route"].as_str().unwrap_or("")),
            (tenant, route)
        );
        assert_eq!((&line["bytes_in"], &line["bytes_out"]), (&bytes_in.into(), &bytes_out.into()), "{line}");
        assert_eq!(line["upstream_ms"].as_u64().is_some_and(|ms| ms > 0), went_up, "{line}");
        assert_eq!(line["attempts"], u64::from(went_up), "{line}");
        for key in ["ts", "trace_id", "method", "path"] {
            assert!(line[key].as_str().is_some_and(|text| !text.is_empty()), "{key}: {line}");
        }
        for key in ["total_ms", "queue_ms"] {
            assert!(line[key].is_u64(), "{key}: {line}");
        }
        let guarded = route == "/classify";
        assert_eq!(line.get("fingerprint").is_some(), guarded, "{line}");
        assert_eq!(line.get("document_sha256").is_some(), code.ends_with("HTTP_400"), "{line}");
    }
    let ts = lines[0]["ts"].as_str().unwrap_or_default();
    assert!(ts.len() == 24 && ts.ends_with('Z') && &ts[10..11] == "T", "RFC 3339 in UTC: {ts}");
    assert_eq!(lines[1]["fingerprint"], lines[2]["fingerprint"]);
    assert_ne!(lines[1]["trace_id"], lines[2]["trace_id"]);
    let text = fs::read_to_string(gateway.dir().join("audit.jsonl")).unwrap_or_default();
    for secret in
        ["up-secret", "tok-", "secret-query", "secret-cookie", "document-body", "answer-body", "unreadable"]
    {
        assert!(!text.contains(secret), "{secret}: {text}");
    }
}

#[tokio::test]
async fn ob_04_lines_parse_whatever_clients_send() {
    let upstream = Upstream::start().await;
    let top = "identity: {tenant_header: X-Tenant}";
    let gateway = Gateway::with(&upstream.url(), &[("TOP", top)]).await;
    let mut paths = Vec::new();
    let mut client = Client::connect(gateway.addr).await;
    for path in [
        "/doc-classifier/%0a{\"forged\":1}",
        "/doc-classifier/%0d%0a%22%7d%0a",
        "/doc-classifier/\"quoted\"",
        "/doc-classifier/\\u000a\\n\\",
        "/doc-classifier/\u{2028}{\"forged\":1}\u{2029}",
        "/doc-classifier/\u{fc}\u{1f600}\u{202e}",
        "/doc-classifier/%00%ff%fe",
        "/doc-classifier/%E2%80%A8",
    ] {
        assert_eq!(client.request(Request::get(path).bearer("tok-1")).await.status, 200, "{path}");
        paths.push(path.to_owned());
    }
    let long = format!("/doc-classifier/{}", "\u{fc}".repeat(20_000));
    assert_eq!(client.request(Request::get(&long).bearer("tok-1")).await.status, 200);
    let method = "M".repeat(30_000);
    let answer = client.request(Request::new(&method, "/doc-classifier/method").bearer("tok-1")).await;
    assert!(answer.status < 500, "{}", answer.text());
    let agent = "\u{1}".repeat(0) + &"agent ".repeat(170_000);
    let mut other = Client::connect(gateway.addr).await;
    let answer =
        other.request(Request::get("/doc-classifier/a").bearer("tok-1").header("User-Agent", agent)).await;
    assert_own(&answer, 431, "HEADERS_TOO_LARGE", "a user agent of 1 MiB is not audited, it is counted");
    let (form, body) = multipart(
        "b",
        &[
            Part::file("file", "a\\\"b\u{2028}\t.pdf", "application/pdf", &DOC),
            Part::field("model", "x\0y\n{\"forged\":1}"),
        ],
    );
    upstream.always(r400());
    let request = Request::post(CLASSIFY).bearer("tok-1").header("Content-Type", form).body(body);
    assert_eq!(client.request(request).await.status, 400);
    let request =
        Request::post(CLASSIFY).bearer("tok-1").header("Content-Type", b"a/b\xff\xfe; x=\"\t").body("x");
    assert_eq!(client.request(request).await.status, 400);
    for tenant in [&b"dev\t_1"[..], b"dev_1\xff", b"\"}{", &[b'd'; 3_000]] {
        let request = Request::get("/doc-classifier/t").header("X-Tenant", tenant);
        let answer = Client::connect(gateway.addr).await.request(request).await;
        assert_own(&answer, 401, "UNAUTHENTICATED", "a tenant that is none");
    }
    let lines = settle(&gateway, 8 + 2 + 2 + 4).await;
    for (path, line) in paths.iter().zip(&lines) {
        assert_eq!(line["path"], **path, "bytes are recoverable");
    }
    let text = fs::read_to_string(gateway.dir().join("audit.jsonl")).unwrap_or_default();
    assert!(!text.contains('\u{2028}') && !text.contains('\u{2029}') && !text.contains("\n{\"forged\""));
    for line in text.lines() {
        assert!(line.len() < 16 << 10, "bounded: {} bytes", line.len());
    }
    assert!(lines[8]["path"].as_str().is_some_and(|path| path.ends_with('\u{2026}')), "cut, and marked");
}

#[tokio::test]
async fn ob_06_traces_come_in_and_go_on() {
    let upstream = Upstream::start().await;
    upstream.by(|seen, _| if seen.method == "POST" { r400() } else { Reply::status(200) });
    let gateway = Gateway::simple(&upstream.url()).await;
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let mut client = Client::connect(gateway.addr).await;
    for (method, path) in [("GET", "/doc-classifier/x"), ("POST", CLASSIFY)] {
        for flags in ["01", "00"] {
            let parent = format!("00-{trace}-00f067aa0ba902b7-{flags}");
            let request = Request::new(method, path).bearer("tok-1").header("traceparent", &parent);
            client.request(request.body(flags)).await;
            let seen = upstream.last_request();
            let [up] = seen.headers_named("traceparent")[..] else { unreachable!("{seen:?}") };
            let up = String::from_utf8_lossy(up).into_owned();
            let parts: Vec<&str> = up.split('-').collect();
            assert_eq!((parts[0], parts[1], parts[3]), ("00", trace, flags), "{up}");
            assert!(
                parts[2] != "00f067aa0ba902b7" && parts[2].len() == 16 && parts[2] != "0".repeat(16),
                "{up}"
            );
        }
    }
    for broken in [
        "",
        "garbage",
        "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
        "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-extra",
    ] {
        let request = Request::get("/doc-classifier/x").bearer("tok-1").header("traceparent", broken);
        client.request(request).await;
        let up = upstream.last_request().header("traceparent").unwrap_or_default();
        assert!(up.len() == 55 && !up.contains(trace) && !up.contains(&"0".repeat(32)), "{broken:?}: {up}");
    }
    // A replay belongs to the trace of its own request.
    let replays = ["a".repeat(32), "b".repeat(32)];
    for id in &replays {
        let parent = format!("00-{id}-00f067aa0ba902b7-01");
        let request = Request::post(CLASSIFY).bearer("tok-1").header("traceparent", parent).body("01");
        assert!(client.request(request).await.is_hit());
    }
    assert_eq!(upstream.calls(), 11);
    let lines = settle(&gateway, 13).await;
    let ids: Vec<&str> = lines.iter().filter_map(|line| line["trace_id"].as_str()).collect();
    assert_eq!(ids[..4], [trace; 4]);
    assert_eq!(ids[11..], replays);
    let fresh: HashSet<&&str> = ids[4..11].iter().collect();
    assert!(fresh.len() == 7 && fresh.iter().all(|id| id.len() == 32 && **id != trace), "{fresh:?}");
    for (line, request) in lines[4..11].iter().zip(&upstream.requests()[4..]) {
        let up = request.header("traceparent").unwrap_or_default();
        assert!(up.contains(line["trace_id"].as_str().unwrap_or("none")), "{up}: {line}");
    }
    assert_eq!((&lines[11]["code"], &lines[11]["upstream_ms"]), (&"REFUSED_HTTP_400".into(), &0.into()));
}
