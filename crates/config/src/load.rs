//! Text to [`Raw`](crate::raw::Config), with the place of every value. The only file that names the YAML crate.
//!
//! The crate's own deserialiser stops at the first problem and shows neighbouring lines, which may hold secrets. So the
//! text is read as events into a [tree](crate::tree) here, and everything else works on that.

use serde_saphyr::granit_parser::{self, Event, Parser, ScalarStyle, ScanError, Span};

use crate::problem::{Findings, Place};
use crate::raw::read::{At, Reader};
use crate::raw::{Config, read::Read};
use crate::tree::{Key, Node, Value};

/// The longest text, in bytes.
pub(crate) const TEXT_MAX_BYTES: usize = 1024 * 1024;
/// The deepest nesting; the configuration itself needs seven levels.
const DEPTH_MAX: usize = 32;
/// The most values.
const NODES_MAX: usize = 200_000;

const QUOTING: &str = "check indentation, brackets and quotes; a value that begins with one of []{}*&!|>%@` or holds `: ` or ` #` \
                       needs quotes";

/// Reads the text. What can be read is returned even when there are problems, so that the checks can find more of them.
pub(crate) fn load(text: &str, found: &mut Findings) -> Option<At<Config>> {
    let node = tree(text, found)?;
    let place = Place { path: String::new(), at: Some(node.at) };
    if matches!(node.value, Value::Null) {
        found.error(&place, "the file is empty", "begin with `listen` and `upstreams`");
        return None;
    }
    let value = Config::read(&node, &place, &mut Reader::new(found))?;
    Some(At { value, place })
}

/// Reads the text into a tree; `None` after a problem that leaves no tree.
pub(crate) fn tree(text: &str, found: &mut Findings) -> Option<Node> {
    let start = Place { path: String::new(), at: Some((1, 1)) };
    if text.len() > TEXT_MAX_BYTES {
        found.error(
            &start,
            format!("the file has more than {TEXT_MAX_BYTES} bytes"),
            "is this the right file?",
        );
        return None;
    }
    let mut options = granit_parser::Options::default();
    options.emit_unresolved_aliases = true;
    options.flow_nesting_limit = DEPTH_MAX;
    options.block_nesting_limit = DEPTH_MAX;
    options.disallow_directives = true;
    let mut builder = Builder { open: Vec::new(), root: None, nodes: 0 };
    for next in Parser::new_from_str_with_options(text, options) {
        let step = match next {
            Ok((event, span)) => builder.take(event, &span),
            Err(error) => Err(syntax(&error)),
        };
        if let Err(stop) = step {
            found.error(&Place { path: String::new(), at: Some(stop.at) }, stop.cause, stop.cure);
            return None;
        }
    }
    Some(builder.root.unwrap_or(Node { at: (1, 1), value: Value::Null }))
}

/// Why reading ends early.
struct Stop {
    at: (usize, usize),
    cause: String,
    cure: &'static str,
}

/// The parser's messages are fixed texts with at most one character of the file in them, so they can hold no secret.
fn syntax(error: &ScanError) -> Stop {
    let mark = error.marker();
    Stop {
        at: (mark.line(), mark.col() + 1),
        cause: format!("not valid YAML: {}", error.kind()),
        cure: QUOTING,
    }
}

fn start(span: &Span) -> (usize, usize) {
    (span.start.line(), span.start.col() + 1)
}

/// A collection that is not closed yet.
enum Open {
    List { at: (usize, usize), odd: Option<&'static str>, items: Vec<Node> },
    Map { at: (usize, usize), odd: Option<&'static str>, entries: Vec<(Key, Node)>, key: Option<Key> },
}

struct Builder {
    open: Vec<Open>,
    root: Option<Node>,
    nodes: usize,
}

impl Builder {
    fn take(&mut self, event: Event<'_>, span: &Span) -> Result<(), Stop> {
        let at = start(span);
        match event {
            Event::Alias(_) | Event::UnresolvedAlias(_) => {
                self.put(Node { at, value: Value::Unsupported("a YAML alias") })
            }
            Event::Scalar(text, style, anchor, tag) => {
                let value = match (unsupported(anchor, tag.is_some()), style) {
                    (Some(what), _) => Value::Unsupported(what),
                    (None, ScalarStyle::Plain) => Value::plain(&text),
                    (None, _) => Value::Text { text: text.into_owned(), quoted: true },
                };
                self.put(Node { at, value })
            }
            Event::SequenceStart(_, anchor, tag) => {
                self.deeper(at)?;
                self.open.push(Open::List { at, odd: unsupported(anchor, tag.is_some()), items: Vec::new() });
                Ok(())
            }
            Event::MappingStart(_, anchor, tag) => {
                self.deeper(at)?;
                let odd = unsupported(anchor, tag.is_some());
                self.open.push(Open::Map { at, odd, entries: Vec::new(), key: None });
                Ok(())
            }
            Event::SequenceEnd | Event::MappingEnd => match self.open.pop() {
                Some(Open::List { at, odd, items }) => {
                    self.put(Node { at, value: odd.map_or(Value::List(items), Value::Unsupported) })
                }
                Some(Open::Map { at, odd, entries, .. }) => {
                    self.put(Node { at, value: odd.map_or(Value::Map(entries), Value::Unsupported) })
                }
                None => Ok(()),
            },
            Event::DocumentStart(..) if self.root.is_some() => Err(Stop {
                at,
                cause: "a second YAML document begins here".to_owned(),
                cure: "one file holds one configuration; remove the `---` and what follows",
            }),
            _ => Ok(()),
        }
    }

    fn deeper(&self, at: (usize, usize)) -> Result<(), Stop> {
        if self.open.len() < DEPTH_MAX {
            return Ok(());
        }
        Err(Stop {
            at,
            cause: format!("nested deeper than {DEPTH_MAX} levels"),
            cure: "no key lies that deep",
        })
    }

    fn put(&mut self, node: Node) -> Result<(), Stop> {
        self.nodes += 1;
        if self.nodes > NODES_MAX {
            let cause = format!("the file has more than {NODES_MAX} values");
            return Err(Stop { at: node.at, cause, cure: "is this the right file?" });
        }
        match self.open.last_mut() {
            None => self.root = Some(node),
            Some(Open::List { items, .. }) => items.push(node),
            Some(Open::Map { entries, key, .. }) => match key.take() {
                Some(key) => entries.push((key, node)),
                None => *key = Some(Key { at: node.at, text: key_text(node.value) }),
            },
        }
        Ok(())
    }
}

fn unsupported(anchor: usize, tagged: bool) -> Option<&'static str> {
    match (anchor, tagged) {
        (0, false) => None,
        (0, true) => Some("a YAML tag"),
        _ => Some("a YAML anchor"),
    }
}

fn key_text(value: Value) -> Option<String> {
    match value {
        Value::Text { text, .. } => Some(text),
        Value::Bool(word) => Some(word.to_string()),
        Value::Int(number) => Some(number.to_string()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::Number;

    fn read(text: &str) -> (Option<Node>, Vec<String>) {
        let mut found = Findings::default();
        let node = tree(text, &mut found);
        (node, found.sorted().iter().map(ToString::to_string).collect())
    }

    fn at<'a>(node: &'a Node, keys: &[&str]) -> Option<&'a Node> {
        keys.iter().try_fold(node, |node, wanted| match &node.value {
            Value::Map(entries) => {
                entries.iter().find(|(key, _)| key.text.as_deref() == Some(wanted)).map(|(_, value)| value)
            }
            Value::List(items) => items.get(wanted.parse::<usize>().ok()?),
            _ => None,
        })
    }

    #[test]
    fn every_value_has_its_place() {
        let text = "# a comment\nlisten: 127.0.0.1:1\r\nupstreams:\n  - name: a\n    pool: { max_queue: 7 }\n  - name: \"b\"\n";
        let (node, problems) = read(text);
        assert_eq!(problems, Vec::<String>::new());
        let node = node.unwrap_or_else(|| unreachable!());
        let place = |keys: &[&str]| at(&node, keys).map(|n| n.at);
        assert_eq!(place(&["listen"]), Some((2, 9)));
        assert_eq!(place(&["upstreams"]), Some((4, 3)));
        assert_eq!(place(&["upstreams", "0", "name"]), Some((4, 11)));
        assert_eq!(place(&["upstreams", "0", "pool", "max_queue"]), Some((5, 24)));
        assert_eq!(place(&["upstreams", "1", "name"]), Some((6, 11)));
        let name = at(&node, &["upstreams", "1", "name"]).map(|n| n.value.clone());
        assert_eq!(name, Some(Value::Text { text: "b".to_owned(), quoted: true }));
    }

    #[test]
    fn columns_count_characters() {
        let (node, _) = read("\"größe\": {\"naïve\": 1}");
        let value = node.as_ref().and_then(|n| at(n, &["größe", "naïve"]));
        assert_eq!(value.map(|n| n.at), Some((1, 20)));
    }

    #[test]
    fn scalars_mean_what_they_look_like() {
        let odd = Value::Number(Number::Odd);
        for text in [
            "0x190",
            "0o17",
            "0b1",
            "007",
            "-0",
            "-01",
            "+5",
            "1_000",
            ".inf",
            "-.INF",
            ".nan",
            "123456789012345678901",
        ] {
            assert_eq!(Value::plain(text), odd, "{text}");
        }
        for text in ["400.0", "1e3", ".5", "-1.5", "4."] {
            assert!(matches!(Value::plain(text), Value::Number(Number::Fraction(_))), "{text}");
        }
        for text in [
            "yes",
            "on",
            "True",
            "127.0.0.1:8080",
            "127.0.0.1",
            "0xyz",
            "1.2.3",
            "-",
            "e5",
            "inf",
            "file:.x",
            "0x",
        ] {
            assert_eq!(Value::plain(text), Value::Text { text: text.to_owned(), quoted: false });
        }
        assert_eq!(Value::plain("-12"), Value::Int(-12));
        assert_eq!(Value::plain("18446744073709551615"), Value::Int(u64::MAX.into()));
    }

    #[test]
    fn what_leaves_no_tree_is_one_problem() {
        let deep = "[".repeat(100);
        let many = "- 1\n".repeat(NODES_MAX + 1);
        let long = "#".repeat(TEXT_MAX_BYTES + 1);
        for text in
            ["a: [", "a: b: c", "a:\n\tx: 1", "a: 1\n---\nb: 2", "%YAML 1.2\n---\na: 1", &deep, &many, &long]
        {
            let (node, problems) = read(text);
            assert_eq!((node, problems.len()), (None, 1), "{text:.40}");
        }
        let (_, problems) = read("listen: [::]:8080\n");
        assert!(problems[0].starts_with("1:"), "{problems:?}");
        assert!(problems[0].contains("needs quotes"), "{problems:?}");
    }

    #[test]
    fn anchors_aliases_and_tags_are_seen() {
        let (node, problems) = read("a: &x 1\nb: *x\nc: *secret\nd: !!str 1\ne: &y {f: 1}\n<<: *x\n");
        assert_eq!(problems, Vec::<String>::new());
        let node = node.unwrap_or_else(|| unreachable!());
        let kind = |key: &str| at(&node, &[key]).map(|n| n.value.found());
        assert_eq!(kind("a"), Some("a YAML anchor"));
        assert_eq!(kind("b"), Some("a YAML alias"));
        assert_eq!(kind("c"), Some("a YAML alias"));
        assert_eq!(kind("d"), Some("a YAML tag"));
        assert_eq!(kind("e"), Some("a YAML anchor"));
    }

    #[test]
    fn nothing_is_null() {
        for text in ["", "# only a comment\n", "---\n", "~"] {
            assert_eq!(read(text).0.map(|n| n.value), Some(Value::Null), "{text:?}");
        }
    }
}
