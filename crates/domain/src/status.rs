//! Which statuses may ever be remembered. The rail is the type: a [`RefusalStatus`] is a 4xx other than 401, 403, 404, 408 and
//! 429, or the 200 of a failed operation, and nothing else can be constructed, so no store, no configuration built in code and
//! no stored value can hold another one. A configuration names 4xx alone: which 200 is a failed operation, only a profile can
//! tell.

use std::fmt;

use http::StatusCode;
use serde::{Serialize, Serializer};

/// A status that may be a verdict on a document: a 4xx off the rail, or the 200 of a failed operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RefusalStatus(u16);

/// Why a status can never be remembered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NeverRemembered {
    /// Only a 4xx can be a refusal, and a 200 where a profile finds in the body that the operation failed.
    #[error(
        "{0} is not a 4xx status: a refusal of the document is a 4xx, or a 200 in which a profile finds a failed operation"
    )]
    NotARefusal(u16),
    /// One of the five railed statuses.
    #[error("{status} is never remembered: {reason}")]
    Railed {
        /// The status.
        status: u16,
        /// What it speaks of instead of the document.
        reason: &'static str,
    },
}

/// The hard rail: what these statuses speak of instead of the document.
const RAIL: [(u16, &str); 5] = [
    (401, "it speaks of the credential, and a new credential would be refused from memory"),
    (403, "it speaks of a permission, and a granted permission would not be seen"),
    (404, "it speaks of the route or the model, which can appear at any moment"),
    (408, "it speaks of time: the same document may arrive in time next time"),
    (429, "it speaks of the rate: the same document is welcome a moment later"),
];

/// 4xx statuses that usually speak of something other than the document; allowed with a warning.
const DOUBTFUL: [(u16, &str); 14] = [
    (402, "it usually speaks of a balance"),
    (405, "it speaks of the method"),
    (407, "it speaks of a proxy's credential"),
    (409, "it speaks of a state at the upstream"),
    (411, "it speaks of the framing"),
    (412, "it speaks of a precondition"),
    (421, "it speaks of the connection"),
    (423, "it speaks of a lock"),
    (425, "it speaks of time"),
    (426, "it speaks of the protocol"),
    (428, "it speaks of a precondition"),
    (431, "it speaks of header sizes"),
    (451, "it speaks of the law, which may differ by caller"),
    (499, "it speaks of a client that left"),
];

impl RefusalStatus {
    /// A 4xx status, unless the rail forbids it.
    ///
    /// # Errors
    /// [`NeverRemembered`] says why not.
    pub fn new(status: u16) -> Result<Self, NeverRemembered> {
        if !(400..=499).contains(&status) {
            return Err(NeverRemembered::NotARefusal(status));
        }
        match RAIL.iter().find(|(railed, _)| *railed == status) {
            Some((_, reason)) => Err(NeverRemembered::Railed { status, reason }),
            None => Ok(Self(status)),
        }
    }

    /// The 200 of an upstream that says in the body that the operation failed. Only for where a profile found that, and for
    /// where such an entry is looked for: an answer's status alone never says it.
    #[must_use]
    pub fn failed_operation() -> Self {
        Self(StatusCode::OK.as_u16())
    }

    /// A status as entries and those who look for them have it: one of [`Self::new`], or that of [`Self::failed_operation`].
    ///
    /// # Errors
    /// [`NeverRemembered`] says why there is no entry with it.
    pub fn of_entry(status: u16) -> Result<Self, NeverRemembered> {
        if status == Self::failed_operation().0 { Ok(Self::failed_operation()) } else { Self::new(status) }
    }

    /// Whether it is that of [`Self::failed_operation`].
    #[must_use]
    pub fn is_failed_operation(self) -> bool {
        self == Self::failed_operation()
    }

    /// The number.
    #[must_use]
    pub fn get(self) -> u16 {
        self.0
    }

    /// The status for an HTTP message.
    #[must_use]
    pub fn status_code(self) -> StatusCode {
        StatusCode::from_u16(self.0).unwrap_or(StatusCode::BAD_REQUEST)
    }

    /// For a status that usually speaks of something other than the document: of what.
    #[must_use]
    pub fn doubt(self) -> Option<&'static str> {
        DOUBTFUL.iter().find(|(s, _)| *s == self.0).map(|(_, why)| *why)
    }
}

impl fmt::Display for RefusalStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Serialize for RefusalStatus {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u16(self.0)
    }
}

/// The 4xx statuses that an operator opted in to, in rising order, without doubles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusSet(Vec<RefusalStatus>);

impl StatusSet {
    /// The set of these statuses. That of a failed operation is left out: a set decides by the status alone, and would make a
    /// refusal of every success.
    #[must_use]
    pub fn new(statuses: impl IntoIterator<Item = RefusalStatus>) -> Self {
        let mut all: Vec<_> = statuses.into_iter().filter(|s| !s.is_failed_operation()).collect();
        all.sort_unstable();
        all.dedup();
        Self(all)
    }

    /// The status as a [`RefusalStatus`], if it is in the set.
    #[must_use]
    pub fn get(&self, status: StatusCode) -> Option<RefusalStatus> {
        self.0.iter().copied().find(|s| s.0 == status.as_u16())
    }

    /// Whether the status is in the set.
    #[must_use]
    pub fn contains(&self, status: RefusalStatus) -> bool {
        self.0.contains(&status)
    }

    /// The statuses in rising order.
    pub fn iter(&self) -> impl Iterator<Item = RefusalStatus> + '_ {
        self.0.iter().copied()
    }

    /// Whether no status is in the set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// 400, 413, 415 and 422.
impl Default for StatusSet {
    fn default() -> Self {
        Self([400, 413, 415, 422].map(RefusalStatus).to_vec())
    }
}

/// `[400 413 415 422]`, as the start-up log line has it.
impl fmt::Display for StatusSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (i, s) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str(" ")?;
            }
            s.fmt(f)?;
        }
        f.write_str("]")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rail_holds_for_every_status_there_is() {
        for status in 0..=1000 {
            let allowed = (400..=499).contains(&status) && ![401, 403, 404, 408, 429].contains(&status);
            assert_eq!(RefusalStatus::new(status).is_ok(), allowed, "{status}");
            assert_eq!(RefusalStatus::of_entry(status).is_ok(), allowed || status == 200, "{status}");
            let of_entry = RefusalStatus::of_entry(status);
            assert!(
                of_entry.is_err() || of_entry.is_ok_and(|s| s.get() == status && s.status_code() == status)
            );
        }
    }

    #[test]
    fn no_set_opts_in_to_a_200() {
        let failed = RefusalStatus::failed_operation();
        let set = StatusSet::new(StatusSet::default().iter().chain([failed]));
        assert_eq!(set, StatusSet::default());
        assert!(!set.contains(failed) && set.get(StatusCode::OK).is_none());
        assert!(failed.is_failed_operation() && set.iter().all(|s| !s.is_failed_operation()));
    }

    #[test]
    fn the_default_set_prints_as_the_start_up_line_has_it() {
        assert_eq!(StatusSet::default().to_string(), "[400 413 415 422]");
        assert!(StatusSet::default().get(StatusCode::UNAUTHORIZED).is_none());
    }
}
