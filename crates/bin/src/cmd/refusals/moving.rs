//! What export and import share: the file's first line.

use serde::{Deserialize, Serialize};

use crate::exit::Failure;
use crate::lines::Line;

/// The version of the file's format.
const FORMAT: u32 = 1;
/// The longest line, in bytes: with it the body of an import stays within what the gateway takes.
pub(super) const LINE_MAX: usize = 24 * 1024 * 1024 - 1024;

/// The first line of a file.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Header {
    /// The version of the format; its name says what the file is.
    nevertwice_refusals: u32,
    /// The gateway that it comes from.
    pub(super) from: String,
    /// That gateway's version.
    version: String,
    /// When the export began.
    began_at: String,
}

impl Header {
    pub(super) fn new(from: String, version: &str, began_at: String) -> Self {
        Self { nevertwice_refusals: FORMAT, from, version: version.to_owned(), began_at }
    }

    pub(super) fn line(&self) -> Result<String, Failure> {
        serde_json::to_string(self).map_err(|e| Failure::failed(&format!("cannot write the first line: {e}")))
    }

    /// Reads the first line of `file`.
    pub(super) fn read(file: &str, line: Option<&Line>) -> Result<Self, Failure> {
        #[derive(Deserialize)]
        struct Format {
            nevertwice_refusals: u32,
        }
        let none = || {
            Failure::input(&format!(
                "{file} is no export of refusals: line 1 is not the one that they begin with"
            ))
        };
        let Some(Line::Whole(bytes)) = line else { return Err(none()) };
        let Format { nevertwice_refusals: format } = serde_json::from_slice(bytes).map_err(|_| none())?;
        if format != FORMAT {
            return Err(Failure::input(&format!(
                "line 1 of {file}: format {format}, and this version reads format {FORMAT}"
            )));
        }
        serde_json::from_slice(bytes).map_err(|_| none())
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "test")]

    use super::*;

    #[test]
    fn the_first_line_says_what_the_file_is() {
        let header = Header::new("http://gw:9090".into(), "0.1.0", "2026-01-31T12:00:00.000Z".into());
        let line = Line::Whole(header.line().unwrap().into());
        assert_eq!(Header::read("f", Some(&line)).unwrap().from, "http://gw:9090");
        for (line, part) in [
            (None, "f is no export"),
            (Some(Line::Whole("{\"fingerprint\":\"ab\"}".into())), "is no export"),
            (Some(Line::Whole(vec![0xff])), "is no export"),
            (Some(Line::TooLong), "is no export"),
            (Some(Line::Cut(header.line().unwrap().into())), "is no export"),
            (Some(Line::Whole("{\"nevertwice_refusals\":2,\"new\":1}".into())), "line 1 of f: format 2"),
        ] {
            let failure = Header::read("f", line.as_ref()).unwrap_err();
            assert!(failure.code == 2 && failure.message.contains(part), "{line:?}: {}", failure.message);
        }
    }
}
