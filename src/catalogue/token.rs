//! Access tokens as the catalogue keeps them: what each may do, and the hash by which it is recognised.
//!
//! The secret itself never comes here. Whoever makes a token draws the random part, shows it once and
//! hands over its SHA-256; whoever checks one hashes what was presented. A fast hash is right: the secret
//! has far too many bits to be guessed.

use std::fmt;
use std::sync::Arc;

use hashbrown::HashMap;
use serde::Deserialize;
use serde::Deserializer;
use serde::Serialize;
use serde::Serializer;
use serde::de::Error;
use subtle::ConstantTimeEq;
use utoipa::ToSchema;

use crate::catalogue::sharded::FixedState;
use crate::domain::name::TenantName;
use crate::domain::time::Timestamp;

/// Most tokens that are kept, expired ones included until their place is needed.
pub const TOKENS_MAX: usize = 10_000;
/// The longest token id, in bytes.
pub const TOKEN_ID_BYTES_MAX: usize = 64;

/// What a token may do.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// Everything.
    Admin,
    /// Reading what the admin API shows.
    Read,
    /// Its tenant's limits and overrides, up to what plan and administrator have set.
    Tenant,
    /// The check API; of one tenant when the token names one.
    Check,
}

impl Scope {
    /// The scope as it is written.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Admin => "admin",
            Self::Read => "read",
            Self::Tenant => "tenant",
            Self::Check => "check",
        }
    }
}

/// SHA-256 of a token's text.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TokenHash(pub [u8; 32]);

impl fmt::Display for TokenHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for TokenHash {
    /// The first bytes only, enough to tell two apart in a log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, ..] = self.0;
        write!(f, "TokenHash({a:02x}{b:02x}…)")
    }
}

impl Serialize for TokenHash {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for TokenHash {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let invalid = || D::Error::custom("a token's hash is 64 hexadecimal digits");
        let mut hash = [0; 32];
        if text.len() != 64 || !text.is_ascii() {
            return Err(invalid());
        }
        for (byte, digits) in hash.iter_mut().zip(text.as_bytes().chunks(2)) {
            let digits = std::str::from_utf8(digits).map_err(|_| invalid())?;
            *byte = u8::from_str_radix(digits, 16).map_err(|_| invalid())?;
        }
        Ok(Self(hash))
    }
}

/// A token that is to be made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewToken {
    /// Names the token in lists; not secret.
    pub id: String,
    /// What it may do.
    pub scope: Scope,
    /// Whose it is.
    pub tenant: Option<TenantName>,
    /// SHA-256 of its text.
    pub hash: TokenHash,
    /// When it ends by itself; absent: never.
    pub expires_at: Option<Timestamp>,
}

/// A token that was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenRecord {
    /// Names the token in lists; not secret.
    pub id: String,
    /// What it may do.
    pub scope: Scope,
    /// Whose it is.
    pub tenant: Option<TenantName>,
    /// SHA-256 of its text.
    pub hash: TokenHash,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it ends by itself; absent: never.
    pub expires_at: Option<Timestamp>,
}

impl TokenRecord {
    /// Whether the token still counts at `now`.
    pub fn is_live(&self, now: Timestamp) -> bool {
        self.expires_at.is_none_or(|end| now < end)
    }
}

/// All tokens by hash: what an authenticated request looks into.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TokenTable {
    by_hash: HashMap<TokenHash, Arc<TokenRecord>, FixedState>,
}

impl TokenTable {
    /// A table of `tokens`.
    pub fn new<'a>(tokens: impl IntoIterator<Item = &'a TokenRecord>) -> Self {
        let by_hash = tokens
            .into_iter()
            .map(|token| (token.hash, Arc::new(token.clone())))
            .collect();
        Self { by_hash }
    }

    /// The live token whose text hashes to `hash`.
    ///
    /// Where the search ends tells nothing about a secret, because a caller cannot choose the digits of
    /// a SHA-256; the found hash is compared in constant time all the same.
    pub fn find(&self, hash: &TokenHash, now: Timestamp) -> Option<&Arc<TokenRecord>> {
        let found = self.by_hash.get(hash)?;
        let same: bool = found.hash.0.ct_eq(&hash.0).into();
        (same && found.is_live(now)).then_some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(byte: u8, expires_at: Option<Timestamp>) -> TokenRecord {
        TokenRecord {
            id: format!("t{byte}"),
            scope: Scope::Read,
            tenant: None,
            hash: TokenHash([byte; 32]),
            created_at: Timestamp::EPOCH,
            expires_at,
        }
    }

    #[test]
    fn a_token_counts_until_its_end() {
        let end = Timestamp::from_unix_ms(1_000);
        let table = TokenTable::new(&[record(1, Some(end)), record(2, None)]);
        let before = Timestamp::from_unix_ms(999);
        assert_eq!(
            table
                .find(&TokenHash([1; 32]), before)
                .map(|t| t.id.as_str()),
            Some("t1")
        );
        assert!(table.find(&TokenHash([1; 32]), end).is_none());
        assert!(table.find(&TokenHash([2; 32]), Timestamp::MAX).is_some());
        assert!(table.find(&TokenHash([3; 32]), before).is_none());
    }

    #[test]
    fn a_hash_is_written_in_full_and_logged_in_part() {
        let hash = TokenHash([0xab; 32]);
        let json = serde_json::to_string(&hash).expect("json");
        assert_eq!(json, format!("\"{}\"", "ab".repeat(32)));
        assert_eq!(
            serde_json::from_str::<TokenHash>(&json).expect("a hash"),
            hash
        );
        assert_eq!(format!("{hash:?}"), "TokenHash(abab…)");
        for bad in ["\"ab\"", "\"zz\"", &format!("\"{}\"", "é".repeat(32)), "7"] {
            assert!(serde_json::from_str::<TokenHash>(bad).is_err(), "{bad}");
        }
    }
}
