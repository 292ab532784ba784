//! The process: finding the binary, starting, signalling, ending.

use std::collections::hash_map::RandomState;
use std::fs::{File, OpenOptions};
use std::hash::BuildHasher;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Output, Stdio};
use std::time::Duration;

/// The file that takes standard error.
pub(super) const STDERR: &str = "stderr.log";
/// The file that takes standard output.
pub(super) const STDOUT: &str = "stdout.log";
/// How long a command that should end by itself may run.
const RUN: Duration = Duration::from_secs(60);

/// The binary under test: the given one, else `NEVERTWICE_BIN`, else the debug build of the workspace.
pub(super) fn binary(given: Option<&Path>) -> Result<PathBuf, String> {
    let path = given
        .map(Path::to_owned)
        .or_else(|| std::env::var_os("NEVERTWICE_BIN").map(PathBuf::from))
        .unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/debug/nevertwice"));
    // Commands run in other directories than the test.
    path.canonicalize().map_err(|error| {
        format!(
            "no binary at {} ({error}); build it with `cargo build -p nevertwice` or set NEVERTWICE_BIN",
            path.display()
        )
    })
}

/// Two addresses of 127.0.0.1 that nobody listens on now. They are below the range from which the system takes
/// the ports of outgoing connections and of listeners without a fixed one, so other tests seldom get in between.
pub(super) fn free_addresses() -> Result<[SocketAddr; 2], String> {
    // A fresh RandomState is seeded at random; that is all the chance needed here.
    let start = RandomState::new().hash_one(std::process::id());
    let mut found = Vec::new();
    for step in 0..1_000 {
        let port = 18_000 + u16::try_from(start.wrapping_add(step * 7) % 14_000).unwrap_or_default();
        let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        if let Ok(held) = TcpListener::bind(addr) {
            found.push((held, addr));
        }
        if let [(_, first), (_, second)] = found[..] {
            return Ok([first, second]);
        }
    }
    Err("no free ports".to_owned())
}

/// The text of a file, empty if there is none.
pub(super) fn read(path: &Path) -> String {
    std::fs::read(path).map_or_else(|_| String::new(), |bytes| String::from_utf8_lossy(&bytes).into_owned())
}

pub(super) struct Child {
    process: std::process::Child,
}

impl Child {
    pub(super) fn spawn(
        binary: &Path,
        args: &[&str],
        env: &[(String, String)],
        dir: &Path,
    ) -> Result<Self, String> {
        let process = Command::new(binary)
            .args(args)
            .envs(env.iter().map(|(name, value)| (name, value)))
            .current_dir(dir)
            .stdin(Stdio::null())
            .stdout(appended(&dir.join(STDOUT))?)
            .stderr(appended(&dir.join(STDERR))?)
            .spawn()
            .map_err(|error| format!("cannot start {}: {error}", binary.display()))?;
        Ok(Self { process })
    }

    pub(super) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// The exit status, once it has ended.
    pub(super) fn ended(&mut self) -> Option<ExitStatus> {
        self.process.try_wait().unwrap_or_else(|error| panic!("gateway: cannot ask for its status: {error}"))
    }

    pub(super) fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([&format!("-{name}"), &self.pid().to_string()]).status();
        if !sent.as_ref().is_ok_and(ExitStatus::success) {
            panic!("gateway: cannot send {name} to {}: {sent:?}", self.pid());
        }
    }

    /// A number of KiB that the system knows about the process.
    pub(super) fn memory_kib(&self, name: &str) -> u64 {
        let status = read(Path::new(&format!("/proc/{}/status", self.pid())));
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.and_then(|rest| rest.trim().trim_end_matches(" kB").parse().ok())
            .unwrap_or_else(|| panic!("gateway: process {} tells no {name}: {status}", self.pid()))
    }

    /// How many files in this folder it has open, with a name or without.
    pub(super) fn open_files(&self, folder: &Path) -> usize {
        let fds = std::fs::read_dir(format!("/proc/{}/fd", self.pid()))
            .unwrap_or_else(|error| panic!("gateway: process {} tells no files: {error}", self.pid()));
        // one that is closed meanwhile is none
        fds.flatten().filter_map(|fd| fd.path().read_link().ok()).filter(|to| to.starts_with(folder)).count()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // Both fail only for a process that has ended and was waited for.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn appended(path: &Path) -> Result<File, String> {
    OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .map_err(|error| format!("cannot open {}: {error}", path.display()))
}

/// Runs the binary to its end and collects what it wrote.
pub(super) async fn run(
    binary: &Path,
    args: &[&str],
    env: &[(String, String)],
    dir: &Path,
) -> Result<Output, String> {
    let output = tokio::process::Command::new(binary)
        .args(args)
        .envs(env.iter().map(|(name, value)| (name, value)))
        .current_dir(dir)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    match tokio::time::timeout(RUN, output).await {
        Ok(output) => output.map_err(|error| error.to_string()),
        Err(_) => Err(format!("did not end within {RUN:?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_free_and_differ() {
        let found = free_addresses();
        assert!(
            matches!(found, Ok([first, second]) if first != second && TcpListener::bind(first).is_ok()),
            "{found:?}"
        );
    }
}
