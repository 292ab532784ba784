//! Whatever is in the text, there is an answer; and problems name lines that exist.

use nevertwice_config::from_text;
use nevertwice_config::secret::Unresolved;
use proptest::prelude::*;

const SEED: &str = r#"listen: ["127.0.0.1:8080", {addr: "[::]:1", tls: {cert: a, key: b}}]
identity: { tenant_header: X-T }
tenants: [{ id: a, key: env:A, routes: ["*"] }, { id: b, key_sha256: 00 }]
admin: { listen: 0.0.0.0:9090, token: file:./x }
store: { redis: { url: "redis-sentinel://a,[::1]:1/m/2", prefix: p, read_ms: 5, username: u, password: env:P } }
audit: { file: a, rotate_bytes: 4096, keep: 3, on_full: drop }
limits: { body_max_bytes: 5, spill_dir: /tmp }
http: { h2: true, header_max_bytes: 65536 }
drain_s: 30
public_base_url: https://gw.example:8443/ai
trusted_hops: [10.0.0.0/8, "::1", 192.0.2.7]
jobs: { max_attempts: 3, retention_s: 60, retry_first_ms: 5, webhooks: { secret: env:W, allow_private: true } }
negative_cache: { enabled: true, ttl_s: 5, statuses: [400, 422], key_secret: env:K }
upstreams:
  - name: a
    base_url: [http://h:1/p, "http://[::1]"]
    mount: /
    sync_paths: [/x]
    credential: { header: Authorization, value: env:C }
    pool: { max_in_flight: 8 }
    negative_cache:
      scope: domain
      trust_domains: [{ name: d, tenants: [a] }]
      generation: 7
      key_headers: [x-a]
      ttl_ladder: { first_s: 1, factor: 2 }
      status_ttl_s: { 422: 3 }
      mass_refusal_guard: { share: 0.5 }
      loop_breaker: { enabled: true, failures: 3, hold_s: 9 }
  - { name: di, adapter: azuredi-facade, base_url: http://d, poll_hosts: [e, "[::1]:1"], poll_interval_ms: 10 }
  - { name: gpu, adapter: gpuserver-job, base_url: http://g, operation_timeout_ms: 60000 }
"#;

/// What is put in somewhere: words with a meaning in YAML or here.
const BITS: &[&str] = &[
    "",
    " ",
    "\n",
    "  ",
    "\t",
    ": ",
    "- ",
    "-",
    "[",
    "]",
    "{",
    "}",
    ",",
    "#",
    "&a ",
    "*a",
    "!!str ",
    "!x ",
    "<<: ",
    "|",
    ">",
    "|\n",
    "'",
    "\"",
    "%",
    "@",
    "`",
    "---\n",
    "...\n",
    "? ",
    "null",
    "~",
    "true",
    "yes",
    "0x190",
    "1e999",
    "-1",
    "340282366920938463463374607431768211456",
    ".nan",
    "\u{feff}",
    "\u{0}",
    "\u{2028}",
    "ä",
    "😀",
    "env:",
    "file:",
    "${X}",
    "enabled",
    "upstreams",
    "ttl_s",
    "negative_cache",
    "http://",
    "[::1]",
    "::1",
    "%25",
    "..",
    "//",
    "?",
    "401",
    "413: 5",
    "redis://",
    "rediss-cluster://",
    "azure-di",
    "classify",
    "/0",
    "*",
    ",",
];

fn answered(text: &str) {
    match from_text(text, "gw.yaml", &Unresolved) {
        Ok(loaded) => {
            assert!(!loaded.checked.listen.is_empty() && !loaded.checked.upstreams.is_empty());
            assert!(loaded.checked.upstreams.iter().all(|u| !u.base_urls.is_empty()));
        }
        Err(problems) => {
            assert!(problems.errors() > 0, "{problems:?}");
            // YAML knows more line ends than one
            let lines = text.split(['\n', '\r', '\u{85}', '\u{2028}', '\u{2029}']).count();
            assert!(
                problems.all.iter().all(|p| p.line.is_some_and(|line| (1..=lines + 1).contains(&line))),
                "{problems:?}"
            );
        }
    }
}

fn boundary(text: &str, at: usize) -> usize {
    (0..=at.min(text.len())).rev().find(|i| text.is_char_boundary(*i)).unwrap_or(0)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_text(text in any::<String>()) {
        answered(&text);
    }

    #[test]
    fn any_bits(bits in prop::collection::vec(prop::sample::select(BITS), 0..60)) {
        answered(&bits.concat());
    }

    #[test]
    fn a_good_text_with_bits_put_in_and_cut_out(
        edits in prop::collection::vec((0..SEED.len(), 0..12_usize, prop::sample::select(BITS)), 1..6),
    ) {
        let mut text = SEED.to_owned();
        for (at, cut, bit) in edits {
            let start = boundary(&text, at);
            let end = boundary(&text, start + cut).max(start);
            text.replace_range(start..end, bit);
        }
        answered(&text);
    }

    #[test]
    fn lines_moved_and_indented(
        moves in prop::collection::vec((0..32_usize, 0..32_usize, 0..4_usize), 1..5),
    ) {
        let mut lines: Vec<String> = SEED.lines().map(str::to_owned).collect();
        for (from, to, indent) in moves {
            let line = lines.remove(from % lines.len());
            let to = to % (lines.len() + 1);
            lines.insert(to, format!("{}{line}", " ".repeat(indent)));
        }
        answered(&lines.join("\n"));
    }
}

#[test]
fn deep_and_wide_texts_end() {
    for text in [
        "[".repeat(100_000),
        "{a: ".repeat(100_000),
        "- ".repeat(100_000),
        "a:\n ".repeat(10_000),
        "? ".repeat(50_000),
    ] {
        answered(&text);
    }
    answered(&"x: 1\n".repeat(5_000));
    answered(&(0..60_000).map(|i| format!("x{i}: 1\n")).collect::<String>());
    answered(&format!("negative_cache:\n  statuses:\n{}", "  - 1\n".repeat(100_000)));
    let lives =
        "    413: 9\n".repeat(50_000) + &(0..50_000).map(|i| format!("    {i}: 9\n")).collect::<String>();
    answered(&super::up(&format!("negative_cache:\n  status_ttl_s:\n{lives}")));
    let tenants: String = (0..15_000).map(|i| format!("- {{id: t{i}, key: env:T{i}}}\n")).collect();
    answered(&format!("tenants:\n{tenants}{}", super::LEAST));
    answered(&format!("upstreams:\n{}", "  - {name: a, base_url: http://h}\n".repeat(3_000)));
}
