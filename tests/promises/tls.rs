//! TLS on both sides: an upstream is called only with a certificate that its own settings trust, everything else is a clear
//! 502 and never plain text; and the gateway's own listener speaks HTTP/2 and HTTP/1.1 over TLS with the same memory.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use nevertwice_testkit::client::h2_post;
use nevertwice_testkit::tls::{Authority, Dialer, Front, Identity};
use nevertwice_testkit::{Client, DOC, Failure, Gateway, Reply, Request, Setup, Upstream, r400};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::bench::{assert_own, post, settle};
use crate::http2::{ends, one_request_then_idle};

/// One upstream per kind of certificate, all with the same stub behind; named after the kind.
fn entry(name: &str, addr: SocketAddr, host: &str, tls: &str) -> String {
    let url = format!("https://{host}:{}", addr.port());
    format!(
        "- {{name: {name}, base_url: \"{url}\", sync_paths: [/classify], connect_timeout_ms: 1000{tls}}}\n"
    )
}

fn ca(path: &Path) -> String {
    format!(", tls: {{ca: \"{}\"}}", path.display())
}

#[tokio::test]
async fn nw_03_a_private_authority_is_trusted_where_it_is_set_and_nowhere_else() {
    let upstream = Upstream::start().await;
    upstream.always(r400());
    let dir = temp();
    let (ours, theirs) = (Authority::new(), Authority::new());
    let names = ["localhost", "127.0.0.1"];
    let good = Front::start(upstream.addr(), &ours.issue(&names));
    let expired = Front::start(upstream.addr(), &ours.issue_expired(&names));
    let other_name = Front::start(upstream.addr(), &ours.issue(&["other.test", "10.0.0.1"]));
    let unsigned = Identity::self_signed(&names);
    let self_signed = Front::start(upstream.addr(), &unsigned);
    let asking = Front::start_asking(upstream.addr(), &ours.issue(&names), &theirs);
    let (ours_pem, theirs_pem) = (ours.write(dir.path(), "ours"), theirs.write(dir.path(), "theirs"));
    let (client_cert, client_key) = theirs.issue(&["gateway"]).write(dir.path(), "client");
    let (strange_cert, strange_key) = ours.issue(&["gateway"]).write(dir.path(), "strange");
    let (unsigned_cert, _) = unsigned.write(dir.path(), "unsigned");
    let mut stubs = JoinSet::new();
    let old = only_tls_1_0(&mut stubs).await;
    let with_client = |cert: &Path, key: &Path| {
        let (ca, cert, key) = (ours_pem.display(), cert.display(), key.display());
        format!(", tls: {{ca: \"{ca}\", client_cert: \"{cert}\", client_key: \"{key}\"}}")
    };

    let mut entries = String::new();
    for (name, addr, host, tls) in [
        ("by-name", good.addr(), "localhost", ca(&ours_pem)),
        ("by-address", good.addr(), "127.0.0.1", ca(&ours_pem)),
        ("with-client", asking.addr(), "localhost", with_client(&client_cert, &client_key)),
        ("pinned", self_signed.addr(), "localhost", ca(&unsigned_cert)),
        ("system", good.addr(), "localhost", String::new()),
        ("wrong-ca", good.addr(), "localhost", ca(&theirs_pem)),
        ("expired", expired.addr(), "localhost", ca(&ours_pem)),
        ("other-name", other_name.addr(), "localhost", ca(&ours_pem)),
        ("other-address", other_name.addr(), "127.0.0.1", ca(&ours_pem)),
        ("self-signed", self_signed.addr(), "localhost", ca(&ours_pem)),
        ("without-client", asking.addr(), "localhost", ca(&ours_pem)),
        ("strange-client", asking.addr(), "localhost", with_client(&strange_cert, &strange_key)),
        ("plain", upstream.addr(), "localhost", ca(&ours_pem)),
        ("too-old", old, "localhost", ca(&ours_pem)),
    ] {
        entries += &entry(name, addr, host, &tls);
    }
    let gateway = Gateway::with(&upstream.url(), &[("UPSTREAMS", &entries)]).await;

    let mut requests = 0;
    for name in ["by-name", "by-address", "with-client"] {
        let path = format!("/{name}/classify");
        let before = upstream.calls();
        let (live, replay) = (post(&gateway, &path, &DOC[..]).await, post(&gateway, &path, &DOC[..]).await);
        assert_eq!((live.status, live.is_hit()), (400, false), "{name}: {}", live.text());
        assert_eq!((replay.status, replay.is_hit(), replay.body), (400, true, live.body), "{name}");
        assert_eq!(upstream.calls(), before + 1, "{name}");
        requests += 2;
    }
    let (served, recorded) =
        (upstream.calls(), gateway.metric("gateway_negative_cache_recorded_total", &[]).await);
    for name in [
        "system",
        "wrong-ca",
        "expired",
        "other-name",
        "other-address",
        "self-signed",
        "without-client",
        "strange-client",
        "plain",
        "too-old",
    ] {
        for _ in 0..2 {
            let answer = post(&gateway, &format!("/{name}/classify"), &DOC[..]).await;
            requests += 1;
            let code = answer.header("x-gateway-error").unwrap_or_default();
            assert!(
                ["UPSTREAM_UNREACHABLE", "UPSTREAM_CLOSED"].contains(&code.as_str()),
                "{name}: {}",
                answer.text()
            );
            assert_own(&answer, 502, &code, name);
        }
    }
    assert_eq!(
        upstream.calls(),
        served,
        "no document and no credential went over a connection that is not trusted"
    );
    assert_eq!(gateway.metric("gateway_negative_cache_recorded_total", &[]).await, recorded);
    let lines = settle(&gateway, requests).await;
    for line in lines.iter().filter(|line| line["status"] == 502) {
        let reasons: &[&str] = match line["upstream"].as_str().unwrap_or_default() {
            // A server that never answers a TLS hello is one to which no connection could be made in time.
            "plain" => &["connect_timeout"],
            // In TLS 1.3 the client's certificate is judged after the request went out, and the alert may be lost to the reset.
            "without-client" | "strange-client" => &["tls", "closed"],
            _ => &["tls"],
        };
        assert!(reasons.iter().any(|reason| line["end"] == *reason), "the reason is in the audit: {line}");
    }
}

#[tokio::test]
async fn nw_03_tls_files_that_cannot_be_used_are_a_refusal_to_start() {
    let dir = temp();
    let authority = Authority::new();
    let (cert, key) = authority.issue(&["localhost"]).write(dir.path(), "a");
    let (_, other_key) = authority.issue(&["localhost"]).write(dir.path(), "b");
    let (empty, missing) = (dir.path().join("empty.pem"), dir.path().join("missing.pem"));
    std::fs::write(&empty, "").unwrap_or_else(|error| unreachable!("{error}"));
    let upstream = |tls: String| Gateway::simple_yaml("https://localhost:1", &[("UPSTREAM", &tls)]);
    let listener = |cert: &Path, key: &Path| {
        let tls = format!("tls: {{cert: \"{}\", key: \"{}\"}}", cert.display(), key.display());
        Gateway::simple_yaml("http://127.0.0.1:1", &[("TOP", &tls)])
    };
    let client = |cert: &Path, key: &Path| {
        upstream(format!("tls: {{client_cert: \"{}\", client_key: \"{}\"}}", cert.display(), key.display()))
    };
    for (case, yaml, named) in [
        ("empty ca", upstream(format!("tls: {{ca: \"{}\"}}", empty.display())), "empty.pem"),
        ("missing ca", upstream(format!("tls: {{ca: \"{}\"}}", missing.display())), "missing.pem"),
        ("a key for a ca", upstream(format!("tls: {{ca: \"{}\"}}", key.display())), "a.key"),
        ("client pair", client(&cert, &other_key), "b.key"),
        (
            "half a client pair",
            upstream(format!("tls: {{client_cert: \"{}\"}}", cert.display())),
            "client_key",
        ),
        ("listener pair", listener(&cert, &other_key), "b.key"),
        ("listener without key", listener(&cert, &missing), "missing.pem"),
        ("listener without cert", listener(&empty, &key), "empty.pem"),
    ] {
        let reason = Setup::new(&yaml).try_start().await.err().unwrap_or_default();
        assert!(reason.contains("ended with exit status") && reason.contains(named), "{case}: {reason}");
        assert!(!reason.contains("panicked"), "{case}: {reason}");
    }
}

#[tokio::test]
async fn nw_03_the_listener_speaks_h2_and_http_1_1_over_tls_with_one_memory() {
    let upstream = Upstream::start().await;
    upstream.always(r400());
    let dir = temp();
    let authority = Authority::new();
    let (cert, key) = authority.issue(&["localhost"]).write(dir.path(), "gateway");
    let tls = format!("tls: {{cert: \"{}\", key: \"{}\"}}", cert.display(), key.display());
    let gateway = Gateway::with(&upstream.url(), &[("TOP", &tls)]).await;
    let path = "/doc-classifier/classify";
    let one = async |dialer: &Dialer| {
        let request = Request::post(path).bearer("tok-1").header("Content-Type", "application/pdf");
        Client::connect(dialer.addr()).await.request(request.body(&DOC[..])).await
    };
    let headers = [("authorization", "Bearer tok-1"), ("content-type", "application/pdf")];

    let old = Dialer::start(gateway.addr, &authority, &["http/1.1"]);
    let live = one(&old).await;
    assert_eq!((live.status, live.is_hit(), old.protocol().as_str()), (400, false, "http/1.1"));
    let none = Dialer::start(gateway.addr, &authority, &[]);
    let answer = one(&none).await;
    assert_eq!((answer.is_hit(), none.protocol().as_str()), (true, ""));
    for offers in [&["h2"][..], &["h2", "http/1.1"], &["http/1.1", "h2"]] {
        let new = Dialer::start(gateway.addr, &authority, offers);
        let answer = h2_post(new.addr(), path, &headers, &DOC[..]).await;
        assert_eq!(
            (answer.status, answer.is_hit(), new.protocol().as_str()),
            (400, true, "h2"),
            "{offers:?}"
        );
        assert_eq!(answer.body, live.body);
    }
    // A large upload over both.
    upstream.always(Reply::status(200));
    for h2 in [false, true] {
        let dialer = Dialer::start(gateway.addr, &authority, if h2 { &["h2"] } else { &["http/1.1"] });
        let large = nevertwice_testkit::random_document(9 + u64::from(h2), 3 << 20);
        let answer = if h2 {
            h2_post(dialer.addr(), path, &headers, large.clone()).await
        } else {
            let request = Request::post(path).bearer("tok-1").body(large.clone()).chunked(100_000);
            Client::connect(dialer.addr()).await.request(request).await
        };
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(upstream.last_request().body, large);
    }
    assert_eq!(upstream.calls(), 3);
    let mut plain = Client::connect(gateway.addr).await;
    let request = Request::post(path).bearer("tok-1").body(&DOC[..]);
    let refused = plain.try_request(request).await;
    assert!(
        !matches!(&refused, Ok(answer) if answer.status < 400) && !matches!(refused, Err(Failure::TimedOut)),
        "plain text on the TLS port: {refused:?}"
    );
    assert_eq!(upstream.calls(), 3);
    settle(&gateway, 7).await;
}

#[tokio::test]
async fn nw_03_without_h2_a_client_that_offers_both_gets_http_1_1() {
    let upstream = Upstream::start().await;
    let dir = temp();
    let authority = Authority::new();
    let (cert, key) = authority.issue(&["localhost"]).write(dir.path(), "gateway");
    let tls =
        format!("tls: {{cert: \"{}\", key: \"{}\"}}\nhttp: {{h2: false}}", cert.display(), key.display());
    let gateway = Gateway::with(&upstream.url(), &[("TOP", &tls)]).await;
    let dialer = Dialer::start(gateway.addr, &authority, &["h2", "http/1.1"]);
    let request = Request::post("/doc-classifier/classify").bearer("tok-1").body(&DOC[..]);
    let answer = Client::connect(dialer.addr()).await.request(request).await;
    assert_eq!((answer.status, dialer.protocol().as_str()), (200, "http/1.1"));
    settle(&gateway, 1).await;
}

#[tokio::test]
async fn nw_03_a_client_that_says_nothing_after_the_handshake_or_no_more_is_closed() {
    const SOON: Duration = Duration::from_secs(10);
    let upstream = Upstream::start().await;
    let dir = temp();
    let authority = Authority::new();
    let (cert, key) = authority.issue(&["localhost"]).write(dir.path(), "gateway");
    let tls = format!("tls: {{cert: \"{}\", key: \"{}\"}}", cert.display(), key.display());
    // two gateways, so that it shows which time-out it is
    for (timeout, other) in
        [("header_timeout_ms", "keep_alive_timeout_ms"), ("keep_alive_timeout_ms", "header_timeout_ms")]
    {
        let value = if timeout == "header_timeout_ms" { 2000 } else { 1000 };
        let top = format!("{tls}\nhttp: {{{timeout}: {value}, {other}: 600000}}");
        let gateway = Gateway::with(&upstream.url(), &[("TOP", &top)]).await;
        let h2 = Dialer::start(gateway.addr, &authority, &["h2"]);
        if timeout == "keep_alive_timeout_ms" {
            // it goes on answering pings, and asks for nothing
            one_request_then_idle(h2.addr(), SOON).await;
            gateway.wait_metric("gateway_connections", &[], 0.0).await;
            settle(&gateway, 1).await;
            continue;
        }
        let http1 = Dialer::start(gateway.addr, &authority, &["http/1.1"]);
        let mut silent = JoinSet::new();
        for (dialer, said) in [(&h2, &b""[..]), (&h2, b"PRI * HT"), (&http1, b""), (&http1, b"POST / HT")] {
            let mut client = Client::connect(dialer.addr()).await.patience(SOON);
            client.send(said).await.unwrap_or_else(|error| unreachable!("{error}"));
            silent.spawn(async move { (said, ends(&mut client).await) });
        }
        while let Some(ended) = silent.join_next().await {
            let (said, ended) = ended.unwrap_or_else(|error| unreachable!("{error}"));
            assert!(ended, "after {} bytes", said.len());
        }
        assert_eq!((h2.protocol().as_str(), http1.protocol().as_str()), ("h2", "http/1.1"));
        gateway.wait_metric("gateway_connections", &[], 0.0).await;
        settle(&gateway, 0).await;
    }
}

fn temp() -> tempfile::TempDir {
    tempfile::tempdir().unwrap_or_else(|error| unreachable!("{error}"))
}

/// A server that answers every TLS hello with the alert `protocol_version`.
async fn only_tls_1_0(stubs: &mut JoinSet<()>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap_or_else(|error| unreachable!("{error}"));
    let addr = listener.local_addr().unwrap_or_else(|error| unreachable!("{error}"));
    stubs.spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut hello = [0; 4096];
            let read = stream.read(&mut hello).await;
            assert!(read.is_ok_and(|n| n > 0 && hello[0] == 0x16), "a TLS hello, and no plain text");
            // The peer may have gone by now.
            let _ = stream.write_all(b"\x15\x03\x01\x00\x02\x02\x46").await;
        }
    });
    addr
}
