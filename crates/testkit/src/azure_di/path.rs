//! The paths of the service, at any prefix and with slashes doubled or not.

/// v2.1 writes it in lower case for custom models.
const RESULTS: &str = "/analyzeresults/";

/// What a path names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target<'a> {
    /// Submits go here; the part before `:analyze` or `/analyze`, under which its operations are.
    Submit(&'a str),
    /// An operation, or a part of its result, such as `/pdf`.
    Operation { id: &'a str, part: &'a str },
}

impl<'a> Target<'a> {
    /// `None` for what the service does not have.
    pub(super) fn of(path: &'a str) -> Option<Self> {
        for ending in [":analyze", "/analyze"] {
            if let Some(model) = path.strip_suffix(ending) {
                return Some(Self::Submit(model));
            }
        }
        let at = path.to_ascii_lowercase().find(RESULTS)?;
        let after = &path[at + RESULTS.len()..];
        let (id, part) = after.split_at(after.find('/').unwrap_or(after.len()));
        Some(Self::Operation { id, part })
    }
}

/// Whether a path is one of v2.1, which words its answers in another way.
pub(super) fn is_v2(path: &str) -> bool {
    path.contains("/v2.1/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn submits_and_operations_are_told_apart_at_any_prefix() {
        let submit = |path| Target::of(path);
        let v4 = "/a//documentintelligence/documentModels/my.model:analyze";
        assert_eq!(submit(v4), Some(Target::Submit("/a//documentintelligence/documentModels/my.model")));
        let v2 = "/formrecognizer/v2.1/custom/models/m/analyze";
        assert_eq!(submit(v2), Some(Target::Submit("/formrecognizer/v2.1/custom/models/m")));
        let operation = "/documentintelligence/documentModels/m/analyzeResults/7f";
        assert_eq!(Target::of(operation), Some(Target::Operation { id: "7f", part: "" }));
        let part = format!("{operation}/figures/1.1");
        assert_eq!(Target::of(&part), Some(Target::Operation { id: "7f", part: "/figures/1.1" }));
        assert_eq!(Target::of("/documentintelligence/info"), None);
        assert!(is_v2(v2) && !is_v2(v4));
    }
}
