//! PDF: lopdf loads the file, then every operation on every page is read. A file that only needs its
//! cross-reference table repaired is accepted, as viewers do; a page whose content breaks off is not.

use lopdf::content::Content;
use lopdf::{DecompressError, Document, Error, LoadOptions, ObjectId};

use super::{Repaired, Report};
use crate::refusal::Refusal;

/// The most that one stream of the file's structure may inflate to, in bytes.
const STREAM_LIMIT: usize = 64 * 1024 * 1024;

/// The most that the content of one page may inflate to, in bytes. The parser holds all operands of one
/// operation at once, at many times their size.
const PAGE_CONTENT_LIMIT: usize = 8 * 1024 * 1024;

/// The most that the content of all pages together may inflate to, in bytes.
const CONTENT_LIMIT: usize = 64 * 1024 * 1024;

/// The most pages of one document.
const PAGE_LIMIT: usize = 10_000;

/// The most operations on all pages together.
const OPERATION_LIMIT: usize = 2_000_000;

/// Put behind each page's content: the parser stops silently at what it cannot read, so content is whole
/// only if the parser gets to see this operator, and sees it without operands left over.
const END_OF_PAGE: &str = "EndOfPage";

/// Every content operator of ISO 32000-2, annex A.
const OPERATORS: [&str; 73] = [
    "\"", "'", "B", "B*", "BDC", "BI", "BMC", "BT", "BX", "CS", "DP", "Do", "EI", "EMC", "ET", "EX", "F",
    "G", "ID", "J", "K", "M", "MP", "Q", "RG", "S", "SC", "SCN", "T*", "TD", "TJ", "TL", "Tc", "Td", "Tf",
    "Tj", "Tm", "Tr", "Ts", "Tw", "Tz", "W", "W*", "b", "b*", "c", "cm", "cs", "d", "d0", "d1", "f", "f*",
    "g", "gs", "h", "i", "j", "k", "l", "m", "n", "q", "re", "rg", "ri", "s", "sc", "scn", "sh", "v", "w",
    "y",
];

pub(super) fn inspect(file: &[u8]) -> Result<Report, Refusal> {
    let options = LoadOptions::with_max_decompressed_size(STREAM_LIMIT);
    let document = Document::load_mem_with_options(file, options).map_err(|error| load_refusal(&error))?;
    if document.was_encrypted() || document.is_encrypted() {
        return Err(encrypted());
    }

    let mut pages = 0;
    let mut bytes_left = CONTENT_LIMIT;
    let mut operations_left = OPERATION_LIMIT;
    for page in document.page_iter() {
        pages += 1;
        if pages > PAGE_LIMIT {
            return Err(Refusal::unprocessable(format_args!("the pdf has more than {PAGE_LIMIT} pages")));
        }
        let content = page_content(&document, page, pages, bytes_left.min(PAGE_CONTENT_LIMIT))?;
        bytes_left = bytes_left.saturating_sub(content.len());
        operations_left = walk(content, pages, operations_left)?;
    }
    if pages == 0 {
        return Err(Refusal::unprocessable("the pdf has no pages"));
    }

    let repaired = if document.xref_recovery.is_some() { Repaired::Yes } else { Repaired::No };
    Ok(Report::Pdf { version: document.version, pages, repaired })
}

/// The content of one page, its streams joined; `number` counts pages from 1.
fn page_content(
    document: &Document,
    page: ObjectId,
    number: usize,
    budget: usize,
) -> Result<Vec<u8>, Refusal> {
    if document.get_dictionary(page).is_err() {
        return Err(Refusal::corrupt(format_args!("page {number} does not load")));
    }
    let mut content = Vec::new();
    for id in document.get_page_contents(page) {
        let stream = document.get_object(id).and_then(|object| object.as_stream()).map_err(|error| {
            Refusal::corrupt(format_args!("the content of page {number} does not load: {error}"))
        })?;
        let left = budget.saturating_sub(content.len());
        let plain = stream.decompressed_content_with_limit(left).map_err(|error| match error {
            Error::Decompress(DecompressError::MemoryLimitExceeded { .. }) => too_much_content(),
            Error::Unimplemented(_) => {
                Refusal::unprocessable(format_args!("page {number} uses a filter that is not supported"))
            }
            error => Refusal::corrupt(format_args!("the content of page {number} does not inflate: {error}")),
        })?;
        // lopdf keeps what it got before an inflate error; nothing at all means that nothing was readable.
        if plain.is_empty() && !stream.content.is_empty() {
            return Err(Refusal::corrupt(format_args!("the content of page {number} does not inflate")));
        }
        content.extend_from_slice(&plain);
        content.push(b'\n');
    }
    Ok(content)
}

/// Reads every operation of one page, at most `budget` of them; returns what is left of the budget.
fn walk(mut content: Vec<u8>, number: usize, budget: usize) -> Result<usize, Refusal> {
    content.push(b'\n');
    content.extend_from_slice(END_OF_PAGE.as_bytes());
    let broken = || Refusal::corrupt(format_args!("the content of page {number} is broken"));
    let mut ended = false;
    let mut left = budget;
    // Between BX and EX a reader skips what it does not know (ISO 32000-2, 7.8.2).
    let mut lenient_sections: usize = 0;
    for operation in Content::decode_iter(&content) {
        let operation = operation.map_err(|_error| broken())?;
        if ended {
            return Err(broken());
        }
        left = left.checked_sub(1).ok_or_else(too_much_content)?;
        match operation.operator.as_str() {
            END_OF_PAGE if operation.operands.is_empty() => ended = true,
            END_OF_PAGE => return Err(broken()),
            "BX" => lenient_sections += 1,
            "EX" => lenient_sections = lenient_sections.saturating_sub(1),
            known if OPERATORS.binary_search(&known).is_ok() => {}
            _ if lenient_sections > 0 => {}
            _ => return Err(Refusal::corrupt(format_args!("page {number} has an unknown operator"))),
        }
    }
    if ended { Ok(left) } else { Err(broken()) }
}

fn load_refusal(error: &Error) -> Refusal {
    match error {
        Error::Decryption(_) | Error::InvalidPassword | Error::UnsupportedSecurityHandler(_) => encrypted(),
        Error::Decompress(DecompressError::MemoryLimitExceeded { .. }) => {
            Refusal::unprocessable("the pdf inflates to more than can be processed")
        }
        error => Refusal::corrupt(format_args!("the pdf does not load: {error}")),
    }
}

fn too_much_content() -> Refusal {
    Refusal::unprocessable("the content of the pages is too large to process")
}

fn encrypted() -> Refusal {
    Refusal::unprocessable("the pdf is encrypted")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(content: &[u8]) -> Result<(), String> {
        walk(content.to_vec(), 1, 10).map(|_left| ()).map_err(|refusal| refusal.message)
    }

    #[test]
    fn whole_content_passes() {
        for content in
            [&b""[..], b"q 1 0 0 1 0 0 cm Q\n", b"BT (text) Tj ET", b"q % comment\n Q", b"BX foo EX q Q"]
        {
            assert_eq!(verdict(content), Ok(()));
        }
    }

    #[test]
    fn broken_content_is_refused() {
        let broken = Err("the content of page 1 is broken".to_owned());
        let unknown = Err("page 1 has an unknown operator".to_owned());
        assert_eq!(verdict(b"q (open string Tj"), broken);
        assert_eq!(verdict(b"q )) Q"), broken);
        assert_eq!(verdict(b"BI /W 8 /H 8 /BPC 8 /CS /G ID x"), broken);
        assert_eq!(verdict(b"EndOfPage q"), broken);
        assert_eq!(verdict(b"1 2 3"), broken);
        assert_eq!(verdict(b"q potato Q"), unknown);
    }

    #[test]
    fn content_beyond_the_limit_is_unprocessable() {
        assert_eq!(verdict(&b"q ".repeat(9)), Ok(()));
        assert_eq!(verdict(&b"q ".repeat(10)), Err(too_much_content().message));
    }

    #[test]
    fn the_operators_can_be_searched() {
        assert!(OPERATORS.is_sorted());
    }
}
