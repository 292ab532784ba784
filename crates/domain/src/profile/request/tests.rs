//! The streams against a parser, and by hand.

use base64::Engine as _;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::fingerprint::DocumentDigest;

fn keys() -> Vec<Box<str>> {
    ["urlSource", "image_url", "url", "file_id"].map(Into::into).into()
}

fn search(content_type: &str, pieces: &[&[u8]]) -> Option<Reference> {
    let keys = keys();
    let mut search = ReferenceSearch::new(&keys, &[], Some(content_type.as_bytes()));
    for piece in pieces {
        search.feed(piece);
    }
    search.finish()
}

fn in_json(text: &str) -> Option<Reference> {
    let whole = search("application/json", &[text.as_bytes()]);
    let bytes: Vec<&[u8]> = text.as_bytes().chunks(1).collect();
    assert_eq!(search("application/json", &bytes), whole, "{text}");
    whole
}

fn named(key: &str) -> Option<Reference> {
    Some(Reference::Named(key.into()))
}

#[test]
fn references_in_json() {
    for (text, found) in [
        (r#"{"urlSource":"https://a/b.pdf"}"#, named("urlSource")),
        (r#"{"base64Source":"JVBERi0="}"#, None),
        (r#"{"urlSource":""}"#, None),
        (r#"{"urlSource":null,"x":"https://a"}"#, None),
        (r#"{"image_url":"data:image/png;base64,AAAA"}"#, None),
        (r#"{"image_url":" DATA:image/png;base64,AAAA"}"#, None),
        (r#"{"image_url":{"url":"data:image/png;base64,AAAA","detail":"low"}}"#, None),
        (r#"{"image_url":{"url":"https://a/b.png"}}"#, named("url")),
        (r#"{"image_url":["data:x","https://a/b.png"]}"#, named("image_url")),
        (r#"[{"a":[{"b":{"file_id" : "file-1"}}]}]"#, named("file_id")),
        (r#"{"file_id":17}"#, named("file_id")),
        (r#"{"file_id":false}"#, None),
        // the words themselves are no keys
        (r#"{"text":"urlSource","list":["url","https://a"]}"#, None),
        // escapes do not hide a key, nor make one of the document's text
        (r#"{"\u0075rlSource":"https://a"}"#, named("urlSource")),
        (r#"{"text":"\",\"urlSource\":\"https://a"}"#, None),
        (r#"{"image_url":"\u0064ata:image/png;base64,AAAA"}"#, None),
        // a second key counts as well as the first
        (r#"{"url":"data:x","url":"https://a"}"#, named("url")),
        ("\u{feff} \n{\"url\":\"https://a\"}", named("url")),
        // cut off: who knows
        (r#"{"base64Source":"JVBE"#, Some(Reference::Unsure)),
    ] {
        assert_eq!(in_json(text), found, "{text}");
    }
    assert_eq!(in_json(&format!("{}1{}", "[".repeat(300), "]".repeat(300))), Some(Reference::Unsure));
}

#[test]
fn documents_are_not_looked_into() {
    assert_eq!(search("application/pdf", &[b"%PDF-1.7 {\"urlSource\":\"https://a\"}"]), None);
    assert_eq!(search("application/octet-stream", &[b""]), None);
    assert_eq!(search("application/octet-stream", &[b"  ", b" "]), None);
    // a body counts as JSON whatever its type says
    assert_eq!(search("text/plain", &[b" ", b"{\"url\":\"x\"}"]), named("url"));
}

#[test]
fn references_in_pairs_fields_and_queries() {
    let form = "application/x-www-form-urlencoded; charset=utf-8";
    assert_eq!(search(form, &[b"a=1&u", b"rl=htt", b"ps%3A%2F%2Fa"]), named("url"));
    assert_eq!(search(form, &[b"%75rl=x&a=1"]), named("url"));
    assert_eq!(search(form, &[b"url=&a=url"]), None);
    assert_eq!(search(form, &[b"url=data%3Aimage/png"]), None);
    let keys = keys();
    let mut search = ReferenceSearch::new(&keys, &[], None);
    search.field(b"strategy");
    search.query(b"api-version=2024-11-30&pages=1");
    assert_eq!(search.found, None);
    search.query(b"x&url=https://a");
    assert_eq!(search.finish(), named("url"));
    let mut search = ReferenceSearch::new(&keys, &[], None);
    search.field(b"file_id");
    assert_eq!(search.finish(), named("file_id"));
}

#[test]
fn what_lenient_servers_read_is_not_taken_for_a_document() {
    // letter case, single quotes, bare words, comments
    assert_eq!(in_json(r#"{"UrlSource":"https://a"}"#), named("urlSource"));
    for text in ["{'urlSource':'https://a'}", "{urlSource:\"https://a\"}", "{/*x*/\"a\":1}", "[\u{1}]"] {
        assert_eq!(in_json(text), Some(Reference::Unsure), "{text}");
    }
    assert_eq!(in_json(&format!("{{\"url\":\"{}https://a\"}}", " ".repeat(100))), named("url"));
    let plain = r#"[true,false,null,-1.5e+7,1E3,{"a" : [] }]"#;
    assert_eq!(in_json(plain), None);
    // other encodings of JSON, and other notations than JSON
    let utf16: Vec<u8> = "{\"url\":\"https://a\"}".encode_utf16().flat_map(u16::to_le_bytes).collect();
    assert_eq!(search("application/json", &[&utf16]), Some(Reference::Unsure));
    assert_eq!(search("application/json; charset=utf-16", &[b"\xff\xfe", &utf16]), Some(Reference::Unsure));
    for (kind, body) in [
        ("application/cbor", &b"\xa1\x66Bucket\x61b"[..]),
        ("application/x-amz-cbor-1.1", b"\xa0"),
        ("application/msgpack", b"\x81"),
        ("text/xml; charset=utf-8", b"<url>https://a</url>"),
        ("application/soap+xml", b"<url/>"),
        ("application/x-protobuf", b"\x0a\x01x"),
        ("application/yaml", b"url: https://a"),
        ("application/x-ndjson", b"# x"),
        // a form that is not one
        (
            "multipart/form-data; boundary=b",
            b"--b\nContent-Disposition: form-data; name=url\n\nhttps://a\n--b--",
        ),
        ("multipart/related; boundary=b", b"--b\r\n"),
    ] {
        assert_eq!(search(kind, &[body]), Some(Reference::Unsure), "{kind}");
        assert_eq!(search(kind, &[b""]), None, "{kind}");
    }
    for kind in [
        "image/svg+xml",
        "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
        "text/html",
    ] {
        assert_eq!(search(kind, &[b"<svg>"]), None, "{kind}");
    }
}

#[test]
fn nested_values_of_forms_and_queries() {
    let form = "application/x-www-form-urlencoded";
    for text in [
        "url%5B%5D=x",
        "a[url]=x",
        "a[0][url]=x",
        "urls[0].url=x",
        "URL=x",
        "p=%7B%22a%22%3A%5B%7B%22url%22:%22x%22",
    ] {
        assert_eq!(search(form, &[text.as_bytes()]), named("url"), "{text}");
    }
    for text in ["a[url][b]=x", "a=[url", "curl=x", "a=[1-3]", "a={url}", "a[=x", "]=x"] {
        assert_eq!(search(form, &[text.as_bytes()]), None, "{text}");
    }
    let long = format!("a={{\"b\":\"{}\"}}", "x".repeat(5000));
    assert_eq!(search(form, &[long.as_bytes()]), Some(Reference::Unsure));
    let keys = keys();
    let fields = |fields: &[(&str, &[&str])]| {
        let mut search = ReferenceSearch::new(&keys, &[], Some(b"multipart/form-data; boundary=b"));
        for (name, pieces) in fields {
            search.field(name.as_bytes());
            for piece in *pieces {
                search.feed(piece.as_bytes());
            }
        }
        search.fields_end();
        search.finish()
    };
    assert_eq!(fields(&[("options", &["{\"u", "rl\":\"x\"}"]), ("z", &["1"])]), named("url"));
    assert_eq!(fields(&[("sources[0][url]", &["x"])]), named("url"));
    for text in ["[Read all of it", "{", "[1-3]", "{\"a\":1}", "plain"] {
        assert_eq!(fields(&[("prompt", &[text]), ("pages", &["1"])]), None, "{text}");
        assert_eq!(fields(&[("prompt", &[text]), ("url", &["x"])]), named("url"), "{text}");
    }
}

#[test]
fn a_key_may_carry_the_document_or_name_it() {
    let (keys, documents): (Vec<Box<str>>, Vec<Box<str>>) =
        (vec!["file".into(), "url".into()], vec!["file".into()]);
    let found = |text: &str| {
        let mut search = ReferenceSearch::new(&keys, &documents, Some(b"application/json"));
        search.feed(text.as_bytes());
        search.finish()
    };
    for text in ["https://a/b.png", "/data/b.png", "file:x", "b.png"] {
        assert_eq!(found(&json!({ "file": text }).to_string()), named("file"), "{text}");
    }
    for text in ["aGVsbG8=", "aGVs\nbG8", "data:image/png;base64,aGVsbG8=", "", "a-_b"] {
        assert_eq!(found(&json!({ "file": text }).to_string()), None, "{text}");
    }
    assert_eq!(found(r#"{"url":"aGVsbG8="}"#), named("url"));
}

#[test]
fn a_key_may_count_under_its_parent_alone() {
    let keys: Vec<Box<str>> = ["conversation/id", "connectors/id", "url"].map(Into::into).into();
    let found = |text: &str| {
        let mut search = ReferenceSearch::new(&keys, &[], Some(b"application/json"));
        search.feed(text.as_bytes());
        search.finish()
    };
    for (text, key) in [
        (r#"{"conversation":{"x":[{"y":1}],"id":"c"}}"#, "conversation/id"),
        (r#"{"connectors":[{"x":{"y":1}},{"z":1,"id":"c"}]}"#, "connectors/id"),
        (r#"{"a":[{"connectors":[[{"id":7}]]}]}"#, "connectors/id"),
    ] {
        assert_eq!(found(text), named(key), "{text}");
    }
    for text in [
        r#"{"id":"c","conversation":"x"}"#,
        r#"{"conversation":{"x":{"id":"c"}},"id":"c"}"#,
        r#"{"conversation":{"id":""},"a":{"id":"c"}}"#,
        r#"[{"conversation":[1]},{"id":"c"}]"#,
        r#"{"conversation/id":"c"}"#,
    ] {
        assert_eq!(found(text), None, "{text}");
    }
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        "[ -~]{0,12}|data:x|https://a|\\PC{0,6}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 4, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::vec(("url|file_id|[a-z\"\\\\]{0,4}", inner), 0..4)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

/// The plain reading of the rule, over the parsed value.
fn expected(value: &Value, under: bool, keys: &[Box<str>]) -> bool {
    match value {
        Value::String(text) => under && names(text.as_bytes()),
        Value::Number(_) => under,
        Value::Array(items) => items.iter().any(|item| expected(item, under, keys)),
        Value::Object(map) => {
            map.iter().any(|(key, value)| expected(value, keys.iter().any(|k| **k == **key), keys))
        }
        _ => false,
    }
}

fn document(text: &str, piece: usize) -> Option<(DocumentDigest, u64)> {
    let keys: Vec<Box<str>> = vec!["base64Source".into(), "file".into()];
    let mut search = DocumentSearch::new(&keys);
    for piece in text.as_bytes().chunks(piece) {
        search.feed(piece);
    }
    search.finish()
}

#[test]
fn documents_in_base64() {
    let of = |document: &[u8]| Some((DocumentDigest::of(document), document.len() as u64));
    for (text, found) in [
        (r#"{"base64Source":"aGVsbG8="}"#, of(b"hello")),
        (r#"{"base64Source":"aGVsbG8"}"#, of(b"hello")),
        (r#"{"base64Source":"aGVs\nbG8="}"#, of(b"hello")),
        (r#"{"a":{"file":"data:application/pdf;base64,aGVsbG8="}}"#, of(b"hello")),
        (r#"{"a":[{"file":""},{"file":"Pz8\/"},{"file":"aGVsbG8="}]}"#, of(b"???")),
        (r#"{"file":"data:text/plain,hello"}"#, None),
        (r#"{"file":"https://a.example/b.pdf"}"#, None),
        (r#"{"file":"aGVsbG8=aGVsbG8="}"#, None),
        (r#"{"file":"aGVsb"}"#, None),
        (r#"{"text":"aGVsbG8="}"#, None),
        (r#"{"file":"aGVsbG8="#, None),
        ("%PDF", None),
    ] {
        for piece in [1, 3, 1000] {
            assert_eq!(document(text, piece), found, "{text} by {piece}");
        }
    }
}

proptest! {
    #[test]
    fn a_document_is_found_in_any_pieces(bytes in proptest::collection::vec(any::<u8>(), 1..40_000), piece in 1_usize..20_000) {
        let text = base64::engine::general_purpose::STANDARD.encode(&bytes);
        let text = json!({ "urlSource": null, "base64Source": text }).to_string();
        prop_assert_eq!(document(&text, piece), Some((DocumentDigest::of(&bytes), bytes.len() as u64)));
    }

    #[test]
    fn the_stream_sees_what_a_parser_sees(value in any_json(), at in 0_usize..64) {
        let value = json!([value]);
        let text = value.to_string();
        let (a, b) = text.as_bytes().split_at(at.min(text.len()));
        let keys = keys();
        prop_assert_eq!(search("application/json", &[a, b]).is_some(), expected(&value, false, &keys));
    }

    #[test]
    fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = search("application/json", &[b"[", &bytes]);
        let _ = search("application/x-www-form-urlencoded", &[&bytes]);
    }
}
