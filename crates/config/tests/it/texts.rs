//! The exact words of important messages, and that all problems of a file come at once.

use nevertwice_config::problem::Severity;

use super::load;

fn told(text: &str) -> String {
    match load(text) {
        Ok(_) => unreachable!("this was taken:\n{text}"),
        Err(problems) => problems.to_string(),
    }
}

#[test]
fn exact_texts() {
    for (text, exact) in [
        (
            "upstreams: [{name: a, base_url: http://h, sync_paths: [/x]}]\nnegative_cahe:\n  enabled: true\n",
            "gw.yaml:2:1: error: negative_cahe: unknown key `negative_cahe`; did you mean `negative_cache`?",
        ),
        (
            "upstreams: [{name: a, base_url: http://h, sync_paths: [/x]}]\nnegative_cache:\n  enabled: true\n  statuses: [400, 429]\n",
            "gw.yaml:4:19: error: negative_cache.statuses[1]: 429 is never remembered: it speaks of the rate: the same document is \
             welcome a moment later; remove it",
        ),
        (
            "upstreams: [{name: a, base_url: http://h, sync_paths: [/x]}]\nnegative_cache:\n  enabled: yes\n",
            "gw.yaml:3:12: error: negative_cache.enabled: expected `true` or `false`, found a text; write `true`, without quotes",
        ),
        (
            "upstreams: [{name: a, base_url: http://h, sync_paths: [/x]}]\nttl_s: 60\n",
            "gw.yaml:2:1: error: ttl_s: `ttl_s` belongs under `negative_cache`; move it there",
        ),
        (
            "upstreams:\n  - name: a\n    base_url: http://h\n    timeout_ms: 5\n    timeout_ms: 6\n",
            "gw.yaml:5:5: error: upstreams[0].timeout_ms: the key stands here a second time (first on line 4); keep one of them",
        ),
        (
            "upstreams: [{name: a, base_url: http://h}]\nadmin: {listen: 0.0.0.0:9090}\n",
            "gw.yaml:2:17: error: admin.listen: the admin address is not loopback and there is no token; add `token: env:NAME`, or \
             listen on 127.0.0.1",
        ),
        (
            "upstreams: [{name: a, base_url: http://h}]\nadmin: {token: hunter2}\n",
            "gw.yaml:2:16: error: admin.token: a secret must not stand in the configuration itself; put it into an environment \
             variable or a file and write `env:NAME` or `file:PATH` here",
        ),
        (
            "upstreams:\n  - name: a\n    base_url: ::1\n",
            "gw.yaml:3:15: error: upstreams[0].base_url: an IPv6 address in a URL needs brackets; write it as in http://[::1]:9001",
        ),
        (
            "drain_s: 5\n",
            "gw.yaml:1:1: error: upstreams: `upstreams` is missing; add a list of `- name: NAME` and `base_url: URL`",
        ),
    ] {
        assert_eq!(told(text), exact);
    }
}

const KITCHEN_SINK: &str = r#"
listen: ["8080", 127.0.0.1:9090]
public_base_url: gw.example
identity: { tenant_header: Authorization }
tenants:
  - id: dev 1
    key: sk-literal-hunter2
  - id: dev_2
    key: env:MISSING
    routes: [doc-classifer]
  - id: DEV_2
    key_sha256: abc
    limits: {}
admin:
  listen: 127.0.0.1:9090
  token: "${TOKEN}"
store: { redis: { url: "redis://:hunter2@127.0.0.1", prefix: "a b" } }
audit: { file: a, stdout: true, on_ful: drop }
limits: { body_max_bytes: 512MiB, buffer_memory_bytes: 1 }
http: { h2: on, header_max_count: 0x10 }
drain_s: 30.0
drain_s: 31
ttl_s: 5
negative_cache:
  enabld: true
  statuses: [400, 401, 400, "422", 200, 409]
  max_entries: &m 5
upstreams:
  - name: doc-classifier
    adapter: azure
    base_url: http://user:hunter2@h
    mount: doc/
    sync_path: [/classify]
    credential: { header: host, value: Bearer hunter2 }
    pool: { max_in_flight: 0 }
    health: {}
  - name: Doc-Classifier
    adapter: sync-facade
    base_url: [::1]
    sync_paths: [classify, /a?b]
    negative_cache:
      profile: stats
      scope: domain
      key_headers: [cookie, "x y"]
      mass_refusal_guard: { share: 2 }
"#;

#[test]
fn all_problems_come_at_once_in_the_order_of_the_text() {
    let problems = match load(KITCHEN_SINK) {
        Ok(_) => unreachable!(),
        Err(problems) => problems,
    };
    let paths: Vec<_> =
        problems.all.iter().filter(|p| p.severity == Severity::Error).map(|p| p.path.as_str()).collect();
    assert_eq!(paths.len(), problems.errors());
    for expected in [
        "listen[0]",
        "public_base_url",
        "identity.tenant_header",
        "tenants[0].id",
        "tenants[0].key",
        "tenants[1].key",
        "tenants[1].routes[0]",
        "tenants[2].id",
        "tenants[2].key_sha256",
        "tenants[2].limits",
        "admin.listen",
        "admin.token",
        "store.redis.url",
        "store.redis.prefix",
        "audit",
        "audit.on_ful",
        "limits.body_max_bytes",
        "limits.buffer_memory_bytes",
        "http.h2",
        "http.header_max_count",
        "drain_s",
        "ttl_s",
        "negative_cache.enabld",
        "negative_cache.statuses[1]",
        "negative_cache.statuses[2]",
        "negative_cache.statuses[3]",
        "negative_cache.statuses[4]",
        "negative_cache.max_entries",
        "upstreams[0].adapter",
        "upstreams[0].base_url",
        "upstreams[0].mount",
        "upstreams[0].sync_path",
        "upstreams[0].credential.header",
        "upstreams[0].credential.value",
        "upstreams[0].pool.max_in_flight",
        "upstreams[0].health",
        "upstreams[1].name",
        "upstreams[1].base_url[0]",
        "upstreams[1].sync_paths[0]",
        "upstreams[1].sync_paths[1]",
        "upstreams[1].negative_cache.profile",
        "upstreams[1].negative_cache.trust_domains",
        "upstreams[1].negative_cache.key_headers[0]",
        "upstreams[1].negative_cache.key_headers[1]",
        "upstreams[1].negative_cache.mass_refusal_guard.share",
    ] {
        assert!(paths.contains(&expected), "{expected} is missing from\n{problems}");
    }
    let lines: Vec<_> = problems.all.iter().map(|p| p.line).collect();
    assert!(lines.is_sorted() && lines.iter().all(Option::is_some), "{problems}");
    let all = problems.to_string();
    assert_eq!(all.lines().count(), problems.all.len(), "one line each:\n{all}");
    assert!(!all.contains("hunter2"), "{all}");
    // lower case, no full stop
    for problem in &problems.all {
        for text in [&problem.cause, &problem.cure] {
            assert!(!text.ends_with('.') && !text.contains('\n'), "{text}");
            assert!(!text.starts_with(|c: char| c.is_uppercase()) || text.starts_with("YAML"), "{text}");
        }
    }
    assert!(
        problems
            .all
            .iter()
            .any(|p| p.severity == Severity::Warning && p.path == "negative_cache.statuses[5]")
    );
}

#[test]
fn problems_are_bounded_too() {
    let text: String = (0..1500).map(|i| format!("x{i}: 1\n")).collect();
    let problems = match load(&text) {
        Ok(_) => unreachable!(),
        Err(problems) => problems,
    };
    assert_eq!(problems.all.len(), nevertwice_config::problem::PROBLEMS_MAX + 1);
    let last = problems.all.last().map(ToString::to_string);
    assert_eq!(
        last.as_deref(),
        Some("1000:1: error: there are more problems than the 1000 above; cure those first")
    );
}
