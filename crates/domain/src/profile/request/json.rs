//! JSON as a stream: the values under some keys, and nothing else. No parser; of what no JSON text holds outside its strings the
//! reader is told, for servers differ in what they let pass (bare words, single quotes, comments, other encodings).

/// The longest key that is compared, in bytes.
pub(super) const KEY_MAX: usize = 64;
/// The deepest nesting that is followed.
const DEPTH_MAX: usize = 256;

/// Behind a byte order mark and blanks: where a JSON object or list begins; `None` = not in these bytes yet.
pub(super) fn json_begins(bytes: &[u8]) -> Option<Result<usize, NotJson>> {
    let begin = bytes.iter().position(|b| !b.is_ascii_whitespace() && !b"\xef\xbb\xbf".contains(b))?;
    Some(if b"{[".contains(&bytes[begin]) { Ok(begin) } else { Err(NotJson(bytes[begin])) })
}

/// It begins with this byte instead.
pub(super) struct NotJson(pub(super) u8);

/// Who is told of the values under keys of ours, and of nothing else.
pub(super) trait Values {
    /// A piece of a text, without escapes.
    fn text(&mut self, key: usize, piece: &[u8]);
    fn text_ends(&mut self, key: usize);
    fn number(&mut self, key: usize);
    /// What follows cannot be followed: too deep, or no JSON.
    fn lost(&mut self);
    /// Whether nothing more is of use.
    fn done(&self) -> bool;
}

/// A container that is open: whether it is an object, the key of ours that its values stand under, and whose `PARENT/KEY` it is.
#[derive(Clone, Copy, Debug)]
struct Open {
    object: bool,
    under: Option<usize>,
    parent: Parent,
}

/// The keys of ours, as a set of bits, that are written `PARENT/KEY` with this parent.
type Parent = u128;

/// Those whose parent has this name.
fn parent(keys: &[Box<str>], name: &[u8]) -> Parent {
    let is = |key: &str| key.split_once('/').is_some_and(|(p, _)| p.as_bytes().eq_ignore_ascii_case(name));
    let bits = keys.iter().take(128).enumerate().filter(|(_, key)| is(key));
    bits.fold(0, |set, (at, _)| set | (1 << at))
}

/// The key of ours that this name is, within a container with this parent. Servers differ in letter case.
fn position(keys: &[Box<str>], name: &[u8], parent: Parent) -> Option<usize> {
    keys.iter().enumerate().position(|(at, key)| match key.split_once('/') {
        None => key.as_bytes().eq_ignore_ascii_case(name),
        Some((_, key)) => at < 128 && parent >> at & 1 == 1 && key.as_bytes().eq_ignore_ascii_case(name),
    })
}

#[derive(Debug, Default)]
pub(super) struct Json {
    open: Vec<Open>,
    /// The next string is a key.
    key_next: bool,
    /// The key of ours whose value comes next.
    under: Option<usize>,
    /// What the value that comes next would be the parent of.
    parent: Parent,
    text: Option<Text>,
}

/// A string that is being read.
#[derive(Debug, Default)]
struct Text {
    /// It is a key, and says this so far; one byte more than [`KEY_MAX`] is kept, so that a longer one equals none.
    key: Option<Vec<u8>>,
    escape: Escape,
}

#[derive(Debug, Default, Clone, Copy)]
enum Escape {
    #[default]
    None,
    Begun,
    /// So many hex digits of `\u`, and their value.
    Unicode(u8, u32),
}

impl Json {
    /// Whether it is cut off.
    pub(super) fn is_open(&self) -> bool {
        !self.open.is_empty()
    }

    pub(super) fn feed(&mut self, mut bytes: &[u8], keys: &[Box<str>], values: &mut impl Values) {
        while let Some((byte, rest)) = bytes.split_first() {
            if values.done() {
                return;
            }
            if let Some(text) = &mut self.text {
                let mut say = |piece: &[u8]| match (&mut text.key, self.under) {
                    (Some(key), _) => {
                        let room = (KEY_MAX + 1).saturating_sub(key.len());
                        key.extend_from_slice(&piece[..piece.len().min(room)]);
                    }
                    (None, Some(under)) => values.text(under, piece),
                    (None, None) => {}
                };
                match text.escape.next(*byte) {
                    // a long value is skipped at the speed of memory
                    None => {
                        let plain = memchr::memchr2(b'"', b'\\', bytes).unwrap_or(bytes.len());
                        say(&bytes[..plain]);
                        bytes = &bytes[plain..];
                        match bytes.split_first() {
                            None => return,
                            Some((b'\\', rest)) => {
                                text.escape = Escape::Begun;
                                bytes = rest;
                            }
                            Some((_, rest)) => {
                                bytes = rest;
                                self.text_ends(keys, values);
                            }
                        }
                    }
                    Some(said) => {
                        if let Some(said) = said {
                            say(said.encode_utf8(&mut [0; 4]).as_bytes());
                        }
                        bytes = rest;
                    }
                }
                continue;
            }
            bytes = rest;
            match byte {
                b'"' => {
                    self.text = Some(Text { key: self.key_next.then(Vec::new), ..Text::default() });
                }
                b'{' | b'[' => {
                    if self.open.len() == DEPTH_MAX {
                        return values.lost();
                    }
                    let object = *byte == b'{';
                    // the items of a list under a key stand under it; those of an object have keys of their own
                    let under = self.under.filter(|_| !object);
                    self.open.push(Open { object, under, parent: self.parent });
                    self.key_next = object;
                    self.under = if object { None } else { self.under };
                }
                b'}' | b']' => {
                    self.open.pop();
                    self.key_next = false;
                    self.under = None;
                    self.parent = 0;
                }
                b',' => {
                    let open = self.open.last();
                    self.key_next = open.is_some_and(|o| o.object);
                    self.under = open.and_then(|o| o.under);
                    self.parent = open.filter(|o| !o.object).map_or(0, |o| o.parent);
                }
                b':' => self.key_next = false,
                b'-' | b'0'..=b'9' => {
                    if let Some(under) = self.under {
                        values.number(under);
                    }
                }
                b' ' | b'\t' | b'\r' | b'\n' | b'+' | b'.' | b'E' => {}
                // of numbers, `true`, `false` and `null`
                b'e' | b't' | b'r' | b'u' | b'f' | b'a' | b'l' | b's' | b'n' => {}
                _ => return values.lost(),
            }
        }
    }

    fn text_ends(&mut self, keys: &[Box<str>], values: &mut impl Values) {
        match self.text.take().and_then(|text| text.key) {
            Some(name) => {
                self.key_next = false;
                let within = self.open.last().map_or(0, |open| open.parent);
                self.under = position(keys, &name, within);
                self.parent = parent(keys, &name);
            }
            None => {
                if let Some(under) = self.under {
                    values.text_ends(under);
                }
            }
        }
    }
}

impl Escape {
    /// `None`: there is no escape here. Else the next byte belongs to it; with the last one comes what it says.
    fn next(&mut self, byte: u8) -> Option<Option<char>> {
        let (next, said) = match *self {
            Self::None => return None,
            Self::Begun if byte == b'u' => (Self::Unicode(0, 0), None),
            Self::Begun => {
                let said = match byte {
                    b'n' => '\n',
                    b't' => '\t',
                    b'r' => '\r',
                    b'b' => '\u{8}',
                    b'f' => '\u{c}',
                    other => char::from(other),
                };
                (Self::None, Some(said))
            }
            Self::Unicode(digits, value) => {
                let value = value * 16 + char::from(byte).to_digit(16).unwrap_or(0);
                match digits {
                    0..3 => (Self::Unicode(digits + 1, value), None),
                    // no key of ours has a surrogate in it
                    _ => (Self::None, Some(char::from_u32(value).unwrap_or(char::REPLACEMENT_CHARACTER))),
                }
            }
        };
        *self = next;
        Some(said)
    }
}
