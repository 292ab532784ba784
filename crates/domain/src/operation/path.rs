//! The paths of operations, of all versions of the API (Azure AI Document Intelligence REST reference, v2.1 to v4.0). The last
//! two segments of an operation's address are what kind of operation it is, and its id.

use super::OperationId;

/// What stands before an operation's id. The service itself writes some in lower case (v2.1, custom models).
const KINDS: [&str; 4] = ["analyzeResults", "analyzeBatchResults", "operations", "copyResults"];

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
        let name = segment.trim_end_matches('/');
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
    path.ends_with(":analyze") || path.ends_with("/analyze")
}

/// The address of an operation of this submit, without its query.
#[must_use]
pub fn of_submit(path: &str, id: &OperationId) -> Option<String> {
    let resource = path.strip_suffix(":analyze").or_else(|| path.strip_suffix("/analyze"))?;
    Some(format!("{resource}/analyzeResults/{id}"))
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
    }
}
