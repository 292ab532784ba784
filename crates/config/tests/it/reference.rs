//! The schema and the reference in `docs/` are those of the program, and the schema knows the example.

use std::path::Path;

use nevertwice_config::schema;
use serde_json::Value;

fn current(name: &str, made: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name);
    let there = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        there == made,
        "docs/{name} is out of date: run `cargo run -p nevertwice-config --example write_reference`"
    );
}

#[test]
fn the_schema_in_the_docs_is_current() {
    current("config.schema.json", &schema::json_schema());
}

#[test]
fn the_reference_in_the_docs_is_current() {
    current("config.md", &schema::markdown());
}

#[test]
fn both_come_out_the_same_every_time() {
    assert_eq!(schema::json_schema(), schema::json_schema());
    assert_eq!(schema::markdown(), schema::markdown());
}

/// Every key has a description, every block is closed, and every whole number has its bounds.
#[test]
fn the_schema_is_complete() {
    let schema: Value = serde_json::from_str(&schema::json_schema()).unwrap_or_else(|e| unreachable!("{e}"));
    let mut numbers = 0;
    walk("", &schema, &mut numbers);
    assert!(numbers >= 30, "{numbers}");
}

fn walk(path: &str, schema: &Value, numbers: &mut usize) {
    if schema["type"] == "integer" {
        *numbers += 1;
        assert!(schema["minimum"].is_u64() && schema["maximum"].is_u64(), "{path} has no bounds");
    }
    for (key, value) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.{key}");
        assert_eq!(schema["additionalProperties"], false, "{path}");
        assert!(value["description"].as_str().is_some_and(|d| d.ends_with('.')), "{path} has no description");
        walk(&path, value, numbers);
    }
    if schema["additionalProperties"].is_object() {
        walk(&format!("{path}{{}}"), &schema["additionalProperties"], numbers);
    }
    walk_items(path, schema, numbers);
}

fn walk_items(path: &str, schema: &Value, numbers: &mut usize) {
    if schema["items"].is_object() {
        walk(&format!("{path}[]"), &schema["items"], numbers);
    }
    for choice in schema["anyOf"].as_array().into_iter().flatten() {
        walk(path, choice, numbers);
    }
}

/// The YAML examples of the reference are configurations that hold.
#[test]
fn the_examples_of_the_reference_load() {
    let markdown = schema::markdown();
    let examples: Vec<_> =
        markdown.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert_eq!(examples.len(), 2);
    for example in examples {
        let loaded = nevertwice_config::from_text(example, "gw.yaml", &nevertwice_config::secret::Unresolved);
        assert_eq!(loaded.map(|l| l.warnings).unwrap_or_else(|e| unreachable!("{e}")), []);
    }
}
