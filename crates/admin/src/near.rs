//! What somebody probably meant.

/// The candidate that `word` is a near miss of.
pub(crate) fn miss<'a>(word: &str, candidates: &[&'a str]) -> Option<&'a str> {
    let word: String = word.chars().take(64).collect::<String>().to_ascii_lowercase();
    candidates
        .iter()
        .map(|candidate| (strsim::damerau_levenshtein(&word, candidate), *candidate))
        .filter(|(distance, candidate)| {
            let begun = word.len() >= 3 && (candidate.starts_with(&word) || word.starts_with(candidate));
            *distance <= (candidate.len() / 3).clamp(1, 3) && *distance < word.len() || begun
        })
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// `did you mean ...?`, or what there is to choose from.
pub(crate) fn cure(word: &str, candidates: &[&str], what: &str) -> String {
    match miss(word, candidates) {
        Some(meant) => format!("did you mean `{meant}`?"),
        None if candidates.is_empty() => format!("there are no {what}"),
        None => format!("{what}: {}", candidates.join(", ")),
    }
}

/// A word of a caller, fit for a message: short, and without control characters.
pub(crate) fn quoted(word: &str) -> String {
    let mut text: String = word.chars().take(80).flat_map(char::escape_debug).collect();
    if word.chars().nth(80).is_some() {
        text.push('…');
    }
    format!("`{text}`")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_misses() {
        let keys = ["fingerprint", "upstream", "status", "document", "before", "all"];
        for (word, meant) in [
            ("upstraem", Some("upstream")),
            ("Status", Some("status")),
            ("documents", Some("document")),
            ("document_sha256", Some("document")),
            ("al", Some("all")),
            ("colour", None),
            ("", None),
        ] {
            assert_eq!(miss(word, &keys), meant, "{word}");
        }
    }

    #[test]
    fn words_of_callers_are_short_and_plain() {
        assert_eq!(quoted("a\u{1b}[31m\n"), "`a\\u{1b}[31m\\n`");
        assert!(quoted(&"x".repeat(10_000)).len() < 100);
    }
}
