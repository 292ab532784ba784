//! Whatever an upstream's connections do, the caller gets one HTTP answer, no request is sent twice after a byte of it
//! may have been processed, no redirect is followed, and nothing that is not the upstream's whole word is remembered.

use std::net::SocketAddr;
use std::time::Duration;

use nevertwice_testkit::{
    Answer, Client, DOC, Gate, Gateway, Reply, Request, Setup, Step, Upstream, r400, random_document,
};
use tokio::task::JoinSet;

use crate::bench::{assert_own, post, settle};

const CLASSIFY: &str = "/doc-classifier/classify";

/// The upstream closes connections that are idle for 40 ms; a client posts distinct documents at that pace, from ten
/// milliseconds below the limit to ten above it.
async fn answers_at_the_pace(pool: &str, posts: u64) -> (Vec<Answer>, Upstream, Gateway) {
    let upstream = Upstream::start().await;
    upstream.idle_close(Duration::from_millis(40));
    let gateway = Gateway::with(&upstream.url(), &[("UPSTREAM", pool)]).await;
    let mut client = Client::connect(gateway.addr).await;
    let mut answers = Vec::new();
    for n in 0..posts {
        // the pause is the case itself
        tokio::time::sleep(Duration::from_millis(30) + Duration::from_micros(n * 20_000 / posts)).await;
        let request = Request::post(CLASSIFY).bearer("tok-1");
        answers.push(client.request(request.body(random_document(n, 64))).await);
    }
    (answers, upstream, gateway)
}

#[tokio::test]
async fn cn_01_connections_kept_shorter_than_the_upstream_keeps_them_never_fail() {
    let (answers, upstream, gateway) = answers_at_the_pace("pool: {idle_connection_ms: 15}", 40).await;
    assert!(answers.iter().all(|answer| answer.status == 200));
    assert_eq!((answers.len(), upstream.calls()), (40, 40));
    settle(&gateway, 40).await;
}

#[tokio::test]
async fn slow_cn_01_an_upstream_that_closes_idle_connections_makes_no_error_storm() {
    // The default is 4 s. What the upstream does is learned from the first connection that it closes; if that was in the
    // very instant of a request, this one request is lost: fewer than 0.5 % of them.
    let (answers, upstream, gateway) = answers_at_the_pace("", 500).await;
    let failed: Vec<_> = answers.iter().filter(|answer| answer.status != 200).collect();
    for answer in &failed {
        assert_own(answer, 502, "UPSTREAM_CLOSED", "the race at the idle limit");
    }
    assert!(failed.len() * 200 < answers.len(), "{} of {} failed", failed.len(), answers.len());
    assert!(upstream.calls() <= 500, "no call was sent twice");
    let lines = settle(&gateway, 500).await;
    assert!(lines.iter().all(|line| line["attempts"] == 1));
}

#[tokio::test]
async fn cn_01_what_an_upstream_says_of_its_connections_is_believed() {
    let upstream = Upstream::start().await;
    for (says, connections) in [("timeout=0", 3), ("timeout=5, max=100", 1)] {
        upstream.always(Reply::status(200).header("Keep-Alive", says));
        let gateway = Gateway::simple(&upstream.url()).await;
        let before = upstream.connections();
        for n in 0..3 {
            let answer = post(&gateway, CLASSIFY, random_document(n, 64)).await;
            assert_eq!((answer.status, answer.header("keep-alive")), (200, None));
        }
        assert_eq!(upstream.connections() - before, connections, "{says}");
        settle(&gateway, 3).await;
    }
}

#[tokio::test]
async fn cn_01_a_pool_of_dead_connections_is_replaced_silently() {
    let upstream = Upstream::start().await;
    let gate = Gate::new();
    upstream.always(Reply::status(200).wait_for(&gate));
    let gateway = Gateway::simple(&upstream.url()).await;
    let fifty = async |from: u64| {
        let mut running = JoinSet::new();
        for n in from..from + 50 {
            let addr = gateway.addr;
            running.spawn(async move {
                let request = Request::post(CLASSIFY).bearer("tok-1").body(random_document(n, 64));
                Client::connect(addr).await.request(request).await
            });
        }
        running
    };
    let warm = fifty(0).await;
    gate.wait_waiting(50).await;
    gate.open();
    assert!(warm.join_all().await.iter().all(|answer| answer.status == 200));
    assert_eq!(upstream.open_connections(), 50);
    upstream.restart().await;
    let again = fifty(50).await.join_all().await;
    assert!(again.iter().all(|answer| answer.status == 200), "{again:?}");
    assert_eq!(upstream.calls(), 100);

    upstream.stop().await;
    let refused = post(&gateway, CLASSIFY, &DOC[..]).await;
    assert_own(&refused, 502, "UPSTREAM_UNREACHABLE", "nobody listens");
    upstream.restart().await;
    assert_eq!(post(&gateway, CLASSIFY, &DOC[..]).await.status, 200);
    let lines = settle(&gateway, 102).await;
    assert_eq!(
        (&lines[100]["code"], &lines[100]["end"]),
        (&"UPSTREAM_UNREACHABLE".into(), &"refused".into())
    );
}

#[tokio::test]
async fn cn_01_a_call_that_may_have_been_processed_is_never_sent_again() {
    let (upstream, other) = (Upstream::start().await, Upstream::start().await);
    let yaml = Gateway::simple_yaml(&upstream.url(), &[]).replace(
        &format!("base_url: \"{}\"", upstream.url()),
        &format!("base_url: [\"{}\", \"{}\"]", upstream.url(), other.url()),
    );
    let gateway = Gateway::start(&yaml).await;
    let mut requests = 0;
    for (case, reply) in [("closed", Reply::hang_up()), ("reset", Reply::reset())] {
        for stub in [&upstream, &other] {
            // One good answer each, so that the next call goes out on a connection that is kept.
            stub.script(vec![Reply::status(200), reply.clone()]);
        }
        let before = upstream.calls() + other.calls();
        for n in 0..4 {
            let document = random_document(requests, 64);
            requests += 1;
            let answer = post(&gateway, CLASSIFY, document).await;
            if n < 2 {
                assert_eq!(answer.status, 200, "{case}");
            } else {
                assert_own(&answer, 502, "UPSTREAM_CLOSED", case);
            }
        }
        assert_eq!(upstream.calls() + other.calls(), before + 4, "{case}");
    }
    // Where no connection can be made, the other replica is asked.
    upstream.stop().await;
    other.always(Reply::status(200));
    let before = other.calls();
    for n in 0..4 {
        assert_eq!(post(&gateway, CLASSIFY, random_document(900 + n, 64)).await.status, 200);
    }
    assert_eq!(other.calls(), before + 4);
    settle(&gateway, 12).await;
}

#[tokio::test]
async fn cn_05_redirects_are_passed_on_and_not_followed() {
    let (upstream, other) = (Upstream::start().await, Upstream::start().await);
    let gateway = Gateway::with(&upstream.url(), &[("MEMORY", "statuses: [400, 413, 415, 422]")]).await;
    let own = upstream.addr().to_string();
    let elsewhere = format!("http://{}/x", other.addr());
    let mut sent = 0;
    for (status, location, seen) in [
        (307, elsewhere.as_str(), elsewhere.as_str()),
        (301, "/classify/", "/doc-classifier/classify/"),
        (302, &format!("//{}/x", other.addr()), &format!("//{}/x", other.addr())),
        (303, "http://169.254.169.254/latest/meta-data", "http://169.254.169.254/latest/meta-data"),
        (308, &format!("http://{own}/classify/?a=%2F"), "/doc-classifier/classify/?a=%2F"),
        (307, &format!("HTTP://{own}/classify"), "/doc-classifier/classify"),
        (307, &format!("//{own}/classify"), "/doc-classifier/classify"),
        (300, &format!("http://{own}"), "/doc-classifier/"),
        (307, "not a url \u{e9}", "not a url \u{e9}"),
    ] {
        upstream.always(Reply::status(status).header("Location", location).body("moved"));
        for n in 1..=2 {
            let answer = post(&gateway, CLASSIFY, &DOC[..]).await;
            sent += 1;
            let case = format!("{status} {location} ({n})");
            assert_eq!(
                (answer.status, answer.text().as_str(), answer.is_hit()),
                (status, "moved", false),
                "{case}"
            );
            assert_eq!(answer.header("location").as_deref(), Some(seen), "{case}");
            assert_eq!(upstream.calls(), sent, "{case}: one call, to nobody else");
            assert_eq!(upstream.last_request().method, "POST", "{case}");
        }
    }
    assert_eq!(other.connections(), 0);
    assert_eq!(gateway.metric("gateway_negative_cache_entries", &[]).await, 0.0);
    let lines = settle(&gateway, 18).await;
    assert!(lines.iter().all(|line| line["code"] == "OK" && line["attempts"] == 1), "{lines:#?}");
}

/// Exactly these bytes, then the end.
fn then_close(bytes: impl AsRef<[u8]>) -> Reply {
    Reply::raw("").steps(vec![Step::write(bytes.as_ref().to_vec()), Step::Close])
}

fn refusal(fields: &str) -> Reply {
    let body = "{\"error\":\"unreadable page\"}";
    Reply::raw(format!("HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\n{fields}\r\n{body}"))
}

#[tokio::test]
async fn cn_06_a_malformed_answer_becomes_one_clear_502_and_is_never_recorded() {
    const MALFORMED: &str = "UPSTREAM_MALFORMED";
    const CLOSED: &str = "UPSTREAM_CLOSED";
    let chunked = "1b\r\n{\"error\":\"unreadable page\"}\r\n0\r\n\r\n";
    let coded = |fields: &str| Reply::raw(format!("HTTP/1.1 400 Bad Request\r\n{fields}\r\n{chunked}"));
    let cases = [
        ("chunked twice", coded("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"), MALFORMED),
        ("chunked, chunked", coded("Transfer-Encoding: chunked, chunked\r\n"), MALFORMED),
        ("gzip, chunked", coded("Transfer-Encoding: gzip, chunked\r\n"), MALFORMED),
        ("length and chunked", coded("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n"), MALFORMED),
        ("chunked and length", coded("Transfer-Encoding: chunked\r\nContent-Length: 38\r\n"), MALFORMED),
        ("two lengths", refusal("Content-Length: 27\r\nContent-Length: 28\r\n"), MALFORMED),
        ("two equal lengths", refusal("Content-Length: 27\r\nContent-Length: 27\r\n"), MALFORMED),
        ("a negative length", refusal("Content-Length: -27\r\n"), MALFORMED),
        ("a length in words", refusal("Content-Length: many\r\n"), MALFORMED),
        ("status 4000", Reply::raw("HTTP/1.1 4000 Bad\r\nContent-Length: 0\r\n\r\n"), MALFORMED),
        ("status 40", Reply::raw("HTTP/1.1 40 Bad\r\nContent-Length: 0\r\n\r\n"), MALFORMED),
        ("no colon", refusal("Content-Length: 27\r\nX-Broken\r\n"), MALFORMED),
        ("a NUL", refusal("Content-Length: 27\r\nX-Nul: a\0b\r\n"), MALFORMED),
        ("a folded line", refusal("Content-Length: 27\r\nX-Fold: a\r\n b\r\n"), MALFORMED),
        ("a blank before the colon", refusal("Content-Length : 27\r\n"), MALFORMED),
        ("HTTP/0.9", then_close("unreadable page\n"), MALFORMED),
        ("a TLS alert", then_close(b"\x15\x03\x01\x00\x02\x02\x46"), MALFORMED),
        ("HTTP/2 settings", then_close(b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"), MALFORMED),
        (
            "101 unasked",
            Reply::raw("HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n"),
            MALFORMED,
        ),
        ("no byte", Reply::hang_up(), CLOSED),
        ("a reset", Reply::reset(), CLOSED),
        ("half a head", then_close("HTTP/1.1 400 Bad Request\r\nContent-Le"), CLOSED),
        ("interim, then nothing", then_close("HTTP/1.1 100 Continue\r\n\r\n"), CLOSED),
        (
            "half a body",
            then_close("HTTP/1.1 400 Bad Request\r\nContent-Length: 27\r\n\r\n{\"error\""),
            CLOSED,
        ),
        (
            "half a chunk",
            then_close("HTTP/1.1 422 Bad\r\nTransfer-Encoding: chunked\r\n\r\n1b\r\n{\"error"),
            CLOSED,
        ),
        (
            "no last chunk",
            then_close("HTTP/1.1 422 Bad\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n"),
            CLOSED,
        ),
        (
            "a bad chunk size",
            then_close("HTTP/1.1 422 Bad\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n"),
            MALFORMED,
        ),
    ];
    let upstream = Upstream::start().await;
    let gateway = Gateway::with(&upstream.url(), &[("UPSTREAM", "timeout_ms: 5000")]).await;
    let mut calls = 0;
    let mut expected = Vec::new();
    for (case, reply, code) in cases {
        upstream.always(reply);
        for n in 1..=2 {
            let case = format!("{case} ({n})");
            let answer = post(&gateway, CLASSIFY, &DOC[..]).await;
            calls += 1;
            assert_own(&answer, 502, code, &case);
            assert_eq!(upstream.calls(), calls, "{case}: live, and once");
            expected.push((case, code));
        }
    }
    let requests = upstream.requests();
    let kept =
        requests.windows(2).zip(&expected).filter(|(pair, _)| pair[0].connection == pair[1].connection);
    let kept: Vec<_> = kept.map(|(_, expected)| expected).collect();
    assert!(kept.is_empty(), "these connections were used again: {kept:?}");
    assert_eq!(gateway.metric("gateway_negative_cache_entries", &[]).await, 0.0);
    assert_eq!(gateway.metric("gateway_negative_cache_recorded_total", &[]).await, 0.0);

    // The same document, refused in good form, is remembered as ever.
    upstream.always(r400());
    assert!(!post(&gateway, CLASSIFY, &DOC[..]).await.is_hit());
    assert!(post(&gateway, CLASSIFY, &DOC[..]).await.is_hit());
    let lines = settle(&gateway, expected.len() + 2).await;
    for (line, (case, code)) in lines.iter().zip(expected) {
        assert_eq!(line["code"], code, "{case}");
        assert!(line["end"].is_string(), "{case}: a reason in the audit: {line}");
    }
}

#[tokio::test]
async fn cn_06_odd_but_legal_answers_are_relayed_in_good_form() {
    let upstream = Upstream::start().await;
    let gateway = Gateway::simple(&upstream.url()).await;
    let body = "{\"error\":\"unreadable page\"}";
    for (case, reply, remembered) in [
        ("no reason phrase", Reply::raw(format!("HTTP/1.1 400\r\nContent-Length: 27\r\n\r\n{body}")), true),
        ("an empty reason", Reply::raw(format!("HTTP/1.1 400 \r\nContent-Length: 27\r\n\r\n{body}")), true),
        ("interim answers before", r400().interim(102).interim(103), true),
        ("ended by the close", then_close(format!("HTTP/1.1 400 Bad Request\r\n\r\n{body}")), false),
        (
            "HTTP/1.0",
            then_close(format!("HTTP/1.0 400 Bad Request\r\nContent-Length: 27\r\n\r\n{body}")),
            true,
        ),
    ] {
        upstream.always(reply);
        let document = random_document(case.len() as u64, 512);
        let answers =
            [post(&gateway, CLASSIFY, document.clone()).await, post(&gateway, CLASSIFY, document).await];
        for answer in &answers {
            assert_eq!((answer.status, answer.text().as_str(), answer.complete), (400, body, true), "{case}");
            assert!(answer.header("x-gateway-error").is_none(), "{case}");
        }
        assert_eq!(answers.map(|a| a.is_hit()), [false, remembered], "{case}");
    }
    settle(&gateway, 10).await;
}

#[tokio::test]
async fn cn_06_a_second_answer_on_the_connection_reaches_nobody() {
    let upstream = Upstream::start().await;
    let gateway = Gateway::simple(&upstream.url()).await;
    let two = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nfirstHTTP/1.1 400 Bad Request\r\nContent-Length: 4\r\n\r\nevil";
    upstream.by(move |_, n| if n % 2 == 1 { Reply::raw(two) } else { Reply::status(200).body("second") });
    let mut client = Client::connect(gateway.addr).await;
    for n in 0..10 {
        let request = Request::post(CLASSIFY).bearer("tok-1").body(random_document(n, 64));
        let answer = client.request(request).await;
        let expected = if n % 2 == 0 { "first" } else { "second" };
        assert_eq!((answer.status, answer.text().as_str()), (200, expected), "{n}");
    }
    assert_eq!(upstream.calls(), 10);
    settle(&gateway, 10).await;
}

#[tokio::test]
async fn cn_06_a_broken_success_breaks_off_visibly() {
    let upstream = Upstream::start().await;
    let gateway = Gateway::simple(&upstream.url()).await;
    for reply in [
        then_close("HTTP/1.1 200 OK\r\nContent-Length: 27\r\n\r\n{\"error\""),
        then_close("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n"),
        then_close("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\nzz\r\n"),
    ] {
        upstream.always(reply);
        let answer = post(&gateway, CLASSIFY, &DOC[..]).await;
        assert_eq!((answer.status, answer.complete), (200, false), "{answer:?}");
    }
    let lines = settle(&gateway, 3).await;
    assert!(lines.iter().all(|line| line["end"] == "upstream_aborted"), "{lines:#?}");
}

/// The addresses that the log says are listened on.
fn listening(gateway: &Gateway) -> Vec<SocketAddr> {
    let log = gateway.log();
    let said = log
        .lines()
        .filter(|line| line.contains("serve: listening addr="))
        .filter_map(|line| line.split("addr=").nth(1));
    said.filter_map(|addr| addr.trim().parse().ok()).collect()
}

#[tokio::test]
async fn nw_04_ipv6_works_on_both_sides() {
    let upstream = Upstream::start_at("[::1]:0").await;
    let mapped = Upstream::start().await;
    let more = format!(
        "- {{name: mapped, base_url: \"http://[::ffff:127.0.0.1]:{}/base\", sync_paths: [/classify]}}\n",
        mapped.addr().port()
    );
    let yaml = Gateway::simple_yaml(&upstream.url(), &[("UPSTREAMS", &more)])
        .replace("listen: \"@LISTEN@\"", "listen: [\"@LISTEN@\", \"[::1]:0\", \"[::]:0\"]");
    let gateway = Gateway::start(&yaml).await;
    upstream.always(r400());
    mapped.always(r400());
    let addresses: Vec<SocketAddr> = listening(&gateway);
    let [plain, six, any] = addresses[..] else { unreachable!("{}", gateway.log()) };
    assert_eq!(
        (plain, six.ip().to_string().as_str(), any.ip().to_string().as_str()),
        (gateway.addr, "::1", "::")
    );
    let any_by_four = SocketAddr::from(([127, 0, 0, 1], any.port()));
    let any_by_six = SocketAddr::new(six.ip(), any.port());
    let mut hits = Vec::new();
    for addr in [plain, six, any_by_four, any_by_six] {
        let request = Request::post(CLASSIFY).bearer("tok-1").body(&DOC[..]);
        hits.push(Client::connect(addr).await.request(request).await.is_hit());
    }
    assert_eq!(hits, [false, true, true, true]);
    assert_eq!(upstream.calls(), 1);
    let host = format!("[::1]:{}", upstream.addr().port());
    assert_eq!(upstream.last_request().header("host"), Some(host));

    let answer = post(&gateway, "/mapped/classify", &DOC[..]).await;
    assert_eq!(answer.status, 400);
    let seen = mapped.last_request();
    assert_eq!(seen.target, "/base/classify");
    assert!(seen.header("host").is_some_and(|host| host.starts_with('[') && host.contains("]:")), "{seen:?}");
    settle(&gateway, 5).await;
}

#[tokio::test]
async fn nw_04_an_address_without_brackets_is_refused_with_a_hint() {
    for (address, hint) in [
        ("::1", "bracket"),
        ("http://::1:9001", "bracket"),
        ("http://fe80::1", "bracket"),
        ("http://[fe80::1%25lo]:9001", "zone"),
        ("http://[::1", "bracket"),
        ("http://[::1]9001", "port"),
        ("http://[::g]:9001", "IPv6"),
    ] {
        let refused = Setup::new(&Gateway::simple_yaml(address, &[])).try_start().await;
        let reason = refused.err().unwrap_or_default();
        assert!(reason.contains("exit status: 2"), "{address}: {reason}");
        assert!(reason.contains("base_url") && reason.contains(hint), "{address}: {reason}");
    }
    let dir = tempfile::tempdir().unwrap_or_else(|error| unreachable!("{error}"));
    for good in ["http://[::1]", "https://[2001:db8::1]:8443/x"] {
        let file = dir.path().join("c.yaml");
        let text = format!("upstreams:\n  - {{name: a, base_url: \"{good}\"}}\n");
        std::fs::write(&file, text).unwrap_or_else(|error| unreachable!("{error}"));
        let name = file.display().to_string();
        let done = nevertwice_testkit::gateway::run(&["check", "--config", &name], &[], dir.path()).await;
        assert!(done.status.success(), "{good}: {done:?}");
    }
}
