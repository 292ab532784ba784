//! The paths of operations, of all versions of the API (Azure AI Document Intelligence REST reference, v2.1 to v4.0). The last
//! two segments of an operation's address are what kind of operation it is, and its id.

use std::borrow::Cow;

use super::OperationId;

/// What stands before an operation's id. The service itself writes some in lower case (v2.1, custom models).
const KINDS: [&str; 4] = ["analyzeResults", "analyzeBatchResults", "operations", "copyResults"];

/// A path as a server may read it: escapes decoded once (RFC 3986 section 2.1), backslashes as slashes. What is told by a path has to be
/// told by this form, or another spelling would be told otherwise here than there.
#[must_use]
pub fn as_read(path: &str) -> Cow<'_, str> {
    if !path.contains(['%', '\\']) {
        return Cow::Borrowed(path);
    }
    let digit = |byte: Option<&u8>| byte.and_then(|b| char::from(*b).to_digit(16));
    let bytes = path.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        let escaped = digit(bytes.get(at + 1)).zip(digit(bytes.get(at + 2))).filter(|_| *byte == b'%');
        let (read, length) = match escaped.and_then(|(high, low)| u8::try_from(high * 16 + low).ok()) {
            Some(escaped) => (escaped, 3),
            None => (*byte, 1),
        };
        out.push(if read == b'\\' { b'/' } else { read });
        at += length;
    }
    Cow::Owned(String::from_utf8_lossy(&out).into_owned())
}

/// A path that names an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Named<'a> {
    /// The id, as it stands there.
    pub id: &'a str,
    /// What comes after it: empty, or a sub-resource such as `/pdf` or `/figures/1.1`.
    pub rest: &'a str,
}

/// The operation that a path names.
#[must_use]
pub fn named(path: &str) -> Option<Named<'_>> {
    let (mut at, mut is_kind) = (0, false);
    for segment in path.split_inclusive('/') {
        // parameters of a segment are no part of its name
        let name = segment.trim_end_matches('/').split(';').next().unwrap_or_default();
        if is_kind && !name.is_empty() {
            return Some(Named { id: name, rest: &path[at + name.len()..] });
        }
        // an empty segment counts for nothing: some clients write `//`
        is_kind = KINDS.iter().any(|kind| kind.eq_ignore_ascii_case(name)) || is_kind && name.is_empty();
        at += segment.len();
    }
    None
}

/// Whether a POST to this path carries a document to be analysed: `…:analyze` (v3, v4), `…/analyze` (v2.1).
#[must_use]
pub fn is_submit(path: &str) -> bool {
    resource(path).is_some()
}

/// The resource that is asked to analyse. Letter case does not count: servers may not look at it either.
fn resource(path: &str) -> Option<&str> {
    let at = path.len().checked_sub("/analyze".len())?;
    let (resource, verb) = path.split_at_checked(at)?;
    [":analyze", "/analyze"].iter().any(|known| verb.eq_ignore_ascii_case(known)).then_some(resource)
}

/// The address of an operation of this submit, without its query.
#[must_use]
pub fn of_submit(path: &str, id: &OperationId) -> Option<String> {
    Some(format!("{}/analyzeResults/{id}", resource(path)?))
}

/// An upstream's address of an operation, path and query, with another id in it; `None` when it is no address of one.
#[must_use]
pub fn with_id(address: &str, id: &OperationId) -> Option<String> {
    let (path, query) = match address.find('?') {
        Some(at) => address.split_at(at),
        None => (address, ""),
    };
    let Named { id: theirs, rest: "" } = named(path)? else { return None };
    let before = path.strip_suffix(theirs)?;
    Some(format!("{before}{id}{query}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id() -> OperationId {
        OperationId::from_random([1; 16])
    }

    #[test]
    fn operations_of_all_versions_are_named() {
        for (path, wanted, rest) in [
            ("/documentintelligence/documentModels/m/analyzeResults/7f", "7f", ""),
            ("/documentintelligence/documentModels/m/analyzeResults/7f/pdf", "7f", "/pdf"),
            (
                "/documentintelligence/documentClassifiers/c/analyzeResults/7f/figures/1.1",
                "7f",
                "/figures/1.1",
            ),
            ("/formrecognizer/v2.1/layout/analyzeResults/7f", "7f", ""),
            (
                "/formrecognizer/v2.1/custom/models/11111111-1111-1111-1111-111111111111/analyzeResults/7f",
                "7f",
                "",
            ),
            ("//documentintelligence/operations/x", "x", ""),
            ("/formrecognizer/v2.1/custom/models/m/analyzeresults/x", "x", ""),
            ("/documentintelligence/documentModels/m/analyzeBatchResults//x", "x", ""),
        ] {
            assert_eq!(named(path), Some(Named { id: wanted, rest }), "{path}");
        }
        for path in [
            "/",
            "",
            "/documentintelligence/operations",
            "/operations/",
            "/documentModels/m",
            "/analyzeResultsX/7",
        ] {
            assert_eq!(named(path), None, "{path}");
        }
    }

    #[test]
    fn other_spellings_name_the_same() {
        for path in [
            "/d/analyze%52esults/7f",
            "/d/ANALYZERESULTS/7f",
            "/d/analyzeResults%2F7f",
            "/d\\analyzeResults\\7f",
            "/d/analyzeResults;x=1/7f",
        ] {
            assert_eq!(named(&as_read(path)).map(|named| named.id), Some("7f"), "{path}");
        }
        assert_eq!(as_read("/a%2"), "/a%2");
        assert_eq!(as_read("/a%%41%zz%C3%A9"), "/a%A%zzé");
        assert_eq!(named(&as_read("/d/analyze%2552esults/7f")), None);
    }

    #[test]
    fn an_address_takes_another_id_and_nothing_else_changes() {
        let id = id();
        assert_eq!(
            with_id("/d/documentModels/7f/analyzeResults/7f?api-version=2024-11-30&x=7f", &id),
            Some(format!("/d/documentModels/7f/analyzeResults/{id}?api-version=2024-11-30&x=7f"))
        );
        assert_eq!(with_id("/d/analyzeResults/7f", &id), Some(format!("/d/analyzeResults/{id}")));
        for other in ["/d/7f", "/d/analyzeResults/7f/pdf", "/d/analyzeResults/", "?x", ""] {
            assert_eq!(with_id(other, &id), None, "{other}");
        }
    }

    #[test]
    fn a_submit_has_the_address_of_its_operation() {
        let id = id();
        let of = |path: &str| of_submit(path, &id);
        assert_eq!(
            of("/d/documentModels/m:analyze"),
            Some(format!("/d/documentModels/m/analyzeResults/{id}"))
        );
        assert_eq!(of("/f/v2.1/layout/analyze"), Some(format!("/f/v2.1/layout/analyzeResults/{id}")));
        assert_eq!(of("/d/documentModels/m:analyzeBatch"), None);
        assert!(is_submit("/f/v2.1/layout/analyze") && !is_submit("/d/documentModels/m:analyzeBatch"));
        assert!(
            is_submit("/d/m:ANALYZE") && is_submit(&as_read("/d/m%3aanaly%7Ae")) && !is_submit("é:analyze/")
        );
    }
}
