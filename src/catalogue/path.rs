//! Paths to fields of the catalogue document, written as TOML would: `plans.pro.limits."a b".quota`.

use std::fmt;

/// A path from the root of the catalogue document.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldPath(String);

impl FieldPath {
    /// The document itself.
    pub const fn root() -> Self {
        Self(String::new())
    }

    /// The path of `name` inside what this path names; quoted where TOML wants it.
    #[must_use]
    pub fn with(&self, name: &str) -> Self {
        let mut path = self.0.clone();
        if !path.is_empty() {
            path.push('.');
        }
        if is_bare(name) {
            path.push_str(name);
        } else {
            path.push_str(&serde_json::Value::from(name).to_string());
        }
        Self(path)
    }
}

impl fmt::Display for FieldPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn is_bare(name: &str) -> bool {
    !name.is_empty()
        && name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_not_bare_are_quoted() {
        let path = FieldPath::root()
            .with("tenants")
            .with("a.b")
            .with("keys")
            .with("gpt-5");
        assert_eq!(path.to_string(), r#"tenants."a.b".keys.gpt-5"#);
        assert_eq!(FieldPath::root().with("q\"\n").to_string(), r#""q\"\n""#);
        assert_eq!(FieldPath::root().with("").to_string(), r#""""#);
    }
}
