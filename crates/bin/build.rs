//! Puts the commit and the day of the build into the binary, for `nevertwice version`.

use std::process::Command;

fn main() {
    let commit = std::env::var("NEVERTWICE_COMMIT").ok().or_else(|| {
        let out = Command::new("git").args(["rev-parse", "--short=12", "HEAD"]).output().ok()?;
        out.status.success().then(|| String::from_utf8_lossy(&out.stdout).trim().to_owned())
    });
    println!("cargo:rustc-env=NEVERTWICE_COMMIT={}", commit.as_deref().unwrap_or("unknown"));
    let epoch = std::env::var("SOURCE_DATE_EPOCH").ok().and_then(|s| s.parse().ok()).or_else(|| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).ok()?;
        Some(now.as_secs())
    });
    println!("cargo:rustc-env=NEVERTWICE_BUILT={}", epoch.unwrap_or(0));
    println!("cargo:rerun-if-env-changed=NEVERTWICE_COMMIT");
    println!("cargo:rerun-if-env-changed=SOURCE_DATE_EPOCH");
    println!("cargo:rerun-if-changed=../../.git/HEAD");
    println!("cargo:rerun-if-changed=../../.git/logs/HEAD");
}
