//! Upstreams: names, URLs, mounts, paths, credentials, pools, and the memory on one of them.

use super::{good, problems, refused, top, up, warned};

fn two(first: &str, second: &str) -> String {
    format!("upstreams:\n  - {{base_url: http://h1, {first}}}\n  - {{base_url: http://h2, {second}}}\n")
}

#[test]
fn names_are_valid_and_unique() {
    good(&two("name: a", "name: b"));
    refused(
        &two("name: a", "name: a, mount: /other"),
        "upstreams[1].name",
        "another upstream has this name, at line 2",
    );
    refused(&two("name: a", "name: A, mount: /other"), "upstreams[1].name", "another upstream has this name");
    refused("upstreams: [{base_url: http://h}]", "upstreams[0].name", "`name` is missing");
    refused("upstreams: [{name: a/b, base_url: http://h}]", "upstreams[0].name", "not a valid upstream name");
    refused(
        "upstreams: [{name: .., base_url: http://h}]",
        "upstreams[0].mount",
        "this name cannot be a path",
    );
    refused("upstreams: [{name: a}]", "upstreams[0].base_url", "`base_url` is missing");
}

#[test]
fn mounts_are_prefixes_and_unique() {
    let mount = |value: &str| format!("upstreams: [{{name: a, base_url: http://h, mount: {value}}}]");
    for (value, there) in [("/", ""), ("/x", "/x"), ("/x/y.z-1_~", "/x/y.z-1_~")] {
        assert_eq!(good(&mount(value)).upstreams[0].mount.as_deref(), Some(there));
    }
    for (value, words) in [
        ("x", "a mount begins with `/`"),
        ("''", "a mount begins with `/`"),
        ("/x/", "no `/` at its end"),
        ("/x/../y", "`.` or `..` segments"),
        ("/./x", "`.` or `..` segments"),
        ("/a%20b", "no `%`, `?` or `#`"),
        ("/a?b", "no `%`, `?` or `#`"),
        ("'/a#b'", "no `%`, `?` or `#`"),
        ("/a//b", "no empty segments"),
        ("//", "no `/` at its end"),
        ("/ä", "characters that a path cannot have"),
        ("'/a b'", "characters that a path cannot have"),
    ] {
        refused(&mount(value), "upstreams[0].mount", words);
    }
    good(&two("name: a, mount: /x", "name: b, mount: /x/y"));
    good(&two("name: a, mount: /", "name: b"));
    refused(
        &two("name: a, mount: /x", "name: b, mount: /x"),
        "upstreams[1].mount",
        "another upstream has this mount, at line 2",
    );
    refused(&two("name: a", "name: b, mount: /a"), "upstreams[1].mount", "another upstream has this mount");
    refused(&two("name: a, mount: /b", "name: b"), "upstreams[1].mount", "another upstream has this mount");
    refused(&two("name: a, mount: /", "name: b, mount: /"), "upstreams[1].mount", "`/` is for one upstream");
}

#[test]
fn base_urls() {
    let url = |value: &str| format!("upstreams: [{{name: a, base_url: {value}}}]");
    good(&url("\"http://[::1]:9001\""));
    good(&url("[http://a, http://b]"));
    refused(&url("localhost:9001"), "upstreams[0].base_url", "begin with http:// or https://");
    refused(&url("\"::1\""), "upstreams[0].base_url", "needs brackets");
    refused(&url("\"http://[fe80::1%25lo]:9001\""), "upstreams[0].base_url", "zone ids are not supported");
    refused(&url("[]"), "upstreams[0].base_url", "the list is empty");
    refused(&url("[http://a, ftp://b]"), "upstreams[0].base_url[1]", "neither http nor https");
    refused(
        &url("[http://a, 'HTTP://A:80/']"),
        "upstreams[0].base_url[1]",
        "the same URL is listed at line 1 already",
    );
    refused(&url("5"), "upstreams[0].base_url", "expected a text, found a number");
}

#[test]
fn paths_with_the_memory() {
    let paths = |value: &str| format!("upstreams: [{{name: a, base_url: http://h, sync_paths: {value}}}]");
    good(&paths("[/classify, /a/b/, '/a%20b', /]"));
    for (value, path, words) in [
        ("[classify]", "[0]", "a path begins with `/`"),
        ("['/a?b=1']", "[0]", "without query and fragment"),
        ("['/a#b']", "[0]", "without query and fragment"),
        ("['/*']", "[0]", "there are no wildcards"),
        ("[/a/../b]", "[0]", "`.` or `..` segments"),
        ("[/ä]", "[0]", "percent-encoded"),
        ("[/a, /a]", "[1]", "the same path is listed at line 1 already"),
        ("[]", "", "the list is empty"),
        ("/classify", "", "expected a list"),
    ] {
        refused(&paths(value), &format!("upstreams[0].sync_paths{path}"), words);
    }
    let strict = "upstreams: [{name: a, base_url: http://h, strict_paths: true}]";
    refused(strict, "upstreams[0].strict_paths", "refuses every request");
}

#[test]
fn the_openai_adapter_passes_everything_through() {
    let chat = |rest: &str| {
        top("negative_cache: {enabled: true}\n")
            + &format!("  - {{name: c, adapter: openai, base_url: http://h, {rest}}}\n")
    };
    assert!(good(&chat("")).upstreams[1].memory.is_none());
    assert!(good(&chat("negative_cache: {enabled: false}")).upstreams[1].memory.is_none());
    refused(&chat("sync_paths: [/v1/x]"), "upstreams[1].sync_paths", "no meaning for the adapter `openai`");
    refused(&chat("strict_paths: true"), "upstreams[1].strict_paths", "no meaning for the adapter `openai`");
}

#[test]
fn chat_has_the_memory_only_by_rules() {
    let chat = |name: &str, url: &str, rest: &str| {
        top("negative_cache: {enabled: true}\n")
            + &format!("  - {{name: {name}, adapter: openai, base_url: '{url}', negative_cache: {rest}}}\n")
    };
    let words = "the memory needs a profile with rules";
    for rest in ["{profile: status}", "{mode: observe}", "{enabled: true}", "{}"] {
        let all = problems(&chat("c", "http://h", rest));
        assert!(
            all.iter().any(|p| p.path.starts_with("upstreams[1].negative_cache") && p.cause.contains(words)),
            "{all:?}"
        );
    }
    refused(
        &chat("c", "http://h", "{profile: opanai}"),
        "upstreams[1].negative_cache.profile",
        "there is no profile of this name; did you mean `openai`?",
    );
    let profile = |name: &str, url: &str, rest: &str| {
        let loaded = good(&chat(name, url, rest));
        let upstream = &loaded.upstreams[1];
        let paths = &upstream.sync_paths;
        assert_eq!(paths, &["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings"]);
        upstream.memory.as_ref().map(|m| m.profile.name().to_owned()).unwrap_or_default()
    };
    assert_eq!(profile("c", "http://h", "{profile: anthropic}"), "anthropic");
    // by its base URL, else by its name
    assert_eq!(profile("c", "https://api.openai.com", "{}"), "openai");
    assert_eq!(profile("openai", "https://my.openai.azure.com", "{enabled: true}"), "azure-openai");
    assert_eq!(profile("vllm", "http://h", "{}"), "vllm");
    assert_eq!(profile("vllm", "https://api.openai.com", "{profile: mistral-ocr}"), "mistral-ocr");
    // a host that only ends like one is another
    // its OpenAI paths have no /v1: nothing would be guarded
    refused(
        &chat("c", "https://generativelanguage.googleapis.com/v1beta/openai", "{}"),
        "upstreams[1].negative_cache",
        "the memory needs a profile with rules",
    );
    let all = problems(&chat("c", "https://notapi.openai.com.example", "{}"));
    assert!(all.iter().any(|p| p.cause.contains(words)), "{all:?}");
}

#[test]
fn what_rules_need_beside_a_profile() {
    let memory = |keys: &str| {
        let text = up(&format!("negative_cache: {{{keys}}}")) + "negative_cache: {enabled: true}\n";
        good(&text).upstreams.remove(0).memory.unwrap_or_else(|| unreachable!())
    };
    let usual = memory("");
    assert_eq!(usual.profile.name(), "status");
    assert_eq!(usual.short_ttl, std::time::Duration::from_secs(1800));
    assert!(!usual.remember_keyed && !usual.trust_refusal_class && usual.tier.is_empty());
    let all = memory(
        "profile: docling-serve, short_ttl_s: 60, remember_keyed: true, trust_refusal_class: true, tier: 2",
    );
    assert_eq!(all.profile.name(), "docling-serve");
    assert_eq!(all.short_ttl, std::time::Duration::from_secs(60));
    assert!(all.remember_keyed && all.trust_refusal_class && all.tier == "2");
    refused(
        &up("negative_cache: {short_ttl_s: 0}"),
        "upstreams[0].negative_cache.short_ttl_s",
        "write a number from 1",
    );
}

#[test]
fn profiles_of_ones_own() {
    let folder = tempfile::tempdir().unwrap_or_else(|e| unreachable!("{e}"));
    let file = folder.path().join("own.yaml");
    let write = |text: &str| std::fs::write(&file, text).unwrap_or_else(|e| unreachable!("{e}"));
    let text = |profile: &str| {
        format!("profiles: [{}]\n", file.display())
            + &up(&format!("negative_cache: {{profile: {profile}}}"))
            + "negative_cache: {enabled: true}\n"
    };
    write(
        "profile: own\nabout: ours\nrules:\n- {rule: r, status: 400, when: [{at: /c, is: X}], class: content, remember: full}\n",
    );
    let loaded = good(&text("own"));
    assert_eq!(
        loaded.upstreams[0].memory.as_ref().map(|m| m.profile.name().to_owned()).as_deref(),
        Some("own")
    );
    good(&text("openai"));
    refused(
        &text("onw"),
        "upstreams[0].negative_cache.profile",
        "there is no profile of this name; did you mean `own`?",
    );
    // every problem of the file, and nothing about the profile that could not be read
    write(
        "profile: own\nabout: ours\nrules:\n- {rule: r, status: 401, when: [], class: content, remember: full}\n",
    );
    let all = problems(&text("own"));
    let told: Vec<String> = all.iter().map(|p| format!("{}: {}", p.path, p.cause)).collect();
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(told[0].contains("rules[0] (r).when: the rule has no conditions"), "{told:?}");
    assert!(told[1].contains("own.yaml:4:21: rules[0] (r).status: 401 is never remembered"), "{told:?}");
    assert!(told.iter().all(|line| line.starts_with("profiles[0]: ")), "{told:?}");
}

#[test]
fn credentials() {
    let with = |value: &str| up(&format!("credential: {value}"));
    good(&with("{header: Authorization, value: env:ONE}"));
    good(&with("{header: api-key, value: env:ONE}"));
    let at = |key: &str| format!("upstreams[0].credential.{key}");
    for (value, key, words) in [
        ("{header: Host, value: env:ONE}", "header", "`host` cannot be used here"),
        ("{header: content-length, value: env:ONE}", "header", "the gateway writes it itself"),
        ("{header: Transfer-Encoding, value: env:ONE}", "header", "it speaks of one connection"),
        ("{header: proxy-authorization, value: env:ONE}", "header", "it speaks of one connection"),
        ("{header: content-type, value: env:ONE}", "header", "it describes the document"),
        ("{header: 'Authorization:', value: env:ONE}", "header", "not the name of a header"),
        ("{value: env:ONE}", "header", "`header` is missing"),
        ("{header: Authorization}", "value", "`value` is missing"),
        (
            "{header: Authorization, value: Bearer abc}",
            "value",
            "a secret must not stand in the configuration itself",
        ),
    ] {
        refused(&with(value), &at(key), words);
    }
    refused(&with("env:ONE"), "upstreams[0].credential", "write keys such as `header:`, `value:`");
}

#[test]
fn key_headers_are_what_a_client_may_say() {
    let with = |value: &str| {
        up(&format!(
            "credential: {{header: X-Own, value: env:ONE}}\nnegative_cache: {{key_headers: {value}}}"
        ))
    };
    good(&with("[x-model, Ocp-Language]"));
    for (header, words) in [
        ("connection", "it speaks of one connection"),
        ("te", "it speaks of one connection"),
        ("Authorization", "it carries credentials"),
        ("api-key", "it carries credentials"),
        ("X-Api-Key", "it carries credentials"),
        ("Ocp-Apim-Subscription-Key", "it carries credentials"),
        ("cookie", "it carries credentials"),
        ("host", "the gateway writes it itself"),
        ("content-length", "the gateway writes it itself"),
        ("traceparent", "it differs from request to request"),
        ("x-negative-cache", "a marker of the gateway"),
        ("X-Negative-Cache-Entry", "a marker of the gateway"),
        ("x-gateway-error", "a marker of the gateway"),
        ("content-type", "it is part of the key anyway"),
        ("accept-encoding", "always asks for `identity`"),
        ("x-own", "the gateway's own credential is sent in it"),
        ("x-tenant", "it names the tenant"),
        ("'a b'", "not the name of a header"),
    ] {
        let text = format!("identity: {{tenant_header: X-Tenant}}\n{}", with(&format!("[{header}]")));
        refused(&text, "upstreams[0].negative_cache.key_headers[0]", words);
    }
    refused(&with("[a, A]"), "upstreams[0].negative_cache.key_headers[1]", "`a` is listed at line 6 already");
}

#[test]
fn the_rest_of_the_memory_on_an_upstream() {
    let with = |value: &str| up(&format!("negative_cache: {{{value}}}"));
    let at = |key: &str| format!("upstreams[0].negative_cache.{key}");
    for (value, key, words) in [
        ("ignored_query: ['']", "ignored_query[0]", "not the name of a query parameter"),
        ("ignored_query: ['a=1']", "ignored_query[0]", "without `=` and value"),
        ("ignored_query: [a, a]", "ignored_query[1]", "listed twice"),
        ("profile: stauts", "profile", "did you mean `status`?"),
        ("profile: nothing-like-it", "profile", "there is no profile of this name"),
        ("ttl_s: 0", "ttl_s", "out of bounds"),
        ("ttl_s: 315360001", "ttl_s", "out of bounds"),
        (
            "ttl_s: 10, ttl_ladder: {first_s: 11}",
            "ttl_ladder.first_s",
            "the first life of 11 s is longer than the longest of 10 s",
        ),
        ("ttl_s: 10, ttl_ladder: {}", "ttl_ladder", "the first life of 300 s"),
        ("ttl_ladder: {factor: 0}", "ttl_ladder.factor", "out of bounds"),
        ("confirmations: 0", "confirmations", "write a number from 1 to 1000"),
        ("mass_refusal_guard: {share: 0}", "mass_refusal_guard.share", "above 0 and at most 1"),
        ("mass_refusal_guard: {share: 90}", "mass_refusal_guard.share", "above 0 and at most 1"),
        ("mass_refusal_guard: {share: 1.5}", "mass_refusal_guard.share", "above 0 and at most 1"),
        (
            "mass_refusal_guard: {share: '0.9'}",
            "mass_refusal_guard.share",
            "expected a number between 0 and 1",
        ),
        ("mass_refusal_guard: {distinct: 10001}", "mass_refusal_guard.distinct", "out of bounds"),
        ("loop_breaker: {failures: 1}", "loop_breaker.failures", "write a number from 2 to 100"),
        ("loop_breaker: {failures: 101}", "loop_breaker.failures", "write a number from 2 to 100"),
        ("loop_breaker: {window_s: 0}", "loop_breaker.window_s", "write a number from 1 to 86400"),
        ("loop_breaker: {hold_s: 86401}", "loop_breaker.hold_s", "write a number from 1 to 86400"),
        ("loop_breaker: {enabled: 1}", "loop_breaker.enabled", "write `true` or `false`"),
        ("loop_breaker: {hold: 5}", "loop_breaker.hold", "did you mean `hold_s`?"),
        ("generation: \"a\\nb\"", "generation", "no control characters"),
    ] {
        refused(&with(value), &at(key), words);
    }
    good(&with("ttl_s: 315360000, generation: '2026-11', ttl_ladder: {first_s: 1, factor: 1}"));
}

#[test]
fn a_loop_breaker_asks_for_two_tenants_where_there_may_be_two() {
    let two = "tenants: [{id: a, key: env:ONE}, {id: b, key: env:TWO}]";
    let one = "tenants: [{id: a, key: env:ONE}]";
    let header = "identity: {tenant_header: X-Tenant}";
    let text = |top: &str, value: &str| {
        let upstream = up(&format!("negative_cache: {{{value}}}"));
        format!("negative_cache: {{enabled: true}}\n{top}\n{upstream}")
    };
    let policy = |top: &str, value: &str| {
        let checked = good(&text(top, value));
        checked.upstreams[0].memory.as_ref().and_then(|m| m.loop_breaker)
    };
    for (top, value, expected) in [
        ("", "loop_breaker: {enabled: true}", Some(false)),
        (two, "loop_breaker: {enabled: true}", Some(true)),
        (header, "loop_breaker: {enabled: true}", Some(true)),
        (two, "scope: fleet, loop_breaker: {enabled: true}", Some(true)),
        (
            two,
            "scope: domain, trust_domains: [{name: d, tenants: [a]}], loop_breaker: {enabled: true}",
            Some(true),
        ),
        (two, "scope: tenant, loop_breaker: {enabled: true}", Some(false)),
        (two, "loop_breaker: {enabled: true, one_tenant_suffices: true}", Some(false)),
        (one, "loop_breaker: {enabled: true, one_tenant_suffices: true}", Some(false)),
        (two, "", None),
        (two, "loop_breaker: {failures: 3}", None),
        (two, "loop_breaker: {enabled: false}", None),
        (two, "mode: observe, loop_breaker: {enabled: true}", None),
    ] {
        let found = policy(top, value);
        assert_eq!(found.map(|p| p.two_tenants), expected, "{top} {value}");
        if let Some(policy) = found {
            assert_eq!((policy.failures, policy.window_ms, policy.hold_ms), (5, 600_000, 1_800_000));
        }
    }
    let at = "upstreams[0].negative_cache.loop_breaker";
    let never = text(one, "loop_breaker: {enabled: true}");
    warned(
        &never,
        &format!("{at}.one_tenant_suffices"),
        "it takes failures of two tenants, and there is one",
    );
    let off = up("negative_cache: {loop_breaker: {enabled: true}}");
    warned(&off, &format!("{at}.enabled"), "this has no effect");
}

#[test]
fn pools_tls_and_time_outs() {
    good(&up("pool: {max_queue: 0, queue_timeout_ms: 0, idle_connection_ms: 0}"));
    refused(
        &up("pool: {max_in_flight: 0}"),
        "upstreams[0].pool.max_in_flight",
        "write a number from 1 to 100000",
    );
    refused(&up("timeout_ms: 0"), "upstreams[0].timeout_ms", "out of bounds");
    refused(&up("stream_max_ms: 0"), "upstreams[0].stream_max_ms", "out of bounds");
    warned(&up("tls: {ca: x}"), "upstreams[0].tls", "no `base_url` is https");
    let https = |tls: &str| format!("upstreams: [{{name: a, base_url: https://h, tls: {tls}}}]");
    good(&https("{ca: x}"));
    refused(&https("{client_cert: x}"), "upstreams[0].tls.client_key", "`client_cert` needs `client_key`");
    refused(&https("{client_key: x}"), "upstreams[0].tls.client_cert", "`client_key` needs `client_cert`");
}

#[test]
fn an_unknown_adapter_is_one_problem() {
    let text =
        "upstreams: [{name: a, adapter: opneai, base_url: http://h, strict_paths: true, sync_paths: [/x]}]";
    refused(text, "upstreams[0].adapter", "did you mean `openai`?");
    assert_eq!(problems("upstreams: [{name: a, adapter: x, base_url: h, mount: y}]").len(), 3);
}
