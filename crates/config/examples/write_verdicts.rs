//! Writes `docs/verdicts.md`.

use std::path::Path;

use nevertwice_config::corpus::Corpus;
use nevertwice_config::profiles::Catalog;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let corpus = Corpus::read(&root.join("profiles/corpus/upstream-errors.yaml"))?;
    std::fs::write(root.join("docs/verdicts.md"), corpus.judge(&Catalog::default()).markdown())?;
    Ok(())
}
