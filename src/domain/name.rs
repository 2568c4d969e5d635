//! Names that users choose, checked once at the edge and trusted inside.
//!
//! A tenant, a limit and a key never run together: each is a value of its own type, and nothing joins
//! them with a separator.

use std::borrow::Borrow;
use std::fmt;

use compact_str::CompactString;
use serde::Deserialize;
use serde::Deserializer;
use serde::Serialize;
use thiserror::Error;

/// The longest tenant or plan name, in bytes.
pub const TENANT_BYTES_MAX: usize = 128;
/// The longest limit name, in bytes.
pub const LIMIT_NAME_BYTES_MAX: usize = 64;
/// The longest key, in bytes.
pub const KEY_BYTES_MAX: usize = 512;

/// Why a text is not a name of the kind asked for.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum InvalidName {
    /// A tenant or plan name is out of shape.
    #[error("a {kind} is 1 to 128 bytes without control characters, and not \".\" or \"..\"")]
    Free {
        /// `tenant`, `plan` or `domain`.
        kind: &'static str,
    },
    /// A limit name is out of shape.
    #[error("a limit's name is 1 to 64 of a-z, 0-9, _ and -, and begins with a letter or a digit")]
    Limit,
    /// A key is empty or too long.
    #[error("a key is 1 to 512 bytes of UTF-8")]
    Key,
    /// A gateway profile's name is out of shape.
    #[error(
        "a profile's name is 1 to 64 of a-z, 0-9, _ and -, and begins with a letter or a digit"
    )]
    Profile,
    /// A region's name is out of shape.
    #[error("a region's name is 1 to 64 of a-z, 0-9 and -, and begins with a letter")]
    Region,
}

fn is_free_name(text: &str) -> bool {
    (1..=TENANT_BYTES_MAX).contains(&text.len())
        && text != "."
        && text != ".."
        && !text.chars().any(char::is_control)
}

/// Whether `text` is a limit's name: `[a-z0-9][a-z0-9_-]{0,63}`.
pub fn is_limit_name(text: &str) -> bool {
    (1..=LIMIT_NAME_BYTES_MAX).contains(&text.len())
        && text
            .bytes()
            .all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-'))
        && !text.starts_with(['_', '-'])
}

/// Whether `text` can be a counter's key: 1 to 512 bytes, any UTF-8, NUL too.
pub fn is_key(text: &str) -> bool {
    (1..=KEY_BYTES_MAX).contains(&text.len())
}

/// Whether `text` is a tenant's name.
pub fn is_tenant_name(text: &str) -> bool {
    is_free_name(text)
}

fn is_region_name(text: &str) -> bool {
    (1..=64).contains(&text.len())
        && text
            .bytes()
            .all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-'))
        && text.starts_with(|c: char| c.is_ascii_lowercase())
}

/// The limit that `CL.THROTTLE` counts under. Its amounts come with every call, so no catalogue defines it.
pub const CL_THROTTLE: LimitName = LimitName(CompactString::const_new("cl-throttle"));

macro_rules! name_type {
    ($(#[$doc:meta])* $name:ident, $check:expr, $error:expr) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
        #[serde(transparent)]
        pub struct $name(CompactString);

        impl $name {
            /// Checks `text` and makes it a name.
            ///
            /// # Errors
            /// When the text breaks the rule in the type's documentation.
            pub fn new(text: &str) -> Result<Self, InvalidName> {
                if $check(text) { Ok(Self(CompactString::new(text))) } else { Err($error) }
            }

            /// The name as text.
            pub fn as_str(&self) -> &str {
                self.0.as_str()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                self.0.as_str()
            }
        }

        impl std::str::FromStr for $name {
            type Err = InvalidName;

            fn from_str(text: &str) -> Result<Self, InvalidName> {
                Self::new(text)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = CompactString::deserialize(deserializer)?;
                Self::new(&text).map_err(serde::de::Error::custom)
            }
        }
    };
}

name_type!(
    /// A tenant: 1 to 128 bytes of UTF-8 without control characters, not `.` or `..`.
    TenantName, is_free_name, InvalidName::Free { kind: "tenant" }
);
name_type!(
    /// A plan (tier): shaped like a tenant's name.
    PlanName, is_free_name, InvalidName::Free { kind: "plan" }
);
name_type!(
    /// The domain that a gateway's requests name: shaped like a tenant's name.
    Domain, is_free_name, InvalidName::Free { kind: "domain" }
);
name_type!(
    /// A limit: `[a-z0-9][a-z0-9_-]{0,63}`.
    LimitName, is_limit_name, InvalidName::Limit
);
name_type!(
    /// A gateway profile: shaped like a limit's name.
    ProfileName, is_limit_name, InvalidName::Profile
);
name_type!(
    /// A counter's key: 1 to 512 bytes of UTF-8, compared byte for byte, NUL allowed.
    Key, is_key, InvalidName::Key
);
name_type!(
    /// A region: `[a-z][a-z0-9-]{0,63}`.
    RegionName, is_region_name, InvalidName::Region
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenants_keep_any_printable_text() {
        for good in [
            "a",
            "a:b",
            "a/b",
            "a%3Ab",
            "…",
            "日本",
            "a b",
            &"x".repeat(128),
        ] {
            assert!(TenantName::new(good).is_ok(), "{good}");
        }
        for bad in ["", ".", "..", "a\u{0}b", "a\nb", "\u{85}", &"x".repeat(129)] {
            assert!(TenantName::new(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn limits_are_lower_case_slugs() {
        for good in ["a", "0", "regional-api", "a_b", &"x".repeat(64)] {
            assert!(LimitName::new(good).is_ok(), "{good}");
        }
        for bad in ["", "-a", "_a", "A", "a b", "a:b", "ä", &"x".repeat(65)] {
            assert!(LimitName::new(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn keys_are_any_bytes_of_text_but_not_empty() {
        for good in [" ", "a|b", "a\u{0}b", "a", &"x".repeat(512)] {
            assert!(Key::new(good).is_ok(), "{good:?}");
        }
        assert!(Key::new("").is_err());
        assert!(Key::new(&"x".repeat(513)).is_err());
    }
}
