//! Secrets that stand in files of their own.

use std::path::Path;

pub use crate::domain::secret::Secret;

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
