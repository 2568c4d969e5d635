//! A secret text: held apart from everything that is printed, and compared in constant time.

use std::fmt;

use sha2::Digest;
use sha2::Sha256;
use subtle::ConstantTimeEq;

/// A secret text. Its value is neither shown by `Debug` nor written by anything else.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Box<str>);

impl Secret {
    /// Keeps `text` as a secret.
    pub fn new(text: &str) -> Self {
        Self(text.into())
    }

    /// The secret itself, for the place that sends it.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Whether `candidate` is the secret. Takes the same time for every candidate of one length, and tells
    /// nothing about the secret's length.
    pub fn matches(&self, candidate: &str) -> bool {
        let kept = Sha256::digest(self.0.as_bytes());
        let given = Sha256::digest(candidate.as_bytes());
        kept.as_slice().ct_eq(given.as_slice()).into()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_never_shown() {
        assert_eq!(format!("{:?}", Secret::new("hunter2")), "Secret(…)");
    }

    #[test]
    fn only_the_secret_itself_matches() {
        let secret = Secret::new("hunter2");
        assert!(secret.matches("hunter2"));
        for other in ["", "hunter", "hunter22", "Hunter2"] {
            assert!(!secret.matches(other), "{other}");
        }
    }
}
