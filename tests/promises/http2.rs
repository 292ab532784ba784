//! HTTP/2 by prior knowledge: many requests on one connection are as many requests; uploads and streams pass as they come;
//! a reset is a client that left; and a flood of resets harms nobody else.
#![expect(clippy::unwrap_used, clippy::panic, clippy::disallowed_methods, reason = "test")]

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::channel::{Channel, Sender};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper::rt::Executor;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use nevertwice_testkit::{Client, Failure, Gate, Gateway, Reply, Step, Upstream, r400, random_document};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::bench::{post, settle};
use crate::caller::until;

const GUARDED: &str = "/doc-classifier/classify";
const PASSING: &str = "/doc-classifier/other";
const PATIENCE: Duration = Duration::from_secs(20);

/// Why a body breaks off.
type Left = &'static str;
type Body = BoxBody<Bytes, Left>;
pub type Connection = SendRequest<Body>;

async fn connect(addr: SocketAddr) -> Connection {
    connect_with(addr, None).await
}

/// What drives a connection, in one place: the library has tasks of its own beside the connection.
#[derive(Clone, Default)]
pub struct Driving(Arc<Mutex<JoinSet<()>>>);

impl Driving {
    /// Ends the connection in the middle of whatever it does.
    pub async fn cut(&self) {
        let mut tasks = std::mem::take(&mut *self.0.lock().unwrap());
        tasks.shutdown().await;
    }
}

impl<F: Future<Output: Send> + Send + 'static> Executor<F> for Driving {
    fn execute(&self, task: F) {
        self.0.lock().unwrap().spawn(async move {
            task.await;
        });
    }
}

/// A connection that can be cut.
pub async fn connect_on(driving: &Driving, addr: SocketAddr) -> Connection {
    let io = TokioIo::new(TcpStream::connect(addr).await.unwrap());
    let (sender, connection) = http2::handshake(driving.clone(), io).await.unwrap();
    driving.execute(connection);
    sender
}

/// A connection whose answers get no further than these bytes until they are read.
async fn connect_with(addr: SocketAddr, window: Option<u32>) -> Connection {
    let io = TokioIo::new(TcpStream::connect(addr).await.unwrap());
    let mut client = http2::Builder::new(TokioExecutor::new());
    if let Some(window) = window {
        client.initial_stream_window_size(window);
    }
    let (sender, connection) = client.handshake(io).await.unwrap();
    tokio::spawn(connection);
    sender
}

/// Whether the server ends the connection, whatever it says before.
pub async fn ends(client: &mut Client) -> bool {
    loop {
        match client.read_raw().await {
            Ok(Some(_)) => {}
            end => return matches!(end, Ok(None) | Err(Failure::Reset)),
        }
    }
}

/// Makes one request and then only answers pings, until the server ends the connection.
pub async fn one_request_then_idle(addr: SocketAddr, limit: Duration) {
    let connection = connect(addr).await;
    assert_eq!(answer(&connection, full(PASSING, "x")).await.0, 200);
    until("the end of an idle connection", limit, || async { connection.is_closed().then_some(()) }).await;
}

pub fn request(path: &str, key: &str, body: Body) -> Request<Body> {
    let request = Request::post(format!("http://gw{path}")).header("authorization", format!("Bearer {key}"));
    request.body(body).unwrap()
}

fn whole(body: impl Into<Bytes>) -> Body {
    Full::new(body.into()).map_err(|never| match never {}).boxed()
}

pub fn full(path: &str, document: impl Into<Bytes>) -> Request<Body> {
    request(path, "tok-1", whole(document))
}

/// A request whose body the test sends piece by piece.
fn streaming(path: &str, key: &str) -> (Sender<Bytes, Left>, Request<Body>) {
    let (sender, body) = Channel::new(1);
    (sender, request(path, key, body.boxed()))
}

async fn answer(connection: &Connection, request: Request<Body>) -> (u16, bool, Bytes) {
    let response =
        tokio::time::timeout(PATIENCE, connection.clone().send_request(request)).await.unwrap().unwrap();
    let hit = response.headers().get("x-negative-cache").is_some_and(|value| value == "HIT");
    let status = response.status().as_u16();
    (status, hit, response.into_body().collect().await.unwrap().to_bytes())
}

/// The next bytes of an answer; `None` at its end.
async fn piece(response: &mut Response<Incoming>) -> Option<Result<Bytes, hyper::Error>> {
    let frame = tokio::time::timeout(PATIENCE, response.body_mut().frame()).await.unwrap()?;
    Some(frame.map(|frame| frame.into_data().unwrap_or_default()))
}

#[tokio::test]
async fn h2_01_many_streams_are_as_many_requests_and_one_bad_document_is_one_call() {
    const STREAMS: usize = 150;
    let upstream = Upstream::start().await;
    let gate = Gate::new();
    let held = gate.clone();
    upstream.by(move |seen, _| Reply::status(200).body(seen.body.slice(9..25)).wait_for(&held));
    let gateway = Gateway::with(&upstream.url(), &[("UPSTREAM", "pool:\n  max_in_flight: 300")]).await;
    let connection = connect(gateway.addr).await;
    let mut streams = JoinSet::new();
    for n in 0..STREAMS {
        let (connection, document) = (connection.clone(), random_document(n as u64, 4096 + n));
        streams.spawn(async move {
            let expected = document[9..25].to_vec();
            let path = if n % 2 == 0 { GUARDED } else { PASSING };
            let (status, hit, body) = answer(&connection, full(path, document)).await;
            assert_eq!((status, hit, body.to_vec()), (200, false, expected), "stream {n}");
        });
    }
    gate.wait_waiting(STREAMS).await;
    gate.open();
    while let Some(stream) = streams.join_next().await {
        stream.unwrap();
    }
    assert!(upstream.requests().iter().all(|seen| seen.problems.is_empty() && seen.version == "HTTP/1.1"));

    let gate = Gate::new();
    upstream.always(r400().wait_for(&gate));
    let calls = upstream.calls();
    let document = random_document(999, 4096);
    let mut streams = JoinSet::new();
    for _ in 0..STREAMS {
        let (connection, document) = (connection.clone(), document.clone());
        streams.spawn(async move { answer(&connection, full(GUARDED, document)).await });
    }
    gateway.wait_metric("gateway_body_memory_bytes", &[], (STREAMS * 4096) as f64).await;
    gate.open();
    let mut hits = 0;
    while let Some(answer) = streams.join_next().await {
        let (status, hit, body) = answer.unwrap();
        assert_eq!((status, &body[..]), (400, &br#"{"error":"unreadable page"}"#[..]));
        hits += usize::from(hit);
    }
    assert_eq!((hits, upstream.calls()), (STREAMS - 1, calls + 1));
    // the same document over HTTP/1.1 is the same document
    assert!(post_plain(&gateway, &document).await);
    settle(&gateway, STREAMS * 2 + 1).await;
}

async fn post_plain(gateway: &Gateway, document: &[u8]) -> bool {
    let request = nevertwice_testkit::Request::post(GUARDED).bearer("tok-1").body(document.to_vec());
    Client::connect(gateway.addr).await.request(request).await.is_hit()
}

#[tokio::test]
async fn h2_02_uploads_and_streams_pass_as_they_come() {
    let upstream = Upstream::start().await;
    let gateway = Gateway::simple(&upstream.url()).await;
    let connection = connect(gateway.addr).await;
    // larger than any window, four at once, to an upstream that takes its time
    upstream.always(Reply::status(200).read_slowly(256 << 10, Duration::from_millis(1)));
    let mut uploads = JoinSet::new();
    for n in 0..4 {
        let (connection, document) = (connection.clone(), random_document(n, 5 << 20));
        let path = if n % 2 == 0 { GUARDED } else { PASSING };
        uploads.spawn(async move { answer(&connection, full(path, document)).await.0 });
    }
    while let Some(status) = uploads.join_next().await {
        assert_eq!(status.unwrap(), 200);
    }
    for n in 0..4 {
        let document = random_document(n, 5 << 20);
        assert!(upstream.requests().iter().any(|seen| seen.body == document), "upload {n}");
    }

    // forwarded while it arrives, and the answer too
    let gates = [Gate::new(), Gate::new()];
    upstream.always(Reply::status(200).steps(vec![
        Step::chunk("one"),
        Step::WaitFor(gates[0].clone()),
        Step::chunk("two"),
        Step::WaitFor(gates[1].clone()),
        Step::LastChunk,
    ]));
    let (mut sender, request) = streaming(PASSING, "tok-1");
    let mut sending = connection.clone();
    let pending = tokio::spawn(async move { sending.send_request(request).await });
    let before = upstream.body_bytes();
    for n in 1..=3 {
        sender.send_data(Bytes::from_static(b"piece")).await.unwrap();
        upstream.wait_until("the piece", |it| it.body_bytes() == before + n * 5).await;
    }
    drop(sender);
    let mut response = pending.await.unwrap().unwrap();
    assert!(!response.headers().contains_key("transfer-encoding"));
    assert_eq!(&piece(&mut response).await.unwrap().unwrap()[..], b"one");
    gates[0].open();
    assert_eq!(&piece(&mut response).await.unwrap().unwrap()[..], b"two");
    gates[1].open();
    assert!(piece(&mut response).await.is_none_or(|end| end.is_ok_and(|bytes| bytes.is_empty())));

    // a stream that breaks off is reset, never ended
    let steps = vec![Step::chunk("half"), Step::WaitFor(Gate::new()), Step::LastChunk];
    upstream.always(Reply::status(200).steps(steps));
    let mut response = connection.clone().send_request(full(PASSING, "x")).await.unwrap();
    assert_eq!(&piece(&mut response).await.unwrap().unwrap()[..], b"half");
    upstream.restart().await;
    assert!(piece(&mut response).await.unwrap().is_err());
    upstream.always(Reply::status(200));
    assert_eq!(answer(&connection, full(PASSING, "y")).await.0, 200, "the connection is as good as before");
    let lines = settle(&gateway, 4 + 1 + 2).await;
    assert_eq!(lines.iter().filter(|line| line["end"] == "upstream_aborted").count(), 1);
}

#[tokio::test]
async fn h2_03_a_reset_stream_is_a_client_that_left() {
    let upstream = Upstream::start().await;
    let gateway = Gateway::with(&upstream.url(), &[("UPSTREAM", "pool:\n  max_in_flight: 1")]).await;
    let connection = connect(gateway.addr).await;
    // before the answer, where nobody else waits: the upstream is let go
    let gate = Gate::new();
    upstream.always(Reply::status(200).wait_for(&gate));
    let mut leaving = connection.clone();
    let pending = tokio::spawn(async move { leaving.send_request(full(PASSING, "x")).await.map(drop) });
    gate.wait_waiting(1).await;
    pending.abort();
    upstream.wait_peer_closed(1).await;
    gateway.wait_metric("gateway_pool_in_use", &[], 0.0).await;
    assert_eq!(gateway.wait_audit(1).await[0]["code"], "CLIENT_ABORTED");

    // in the stream
    let never = Gate::new();
    upstream.always(Reply::status(200).steps(vec![Step::chunk("token"), Step::WaitFor(never)]));
    let mut response = connection.clone().send_request(full(PASSING, "x")).await.unwrap();
    assert_eq!(&piece(&mut response).await.unwrap().unwrap()[..], b"token");
    drop(response);
    upstream.wait_peer_closed(2).await;
    gateway.wait_metric("gateway_pool_in_use", &[], 0.0).await;
    assert_eq!(gateway.wait_audit(2).await[1]["end"], "client_closed");

    // in the upload: nothing goes up on the guarded path
    let calls = upstream.calls();
    let (mut sender, request) = streaming(GUARDED, "tok-1");
    let mut leaving = connection.clone();
    let pending = tokio::spawn(async move { leaving.send_request(request).await.map(drop) });
    sender.send_data(Bytes::from_static(b"%PDF")).await.unwrap();
    gateway.wait_metric("gateway_body_memory_bytes", &[], 4096.0).await;
    pending.abort();
    sender.abort("left");
    assert_eq!(gateway.wait_audit(3).await[2]["code"], "CLIENT_ABORTED");
    assert_eq!(upstream.calls(), calls);

    // a leader that leaves: the verdict is recorded all the same
    let gate = Gate::new();
    upstream.always(r400().wait_for(&gate));
    let mut leaving = connection.clone();
    let pending = tokio::spawn(async move { leaving.send_request(full(GUARDED, "bad")).await.map(drop) });
    gate.wait_waiting(1).await;
    pending.abort();
    // the connection itself goes on; so does the attempt
    assert_eq!(answer(&connection, full("/nowhere", "x")).await.0, 404);
    gate.open();
    gateway.wait_metric("gateway_negative_cache_entries", &[], 1.0).await;
    assert!(answer(&connection, full(GUARDED, "bad")).await.1);
    assert_eq!(upstream.calls(), calls + 1);
    settle(&gateway, 3 + 3).await;
}

#[tokio::test]
async fn h2_04_a_flood_of_resets_harms_nobody_else() {
    let upstream = Upstream::start().await;
    let gate = Gate::new();
    upstream.always(Reply::status(200).wait_for(&gate));
    let gateway = Gateway::with(&upstream.url(), &[("UPSTREAM", "pool:\n  max_in_flight: 4")]).await;
    let neighbour = connect(gateway.addr).await;
    for _ in 0..3 {
        let connection = connect(gateway.addr).await;
        for n in 0..1000 {
            let mut stream = connection.clone();
            let pending =
                tokio::spawn(async move { stream.send_request(full(PASSING, "x")).await.map(drop) });
            if n % 2 == 0 {
                tokio::task::yield_now().await;
            }
            pending.abort();
        }
    }
    gateway.wait_metric("gateway_pool_in_use", &[], 0.0).await;
    gate.open();
    assert_eq!(answer(&neighbour, full(PASSING, "fine")).await.0, 200);
    assert_eq!(post(&gateway, GUARDED, "fine").await.status, 200);
    let requests = gateway.metric("gateway_requests_total", &[]).await;
    settle(&gateway, requests as usize).await;
}

#[tokio::test]
async fn h2_05_a_no_in_the_middle_of_an_upload_is_read() {
    let upstream = Upstream::start().await;
    let gateway = Gateway::with(&upstream.url(), &[("TOP", "limits:\n  body_max_bytes: 1048576")]).await;
    let connection = connect(gateway.addr).await;
    let mut requests = 0;
    for round in 0..12 {
        let path = [GUARDED, PASSING][round % 2];
        let (key, status, code) = match round % 3 {
            0 => ("tok-none", 401, "UNAUTHENTICATED"),
            _ => ("tok-1", 413, "BODY_TOO_LARGE"),
        };
        // with a length that says it at once, or without
        let body = Bytes::from(vec![b'x'; 20 << 20]);
        let request = if round % 4 < 2 {
            request(path, key, whole(body))
        } else {
            let (mut sender, request) = streaming(path, key);
            tokio::spawn(async move {
                for piece in body.chunks(64 << 10) {
                    if sender.send_data(body.slice_ref(piece)).await.is_err() {
                        return;
                    }
                }
            });
            request
        };
        let response =
            tokio::time::timeout(PATIENCE, connection.clone().send_request(request)).await.unwrap();
        let response = response.unwrap_or_else(|error| panic!("round {round}: {error:?}"));
        assert_eq!(response.status().as_u16(), status, "round {round}");
        assert_eq!(response.headers()["x-gateway-error"], code, "round {round}");
        assert!(!response.headers().contains_key("connection"), "not a field of HTTP/2");
        requests += 1;
    }
    assert_eq!(
        answer(&connection, full(GUARDED, "small")).await.0,
        200,
        "the connection is as good as before"
    );
    settle(&gateway, requests + 1).await;
}

#[tokio::test]
async fn h2_06_where_it_is_switched_off_the_preface_is_refused_like_any_other_version() {
    let upstream = Upstream::start().await;
    let gateway = Gateway::with(&upstream.url(), &[("TOP", "http:\n  h2: false")]).await;
    let mut client = Client::connect(gateway.addr).await;
    client.send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
    let answer = client.read_answer().await;
    assert!(matches!(answer.status, 400 | 501 | 505), "{answer:?}");
    assert!(answer.header("x-gateway-error").is_some(), "{answer:?}");
    assert!(client.closed_by_peer().await);
    assert_eq!(post(&gateway, GUARDED, "x").await.status, 200);
    settle(&gateway, 1).await;
}

#[tokio::test]
async fn h2_07_a_client_that_opens_no_window_is_given_up_and_holds_no_place() {
    let upstream = Upstream::start().await;
    let top = "http:\n  write_stall_timeout_ms: 500";
    let pool = "pool:\n  max_in_flight: 2\n  queue_timeout_ms: 15000";
    let gateway = Gateway::with(&upstream.url(), &[("TOP", top), ("UPSTREAM", pool)]).await;
    let mut large = vec![Step::chunk(vec![b'x'; 256 << 10]); 32];
    large.push(Step::LastChunk);
    let endless = vec![Step::chunk("token"), Step::WaitFor(Gate::new()), Step::LastChunk];
    let mut requests = 0;
    // no window at all, or one that is used up and never renewed; a long answer, a short one, and one that goes on
    for (window, name, reply) in [
        (0, "long", Reply::status(200).steps(large.clone())),
        (0, "short", Reply::status(200).body("a short answer")),
        (0, "stream", Reply::status(200).steps(endless)),
        (65_535, "long", Reply::status(200).steps(large)),
    ] {
        for (path, connections) in [(GUARDED, 1), (PASSING, 1), (PASSING, 2)] {
            let case = format!("window {window}, {name} answer, {path}, {connections} connections");
            upstream.always(reply.clone());
            let calls = upstream.calls();
            let mut stalled = Vec::new();
            for n in 0..2 {
                if n < connections {
                    stalled.push((connect_with(gateway.addr, Some(window)).await, Vec::new()));
                }
                let (connection, responses) = stalled.last_mut().unwrap();
                let request = full(path, format!("{case}, {n}"));
                let response = tokio::time::timeout(PATIENCE, connection.clone().send_request(request)).await;
                let response = response.unwrap().unwrap();
                assert_eq!(response.status().as_u16(), 200, "{case}");
                responses.push(response);
                requests += 1;
            }
            assert_eq!(upstream.calls(), calls + 2, "{case}");
            upstream.always(Reply::status(200).body("next"));
            let neighbour = connect(gateway.addr).await;
            let next = answer(&neighbour, full(PASSING, "next"));
            let next = tokio::time::timeout(Duration::from_secs(6), next).await;
            let next = next.unwrap_or_else(|_| panic!("{case}: both places are still taken"));
            assert_eq!((next.0, &next.2[..]), (200, &b"next"[..]), "{case}");
            until(&format!("{case}: both places"), Duration::from_secs(6), || async {
                (gateway.metric("gateway_pool_in_use", &[]).await == 0.0).then_some(())
            })
            .await;
            requests += 1;
        }
    }
    settle(&gateway, requests).await;

    // a stream in which nothing is due for longer than that is not a client that does not read
    let gate = Gate::new();
    let steps = vec![
        Step::chunk("one"),
        Step::Pause(Duration::from_millis(1500)),
        Step::chunk("two"),
        Step::LastChunk,
    ];
    upstream.script(vec![Reply::status(200).steps(steps), Reply::status(200).wait_for(&gate)]);
    let connection = connect(gateway.addr).await;
    let (slow, silent, calls) = (connection.clone(), connection.clone(), upstream.calls());
    let slow = tokio::spawn(async move { answer(&slow, full(PASSING, "x")).await });
    upstream.wait_calls(calls + 1).await;
    let silent = tokio::spawn(async move { answer(&silent, full(GUARDED, "y")).await });
    gate.wait_waiting(1).await;
    assert_eq!(&slow.await.unwrap().2[..], b"onetwo");
    gate.open();
    assert_eq!(silent.await.unwrap().0, 200);
    settle(&gateway, requests + 2).await;
}

#[tokio::test]
async fn h2_08_an_idle_connection_is_closed_and_one_that_waits_for_its_answer_is_not() {
    const SOON: Duration = Duration::from_secs(10);
    let upstream = Upstream::start().await;
    let top = "http:\n  keep_alive_timeout_ms: 1000\n  header_timeout_ms: 1000\n  body_idle_timeout_ms: 1000";
    let gateway = Gateway::with(&upstream.url(), &[("TOP", top)]).await;
    // the preface and nothing; the preface, its settings and nothing; half a preface
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let settings = b"\0\0\0\x04\0\0\0\0\0";
    let mut silent = JoinSet::new();
    for sent in [preface.to_vec(), [&preface[..], &settings[..]].concat(), preface[..9].to_vec()] {
        let mut client = Client::connect(gateway.addr).await.patience(SOON);
        client.send(&sent).await.unwrap();
        silent.spawn(async move { assert!(ends(&mut client).await, "after {} bytes", sent.len()) });
    }
    one_request_then_idle(gateway.addr, SOON).await;
    while let Some(ended) = silent.join_next().await {
        ended.unwrap();
    }
    // twice as long as any limit, in two requests one after the other
    upstream.always(Reply::status(200).delay(Duration::from_millis(2000)));
    let connection = connect(gateway.addr).await;
    for path in [GUARDED, PASSING] {
        assert_eq!(answer(&connection, full(path, "x")).await.0, 200, "{path}: waiting is not idling");
    }
    until("the end of the connection", SOON, || async { connection.is_closed().then_some(()) }).await;
    gateway.wait_metric("gateway_connections", &[], 0.0).await;
    settle(&gateway, 3).await;
}

#[tokio::test]
async fn h2_09_an_exchange_that_is_given_up_is_over_although_its_client_stays() {
    const SOON: Duration = Duration::from_secs(10);
    let upstream = Upstream::start().await;
    let mut large = vec![Step::chunk(vec![b'x'; 256 << 10]); 32];
    large.push(Step::LastChunk);
    upstream.always(Reply::status(200).steps(large));
    let top = "http:\n  write_stall_timeout_ms: 500\n  keep_alive_timeout_ms: 1000";
    let gateway = Gateway::with(&upstream.url(), &[("TOP", top)]).await;
    for (window, lines) in [(0, 1), (65_535, 2)] {
        let connection = connect_with(gateway.addr, Some(window)).await;
        let response = connection.clone().send_request(full(PASSING, "x"));
        let response = tokio::time::timeout(PATIENCE, response).await.unwrap().unwrap();
        upstream.wait_peer_closed(lines).await;
        // its line does not wait for the client, which still answers pings, and neither does the end of the connection
        let line = gateway.wait_audit(lines as usize).await.pop().unwrap();
        assert_eq!(line["end"], "client_closed", "window {window}: {line}");
        until("the end of the connection", SOON, || async { connection.is_closed().then_some(()) }).await;
        drop(response);
    }
    settle(&gateway, 2).await;
}
