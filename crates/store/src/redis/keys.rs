//! The names of keys. All of a deployment share one hash tag, so they live in one slot of a cluster and a script may touch
//! all of them. No key is longer than the prefix and 72 bytes more, and none says anything of a document but its fingerprint.

use nevertwice_domain::fingerprint::Fingerprint;

/// The names under one prefix.
#[derive(Clone, Debug)]
pub(super) struct Keys {
    tag: String,
}

macro_rules! names {
    ($($(#[$doc:meta])* $name:ident = $word:literal;)*) => {$(
        $(#[$doc])*
        pub(super) fn $name(&self) -> String {
            format!(concat!("{}:", $word), self.tag)
        }
    )*};
}

macro_rules! names_by_key {
    ($($(#[$doc:meta])* $name:ident = $word:literal;)*) => {$(
        $(#[$doc])*
        pub(super) fn $name(&self, key: &Fingerprint) -> String {
            format!(concat!("{}:", $word, ":{}"), self.tag, key)
        }
    )*};
}

impl Keys {
    pub(super) fn new(prefix: &str) -> Self {
        Self { tag: format!("{{{prefix}}}") }
    }

    names_by_key! {
        /// A hash: head `m`, body `b`, expiry `x`, schema `c`, number `q`, suspect `s`, and the tally: `n`, `f`, `l`, `t`.
        entry = "e";
        /// The refusals in a row, until they make a verdict.
        strike = "s";
        /// Who makes the attempt.
        lease = "l";
    }

    names! {
        /// The number of the latest forget.
        epoch = "epoch";
        /// Forgets that name no single key, by their number.
        wide = "wide";
        /// Forgets of single keys, by their number.
        keyed = "keyed";
        /// The number of the latest forget that is remembered no more.
        floor = "floor";
        /// Fingerprints in the order of recording.
        index = "index";
        /// Fingerprints by when their entries expire.
        expiry = "expiry";
        /// The number of the latest record.
        seq = "seq";
        /// Fingerprints of strikes in the order of their latest change.
        strikes = "strikes";
        /// The number of the latest change of strikes.
        turn = "turn";
        /// Upstreams that accepted something.
        accepted = "accepted";
        /// Upstreams whose mass-refusal guard is on, and since when nothing is used.
        tripped = "tripped";
        /// The layout of all this.
        schema = "schema";
        /// The channel of what happens.
        events = "events";
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_keys_share_a_slot_and_none_is_long() {
        let keys = Keys::new("nevertwice");
        let key = Fingerprint::from_bytes([0xab; 32]);
        for name in [keys.entry(&key), keys.strike(&key), keys.lease(&key), keys.epoch(), keys.events()] {
            assert!(name.starts_with("{nevertwice}:") && name.len() <= 128, "{name}");
        }
        assert_eq!(keys.entry(&key), format!("{{nevertwice}}:e:{}", "ab".repeat(32)));
    }
}
