//! A corpus: real refusals with the judgement that people made of each. Profiles are measured against it.
//!
//! The format is that of `profiles/corpus/upstream-errors.yaml`; keys that are not read here are for people.

mod report;

use std::path::Path;
use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use nevertwice_domain::profile::{Answer, Class, Explanation, Phase, Profile, Remember, SavedRequest, Terms};

use crate::load;
use crate::problem::{Findings, Place, Problems};
use crate::profiles::Catalog;
use crate::tree::{Node, Value};

pub use report::{Judged, Report};

/// Of a request whose type does not matter.
const DOCUMENT: &str = "application/octet-stream";
/// Of a request with an Office document.
const OFFICE: &str = "application/vnd.openxmlformats-officedocument.wordprocessingml.document";
/// A request that names its input. The keys are those of the profiles.
const BY_REFERENCE: &str =
    r#"{"urlSource":"https://example.com/a.pdf","image_url":{"url":"https://example.com/a.png"}}"#;

/// The refusals of a corpus.
#[derive(Clone, Debug)]
pub struct Corpus {
    /// In the order of the file.
    pub entries: Vec<Entry>,
}

/// One refusal, and what is right about it.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Its name in the corpus.
    pub id: String,
    /// The service, which is the name of a profile.
    pub service: String,
    /// The status of the answer.
    pub status: StatusCode,
    /// What it speaks about.
    pub class: Class,
    /// What is right to do with it.
    pub remember: Remember,
    /// The header fields of the answer.
    pub headers: HeaderMap,
    /// Its body.
    pub body: String,
    phase: Phase,
    request: Request,
}

/// What the corpus says of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Request {
    /// The document was in it.
    Inline,
    /// It named its input.
    Reference,
    /// It had no `Content-Type`.
    WithoutType,
    /// It held an Office document.
    Office,
}

impl Corpus {
    /// Reads a corpus.
    ///
    /// # Errors
    /// All problems of the file, or the one that it cannot be read.
    pub fn read(path: &Path) -> Result<Self, Problems> {
        let text = crate::text_of(path)?;
        Self::from_text(&text, &path.display().to_string())
    }

    /// Reads the text of a corpus. `origin` is named in messages.
    ///
    /// # Errors
    /// All problems of the text.
    pub fn from_text(text: &str, origin: &str) -> Result<Self, Problems> {
        let mut found = Findings::default();
        let entries = load::tree(text, &mut found).map(|node| entries(&node, &mut found)).unwrap_or_default();
        if found.refused() {
            return Err(Problems { origin: origin.to_owned(), all: found.sorted() });
        }
        Ok(Self { entries })
    }

    /// Judges every entry by the profile of its service.
    #[must_use]
    pub fn judge(&self, catalog: &Catalog) -> Report<'_> {
        let mut profile: Option<(&str, Option<Arc<Profile>>)> = None;
        let judged = self.entries.iter().map(|entry| {
            if profile.as_ref().is_none_or(|(name, _)| *name != entry.service) {
                // reading a profile takes a while, and a service's entries stand together
                profile = Some((&entry.service, catalog.get(&entry.service)));
            }
            let explanation = match &profile {
                Some((_, Some(profile))) => entry.judge(profile),
                _ => unknown(catalog, &entry.service),
            };
            Judged { entry, explanation }
        });
        Report { judged: judged.collect() }
    }
}

/// The judgement of a profile that is not there.
#[must_use]
pub fn unknown(catalog: &Catalog, name: &str) -> Explanation {
    let shown: String = name.chars().take(64).collect();
    Explanation {
        remember: Remember::Never,
        class: None,
        rule: None,
        source: None,
        reason: format!("there is no profile {shown:?}; {}", catalog.cure(name)),
        steps: Vec::new(),
    }
}

impl Entry {
    /// What this profile says.
    #[must_use]
    pub fn judge(&self, profile: &Profile) -> Explanation {
        let request = match self.request {
            Request::Inline => SavedRequest { content_type: Some(DOCUMENT), ..SavedRequest::default() },
            Request::Office => SavedRequest { content_type: Some(OFFICE), ..SavedRequest::default() },
            Request::WithoutType => SavedRequest { content_type: Some(""), ..SavedRequest::default() },
            Request::Reference => SavedRequest {
                content_type: Some("application/json"),
                body: Some(BY_REFERENCE.as_bytes()),
                ..SavedRequest::default()
            },
        };
        let facts = request.facts(self.phase, profile);
        let answer = Answer { status: self.status, headers: &self.headers, body: self.body.as_bytes() };
        profile.explain(&facts, &answer, &Terms::default())
    }
}

fn entries(node: &Node, found: &mut Findings) -> Vec<Entry> {
    let top = Place { path: String::new(), at: Some(node.at) };
    let Some(Node { value: Value::List(items), .. }) = member(node, "entries") else {
        found.error(&top, "there is no list `entries`", "is this a corpus?");
        return Vec::new();
    };
    let read = items.iter().enumerate().map(|(index, item)| {
        let place = Place { path: format!("entries[{index}]"), at: Some(item.at) };
        entry(item, &place, found)
    });
    read.flatten().collect()
}

fn member<'n>(node: &'n Node, key: &str) -> Option<&'n Node> {
    let Value::Map(entries) = &node.value else { return None };
    entries.iter().find(|(known, _)| known.text.as_deref() == Some(key)).map(|(_, node)| node)
}

/// A scalar as its text; nothing stands for an empty one.
fn text(node: &Node) -> Option<String> {
    match &node.value {
        Value::Null => Some(String::new()),
        Value::Bool(word) => Some(word.to_string()),
        Value::Int(number) => Some(number.to_string()),
        Value::Text { text, .. } => Some(text.clone()),
        _ => None,
    }
}

fn entry(node: &Node, place: &Place, found: &mut Findings) -> Option<Entry> {
    let optional = |key: &str| member(node, key).and_then(text);
    let mut needed = |key: &str| {
        let value = optional(key);
        if value.is_none() {
            found.missing(
                place,
                key,
                format!("`{key}` is missing, or no text"),
                "is this an entry of a corpus?",
            );
        }
        value
    };
    let (id, service, body) = (needed("id"), needed("service"), needed("sample_body"));
    let (status, class, remember) = (needed("http_status"), needed("class"), needed("remember"));
    let mut wrong = |key: &str, cure: &str| {
        let at = member(node, key).map(|node| node.at).or(place.at);
        found.error(&Place { path: place.key_path(key), at }, "this is not known here", cure);
    };
    let status = status.and_then(|text| {
        let status = text.parse().ok().and_then(|number: u16| StatusCode::from_u16(number).ok());
        status.or_else(|| {
            wrong("http_status", "write a number from 100 to 999");
            None
        })
    });
    let class = class.and_then(|word| {
        Class::from_word(&word).or_else(|| {
            wrong("class", "the classes are those of profiles");
            None
        })
    });
    let remember = remember.and_then(|word| {
        Remember::from_word(&word).or_else(|| {
            wrong("remember", "write full, short, keyed or never");
            None
        })
    });
    let mut headers = HeaderMap::new();
    let kind = optional("content_type").unwrap_or_else(|| "application/json".to_owned());
    let mut add = |name: &str, value: &str| match (HeaderName::try_from(name), HeaderValue::try_from(value)) {
        (Ok(name), Ok(value)) => {
            headers.append(name, value);
        }
        _ => wrong("headers", "write a name and a value that a header field can have"),
    };
    add("content-type", &kind);
    if let Some(Node { value: Value::Map(fields), .. }) = member(node, "headers") {
        for (key, value) in fields {
            add(key.text.as_deref().unwrap_or_default(), &text(value).unwrap_or_default());
        }
    }
    if let (Some(name), Some(code)) = (optional("code_header"), optional("code")) {
        add(&name, &code);
    }
    let (status, operation) = (status?, optional("operation").unwrap_or_default());
    let polled = ["poll", "result", "vector store file"].iter().any(|word| operation.contains(word))
        || status == StatusCode::OK && optional("async").as_deref() == Some("true");
    Some(Entry {
        id: id?,
        service: service?,
        status,
        class: class?,
        remember: remember?,
        phase: if polled { Phase::Poll } else { Phase::Submit },
        headers,
        body: body?,
        request: request(&optional("request_condition").unwrap_or_default()),
    })
}

/// What the words for people say of the request.
fn request(condition: &str) -> Request {
    if condition.contains("Content-Type absent") {
        Request::WithoutType
    } else if condition.contains("Office") {
        Request::Office
    } else if condition.contains("inline") {
        Request::Inline
    } else if ["urlSource", "http(s)"].iter().any(|word| condition.contains(word)) {
        Request::Reference
    } else {
        Request::Inline
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENTRY: &str = "entries:\n- id: a\n  service: openai\n  http_status: 400\n  code: 'x'\n  class: content\n  remember: full\n  sample_body: '{}'\n";

    fn problems(text: &str) -> String {
        Corpus::from_text(text, "c.yaml")
            .map(|_| String::new())
            .unwrap_or_else(|problems| problems.to_string())
    }

    #[test]
    fn problems_name_the_line() {
        assert_eq!(problems(ENTRY), "");
        for (from, to, told) in [
            ("entries:", "entrees:", "c.yaml:1:1: error: there is no list `entries`"),
            ("id: a", "ID: a", "entries[0].id: `id` is missing"),
            ("400", "4000", "c.yaml:4:16: error: entries[0].http_status: this is not known here"),
            ("content", "contents", "entries[0].class"),
            ("full", "fully", "entries[0].remember"),
            ("code: 'x'", "headers: {a b: c}", "entries[0].headers"),
            ("'{}'", "'{}", "not valid YAML"),
        ] {
            let told_of = problems(&ENTRY.replacen(from, to, 1));
            assert!(told_of.contains(told), "{to}: {told_of}");
        }
    }

    #[test]
    fn the_words_for_people_become_a_request() {
        for (words, meant) in [
            ("", Request::Inline),
            ("inline body (binary or base64Source), never urlSource", Request::Inline),
            ("submit body had /urlSource", Request::Reference),
            ("image_url is http(s)", Request::Reference),
            ("Content-Type absent or not matching the bytes", Request::WithoutType),
            ("Office or HTML bytes on an older api-version", Request::Office),
        ] {
            assert_eq!(request(words), meant, "{words}");
        }
    }
}
