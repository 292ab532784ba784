//! A refusal that echoes its request can be too long to keep. Where a profile names the values that may go, the rest is kept
//! as it came, byte for byte, and each of them leaves a marker that says how long it was. Nothing is cut anywhere else.

use std::ops::Range;

use serde::de::IgnoredAny;

use super::pointer::{Pointer, Token};

/// The body with the values at these pointers replaced by the JSON string `[removed: N bytes]`, N being the length of the value
/// as it stood there. A value that its marker would not shorten stays, and so does a marker. `None` where the body is no JSON
/// text, and where what is left is longer than `most`.
#[must_use]
pub fn reduce(pointers: &[Pointer], body: &[u8], most: usize) -> Option<Vec<u8>> {
    let text = std::str::from_utf8(body).ok()?;
    // from here on it is known to be well-formed
    serde_json::from_str::<IgnoredAny>(text).ok()?;
    let paths: Vec<&[Token]> = pointers.iter().map(Pointer::tokens).collect();
    let mut reading = Reading { body, at: 0, out: Vec::new(), copied: 0, most };
    reading.value(&paths)?;
    reading.copy_to(body.len())?;
    Some(reading.out)
}

/// One way through a JSON text, and what was kept of it.
struct Reading<'b> {
    body: &'b [u8],
    at: usize,
    out: Vec<u8>,
    /// Up to here the body is in `out`, or replaced there.
    copied: usize,
    most: usize,
}

/// `None` is the end of all: what is kept is too long, or the text is not what it was found to be.
impl Reading<'_> {
    /// A value, of which these paths lead on; one that ends here means all of it. As deep as the longest path.
    fn value(&mut self, paths: &[&[Token]]) -> Option<()> {
        self.blanks();
        let begins = self.at;
        if paths.iter().any(|path| path.is_empty()) {
            self.pass()?;
            return self.leave_out(begins..self.at);
        }
        match self.body.get(begins)? {
            b'{' if !paths.is_empty() => self.members(paths),
            b'[' if !paths.is_empty() => self.items(paths),
            _ => self.pass(),
        }
    }

    fn members(&mut self, paths: &[&[Token]]) -> Option<()> {
        self.at += 1;
        loop {
            self.blanks();
            match self.body.get(self.at)? {
                b'}' => break,
                b',' => self.at += 1,
                _ => {
                    let begins = self.at;
                    self.string()?;
                    let name = self.body.get(begins..self.at)?;
                    // a name that is no text (half a surrogate) is none that a path has
                    let name = serde_json::from_slice::<String>(name).ok();
                    self.blanks();
                    self.at += 1;
                    let means = |token: &Token| name.as_ref().is_some_and(|name| token.is_name(name));
                    self.value(&onward(paths, means))?;
                }
            }
        }
        self.at += 1;
        Some(())
    }

    fn items(&mut self, paths: &[&[Token]]) -> Option<()> {
        self.at += 1;
        let mut item = 0;
        loop {
            self.blanks();
            match self.body.get(self.at)? {
                b']' => break,
                b',' => self.at += 1,
                _ => {
                    self.value(&onward(paths, |token| token.is_item(item)))?;
                    item += 1;
                }
            }
        }
        self.at += 1;
        Some(())
    }

    /// Goes past a value, however deep.
    fn pass(&mut self) -> Option<()> {
        let mut depth = 0_usize;
        loop {
            self.blanks();
            match self.body.get(self.at)? {
                b'"' => self.string()?,
                b'{' | b'[' => {
                    depth += 1;
                    self.at += 1;
                }
                b'}' | b']' => {
                    depth = depth.checked_sub(1)?;
                    self.at += 1;
                }
                b',' | b':' => self.at += 1,
                _ => {
                    let rest = self.body.get(self.at..)?;
                    let ends = rest.iter().position(|b| b",:]} \t\r\n".contains(b));
                    self.at += ends.unwrap_or(rest.len());
                }
            }
            if depth == 0 {
                return Some(());
            }
        }
    }

    fn string(&mut self) -> Option<()> {
        self.at += 1;
        loop {
            self.at += memchr::memchr2(b'"', b'\\', self.body.get(self.at..)?)?;
            if self.body[self.at] == b'"' {
                self.at += 1;
                return Some(());
            }
            self.at += 2;
        }
    }

    fn blanks(&mut self) {
        let rest = self.body.get(self.at..).unwrap_or_default();
        self.at += rest.iter().take_while(|b| b" \t\r\n".contains(b)).count();
    }

    fn leave_out(&mut self, value: Range<usize>) -> Option<()> {
        let marker = format!("\"[removed: {} bytes]\"", value.len());
        if marker.len() >= value.len() || is_marker(self.body.get(value.clone())?) {
            return Some(());
        }
        self.copy_to(value.start)?;
        self.out.extend_from_slice(marker.as_bytes());
        self.copied = value.end;
        Some(())
    }

    fn copy_to(&mut self, end: usize) -> Option<()> {
        let more = self.body.get(self.copied..end)?;
        if self.out.len() + more.len() > self.most {
            return None;
        }
        self.out.extend_from_slice(more);
        self.copied = end;
        Some(())
    }
}

/// The rest of the paths whose next token means this.
fn onward<'p>(paths: &[&'p [Token]], means: impl Fn(&Token) -> bool) -> Vec<&'p [Token]> {
    let rest =
        |path: &&'p [Token]| path.split_first().filter(|(token, _)| means(token)).map(|(_, rest)| rest);
    paths.iter().filter_map(rest).collect()
}

/// Whether a value is a marker already: reducing twice is reducing once.
fn is_marker(value: &[u8]) -> bool {
    let digits = value.strip_prefix(b"\"[removed: ").and_then(|rest| rest.strip_suffix(b" bytes]\""));
    digits.is_some_and(|digits| !digits.is_empty() && digits.iter().all(u8::is_ascii_digit))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    const ENOUGH: usize = 1 << 20;

    fn pointers(texts: &[&str]) -> Vec<Pointer> {
        texts.iter().map(|text| Pointer::parse(text).unwrap_or_else(|e| unreachable!("{e}"))).collect()
    }

    fn reduced(texts: &[&str], body: &str) -> Option<String> {
        reduce(&pointers(texts), body.as_bytes(), ENOUGH).and_then(|out| String::from_utf8(out).ok())
    }

    #[test]
    fn an_echo_leaves_a_marker_and_the_rest_is_as_it_was() {
        let echo = "x".repeat(100);
        let body = format!(
            "{{ \"detail\" : [\n {{\"input\":\"{echo}\", \"n\":1.0e5,\"msg\":\"\\u00fc\"}} ,\
             {{\"input\": {{\"a\": [\"{echo}\"]}},\"n\":1}}, {{\"msg\":\"{echo}\"}}],\"input\":\"{echo}\"}}\n"
        );
        let expected = format!(
            "{{ \"detail\" : [\n {{\"input\":\"[removed: 102 bytes]\", \"n\":1.0e5,\"msg\":\"\\u00fc\"}} ,\
             {{\"input\": \"[removed: 111 bytes]\",\"n\":1}}, {{\"msg\":\"{echo}\"}}],\"input\":\"{echo}\"}}\n"
        );
        assert_eq!(reduced(&["/detail/*/input"], &body), Some(expected));
        assert_eq!(reduced(&["/nothing", "/detail/9/input"], &body), Some(body.clone()));
        let none = reduce(&pointers(&["/detail/*/input"]), body.as_bytes(), 300);
        assert_eq!(none, None, "what is left does not fit");
    }

    #[test]
    fn pointers_mean_what_they_mean_elsewhere() {
        let long = "y".repeat(40);
        for (pointer, body, expected) in [
            ("", r#" ["L"] "#, r#" "[removed: 44 bytes]" "#),
            ("/1", r#"["L","L"]"#, r#"["L","[removed: 42 bytes]"]"#),
            ("/01", r#"["L","L"]"#, r#"["L","L"]"#),
            ("/1", r#"{"1":"L"}"#, r#"{"1":"[removed: 42 bytes]"}"#),
            ("/*", r#"{"a":"L","b":"L"}"#, r#"{"a":"[removed: 42 bytes]","b":"[removed: 42 bytes]"}"#),
            ("/a", r#"{"a":"L","a":"L"}"#, r#"{"a":"[removed: 42 bytes]","a":"[removed: 42 bytes]"}"#),
            ("/a~1b~0", r#"{"a\/b~":"L"}"#, r#"{"a\/b~":"[removed: 42 bytes]"}"#),
            ("/ü", r#"{"\u00fc":"L"}"#, r#"{"\u00fc":"[removed: 42 bytes]"}"#),
            (
                "/*/a",
                r#"[{"a":"L"},"L",{"b":{"a":"L"}}]"#,
                r#"[{"a":"[removed: 42 bytes]"},"L",{"b":{"a":"L"}}]"#,
            ),
            // what a marker would not shorten stays
            ("/*", r#"["0123456789",12345,null]"#, r#"["0123456789",12345,null]"#),
        ] {
            let (body, expected) = (body.replace('L', &long), expected.replace('L', &long));
            assert_eq!(reduced(&[pointer], &body), Some(expected), "{pointer} {body}");
        }
        // the outer one counts, whichever stands first
        let body = format!("{{\"a\":{{\"b\":\"{long}\",\"c\":1}}}}");
        for both in [["/a", "/a/b"], ["/a/b", "/a"]] {
            assert_eq!(reduced(&both, &body).as_deref(), Some("{\"a\":\"[removed: 54 bytes]\"}"));
        }
    }

    #[test]
    fn what_is_no_json_text_is_not_reduced() {
        let echo = "x".repeat(100);
        for body in [
            "",
            "x",
            "{\"a\":",
            "{\"a\":1}{",
            "{\"a\":\"L\"} x",
            "{'a':\"L\"}",
            "{\"a\":\"L\",}",
            "{\"a\":\"\u{1}L\"}",
        ] {
            assert_eq!(reduced(&["/a", ""], &body.replace('L', &echo)), None, "{body}");
        }
        assert_eq!(reduce(&pointers(&["/a"]), b"{\"a\":\"\xff\"}", ENOUGH), None);
        // deep, and a name that is half a surrogate
        let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
        assert_eq!(reduced(&["/0/0"], &deep).as_deref(), Some("[[\"[removed: 199996 bytes]\"]]"));
        let half = format!("{{\"\\ud800\":\"{echo}\",\"a\":\"{echo}\"}}");
        assert!(reduced(&["/a"], &half).is_none_or(|out| out.ends_with("\"a\":\"[removed: 102 bytes]\"}")));
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            "[a-c\"\\\\{}\\[\\],:\u{fc}\n ]{0,40}".prop_map(Value::from),
            Just(json!("[removed: 100 bytes]")),
        ];
        leaf.prop_recursive(5, 60, 6, |inner| {
            let name = prop_oneof!["[a-c]", "[0-3]", "[~/\"\\\\\u{fc}]"];
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
                prop::collection::vec((name, inner), 0..5)
                    .prop_map(|m| Value::Object(m.into_iter().collect())),
            ]
        })
    }

    fn any_pointers() -> impl Strategy<Value = Vec<Pointer>> {
        let token = prop_oneof!["\\*", "[a-c]", "[0-3]", Just("~0".to_owned()), Just("~1".to_owned())];
        let pointer = prop::collection::vec(token, 0..4)
            .prop_map(|tokens| tokens.iter().map(|token| format!("/{token}")).collect::<String>());
        prop::collection::vec(pointer, 0..4)
            .prop_map(|texts| texts.iter().filter_map(|text| Pointer::parse(text).ok()).collect())
    }

    /// Shows every value at a pointer to `change`.
    fn each(tokens: &[Token], value: &mut Value, change: &mut dyn FnMut(&mut Value)) {
        let Some((token, rest)) = tokens.split_first() else { return change(value) };
        match value {
            Value::Object(members) => {
                let here = members.iter_mut().filter(|(name, _)| token.is_name(name));
                here.for_each(|(_, value)| each(rest, value, change));
            }
            Value::Array(items) => {
                let here = items.iter_mut().enumerate().filter(|(i, _)| token.is_item(*i));
                here.for_each(|(_, value)| each(rest, value, change));
            }
            _ => {}
        }
    }

    /// The same by way of a tree of values: what is compared with.
    fn by_value(pointers: &[Pointer], body: &Value) -> Value {
        let mut out = body.clone();
        let mut pointers: Vec<_> = pointers.iter().collect();
        pointers.sort_by_key(|pointer| pointer.tokens().len());
        for pointer in pointers {
            each(pointer.tokens(), &mut out, &mut |value| {
                let text = value.to_string();
                let marker = json!(format!("[removed: {} bytes]", text.len()));
                if marker.to_string().len() < text.len() && !is_marker(text.as_bytes()) {
                    *value = marker;
                }
            });
        }
        out
    }

    proptest! {
        #[test]
        fn only_those_values_change(body in any_json(), pointers in any_pointers()) {
            let text = body.to_string();
            let out = reduce(&pointers, text.as_bytes(), ENOUGH);
            prop_assert!(out.is_some());
            let out = out.unwrap_or_default();
            prop_assert_eq!(String::from_utf8_lossy(&out), by_value(&pointers, &body).to_string());
            prop_assert!(out.len() <= text.len());
            // once more changes nothing, and the order of pointers none either
            prop_assert_eq!(reduce(&pointers, &out, ENOUGH), Some(out.clone()));
            let backwards: Vec<_> = pointers.iter().rev().cloned().collect();
            prop_assert_eq!(reduce(&backwards, text.as_bytes(), ENOUGH), Some(out.clone()));
            // the bound is one
            prop_assert_eq!(reduce(&pointers, text.as_bytes(), out.len()), Some(out.clone()));
            prop_assert_eq!(reduce(&pointers, text.as_bytes(), out.len() - 1), None);
        }

        #[test]
        fn blanks_change_nothing_else(body in any_json(), pointers in any_pointers()) {
            let text = serde_json::to_string_pretty(&body).unwrap_or_default();
            let out = reduce(&pointers, text.as_bytes(), ENOUGH).unwrap_or_default();
            prop_assert!(serde_json::from_slice::<Value>(&out).is_ok());
            prop_assert_eq!(reduce(&pointers, &out, ENOUGH), Some(out));
        }

        #[test]
        fn whatever_comes_is_survived(
            body in any_json(),
            at in any::<prop::sample::Index>(),
            byte in any::<u8>(),
            cut in any::<prop::sample::Index>(),
            pointers in any_pointers(),
            most in 0..200_usize,
        ) {
            let mut bytes = body.to_string().into_bytes();
            let at = at.index(bytes.len());
            bytes[at] = byte;
            bytes.truncate(cut.index(bytes.len()) + 1);
            if let Some(out) = reduce(&pointers, &bytes, most) {
                prop_assert!(out.len() <= most && serde_json::from_slice::<IgnoredAny>(&out).is_ok());
            }
        }
    }
}
