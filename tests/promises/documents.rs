//! The document: what people know it by, whatever it comes in, and of whatever size.

use nevertwice_testkit::{DOC, DOC2, Gateway, Part, Reply, Upstream, multipart, r400, random_document};
use serde_json::json;

use crate::bench::settle;
use crate::caller::{
    CLASSIFY, LAYOUT, assert_live, assert_own, assert_replay, entries, entry_count, forget, submit,
};

/// What `sha256sum` prints for [`DOC`].
const DOC_SHA256: &str = "a9244902da5899458950849c549905dd7d67cb5d2e6cfdbf8edfc120ec90c02a";

#[tokio::test]
async fn one_document_has_one_digest_in_every_wrapper_and_is_forgotten_in_all() {
    let upstream = Upstream::start().await;
    upstream.always(r400());
    let gateway = Gateway::simple(&upstream.url()).await;
    let file = |name, content| Part::file(name, "a.pdf", "application/pdf", content);
    let lang = Part::field("lang", "en");
    let mut wrappers = vec![
        (CLASSIFY, "application/pdf".to_owned(), DOC.to_vec()),
        (LAYOUT, "application/pdf".to_owned(), DOC.to_vec()),
    ];
    let forms: [&[Part<'_>]; 4] = [
        &[file("file", &DOC), lang],
        &[lang, file("x", &DOC)],
        &[file("a", &DOC), file("b", &DOC2)],
        &[lang],
    ];
    for parts in forms {
        let (content_type, body) = multipart("b", parts);
        wrappers.push((CLASSIFY, content_type, body));
    }
    for (path, content_type, body) in &wrappers {
        let send = || submit(&gateway, path).header("Content-Type", content_type).body(body.clone()).send();
        let live = send().await;
        assert_live(&live, 400);
        assert_replay(&live, &send().await);
    }
    assert_eq!((upstream.calls(), entry_count(&gateway).await), (6, 6));
    let same = entries(&gateway, &format!("?document={DOC_SHA256}")).await;
    assert_eq!(same.len(), 4, "two bodies and two forms with one file");
    for entry in &same {
        assert_eq!((&entry["documents"], &entry["document_bytes"]), (&1.into(), &4096.into()));
    }
    // Two files are one document of two parts; a form without a file is itself the document.
    let others: Vec<_> = entries(&gateway, "?limit=100").await;
    let others: Vec<_> = others.iter().filter(|entry| entry["document_sha256"] != DOC_SHA256).collect();
    let two = others.iter().find(|entry| entry["documents"] == 2);
    assert_eq!(two.map(|entry| &entry["document_bytes"]), Some(&8192.into()));
    let bare = others.iter().find(|entry| entry["documents"] == 1);
    assert_eq!(bare.map(|entry| &entry["document_bytes"]), Some(&wrappers[5].2.len().into()));

    assert_eq!(forget(&gateway, &json!({ "document": DOC_SHA256.to_uppercase() })).await, 4);
    for (number, (path, content_type, body)) in wrappers.iter().enumerate() {
        let answer =
            submit(&gateway, path).header("Content-Type", content_type).body(body.clone()).send().await;
        assert_eq!(answer.is_hit(), number >= 4, "wrapper {number}");
    }
    let lines = settle(&gateway, 18).await;
    assert_eq!(lines.iter().filter(|line| line["document_sha256"] == DOC_SHA256).count(), 12);
}

#[tokio::test]
async fn rule_20_every_size_is_sent_whole_and_has_its_own_key() {
    const BUFFER: usize = 65_536;
    const LIMIT: usize = 1_000_000;
    let upstream = Upstream::start().await;
    upstream.always(r400());
    let limits =
        format!("limits: {{ buffer_memory_bytes: {BUFFER}, body_max_bytes: {LIMIT}, spill_dir: \"@DIR@\" }}");
    let gateway = Gateway::with(&upstream.url(), &[("TOP", &limits)]).await;
    let mut requests = 0;
    let eighth = BUFFER / 8;
    for (number, length) in [
        1,
        2,
        eighth - 1,
        eighth,
        eighth + 1,
        BUFFER / 2,
        BUFFER - 1,
        BUFFER,
        BUFFER + 1,
        2 * BUFFER,
        262_144,
        262_145,
        LIMIT - 1,
        LIMIT,
    ]
    .into_iter()
    .enumerate()
    {
        let document = random_document(100 + number as u64, length);
        let before = upstream.calls();
        let sized = submit(&gateway, CLASSIFY).body(document.clone());
        let chunked = submit(&gateway, CLASSIFY).body(document.clone()).chunked(10_007);
        let (first, then) = if number % 2 == 0 { (sized, chunked) } else { (chunked, sized) };
        let live = first.send().await;
        assert_live(&live, 400);
        let seen = upstream.last_request();
        assert!(seen.body == document && seen.problems.is_empty(), "{} bytes of {length}", seen.body_len);
        assert_eq!(seen.headers_named("content-length"), [length.to_string().as_bytes()]);
        assert_replay(&live, &then.send().await);
        assert_eq!(upstream.calls() - before, 1, "{length} bytes");
        requests += 2;
    }
    let entries = entry_count(&gateway).await;
    assert_eq!(entries, requests / 2);
    for chunk in [None, Some(65_536)] {
        let post = submit(&gateway, CLASSIFY).body(random_document(9, LIMIT + 1));
        assert_own(
            &chunk.map_or(post.clone(), |size| post.chunked(size)).send().await,
            413,
            "BODY_TOO_LARGE",
        );
        requests += 1;
    }
    assert_eq!(entry_count(&gateway).await, entries);
    assert!(gateway.metric("gateway_body_spilled_bytes_total", &[]).await > 0.0, "nothing was spilled");
    settle(&gateway, requests).await;
}

#[tokio::test]
async fn forms_on_disk_are_read_digested_and_rewritten_as_those_in_memory() {
    let upstream = Upstream::start().await;
    upstream.always(r400());
    let slots = [
        ("TOP", "limits: { buffer_memory_bytes: 65536, spill_dir: \"@DIR@\" }"),
        ("UPSTREAM", "negative_cache: { filename: neutral }"),
    ];
    let gateway = Gateway::with(&upstream.url(), &slots).await;
    let big = random_document(11, 400_000);
    let form = |boundary: &str, names: [&str; 2]| {
        let files = [
            Part::file("one", names[0], "application/pdf", &big),
            Part::field("lang", "en"),
            Part::file("two", names[1], "application/pdf", &DOC),
        ];
        multipart(boundary, &files)
    };
    let mut first = None;
    for (boundary, names) in
        [("aaaa", ["tmp1.pdf", "tmp2.pdf"]), ("a-much-longer-one", ["x.pdf", "yyyyyyyyyyyy.PDF"])]
    {
        let (content_type, body) = form(boundary, names);
        let answer = submit(&gateway, CLASSIFY).header("Content-Type", content_type).body(body).send().await;
        match &first {
            Some(live) => assert_replay(live, &answer),
            None => {
                assert_live(&answer, 400);
                first = Some(answer);
            }
        }
    }
    let expected = form("aaaa", ["document.pdf", "document.pdf"]).1;
    let seen = upstream.last_request();
    assert!(
        seen.body == expected && seen.problems.is_empty(),
        "{} bytes of {}",
        seen.body_len,
        expected.len()
    );
    let listed = entries(&gateway, "").await;
    assert_eq!(
        (listed.len(), &listed[0]["documents"], &listed[0]["document_bytes"]),
        (1, &2.into(), &404_096.into())
    );
    // One that turns out not to be a form when nearly all of it is on disk.
    let (content_type, mut body) = form("aaaa", ["tmp1.pdf", "tmp2.pdf"]);
    body.truncate(body.len() - 4);
    for goes in [true, false] {
        let before = upstream.calls();
        submit(&gateway, CLASSIFY).header("Content-Type", &content_type).body(body.clone()).send().await;
        assert_eq!(upstream.calls() > before, goes);
    }
    assert!(upstream.last_request().body == body, "it is forwarded untouched");
    upstream.always(Reply::status(200));
    assert!(gateway.metric("gateway_body_spilled_bytes_total", &[]).await > 0.0, "nothing was spilled");
    settle(&gateway, 4).await;
}
