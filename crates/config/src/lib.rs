//! From the text of a configuration file to values that cannot be wrong.
//!
//! `load` turns text into `raw` (what people write), `check` turns that into [`checked`] (what the program uses) and
//! collects every problem with its place, [`secret`] resolves references to secrets. Nothing later in the program sees an
//! unset value or a text that still has to be parsed.
//!
//! All problems are told at once, with line, cause and cure, and no message holds a secret. Paths in a configuration are
//! relative to the folder of its file.

use std::fmt::Write as _;
use std::io::Read as _;
use std::net::SocketAddr;
use std::path::Path;

use sha2::{Digest, Sha256};

mod bounds;
mod check;
pub mod checked;
pub mod corpus;
mod load;
pub mod problem;
pub mod profiles;
mod raw;
pub mod schema;
pub mod secret;
mod tree;

use check::Context;
use checked::Checked;
use problem::{Findings, Place, Problem, Problems};
use profiles::Catalog;
use raw::read::{At, OneOrMany};
use secret::SecretSource;

pub use check::{DEFAULT_ADMIN, DEFAULT_LISTEN};

/// A configuration that holds.
#[derive(Debug)]
pub struct Loaded {
    /// The values.
    pub checked: Checked,
    /// What probably does not say what was meant.
    pub warnings: Vec<Problem>,
}

/// Reads and checks a configuration file.
///
/// # Errors
/// All problems of the file, or the one that it cannot be read.
pub fn read(path: &Path, secrets: &dyn SecretSource) -> Result<Loaded, Problems> {
    let text = text_of(path)?;
    let origin = path.display().to_string();
    load_and_check(&text, &origin, path.parent().unwrap_or(Path::new("")), secrets)
}

/// The text of a file, if it is a regular one of a bearable length.
fn text_of(path: &Path) -> Result<String, Problems> {
    let origin = path.display().to_string();
    let unreadable = |cause: String, cure: &str| Problems::whole(&origin, cause, cure);
    let io = |error: std::io::Error| {
        let cause = format!("the file cannot be read: {}", error.kind());
        unreadable(cause, "check the path and the rights of the file")
    };
    // opening a pipe would wait for whoever writes into it
    if !std::fs::metadata(path).map_err(io)?.is_file() {
        return Err(unreadable("this is not a regular file".to_owned(), "name a file"));
    }
    let mut bytes = Vec::new();
    let limit = load::TEXT_MAX_BYTES as u64 + 1;
    std::fs::File::open(path).and_then(|file| file.take(limit).read_to_end(&mut bytes)).map_err(io)?;
    if bytes.len() > load::TEXT_MAX_BYTES {
        let cause = format!("the file has more than {} bytes", load::TEXT_MAX_BYTES);
        return Err(unreadable(cause, "is this the right file?"));
    }
    String::from_utf8(bytes).map_err(|error| {
        let valid = error.utf8_error().valid_up_to();
        let line = error.as_bytes().iter().take(valid).filter(|b| **b == b'\n').count() + 1;
        unreadable(format!("line {line} is not UTF-8"), "save the file as UTF-8")
    })
}

/// Checks a configuration text. `origin` is named in messages; paths are relative to its folder.
///
/// # Errors
/// All problems of the text.
pub fn from_text(text: &str, origin: &str, secrets: &dyn SecretSource) -> Result<Loaded, Problems> {
    load_and_check(text, origin, Path::new(origin).parent().unwrap_or(Path::new("")), secrets)
}

fn load_and_check(
    text: &str,
    origin: &str,
    base: &Path,
    secrets: &dyn SecretSource,
) -> Result<Loaded, Problems> {
    let mut found = Findings::default();
    let checked = load::load(text, &mut found).and_then(|raw| {
        check::check(
            &raw,
            digest(text),
            &mut Context { base, secrets, found: &mut found, profiles: Catalog::default(), all_paths: false },
        )
    });
    finish(checked, found, origin)
}

/// The configuration of `serve --upstream URL`: the upstream `upstream` at mount `/` with the memory on every path, the
/// store in `./nevertwice-data`, no tenants, and the admin API on [`DEFAULT_ADMIN`].
///
/// # Errors
/// What is wrong with the URL, or with the addresses together.
pub fn for_upstream(url: &str, listen: SocketAddr, audit: Option<&Path>) -> Result<Checked, Problems> {
    let config = raw::Config {
        listen: Some(At::bare(
            "--listen",
            OneOrMany(vec![At::bare("--listen", raw::Listen::Address(listen.to_string()))]),
        )),
        admin: Some(At::bare("admin", raw::Admin::default())),
        audit: audit.map(|file| {
            let file = Some(At::bare("--audit", file.to_owned()));
            At::bare("audit", raw::Audit { file, ..raw::Audit::default() })
        }),
        negative_cache: Some(At::bare(
            "negative_cache",
            raw::NegativeCache { enabled: Some(At::bare("enabled", true)), ..raw::NegativeCache::default() },
        )),
        upstreams: Some(At::bare(
            "upstreams",
            vec![At::bare(
                "upstream",
                raw::Upstream {
                    name: Some(At::bare("name", "upstream".to_owned())),
                    base_url: Some(At::bare(
                        "--upstream",
                        OneOrMany(vec![At::bare("--upstream", url.to_owned())]),
                    )),
                    mount: Some(At::bare("mount", "/".to_owned())),
                    ..raw::Upstream::default()
                },
            )],
        )),
        ..raw::Config::default()
    };
    let mut found = Findings::default();
    let raw = At { value: config, place: Place::default() };
    let digest = digest(&format!("--upstream {url} --listen {listen}"));
    let mut cx = Context {
        base: Path::new(""),
        secrets: &secret::Process,
        found: &mut found,
        profiles: Catalog::default(),
        all_paths: true,
    };
    let checked = check::check(&raw, digest, &mut cx);
    finish(checked, found, "command line").map(|loaded| loaded.checked)
}

fn finish(checked: Option<Checked>, found: Findings, origin: &str) -> Result<Loaded, Problems> {
    match checked {
        Some(checked) if !found.refused() => Ok(Loaded { checked, warnings: found.sorted() }),
        _ => Err(Problems { origin: origin.to_owned(), all: found.sorted() }),
    }
}

/// The first 16 hex digits of the SHA-256.
fn digest(text: &str) -> String {
    Sha256::digest(text).iter().take(8).fold(String::new(), |mut out, byte| {
        let _ = write!(out, "{byte:02x}");
        out
    })
}
