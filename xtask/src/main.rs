//! Checks of this repository that no ready-made tool does: `cargo run -p xtask -- check-layers`.

mod files;
mod layers;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

const USAGE: &str = "usage: cargo run -p xtask -- check-layers";

fn main() -> Result<ExitCode> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["check-layers"] => check_layers(),
        ["--help" | "-h"] => {
            writeln!(std::io::stdout(), "{USAGE}")?;
            Ok(ExitCode::SUCCESS)
        }
        _ => {
            writeln!(std::io::stderr(), "{USAGE}")?;
            Ok(ExitCode::from(2))
        }
    }
}

/// Prints every breach of the layer rules and the file rules; exit code 1 when there is one.
fn check_layers() -> Result<ExitCode> {
    let root = workspace_root()?;
    let mut problems = layers::problems(&cargo_metadata(&root)?)?;
    problems.extend(files::problems(&root)?);

    if problems.is_empty() {
        writeln!(std::io::stdout(), "layers and files are in order")?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut out = std::io::stderr().lock();
    for problem in &problems {
        writeln!(out, "{problem}")?;
    }
    writeln!(out, "{} problem(s); ARCHITECTURE.md says who may depend on whom", problems.len())?;
    Ok(ExitCode::FAILURE)
}

fn workspace_root() -> Result<PathBuf> {
    let Some(root) = Path::new(env!("CARGO_MANIFEST_DIR")).parent() else {
        bail!("xtask has no folder above it");
    };
    Ok(root.to_path_buf())
}

fn cargo_metadata(root: &Path) -> Result<Value> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--no-deps"])
        .current_dir(root)
        .output()
        .context("cannot start cargo metadata")?;
    ensure!(output.status.success(), "cargo metadata failed: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).context("cargo metadata printed something that is not JSON")
}
