//! The stub upstream and the client against each other: what they claim about the wire has to be so.

use std::time::{Duration, Instant};

use nevertwice_testkit::client::h2_post;
use nevertwice_testkit::{
    Client, DOC, DOC2, Failure, Gate, Post, Reply, Request, Step, Upstream, get, r400, random_document,
};

#[tokio::test]
async fn the_stub_counts_and_keeps_bytes() {
    let upstream = Upstream::start().await;
    upstream.always(r400());
    let mut client = Client::connect(upstream.addr()).await;
    for body in [&DOC[..], &DOC2[..]] {
        let answer =
            client.request(Request::post("/classify?x=%2C").header("X-Odd", b"a\xe9").body(body)).await;
        assert_eq!((answer.status, answer.reason.as_str()), (400, "Bad Request"));
        assert_eq!(answer.body, r#"{"error":"unreadable page"}"#);
        assert_eq!(answer.headers_named("content-length"), [b"27"]);
        assert!(answer.complete && !answer.is_hit());
    }
    client.request(Request::get("/health")).await;
    assert_eq!((upstream.calls(), upstream.calls_to("/classify"), upstream.connections()), (3, 2, 1));
    let seen = &upstream.requests()[0];
    assert_eq!(
        (seen.method.as_str(), seen.target.as_str(), seen.path()),
        ("POST", "/classify?x=%2C", "/classify")
    );
    assert_eq!(seen.headers_named("x-odd"), [b"a\xe9"]);
    assert_eq!(seen.header("Content-Length").as_deref(), Some("4096"));
    assert!(seen.body == DOC[..] && seen.body_complete && seen.problems.is_empty());
    assert!(seen.raw().starts_with(b"POST /classify?x=%2C HTTP/1.1\r\n") && seen.raw().ends_with(&DOC));
    assert_eq!((seen.number, seen.connection, seen.body_len), (1, 1, 4096));
}

#[tokio::test]
async fn chunked_bodies_are_decoded_and_kept_raw() {
    let upstream = Upstream::start().await;
    upstream.always(Reply::status(200).chunked(vec!["{\"a\":", "12}"]).trailer("X-Sum", "1"));
    let answer = Post::to(upstream.addr(), "/").body(&DOC[..]).chunked(7).send().await;
    assert_eq!((&answer.body[..], answer.complete), (&b"{\"a\":12}"[..], true));
    assert_eq!(answer.raw_body, "5\r\n{\"a\":\r\n3\r\n12}\r\n0\r\nX-Sum: 1\r\n\r\n");
    assert_eq!(answer.trailers, [("X-Sum".to_owned(), b"1".to_vec())]);
    let seen = upstream.last_request();
    assert_eq!(seen.body, DOC[..]);
    assert!(seen.raw().ends_with(b"\r\n0\r\n\r\n") && seen.raw().len() > 4096 + 585 * 5);

    let mut client = Client::connect(upstream.addr()).await;
    let wire = "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n0\r\nX-T: 2\r\n\r\n";
    assert_eq!(client.send(wire).await, Ok(()));
    client.read_answer().await;
    let seen = upstream.last_request();
    assert_eq!((&seen.body[..], seen.raw()), (&b"abc"[..], wire.as_bytes().to_vec()));
    assert_eq!(seen.trailers, [("X-T".to_owned(), b"2".to_vec())]);
}

#[tokio::test]
async fn bytes_after_a_request_are_the_next_request() {
    let upstream = Upstream::start().await;
    upstream.script(vec![Reply::status(201), Reply::status(202)]);
    let mut client = Client::connect(upstream.addr()).await;
    let wire = "POST /a HTTP/1.1\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /b HTTP/1.1\r\n\r\n";
    assert_eq!(client.send(wire).await, Ok(()));
    assert_eq!(client.read_answer().await.status, 201);
    assert_eq!(client.read_answer().await.status, 202);
    assert_eq!((upstream.calls(), upstream.calls_to("/b")), (2, 1));
    assert_eq!(upstream.requests()[0].problems, ["content-length and transfer-encoding together"]);
    assert_eq!(client.request(Request::get("/c")).await.status, 202, "the last reply repeats");

    upstream.always(Reply::status(200).close_after());
    assert_eq!(client.send("GET /d HTTP/1.1\r\n\r\nGET /e HTTP/1.1\r\n\r\n").await, Ok(()));
    assert_eq!(client.read_answer().await.header("connection").as_deref(), Some("close"));
    upstream.wait_until("surplus noted", |it| !it.last_request().problems.is_empty()).await;
    assert_eq!(upstream.calls_to("/e"), 0);
}

#[tokio::test]
async fn a_body_that_never_completes_is_a_call() {
    let upstream = Upstream::start().await;
    let mut client = Client::connect(upstream.addr()).await;
    assert_eq!(client.send("POST / HTTP/1.1\r\nContent-Length: 100\r\n\r\nabc").await, Ok(()));
    upstream.wait_calls(1).await;
    upstream.wait_until("three bytes", |it| it.body_bytes() == 3).await;
    client.close().await;
    upstream.wait_closed().await;
    let seen = upstream.last_request();
    assert_eq!((&seen.body[..], seen.body_len, seen.body_complete), (&b"abc"[..], 3, false));
    assert_eq!((upstream.peer_closed(), upstream.calls()), (1, 1));
    upstream.wait_until("no connection", |it| it.open_connections() == 0).await;
}

#[tokio::test]
async fn a_client_that_goes_is_noticed_while_the_answer_waits() {
    let upstream = Upstream::start().await;
    let gate = Gate::new();
    upstream.always(Reply::status(200).wait_for(&gate));
    for reset in [false, true] {
        let before = upstream.peer_closed();
        let mut client = Client::connect(upstream.addr()).await;
        assert_eq!(client.try_send_request(Request::post("/").body("x")).await, Ok(()));
        gate.wait_waiting(1).await;
        if reset {
            client.reset();
        } else {
            client.close().await;
        }
        upstream.wait_peer_closed(before + 1).await;
    }
}

#[tokio::test]
async fn a_gate_says_when_the_answer_goes_out() {
    let upstream = Upstream::start().await;
    let gate = Gate::new();
    upstream.always(Reply::status(200).header("Content-Length", "6").steps(vec![
        Step::write("abc"),
        Step::WaitFor(gate.clone()),
        Step::write("def"),
    ]));
    let mut client = Client::connect(upstream.addr()).await;
    assert_eq!(client.try_send_request(Request::get("/")).await, Ok(()));
    assert_eq!(client.read_head().await.status, 200);
    let first = client.read_some().await.map(|some| some.map(|arrived| arrived.bytes));
    assert_eq!(first, Ok(Some("abc".into())));
    let opened = Instant::now();
    gate.open();
    let second = client.read_some().await.ok().flatten();
    assert!(second.is_some_and(|arrived| arrived.bytes == "def" && arrived.at >= opened));
    assert!(matches!(client.read_some().await, Ok(None)));
    assert_eq!(client.request(Request::get("/again")).await.body, "abcdef");
}

#[tokio::test]
async fn dripped_answers_arrive_in_pieces() {
    let upstream = Upstream::start().await;
    upstream.always(Reply::status(200).body("abcdef").drip(1, Duration::from_millis(20)));
    let mut client = Client::connect(upstream.addr()).await;
    assert_eq!(client.try_send_request(Request::get("/")).await, Ok(()));
    client.read_head().await;
    let mut pieces = Vec::new();
    while let Ok(Some(arrived)) = client.read_some().await {
        pieces.push(arrived);
    }
    let whole: Vec<u8> = pieces.iter().flat_map(|arrived| arrived.bytes.to_vec()).collect();
    assert_eq!(whole, b"abcdef");
    assert!(pieces.len() > 1, "{pieces:?}");
    assert!(pieces.is_sorted_by_key(|arrived| arrived.at));
}

#[tokio::test]
async fn cut_answers_are_not_complete() {
    let upstream = Upstream::start().await;
    let chunked = Reply::status(200).steps(vec![Step::chunk("abc"), Step::Close]);
    let short = Reply::status(200).header("Content-Length", "9").steps(vec![Step::write("abc"), Step::Close]);
    let whole = Reply::status(200).steps(vec![Step::write("abc")]);
    upstream.script(vec![chunked, short, whole]);
    for complete in [false, false, true] {
        let answer = get(upstream.addr(), "/").await;
        assert_eq!((&answer.body[..], answer.complete), (&b"abc"[..], complete));
    }
    // A reset may overtake what was written before it, so the client must have that first.
    let gate = Gate::new();
    upstream.always(Reply::status(200).steps(vec![
        Step::chunk("abc"),
        Step::WaitFor(gate.clone()),
        Step::Reset,
    ]));
    let mut client = Client::connect(upstream.addr()).await;
    assert_eq!(client.try_send_request(Request::get("/")).await, Ok(()));
    client.read_head().await;
    assert!(matches!(client.read_some().await, Ok(Some(_))));
    gate.open();
    assert_eq!(client.read_some().await.err(), Some(Failure::Reset));
    assert_eq!(upstream.peer_closed(), 0);
}

#[tokio::test]
async fn no_answer_is_told_apart() {
    let upstream = Upstream::start().await;
    upstream.script(vec![
        Reply::hang_up(),
        Reply::reset(),
        Reply::raw("HTTP/1.1 4000\r\n\r\n"),
        Reply::stall(),
    ]);
    let post = || Post::to(upstream.addr(), "/").body("x").try_send();
    assert_eq!(post().await.err(), Some(Failure::Closed));
    assert_eq!(post().await.err(), Some(Failure::Reset));
    assert!(matches!(post().await.err(), Some(Failure::Malformed(_))));
    let mut client = Client::connect(upstream.addr()).await.patience(Duration::from_millis(100));
    assert_eq!(client.try_request(Request::get("/")).await.err(), Some(Failure::TimedOut));
    let before = upstream.peer_closed();
    drop(client);
    upstream.wait_peer_closed(before + 1).await;
}

#[tokio::test]
async fn continue_is_asked_and_given() {
    let upstream = Upstream::start().await;
    let document = random_document(9, 2 << 20);
    let answer = Post::to(upstream.addr(), "/").body(document.clone()).expect_continue().send().await;
    assert_eq!((answer.status, answer.interim), (200, vec![100]));
    assert_eq!(upstream.last_request().body, document);

    upstream.always(Reply::status(413).answer_early().close_after());
    let answer = Post::to(upstream.addr(), "/").body(document).expect_continue().send().await;
    assert_eq!((answer.status, answer.interim), (413, vec![]));
    upstream.wait_closed().await;
    assert_eq!((upstream.calls(), upstream.last_request().body_len), (2, 0));
}

#[tokio::test]
async fn early_answers_do_not_wait_for_the_body() {
    let upstream = Upstream::start().await;
    upstream.always(Reply::status(401).body("no").answer_early());
    let mut client = Client::connect(upstream.addr()).await;
    assert_eq!(client.send("POST / HTTP/1.1\r\nContent-Length: 6\r\n\r\nabc").await, Ok(()));
    assert_eq!(client.read_answer().await.status, 401);
    assert!(!upstream.last_request().body_complete);
    assert_eq!(client.send("def").await, Ok(()));
    upstream.wait_complete(1).await;
    assert_eq!(client.request(Request::get("/next")).await.status, 401, "the connection is in step");

    upstream.always(Reply::status(413).body("big").answer_early().close_after());
    let answer = Post::to(upstream.addr(), "/").body(vec![0; 64 << 20]).send().await;
    assert_eq!((answer.status, &answer.body[..]), (413, &b"big"[..]));
}

#[tokio::test]
async fn slow_reading_takes_small_steps() {
    let upstream = Upstream::start().await;
    upstream.by_head(|seen, number| {
        assert!(seen.body.is_empty());
        Reply::status(200).body(number.to_string()).read_slowly(1000, Duration::from_millis(1))
    });
    let answer = Post::to(upstream.addr(), "/").body(&DOC[..]).send().await;
    assert_eq!((&answer.body[..], &upstream.last_request().body[..]), (&b"1"[..], &DOC[..]));
}

#[tokio::test]
async fn a_function_answers_by_the_body() {
    let upstream = Upstream::start().await;
    upstream.by(|seen, number| match &seen.body[..] {
        b"good" => Reply::status(200).body(number.to_string()),
        _ => r400(),
    });
    for (body, status) in [("bad", 400), ("good", 200), ("", 400)] {
        assert_eq!(Post::to(upstream.addr(), "/").body(body).send().await.status, status, "{body:?}");
    }
}

#[tokio::test]
async fn kept_bytes_have_a_cap() {
    let upstream = Upstream::start().await;
    upstream.keep(10, 15);
    for _ in 0..3 {
        Post::to(upstream.addr(), "/").body(&DOC[..]).send().await;
    }
    let seen = upstream.requests();
    let kept: Vec<usize> = seen.iter().map(|one| one.body.len()).collect();
    assert!(kept[0] <= 10 && kept.iter().sum::<usize>() <= 15, "{kept:?}");
    assert!(seen.iter().all(|one| one.body_len == 4096 && one.body_complete));
    assert!(seen.iter().all(|one| one.body_sha256 == seen[0].body_sha256 && one.body_sha256.len() == 64));
}

#[tokio::test]
async fn idle_connections_are_closed_when_told() {
    let upstream = Upstream::start().await;
    upstream.idle_close(Duration::from_millis(50));
    let mut client = Client::connect(upstream.addr()).await;
    assert_eq!(client.request(Request::get("/")).await.status, 200);
    assert!(client.closed_by_peer().await);
    assert_eq!(upstream.peer_closed(), 0);
}

#[tokio::test]
async fn a_stopped_upstream_refuses_and_comes_back() {
    let upstream = Upstream::start().await;
    let mut client = Client::connect(upstream.addr()).await;
    assert_eq!(client.request(Request::get("/")).await.status, 200);
    upstream.stop().await;
    assert!(client.closed_by_peer().await);
    assert_eq!(upstream.open_connections(), 0);
    assert!(matches!(Client::try_connect(upstream.addr()).await.err(), Some(Failure::Connect(_))));
    upstream.restart().await;
    assert_eq!(get(upstream.addr(), "/").await.status, 200);
    assert_eq!((upstream.calls(), upstream.connections()), (2, 2));
}

#[tokio::test]
async fn interim_answers_and_bodiless_ones() {
    let upstream = Upstream::start().await;
    upstream.script(vec![
        Reply::status(200).interim(103).body("x"),
        Reply::status(204),
        Reply::status(200).body("y"),
    ]);
    let mut client = Client::connect(upstream.addr()).await;
    assert_eq!(client.request(Request::get("/")).await.interim, [103]);
    let empty = client.request(Request::get("/")).await;
    assert_eq!((empty.status, empty.body.len(), empty.complete), (204, 0, true));
    let head = client.request(Request::new("HEAD", "/")).await;
    assert_eq!((head.header("content-length").as_deref(), head.body.len()), (Some("1"), 0));
    assert_eq!(client.request(Request::get("/")).await.body, "y");
}

#[tokio::test]
async fn many_at_once_are_all_counted() {
    let upstream = Upstream::start().await;
    let gate = Gate::new();
    upstream.always(r400().wait_for(&gate));
    let mut posts = tokio::task::JoinSet::new();
    for number in 0..50 {
        posts.spawn(Post::to(upstream.addr(), &format!("/{number}")).body(&DOC[..]).send());
    }
    upstream.wait_calls(50).await;
    assert_eq!(upstream.open_connections(), 50);
    gate.open();
    let answers = posts.join_all().await;
    assert!(answers.iter().all(|answer| answer.status == 400 && answer.complete));
}

#[tokio::test]
async fn http2_is_spoken_by_prior_knowledge() {
    use hyper::StatusCode;
    use hyper_util::rt::{TokioExecutor, TokioIo};

    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await;
    let (addr, listener) = match listener.and_then(|it| Ok((it.local_addr()?, it))) {
        Ok(bound) => bound,
        Err(error) => unreachable!("{error}"),
    };
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn(async move {
        let Ok((stream, _)) = listener.accept().await else { return };
        let service = hyper::service::service_fn(|request: hyper::Request<hyper::body::Incoming>| async {
            let typed = request.headers().contains_key("content-type");
            let mut echo = hyper::Response::new(request.into_body());
            *echo.status_mut() = if typed { StatusCode::UNSUPPORTED_MEDIA_TYPE } else { StatusCode::OK };
            Ok::<_, std::convert::Infallible>(echo)
        });
        let _ = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
            .serve_connection(TokioIo::new(stream), service)
            .await;
    });
    let answer = h2_post(addr, "/classify", &[("content-type", "application/pdf")], &DOC[..]).await;
    assert_eq!((answer.status, &answer.body[..], answer.complete), (415, &DOC[..], true));
}
