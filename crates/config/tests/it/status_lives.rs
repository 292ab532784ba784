//! Lives of single statuses: `status_ttl_s` on an upstream.

use nevertwice_domain::status::RefusalStatus;

use super::{good, problems, refused, top, up};

const KEY: &str = "upstreams[0].negative_cache.status_ttl_s";

/// The least configuration with this as the `negative_cache` of its upstream, and the memory on.
fn with(block: &str) -> String {
    top("negative_cache: {enabled: true}")
        + &up(&format!("negative_cache: {{{block}}}"))[super::LEAST.len()..]
}

fn lives(map: &str) -> String {
    with(&format!("status_ttl_s: {map}"))
}

/// The longest lives of 400 and 413, in seconds.
#[track_caller]
fn longest(text: &str) -> [u64; 2] {
    let checked = good(text);
    let memory = checked.upstreams[0].memory.as_ref().unwrap_or_else(|| unreachable!("{text}"));
    let status = |status| RefusalStatus::new(status).unwrap_or_else(|e| unreachable!("{e}"));
    [400, 413].map(|number| memory.life.ttl_ms(status(number)) / 1000)
}

#[test]
fn a_status_has_its_own_life_and_the_others_have_that_of_the_upstream() {
    assert_eq!(longest(&with("")), [86_400, 86_400]);
    assert_eq!(longest(&lives("{}")), [86_400, 86_400]);
    assert_eq!(longest(&lives("{413: 1}")), [86_400, 1]);
    assert_eq!(longest(&lives("{\"413\": 3600, 400: 60}")), [60, 3600]);
    assert_eq!(longest(&with("ttl_s: 100, status_ttl_s: {413: 100}")), [100, 100]);
    assert_eq!(longest(&with("ttl_s: 315360000, status_ttl_s: {413: 315360000}")), [315_360_000; 2]);
    assert_eq!(longest(&with("ttl_s: 100, ttl_ladder: {first_s: 50}, status_ttl_s: {413: 10}")), [100, 10]);
}

#[test]
fn a_key_that_is_no_status_is_refused() {
    for key in [
        "4xx",
        "413.0",
        "0413",
        "\"0413\"",
        "+413",
        "\"+413\"",
        "413-415",
        "[413]",
        "true",
        "<<",
        "too large",
        "'413 '",
    ] {
        let all = problems(&lives(&format!("{{{key}: 5}}")));
        let [problem] = all.as_slice() else { unreachable!("{key}: {all:#?}") };
        assert!(problem.path.starts_with(KEY), "{problem}");
        let told = problem.to_string();
        let words = "a key must be an HTTP status here; write it as in `413: 3600`, one line for each status";
        assert!(told.contains(words) && problem.line == Some(6), "{key}: {told}");
    }
    // a secret in the wrong place is not shown
    let all = problems(&lives("{sk-0123456789abcdef: 5}"));
    assert!(all.iter().all(|p| !p.to_string().contains("0123456789")), "{all:#?}");
}

#[test]
fn a_status_that_can_never_be_remembered_is_refused_with_the_reason() {
    for (status, words) in [
        ("401", "401 is never remembered: it speaks of the credential"),
        ("403", "403 is never remembered: it speaks of a permission"),
        ("404", "404 is never remembered: it speaks of the route"),
        ("408", "408 is never remembered: it speaks of time"),
        ("429", "429 is never remembered: it speaks of the rate"),
        ("200", "200 is not a 4xx status"),
        ("500", "500 is not a 4xx status"),
        ("-413", "-413 is not an HTTP status"),
        ("70000", "70000 is not an HTTP status"),
    ] {
        refused(&lives(&format!("{{{status}: 5}}")), &format!("{KEY}.{status}"), words);
    }
}

#[test]
fn a_status_that_is_not_remembered_here_is_refused() {
    let words = "418 is not remembered: it is not in `negative_cache.statuses`; remove it, or add it there";
    refused(&lives("{418: 5}"), &format!("{KEY}.418"), words);
    let given = |statuses: &str, lives: &str| {
        top(&format!("negative_cache: {{enabled: true, statuses: {statuses}}}"))
            + &up(&format!("negative_cache: {{status_ttl_s: {lives}}}"))[super::LEAST.len()..]
    };
    good(&given("[400, 418]", "{418: 5}"));
    refused(&given("[400, 418]", "{413: 5}"), &format!("{KEY}.413"), "413 is not remembered");
    // it may be in the list that has a fault
    refused(&given("[400, \"413\"]", "{413: 5}"), "negative_cache.statuses[1]", "remove the quotes");
    refused(
        &given("[400, 413]", "{413: 5}").replace("negative_cache: {enabled", "negative_cahe: {enabled"),
        "negative_cahe",
        "did you mean `negative_cache`?",
    );
    // off, but checked all the same
    refused(&up("negative_cache: {status_ttl_s: {418: 5}}"), &format!("{KEY}.418"), "418 is not remembered");
    refused(&with("enabled: false, status_ttl_s: {418: 5}"), &format!("{KEY}.418"), "418 is not remembered");
}

#[test]
fn a_life_is_a_number_of_seconds_and_at_most_that_of_the_upstream() {
    let at = format!("{KEY}.413");
    for (value, words) in [
        ("0", "0 is out of bounds; write a number from 1 to 315360000"),
        ("-1", "-1 is out of bounds"),
        ("315360001", "315360001 is out of bounds; write a number from 1 to 315360000"),
        ("1h", "write the number alone, in decimal digits, without a unit"),
        ("\"60\"", "remove the quotes"),
        ("1.5", "write it without a fraction"),
        ("", "found nothing; give a whole number, or remove the key"),
        ("[60]", "found a list"),
        ("&a 60", "a YAML anchor is not supported here"),
        (
            "86401",
            "86401 s is longer than the longest life of 86400 s; `ttl_s` is the cap: lower this or raise `ttl_s`",
        ),
    ] {
        refused(&lives(&format!("{{413: {value}}}")), &at, words);
    }
    refused(&with("ttl_s: 100, status_ttl_s: {413: 101}"), &at, "longer than the longest life of 100 s");
    let shared = lives("{413: 101}").replace("enabled: true", "enabled: true, ttl_s: 100");
    refused(&shared, &at, "longer than the longest life of 100 s");
    good(&with("ttl_s: 100, status_ttl_s: {413: 100}").replace("enabled: true", "enabled: true, ttl_s: 50"));
    // how long the longest is cannot be told from a `ttl_s` with a fault
    let own = "upstreams[0].negative_cache.ttl_s";
    refused(&with("ttl_s: 0, status_ttl_s: {413: 86401}"), own, "0 is out of bounds");
    refused(&with("ttl_s: 2d, status_ttl_s: {413: 86401}"), own, "without a unit");
    refused(&with("ttl_s: 0, ttl_ladder: {first_s: 86401}"), own, "0 is out of bounds");
    let wrong = lives("{413: 86401}").replace("enabled: true", "enabled: true, ttl_s: 2d");
    refused(&wrong, "negative_cache.ttl_s", "without a unit");
}

#[test]
fn a_status_stands_once_and_every_problem_is_told() {
    let at = format!("{KEY}.413");
    let twice = "the key stands here a second time (first on line 6); keep one of them";
    refused(&lives("{413: 5, 413: 6}"), &at, twice);
    refused(&lives("{413: 5, \"413\": 5}"), &at, twice);
    assert_eq!(problems(&lives("{413: 5, 413: 6, 400: 0, 401: 5, 418: 5, x: 5, 422: 99999}")).len(), 6);
    for two in ["{418: 99999}", "{418: 1h}", "{401: 1h}", "{418: 0}"] {
        assert_eq!(problems(&lives(two)).len(), 2, "{two}");
    }
    for (value, words) in [
        ("[413]", "expected a block of statuses, found a list; write them as in `{413: 3600}`"),
        ("3600", "expected a block of statuses, found a number"),
        ("", "expected a block of statuses, found nothing"),
        ("*a", "a YAML alias is not supported here"),
    ] {
        refused(&lives(value), KEY, words);
    }
}
