//! Every way a request can end has its page in `docs/outcomes`, and there is no page without a code.

use std::collections::BTreeSet;
use std::error::Error;
use std::fs;
use std::path::PathBuf;

use nevertwice_domain::outcome::OwnCode;

/// Codes that stand for a family of outcomes.
const FAMILIES: [&str; 5] = ["OK", "HTTP_nnn", "FAILED_HTTP_200", "REFUSED_HTTP_nnn", "HELD_HTTP_nnn"];

fn pages() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/outcomes")
}

fn codes() -> BTreeSet<String> {
    let own = OwnCode::ALL.iter().map(|code| code.name());
    FAMILIES.into_iter().chain(own).map(str::to_owned).collect()
}

#[test]
fn every_code_has_a_page_and_every_page_a_code() -> Result<(), Box<dyn Error>> {
    let mut found = BTreeSet::new();
    for file in fs::read_dir(pages())? {
        let name = file?.file_name().to_string_lossy().into_owned();
        match name.strip_suffix(".md") {
            Some("README") => {}
            Some(code) => {
                found.insert(code.to_owned());
            }
            None => return Err(format!("{name} in docs/outcomes is not a page").into()),
        }
    }
    assert_eq!(found, codes());
    Ok(())
}

#[test]
fn a_page_names_its_code_and_says_what_the_program_says() -> Result<(), Box<dyn Error>> {
    for code in codes() {
        let text = fs::read_to_string(pages().join(format!("{code}.md")))?;
        assert!(text.starts_with(&format!("# {code}\n")), "{code}.md begins with its code");
        for part in
            ["What happened.", "Who sees it.", "Caller.", "Operator.", "Sent upstream?", "Remembered?"]
        {
            assert!(text.contains(&format!("\n**{part}** ")), "{code}.md lacks {part:?}");
        }
    }
    for code in OwnCode::ALL {
        let text = fs::read_to_string(pages().join(format!("{}.md", code.name())))?;
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(
            text.to_lowercase().contains(&format!("status {}", code.status())),
            "{code:?}: its page lacks the status"
        );
        // they never reach a caller, so their pages quote nothing
        if ![OwnCode::ClientAborted, OwnCode::JobCancelled].contains(code) {
            assert!(text.contains(&format!("\"{}\"", code.title())), "{code:?}: its page lacks the title");
        }
    }
    Ok(())
}

#[test]
fn the_index_lists_every_page() -> Result<(), Box<dyn Error>> {
    let index = fs::read_to_string(pages().join("README.md"))?;
    for code in codes() {
        assert!(index.contains(&format!("| [`{code}`]({code}.md) |")), "the index lacks {code}");
    }
    Ok(())
}
