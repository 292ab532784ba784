//! The JSON schema of the configuration file, for editors, and the reference in `docs/config.md`. Both are made from the
//! comments in `raw` and the table in `bounds`, so they cannot say something else than the program does.

use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use crate::bounds;
use crate::raw::Config;

mod markdown;

pub use markdown::markdown;

/// The JSON schema (draft 2020-12), with line breaks and a newline at its end.
#[must_use]
pub fn json_schema() -> String {
    let mut text = serde_json::to_string_pretty(&value()).unwrap_or_default();
    text.push('\n');
    text
}

fn value() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|s| s.inline_subschemas = true);
    let mut schema = settings.into_generator().into_root_schema_for::<Config>().to_value();
    tidy(&mut schema);
    for bound in bounds::ALL {
        let Some(number) = at(&mut schema, bound.path) else { continue };
        number.insert("minimum".to_owned(), json!(bound.min));
        number.insert("maximum".to_owned(), json!(bound.max));
        if let Some(default) = bound.default {
            number.insert("default".to_owned(), json!(default));
        }
    }
    if let Some(statuses) = at(&mut schema, "negative_cache.statuses") {
        let status = json!({ "type": "integer", "minimum": 400, "maximum": 499, "not": { "enum": [401, 403, 404, 408, 429] } });
        statuses.insert("items".to_owned(), status);
        statuses.insert("minItems".to_owned(), json!(1));
        statuses.insert("uniqueItems".to_owned(), json!(true));
        statuses.insert("default".to_owned(), json!([400, 413, 415, 422]));
    }
    let mut named = Map::new();
    named.insert("$schema".to_owned(), json!("https://json-schema.org/draft/2020-12/schema"));
    named.insert("title".to_owned(), json!("Nevertwice configuration"));
    if let Value::Object(rest) = schema {
        named.extend(rest.into_iter().filter(|(key, _)| key != "$schema"));
    }
    Value::Object(named)
}

/// A key that is given has a value: takes out the `null` that an optional field has in Rust, and the names of Rust types.
fn tidy(schema: &mut Value) {
    match schema {
        Value::Object(map) => {
            map.retain(|key, value| {
                let type_name = key == "title" && value.is_string();
                let no_default = key == "default" && value.is_null();
                !type_name && !no_default
            });
            if let Some(Value::Array(types)) = map.get_mut("type") {
                types.retain(|t| t != "null");
                if let [only] = types.as_slice() {
                    let only = only.clone();
                    map.insert("type".to_owned(), only);
                }
            }
            if let Some(Value::Array(choices)) = map.get_mut("anyOf") {
                choices.retain(|choice| choice != &json!({ "type": "null" }));
                if let [Value::Object(only)] = choices.as_slice() {
                    let only = only.clone();
                    map.remove("anyOf");
                    for (key, value) in only {
                        map.entry(key).or_insert(value);
                    }
                }
            }
            map.values_mut().for_each(tidy);
            let properties = map.get("properties").and_then(Value::as_object);
            let required: Vec<_> = properties
                .into_iter()
                .flatten()
                .filter(|(_, v)| says_required(v))
                .map(|(k, _)| k.clone())
                .collect();
            if !required.is_empty() {
                map.insert("required".to_owned(), json!(required));
            }
        }
        Value::Array(items) => items.iter_mut().for_each(tidy),
        _ => {}
    }
}

/// A key is required when a sentence of its description is that word.
fn says_required(schema: &Value) -> bool {
    let description = schema.get("description").and_then(Value::as_str).unwrap_or_default();
    description.split(". ").any(|sentence| sentence.trim_end_matches('.') == "Required")
}

/// The schema at a path such as `upstreams[].pool`, with `{}` for the values of a map.
fn at<'s>(schema: &'s mut Value, path: &str) -> Option<&'s mut Map<String, Value>> {
    let mut here = schema;
    for step in path.split('.').filter(|step| !step.is_empty()) {
        let name = step.trim_end_matches("[]").trim_end_matches("{}");
        here = here.get_mut("properties")?.get_mut(name)?;
        if step.ends_with("[]") {
            here = here.get_mut("items")?;
        }
        if step.ends_with("{}") {
            here = here.get_mut("additionalProperties")?;
        }
    }
    here.as_object_mut()
}
