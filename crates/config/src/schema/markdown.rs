//! The reference of all keys, as `docs/config.md` has it.

use std::fmt::Write as _;

use serde_json::Value;

const INTRODUCTION: &str = "\
# Configuration

<!-- Made from the program: change `crates/config/src/raw.rs` or `bounds.rs`, then run
     `cargo run -p nevertwice-config --example write_reference`. -->

One YAML file: `nevertwice serve --config FILE`. `nevertwice check --config FILE` reads it, starts nothing, and lists every
problem at once with its line, its cause and its cure; `--resolve` also looks up the secrets. Editors can complete and
check the file with [`config.schema.json`](config.schema.json).

Rules that hold everywhere:

- An unknown key is an error, with the key that was probably meant. So is a key that stands twice, and a key without value.
- Numbers are whole, in plain decimal digits and without quotes; `true` and `false` are the only words for yes and no.
- Anchors, aliases, merge keys and tags of YAML are refused: what a file says stands where it is read.
- No value is replaced by an environment variable, except a secret that says so.
- **Secrets** are references: `env:NAME` (an environment variable) or `file:PATH` (a regular file of at most 64 KiB, whose last newline
  is cut off). A secret in the file itself is refused, and so is an empty one. No message shows a secret.
- Paths are relative to the folder of the configuration file.
- Warnings go to standard error and change nothing.

An example:

```yaml
listen: 127.0.0.1:8080
tenants:
  - { id: dev_1, key: env:DEV_1_KEY }
admin: { listen: 127.0.0.1:9090 }
audit: { file: ./audit.jsonl }
negative_cache: { enabled: true }
upstreams:
  - name: doc-classifier
    base_url: http://127.0.0.1:9001
    sync_paths: [/classify]
    credential: { header: Authorization, value: env:CLASSIFIER_AUTH }
```

`POST /doc-classifier/classify` goes to `POST http://127.0.0.1:9001/classify`.

Azure Document Intelligence for its own clients, which use `https://gateway.example/di` as their endpoint; and jobs, for it and for a
service that nothing else reaches:

```yaml
listen: 0.0.0.0:8080
public_base_url: https://gateway.example
trusted_hops: [10.0.0.0/8]
tenants:
  - { id: dev_1, key: env:DEV_1_KEY }
negative_cache: { enabled: true }
jobs:
  webhooks: { secret: env:WEBHOOK_SECRET }
upstreams:
  - name: di
    adapter: azuredi-facade
    base_url: https://resource.cognitiveservices.azure.com
    mount: /
    poll_hosts: [westeurope.api.cognitive.microsoft.com]
    credential: { header: Ocp-Apim-Subscription-Key, value: env:DI_KEY }
  - name: layout
    adapter: classify
    base_url: http://127.0.0.1:9002
    pool: { max_in_flight: 4 }
```

`POST /jobs/layout/detect` hands a document over for `POST http://127.0.0.1:9002/detect`. At most four jobs of `layout` run at once.
";

/// The reference of all keys: type, default, bounds and meaning.
#[must_use]
pub fn markdown() -> String {
    let mut out = INTRODUCTION.to_owned();
    section(&mut out, "", &super::value());
    out
}

/// One table for the block, then one for each block in it.
fn section(out: &mut String, path: &str, block: &Value) {
    let title = if path.is_empty() { "Top level".to_owned() } else { format!("`{path}`") };
    let _ = write!(out, "\n## {title}\n\n");
    if !path.is_empty() {
        let _ = write!(out, "{}\n\n", Meaning::of(block).text);
    }
    out.push_str("| key | type | default | meaning |\n|---|---|---|---|\n");
    let properties = block.get("properties").and_then(Value::as_object);
    for (key, value) in properties.into_iter().flatten() {
        let meaning = Meaning::of(value);
        let default = match value.get("default") {
            Some(default) => format!("`{}`", default.to_string().replace(',', ", ")),
            None => meaning.default,
        };
        let _ = writeln!(out, "| `{key}` | {} | {default} | {}{} |", kind(value), meaning.text, words(value));
    }
    for (key, value) in properties.into_iter().flatten() {
        let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        if let Some((suffix, block)) = inner(value) {
            section(out, &format!("{path}{suffix}"), block);
        }
    }
}

/// The block in a value, in the items of a list, or among alternatives.
fn inner(value: &Value) -> Option<(&'static str, &Value)> {
    if value.get("properties").is_some() {
        return Some(("", value));
    }
    if let Some(items) = value.get("items").filter(|items| items.get("properties").is_some()) {
        return Some(("[]", items));
    }
    let choices = value.get("anyOf")?.as_array()?;
    choices.iter().find_map(|choice| inner(choice).map(|(_, block)| ("[]", block)))
}

fn kind(value: &Value) -> String {
    if value.get("properties").is_some() {
        return "block".to_owned();
    }
    if value.get("items").is_some_and(|items| items.get("properties").is_some()) {
        return "list of blocks".to_owned();
    }
    let bounds = |value: &Value| Some(format!("{} to {}", value.get("minimum")?, value.get("maximum")?));
    if let Some(bounds) = bounds(value) {
        return format!("number, {bounds}");
    }
    if let Some(bounds) = value.get("additionalProperties").and_then(bounds) {
        return format!("block of numbers, {bounds}");
    }
    if value.get("pattern").is_some() {
        return "secret".to_owned();
    }
    match value.get("type") {
        Some(Value::String(kind)) => match kind.as_str() {
            "integer" | "number" => "number".to_owned(),
            "boolean" => "true or false".to_owned(),
            "array" => match value.get("items").and_then(|items| items.get("type")).and_then(Value::as_str) {
                Some("integer") => "list of numbers".to_owned(),
                _ => "list of texts".to_owned(),
            },
            _ => "text".to_owned(),
        },
        Some(_) => "text or number".to_owned(),
        None if value.get("oneOf").is_some() => "word".to_owned(),
        None => "text or list".to_owned(),
    }
}

/// The words of a closed list, each with its meaning.
fn words(value: &Value) -> String {
    let choices = value.get("oneOf").and_then(Value::as_array);
    choices.into_iter().flatten().fold(String::new(), |mut out, choice| {
        let word = choice.get("const").and_then(Value::as_str).unwrap_or_default();
        let _ = write!(out, " `{word}`: {}", Meaning::of(choice).text);
        out
    })
}

/// A description, with the sentence about the default taken out.
struct Meaning {
    text: String,
    default: String,
}

impl Meaning {
    fn of(value: &Value) -> Self {
        let description = value.get("description").and_then(Value::as_str).unwrap_or_default();
        let description = description.replace('\n', " ").replace('|', "\\|");
        let (mut text, mut default) = (Vec::new(), String::new());
        for sentence in description.split_inclusive(". ") {
            let bare = sentence.trim().trim_end_matches('.');
            match bare.strip_prefix("Default").map(|rest| rest.trim_start_matches([':', ' '])) {
                Some(rest) => default = rest.to_owned(),
                None if bare == "Required" => default = "**required**".to_owned(),
                None => text.push(sentence.trim()),
            }
        }
        Self { text: text.join(" "), default }
    }
}
