//! Writes `docs/config.schema.json` and `docs/config.md`.

use std::fs;
use std::path::Path;

fn main() -> std::io::Result<()> {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    fs::write(docs.join("config.schema.json"), nevertwice_config::schema::json_schema())?;
    fs::write(docs.join("config.md"), nevertwice_config::schema::markdown())
}
