//! What this binary is.

use nevertwice_admin::Version;
use nevertwice_domain::clock::Millis;

/// The version, with what a process adds to it: the digest of its configuration and its start.
pub fn version(config_digest: &str, started_at: Millis) -> Version {
    let seconds: i64 = env!("NEVERTWICE_BUILT").parse().unwrap_or(0);
    Version {
        version: env!("CARGO_PKG_VERSION").into(),
        commit: env!("NEVERTWICE_COMMIT").into(),
        built: Millis(seconds.saturating_mul(1000)),
        config_digest: config_digest.into(),
        started_at,
    }
}
