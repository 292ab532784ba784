//! Looks at one document: finds its kind by its first bytes and has the parser of that kind read all of
//! it. Pure and deterministic; may be slow and may panic inside a parser, so callers run it apart.

mod pdf;
mod picture;

use image::ImageFormat;
use serde_json::{Value, json};

use crate::refusal::{Code, Refusal};

/// Readers accept a PDF header after leading junk, within this many bytes.
const PDF_HEADER_WINDOW: usize = 1024;

/// What a good document is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Report {
    Pdf { version: String, pages: usize, repaired: Repaired },
    Picture { kind: &'static str, width: u32, height: u32 },
}

/// Whether the cross-reference table of a PDF had to be repaired to read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Repaired {
    Yes,
    No,
}

impl Report {
    /// The report as the answer's JSON; `bytes` is the length of the document.
    pub(crate) fn to_json(&self, bytes: usize) -> Value {
        match self {
            Self::Pdf { version, pages, repaired } => json!({
                "kind": "pdf", "pages": pages, "version": version,
                "repaired": *repaired == Repaired::Yes, "bytes": bytes,
            }),
            Self::Picture { kind, width, height } => {
                json!({ "kind": kind, "width": width, "height": height, "bytes": bytes })
            }
        }
    }
}

/// Reads the whole document.
pub(crate) fn inspect(document: &[u8]) -> Result<Report, Refusal> {
    if document.is_empty() {
        return Err(Refusal::corrupt("the document is empty"));
    }
    match kind_of(document) {
        Some(Kind::Pdf) => pdf::inspect(document),
        Some(Kind::Picture(name, format)) => picture::inspect(document, name, format),
        None => {
            Err(Refusal::new(Code::UnsupportedMediaType, "the document is neither a pdf nor a known picture"))
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Pdf,
    Picture(&'static str, ImageFormat),
}

fn kind_of(document: &[u8]) -> Option<Kind> {
    let kind = match document {
        [0x89, b'P', b'N', b'G', ..] => Kind::Picture("png", ImageFormat::Png),
        [0xff, 0xd8, 0xff, ..] => Kind::Picture("jpeg", ImageFormat::Jpeg),
        [b'G', b'I', b'F', b'8', ..] => Kind::Picture("gif", ImageFormat::Gif),
        [b'B', b'M', ..] => Kind::Picture("bmp", ImageFormat::Bmp),
        [b'I', b'I', 42 | 43, 0, ..] | [b'M', b'M', 0, 42 | 43, ..] => {
            Kind::Picture("tiff", ImageFormat::Tiff)
        }
        [b'P', b'1'..=b'7', space, ..] if space.is_ascii_whitespace() => {
            Kind::Picture("pnm", ImageFormat::Pnm)
        }
        other => {
            let start = other.get(..PDF_HEADER_WINDOW).unwrap_or(other);
            start.windows(5).any(|window| window == b"%PDF-").then_some(Kind::Pdf)?
        }
    };
    Some(kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kind_shows_in_the_first_bytes() {
        let names = |document: &[u8]| match kind_of(document) {
            Some(Kind::Pdf) => "pdf",
            Some(Kind::Picture(name, _)) => name,
            None => "none",
        };
        assert_eq!(names(b"\x89PNG\r\n\x1a\n"), "png");
        assert_eq!(names(b"\xff\xd8\xff\xe0"), "jpeg");
        assert_eq!(names(b"GIF89a"), "gif");
        assert_eq!(names(b"BM\0\0"), "bmp");
        assert_eq!(names(b"II*\0"), "tiff");
        assert_eq!(names(b"MM\0*"), "tiff");
        assert_eq!(names(b"P6 1 1 255 abc"), "pnm");
        assert_eq!(names(b"%PDF-1.7"), "pdf");
        assert_eq!(names(b"\r\njunk\r\n%PDF-1.7"), "pdf");
        assert_eq!(names(b"PK\x03\x04"), "none");
        assert_eq!(names(b"P"), "none");
        assert_eq!(names(&[&[b' '; PDF_HEADER_WINDOW][..], b"%PDF-1.7"].concat()), "none");
    }

    #[test]
    fn an_empty_document_is_corrupt() {
        assert_eq!(inspect(b"").map_err(|refusal| refusal.code), Err(Code::CorruptDocument));
    }
}
