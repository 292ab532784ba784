//! The key: what makes two submissions the same one, whoever sends them and however they are framed, and what makes
//! them different; and that what goes upstream is what the client sent, byte for byte.

use nevertwice_testkit::client::h2_post;
use nevertwice_testkit::{
    Answer, Client, DOC, DOC2, Gateway, Part, Reply, Request, Upstream, multipart, r400,
};
use serde_json::json;

use crate::bench::settle;
use crate::caller::{
    CLASSIFY, LAYOUT, assert_live, assert_own, assert_replay, entry_count, submit, submit_as,
};

/// A gateway in front of an upstream that refuses everything.
async fn refusing() -> (Upstream, Gateway) {
    let upstream = Upstream::start().await;
    upstream.always(r400());
    let gateway = Gateway::simple(&upstream.url()).await;
    (upstream, gateway)
}

/// Sends documents and tells which of them went to the upstream.
struct Asked<'a> {
    upstream: &'a Upstream,
    gateway: &'a Gateway,
    requests: usize,
}

impl<'a> Asked<'a> {
    fn new(upstream: &'a Upstream, gateway: &'a Gateway) -> Self {
        Self { upstream, gateway, requests: 0 }
    }

    /// Sends a document with these fields and says whether it went to the upstream; then the upstream got its very bytes.
    async fn goes_up(&mut self, path: &str, fields: &[(&str, &str)], body: &[u8]) -> bool {
        let before = self.upstream.calls();
        let post =
            fields.iter().fold(submit(self.gateway, path), |post, (name, value)| post.header(name, value));
        let answer = post.body(body.to_vec()).send().await;
        self.requests += 1;
        let went = self.upstream.calls() - before;
        assert_eq!(u64::from(!answer.is_hit()), went, "{path} {fields:?}: {:?}", answer.headers);
        if went == 1 {
            let seen = self.upstream.last_request();
            assert_eq!(seen.body, body, "{path} {fields:?}");
            assert_eq!(format!("/doc-classifier{}", seen.target), path);
            assert!(seen.problems.is_empty(), "{:?}", seen.problems);
            for (name, value) in fields {
                if ["content-type", "content-encoding", "content-language", "accept"]
                    .contains(&name.to_ascii_lowercase().as_str())
                {
                    assert!(
                        seen.headers_named(name).contains(&value.as_bytes()),
                        "{name}: {:?}",
                        seen.headers
                    );
                }
            }
        }
        went == 1
    }
}

fn form(boundary: &str, name: &str, document: &[u8], lang: &str) -> (String, Vec<u8>) {
    multipart(boundary, &[Part::file("file", name, "application/pdf", document), Part::field("lang", lang)])
}

#[tokio::test]
async fn fp_01_forms_are_known_whatever_their_boundary() {
    let (upstream, gateway) = refusing().await;
    let mut asked = Asked::new(&upstream, &gateway);
    let random = "X9f4bPq7ZkD2mW8sLc1vTn";
    for (boundary, goes) in
        [("aaaa", true), (random, false), ("bb bb", false), ("------WebKitFormBoundaryx7", false)]
    {
        let (content_type, body) = form(boundary, "a.pdf", &DOC, "en");
        let went = asked.goes_up(CLASSIFY, &[("Content-Type", &content_type)], &body).await;
        assert_eq!(went, goes, "{content_type}");
    }
    // What carries no meaning: the case of names, blanks, the order of a part's fields, quotes around a boundary.
    let (_, body) = form("q", "a.pdf", &DOC, "en");
    for content_type in [
        "multipart/form-data; boundary=q",
        "Multipart/Form-Data ; Boundary=\"q\"",
        "multipart/form-data;boundary=q",
    ] {
        assert!(!asked.goes_up(CLASSIFY, &[("Content-Type", content_type)], &body).await, "{content_type}");
    }
    // What no sender writes and some reader may refuse is another request.
    for content_type in [
        "multipart/form-data;  boundary=q",
        "multipart/form-data; boundary=q;",
        "multipart/form-data;\tboundary=q",
        "multipart/form-data; boundary=\"\\q\"",
    ] {
        assert!(asked.goes_up(CLASSIFY, &[("Content-Type", content_type)], &body).await, "{content_type}");
    }
    let respelt = [
        &b"--q\r\ncontent-type:application/pdf\r\nCONTENT-DISPOSITION:form-data; name=\"file\"; filename=\"a.pdf\"\r\n\r\n"[..],
        &DOC[..],
        b"\r\n--q\r\nContent-Disposition: form-data; name=\"lang\"\r\n\r\nen\r\n--q--\r\n",
    ]
    .concat();
    let q = ("Content-Type", "multipart/form-data; boundary=q");
    assert!(!asked.goes_up(CLASSIFY, &[q], &respelt).await);

    // What carries meaning: each of these is another submission, once.
    let part = |name, content| Part::file(name, "a.pdf", "application/pdf", content);
    let mut other = DOC;
    other[4095] ^= 1;
    let lang = Part::field("lang", "en");
    let typed = Part { content_type: Some("image/png"), ..part("file", &DOC) };
    let extra = Part { extra_headers: &[("Content-Transfer-Encoding", "binary")], ..part("file", &DOC) };
    let named = Part { filename: Some("b.pdf"), ..part("file", &DOC) };
    let shapes: [(&str, &[Part<'_>]); 9] = [
        ("another byte", &[part("file", &other), lang]),
        ("another field value", &[part("file", &DOC), Part::field("lang", "de")]),
        ("another order", &[lang, part("file", &DOC)]),
        ("a field less", &[part("file", &DOC)]),
        ("a field twice", &[part("file", &DOC), lang, lang]),
        ("another field name", &[part("document", &DOC), lang]),
        ("another part type", &[typed, lang]),
        ("another part header", &[extra, lang]),
        ("another file name", &[named, lang]),
    ];
    for (what, parts) in shapes {
        for (boundary, goes) in [("one", true), ("two", false)] {
            let (content_type, body) = multipart(boundary, parts);
            let went = asked.goes_up(CLASSIFY, &[("Content-Type", &content_type)], &body).await;
            assert_eq!(went, goes, "{what} with {boundary}");
        }
    }
    let preamble = [b"hello\r\n", &respelt[..]].concat();
    assert!(asked.goes_up(CLASSIFY, &[q], &preamble).await, "a preamble counts");
    settle(&gateway, asked.requests).await;
}

#[tokio::test]
async fn fp_01_what_is_no_strict_form_is_keyed_and_sent_as_it_is() {
    let (upstream, gateway) = refusing().await;
    let mut asked = Asked::new(&upstream, &gateway);
    let (_, body) = form("q", "a.pdf", &DOC, "en");
    let text = String::from_utf8_lossy(&body).into_owned();
    let typed = "multipart/form-data; boundary=q";
    let bodies: [(&str, &str, Vec<u8>); 9] = [
        ("no close delimiter", typed, body[..body.len() - 6].to_vec()),
        ("bare line feeds", typed, text.replace("\r\n", "\n").into_bytes()),
        (
            "folded field",
            typed,
            b"--q\r\nContent-Disposition: form-data;\r\n name=a\r\n\r\nx\r\n--q--\r\n".to_vec(),
        ),
        (
            "field twice",
            typed,
            b"--q\r\nContent-Disposition: form-data; name=a\r\nX: 1\r\nX: 1\r\n\r\nx\r\n--q--\r\n".to_vec(),
        ),
        (
            "boundary inside",
            typed,
            b"--q\r\nContent-Disposition: form-data; name=a\r\n\r\nx--q\r\n--q--\r\n".to_vec(),
        ),
        ("two boundaries", "multipart/form-data; boundary=q; boundary=r", body.clone()),
        ("another boundary", "multipart/form-data; boundary=other", body.clone()),
        ("no boundary", "multipart/form-data", body.clone()),
        ("mixed, not form-data", "multipart/mixed; boundary=q", body.clone()),
    ];
    for (what, content_type, body) in bodies {
        for goes in [true, false] {
            let went = asked.goes_up(CLASSIFY, &[("Content-Type", content_type)], &body).await;
            assert_eq!(went, goes, "{what}");
        }
    }
    // A coded form is not decoded: its boundary counts, and so does the coding.
    for (coding, content_type, goes) in
        [("gzip", typed, true), ("gzip", typed, false), ("gzip", "multipart/form-data; boundary=\"q\"", true)]
    {
        let fields = [("Content-Type", content_type), ("Content-Encoding", coding)];
        assert_eq!(asked.goes_up(CLASSIFY, &fields, &body).await, goes, "{content_type}");
    }
    assert!(
        asked.goes_up(CLASSIFY, &[("Content-Type", typed)], &body).await,
        "read as a form it is another one"
    );
    settle(&gateway, asked.requests).await;
}

#[tokio::test]
async fn fp_04_the_label_of_the_document_is_in_the_key() {
    let upstream = Upstream::start().await;
    let gateway = Gateway::simple(&upstream.url()).await;
    upstream.by(|seen, _| match seen.header("content-type").unwrap_or_default().to_lowercase() {
        label if label.starts_with("application/octet-stream") => Reply::status(200),
        _ => r400(),
    });
    let mut asked = Asked::new(&upstream, &gateway);
    let mut typed = async |label: &str| asked.goes_up(CLASSIFY, &[("Content-Type", label)], &DOC).await;
    assert!(typed("application/json").await);
    assert!(typed("application/octet-stream").await, "the same bytes with another label");
    assert!(typed("Application/Octet-Stream ; charset=x").await);
    // Letter case and blanks of type and parameter names are not in the key; values of parameters are.
    for label in ["application/json", "Application/JSON", "application/json "] {
        assert!(!typed(label).await, "{label:?}");
    }
    for label in ["APPLICATION/json;", "application/json;  charset=x"] {
        assert!(typed(label).await, "{label:?}: no sender writes it, so it decides for itself alone");
    }
    assert!(typed("application/json; charset=utf-8").await);
    for label in ["application/json;charset=utf-8", "application/json ; Charset=utf-8"] {
        assert!(!typed(label).await, "{label:?}");
    }
    for label in
        ["application/json; charset=UTF-8", "application/json; charset=\"utf-8\"", "json", "", "a/b; x=\""]
    {
        assert!(typed(label).await && !typed(label).await, "{label:?}");
    }
    // No label, two labels, another language, another coding, another wish.
    let sets: [&[(&str, &str)]; 7] = [
        &[],
        &[("Content-Type", "application/json"), ("Content-Type", "application/pdf")],
        &[("Content-Type", "application/pdf"), ("Content-Type", "application/json")],
        &[("Content-Type", "application/json"), ("Content-Language", "de")],
        &[("Content-Type", "application/json"), ("Content-Encoding", "gzip")],
        &[("Content-Type", "application/json"), ("Accept", "text/html")],
        &[("Content-Type", "application/json"), ("Accept", "text/html, */*")],
    ];
    for fields in sets {
        assert!(asked.goes_up(CLASSIFY, fields, &DOC).await, "{fields:?}");
        assert!(!asked.goes_up(CLASSIFY, fields, &DOC).await, "{fields:?}");
    }
    settle(&gateway, asked.requests).await;
}

#[tokio::test]
async fn fp_08_framing_is_the_connections_business() {
    let (upstream, gateway) = refusing().await;
    let fixed = submit(&gateway, CLASSIFY).body(&DOC[..]).send().await;
    assert_live(&fixed, 400);
    let seen = upstream.last_request();
    assert_eq!((seen.body_len, &seen.body[..], seen.body_complete), (4096, &DOC[..], true));
    assert_eq!(seen.headers_named("content-length"), [b"4096"]);
    assert!(seen.header("transfer-encoding").is_none() && seen.problems.is_empty(), "{:?}", seen.headers);

    let mut chunked = format!(
        "POST {CLASSIFY} HTTP/1.1\r\nHost: gw\r\nAuthorization: Bearer tok-1\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    .into_bytes();
    for piece in DOC.chunks(7) {
        chunked.extend(format!("{:X};note=\"a b\"\r\n", piece.len()).into_bytes());
        chunked.extend(piece);
        chunked.extend(b"\r\n");
    }
    chunked.extend(b"0\r\nX-Trailer: 1\r\n\r\n");
    let mut client = Client::connect(gateway.addr).await;
    assert_eq!(client.send(chunked).await, Ok(()));
    let answers: [Answer; 5] = [
        client.read_answer().await,
        // The connection goes on.
        client.request(Request::post(CLASSIFY).bearer("tok-1").body(&DOC[..]).chunked(4096)).await,
        submit(&gateway, CLASSIFY).body(&DOC[..]).expect_continue().send().await,
        h2_post(gateway.addr, CLASSIFY, &[("authorization", "Bearer tok-1")], &DOC[..]).await,
        h2_post(gateway.addr, CLASSIFY, &[("x-api-key", "tok-2"), ("content-length", "4096")], &DOC[..])
            .await,
    ];
    for answer in &answers {
        assert_replay(&fixed, answer);
    }
    assert_eq!(upstream.calls(), 1);

    // The other way round: what came in chunks goes up with its length.
    let live = submit(&gateway, CLASSIFY).body(&DOC2[..]).chunked(1000).send().await;
    assert_live(&live, 400);
    let seen = upstream.last_request();
    assert_eq!((seen.headers_named("content-length"), &seen.body[..]), (vec![&b"4096"[..]], &DOC2[..]));
    assert!(seen.header("transfer-encoding").is_none() && seen.problems.is_empty());
    assert_replay(&live, &submit(&gateway, CLASSIFY).body(&DOC2[..]).send().await);
    settle(&gateway, 8).await;
}

#[tokio::test]
async fn fp_09_json_is_sent_as_it_came_and_never_hits_another_meaning() {
    let upstream = Upstream::start().await;
    upstream.always(r400());
    let chat = format!("- name: llm\n  adapter: openai\n  base_url: \"{}\"\n  mount: /llm", upstream.url());
    let gateway = Gateway::with(&upstream.url(), &[("UPSTREAMS", &chat)]).await;
    let mut asked = Asked::new(&upstream, &gateway);
    let json = [("Content-Type", "application/json")];
    let odd = b"{\"b\":1.0,\"a\":12345678901234567890,\"c\":\"\\u0026\\/\",\"a\":2,\"e\":1e400 }\n";
    assert!(asked.goes_up(CLASSIFY, &json, odd).await);
    assert!(!asked.goes_up(CLASSIFY, &json, odd).await);
    for body in [
        r#"{"x":1}"#,
        r#"{"x":1.0}"#,
        r#"{"x":"1"}"#,
        r#"{"x":1e0}"#,
        r#"{ "x":1}"#,
        "{\"x\":1}\n",
        r#"{"x":1,"x":1}"#,
        r#"{"x":1,"y":2}"#,
        r#"{"y":2,"x":1}"#,
        r#"{"x":"&"}"#,
        r#"{"x":"\u0026"}"#,
        r#"{"x":null}"#,
        "{}",
        "null",
        "not json",
        "\u{feff}{\"x\":1}",
    ] {
        assert!(asked.goes_up(CLASSIFY, &json, body.as_bytes()).await, "{body} hit another one");
        assert!(!asked.goes_up(CLASSIFY, &json, body.as_bytes()).await, "{body} did not hit itself");
    }
    let requests = asked.requests;
    // On a chat route there is no memory, and the bytes are the client's as well.
    for times in 1..=2 {
        let before = upstream.calls();
        let answer = submit(&gateway, "/llm/v1/chat/completions").body(&odd[..]).send().await;
        assert_live(&answer, 400);
        assert_eq!(upstream.calls() - before, 1, "call {times}");
        assert_eq!(upstream.last_request().body, odd[..]);
        assert_eq!(upstream.last_request().target, "/v1/chat/completions");
    }
    settle(&gateway, requests + 2).await;
}

#[tokio::test]
async fn fp_10_encodings_of_one_file_are_kept_apart() {
    let plain = "+/8AAQL+/w==".repeat(40);
    let lines = plain.as_bytes().chunks(76).map(|line| String::from_utf8_lossy(line).into_owned());
    let lines = lines.collect::<Vec<_>>().join("\\r\\n");
    let source = |text: &str| format!("{{\"base64Source\":\"{text}\"}}");
    let good = source(&plain);
    let bad = [
        source(&lines),
        source(&format!("data:application/pdf;base64,{plain}")),
        source(&plain.replace('+', "-").replace('/', "_")),
        source(&plain.replace('=', "")),
    ];
    let upstream = Upstream::start().await;
    let accepted = good.clone();
    upstream.by(move |seen, _| if seen.body == accepted { Reply::status(202) } else { r400() });
    let gateway = Gateway::simple(&upstream.url()).await;
    let mut asked = Asked::new(&upstream, &gateway);
    let json = [("Content-Type", "application/json")];
    for order in [[0, 1, 2, 3], [2, 0, 3, 1], [3, 2, 1, 0]] {
        assert!(asked.goes_up(CLASSIFY, &json, good.as_bytes()).await);
        for (position, which) in order.into_iter().enumerate() {
            let first = asked.goes_up(CLASSIFY, &json, bad[which].as_bytes()).await;
            assert_eq!(first, order == [0, 1, 2, 3], "form {which} at {position}");
            assert!(!asked.goes_up(CLASSIFY, &json, bad[which].as_bytes()).await, "form {which} hits itself");
            assert!(asked.goes_up(CLASSIFY, &json, good.as_bytes()).await, "the good form is live");
        }
    }
    settle(&gateway, asked.requests).await;
}

#[tokio::test]
async fn fp_11_an_empty_document_is_refused_at_the_edge() {
    let (upstream, gateway) = refusing().await;
    let head = |path: &str, more: &str| {
        format!("POST {path} HTTP/1.1\r\nHost: gw\r\nAuthorization: Bearer tok-1\r\n{more}\r\n")
    };
    let (file_type, empty_file) = multipart("b", &[Part::file("file", "a.pdf", "application/pdf", b"")]);
    let (_, two_files) = multipart(
        "b",
        &[
            Part::file("a", "a.pdf", "a/b", b""),
            Part::file("b", "b.pdf", "a/b", b""),
            Part::field("lang", "en"),
        ],
    );
    let mut requests = 0;
    for path in [CLASSIFY, LAYOUT] {
        let mut shapes = vec![
            head(path, "Content-Length: 0\r\n"),
            head(path, "Transfer-Encoding: chunked\r\n") + "0\r\n\r\n",
            head(path, "Content-Type: application/pdf\r\n"),
            head(path, "Content-Type: multipart/form-data; boundary=b\r\nContent-Length: 7\r\n")
                + "--b--\r\n",
            head(path, "Content-Type: multipart/form-data; boundary=b\r\n"),
        ];
        for body in [&empty_file, &two_files] {
            let fields = format!("Content-Type: {file_type}\r\nContent-Length: {}\r\n", body.len());
            shapes.push(head(path, &fields) + &String::from_utf8_lossy(body));
        }
        for shape in shapes {
            for _ in 0..2 {
                let mut client = Client::connect(gateway.addr).await;
                assert_eq!(client.send(&shape).await, Ok(()));
                assert_own(&client.read_answer().await, 400, "EMPTY_DOCUMENT");
                requests += 1;
            }
        }
        assert_own(
            &h2_post(gateway.addr, path, &[("authorization", "Bearer tok-1")], "").await,
            400,
            "EMPTY_DOCUMENT",
        );
        requests += 1;
    }
    assert_eq!((upstream.calls(), entry_count(&gateway).await), (0, 0));
    // Where the memory does not look, an empty body is the upstream's business.
    assert_live(&submit(&gateway, "/doc-classifier/other").send().await, 400);
    requests += 1;
    // A form without a file part has its fields for a document; one filled file is enough.
    let filled = [Part::file("a", "a.pdf", "a/b", b""), Part::file("b", "b.pdf", "a/b", b"x")];
    for parts in [&[Part::field("text", "")][..], &filled] {
        let (content_type, body) = multipart("b", parts);
        for path in [CLASSIFY, LAYOUT] {
            let send =
                || submit(&gateway, path).header("Content-Type", &content_type).body(body.clone()).send();
            let live = send().await;
            assert_live(&live, 400);
            assert_replay(&live, &send().await);
            requests += 2;
        }
    }
    assert_eq!(upstream.calls(), 5);
    let lines = settle(&gateway, requests).await;
    let empty = lines.iter().filter(|line| line["code"] == "EMPTY_DOCUMENT").count();
    assert_eq!(empty, requests - 9);
}

#[tokio::test]
async fn fp_13_the_query_is_keyed_and_sent_raw() {
    let upstream = Upstream::start().await;
    let gateway = Gateway::simple(&upstream.url()).await;
    upstream.by(|seen, _| if seen.target.contains("api-version=2") { Reply::status(202) } else { r400() });
    let mut asked = Asked::new(&upstream, &gateway);
    let mut send = async |query: &str| asked.goes_up(&format!("{CLASSIFY}{query}"), &[], &DOC).await;
    assert!(send("?api-version=1&pages=1").await);
    assert!(!send("?api-version=1&pages=1").await);
    assert!(send("?api-version=2&pages=1").await && send("?api-version=2&pages=1").await);
    // The documented rule: raw. Order, junk and escapes count, since nobody knows what an upstream makes of them.
    for query in [
        "?pages=1&api-version=1",
        "?api-version=1&pages=1&_=77",
        "?api-version=1&pages=1%2C2",
        "?api-version=1&pages=1,2",
        "?api-version=1&pages=1%2c2",
        "",
        "?",
        "?&",
        "?api-version=1&pages=1&",
        "?api-version=1;pages=1",
        "?a=b?c",
        "?%zz",
        "?q=%00",
        "?q=a+b",
        "?q=a%20b",
    ] {
        assert!(send(query).await, "{query} hit another one");
        assert!(!send(query).await, "{query} did not hit itself");
    }
    settle(&gateway, asked.requests).await;
}

/// Method, path, fields and body of a submission.
type Judge<'a> = (&'a str, &'a str, Vec<(&'a str, String)>, Vec<u8>);

#[tokio::test]
async fn fp_14_a_verdict_belongs_to_the_document_and_its_judge() {
    let upstream = Upstream::start().await;
    upstream.always(r400());
    let second = format!(
        "- name: second\n  adapter: sync-facade\n  base_url: \"{}\"\n  mount: /second\n  sync_paths: [/classify]",
        upstream.url()
    );
    let slots = [("UPSTREAM", "negative_cache: { key_headers: [X-Model] }"), ("UPSTREAMS", &second)];
    let gateway = Gateway::with(&upstream.url(), &slots).await;
    let field =
        |model| multipart("b", &[Part::field("model", model), Part::file("file", "a.pdf", "a/b", &DOC)]);
    let json = |model: &str| (json!({"model": model, "base64Source": "JVBERg=="})).to_string().into_bytes();
    let octets = "application/octet-stream".to_owned();
    let judges: Vec<Judge<'_>> = vec![
        ("POST", CLASSIFY, vec![("Content-Type", octets.clone())], DOC.to_vec()),
        ("POST", LAYOUT, vec![("Content-Type", octets.clone())], DOC.to_vec()),
        ("POST", "/second/classify", vec![("Content-Type", octets.clone())], DOC.to_vec()),
        ("PUT", CLASSIFY, vec![("Content-Type", octets.clone())], DOC.to_vec()),
        ("PATCH", CLASSIFY, vec![("Content-Type", octets.clone())], DOC.to_vec()),
        ("POST", "/doc-classifier/classify?model=a", vec![("Content-Type", octets.clone())], DOC.to_vec()),
        ("POST", "/doc-classifier/classify?model=b", vec![("Content-Type", octets.clone())], DOC.to_vec()),
        ("POST", CLASSIFY, vec![("Content-Type", octets.clone()), ("X-Model", "a".into())], DOC.to_vec()),
        ("POST", CLASSIFY, vec![("Content-Type", octets), ("X-Model", "b".into())], DOC.to_vec()),
        ("POST", CLASSIFY, vec![("Content-Type", field("a").0)], field("a").1),
        ("POST", CLASSIFY, vec![("Content-Type", field("b").0)], field("b").1),
        ("POST", CLASSIFY, vec![("Content-Type", "application/json".into())], json("a")),
        ("POST", CLASSIFY, vec![("Content-Type", "application/json".into())], json("b")),
    ];
    // First all of them, then all again: none took another's place.
    let mut first = Vec::new();
    for round in 0..2 {
        for (number, (method, path, fields, body)) in judges.iter().enumerate() {
            let before = upstream.calls();
            let request = Request::new(method, path).bearer("tok-1").body(body.clone());
            let request = fields.iter().fold(request, |request, (name, value)| request.header(name, value));
            let answer = Client::connect(gateway.addr).await.request(request).await;
            if round == 0 {
                assert_live(&answer, 400);
                let seen = upstream.last_request();
                assert_eq!((seen.method.as_str(), upstream.calls() - before), (*method, 1), "{path}");
                let model =
                    fields.iter().find(|(name, _)| *name == "X-Model").map(|(_, value)| value.clone());
                assert_eq!(seen.header("x-model"), model);
                first.push(answer);
            } else {
                assert_replay(&first[number], &answer);
                assert_eq!(upstream.calls(), before, "{method} {path}");
            }
        }
    }
    assert_eq!(entry_count(&gateway).await, judges.len());
    // A path that is not listed, and a method without a document, are not guarded.
    let before = upstream.calls();
    for (method, path) in [
        ("POST", "/doc-classifier/other"),
        ("GET", CLASSIFY),
        ("DELETE", CLASSIFY),
        ("POST", "/doc-classifier/classify/"),
    ] {
        for _ in 0..2 {
            let request = Request::new(method, path).bearer("tok-1").body(&DOC[..]);
            assert_live(&Client::connect(gateway.addr).await.request(request).await, 400);
        }
    }
    assert_eq!(upstream.calls() - before, 8);
    assert_eq!(entry_count(&gateway).await, judges.len());
    // Who asks is not part of it.
    let other = submit_as(&gateway, 3, CLASSIFY)
        .header("Content-Type", "application/octet-stream")
        .body(&DOC[..])
        .send();
    assert_replay(&first[0], &other.await);
    settle(&gateway, judges.len() * 2 + 9).await;
}
