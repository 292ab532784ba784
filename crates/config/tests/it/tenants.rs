//! Tenants: ids, keys, what they may call, trust domains (CF-04).

use super::{good, problems, refused, top, up, warned};

const HEX: &str = "0123456789abcdef0123456789ABCDEF0123456789abcdef0123456789abcdef";

#[test]
fn ids_are_valid_and_unique() {
    good(&top("tenants: [{id: a, key: env:ONE}, {id: b, key: env:TWO}]"));
    for (text, path, words) in [
        ("tenants: [{key: env:ONE}]", "tenants[0].id", "`id` is missing"),
        ("tenants: [{id: 'a b', key: env:ONE}]", "tenants[0].id", "1 to 64 characters out of letters"),
        ("tenants: [{id: '', key: env:ONE}]", "tenants[0].id", "not a valid tenant id"),
        ("tenants: [{id: 5, key: env:ONE}]", "tenants[0].id", "put it in quotes"),
        (
            "tenants: [{id: a, key: env:ONE}, {id: a, key: env:TWO}]",
            "tenants[1].id",
            "another tenant has this name, at line 1",
        ),
        (
            "tenants: [{id: a, key: env:ONE}, {id: A, key: env:TWO}]",
            "tenants[1].id",
            "letter case and blanks do not count",
        ),
        (
            "tenants: [{id: a, key: env:ONE}, {id: 'a ', key: env:TWO}]",
            "tenants[1].id",
            "another tenant has this name",
        ),
        ("tenants: []", "tenants", "then everyone is the tenant `default`"),
    ] {
        refused(&top(text), path, words);
    }
}

#[test]
fn every_tenant_can_be_known_and_no_two_by_the_same_key() {
    good(&top(&format!("tenants: [{{id: a, key_sha256: {HEX}}}]")));
    good(&top("identity: {tenant_header: X-Tenant}\ntenants: [{id: a}]"));
    for (text, path, words) in [
        ("tenants: [{id: a}]".to_owned(), "tenants[0].key", "neither `key` nor `key_sha256`"),
        (
            format!("tenants: [{{id: a, key: env:ONE, key_sha256: {HEX}}}]"),
            "tenants[0].key_sha256",
            "not both",
        ),
        (
            "tenants: [{id: a, key_sha256: abc}]".to_owned(),
            "tenants[0].key_sha256",
            "not a SHA-256; write 64 hex digits",
        ),
        (
            "tenants:\n- {id: a, key: env:ONE}\n- {id: b, key: env:SAME_AS_ONE}".to_owned(),
            "tenants[1].key",
            "the same key is used at line 2",
        ),
        (
            format!("tenants: [{{id: a, key_sha256: {HEX}}}, {{id: b, key_sha256: {}}}]", HEX.to_lowercase()),
            "tenants[1].key_sha256",
            "the same key is used at line 1",
        ),
        (
            "admin: {token: env:ONE}\ntenants: [{id: a, key: env:ONE}]".to_owned(),
            "tenants[0].key",
            "the same key is used at line 1; give each tenant, and the admin API, a key of its own",
        ),
    ] {
        refused(&top(&text), path, words);
    }
}

#[test]
fn the_same_reference_twice_is_noticed_without_resolving() {
    let text = top("tenants: [{id: a, key: env:ONE}, {id: b, key: env:ONE}]");
    let problems =
        match nevertwice_config::from_text(&text, "gw.yaml", &nevertwice_config::secret::Unresolved) {
            Ok(_) => unreachable!("two tenants with one key were taken"),
            Err(problems) => problems,
        };
    assert!(problems.to_string().contains("the same key"), "{problems}");
}

#[test]
fn the_tenant_header_is_a_header_of_its_own() {
    for (header, words) in [
        ("Authorization", "it carries credentials"),
        ("cookie", "it carries credentials"),
        ("host", "the gateway writes it itself"),
        ("connection", "it speaks of one connection"),
        ("content-type", "it describes the document"),
        ("x-negative-cache", "a marker of the gateway"),
        ("'X Tenant'", "not the name of a header"),
        ("'X-Tenant: a'", "without `:` and value"),
        ("''", "not the name of a header"),
    ] {
        let text = top(&format!("identity: {{tenant_header: {header}}}"));
        refused(&text, "identity.tenant_header", words);
    }
    // a wrong header explains the tenants that have no key
    assert_eq!(problems(&top("identity: {tenant_header: host}\ntenants: [{id: a}, {id: b}]")).len(), 1);
}

#[test]
fn routes_name_upstreams() {
    let text = |routes: &str| top(&format!("tenants: [{{id: t, key: env:ONE, routes: {routes}}}]"));
    good(&text("[a]"));
    good(&text("[\"*\"]"));
    for (routes, path, words) in [
        ("[A]", "tenants[0].routes[0]", "there is no upstream of this name; did you mean `a`?"),
        ("[classifier]", "tenants[0].routes[0]", "there is no upstream of this name; upstreams: a"),
        ("[a, a]", "tenants[0].routes[1]", "listed twice"),
        ("[a, '*']", "tenants[0].routes[1]", "`*` is all upstreams already"),
        ("[]", "tenants[0].routes", "the tenant may call nothing"),
        ("a", "tenants[0].routes", "expected a list"),
        ("*", "tenants[0].routes", ""),
    ] {
        if routes == "*" {
            // an alias without a name is no YAML
            assert_eq!(problems(&text(routes)).len(), 1);
            continue;
        }
        refused(&text(routes), path, words);
    }
}

#[test]
fn trust_domains_hold_known_tenants_once() {
    let text = |domains: &str| {
        let tenants = "tenants: [{id: t1, key: env:ONE}, {id: t2, key: env:TWO}]";
        format!("{tenants}\n{}", up(&format!("negative_cache: {{scope: domain, trust_domains: {domains}}}")))
    };
    let at = |rest: &str| format!("upstreams[0].negative_cache.trust_domains{rest}");
    good(&text("[{name: x, tenants: [t1]}, {name: y, tenants: [t2]}]"));
    for (domains, path, words) in [
        (
            "[{name: x, tenants: [t1]}, {name: y, tenants: [t1]}]",
            "[1].tenants[0]",
            "in a trust domain already",
        ),
        (
            "[{name: x, tenants: [t1]}, {name: X, tenants: [t2]}]",
            "[1].name",
            "another trust domain has this name",
        ),
        ("[{name: x, tenants: [t3]}]", "[0].tenants[0]", "there is no tenant of this id; did you mean"),
        ("[{name: x, tenants: ['t 1']}]", "[0].tenants[0]", "not a valid tenant id"),
        ("[{name: x, tenants: []}]", "[0].tenants", "the list is empty"),
        ("[{name: x}]", "[0].tenants", "`tenants` is missing"),
        ("[{tenants: [t1]}]", "[0].name", "`name` is missing"),
        ("[{name: 'x y', tenants: [t1]}]", "[0].name", "not a valid name"),
        ("[]", "", "the list is empty"),
    ] {
        refused(&text(domains), &at(path), words);
    }
    refused(&up("negative_cache: {scope: domain}"), &at(""), "`scope: domain` needs `trust_domains`");
    let without = "negative_cache: {trust_domains: [{name: x, tenants: [t]}]}";
    let without = format!("identity: {{tenant_header: x-t}}\n{}", up(without));
    refused(&without, &at(""), "no meaning without `scope: domain`");
    good(&format!(
        "identity: {{tenant_header: x-t}}\n{}",
        up("negative_cache: {scope: domain, trust_domains: [{name: x, tenants: [t]}]}")
    ));
}

#[test]
fn a_short_key_of_fingerprints_warns() {
    let text = top("negative_cache: {enabled: true, key_secret: env:SHORT}");
    let secrets = nevertwice_config::secret::Given::default().with_env("SHORT", "tiny");
    let loaded =
        nevertwice_config::from_text(&text, "gw.yaml", &secrets).unwrap_or_else(|e| unreachable!("{e}"));
    assert!(loaded.warnings[0].cause.contains("fewer than 16 bytes"), "{:?}", loaded.warnings);
    let _ = warned(&top("negative_cache: {}"), "negative_cache.enabled", "off");
}
