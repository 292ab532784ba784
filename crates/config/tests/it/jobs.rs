//! Jobs: when they are served, their numbers, their webhooks, and upstreams that only they reach.

use std::time::Duration;

use nevertwice_config::checked::{Jobs, Webhooks};
use nevertwice_config::from_text;
use nevertwice_config::secret::Given;
use secrecy::ExposeSecret;

use super::{LEAST, good, problems, refused, top, warned};

fn jobs(text: &str) -> Jobs {
    good(text).jobs.unwrap_or_else(|| unreachable!("{text}"))
}

/// An upstream with these keys.
fn one(keys: &str, lines: &str) -> String {
    format!("{lines}\nupstreams: [{{base_url: http://h, {keys}}}]\n")
}

#[test]
fn they_are_served_when_they_are_asked_for() {
    assert!(good(LEAST).jobs.is_none());
    assert!(good(&one("name: a, adapter: azuredi-facade", "")).jobs.is_none());
    assert!(good(&top("jobs: {}")).jobs.is_some());
    for adapter in ["classify", "azure-di", "gpuserver-job"] {
        assert!(good(&one(&format!("name: a, adapter: {adapter}"), "")).jobs.is_some(), "{adapter}");
    }
    let cure = "remove it: jobs are served when the block `jobs` is there";
    refused(&top("jobs: {enabled: true}"), "jobs.enabled", cure);
    refused(&top("jobs:"), "jobs", "found nothing; give a block of keys");
    refused(&top("jobs: true"), "jobs", "expected a block of keys");
}

#[test]
fn their_defaults() {
    for text in [top("jobs: {}"), one("name: a, adapter: classify", "")] {
        let Jobs {
            input_max_bytes,
            result_max_bytes,
            max_queued,
            max_bytes,
            retention,
            max_attempts,
            retry_first,
            retry_max,
            webhooks,
        } = jobs(&text);
        assert_eq!((input_max_bytes, result_max_bytes), (32 << 20, 32 << 20));
        assert_eq!((max_queued, max_attempts, max_bytes), (100_000, 5, 8 << 30));
        assert_eq!(retention, Duration::from_secs(86_400));
        assert_eq!((retry_first, retry_max), (Duration::from_secs(1), Duration::from_secs(300)));
        assert!(webhooks.is_none());
    }
}

#[test]
fn their_numbers_have_bounds() {
    let all = "input_max_bytes: 5, result_max_bytes: 6, max_queued: 7, max_bytes: 10, retention_s: 8, max_attempts: 9, retry_first_ms: 10, retry_max_ms: 11";
    let own = jobs(&top(&format!("jobs: {{{all}}}")));
    assert_eq!((own.input_max_bytes, own.result_max_bytes, own.max_queued, own.max_bytes), (5, 6, 7, 10));
    assert_eq!((own.retention, own.max_attempts), (Duration::from_secs(8), 9));
    assert_eq!((own.retry_first, own.retry_max), (Duration::from_millis(10), Duration::from_millis(11)));
    for (key, number, words) in [
        ("input_max_bytes", "0", "write a number from 1 to 268435456"),
        ("input_max_bytes", "268435457", "write a number from 1 to 268435456"),
        ("result_max_bytes", "0", "write a number from 1 to 268435456"),
        ("max_queued", "0", "write a number from 1 to 10000000"),
        ("max_bytes", "0", "write a number from 1 to 70368744177664"),
        ("max_bytes", "70368744177665", "write a number from 1 to 70368744177664"),
        ("retention_s", "2592001", "write a number from 1 to 2592000"),
        ("max_attempts", "0", "write a number from 1 to 100"),
        ("max_attempts", "101", "write a number from 1 to 100"),
        ("retry_first_ms", "3600001", "write a number from 1 to 3600000"),
        ("retry_max_ms", "0", "write a number from 1 to 86400000"),
        ("retention_s", "1d", "a whole number"),
    ] {
        refused(&top(&format!("jobs: {{{key}: {number}}}")), &format!("jobs.{key}"), words);
    }
    let words = "lower `retry_first_ms` or raise `retry_max_ms`";
    refused(&top("jobs: {retry_first_ms: 300001}"), "jobs.retry_first_ms", words);
    refused(&top("jobs: {retry_max_ms: 999}"), "jobs.retry_max_ms", "the first wait of 1000 ms is longer");
    good(&top("jobs: {retry_first_ms: 7, retry_max_ms: 7}"));
    let words = "half of it has no room for a document of 33554432 bytes; raise `max_bytes` or lower `input_max_bytes`";
    refused(&top("jobs: {max_bytes: 67108863}"), "jobs.max_bytes", words);
    good(&top("jobs: {max_bytes: 67108864}"));
    refused(&top("jobs: {max_bytes: 9, input_max_bytes: 5}"), "jobs.max_bytes", "a document of 5 bytes");
    assert_eq!(problems(&top("jobs: {max_bytes: 0, input_max_bytes: 0}")).len(), 2);
    assert_eq!(problems(&top("jobs: {max_attempts: 0, max_queued: 0, retry_first_ms: 0}")).len(), 3);
}

#[test]
fn webhooks_are_signed() {
    let webhooks = |keys: &str| top(&format!("jobs: {{webhooks: {{{keys}}}}}"));
    let of = |keys: &str| jobs(&webhooks(keys)).webhooks.unwrap_or_else(|| unreachable!("{keys}"));
    let Webhooks { secret, allow_private } = of("secret: env:TWO");
    assert_eq!((secret.expose_secret(), allow_private), (&b"second-secret-value-0002"[..], false));
    assert!(of("secret: env:TWO, allow_private: true").allow_private);
    let path = "jobs.webhooks.secret";
    refused(&webhooks(""), path, "`secret` is missing; add `secret: env:NAME`");
    refused(&webhooks("allow_private: true"), path, "`secret` is missing");
    refused(&webhooks("secret: env:ONE"), path, "the secret has fewer than 24 bytes");
    refused(&webhooks("secret: env:NOBODY"), path, "the environment variable NOBODY is not set");
    refused(&webhooks("secret: hunter2"), path, "must not stand in the configuration");
    refused(&webhooks("secret: env:TWO, allow_private: yes"), "jobs.webhooks.allow_private", "write `true`");
    refused(&top("jobs: {webhooks: }"), "jobs.webhooks", "found nothing");
    // as the specification writes one
    let given = |secret: &str| {
        let secrets = Given::default().with_env("S", secret);
        from_text(&webhooks("secret: env:S"), "gw.yaml", &secrets)
    };
    let decoded = given("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap_or_else(|e| unreachable!("{e}"));
    let decoded = decoded.checked.jobs.and_then(|jobs| jobs.webhooks);
    let key = decoded.map(|webhooks| webhooks.secret.expose_secret().to_vec());
    assert!(key.is_some_and(|key| key.len() == 24 && key.starts_with(&[0x31, 0xf2, 0x90])));
    for (secret, words) in [
        ("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaS", "what follows is no base64"),
        ("whsec_not base64, and a secret all the same", "what follows is no base64"),
        ("whsec_c2hvcnQgYWZ0ZXIgZGVjb2Rpbmc=", "the secret has fewer than 24 bytes"),
        ("whsec_", "the secret has fewer than 24 bytes"),
    ] {
        match given(secret) {
            Ok(_) => unreachable!("{secret}"),
            Err(problems) => {
                assert!(problems.all.len() == 1 && problems.to_string().contains(words), "{problems}");
                assert!(!problems.to_string().contains("c2hv") && !problems.to_string().contains("MfKQ"));
            }
        }
    }
    // a very short one is told once
    let secrets = Given::default().with_env("S", "hunter2");
    match from_text(&webhooks("secret: env:S"), "gw.yaml", &secrets) {
        Ok(_) => unreachable!(),
        Err(problems) => {
            assert_eq!(problems.all.len(), 1, "{problems}");
            assert!(!problems.to_string().contains("hunter2"));
        }
    }
    let loaded = good(&webhooks("secret: env:TWO"));
    assert!(!format!("{loaded:?}").contains("second-secret"));
}

#[test]
fn upstreams_that_only_jobs_reach() {
    let two = "jobs: {}\nupstreams:\n  - {name: a, adapter: classify, base_url: http://h}\n  - {name: b, adapter: azure-di, base_url: http://h}\n";
    assert!(good(two).upstreams.iter().all(|u| u.mount.is_none()));
    // no mount is taken
    let beside = "upstreams:\n  - {name: a, adapter: classify, base_url: http://h}\n  - {name: b, mount: /a, base_url: http://h}\n";
    assert_eq!(good(beside).upstreams[1].mount.as_deref(), Some("/a"));
    refused(&one("name: .., adapter: classify", ""), "upstreams[0].name", "this name cannot be a path");
    refused(
        &one("name: a, adapter: classify, mount: x", ""),
        "upstreams[0].mount",
        "a mount begins with `/`",
    );
    let words = "has no meaning without `mount`";
    refused(&one("name: a, adapter: classify, sync_paths: [/x]", ""), "upstreams[0].sync_paths", words);
    refused(&one("name: a, adapter: classify, strict_paths: true", ""), "upstreams[0].strict_paths", words);
    let mounted =
        good(&one("name: a, adapter: classify, mount: /a, sync_paths: [/x], strict_paths: true", ""));
    assert_eq!(mounted.upstreams[0].sync_paths, ["/x"]);
    refused(
        &one("name: a, adapter: classify, mount: /a, strict_paths: true", ""),
        "upstreams[0].strict_paths",
        "refuses every request",
    );
    // tenants may be given them like any other
    let tenants = "tenants: [{id: t, key: env:ONE, routes: [a]}]";
    good(&one("name: a, adapter: gpuserver-job", tenants));
}

#[test]
fn their_paths_are_no_mounts() {
    let words = "under `/jobs` are the jobs of this gateway";
    refused(&one("name: a, mount: /jobs", "jobs: {}"), "upstreams[0].mount", words);
    refused(&one("name: a, mount: /jobs/x", "jobs: {}"), "upstreams[0].mount", words);
    refused(&one("name: jobs", "jobs: {}"), "upstreams[0].mount", words);
    refused(&one("name: a, adapter: classify, mount: /jobs", ""), "upstreams[0].mount", words);
    good(&one("name: jobs, adapter: classify", ""));
    good(&one("name: a, mount: /jobsx", "jobs: {}"));
    good(&one("name: a, mount: /", "jobs: {}"));
    good(&one("name: jobs", ""));
}

#[test]
fn the_memory_of_a_job_needs_no_listed_paths() {
    let on = "negative_cache: {enabled: true}";
    assert!(good(&one("name: a, adapter: classify", on)).upstreams[0].memory.is_some());
    assert!(good(&one("name: a, adapter: classify, mount: /a", on)).upstreams[0].memory.is_some());
    warned(
        &one("name: a", &format!("{on}\njobs: {{}}")),
        "upstreams[0].sync_paths",
        "it has no `sync_paths`",
    );
}
