//! What is not in the key is not sent: two requests have equal keys exactly when what the upstream would get of them is
//! the same in everything but what carries no meaning. Shown for the domain's own key, and again over the wire, where the
//! upstream tells what it got and the audit tells the key.
//!
//! What carries no meaning: the letter case of a media type and of parameter names, and the blanks around them; the
//! boundary of a form; the letter case of the names of a part's fields, the blanks around their values, and their order.

use std::collections::{BTreeMap, HashMap};

use nevertwice_domain::canonical::fields::{MediaType, content_type, query};
use nevertwice_domain::canonical::form::{FileNameRule, FormReader};
use nevertwice_domain::fingerprint::{
    BodyDigest, DeploymentKey, DocumentDigest, Fingerprint, KeyInput, fingerprint,
};
use nevertwice_testkit::{Client, Gateway, Headers, Reply, Request, Upstream};
use proptest::prelude::*;
use proptest::sample::select;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use crate::bench::settle;

/// The client fields that may go up, in the order they are sent; the last one is a `key_headers` of the route.
const KEYED: [&str; 5] = ["content-type", "content-encoding", "content-language", "accept", "x-model"];

/// A request as a client makes it.
#[derive(Clone, Debug)]
struct Sent {
    method: &'static str,
    path: &'static str,
    query: Option<&'static str>,
    /// All fields but the type of the content.
    fields: Vec<(&'static str, &'static str)>,
    content: Content,
    spelling: Spelling,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Content {
    Raw { label: Option<&'static str>, bytes: &'static str },
    Form(Vec<FormPart>),
}

/// Name, file name, type, content.
type FormPart = (&'static str, Option<&'static str>, Option<&'static str>, &'static str);

/// How a form is written down.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Spelling {
    boundary: &'static str,
    quoted: bool,
    upper: bool,
    padded: bool,
    swapped: bool,
}

/// What a request means, written down without the product's code.
#[derive(Debug, PartialEq, Eq)]
struct Meaning {
    line: String,
    fields: BTreeMap<&'static str, Vec<String>>,
    content: Result<Vec<FormPart>, (Option<String>, Vec<u8>)>,
}

/// Media types that mean the same stand in one row.
const LABELS: [&[&str]; 10] = [
    &["application/pdf", "Application/PDF"],
    &["application/pdf ;"],
    &["application/pdf;charset=x", "APPLICATION/pdf ; Charset=x"],
    &["application/pdf;  charset=x"],
    &["application/pdf;charset=X"],
    &["application/pdf;charset=\"x\""],
    &["pdf"],
    &["multipart/form-data"],
    &["multipart/form-data; boundary=zz", "Multipart/form-data;Boundary=zz"],
    &["multipart/form-data; boundary=\"zz\""],
];

fn meaning_of_label(label: &str) -> String {
    let row = LABELS.iter().find(|row| row.contains(&label));
    row.map_or_else(|| label.to_owned(), |row| row[0].to_owned())
}

impl Sent {
    fn coded(&self) -> bool {
        self.fields.iter().any(|(name, _)| name.eq_ignore_ascii_case("content-encoding"))
    }

    fn label(&self) -> Option<String> {
        match &self.content {
            Content::Raw { label, .. } => label.map(str::to_owned),
            Content::Form(_) => {
                let quote = if self.spelling.quoted { "\"" } else { "" };
                let name = if self.spelling.upper {
                    "Multipart/FORM-data ; BOUNDARY"
                } else {
                    "multipart/form-data; boundary"
                };
                Some(format!("{name}={quote}{}{quote}", self.spelling.boundary))
            }
        }
    }

    fn body(&self) -> Vec<u8> {
        let parts = match &self.content {
            Content::Raw { bytes, .. } => return bytes.as_bytes().to_vec(),
            Content::Form(parts) => parts,
        };
        let Spelling { boundary, upper, padded, swapped, .. } = self.spelling;
        let mut out = String::new();
        for (name, file, kind, content) in parts {
            let pad = if padded { "" } else { " " };
            let field = |name: &str, value: &str| {
                let name = if upper { name.to_uppercase() } else { name.to_owned() };
                format!("{name}:{pad}{value}\r\n")
            };
            let file = file.map(|file| format!("; filename=\"{file}\"")).unwrap_or_default();
            let mut fields = vec![field("Content-Disposition", &format!("form-data; name=\"{name}\"{file}"))];
            fields.extend(kind.map(|kind| field("Content-Type", kind)));
            if swapped {
                fields.reverse();
            }
            out += &format!("--{boundary}\r\n{}\r\n{content}\r\n", fields.concat());
        }
        (out + &format!("--{boundary}--\r\n")).into_bytes()
    }

    /// The keyed fields as they go up.
    fn outbound(&self) -> Vec<(&'static str, String)> {
        let label = self.label();
        let typed = label.iter().map(|label| ("content-type", label.clone()));
        let given = |name: &'static str| {
            let same = self.fields.iter().filter(move |(n, _)| n.eq_ignore_ascii_case(name));
            same.map(move |(_, value)| (name, (*value).to_owned()))
        };
        typed.chain(KEYED.into_iter().flat_map(given)).collect()
    }

    fn meaning(&self) -> Meaning {
        let mut fields = BTreeMap::<_, Vec<String>>::new();
        for (name, value) in self.outbound().into_iter().filter(|(name, _)| *name != "content-type") {
            fields.entry(name).or_default().push(value);
        }
        let content = match &self.content {
            Content::Form(parts) if !self.coded() => Ok(parts.clone()),
            Content::Form(_) => {
                let Spelling { boundary, quoted, .. } = self.spelling;
                Err((Some(format!("form {boundary} {quoted}")), self.body()))
            }
            Content::Raw { label, bytes } => Err((label.map(meaning_of_label), bytes.as_bytes().to_vec())),
        };
        let query = self.query.map(|query| format!("?{query}")).unwrap_or_default();
        Meaning { line: format!("{} {}{query}", self.method, self.path), fields, content }
    }

    /// The key by the domain crate, made the documented way.
    fn key(&self) -> Fingerprint {
        let body = self.body();
        let label = self.label();
        let boundary = label.as_ref().filter(|_| !self.coded());
        let boundary = boundary.and_then(|label| MediaType::parse(label.as_bytes())?.form_boundary());
        let form = boundary.and_then(|boundary| {
            let mut reader = FormReader::new(&boundary, FileNameRule::Keyed);
            body.chunks(5).for_each(|piece| reader.feed(piece));
            reader.finish().ok()
        });
        let fields: Vec<(&str, Vec<u8>)> = self
            .outbound()
            .into_iter()
            .map(|(name, value)| match name {
                "content-type" => (name, content_type(value.as_bytes(), form.is_some())),
                _ => (name, value.into_bytes()),
            })
            .collect();
        let query = self.query.and_then(|raw| query(raw.as_bytes(), &[]));
        let input = KeyInput {
            scope: "fleet",
            upstream: "doc-classifier",
            identity: b"id",
            generation: "",
            method: self.method,
            path: self.path.as_bytes(),
            query: query.as_deref(),
            fields: &fields,
            // Any digest of the bytes does here.
            body: form.map_or_else(
                || BodyDigest::Raw(*DocumentDigest::of(&body).as_bytes()),
                |form| BodyDigest::Form(form.digest),
            ),
        };
        fingerprint(&DeploymentKey::NONE, &input)
    }
}

fn content() -> impl Strategy<Value = Content> {
    let label = select(LABELS.concat());
    let bytes = select(vec!["a", "b", "--zz\r\n", "--zz--x", "{}"]);
    let raw =
        (prop::option::weighted(0.8, label), bytes).prop_map(|(label, bytes)| Content::Raw { label, bytes });
    let part = (
        select(vec!["file", "lang"]),
        select(vec![None, Some("a.pdf"), Some("b.pdf")]),
        select(vec![None, Some("application/pdf"), Some("Application/PDF")]),
        select(vec!["x", "y", "\r\n", "--"]),
    );
    prop_oneof![raw, prop::collection::vec(part, 1..4).prop_map(Content::Form)]
}

fn spelling() -> impl Strategy<Value = Spelling> {
    let boundary = select(vec!["q", "qq", "bb-bb", "X9fRandom"]);
    (boundary, any::<(bool, bool, bool, bool)>()).prop_map(|(boundary, (quoted, upper, padded, swapped))| {
        Spelling { boundary, quoted, upper, padded, swapped }
    })
}

/// Fields that are in the key.
fn keyed_fields() -> impl Strategy<Value = Vec<(&'static str, &'static str)>> {
    let field = select(vec![
        ("Accept", "*/*"),
        ("accept", "text/html"),
        ("Accept", "text/html, */*"),
        ("Content-Encoding", "gzip"),
        ("Content-Language", "de"),
        ("X-Model", "a"),
        ("x-model", "b"),
        ("X-Model", ""),
    ]);
    prop::collection::vec(field, 0..3)
}

/// Fields that are not, because they never go up.
fn other_fields() -> impl Strategy<Value = Vec<(&'static str, &'static str)>> {
    let field = select(vec![
        ("User-Agent", "curl/8"),
        ("Accept-Encoding", "gzip, br"),
        ("Accept-Language", "de"),
        ("Cookie", "a=b"),
        ("X-HTTP-Method-Override", "DELETE"),
        ("X-Request-Id", "1"),
        ("Cache-Control", "no-cache"),
        ("Range", "bytes=0-1"),
        ("If-None-Match", "*"),
        ("X-Forwarded-Host", "evil.example"),
        ("Content-MD5", "x"),
        ("X-Negative-Cache", "HIT"),
        ("Tracestate", "a=b"),
    ]);
    prop::collection::vec(field, 0..4)
}

/// The same value twice, or now and then two of them.
fn twice<T: Clone + std::fmt::Debug>(one: impl Strategy<Value = T> + Clone) -> impl Strategy<Value = (T, T)> {
    (one.clone(), prop::option::weighted(0.12, one)).prop_map(|(a, b)| (a.clone(), b.unwrap_or(a)))
}

/// Two requests that are often the same one, differently spelt.
fn pairs() -> impl Strategy<Value = (Sent, Sent)> {
    let line = (
        select(vec!["POST", "PUT", "PATCH"]),
        select(vec!["/classify", "/layout"]),
        select(vec![None, Some("a=1"), Some("a=1&b=2"), Some("b=2&a=1"), Some("a=%31"), Some("")]),
    );
    let content = content().boxed();
    let keyed = keyed_fields().boxed();
    let spelt = (other_fields(), spelling()).boxed();
    (twice(line), twice(keyed), twice(content), (spelt.clone(), spelt)).prop_map(
        |((line_a, line_b), (keyed_a, keyed_b), (content_a, content_b), (spelt_a, spelt_b))| {
            let sent = |(method, path, query), keyed: Vec<_>, content, (others, spelling): (Vec<_>, _)| {
                let fields = others.into_iter().chain(keyed).collect();
                Sent { method, path, query, fields, content, spelling }
            };
            (sent(line_a, keyed_a, content_a, spelt_a), sent(line_b, keyed_b, content_b, spelt_b))
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4096, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn rule_14_keys_are_equal_exactly_when_the_meaning_is((a, b) in pairs()) {
        prop_assert_eq!(a.key() == b.key(), a.meaning() == b.meaning());
    }
}

/// What the stub saw of the client's own fields, without framing and what the gateway adds.
fn clients_own(headers: &Headers) -> Vec<(String, String)> {
    let added = ["host", "traceparent", "content-length", "accept-encoding", "user-agent"];
    let fields = headers
        .iter()
        .map(|(name, value)| (name.to_lowercase(), String::from_utf8_lossy(value).into_owned()));
    fields.filter(|(name, _)| !added.contains(&name.as_str())).collect()
}

#[tokio::test]
async fn rule_14_over_the_wire_equal_keys_send_equal_requests() {
    const CASES: usize = 200;
    let upstream = Upstream::start().await;
    // Accepted, so that each of them goes up and shows.
    upstream.always(Reply::status(200));
    let gateway =
        Gateway::with(&upstream.url(), &[("UPSTREAM", "negative_cache: { key_headers: [X-Model] }")]).await;
    let mut runner = TestRunner::deterministic();
    let strategy = pairs();
    let mut client = Client::connect(gateway.addr).await;
    let mut sent = Vec::new();
    for _ in 0..CASES {
        let pair = strategy.new_tree(&mut runner).map(|tree| tree.current());
        assert!(pair.is_ok(), "{pair:?}");
        sent.extend(pair.into_iter().flat_map(|(a, b)| [a, b]));
    }
    for (number, one) in sent.iter().enumerate() {
        let query = one.query.map(|query| format!("?{query}")).unwrap_or_default();
        let mut request = Request::new(one.method, &format!("/doc-classifier{}{query}", one.path))
            .bearer("tok-1")
            .header("traceparent", format!("00-{:032x}-00000000000000aa-01", number + 1));
        for (name, value) in &one.fields {
            request = request.header(name, value);
        }
        if let Some(label) = one.label() {
            request = request.header("Content-Type", label);
        }
        let answer = client.request(request.body(one.body())).await;
        assert_eq!((answer.status, upstream.calls()), (200, number as u64 + 1), "{one:?}");
        // The upstream got what was sent of the keyed fields, byte for byte, and nothing else of the client's.
        let seen = upstream.last_request();
        assert_eq!(
            (seen.method.as_str(), seen.target.as_str()),
            (one.method, format!("{}{query}", one.path).as_str())
        );
        assert_eq!(seen.body, one.body(), "{one:?}");
        let expected: Vec<_> =
            one.outbound().into_iter().map(|(n, v)| (n.to_owned(), v.trim().to_owned())).collect();
        assert_eq!(clients_own(&seen.headers), expected, "{one:?}");
        assert_eq!(seen.headers_named("accept-encoding"), [b"identity"]);
        let agent = seen.header("user-agent").unwrap_or_default();
        assert!(agent.starts_with("nevertwice/"), "{agent}");
    }
    let lines = settle(&gateway, 2 * CASES).await;
    let keys: HashMap<&str, &str> = lines
        .iter()
        .filter_map(|line| Some((line["trace_id"].as_str()?, line["fingerprint"].as_str()?)))
        .collect();
    assert_eq!(keys.len(), 2 * CASES);
    let key = |number: usize| keys.get(format!("{:032x}", number + 1).as_str());
    let mut equal = 0;
    for (pair, number) in sent.chunks(2).zip((0..).step_by(2)) {
        let same = pair[0].meaning() == pair[1].meaning();
        assert_eq!(key(number) == key(number + 1), same, "{pair:#?}");
        equal += usize::from(same);
    }
    // The property is empty if hardly any pair is equal, or hardly any differs.
    assert!((CASES / 5..CASES * 4 / 5).contains(&equal), "{equal} of {CASES} pairs are equal");
}
