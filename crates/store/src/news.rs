//! What the processes that share a store tell each other about upstreams, so that the mass-refusal guard is the fleet's and not
//! each process's. It is hearsay: a process that missed some of it judges by what it saw itself.

use nevertwice_domain::clock::Millis;
use nevertwice_domain::tenant::UpstreamName;

/// A piece of news from another process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// A document was judged.
    Judged {
        /// By this upstream.
        upstream: UpstreamName,
        /// What the guard counts it as: of an acceptance the fingerprint, of a refusal the digest of the document.
        document: [u8; 32],
        /// Whether it was refused.
        refused: bool,
    },
    /// The guard of this upstream is on.
    Tripped {
        /// The upstream.
        upstream: UpstreamName,
        /// What was recorded from then on is not used.
        since: Millis,
    },
    /// The guard of this upstream is off again: it accepted something, or an operator said so.
    Recovered {
        /// The upstream.
        upstream: UpstreamName,
    },
}
