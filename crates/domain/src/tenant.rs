//! Who is asking: tenants, their keys and the names of upstreams.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// Why a text is no valid name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a name has 1 to 64 characters out of letters, digits, `_`, `-` and `.`")]
pub struct InvalidName;

fn valid_name(text: &str) -> bool {
    (1..=64).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-.".contains(&b))
}

macro_rules! name_type {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// The name, if it has 1 to 64 characters out of letters, digits, `_`, `-` and `.`.
            ///
            /// # Errors
            /// [`InvalidName`] otherwise: names become metric labels, audit fields and parts of keys.
            pub fn new(text: &str) -> Result<Self, InvalidName> {
                if valid_name(text) { Ok(Self(text.into())) } else { Err(InvalidName) }
            }

            /// The name as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?}", &self.0)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = std::borrow::Cow::<str>::deserialize(deserializer)?;
                Self::new(&text).map_err(serde::de::Error::custom)
            }
        }
    };
}

name_type! {
    /// The id of an authenticated caller of the gateway.
    TenantId
}
name_type! {
    /// The name of a service that the gateway calls.
    UpstreamName
}

impl TenantId {
    /// The one tenant of a gateway that is configured without any.
    #[must_use]
    pub fn anonymous() -> Self {
        Self("default".into())
    }
}

/// The SHA-256 of a tenant's key. The key itself is never kept.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct KeyHash([u8; 32]);

impl KeyHash {
    /// The hash of a presented or configured key.
    #[must_use]
    pub fn of(key: &[u8]) -> Self {
        Self(Sha256::digest(key).into())
    }

    /// From 64 hex digits, as `key_sha256` in the configuration.
    #[must_use]
    pub fn from_hex(text: &str) -> Option<Self> {
        crate::fingerprint::parse_hex32(text).map(Self)
    }

    /// Compares in constant time.
    #[must_use]
    pub fn matches(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

/// A hash of a secret is not printed either: it would let a reader test guesses.
impl fmt::Debug for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyHash(…)")
    }
}

/// Whose refusals a caller may be answered from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// Every tenant of this gateway: three attempts from three tenants make one upstream call.
    Fleet,
    /// This tenant alone.
    Tenant(TenantId),
    /// A named group of tenants that trust each other.
    Domain(Arc<str>),
}

impl Scope {
    /// Whether the scope of this text form is one tenant's own.
    #[must_use]
    pub fn is_one_tenant_s(text: &str) -> bool {
        text.starts_with("tenant:")
    }
}

/// The form that is hashed into the key and stored in the entry: `fleet`, `tenant:NAME` or `domain:NAME`.
impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fleet => f.write_str("fleet"),
            Self::Tenant(t) => write!(f, "tenant:{t}"),
            Self::Domain(d) => write!(f, "domain:{d}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_safe_as_labels() {
        assert!(TenantId::new("dev_1").is_ok());
        for bad in ["", "a b", "a\tb", "ü", "a/b", &"x".repeat(65)] {
            assert_eq!(TenantId::new(bad), Err(InvalidName), "{bad:?}");
        }
    }

    #[test]
    fn a_scope_of_one_tenant_is_known_by_its_text() {
        let own = |scope: Scope| Scope::is_one_tenant_s(&scope.to_string());
        assert!(own(Scope::Tenant(TenantId::anonymous())));
        assert!(!own(Scope::Fleet) && !own(Scope::Domain("tenant".into())));
    }

    #[test]
    fn a_key_hash_does_not_print() {
        assert_eq!(format!("{:?}", KeyHash::of(b"secret")), "KeyHash(…)");
    }
}
