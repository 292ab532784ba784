//! What rules want to know of a request that somebody saved, or told of in part.

use super::Profile;
use super::request::{Phase, ReferenceSearch, RequestFacts};
use crate::canonical::fields::{MediaType, content_type as content_type_of};
use crate::canonical::form::{FieldValue, FileNameRule, FormReader};

/// The content type of a request of which neither type nor body is known: that of a document.
const ASSUMED: &str = "application/octet-stream";

/// What is known of a request. Missing members are not known, rather than absent.
#[derive(Clone, Copy, Debug, Default)]
pub struct SavedRequest<'a> {
    /// Its path, and its query if it had one.
    pub path: Option<&'a str>,
    /// Its `Content-Type`; an empty one stands for a request without.
    pub content_type: Option<&'a str>,
    /// Its body.
    pub body: Option<&'a [u8]>,
}

impl SavedRequest<'_> {
    /// The facts, as the gateway would learn them. A request whose body is known and whose type is not had none; one of which
    /// neither is known carried a document.
    #[must_use]
    pub fn facts(&self, phase: Phase, profile: &Profile) -> RequestFacts {
        let content_type = match (self.content_type, self.body) {
            (Some(""), _) | (None, Some(_)) => None,
            (Some(value), _) => Some(value),
            (None, None) => Some(ASSUMED),
        };
        let value = content_type.map(str::as_bytes);
        let mut search = ReferenceSearch::new(profile.references(), profile.documents(), value);
        if let Some((_, query)) = self.path.and_then(|path| path.split_once('?')) {
            search.query(query.as_bytes());
        }
        let body = self.body.unwrap_or_default();
        let values =
            value.and_then(MediaType::boundary_of).and_then(|boundary| values_of_form(&boundary, body));
        let form = values.is_some();
        match values {
            Some(Some(values)) => {
                for FieldValue { name, content } in values {
                    search.field(&name);
                    let place = |at: u64| usize::try_from(at).unwrap_or(usize::MAX);
                    search.feed(body.get(place(content.start)..place(content.end)).unwrap_or_default());
                }
                search.fields_end();
            }
            Some(None) => search.unreadable(),
            // a form of which no part was saved
            None if value
                .and_then(MediaType::boundary_of)
                .is_some_and(|boundary| !has_parts(&boundary, body)) => {}
            None => {
                search.feed(body);
            }
        }
        let reference = if profile.references().is_empty() { None } else { search.finish() };
        let keyed = |value| String::from_utf8_lossy(&content_type_of(value, form)).into_owned();
        RequestFacts { phase, content_type: value.map(keyed), reference }
    }
}

fn has_parts(boundary: &[u8], body: &[u8]) -> bool {
    memchr::memmem::find(body, &[b"--", boundary].concat()).is_some()
}

/// A form's parts that are no files, if they are not too many; `None` when this is no strict form.
fn values_of_form(boundary: &[u8], body: &[u8]) -> Option<Option<Vec<FieldValue>>> {
    let mut reader = FormReader::new(boundary, FileNameRule::Keyed);
    reader.feed(body);
    reader.finish().ok().map(|form| form.values)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::{Reference, Rules};

    fn facts(path: Option<&str>, content_type: Option<&str>, body: Option<&str>) -> RequestFacts {
        let request = SavedRequest { path, content_type, body: body.map(str::as_bytes) };
        let rules = Rules { references: vec!["url".into(), "file_id".into()], ..Rules::default() };
        request.facts(Phase::Submit, &Profile::new("x", rules))
    }

    #[test]
    fn a_request_that_is_not_known_carried_a_document() {
        let none = facts(None, None, None);
        assert_eq!((none.content_type.as_deref(), none.reference), (Some(ASSUMED), None));
        assert_eq!(facts(Some("/x"), None, None).content_type.as_deref(), Some(ASSUMED));
        assert_eq!(facts(None, Some(""), None).content_type, None);
        assert_eq!(facts(None, None, Some("%PDF")).content_type, None);
        assert_eq!(facts(None, Some("image/png"), Some("x")).content_type.as_deref(), Some("image/png"));
        // what the key does not tell apart
        let same = facts(None, Some("Image/PNG ; Q=1"), Some("x")).content_type;
        assert_eq!(same.as_deref(), Some("image/png;q=1"));
    }

    #[test]
    fn references_are_seen_wherever_the_gateway_sees_them() {
        let named = |key: &str| Some(Reference::Named(key.into()));
        let json = Some("application/json");
        assert_eq!(facts(None, json, Some(r#"{"url":"https://a"}"#)).reference, named("url"));
        assert_eq!(facts(None, json, Some(r#"{"data":"AAAA"}"#)).reference, None);
        assert_eq!(facts(None, json, Some(r#"{"data":"AAA"#)).reference, Some(Reference::Unsure));
        assert_eq!(facts(Some("/read?file_id=7"), None, None).reference, named("file_id"));
        let form =
            |field: &str| format!("--b\r\nContent-Disposition: form-data; {field}\r\n\r\nv\r\n--b--\r\n");
        let multipart = Some("multipart/form-data; boundary=b");
        assert_eq!(facts(None, multipart, Some(&form("name=\"url\""))).reference, named("url"));
        assert_eq!(facts(None, multipart, Some(&form("name=\"url\"; filename=\"a.pdf\""))).reference, None);
        let json =
            "--b\r\nContent-Disposition: form-data; name=\"o\"\r\n\r\n{\"file_id\":\"x\"}\r\n--b--\r\n";
        assert_eq!(facts(None, multipart, Some(json)).reference, named("file_id"));
        // a form that is not strict may be read by the service all the same
        let lenient = form("name=\"url\"").replace('\r', "");
        assert_eq!(facts(None, multipart, Some(&lenient)).reference, Some(Reference::Unsure));
        assert_eq!(facts(None, multipart, Some("...")).reference, None);
        let none = SavedRequest { body: Some(b"{\"url\":\"https://a\"}"), ..SavedRequest::default() };
        assert_eq!(none.facts(Phase::Poll, &Profile::status()).reference, None);
    }
}
