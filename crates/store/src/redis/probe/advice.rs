//! What an error of the server means for whoever set it up: which setting it is about, and what to do.

use redis::{ErrorKind, RedisError, ServerErrorKind};

use super::About;

/// What to do about an error, where it is known.
pub(super) fn cure_of(error: &RedisError) -> Option<&'static str> {
    const OLD: &str = "it takes Redis 6.2 or newer, or Valkey";
    let cure = match error.kind() {
        ErrorKind::RESP3NotSupported => OLD,
        ErrorKind::AuthenticationFailed => "check `username` and `password`",
        ErrorKind::MasterNameNotFoundBySentinel => {
            "check the name of the primary in `url`, and that the sentinels are up"
        }
        _ => {
            let text = error.to_string();
            match error.code().unwrap_or_default() {
                "READONLY" | "MASTERDOWN" => {
                    "the server is a replica: write the address of the primary, or of the sentinels"
                }
                "OOM" => "raise `maxmemory` or lower `max_entries`",
                "MISCONF" | "NOREPLICAS" => {
                    "the server takes no writes as long as it cannot save or lacks replicas"
                }
                "LOADING" => "wait until the server has loaded its data",
                "NOAUTH" | "WRONGPASS" => "check `username` and `password`",
                "MOVED" | "ASK" | "CROSSSLOT" => {
                    "the server is one of a cluster: begin `url` with redis-cluster"
                }
                "CLUSTERDOWN" | "TRYAGAIN" => "the cluster is not complete",
                _ if text.contains("cluster support disabled") => {
                    "the server is not one of a cluster: begin `url` with redis://"
                }
                _ if text.contains("unknown command") && text.contains("HELLO") => OLD,
                _ if text.contains("NOAUTH") || text.contains("WRONGPASS") => {
                    "check `username` and `password`"
                }
                _ => return None,
            }
        }
    };
    Some(cure)
}

/// What of the settings an error speaks of.
pub(super) fn about(error: &RedisError) -> About {
    let text = error.to_string();
    if error.kind() == ErrorKind::AuthenticationFailed
        || text.contains("NOAUTH")
        || text.contains("WRONGPASS")
    {
        About::Login
    } else if lacks_right(error) {
        About::Rights
    } else {
        About::Server
    }
}

/// Whether the user may not do it.
pub(super) fn lacks_right(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoPerm)
}
