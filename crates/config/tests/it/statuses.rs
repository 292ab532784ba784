//! Which statuses may be remembered (CF-02), and whether the memory is on.

use super::{good, problems, refused, top, up, warned};

fn with(statuses: &str) -> String {
    top(&format!("negative_cache: {{enabled: true, statuses: {statuses}}}"))
}

#[test]
fn the_rail_and_everything_that_is_no_4xx_are_refused_with_the_reason() {
    for (status, words) in [
        ("401", "401 is never remembered: it speaks of the credential"),
        ("403", "403 is never remembered: it speaks of a permission"),
        ("404", "404 is never remembered: it speaks of the route"),
        ("408", "408 is never remembered: it speaks of time"),
        ("429", "429 is never remembered: it speaks of the rate"),
        ("200", "200 is not a 4xx status"),
        ("399", "399 is not a 4xx status"),
        ("500", "500 is not a 4xx status"),
        ("-400", "-400 is not an HTTP status"),
        ("70000", "70000 is not an HTTP status"),
        ("\"4xx\"", "expected a whole number, found a text in quotes"),
        ("4xx", "expected a whole number, found a text"),
        ("\"400\"", "remove the quotes"),
        ("400.0", "without a fraction"),
        ("0x190", "not in plain decimal digits"),
        ("null", "found nothing"),
        ("[400]", "found a list"),
    ] {
        refused(&with(&format!("[{status}]")), "negative_cache.statuses[0]", words);
    }
}

#[test]
fn a_list_of_statuses_is_a_list_with_something_in_it() {
    refused(
        &with("[]"),
        "negative_cache.statuses",
        "the list is empty; to switch the memory off write `enabled: false`",
    );
    refused(&with("null"), "negative_cache.statuses", "found nothing");
    refused(&with("\"400\""), "negative_cache.statuses", "expected a list");
    refused(&with("400"), "negative_cache.statuses", "expected a list, found a number; write `[a, b]`");
    refused(
        &with("[400, 422, 400]"),
        "negative_cache.statuses[2]",
        "400 stands here a second time (first on line 1)",
    );
    assert_eq!(problems(&with("[401, 400, 429, 200]")).len(), 3);
}

#[test]
fn other_4xx_are_fine_and_doubtful_ones_warn() {
    let memory = good(&with("[422, 400, 418]")).memory;
    assert_eq!(memory.map(|m| m.statuses.to_string()), Some("[400 418 422]".to_owned()));
    for doubtful in [402, 405, 407, 409, 411, 412, 421, 423, 425, 426, 428, 431, 451, 499] {
        let text = with(&format!("[400, {doubtful}]"));
        warned(
            &text,
            "negative_cache.statuses[1]",
            &format!("{doubtful} is seldom a verdict on a document: it"),
        );
    }
}

#[test]
fn the_memory_is_on_where_it_is_said() {
    assert!(good(&top("negative_cache: {enabled: false}")).memory.is_none());
    assert!(good(&top("negative_cache: {enabled: false}")).upstreams[0].memory.is_none());
    let text = top("negative_cache: {ttl_s: 5}");
    assert!(warned(&text, "negative_cache.enabled", "so the memory is off").memory.is_none());
    // off, but checked all the same
    refused(&top("negative_cache: {enabled: false, statuses: [401]}"), "negative_cache.statuses[0]", "never");
    let on = format!("negative_cache: {{enabled: true}}\n{}", up("negative_cache: {enabled: false}"));
    let checked = good(&on);
    assert!(checked.memory.is_some() && checked.upstreams[0].memory.is_none());
    warned(
        &up("negative_cache: {enabled: true}"),
        "upstreams[0].negative_cache.enabled",
        "this has no effect",
    );
    assert!(good(&up("negative_cache: {mode: observe}")).upstreams[0].memory.is_none());
    let unguarded = "negative_cache: {enabled: true}\nupstreams: [{name: a, base_url: http://h}]";
    warned(unguarded, "upstreams[0].sync_paths", "guards nothing");
}
