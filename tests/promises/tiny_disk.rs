//! A tiny file system of its own, so that a disk can be full.

use std::path::PathBuf;
use std::process::Command;

/// A file system in memory, which only root can mount.
pub struct Tiny(tempfile::TempDir);

impl Tiny {
    /// One of this size; `None`, and a word about it, where none can be mounted.
    #[expect(clippy::print_stderr, reason = "a test that cannot run says so")]
    pub fn mount(kib: u32) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap_or_else(|error| unreachable!("{error}"));
        let size = format!("size={kib}k");
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(dir.path()).status();
        if mounted.is_ok_and(|status| status.success()) {
            return Some(Self(dir));
        }
        eprintln!("skipped: no file system can be mounted here");
        None
    }

    /// A path on it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

impl Drop for Tiny {
    fn drop(&mut self) {
        // What stays mounted is a few KiB; there is nobody to tell.
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}
