//! Who may depend on whom: `domain <- config <- store <- gateway <- admin <- bin`, and an arrow never turns.
//!
//! Cargo refuses circles, but it would accept a `store` that reaches into a `gateway` which does not need the store.

use anyhow::{Context, Result};
use serde_json::Value;

/// From the bottom up: a layer may depend on those before it.
const LAYERS: [&str; 6] = [
    "nevertwice-domain",
    "nevertwice-config",
    "nevertwice-store",
    "nevertwice-gateway",
    "nevertwice-admin",
    "nevertwice",
];
/// See every package of the workspace; no layer sees them, save `testkit` in tests.
const BESIDE: [&str; 3] = ["nevertwice-testkit", "nevertwice-tests", "xtask"];
const TESTKIT: &str = "nevertwice-testkit";
const BINARY: &str = "nevertwice";
/// The example service is a stranger to the product: it sees no layer, and only the binary's demo sees it.
const EXAMPLE: &str = "nevertwice-document-checker";

/// Crates that bring waiting or I/O. `domain` depends on none of them; a `*` stands for any ending.
const NOT_IN_DOMAIN: [&str; 12] = [
    "tokio*", "hyper*", "async-*", "futures*", "rusqlite", "redis", "axum", "tower*", "mio", "smol",
    "rustls", "socket2",
];

/// Every dependency in `metadata` (the output of `cargo metadata --no-deps`) that breaks the order.
///
/// # Errors
/// When `metadata` lacks the fields that cargo documents.
pub fn problems(metadata: &Value) -> Result<Vec<String>> {
    let packages = metadata["packages"].as_array().context("cargo metadata has no `packages`")?;
    let names = packages.iter().map(name_of).collect::<Result<Vec<_>>>()?;

    let mut problems = Vec::new();
    for package in packages {
        let name = name_of(package)?;
        if !is_known(name) {
            problems.push(format!(
                "package {name} has no place in the layers: give it one in xtask/src/layers.rs"
            ));
            continue;
        }
        let dependencies = package["dependencies"].as_array().context("a package has no `dependencies`")?;
        for dependency in dependencies {
            let target = name_of(dependency)?;
            let in_tests_only = dependency["kind"].as_str() == Some("dev");
            if names.contains(&target) && !may_see(name, target, in_tests_only) {
                problems.push(format!("{name} depends on {target}: {}", reason(name, target)));
            }
            if name == LAYERS[0] && brings_waiting(target) {
                problems.push(format!(
                    "{name} depends on {target}: the domain neither waits nor does I/O; move that code a layer up"
                ));
            }
        }
    }
    Ok(problems)
}

fn name_of(value: &Value) -> Result<&str> {
    value["name"].as_str().context("cargo metadata has an entry without `name`")
}

fn is_known(name: &str) -> bool {
    LAYERS.contains(&name) || BESIDE.contains(&name) || name == EXAMPLE
}

fn may_see(from: &str, to: &str, in_tests_only: bool) -> bool {
    if BESIDE.contains(&from) {
        return true;
    }
    if to == EXAMPLE {
        return from == BINARY;
    }
    if to == TESTKIT {
        return in_tests_only;
    }
    match (rank(from), rank(to)) {
        (Some(from), Some(to)) => to < from,
        _ => false,
    }
}

fn rank(name: &str) -> Option<usize> {
    LAYERS.iter().position(|layer| *layer == name)
}

fn reason(from: &str, to: &str) -> String {
    if from == EXAMPLE {
        return "the example service knows nothing of the product".to_owned();
    }
    if to == EXAMPLE {
        return "only the binary may depend on the example service".to_owned();
    }
    if BESIDE.contains(&to) {
        return "nothing that ships may see it; testkit is allowed as a dev-dependency".to_owned();
    }
    format!("arrows go {} and never turn", LAYERS.map(short).join(" <- "))
}

fn short(name: &str) -> &str {
    name.strip_prefix("nevertwice-").unwrap_or("bin")
}

fn brings_waiting(crate_name: &str) -> bool {
    NOT_IN_DOMAIN.iter().any(|pattern| match pattern.strip_suffix('*') {
        Some(start) => crate_name.starts_with(start),
        None => crate_name == *pattern,
    })
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "test")]
mod tests {
    use super::*;
    use serde_json::json;

    /// A workspace of all packages in which `from` depends on `to`.
    fn with(from: &str, to: &str, kind: Option<&str>) -> Vec<String> {
        let mut all = [LAYERS.as_slice(), BESIDE.as_slice(), &[EXAMPLE]].concat();
        if !all.contains(&from) {
            all.push(from);
        }
        let packages: Vec<Value> = all
            .into_iter()
            .map(|name| {
                let dependencies =
                    if name == from { vec![json!({"name": to, "kind": kind})] } else { vec![] };
                json!({"name": name, "dependencies": dependencies})
            })
            .collect();
        problems(&json!({ "packages": packages })).unwrap()
    }

    #[test]
    fn a_layer_sees_those_below_it() {
        for (upper, from) in LAYERS.iter().enumerate() {
            for (lower, to) in LAYERS.iter().enumerate() {
                assert_eq!(with(from, to, None).is_empty(), lower < upper, "{from} -> {to}");
            }
        }
    }

    #[test]
    fn an_arrow_that_turns_is_named_with_the_order() {
        assert_eq!(
            with("nevertwice-store", "nevertwice-gateway", None),
            ["nevertwice-store depends on nevertwice-gateway: \
              arrows go domain <- config <- store <- gateway <- admin <- bin and never turn"]
        );
    }

    #[test]
    fn an_arrow_in_tests_turns_no_more_than_another() {
        assert_eq!(with("nevertwice-domain", "nevertwice-gateway", Some("dev")).len(), 1);
    }

    #[test]
    fn testkit_is_for_tests_only() {
        assert!(with("nevertwice-gateway", TESTKIT, Some("dev")).is_empty());
        assert_eq!(with("nevertwice-gateway", TESTKIT, None).len(), 1);
        assert_eq!(with("nevertwice-gateway", "xtask", Some("dev")).len(), 1);
    }

    #[test]
    fn tools_see_everything() {
        for from in BESIDE {
            for to in LAYERS.iter().chain([&EXAMPLE]) {
                assert!(with(from, to, None).is_empty(), "{from} -> {to}");
            }
        }
    }

    #[test]
    fn the_example_is_a_stranger_to_all_but_the_binary() {
        assert!(with(BINARY, EXAMPLE, None).is_empty());
        assert_eq!(with("nevertwice-gateway", EXAMPLE, None).len(), 1);
        assert_eq!(with(EXAMPLE, "nevertwice-domain", None).len(), 1);
        assert_eq!(with(EXAMPLE, TESTKIT, None).len(), 1);
    }

    #[test]
    fn the_domain_neither_waits_nor_does_io() {
        for bad in ["tokio", "tokio-util", "hyper", "hyper-util", "async-trait", "futures-util", "rusqlite"] {
            assert_eq!(with("nevertwice-domain", bad, None).len(), 1, "{bad}");
            assert!(with("nevertwice-store", bad, None).is_empty(), "{bad}");
        }
        for good in ["http", "serde", "blake3"] {
            assert!(with("nevertwice-domain", good, None).is_empty(), "{good}");
        }
    }

    #[test]
    fn an_unknown_package_needs_a_place() {
        let found = with("nevertwice-extra", "serde", None);
        assert_eq!(found.len(), 1);
        assert!(found[0].contains("nevertwice-extra has no place"), "{found:?}");
    }

    #[test]
    fn metadata_of_another_shape_is_an_error() {
        assert!(problems(&json!({})).is_err());
    }
}
