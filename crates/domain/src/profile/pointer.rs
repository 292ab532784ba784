//! JSON pointers (RFC 6901) into an answer, with `*` for every item.

use std::fmt;

use serde_json::Value;

/// A JSON pointer. The token `*` stands for every item of an array and every value of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pointer {
    text: Box<str>,
    tokens: Box<[Token]>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Token {
    Name(Box<str>),
    Every,
}

impl Token {
    /// Whether it means the value of this name.
    pub(super) fn is_name(&self, name: &str) -> bool {
        match self {
            Self::Name(own) => **own == *name,
            Self::Every => true,
        }
    }

    /// Whether it means this item of an array.
    pub(super) fn is_item(&self, item: usize) -> bool {
        match self {
            Self::Name(own) => index(own) == Some(item),
            Self::Every => true,
        }
    }
}

/// Why a text is not a pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAPointer {
    /// It does not begin with a slash.
    #[error("a JSON pointer is empty or begins with `/`")]
    NoSlash,
    /// `~` is followed by something other than 0 or 1.
    #[error("in a JSON pointer `~` is written `~0`, and `/` in a name `~1`")]
    Escape,
    /// More than [`Pointer::MAX_TOKENS`].
    #[error("a JSON pointer has at most 16 tokens here")]
    Deep,
}

impl Pointer {
    /// The most tokens of a pointer.
    pub const MAX_TOKENS: usize = 16;

    /// Reads a pointer.
    ///
    /// # Errors
    /// [`NotAPointer`] says why not.
    pub fn parse(text: &str) -> Result<Self, NotAPointer> {
        let mut tokens = Vec::new();
        if !text.is_empty() {
            let rest = text.strip_prefix('/').ok_or(NotAPointer::NoSlash)?;
            for token in rest.split('/') {
                tokens.push(match token {
                    "*" => Token::Every,
                    _ => Token::Name(unescape(token)?.into()),
                });
            }
        }
        if tokens.len() > Self::MAX_TOKENS {
            return Err(NotAPointer::Deep);
        }
        Ok(Self { text: text.into(), tokens: tokens.into() })
    }

    /// As it was written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    pub(super) fn tokens(&self) -> &[Token] {
        &self.tokens
    }

    /// Whether `holds` for every value there, and there is one: a missing value is shown as `None`, an empty array or object
    /// behind `*` holds nothing.
    pub(super) fn all<T: Tree>(&self, value: &T, holds: &mut dyn FnMut(Option<&T>) -> bool) -> bool {
        all(&self.tokens, value, holds)
    }

    /// The first value there.
    #[must_use]
    pub fn first<'t, T: Tree>(&self, value: &'t T) -> Option<&'t T> {
        first(&self.tokens, value)
    }
}

impl fmt::Display for Pointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn unescape(token: &str) -> Result<String, NotAPointer> {
    let mut out = String::with_capacity(token.len());
    let mut chars = token.chars();
    while let Some(c) = chars.next() {
        out.push(match c {
            '~' => match chars.next() {
                Some('0') => '~',
                Some('1') => '/',
                _ => return Err(NotAPointer::Escape),
            },
            c => c,
        });
    }
    Ok(out)
}

/// What pointers point into.
pub trait Tree: Sized {
    /// The member of this name, if this is an object that has one.
    fn member(&self, name: &str) -> Option<&Self>;

    /// The items, if this is an array.
    fn items(&self) -> &[Self];

    /// Shows every item of an array, or every value of an object, until `look` says no. Whether it never did.
    fn every<'t>(&'t self, look: &mut dyn FnMut(&'t Self) -> bool) -> bool;
}

impl Tree for Value {
    fn member(&self, name: &str) -> Option<&Self> {
        self.as_object()?.get(name)
    }

    fn items(&self) -> &[Self] {
        self.as_array().map_or(&[], Vec::as_slice)
    }

    fn every<'t>(&'t self, look: &mut dyn FnMut(&'t Self) -> bool) -> bool {
        match self {
            Self::Array(items) => items.iter().all(look),
            Self::Object(map) => map.values().all(look),
            _ => true,
        }
    }
}

fn child<'t, T: Tree>(value: &'t T, name: &str) -> Option<&'t T> {
    value.member(name).or_else(|| value.items().get(index(name)?))
}

/// RFC 6901 section 4: no leading zeros.
fn index(name: &str) -> Option<usize> {
    if name.len() > 1 && name.starts_with('0') || !name.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    name.parse().ok()
}

fn all<T: Tree>(tokens: &[Token], value: &T, holds: &mut dyn FnMut(Option<&T>) -> bool) -> bool {
    match tokens.split_first() {
        None => holds(Some(value)),
        Some((Token::Name(name), rest)) => match child(value, name) {
            Some(inner) => all(rest, inner, holds),
            // behind a `*` that never comes there is nothing that could hold
            None => !rest.contains(&Token::Every) && holds(None),
        },
        Some((Token::Every, rest)) => {
            let mut some = false;
            let all = value.every(&mut |item| {
                some = true;
                all(rest, item, holds)
            });
            all && some
        }
    }
}

fn first<'t, T: Tree>(tokens: &[Token], value: &'t T) -> Option<&'t T> {
    match tokens.split_first() {
        None => Some(value),
        Some((Token::Name(name), rest)) => first(rest, child(value, name)?),
        Some((Token::Every, rest)) => {
            let mut found = None;
            value.every(&mut |item| {
                found = first(rest, item);
                found.is_none()
            });
            found
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn at(text: &str) -> Pointer {
        Pointer::parse(text).unwrap_or_else(|e| unreachable!("{e}"))
    }

    #[test]
    fn pointers_of_the_rfc() {
        let doc = json!({"foo": ["bar", "baz"], "": 0, "a/b": 1, "m~n": 8, "*": 9});
        for (text, value) in [
            ("/foo/0", json!("bar")),
            ("/", json!(0)),
            ("/a~1b", json!(1)),
            ("/m~0n", json!(8)),
            ("", doc.clone()),
        ] {
            assert_eq!(at(text).first(&doc), Some(&value), "{text}");
        }
        for text in ["/foo/2", "/foo/00", "/foo/-", "/foo/+1", "/bar", "/foo/0/0"] {
            assert_eq!(at(text).first(&doc), None, "{text}");
        }
        assert_eq!(Pointer::parse("foo"), Err(NotAPointer::NoSlash));
        assert_eq!(Pointer::parse("/a~2"), Err(NotAPointer::Escape));
        assert_eq!(Pointer::parse("/a~"), Err(NotAPointer::Escape));
        assert_eq!(Pointer::parse(&"/x".repeat(17)), Err(NotAPointer::Deep));
    }

    #[test]
    fn a_star_asks_all_and_wants_one() {
        let all = |text: &str, doc: &Value| {
            at(text).all(doc, &mut |found| found.and_then(Value::as_str) == Some("x"))
        };
        assert!(all("/e/*/c", &json!({"e": [{"c": "x"}, {"c": "x"}]})));
        assert!(all("/e/*/c", &json!({"e": {"a": {"c": "x"}}})));
        for doc in [
            json!({"e": [{"c": "x"}, {"c": "y"}]}),
            json!({"e": [{"c": "x"}, {}]}),
            json!({"e": []}),
            json!({"e": {}}),
            json!({"e": "x"}),
            json!({}),
        ] {
            assert!(!all("/e/*/c", &doc), "{doc}");
            // nothing is absent in a list that is not there
            let absent = at("/e/*/d").all(&doc, &mut |found| found.is_none());
            assert_eq!(absent, doc["e"].as_array().is_some_and(|e| !e.is_empty()), "{doc}");
        }
        assert!(at("/e/f").all(&json!({}), &mut |found| found.is_none()));
    }
}
