//! A free text without what may be personal or secret in it. It masks too much rather than too little: what is left is for
//! people to recognise a message by.

/// A stretch of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Piece<'a> {
    /// Words that stay.
    Plain(&'a str),
    /// Something that does not; the word says what it seemed to be.
    Masked(&'static str),
}

/// So many characters of a text are looked at; what begins behind them is left out.
pub(super) const LOOKED_AT: usize = 2048;
/// A run of so many characters of base64 or hex is a token.
const TOKEN_MIN: usize = 16;
/// A part of a compound word such as `context_length_exceeded` is not longer than this.
const WORD_MAX: usize = 15;
/// So many digits in one word are a number that may be personal.
const DIGITS_MIN: usize = 4;
/// A word of at least so many characters with letters and two digits is an id.
const ID_MIN: usize = 8;
/// Tops of media types.
const MEDIA: [&str; 8] = ["application", "image", "text", "audio", "video", "multipart", "font", "message"];
/// Words with a `/` or a `.` that are no paths and no files.
const HARMLESS: [&str; 7] = ["and/or", "n/a", "i/o", "input/output", "/", "e.g", "i.e"];

/// The text in pieces. Nothing of what is masked is in them.
pub(super) fn pieces(text: &str) -> Vec<Piece<'_>> {
    let (text, cut) = beginning(text);
    let mut pieces = Vec::new();
    let mut from = 0;
    for (start, end) in quoted(text, cut) {
        words(&text[from..start], &mut pieces);
        push(&mut pieces, Piece::Masked("quoted"));
        from = end;
    }
    words(&text[from..], &mut pieces);
    if cut {
        push(&mut pieces, Piece::Masked("more"));
    }
    pieces
}

/// The text in one, with `<word>` for what is masked.
pub(super) fn masked(text: &str) -> String {
    pieces(text).into_iter().fold(String::new(), |mut out, piece| {
        match piece {
            Piece::Plain(words) => out.extend(words.chars().map(|c| if c.is_control() { ' ' } else { c })),
            Piece::Masked(what) => {
                out.push('<');
                out.push_str(what);
                out.push('>');
            }
        }
        out
    })
}

/// The beginning of a long text, without the word in which it is cut, and whether it is cut.
fn beginning(text: &str) -> (&str, bool) {
    match text.char_indices().nth(LOOKED_AT) {
        None => (text, false),
        Some((at, _)) => {
            let end = text[..at].rfind(char::is_whitespace).unwrap_or(0);
            (&text[..end], true)
        }
    }
}

fn push<'a>(pieces: &mut Vec<Piece<'a>>, piece: Piece<'a>) {
    if pieces.last() != Some(&piece) || matches!(piece, Piece::Plain(_)) {
        pieces.push(piece);
    }
}

/// Where quoted text begins and ends, in order and apart. From the first mark of a kind to its last: which of several belong
/// together cannot be known. To the end of the text if their number is odd, or if the text was cut.
fn quoted(text: &str, cut: bool) -> Vec<(usize, usize)> {
    const KINDS: [&[char]; 4] = [
        &['"'],
        &['`'],
        &[
            '\u{201c}', '\u{201d}', '\u{201e}', '\u{201f}', '\u{2039}', '\u{203a}', '\u{2018}', '\u{201a}',
            '\u{201b}',
        ],
        &['\u{ab}', '\u{bb}', '\u{300c}', '\u{300d}', '\u{300e}', '\u{300f}', '\u{ff02}', '\u{ff07}'],
    ];
    let mut spans: Vec<(usize, usize)> = Vec::new();
    let mut span = |marks: Vec<(usize, usize)>| {
        if let (Some((start, _)), Some((_, end))) = (marks.first(), marks.last()) {
            let open = cut || marks.len() % 2 == 1;
            spans.push((*start, if open { text.len() } else { *end }));
        }
    };
    for kind in KINDS {
        span(
            text.char_indices()
                .filter(|(_, c)| kind.contains(c))
                .map(|(at, c)| (at, at + c.len_utf8()))
                .collect(),
        );
    }
    // ' and its curly form, which are apostrophes too
    let marks: Vec<_> = text.char_indices().filter(|(_, c)| ['\'', '\u{2019}'].contains(c)).collect();
    let quotes = marks.into_iter().filter(|(at, c)| !is_apostrophe(&text[..*at], &text[at + c.len_utf8()..]));
    span(quotes.map(|(at, c)| (at, at + c.len_utf8())).collect());
    spans.sort_unstable();
    let mut apart: Vec<(usize, usize)> = Vec::new();
    for (start, end) in spans {
        match apart.last_mut() {
            Some((_, until)) if start <= *until => *until = end.max(*until),
            _ => apart.push((start, end)),
        }
    }
    apart
}

/// Whether a mark between these is the one of `can't` or `the document's`, and not the beginning of `b'...'`.
fn is_apostrophe(before: &str, after: &str) -> bool {
    let word_before = before.rsplit(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
    let word_after = after.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
    let prefixes = ["b", "r", "u", "f", "rb", "br", "n", "x"];
    let endings = ["s", "t", "d", "m", "re", "ve", "ll"];
    !word_before.is_empty()
        && !prefixes.iter().any(|p| word_before.eq_ignore_ascii_case(p))
        && endings.iter().any(|e| word_after.eq_ignore_ascii_case(e))
        // `doc's'` is no contraction
        && !after[word_after.len()..].starts_with(['\'', '\u{2019}'])
}

/// Masks what single words show to be personal or secret.
fn words<'a>(text: &'a str, pieces: &mut Vec<Piece<'a>>) {
    let separates = |c: char| c.is_whitespace() || c.is_control() || c == '<' || c == '>';
    let (mut plain_from, mut at) = (0, 0);
    while at < text.len() {
        let rest = &text[at..];
        let length = rest.find(separates).unwrap_or(rest.len());
        let word = &rest[..length];
        let is_tag = text[..at].ends_with('<') && word.strip_prefix('/').is_some_and(is_letters);
        if let (Some(what), false) = (suspicious(word), is_tag) {
            if plain_from < at {
                push(pieces, Piece::Plain(&text[plain_from..at]));
            }
            push(pieces, Piece::Masked(what));
            plain_from = at + length;
        }
        at += length;
        at += text[at..].chars().next().map_or(0, char::len_utf8);
    }
    if plain_from < text.len() {
        push(pieces, Piece::Plain(&text[plain_from..]));
    }
}

fn is_letters(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphabetic())
}

/// What a word between blanks seems to be, if it must not be shown.
fn suspicious(word: &str) -> Option<&'static str> {
    let bare = word.trim_matches(|c: char| c.is_ascii_punctuation() && !"/\\~@".contains(c));
    let lower = bare.to_ascii_lowercase();
    if HARMLESS.contains(&lower.as_str()) || is_media_type(&lower) {
        return None;
    }
    if word.contains("://") || ["www.", "data:", "mailto:"].iter().any(|start| lower.starts_with(start)) {
        return Some("url");
    }
    if word.contains('@') {
        return Some("email");
    }
    if word.contains(['/', '\\', '~']) {
        return Some("path");
    }
    let digits = word.chars().filter(|c| c.is_numeric()).count();
    if digits >= DIGITS_MIN {
        return Some("number");
    }
    if has_token(word) {
        return Some("token");
    }
    if has_extension(bare) {
        return Some("file");
    }
    let letters = lower.replace("base64", "").chars().filter(|c| c.is_alphabetic()).count();
    let digits = lower.replace("base64", "").chars().filter(|c| c.is_numeric()).count();
    (letters > 0 && digits >= 2 && bare.len() >= ID_MIN).then_some("id")
}

/// `image/png`, `application/vnd.ms-excel`: the second half has no extension that it could be a file by.
fn is_media_type(word: &str) -> bool {
    let Some((top, sub)) = word.split_once('/') else { return false };
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"+-.*".contains(&b);
    MEDIA.contains(&top)
        && sub.bytes().all(plain)
        && (!sub.contains('.') || sub.starts_with("vnd."))
        && sub.bytes().filter(u8::is_ascii_digit).count() < DIGITS_MIN
}

/// A long run of letters, digits and the signs of base64 that is no compound of words.
fn has_token(word: &str) -> bool {
    let in_token = |c: char| c.is_ascii_alphanumeric() || "+/=_-".contains(c);
    let is_word = |part: &str| {
        let tail = part.get(1..).unwrap_or_default();
        part.len() <= WORD_MAX
            && part.bytes().all(|b| b.is_ascii_alphabetic())
            && (tail.bytes().all(|b| b.is_ascii_lowercase()) || part.bytes().all(|b| b.is_ascii_uppercase()))
    };
    word.split(|c| !in_token(c)).any(|run| run.len() >= TOKEN_MIN && !run.split(['_', '-']).all(is_word))
}

/// A dot between two characters of a word, the latter a letter: a file, a host, or code.
fn has_extension(word: &str) -> bool {
    let mut before = None;
    let mut rest = word.chars().peekable();
    while let Some(c) = rest.next() {
        let joins = c == '.' && before.is_some_and(char::is_alphanumeric);
        if joins && rest.peek().is_some_and(|next| next.is_alphanumeric()) {
            // `3.5` is a number; `10.0.0.1` is an address
            let number = before.is_some_and(char::is_numeric) && rest.peek().is_some_and(|n| n.is_numeric());
            if !number || word.matches('.').count() >= 3 {
                return true;
            }
        }
        before = Some(c);
    }
    false
}
