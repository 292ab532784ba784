//! Canonical header values for the key, and the boundary of a form.
//!
//! Only what surely carries no meaning is taken away: the letter case of a media type and of parameter names, blanks
//! around them, and the boundary. A value that does not parse is keyed as it came.

/// The media type of forms (RFC 7578).
const FORM: &str = "multipart/form-data";

/// A media type, taken apart (RFC 9110 section 8.3.1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MediaType {
    /// `type/subtype` in lower case.
    pub essence: String,
    /// Parameters in order: the name in lower case, the value as it came (with its quotes).
    pub parameters: Vec<(String, Vec<u8>)>,
}

fn is_token(bytes: &[u8]) -> bool {
    !bytes.is_empty() && bytes.iter().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(b))
}

fn trim(bytes: &[u8]) -> &[u8] {
    let start = bytes.iter().position(|b| !b" \t".contains(b)).unwrap_or(bytes.len());
    let end = bytes.iter().rposition(|b| !b" \t".contains(b)).map_or(start, |i| i + 1);
    &bytes[start..end]
}

/// Splits at `;` outside quoted strings.
fn split_parameters(value: &[u8]) -> Option<Vec<&[u8]>> {
    let (mut out, mut start, mut quoted, mut escaped) = (Vec::new(), 0, false, false);
    for (i, &b) in value.iter().enumerate() {
        match b {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b';' if !quoted => {
                out.push(&value[start..i]);
                start = i + 1;
            }
            _ => {}
        }
    }
    out.push(&value[start..]);
    if quoted { None } else { Some(out) }
}

impl MediaType {
    /// The boundary of a form that this `Content-Type` value announces; see [`MediaType::form_boundary`].
    #[must_use]
    pub fn boundary_of(value: &[u8]) -> Option<Vec<u8>> {
        // asked of every request: most are no forms, and that shows without parsing
        let announced = value.trim_ascii_start().get(..FORM.len())?.eq_ignore_ascii_case(FORM.as_bytes());
        if announced { Self::parse(value)?.form_boundary() } else { None }
    }

    /// Parses a `Content-Type` value; `None` when it is not well formed.
    #[must_use]
    pub fn parse(value: &[u8]) -> Option<Self> {
        // no sender writes these: a reader that refuses them must not decide for those that do without
        if value.windows(2).any(|w| w == b"  ") || value.contains(&b'\t') {
            return None;
        }
        let pieces = split_parameters(value)?;
        let (first, rest) = pieces.split_first()?;
        let essence = trim(first);
        let slash = essence.iter().position(|b| *b == b'/')?;
        if !is_token(&essence[..slash]) || !is_token(&essence[slash + 1..]) {
            return None;
        }
        let mut parameters = Vec::new();
        for piece in rest {
            let piece = trim(piece);
            let equals = piece.iter().position(|b| *b == b'=')?;
            let (name, value) = (&piece[..equals], &piece[equals + 1..]);
            if !is_token(name) || !(is_token(value) || is_quoted(value)) {
                return None;
            }
            parameters.push((String::from_utf8_lossy(name).to_ascii_lowercase(), value.to_vec()));
        }
        Some(Self { essence: String::from_utf8_lossy(essence).to_ascii_lowercase(), parameters })
    }

    /// The boundary of a `multipart/form-data` body (RFC 2046 section 5.1.1); `None` when this is no form, or when there is
    /// not exactly one boundary of 1 to 70 characters.
    #[must_use]
    pub fn form_boundary(&self) -> Option<Vec<u8>> {
        if self.essence != FORM {
            return None;
        }
        let mut found = self.parameters.iter().filter(|(name, _)| name == "boundary");
        let (_, value) = found.next()?;
        if found.next().is_some() {
            return None;
        }
        // an escape in a boundary is read differently by different readers
        let boundary = if is_quoted(value) { value[1..value.len() - 1].to_vec() } else { value.clone() };
        let fits = (1..=70).contains(&boundary.len())
            && boundary.last() != Some(&b' ')
            && boundary.iter().all(|b| b.is_ascii_alphanumeric() || b"'()+_,-./:=? ".contains(b));
        fits.then_some(boundary)
    }
}

fn is_quoted(value: &[u8]) -> bool {
    value.len() >= 2 && value[0] == b'"' && value[value.len() - 1] == b'"'
}

/// Whether this is a lower-case type and subtype and nothing else: canonical already.
fn is_bare(value: &[u8]) -> bool {
    value.iter().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"/-.+".contains(b))
}

/// A `Content-Type` for the key: case-folded type and parameter names, no blanks, and no boundary when `form` says that the
/// body was read as a form. A value that does not parse comes back unchanged.
#[must_use]
pub fn content_type(value: &[u8], form: bool) -> Vec<u8> {
    if is_bare(value) {
        return value.to_vec();
    }
    let Some(media) = MediaType::parse(value) else { return value.to_vec() };
    let mut out = media.essence.into_bytes();
    for (name, value) in media.parameters {
        if form && name == "boundary" {
            continue;
        }
        out.push(b';');
        out.extend_from_slice(name.as_bytes());
        out.push(b'=');
        out.extend_from_slice(&value);
    }
    out
}

/// The query for the key, without the parameters that a route ignores. Nothing is decoded or sorted. `None` when nothing is
/// left of a query that held only ignored parameters, as if there had been no `?`.
#[must_use]
pub fn query(raw: &[u8], ignored: &[String]) -> Option<Vec<u8>> {
    if ignored.is_empty() {
        return Some(raw.to_vec());
    }
    let kept: Vec<&[u8]> = raw
        .split(|b| *b == b'&')
        .filter(|pair| {
            let name = pair.split(|b| *b == b'=').next().unwrap_or_default();
            !ignored.iter().any(|i| i.as_bytes() == name)
        })
        .collect();
    if kept.is_empty() { None } else { Some(kept.join(&b'&')) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn case_and_blanks_of_a_media_type_carry_no_meaning() {
        let canonical = content_type(b"application/octet-stream;charset=x", false);
        assert_eq!(content_type(b"Application/Octet-Stream ; Charset=x", false), canonical);
        assert_ne!(content_type(b"application/octet-stream", false), canonical);
        assert_ne!(content_type(b"application/octet-stream;charset=X", false), canonical);
    }

    #[test]
    fn the_boundary_is_keyed_unless_the_body_was_read_as_a_form() {
        assert_eq!(content_type(b"multipart/form-data; boundary=\"bb bb\"", true), b"multipart/form-data");
        assert_eq!(
            content_type(b"multipart/form-data; boundary=aa", false),
            b"multipart/form-data;boundary=aa"
        );
    }

    #[test]
    fn what_does_not_parse_is_keyed_as_it_came() {
        for odd in [
            &b"pdf"[..],
            b"",
            b"a/b; =1",
            b"a/b; x=\"y",
            b"a/b; x=y z",
            b"\xff/b",
            b"A/b;",
            b"A/b;  x=y",
            b"A/b;\tx=y",
        ] {
            assert_eq!(content_type(odd, true), odd);
        }
    }

    #[test]
    fn boundaries() {
        let of = |v: &[u8]| MediaType::parse(v).and_then(|m| m.form_boundary());
        assert_eq!(of(b"multipart/form-data; boundary=aaaa"), Some(b"aaaa".to_vec()));
        assert_eq!(of(b"Multipart/Form-Data; Boundary=\"bb bb\""), Some(b"bb bb".to_vec()));
        assert_eq!(of(b"multipart/form-data; boundary=a; boundary=b"), None);
        assert_eq!(of(b"multipart/form-data; boundary=\"a\\bc\""), None);
        assert_eq!(of(b"multipart/form-data"), None);
        assert_eq!(of(b"multipart/mixed; boundary=a"), None);
        assert_eq!(of(b"multipart/form-data; boundary=\"\""), None);
        assert_eq!(of(format!("multipart/form-data; boundary={}", "x".repeat(71)).as_bytes()), None);
    }

    #[test]
    fn ignored_parameters_leave_the_rest_as_it_was() {
        let ignored = ["_".to_owned(), "t".to_owned()];
        assert_eq!(query(b"api-version=1&pages=1&_=77", &ignored), Some(b"api-version=1&pages=1".to_vec()));
        assert_eq!(query(b"_=1", &ignored), None);
        assert_eq!(query(b"", &[]), Some(vec![]));
        assert_eq!(query(b"a=%2C&&t", &ignored), Some(b"a=%2C&".to_vec()));
    }
}
