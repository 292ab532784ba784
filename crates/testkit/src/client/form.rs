//! `multipart/form-data` bodies (RFC 7578), written as plainly as clients write them.

/// A part of a form.
#[derive(Clone, Copy, Debug, Default)]
pub struct Part<'a> {
    /// The name of the field.
    pub name: &'a str,
    /// The file name, written as it is between quotes.
    pub filename: Option<&'a str>,
    /// The media type of the part.
    pub content_type: Option<&'a str>,
    /// The content.
    pub content: &'a [u8],
    /// Further header lines of the part.
    pub extra_headers: &'a [(&'a str, &'a str)],
}

impl<'a> Part<'a> {
    /// A plain field.
    pub fn field(name: &'a str, value: &'a str) -> Self {
        Self { name, content: value.as_bytes(), ..Self::default() }
    }

    /// A file.
    pub fn file(name: &'a str, filename: &'a str, content_type: &'a str, content: &'a [u8]) -> Self {
        Self { name, filename: Some(filename), content_type: Some(content_type), content, extra_headers: &[] }
    }
}

/// The content type (its boundary quoted where it must be) and the body of a form.
pub fn multipart(boundary: &str, parts: &[Part<'_>]) -> (String, Vec<u8>) {
    let mut body = Vec::new();
    for part in parts {
        body.extend_from_slice(format!("--{boundary}\r\n").as_bytes());
        body.extend_from_slice(format!("Content-Disposition: form-data; name=\"{}\"", part.name).as_bytes());
        if let Some(filename) = part.filename {
            body.extend_from_slice(format!("; filename=\"{filename}\"").as_bytes());
        }
        body.extend_from_slice(b"\r\n");
        let media_type = part.content_type.map(|value| ("Content-Type", value));
        for (name, value) in media_type.iter().chain(part.extra_headers) {
            body.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
        }
        body.extend_from_slice(b"\r\n");
        body.extend_from_slice(part.content);
        body.extend_from_slice(b"\r\n");
    }
    body.extend_from_slice(format!("--{boundary}--\r\n").as_bytes());
    let is_token =
        boundary.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte));
    let quote = if is_token { "" } else { "\"" };
    (format!("multipart/form-data; boundary={quote}{boundary}{quote}"), body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_is_written_plainly() {
        let parts = [Part::file("file", "a.pdf", "application/pdf", b"%PDF"), Part::field("lang", "en")];
        let (content_type, body) = multipart("bb bb", &parts);
        assert_eq!(content_type, "multipart/form-data; boundary=\"bb bb\"");
        assert_eq!(
            String::from_utf8_lossy(&body),
            "--bb bb\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.pdf\"\r\n\
             Content-Type: application/pdf\r\n\r\n%PDF\r\n\
             --bb bb\r\nContent-Disposition: form-data; name=\"lang\"\r\n\r\nen\r\n--bb bb--\r\n"
        );
        assert_eq!(multipart("aaaa", &[]).0, "multipart/form-data; boundary=aaaa");
    }
}
