//! From the located tree to the blocks of [`raw`](crate::raw): unknown keys, doubles and wrong types, all of them at once.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator};

use super::near;
use crate::problem::{Findings, Place};
use crate::tree::{Key as Written, Node, Number, Value};

/// A value with its place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct At<T> {
    /// The value.
    pub value: T,
    /// Where it stands.
    pub place: Place,
}

impl<T> At<T> {
    /// A value that stands in no text.
    pub(crate) fn bare(path: &str, value: T) -> Self {
        Self { value, place: Place { path: path.to_owned(), at: None } }
    }
}

impl<T: JsonSchema> JsonSchema for At<T> {
    fn inline_schema() -> bool {
        T::inline_schema()
    }

    fn schema_name() -> Cow<'static, str> {
        T::schema_name()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        T::json_schema(generator)
    }
}

/// A key that a block may have.
#[derive(Debug)]
pub(crate) struct Key {
    pub(crate) name: &'static str,
    /// The keys of the block, or of the blocks of the list, that stands under it.
    pub(crate) inside: &'static [Key],
}

/// A type that can be read from a node.
pub(crate) trait Read: Sized {
    /// The keys, if this is a block or a list of blocks.
    const KEYS: &'static [Key] = &[];

    /// Reads the node; `None` after a problem. A block with problems inside is still read, without the broken keys.
    fn read(node: &Node, place: &Place, reader: &mut Reader<'_>) -> Option<Self>;
}

/// Where problems go, and which blocks lie above.
pub(crate) struct Reader<'f> {
    pub(crate) found: &'f mut Findings,
    above: Vec<(Place, &'static [Key])>,
}

impl<'f> Reader<'f> {
    pub(crate) fn new(found: &'f mut Findings) -> Self {
        Self { found, above: Vec::new() }
    }

    /// The node is of the wrong type.
    pub(crate) fn wrong(&mut self, node: &Node, place: &Place, expected: &str, cure: &str) {
        match &node.value {
            Value::Null => {
                let cure = format!("give {expected}, or remove the key");
                self.found.error(place, format!("expected {expected}, found nothing"), cure);
            }
            Value::Unsupported(what) => {
                let cure = "write the value itself; a text that begins with & * or ! needs quotes";
                self.found.error(place, format!("{what} is not supported here"), cure);
            }
            other => self.found.error(place, format!("expected {expected}, found {}", other.found()), cure),
        }
    }

    /// Reads the entries of a block: hands out each known key once, and tells every other one.
    pub(crate) fn block(
        &mut self,
        node: &Node,
        place: &Place,
        keys: &'static [Key],
        later: &[&str],
        mut take: impl FnMut(&str, &Node, &Place, &mut Self),
    ) -> Option<()> {
        let Value::Map(entries) = &node.value else {
            let names: Vec<_> = keys.iter().take(4).map(|k| format!("`{}:`", k.name)).collect();
            self.wrong(node, place, "a block of keys", &format!("write keys such as {}", names.join(", ")));
            return None;
        };
        self.above.push((place.clone(), keys));
        let mut seen: Vec<(&str, usize)> = Vec::new();
        for (key, value) in entries {
            let Some(name) = key.text.as_deref() else {
                let here = Place { path: place.path.clone(), at: Some(key.at) };
                self.found.error(&here, "a key must be a plain word", "write `key: value`");
                continue;
            };
            let known = keys.iter().any(|k| k.name == name);
            let here = Place { path: place.key_path(&shown(name)), at: Some(key.at) };
            if let Some((_, first)) = seen.iter().find(|(other, _)| *other == name) {
                let cause = format!("the key stands here a second time (first on line {first})");
                self.found.error(&here, cause, "keep one of them");
                continue;
            }
            seen.push((name, key.at.0));
            if known {
                take(name, value, &Place { path: here.path, at: Some(value.at) }, self);
            } else if later.contains(&name) {
                self.found.error(
                    &here,
                    format!("`{name}` is not supported by this version yet"),
                    "remove it",
                );
            } else {
                self.unknown(key, name, &here, place, keys, later);
            }
        }
        self.above.pop();
        Some(())
    }

    fn unknown(
        &mut self,
        key: &Written,
        name: &str,
        here: &Place,
        block: &Place,
        keys: &'static [Key],
        later: &[&str],
    ) {
        let here = Place { path: here.path.clone(), at: Some(key.at) };
        if name == "<<" {
            self.found.error(&here, "YAML merge keys are not supported", "write the merged keys out");
            return;
        }
        if let Some(home) = near::below(name, keys) {
            self.found.explain(block.key_path(&format!("{home}.{name}")));
            self.found.error(&here, format!("`{name}` belongs under `{home}`"), "move it there");
            return;
        }
        let outer = self.above.iter().rev().skip(1).find(|(_, keys)| keys.iter().any(|k| k.name == name));
        if let Some((owner, _)) = outer {
            let home =
                if owner.path.is_empty() { "the top level".to_owned() } else { format!("`{}`", owner.path) };
            let path = owner.key_path(name);
            self.found.explain(path);
            self.found.error(
                &here,
                format!("`{name}` does not belong here but directly under {home}"),
                "move it there",
            );
            return;
        }
        let what =
            if here.path.ends_with('?') { "unknown key".to_owned() } else { format!("unknown key `{name}`") };
        let names = keys.iter().map(|k| k.name);
        match near::miss(name, names.clone().chain(later.iter().copied())) {
            Some(meant) => {
                self.found.explain(block.key_path(meant));
                self.found.error(&here, what, format!("did you mean `{meant}`?"));
            }
            None => match near::owner(name, self.above.first().map_or(keys, |(_, top)| top)) {
                Some(home) => self.found.error(&here, what, format!("`{name}` belongs under `{home}`")),
                None => {
                    let names: Vec<_> = names.collect();
                    self.found.error(&here, what, format!("the keys here are {}", names.join(", ")));
                }
            },
        }
    }
}

/// A key as a message may show it: a short plain word as it is, `?` for what may be a secret in the wrong place.
fn shown(name: &str) -> Cow<'_, str> {
    let plain = name.len() <= 40
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-<.".contains(&b))
        && name.bytes().filter(u8::is_ascii_digit).count() <= 4;
    if plain { Cow::Borrowed(name) } else { Cow::Borrowed("?") }
}

impl Read for bool {
    fn read(node: &Node, place: &Place, reader: &mut Reader<'_>) -> Option<Self> {
        if let Value::Bool(value) = node.value {
            return Some(value);
        }
        let cure = match &node.value {
            Value::Text { text, .. } if says(text, &["true", "yes", "on", "y", "1"]) => {
                "write `true`, without quotes"
            }
            Value::Text { text, .. } if says(text, &["false", "no", "off", "n", "0"]) => {
                "write `false`, without quotes"
            }
            _ => "write `true` or `false`",
        };
        reader.wrong(node, place, "`true` or `false`", cure);
        None
    }
}

fn says(text: &str, words: &[&str]) -> bool {
    words.iter().any(|w| text.eq_ignore_ascii_case(w))
}

/// A whole number; its bounds are checked later.
pub(crate) type Int = i128;

/// A whole number in the schema and in the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Whole(pub(crate) Int);

impl JsonSchema for Whole {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Whole".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        schemars::json_schema!({ "type": "integer" })
    }
}

impl Read for Whole {
    fn read(node: &Node, place: &Place, reader: &mut Reader<'_>) -> Option<Self> {
        let cure = match &node.value {
            Value::Int(value) => return Some(Self(*value)),
            Value::Text { text, quoted: true } if text.trim().parse::<Int>().is_ok() => "remove the quotes",
            Value::Text { .. } => "write the number alone, in decimal digits, without a unit",
            Value::Number(Number::Fraction(_)) => "write it without a fraction or an exponent",
            _ => "write it in decimal digits",
        };
        reader.wrong(node, place, "a whole number", cure);
        None
    }
}

/// A part of one: a number above 0 and up to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share(pub(crate) f64);

impl JsonSchema for Share {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Share".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        schemars::json_schema!({ "type": "number", "exclusiveMinimum": 0, "maximum": 1 })
    }
}

impl Read for Share {
    fn read(node: &Node, place: &Place, reader: &mut Reader<'_>) -> Option<Self> {
        let share = match &node.value {
            Value::Int(1) => 1.0,
            Value::Int(_) => 0.0,
            Value::Number(Number::Fraction(share)) => *share,
            _ => {
                reader.wrong(node, place, "a number between 0 and 1", "write it as in 0.9");
                return None;
            }
        };
        if share > 0.0 && share <= 1.0 {
            return Some(Self(share));
        }
        reader.found.error(place, "a share must be above 0 and at most 1", "write it as in 0.9");
        None
    }
}

impl Read for String {
    fn read(node: &Node, place: &Place, reader: &mut Reader<'_>) -> Option<Self> {
        if let Value::Text { text, .. } = &node.value {
            return Some(text.clone());
        }
        let cure = match node.value {
            Value::List(_) => "write one text; a text that begins with [ needs quotes",
            Value::Map(_) => "write one text; a text that begins with { or holds `: ` needs quotes",
            _ => "put it in quotes",
        };
        reader.wrong(node, place, "a text", cure);
        None
    }
}

fn items<T: Read>(nodes: &[Node], place: &Place, reader: &mut Reader<'_>) -> Vec<At<T>> {
    let mut items = Vec::with_capacity(nodes.len());
    for (i, node) in nodes.iter().enumerate() {
        let place = Place { path: format!("{}[{i}]", place.path), at: Some(node.at) };
        if let Some(value) = T::read(node, &place, reader) {
            items.push(At { value, place });
        }
    }
    items
}

impl<T: Read> Read for Vec<At<T>> {
    const KEYS: &'static [Key] = T::KEYS;

    fn read(node: &Node, place: &Place, reader: &mut Reader<'_>) -> Option<Self> {
        if let Value::List(nodes) = &node.value {
            return Some(items(nodes, place, reader));
        }
        reader.wrong(node, place, "a list", "write `[a, b]`, or one item a line with `- ` in front");
        None
    }
}

/// One value, or a list of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OneOrMany<T>(pub(crate) Vec<At<T>>);

impl<T: JsonSchema> JsonSchema for OneOrMany<T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        format!("OneOrMany_{}", T::schema_name()).into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let one = generator.subschema_for::<T>();
        schemars::json_schema!({ "anyOf": [one, { "type": "array", "items": one, "minItems": 1 }] })
    }
}

impl<T: Read> Read for OneOrMany<T> {
    const KEYS: &'static [Key] = T::KEYS;

    fn read(node: &Node, place: &Place, reader: &mut Reader<'_>) -> Option<Self> {
        if let Value::List(nodes) = &node.value {
            return Some(Self(items(nodes, place, reader)));
        }
        let value = T::read(node, place, reader)?;
        Some(Self(vec![At { value, place: place.clone() }]))
    }
}
