//! From the located tree to the blocks of [`raw`](crate::raw): unknown keys, doubles and wrong types, all of them at once.

use std::borrow::Cow;
use std::collections::HashMap;

use schemars::{JsonSchema, Schema, SchemaGenerator};

use super::near;
use crate::problem::{Findings, Place};
use crate::tree::{Node, Number, Value};

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
        let mut seen: HashMap<&str, usize> = HashMap::new();
        for (key, value) in entries {
            let Some(name) = key.text.as_deref() else {
                let here = Place { path: place.path.clone(), at: Some(key.at) };
                self.found.error(&here, "a key must be a plain word", "write `key: value`");
                continue;
            };
            let known = keys.iter().any(|k| k.name == name);
            let here = Place { path: place.key_path(&shown(name)), at: Some(key.at) };
            if let Some(first) = seen.get(name) {
                self.second(&here, *first);
                continue;
            }
            seen.insert(name, key.at.0);
            if known {
                take(name, value, &Place { path: here.path, at: Some(value.at) }, self);
            } else if later.contains(&name) {
                self.found.error(
                    &here,
                    format!("`{name}` is not supported by this version yet"),
                    "remove it",
                );
            } else {
                self.unknown(name, &here, place, keys, later);
            }
        }
        self.above.pop();
        Some(())
    }

    /// Tells a key that stands twice.
    pub(crate) fn second(&mut self, here: &Place, first: usize) {
        let cause = format!("the key stands here a second time (first on line {first})");
        self.found.error(here, cause, "keep one of them");
    }

    /// Tells an unknown key of `block`, and what was probably meant.
    fn unknown(&mut self, name: &str, here: &Place, block: &Place, keys: &'static [Key], later: &[&str]) {
        if name == "<<" {
            self.found.error(here, "YAML merge keys are not supported", "write the merged keys out");
            return;
        }
        if self.found.full() {
            self.found.error(here, "unknown key", "remove it");
            return;
        }
        if let Some((meant, cure)) = near::elsewhere(name, &block.path) {
            self.found.explain(block.key_path(meant));
            self.found.error(here, format!("unknown key `{name}`"), cure);
            return;
        }
        if let Some(cause) = self.misplaced(name, block, keys) {
            self.found.error(here, cause, "move it there");
            return;
        }
        let cause =
            if here.path.ends_with('?') { "unknown key".to_owned() } else { format!("unknown key `{name}`") };
        let names = keys.iter().map(|k| k.name);
        let top = self.above.first().map_or(keys, |(_, top)| top);
        let meant = near::miss(name, names.clone().chain(later.iter().copied()));
        // the very key in a block of the same name is nearer than a near miss, unless the word was only cut short
        let namesake =
            near::namesake(name, &block.path, top).filter(|_| meant.is_none_or(|m| !m.contains(name)));
        let cure = if let Some(home) = namesake {
            if home.contains('.') {
                format!("`{name}` belongs under `{home}`")
            } else {
                self.found.explain(format!("{home}.{name}"));
                format!("`{name}` belongs under the top level's `{home}`")
            }
        } else if let Some(meant) = meant {
            self.found.explain(block.key_path(meant));
            format!("did you mean `{meant}`?")
        } else if let Some(home) = near::owner(name, top) {
            format!("`{name}` belongs under `{home}`")
        } else {
            format!("the keys here are {}", names.collect::<Vec<_>>().join(", "))
        };
        self.found.error(here, cause, cure);
    }

    /// Where a key belongs that has the right name and stands too high or too low.
    fn misplaced(&mut self, name: &str, block: &Place, keys: &'static [Key]) -> Option<String> {
        let homes = near::below(name, keys);
        if let Some(first) = homes.first() {
            if homes.len() == 1 {
                self.found.explain(block.key_path(&format!("{first}.{name}")));
            }
            let homes: Vec<_> = homes.iter().map(|home| format!("`{home}`")).collect();
            return Some(format!("`{name}` belongs under {}", homes.join(" or ")));
        }
        let outer = self.above.iter().rev().skip(1).find(|(_, keys)| keys.iter().any(|k| k.name == name));
        if let Some((owner, _)) = outer {
            let home = match owner.path.as_str() {
                "" => "the top level".to_owned(),
                path => format!("`{path}`"),
            };
            self.found.explain(owner.key_path(name));
            return Some(format!("`{name}` does not belong here but directly under {home}"));
        }
        let deeper = |k: &Key| Some(format!("{}.{}", k.name, near::below(name, k.inside).first()?));
        keys.iter().find_map(deeper).map(|home| format!("`{name}` belongs under `{home}`"))
    }
}

/// A key as a message may show it: a short plain word as it is, `?` for what may be a secret in the wrong place.
pub(super) fn shown(name: &str) -> Cow<'_, str> {
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
