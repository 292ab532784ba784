//! JSON as a judgement reads it: texts are borrowed from the body, and the members of an object are a list, which is searched
//! faster than a map of them is built.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Number, Value};

use super::pointer::Tree;

/// A JSON value.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Json<'a> {
    Null,
    Bool(bool),
    Number(Number),
    Text(Cow<'a, str>),
    Array(Vec<Self>),
    /// In the order of the text; of several members with one name the last one counts.
    Object(Vec<(Cow<'a, str>, Self)>),
}

impl Json<'_> {
    pub(super) fn as_str(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    pub(super) fn is_null(&self) -> bool {
        *self == Self::Null
    }

    /// The same, for who keeps it longer than the body.
    pub(super) fn to_value(&self) -> Value {
        match self {
            Self::Null => Value::Null,
            Self::Bool(word) => Value::Bool(*word),
            Self::Number(number) => Value::Number(number.clone()),
            Self::Text(text) => Value::String(text.to_string()),
            Self::Array(items) => Value::Array(items.iter().map(Self::to_value).collect()),
            Self::Object(members) => Value::Object(
                members.iter().map(|(name, value)| (name.to_string(), value.to_value())).collect(),
            ),
        }
    }
}

impl From<Value> for Json<'_> {
    fn from(value: Value) -> Self {
        match value {
            Value::Null => Self::Null,
            Value::Bool(word) => Self::Bool(word),
            Value::Number(number) => Self::Number(number),
            Value::String(text) => Self::Text(Cow::Owned(text)),
            Value::Array(items) => Self::Array(items.into_iter().map(Self::from).collect()),
            Value::Object(map) => {
                Self::Object(map.into_iter().map(|(name, value)| (Cow::Owned(name), value.into())).collect())
            }
        }
    }
}

impl Tree for Json<'_> {
    fn member(&self, name: &str) -> Option<&Self> {
        match self {
            Self::Object(members) => {
                members.iter().rev().find(|(own, _)| own == name).map(|(_, value)| value)
            }
            _ => None,
        }
    }

    fn items(&self) -> &[Self] {
        match self {
            Self::Array(items) => items,
            _ => &[],
        }
    }

    fn every<'t>(&'t self, look: &mut dyn FnMut(&'t Self) -> bool) -> bool {
        match self {
            Self::Array(items) => items.iter().all(look),
            Self::Object(members) => members.iter().all(|(_, value)| look(value)),
            _ => true,
        }
    }
}

impl fmt::Display for Json<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_value().fmt(f)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Json<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Values)
    }
}

struct Values;

impl<'de> Visitor<'de> for Values {
    type Value = Json<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Json<'de>, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E>(self, word: bool) -> Result<Json<'de>, E> {
        Ok(Json::Bool(word))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Json<'de>, E> {
        Ok(Json::Number(number.into()))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Json<'de>, E> {
        Ok(Json::Number(number.into()))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Json<'de>, E> {
        Ok(Number::from_f64(number).map_or(Json::Null, Json::Number))
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Json<'de>, E> {
        Ok(Json::Text(Cow::Borrowed(text)))
    }

    fn visit_str<E>(self, text: &str) -> Result<Json<'de>, E> {
        Ok(Json::Text(Cow::Owned(text.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Json<'de>, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = access.next_element()? {
            items.push(item);
        }
        Ok(Json::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Json<'de>, A::Error> {
        let mut members = Vec::new();
        while let Some(Name(name)) = access.next_key()? {
            members.push((name, access.next_value()?));
        }
        Ok(Json::Object(members))
    }
}

/// The name of a member. (serde's own `Cow<str>` never borrows.)
struct Name<'a>(Cow<'a, str>);

impl<'de> Deserialize<'de> for Name<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Names;
        impl<'de> Visitor<'de> for Names {
            type Value = Name<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Name<'de>, E> {
                Ok(Name(Cow::Borrowed(text)))
            }

            fn visit_str<E>(self, text: &str) -> Result<Name<'de>, E> {
                Ok(Name(Cow::Owned(text.to_owned())))
            }
        }
        deserializer.deserialize_str(Names)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_last_of_several_members_with_one_name_counts() {
        let json: Json<'_> = serde_json::from_str(r#"{"a":1,"b":2,"a":3}"#).unwrap_or(Json::Null);
        assert_eq!(json.member("a"), Some(&Json::Number(3.into())));
        assert_eq!(json.to_string(), r#"{"a":3,"b":2}"#);
    }

    /// As a parser that knows the whole language reads it.
    fn compared(text: &[u8]) {
        let ours = serde_json::from_slice::<Json<'_>>(text).map(|json| json.to_value());
        let theirs = serde_json::from_slice::<Value>(text);
        assert_eq!(ours.as_ref().ok(), theirs.as_ref().ok(), "{}", String::from_utf8_lossy(text));
        if let Ok(value) = theirs {
            assert_eq!(Json::from(value.clone()).to_value(), value);
        }
    }

    proptest! {
        #[test]
        fn any_bits_are_read_as_by_others(bits in prop::collection::vec(prop::sample::select(&[
            "{", "}", "[", "]", ",", ":", "\"a\"", "\"\\u0061\"", "\"b\\n\"", "\"\"", "1", "-2", "3.5", "1e400", "18446744073709551616",
            "true", "false", "null", " ", "\"ä\"", "\u{0}",
        ][..]), 0..24)) {
            compared(bits.concat().as_bytes());
        }

        #[test]
        fn any_bytes_are_read_as_by_others(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            compared(&bytes);
        }
    }
}
