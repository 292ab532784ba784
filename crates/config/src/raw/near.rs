//! What somebody probably meant: near misses of words, and where a misplaced key belongs.

use super::read::Key;

/// The candidate that `word` is a near miss of.
pub(crate) fn miss<'a>(word: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let word = folded(word);
    candidates
        .filter_map(|candidate| {
            let other = folded(candidate);
            let distance = strsim::damerau_levenshtein(&word, &other);
            let close = distance <= (other.len() / 3).clamp(1, 3) && distance < word.len();
            let begun = word.len() >= 3 && (other.starts_with(&word) || other.ends_with(&word));
            let overlong = other.len() >= 4 && (word.starts_with(&other) || word.ends_with(&other));
            (close || begun || overlong).then_some((distance, candidate))
        })
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Letter case, `-` and `_` are what people mix up most.
fn folded(word: &str) -> String {
    word.chars().filter(|c| !"-_ ".contains(*c)).take(64).collect::<String>().to_ascii_lowercase()
}

/// The blocks directly below `keys` that have a key of this name.
pub(crate) fn below(name: &str, keys: &'static [Key]) -> Vec<&'static str> {
    keys.iter().filter(|k| k.inside.iter().any(|inner| inner.name == name)).map(|k| k.name).collect()
}

/// The first block anywhere that has a key of this name, among those that lie highest.
pub(crate) fn owner(name: &str, top: &'static [Key]) -> Option<String> {
    if let Some(block) = below(name, top).first() {
        return Some((*block).to_owned());
    }
    let deeper = |k: &Key| owner(name, k.inside).map(|inner| format!("{}.{inner}", k.name));
    top.iter().filter_map(deeper).min_by_key(|home| home.matches('.').count())
}

/// Keys that other programs have in such a block and that are something else here: the block, their names, the key that is
/// meant, and the cure.
const ELSEWHERE: &[(&str, &[&str], &str, &str)] = &[
    (
        "store.redis",
        &[
            "addr",
            "addrs",
            "address",
            "addresses",
            "host",
            "hosts",
            "hostname",
            "port",
            "server",
            "servers",
            "endpoint",
            "endpoints",
            "nodes",
            "sentinels",
            "sentinel",
            "cluster",
            "primary",
            "master",
            "master_name",
            "db",
            "database",
        ],
        "url",
        "it is part of `url`: redis://HOST:PORT/DB, redis-sentinel://HOST,HOST/PRIMARY or redis-cluster://HOST,HOST",
    ),
    ("store.redis", &["ssl"], "url", "write `url: rediss://...`, with `tls` for files"),
    (
        "store.redis",
        &["timeout_ms", "timeout", "connect_timeout_ms", "read_timeout_ms", "write_timeout_ms"],
        "read_ms",
        "`read_ms` bounds a look-up and `write_ms` a record",
    ),
    (
        "",
        &["public_url", "external_url", "public_endpoint"],
        "public_base_url",
        "did you mean `public_base_url`?",
    ),
    (
        "",
        &["trusted_proxies", "trusted_proxy", "trust_proxy", "forwarded_allow_ips"],
        "trusted_hops",
        "did you mean `trusted_hops`?",
    ),
    (
        "jobs",
        &["enabled"],
        "enabled",
        "remove it: jobs are served when the block `jobs` is there, even empty as `jobs: {}`",
    ),
];

/// What to write instead of a key of another program: the key that is meant, and the cure.
pub(crate) fn elsewhere(name: &str, path: &str) -> Option<(&'static str, &'static str)> {
    let mut same = ELSEWHERE.iter().filter(|(block, names, ..)| *block == path && names.contains(&name));
    same.next().map(|(_, _, meant, cure)| (*meant, *cure))
}

/// The block elsewhere that is called as the block at `path` is, and has a key of this name.
pub(crate) fn namesake(name: &str, path: &str, top: &'static [Key]) -> Option<String> {
    let last = |path: &str| path.rsplit('.').next().map(str::to_owned);
    owner(name, top).filter(|home| last(home) == last(path))
}

/// The most candidates that are named: all profiles of the program are.
const NAMED: usize = 100;

/// `did you mean ...?`, or what there is to choose from.
pub(crate) fn cure<'a>(word: &str, candidates: impl Iterator<Item = &'a str> + Clone, what: &str) -> String {
    if let Some(meant) = miss(word, candidates.clone()) {
        return format!("did you mean `{meant}`?");
    }
    let all: Vec<_> = candidates.clone().take(NAMED).collect();
    match candidates.count() - all.len() {
        _ if all.is_empty() => format!("there are no {what}"),
        0 => format!("{what}: {}", all.join(", ")),
        more => format!("{what}: {}, and {more} more", all.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_misses() {
        let keys = ["enabled", "ttl_s", "max_entries", "max_body_bytes", "statuses", "key_secret"];
        for (word, meant) in [
            ("enabld", Some("enabled")),
            ("Enabled", Some("enabled")),
            ("status", Some("statuses")),
            ("ttl", Some("ttl_s")),
            ("ttl-s", Some("ttl_s")),
            ("max_entires", Some("max_entries")),
            ("maxBodyBytes", Some("max_body_bytes")),
            ("ttl_seconds", Some("ttl_s")),
            ("colour", None),
            ("x", None),
            ("", None),
        ] {
            assert_eq!(miss(word, keys.into_iter()), meant, "{word}");
        }
    }
}
