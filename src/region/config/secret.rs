//! Secrets: held apart from everything that is printed, and compared in constant time.

use std::fmt;
use std::path::Path;

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

/// A secret that was read from a file, and whether other users of the machine can read that file too.
#[derive(Debug)]
pub struct SecretFile {
    /// The file's text without surrounding white space.
    pub secret: Secret,
    /// Whether group or others may read it.
    pub readable_by_others: bool,
}

/// Reads the secret in `path`.
///
/// # Errors
/// A sentence for the operator, when the file cannot be read or holds nothing.
pub fn read(path: &Path) -> Result<SecretFile, String> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| format!("{} cannot be read: {error}", path.display()))?;
    let text = text.trim();
    if text.is_empty() {
        return Err(format!(
            "{} is empty; write the secret into it",
            path.display()
        ));
    }
    Ok(SecretFile {
        secret: Secret::new(text),
        readable_by_others: is_readable_by_others(path),
    })
}

#[cfg(unix)]
fn is_readable_by_others(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;

    std::fs::metadata(path).is_ok_and(|metadata| metadata.permissions().mode() & 0o044 != 0)
}

#[cfg(not(unix))]
fn is_readable_by_others(_path: &Path) -> bool {
    false
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
