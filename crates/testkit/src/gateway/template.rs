//! The configuration that most tests start from.

use sha2::{Digest, Sha256};

use crate::wire::hex;

const SIMPLE: &str = "\
listen: \"@LISTEN@\"
admin:
  listen: \"@ADMIN@\"
tenants:
  - id: dev_1
    key_sha256: \"@KEY_1@\"
    routes: [\"*\"]
  - id: dev_2
    key_sha256: \"@KEY_2@\"
    routes: [\"*\"]
  - id: dev_3
    key_sha256: \"@KEY_3@\"
    routes: [\"*\"]
store:
  embedded:
    path: \"@DIR@/data\"
audit:
  file: \"@DIR@/audit.jsonl\"
negative_cache:
  enabled: true
  @MEMORY@
upstreams:
  - name: doc-classifier
    adapter: sync-facade
    base_url: \"@UPSTREAM_URL@\"
    mount: /doc-classifier
    sync_paths: [/classify, /layout]
    @UPSTREAM@
  @UPSTREAMS@
@TOP@
";

const SLOTS: [&str; 4] = ["TOP", "MEMORY", "UPSTREAM", "UPSTREAMS"];

pub(super) fn simple(upstream_url: &str, slots: &[(&str, &str)]) -> String {
    if let Some((name, _)) = slots.iter().find(|(name, _)| !SLOTS.contains(name)) {
        panic!("gateway: no slot {name:?} in the simple configuration; there are {SLOTS:?}");
    }
    let mut yaml = String::new();
    for line in SIMPLE.lines() {
        let slot = line.trim().strip_prefix('@').and_then(|rest| rest.strip_suffix('@'));
        let Some(slot) = slot.filter(|name| SLOTS.contains(name)) else {
            yaml.push_str(line);
            yaml.push('\n');
            continue;
        };
        let indent = &line[..line.len() - line.trim_start().len()];
        for (_, text) in slots.iter().filter(|(name, _)| *name == slot) {
            for more in text.lines().filter(|more| !more.trim().is_empty()) {
                yaml.push_str(indent);
                yaml.push_str(more);
                yaml.push('\n');
            }
        }
    }
    for number in 1..=3 {
        let key = hex(&Sha256::digest(format!("tok-{number}")));
        yaml = yaml.replace(&format!("@KEY_{number}@"), &key);
    }
    yaml.replace("@UPSTREAM_URL@", upstream_url)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_take_lines_at_their_depth() {
        let yaml = simple(
            "http://127.0.0.1:9001",
            &[("MEMORY", "ttl_s: 2"), ("UPSTREAM", "pool:\n  max_in_flight: 1"), ("TOP", "drain_s: 1")],
        );
        assert!(yaml.contains("negative_cache:\n  enabled: true\n  ttl_s: 2\nupstreams:"), "{yaml}");
        assert!(yaml.contains("\n    pool:\n      max_in_flight: 1\ndrain_s: 1\n"), "{yaml}");
        assert!(yaml.contains("base_url: \"http://127.0.0.1:9001\""), "{yaml}");
        let left = yaml.replace("@LISTEN@", "").replace("@ADMIN@", "").replace("@DIR@", "");
        assert!(!left.contains('@'), "{left}");
    }
}
