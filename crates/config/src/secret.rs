//! Secrets come from the environment or from files, never from the configuration's text. Their bytes are in no message and
//! in no debug output; what is wrong with one is told by its reference.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};

use crate::checked::Secret;
use crate::problem::Findings;
use crate::raw::SecretRef;
use crate::raw::read::At;

/// The longest secret, in bytes.
pub const SECRET_MAX_BYTES: usize = 64 * 1024;

/// The shortest secret that signs (Standard Webhooks).
const SIGNING_MIN_BYTES: usize = 24;

/// What a secret that signs begins with where the rest of it is base64 (Standard Webhooks).
const SIGNING_PREFIX: &[u8] = b"whsec_";

/// The longest file of certificates or keys, in bytes; all authorities of a system take a quarter of a MiB.
pub const PEM_MAX_BYTES: usize = 4 * 1024 * 1024;

/// Where secrets are looked up.
pub trait SecretSource {
    /// The environment variable of this name; `None` when it is not set or not UTF-8.
    fn env(&self, name: &str) -> Option<String>;

    /// The content of a file, at most [`SECRET_MAX_BYTES`] and one more.
    ///
    /// # Errors
    /// When the file cannot be read.
    fn file(&self, path: &Path) -> io::Result<Vec<u8>>;
}

/// The environment of this process and the files of this machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct Process;

impl SecretSource for Process {
    fn env(&self, name: &str) -> Option<String> {
        std::env::var(name).ok()
    }

    fn file(&self, path: &Path) -> io::Result<Vec<u8>> {
        regular_file(path, SECRET_MAX_BYTES + 1)
    }
}

/// The first `most` bytes of a regular file, or of one that a link leads to. Pipes, sockets and devices are not opened: they can be
/// silent, or without an end, and a start must not wait for them.
///
/// # Errors
/// When it cannot be read; of the kind `Unsupported` when it is something else than a regular file.
pub fn regular_file(path: &Path, most: usize) -> io::Result<Vec<u8>> {
    // asked before it is opened: to open a pipe is to wait for its writer
    if !std::fs::metadata(path)?.is_file() {
        return Err(io::Error::new(io::ErrorKind::Unsupported, "not a regular file"));
    }
    let mut bytes = Vec::new();
    std::fs::File::open(path)?.take(most as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Looks nothing up: every reference gets a stand-in of its own. For `check` without `--resolve`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unresolved;

impl Unresolved {
    /// Differs by reference, so that two tenants with the same reference are still noticed.
    fn stand_in(kind: &str, name: &[u8]) -> String {
        let digest = Sha256::new().chain_update(kind).chain_update(name).finalize();
        digest.iter().fold(String::new(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
    }
}

impl SecretSource for Unresolved {
    fn env(&self, name: &str) -> Option<String> {
        Some(Self::stand_in("env:", name.as_bytes()))
    }

    fn file(&self, path: &Path) -> io::Result<Vec<u8>> {
        Ok(Self::stand_in("file:", path.as_os_str().as_encoded_bytes()).into_bytes())
    }
}

/// Secrets handed in, for tests and for programs that embed the gateway. Everything else is missing.
#[derive(Clone, Default)]
pub struct Given {
    env: BTreeMap<String, String>,
    files: BTreeMap<PathBuf, Vec<u8>>,
}

impl Given {
    /// With this environment variable too.
    #[must_use]
    pub fn with_env(mut self, name: &str, value: &str) -> Self {
        self.env.insert(name.to_owned(), value.to_owned());
        self
    }

    /// With this file too.
    #[must_use]
    pub fn with_file(mut self, path: impl Into<PathBuf>, content: impl Into<Vec<u8>>) -> Self {
        self.files.insert(path.into(), content.into());
        self
    }
}

impl SecretSource for Given {
    fn env(&self, name: &str) -> Option<String> {
        self.env.get(name).cloned()
    }

    fn file(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.files.get(path).cloned().ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

/// The names alone.
impl fmt::Debug for Given {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (env, files): (Vec<_>, Vec<_>) = (self.env.keys().collect(), self.files.keys().collect());
        f.debug_struct("Given").field("env", &env).field("files", &files).finish()
    }
}

/// What a secret is for, and so what it may be made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// The value of a header: visible ASCII and single blanks or tabs inside.
    HeaderValue,
    /// A token in a header: visible ASCII.
    Token,
    /// Bytes that key a hash.
    HashKey,
    /// Bytes that sign what others verify: `whsec_` and base64, or the bytes as they are.
    Signing,
    /// A password that is no header: any text of one line.
    Password,
}

/// Looks a reference up; `None` after a problem.
pub(crate) fn resolve(
    reference: &At<SecretRef>,
    purpose: Purpose,
    base: &Path,
    secrets: &dyn SecretSource,
    found: &mut Findings,
) -> Option<Secret> {
    let place = &reference.place;
    let (bytes, cure) = match &reference.value {
        SecretRef::Env(name) => {
            let Some(text) = secrets.env(name) else {
                let cause = format!("the environment variable {name} is not set");
                found.error(place, cause, "set it where the gateway is started");
                return None;
            };
            (text.into_bytes(), "give the environment variable a value")
        }
        SecretRef::File(path) => match secrets.file(&base.join(path)) {
            Ok(bytes) => (bytes, "write the secret into the file"),
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                let cause = "the file of the secret is not a regular file";
                found.error(place, cause, "write the secret into a file: pipes and devices are not read");
                return None;
            }
            Err(error) => {
                let cause = format!("the file of the secret cannot be read: {}", error.kind());
                found.error(
                    place,
                    cause,
                    "check the path (relative to the configuration file) and its rights",
                );
                return None;
            }
        },
    };
    if bytes.len() > SECRET_MAX_BYTES {
        found.error(
            place,
            format!("the secret has more than {SECRET_MAX_BYTES} bytes"),
            "is this the right file?",
        );
        return None;
    }
    let secret = without_newline(&bytes);
    if secret.trim_ascii().is_empty() {
        found.error(place, "the secret is empty or blank", cure);
        return None;
    }
    if secret.starts_with(b"${") && secret.ends_with(b"}") {
        found.error(place, "the secret is a `${...}` that nobody replaced", cure);
        return None;
    }
    let visible = |b: &u8| (0x21..=0x7e).contains(b);
    let fits = match purpose {
        Purpose::HashKey | Purpose::Signing => true,
        Purpose::Password => std::str::from_utf8(secret).is_ok_and(|text| !text.contains(char::is_control)),
        Purpose::Token => secret.iter().all(visible),
        Purpose::HeaderValue => {
            secret.iter().all(|b| visible(b) || b" \t".contains(b)) && secret == secret.trim_ascii()
        }
    };
    if !fits {
        let cause = match purpose {
            Purpose::Password => "the secret is not a text of one line",
            _ => {
                "the secret holds bytes that cannot be sent in a header: line ends, blanks at an end, or non-ASCII"
            }
        };
        found.error(place, cause, "remove what does not belong to it");
        return None;
    }
    if purpose == Purpose::HashKey && secret.len() < 16 {
        found.warning(
            place,
            "the secret has fewer than 16 bytes and can be guessed",
            "draw one with `openssl rand -hex 32`",
        );
    }
    let decoded = match secret.strip_prefix(SIGNING_PREFIX).filter(|_| purpose == Purpose::Signing) {
        None => None,
        Some(text) => match STANDARD.decode(text) {
            Ok(bytes) => Some(bytes),
            Err(_) => {
                let cause = "the secret begins with `whsec_`, and what follows is no base64";
                found.error(place, cause, "copy all of it, or take `whsec_` away to have its bytes sign");
                return None;
            }
        },
    };
    let secret = decoded.as_deref().unwrap_or(secret);
    if purpose == Purpose::Signing && secret.len() < SIGNING_MIN_BYTES {
        let cause = format!("the secret has fewer than {SIGNING_MIN_BYTES} bytes and can be guessed");
        found.error(place, cause, "draw one with `openssl rand -hex 32`");
        return None;
    }
    Some(Secret::new(secret.into()))
}

/// Editors and `echo` end a file with a newline that belongs to no secret.
fn without_newline(bytes: &[u8]) -> &[u8] {
    let bytes = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    bytes.strip_suffix(b"\r").unwrap_or(bytes)
}
