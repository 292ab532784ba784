//! A stop loses nothing that can be finished in time: no new work, idle connections closed at once, calls and streams go on
//! until the end of the drain, what is then left is ended visibly, and every audit line is on disk.

use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nevertwice_testkit::client::h2_post;
use nevertwice_testkit::tls::Authority;
use nevertwice_testkit::{
    Client, DOC, DOC2, Failure, Gate, Gateway, Reply, Request, Step, Upstream, r400, random_document,
};
use serde_json::Value;
use tokio::task::JoinSet;

use crate::bench::{post, settle};
use crate::caller::{CLASSIFY, LAYOUT, until};

const STREAM: &str = "/llm/v1/chat/completions";
const SOON: Duration = Duration::from_secs(8);

/// Documents go to the one stub, one at a time; streams, uploads and HTTP/2 calls to the other.
async fn start(documents: &Upstream, others: &Upstream, drain_s: u32) -> Gateway {
    let llm = format!("- {{name: llm, adapter: openai, base_url: \"{}\"}}", others.url());
    let slots = [
        ("UPSTREAM", "pool: {max_in_flight: 1, max_queue: 9, queue_timeout_ms: 60000}"),
        ("UPSTREAMS", llm.as_str()),
        ("TOP", &format!("drain_s: {drain_s}")),
    ];
    Gateway::with(&documents.url(), &slots).await
}

/// A stream of one event, then one more when the first gate opens, then nothing for as long as it lives.
async fn open_stream(gateway: &Gateway) -> Client {
    let mut client = Client::connect(gateway.addr).await;
    let request = Request::post(STREAM).bearer("tok-1").body("{\"stream\":true}");
    client.try_send_request(request).await.unwrap_or_else(|failure| unreachable!("{failure}"));
    assert_eq!(client.read_head().await.status, 200);
    assert_eq!(next(&mut client).await, "data: 1\n\n");
    client
}

fn streaming(second: &Gate) -> Reply {
    let never = Gate::new();
    let steps = vec![
        Step::chunk("data: 1\n\n"),
        Step::WaitFor(second.clone()),
        Step::chunk("data: 2\n\n"),
        Step::WaitFor(never),
    ];
    Reply::status(200).header("Content-Type", "text/event-stream").steps(steps)
}

async fn next(client: &mut Client) -> String {
    let some = client.read_some().await.unwrap_or_else(|failure| unreachable!("{failure}"));
    String::from_utf8_lossy(&some.unwrap_or_else(|| unreachable!("the stream ended")).bytes).into_owned()
}

async fn begin_upload(gateway: &Gateway, path: &str) -> Client {
    let mut client = Client::connect(gateway.addr).await;
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: gw\r\nAuthorization: Bearer tok-1\r\nContent-Length: 10\r\n\r\nfirst"
    );
    client.send(head).await.unwrap_or_else(|failure| unreachable!("{failure}"));
    client
}

async fn wait_draining(gateway: &Gateway) {
    let draining = async || {
        let (status, body) = gateway.admin_get("/readyz").await;
        (status == 503 && body["status"] == "draining").then_some(())
    };
    until("readiness to go off", SOON, draining).await;
}

/// The audit's lines on disk after the process has ended.
fn lines_of(gateway: &Gateway, path: &str) -> Vec<Value> {
    gateway.audit().into_iter().filter(|line| line["path"] == path).collect()
}

#[tokio::test]
async fn cf_08_a_stop_finishes_what_can_be_finished_and_says_where_it_cut() {
    const DRAIN_S: u64 = 5;
    let (documents, others) = (Upstream::start().await, Upstream::start().await);
    let (answered, second_event, h2_gate) = (Gate::new(), Gate::new(), Gate::new());
    let (held, stream, h2_held) = (answered.clone(), second_event.clone(), h2_gate.clone());
    documents.by(move |seen, _| match seen.body_len {
        4096 => Reply::status(200).wait_for(&held).body("judged"),
        _ => Reply::status(200).body("uploaded"),
    });
    others.by(move |seen, _| match seen.target.as_str() {
        "/v1/chat/completions" => streaming(&stream),
        "/v1/h2" => Reply::status(200).wait_for(&h2_held).body("over h2"),
        _ => Reply::status(200).body("uploaded"),
    });
    let mut gateway = start(&documents, &others, u32::try_from(DRAIN_S).unwrap_or_default()).await;
    let addr = gateway.addr;

    let mut idle = Client::connect(addr).await;
    assert_eq!(idle.request(Request::get("/llm/v1/models").bearer("tok-1")).await.status, 200);
    let mut silent = Client::connect(addr).await;
    let mut stream = open_stream(&gateway).await;
    let mut call = Client::connect(addr).await;
    let post = Request::post(CLASSIFY).bearer("tok-1").body(&DOC[..]);
    call.try_send_request(post).await.unwrap_or_else(|failure| unreachable!("{failure}"));
    answered.wait_waiting(1).await;
    let mut queued = Client::connect(addr).await;
    let post = Request::post(CLASSIFY).bearer("tok-2").body(&DOC2[..]);
    queued.try_send_request(post).await.unwrap_or_else(|failure| unreachable!("{failure}"));
    gateway.wait_metric("gateway_pool_queued", &[("upstream", "doc-classifier")], 1.0).await;
    let mut guarded = begin_upload(&gateway, LAYOUT).await;
    let mut passing = begin_upload(&gateway, "/llm/v1/files").await;
    others.wait_until("the passing upload", |others| others.calls_to("/v1/files") == 1).await;
    let mut h2 = JoinSet::new();
    h2.spawn(async move { h2_post(addr, "/llm/v1/h2", &[("authorization", "Bearer tok-1")], "x").await });
    h2_gate.wait_waiting(1).await;

    let began = Instant::now();
    gateway.signal("TERM");
    wait_draining(&gateway).await;
    assert!(idle.closed_by_peer().await && silent.closed_by_peer().await, "idle connections are closed");
    let refused = async || matches!(Client::try_connect(addr).await, Err(Failure::Connect(_))).then_some(());
    until("new connections to be refused", SOON, refused).await;
    assert!(
        began.elapsed() < Duration::from_secs(DRAIN_S),
        "all of this at once, not at the end of the drain"
    );

    second_event.open();
    assert_eq!(next(&mut stream).await, "data: 2\n\n", "the stream goes on");
    for client in [&mut guarded, &mut passing] {
        client.send("after").await.unwrap_or_else(|failure| unreachable!("{failure}"));
    }
    answered.open();
    h2_gate.open();
    for (client, body) in [
        (&mut call, "judged"),
        (&mut queued, "judged"),
        (&mut guarded, "uploaded"),
        (&mut passing, "uploaded"),
    ] {
        let answer = client.read_answer().await;
        assert_eq!((answer.status, answer.text().as_str(), answer.complete), (200, body, true));
        assert_eq!(answer.header("connection").as_deref(), Some("close"), "the client is told");
    }
    assert!(h2.join_all().await.iter().all(|answer| answer.status == 200 && answer.complete));

    let end = stream.read_some().await;
    assert!(matches!(end, Err(Failure::Cut | Failure::Reset)), "a visible break, no made-up end: {end:?}");
    let status = gateway.wait_exit(SOON).await;
    assert_eq!(status.code(), Some(0), "{}", gateway.log());
    assert!(began.elapsed() < Duration::from_secs(DRAIN_S + 2), "drain and 2 s: {:?}", began.elapsed());

    assert_eq!(gateway.audit().len(), 7, "{:#?}", gateway.audit());
    for path in ["/llm/v1/models", LAYOUT, "/llm/v1/files", "/llm/v1/h2"] {
        assert!(
            lines_of(&gateway, path).iter().all(|line| line["code"] == "OK" && line.get("end").is_none())
        );
    }
    assert_eq!(lines_of(&gateway, CLASSIFY).len(), 2);
    let [cut] = &lines_of(&gateway, STREAM)[..] else { unreachable!("{:#?}", gateway.audit()) };
    assert_eq!(
        (&cut["code"], &cut["end"]),
        (&"OK".into(), &"gateway_stopped".into()),
        "who broke it off: {cut}"
    );
    assert!(!gateway.log().contains("panicked"), "{}", gateway.log());
}

#[tokio::test]
async fn cf_08_a_second_signal_ends_at_once() {
    for (first, second) in [("TERM", "TERM"), ("INT", "INT"), ("TERM", "INT")] {
        let (documents, others) = (Upstream::start().await, Upstream::start().await);
        others.always(streaming(&Gate::new()));
        documents.always(Reply::stall());
        let mut gateway = start(&documents, &others, 300).await;
        let mut stream = open_stream(&gateway).await;
        let mut call = Client::connect(gateway.addr).await;
        let request = Request::post(CLASSIFY).bearer("tok-1").body(&DOC[..]);
        call.try_send_request(request).await.unwrap_or_else(|failure| unreachable!("{failure}"));
        documents.wait_complete(1).await;
        gateway.signal(first);
        wait_draining(&gateway).await;
        assert!(gateway.is_running(), "one signal lets the stream go on");
        gateway.signal(second);
        let status = gateway.wait_exit(SOON).await;
        assert_eq!(status.code(), Some(0), "{first}, {second}: {}", gateway.log());
        assert!(matches!(stream.read_some().await, Err(Failure::Cut | Failure::Reset)));
        assert_eq!(gateway.audit().len(), 2, "both lines are on disk: {:#?}", gateway.audit());
        let [line] = &lines_of(&gateway, CLASSIFY)[..] else { unreachable!("{:#?}", gateway.audit()) };
        assert_eq!((&line["code"], &line["end"]), (&"DRAINING".into(), &"gateway_stopped".into()), "{line}");
        assert!(!gateway.log().contains("panicked"), "{}", gateway.log());
    }
}

#[tokio::test]
async fn cf_08_a_stop_without_work_is_quick_and_a_verdict_under_way_is_not_lost() {
    let upstream = Upstream::start().await;
    let gate = Gate::new();
    upstream.always(r400().wait_for(&gate));
    let mut gateway = Gateway::simple(&upstream.url()).await;
    let mut client = Client::connect(gateway.addr).await;
    let request = Request::post(CLASSIFY).bearer("tok-1").body(&DOC[..]);
    client.try_send_request(request).await.unwrap_or_else(|failure| unreachable!("{failure}"));
    gate.wait_waiting(1).await;
    // The caller leaves; the attempt is not lost with it, and neither is it by the stop.
    client.reset();
    gateway.signal("TERM");
    wait_draining(&gateway).await;
    gate.open();
    let began = Instant::now();
    assert_eq!(gateway.wait_exit(SOON).await.code(), Some(0));
    assert!(began.elapsed() < Duration::from_secs(5), "nothing was left to wait for: {:?}", began.elapsed());
    gateway.restart().await;
    let answer = post(&gateway, CLASSIFY, &DOC[..]).await;
    // The content type is part of the key: the first request had none.
    assert!(!answer.is_hit());
    let request = Request::post(CLASSIFY).bearer("tok-1").body(&DOC[..]);
    assert!(Client::connect(gateway.addr).await.request(request).await.is_hit(), "recorded during the drain");
    assert_eq!(upstream.calls(), 2);
    settle(&gateway, 3).await;
}

#[tokio::test]
async fn cf_08_connections_that_never_speak_do_not_hold_up_the_stop() {
    let upstream = Upstream::start().await;
    let dir = tempfile::tempdir().unwrap_or_else(|error| unreachable!("{error}"));
    let (cert, key) = Authority::new().issue(&["localhost"]).write(dir.path(), "gateway");
    let tls = format!("tls: {{cert: \"{}\", key: \"{}\"}}", cert.display(), key.display());
    for top in ["http: {h2: true}", "http: {h2: false}", &tls] {
        let mut gateway = Gateway::with(&upstream.url(), &[("TOP", top)]).await;
        let mut silent = [Client::connect(gateway.addr).await, Client::connect(gateway.addr).await];
        gateway.wait_metric("gateway_connections", &[], 2.0).await;
        gateway.signal("TERM");
        let began = Instant::now();
        assert_eq!(gateway.wait_exit(SOON).await.code(), Some(0), "{top}");
        assert!(began.elapsed() < Duration::from_secs(4), "{top}: {:?}", began.elapsed());
        for client in &mut silent {
            assert!(client.closed_by_peer().await, "{top}");
        }
    }
}

#[tokio::test]
async fn cf_08_a_signal_during_the_start_ends_it_and_harms_nothing() {
    let upstream = Upstream::start().await;
    upstream.always(r400());
    let mut gateway = Gateway::simple(&upstream.url()).await;
    for n in 0..20 {
        assert_eq!(post(&gateway, CLASSIFY, random_document(n, 64)).await.status, 400);
    }
    let binary = std::fs::read_link(format!("/proc/{}/exe", gateway.pid()));
    let binary = binary.unwrap_or_else(|error| unreachable!("{error}"));
    gateway.signal("TERM");
    assert_eq!(gateway.wait_exit(SOON).await.code(), Some(0));
    for pause_ms in [0, 1, 3, 6, 10, 15, 20, 30, 45, 60, 80, 120] {
        let mut child = Command::new(&binary)
            .args(["serve", "--config", &gateway.config_file().display().to_string()])
            .current_dir(gateway.dir())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| unreachable!("{error}"));
        // The moment is the case: somewhere in the start.
        tokio::time::sleep(Duration::from_millis(pause_ms)).await;
        let sent = Command::new("kill").args(["-TERM", &child.id().to_string()]).status();
        assert!(sent.is_ok_and(|status| status.success()), "after {pause_ms} ms");
        let ask = || std::future::ready(ended(&mut child));
        let ended = until("a start that was told to stop to end", SOON, ask).await;
        // Before anything is open the system ends it; later it drains.
        let fine = ended.code() == Some(0) || ended.signal() == Some(15);
        assert!(fine, "after {pause_ms} ms: {ended:?}");
    }
    gateway.restart().await;
    for n in 0..20 {
        assert!(post(&gateway, CLASSIFY, random_document(n, 64)).await.is_hit(), "{n}");
    }
    assert_eq!(upstream.calls(), 20);
    settle(&gateway, 40).await;
}

fn ended(child: &mut Child) -> Option<std::process::ExitStatus> {
    child.try_wait().unwrap_or_else(|error| unreachable!("{error}"))
}
