//! Values of the configuration that are more than a text or a number.

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::PathBuf;

use schemars::{JsonSchema, Schema, SchemaGenerator};

use super::ListenBlock;
use super::read::{At, Int, Key, Read, Reader, Whole, shown};
use crate::problem::Place;
use crate::tree::{Node, Value};

/// One address to listen on.
#[derive(Clone, Debug)]
pub enum Listen {
    /// The address alone.
    Address(String),
    /// With settings of its own.
    Block(Box<ListenBlock>),
}

/// Where a secret is found. Never the secret itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecretRef {
    /// `env:NAME`: in an environment variable.
    Env(String),
    /// `file:PATH`: in a file, without the newline at its end.
    File(PathBuf),
}

impl Read for SecretRef {
    fn read(node: &Node, place: &Place, reader: &mut Reader<'_>) -> Option<Self> {
        const EXPECTED: &str = "a reference to a secret";
        let Value::Text { text, .. } = &node.value else {
            reader.wrong(
                node,
                place,
                EXPECTED,
                "write `env:NAME` or `file:PATH`, without a blank after the colon",
            );
            return None;
        };
        let name = |name: &str| {
            let begins = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
            begins && name.len() <= 200 && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
        };
        if let Some(variable) = text.strip_prefix("env:") {
            if name(variable) {
                return Some(Self::Env(variable.to_owned()));
            }
            let cause = "what follows `env:` is not the name of an environment variable";
            reader.found.error(place, cause, "write `env:NAME` with letters, digits and `_`");
        } else if let Some(path) = text.strip_prefix("file:") {
            if !path.trim().is_empty() && !path.contains('\0') {
                return Some(Self::File(PathBuf::from(path)));
            }
            reader.found.error(place, "no path follows `file:`", "write `file:PATH`");
        } else if text.starts_with('$') {
            reader.found.error(
                place,
                "variables are not replaced in this file",
                "write `env:NAME` instead of `${NAME}`",
            );
        } else {
            let cure =
                "put it into an environment variable or a file and write `env:NAME` or `file:PATH` here";
            reader.found.error(place, "a secret must not stand in the configuration itself", cure);
        }
        None
    }
}

impl JsonSchema for SecretRef {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "SecretRef".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        schemars::json_schema!({ "type": "string", "pattern": "^(env:[A-Za-z_][A-Za-z0-9_]*|file:.+)$" })
    }
}

/// A text or a whole number, as text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Generation(pub(crate) String);

impl Read for Generation {
    fn read(node: &Node, place: &Place, reader: &mut Reader<'_>) -> Option<Self> {
        if let Value::Int(number) = node.value {
            return Some(Self(number.to_string()));
        }
        String::read(node, place, reader).map(Self)
    }
}

impl JsonSchema for Generation {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Generation".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        schemars::json_schema!({ "type": ["string", "integer"] })
    }
}

/// A number for each of some statuses, in the order of the text; no status twice. The place of a status is that of its key; a
/// number that is none was told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ByStatus(pub(crate) Vec<(At<Whole>, Option<At<Whole>>)>);

impl Read for ByStatus {
    fn read(node: &Node, place: &Place, reader: &mut Reader<'_>) -> Option<Self> {
        let Value::Map(entries) = &node.value else {
            reader.wrong(node, place, "a block of statuses", "write them as in `{413: 3600}`");
            return None;
        };
        let mut read = Vec::with_capacity(entries.len());
        let mut seen: HashMap<Int, usize> = HashMap::new();
        for (key, value) in entries {
            let text = key.text.as_deref().unwrap_or("?");
            let here = |name: &str| Place { path: place.key_path(name), at: Some(key.at) };
            // keys in quotes are what JSON has
            let Some(status) = text.parse().ok().filter(|number: &Int| number.to_string() == text) else {
                let cause = "a key must be an HTTP status here";
                let cure = "write it as in `413: 3600`, one line for each status";
                reader.found.error(&here(&shown(text)), cause, cure);
                continue;
            };
            let here = here(text);
            if let Some(first) = seen.get(&status) {
                reader.second(&here, *first);
                continue;
            }
            seen.insert(status, key.at.0);
            let there = Place { path: here.path.clone(), at: Some(value.at) };
            let number = Whole::read(value, &there, reader).map(|value| At { value, place: there });
            read.push((At { value: Whole(status), place: here }, number));
        }
        Some(Self(read))
    }
}

impl JsonSchema for ByStatus {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "ByStatus".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        schemars::json_schema!({
            "type": "object",
            "propertyNames": { "pattern": "^4[0-9][0-9]$", "not": { "enum": ["401", "403", "404", "408", "429"] } },
            "additionalProperties": { "type": "integer" },
        })
    }
}

impl Read for PathBuf {
    fn read(node: &Node, place: &Place, reader: &mut Reader<'_>) -> Option<Self> {
        let text = String::read(node, place, reader)?;
        if text.trim().is_empty() || text.contains('\0') {
            reader.found.error(
                place,
                "the path is empty or holds a NUL",
                "write a path, relative to this file or absolute",
            );
            return None;
        }
        Some(Self::from(text))
    }
}

impl Read for Listen {
    const KEYS: &'static [Key] = ListenBlock::KEYS;

    fn read(node: &Node, place: &Place, reader: &mut Reader<'_>) -> Option<Self> {
        match &node.value {
            Value::Map(_) => ListenBlock::read(node, place, reader).map(|block| Self::Block(Box::new(block))),
            Value::Text { text, .. } => Some(Self::Address(text.clone())),
            _ => {
                reader.wrong(
                    node,
                    place,
                    "an address",
                    "write an IP address and a port, as in 127.0.0.1:8080",
                );
                None
            }
        }
    }
}

impl JsonSchema for Listen {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Listen".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let block = generator.subschema_for::<ListenBlock>();
        schemars::json_schema!({ "anyOf": [{ "type": "string" }, block] })
    }
}
