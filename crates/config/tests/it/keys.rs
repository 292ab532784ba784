//! Keys and types: unknown, misplaced and doubled keys, and values of the wrong kind (CF-01, CF-04).

use super::{LEAST, good, problems, refused, top, up};

#[test]
fn a_misspelt_key_is_told_with_the_one_that_was_meant() {
    for (text, path, words) in [
        (top("negative_cahe: {enabled: true}"), "negative_cahe", "did you mean `negative_cache`?"),
        (top("negative-cache: {enabled: true}"), "negative-cache", "did you mean `negative_cache`?"),
        (top("negative_cache: {enabld: true}"), "negative_cache.enabld", "did you mean `enabled`?"),
        (
            top("negative_cache: {enabled: true, status: [400]}"),
            "negative_cache.status",
            "did you mean `statuses`?",
        ),
        (top("negative_cache: {enabled: true, TTL: 5}"), "negative_cache.TTL", "did you mean `ttl_s`?"),
        (up("timeout: 5"), "upstreams[0].timeout", "did you mean `timeout_ms`?"),
        (up("negative_cache: {key_header: [x]}"), "upstreams[0].negative_cache.key_header", "`key_headers`"),
        (up("pool: {max_inflight: 5}"), "upstreams[0].pool.max_inflight", "did you mean `max_in_flight`?"),
        (
            up("tls: {cert: c}").replace("http:", "https:"),
            "upstreams[0].tls.cert",
            "did you mean `client_cert`?",
        ),
        (
            up("negative_cache: {statuses_ttl_s: {413: 5}}"),
            "upstreams[0].negative_cache.statuses_ttl_s",
            "did you mean `status_ttl_s`?",
        ),
        (top("job: {}"), "job", "did you mean `jobs`?"),
        (top("jobs: {retention: 5}"), "jobs.retention", "did you mean `retention_s`?"),
        (top("jobs: {webhook: {}}"), "jobs.webhook", "did you mean `webhooks`?"),
        (top("public_url: http://x"), "public_url", "did you mean `public_base_url`?"),
        (top("trusted_proxies: []"), "trusted_proxies", "did you mean `trusted_hops`?"),
        (up("poll_interval: 5"), "upstreams[0].poll_interval", "did you mean `poll_interval_ms`?"),
        (top("colour: red"), "colour", "the keys here are listen, tls, identity"),
        (top("listen: {addr: 127.0.0.1:1, tsl: {}}"), "listen.tsl", "did you mean `tls`?"),
        (top("tenants: [{id: a, kye: env:ONE}]"), "tenants[0].kye", "did you mean `key`?"),
    ] {
        refused(&text, path, words);
    }
}

#[test]
fn a_key_on_the_wrong_level_is_told_where_it_belongs() {
    for (text, path, words) in [
        (top("ttl_s: 5"), "ttl_s", "`ttl_s` belongs under `negative_cache`"),
        (top("key_headers: [x]"), "key_headers", "belongs under `upstreams.negative_cache`"),
        (top("max_attempts: 5"), "max_attempts", "`max_attempts` belongs under `jobs`"),
        (
            top("jobs: {allow_private: true}"),
            "jobs.allow_private",
            "`allow_private` belongs under `webhooks`",
        ),
        (top("poll_hosts: [h]"), "poll_hosts", "`poll_hosts` belongs under `upstreams`"),
        (up("public_base_url: http://x"), "upstreams[0].public_base_url", "directly under the top level"),
        (top("max_in_flight: 5"), "max_in_flight", "belongs under `upstreams.pool`"),
        (top("id: a"), "id", "`id` belongs under `tenants`"),
        (top("key: env:ONE"), "key", "`key` belongs under `tls` or `tenants`"),
        (up("max_queue: 5"), "upstreams[0].max_queue", "`max_queue` belongs under `pool`"),
        (up("pool: {timeout_ms: 5}"), "upstreams[0].pool.timeout_ms", "directly under `upstreams[0]`"),
        (
            up("negative_cache: {mount: /y}"),
            "upstreams[0].negative_cache.mount",
            "directly under `upstreams[0]`",
        ),
        (up("drain_s: 5"), "upstreams[0].drain_s", "directly under the top level"),
        (top("negative_cache: {enabled: true, listen: 5}"), "negative_cache.listen", "the top level"),
        (up("statuses: [400]"), "upstreams[0].statuses", "`statuses` belongs under `negative_cache`"),
        (
            up("negative_cache: {statuses: [418], status_ttl_s: {418: 5}}"),
            "upstreams[0].negative_cache.statuses",
            "`statuses` belongs under the top level's `negative_cache`",
        ),
        (
            top("negative_cache: {enabled: true, status_ttl_s: {413: 5}}"),
            "negative_cache.status_ttl_s",
            "`status_ttl_s` belongs under `upstreams.negative_cache`",
        ),
        (up("status_ttl_s: {413: 5}"), "upstreams[0].status_ttl_s", "belongs under `negative_cache`"),
        (up("credential: {header: x, value: env:ONE, ca: f}"), "upstreams[0].credential.ca", "upstreams.tls"),
    ] {
        refused(&text, path, words);
    }
}

#[test]
fn doubles_are_refused_with_both_lines() {
    refused(
        "drain_s: 5\ndrain_s: 6\nupstreams: [{name: a, base_url: http://h}]\n",
        "drain_s",
        "first on line 1",
    );
    let double = format!("{LEAST}    timeout_ms: 5\n    timeout_ms: 6\n");
    refused(
        &double,
        "upstreams[0].timeout_ms",
        "6:5: error: upstreams[0].timeout_ms: the key stands here a second time (first on line 5)",
    );
    refused(
        &top("colour: 1\ncolour: 2").replace("colour: 1", "limits: {}").replace("colour: 2", "limits: {}"),
        "limits",
        "line 1",
    );
}

#[test]
fn yaml_words_that_hide_where_a_value_comes_from_are_refused() {
    for (text, path, words) in [
        (top("drain_s: &d 5"), "drain_s", "a YAML anchor is not supported here"),
        (top("drain_s: *d"), "drain_s", "a YAML alias is not supported here"),
        (top("drain_s: !!int 5"), "drain_s", "a YAML tag is not supported here"),
        (top("<<: {drain_s: 5}"), "<<", "YAML merge keys are not supported"),
        (up("pool: {<<: *x}"), "upstreams[0].pool.<<", "YAML merge keys are not supported"),
        (top("limits: &l {body_max_bytes: 5}"), "limits", "a YAML anchor is not supported here"),
        (top("negative_cache: !include other.yaml"), "negative_cache", "a YAML tag is not supported here"),
        (top("? [a]\n: 5"), "", "a key must be a plain word"),
    ] {
        refused(&text, path, words);
    }
}

#[test]
fn numbers_are_whole_and_plain() {
    for (value, words) in [
        ("\"5\"", "found a text in quotes; remove the quotes"),
        ("5.0", "write it without a fraction"),
        ("5e0", "write it without a fraction"),
        ("0x5", "not in plain decimal digits"),
        ("0o5", "not in plain decimal digits"),
        ("05", "not in plain decimal digits"),
        ("+5", "not in plain decimal digits"),
        ("1_000", "not in plain decimal digits"),
        (".inf", "not in plain decimal digits"),
        ("123456789012345678901234567890", "not in plain decimal digits"),
        ("30s", "found a text; write the number alone, in decimal digits, without a unit"),
        ("true", "found true or false"),
        ("", "found nothing; give a whole number, or remove the key"),
        ("~", "found nothing"),
        ("null", "found nothing"),
        ("[5]", "found a list"),
        ("{a: 5}", "found a block of keys"),
        ("-1", "-1 is out of bounds; write a number from 0 to 3600"),
        ("3601", "3601 is out of bounds"),
        ("18446744073709551616", "out of bounds"),
    ] {
        refused(&top(&format!("drain_s: {value}")), "drain_s", words);
    }
    for value in ["0", "5", "3600"] {
        good(&top(&format!("drain_s: {value}")));
    }
}

#[test]
fn yes_and_no_have_one_spelling() {
    for (value, words) in [
        ("yes", "write `true`, without quotes"),
        ("on", "write `true`, without quotes"),
        ("True", "write `true`, without quotes"),
        ("TRUE", "write `true`, without quotes"),
        ("\"true\"", "write `true`, without quotes"),
        ("no", "write `false`, without quotes"),
        ("off", "write `false`, without quotes"),
        ("'false'", "write `false`, without quotes"),
        ("1", "write `true` or `false`"),
        ("maybe", "write `true` or `false`"),
        ("", "found nothing"),
        ("[true]", "found a list"),
    ] {
        refused(&top(&format!("negative_cache: {{enabled: {value}}}")), "negative_cache.enabled", words);
    }
}

#[test]
fn texts_lists_blocks_and_words_are_what_they_are() {
    for (text, path, words) in [
        (
            top("identity: {tenant_header: 5}"),
            "identity.tenant_header",
            "expected a text, found a number; put it in quotes",
        ),
        (
            top("identity: x"),
            "identity",
            "expected a block of keys, found a text; write keys such as `tenant_header:`",
        ),
        (top("identity:"), "identity", "found nothing; give a block of keys, or remove the key"),
        (top("tenants: {id: a}"), "tenants", "expected a list, found a block of keys"),
        (top("tenants: [x]"), "tenants[0]", "expected a block of keys, found a text"),
        (up("adapter: sync"), "upstreams[0].adapter", "did you mean `sync-facade`?"),
        (up("adapter: azure_di"), "upstreams[0].adapter", "did you mean `azure-di`?"),
        (up("adapter: gpu-server-job"), "upstreams[0].adapter", "did you mean `gpuserver-job`?"),
        (up("adapter: 5"), "upstreams[0].adapter", "expected a word, found a number"),
        (up("adapter: grpc"), "upstreams[0].adapter", "what may stand here: sync-facade, openai"),
        (up("negative_cache: {mode: observ}"), "upstreams[0].negative_cache.mode", "did you mean `observe`?"),
        (up("negative_cache: {scope: global}"), "upstreams[0].negative_cache.scope", "fleet, tenant, domain"),
        (up("negative_cache: {filename: [keyed]}"), "upstreams[0].negative_cache.filename", "found a list"),
        (
            up("negative_cache: {generation: 1.5}"),
            "upstreams[0].negative_cache.generation",
            "put it in quotes",
        ),
        (up("mount: {a: b}"), "upstreams[0].mount", "expected a text"),
        (top("audit: {file: ''}"), "audit.file", "the path is empty"),
        ("upstreams: {}".to_owned(), "upstreams", "expected a list"),
        ("upstreams: []".to_owned(), "upstreams", "there is no upstream"),
        ("drain_s: 5".to_owned(), "upstreams", "`upstreams` is missing"),
        (String::new(), "", "the file is empty"),
        ("- a".to_owned(), "", "expected a block of keys, found a list"),
        ("just a text".to_owned(), "", "expected a block of keys, found a text"),
    ] {
        refused(&text, path, words);
    }
}

#[test]
fn what_comes_later_says_so() {
    for key in ["health: {}", "breaker: {}", "proxy: http://x"] {
        let name = key.split(':').next().unwrap_or_default();
        refused(&up(key), &format!("upstreams[0].{name}"), "is not supported by this version yet");
    }
    refused(&top("tenants: [{id: a, key: env:ONE, limits: {}}]"), "tenants[0].limits", "by this version yet");
}

#[test]
fn a_syntax_error_has_its_place() {
    let all = problems("listen: 127.0.0.1:1\nupstreams: [{name: a\n");
    assert_eq!(all.len(), 1);
    assert!(all[0].cause.starts_with("not valid YAML: "), "{all:?}");
    assert!(all[0].line.is_some_and(|line| line >= 2));
}
