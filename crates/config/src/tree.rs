//! A parsed text with the place of every value. Knows nothing of the keys, and nothing of the YAML crate.

/// A value and where it begins.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Node {
    /// Line and column in characters, from 1.
    pub(crate) at: (usize, usize),
    /// What stands there.
    pub(crate) value: Value,
}

/// What stands at a place of the text.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    /// Nothing, `~` or `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A decimal whole number.
    Int(i128),
    /// Another number.
    Number(Number),
    /// Any other scalar.
    Text {
        /// The text.
        text: String,
        /// Whether it was written in quotes or as a block.
        quoted: bool,
    },
    /// A list.
    List(Vec<Node>),
    /// A mapping, in order, with doubles.
    Map(Vec<(Key, Node)>),
    /// An alias, or a value with an anchor or a tag: a word of YAML that a configuration does without.
    Unsupported(&'static str),
}

/// A number that is not a plain decimal whole number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Number {
    /// `1.5` or `1e3`.
    Fraction(f64),
    /// `0x1f`, `0o17`, `007`, `1_000`, `+5`, `.inf`, or more digits than any number here can have.
    Odd,
}

/// A key of a mapping.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Key {
    /// Line and column in characters, from 1.
    pub(crate) at: (usize, usize),
    /// The text; `None` when it is not a scalar.
    pub(crate) text: Option<String>,
}

impl Value {
    /// What this is, for a sentence such as `expected a number, found a list`. Never what it says.
    pub(crate) fn found(&self) -> &'static str {
        match self {
            Self::Null => "nothing",
            Self::Bool(_) => "true or false",
            Self::Int(_) => "a number",
            Self::Number(Number::Fraction(_)) => "a number with a fraction",
            Self::Number(Number::Odd) => "a number that is not in plain decimal digits",
            Self::Text { quoted: true, .. } => "a text in quotes",
            Self::Text { quoted: false, .. } => "a text",
            Self::List(_) => "a list",
            Self::Map(_) => "a block of keys",
            Self::Unsupported(what) => what,
        }
    }

    /// What an unquoted scalar means. YAML 1.2's core schema, but only the one usual spelling of each value; what other
    /// readers of YAML might take for a number comes out as [`Number::Odd`], so that nobody reads it as a text.
    pub(crate) fn plain(text: &str) -> Self {
        match text {
            "" | "~" | "null" | "Null" | "NULL" => return Self::Null,
            "true" => return Self::Bool(true),
            "false" => return Self::Bool(false),
            _ => {}
        }
        let digits = text.strip_prefix('-').unwrap_or(text);
        if !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()) {
            let usual = digits == "0" && text == "0" || !digits.starts_with('0');
            return match text.parse() {
                Ok(number) if usual && digits.len() <= 20 => Self::Int(number),
                _ => Self::Number(Number::Odd),
            };
        }
        let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
        if unsigned.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
            let decimal = unsigned.bytes().all(|b| b.is_ascii_digit() || b".eE+-".contains(&b));
            if decimal && let Ok(number) = text.parse::<f64>() {
                let usual = !text.starts_with('+') && number.is_finite();
                return Self::Number(if usual { Number::Fraction(number) } else { Number::Odd });
            }
            let lower = unsigned.to_ascii_lowercase();
            let prefixed = ["0x", "0o", "0b"].iter().any(|prefix| {
                lower
                    .strip_prefix(prefix)
                    .is_some_and(|d| !d.is_empty() && d.bytes().all(|b| b.is_ascii_hexdigit() || b == b'_'))
            });
            let spaced =
                lower.contains('_') && lower.bytes().all(|b| b.is_ascii_digit() || b"_.".contains(&b));
            if prefixed || spaced || [".inf", ".nan"].contains(&lower.as_str()) {
                return Self::Number(Number::Odd);
            }
        }
        Self::Text { text: text.to_owned(), quoted: false }
    }
}
