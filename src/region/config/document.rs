//! A TOML text and where its keys stand, so that an error can name the file and the line.
//!
//! Used for a region's file and for catalogue files. Paths are written as TOML writes dotted keys:
//! `limits.exports.window`, `limits.tokens.keys."gpt-5.1".capacity`.

use std::borrow::Cow;
use std::ops::Range;

use toml::Spanned;
use toml::de::DeTable;
use toml::de::DeValue;

/// A parsed TOML text.
#[derive(Debug)]
pub struct Document<'t> {
    text: &'t str,
    root: DeTable<'t>,
}

/// Why a text is not TOML, and on which line (from 1).
#[derive(Debug, PartialEq, Eq)]
pub struct Fault {
    /// The line, from 1.
    pub line: usize,
    /// What is wrong.
    pub message: String,
}

impl<'t> Document<'t> {
    /// Reads `text`.
    ///
    /// # Errors
    /// When it is not TOML.
    pub fn parse(text: &'t str) -> Result<Self, Fault> {
        let root = DeTable::parse(text).map_err(|error| Fault {
            line: line_of_offset(text, error.span().map_or(0, |span| span.start)),
            message: error.message().trim_end().to_owned(),
        })?;
        let root = root.into_inner();
        Ok(Self { text, root })
    }

    /// The whole document.
    pub fn root(&self) -> &DeTable<'t> {
        &self.root
    }

    /// The line (from 1) of a place in the text.
    pub fn line_of_offset(&self, offset: usize) -> usize {
        line_of_offset(self.text, offset)
    }

    /// The line of `path`, or of the nearest table above it that is written down. `None`: not even its
    /// first part is.
    pub fn line_of(&self, path: &[String]) -> Option<usize> {
        self.deepest(path).map(|(_, line)| line)
    }

    /// How many parts of `path` are written down, and the line of the last of them.
    pub fn deepest(&self, path: &[String]) -> Option<(usize, usize)> {
        let mut table = &self.root;
        let mut found = None;
        for (depth, part) in path.iter().enumerate() {
            let Some((key, value)) = table.get_key_value(part.as_str()) else {
                break;
            };
            found = Some((depth + 1, self.line_of_offset(key.span().start)));
            match value.get_ref() {
                DeValue::Table(inner) => table = inner,
                DeValue::String(_)
                | DeValue::Integer(_)
                | DeValue::Float(_)
                | DeValue::Boolean(_)
                | DeValue::Datetime(_)
                | DeValue::Array(_) => break,
            }
        }
        found
    }

    /// The path of the key or value that covers `span`.
    pub fn path_at(&self, span: &Range<usize>) -> Option<String> {
        let mut path = Vec::new();
        find(&self.root, span, &mut path).then(|| join_path(&path))
    }
}

/// Follows the keys down to the one at `span`; `path` holds it afterwards when it was found.
fn find(table: &DeTable<'_>, span: &Range<usize>, path: &mut Vec<String>) -> bool {
    for (key, value) in table {
        path.push(key.get_ref().clone().into_owned());
        if covers(&key.span(), span) || find_value(value, span, path) {
            return true;
        }
        path.pop();
    }
    false
}

fn find_value(value: &Spanned<DeValue<'_>>, span: &Range<usize>, path: &mut Vec<String>) -> bool {
    match value.get_ref() {
        DeValue::Table(inner) => find(inner, span, path),
        DeValue::Array(items) => items.iter().any(|item| find_value(item, span, path)),
        DeValue::String(_)
        | DeValue::Integer(_)
        | DeValue::Float(_)
        | DeValue::Boolean(_)
        | DeValue::Datetime(_) => covers(&value.span(), span),
    }
}

fn covers(outer: &Range<usize>, inner: &Range<usize>) -> bool {
    outer.start <= inner.start && inner.start < outer.end
}

fn line_of_offset(text: &str, offset: usize) -> usize {
    let end = offset.min(text.len());
    1 + text
        .as_bytes()
        .iter()
        .take(end)
        .filter(|byte| **byte == b'\n')
        .count()
}

/// Writes a path as TOML writes dotted keys.
pub fn join_path(path: &[String]) -> String {
    path.iter()
        .map(|part| quote_key(part))
        .collect::<Vec<_>>()
        .join(".")
}

/// Writes one key as TOML writes it: bare when it can be, else as a basic string.
pub fn quote_key(key: &str) -> Cow<'_, str> {
    let bare = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    if !key.is_empty() && key.bytes().all(bare) {
        return Cow::Borrowed(key);
    }
    // A JSON string is a TOML basic string.
    Cow::Owned(serde_json::Value::from(key).to_string())
}

/// Reads a path that is written as TOML writes dotted keys; a part in brackets (`[3]`) is a part of its own.
pub fn split_path(path: &str) -> Vec<String> {
    let mut parts = Vec::new();
    let mut rest = path;
    while !rest.is_empty() {
        let (part, after) = match rest.strip_prefix('"') {
            Some(_) => quoted_part(rest),
            None => {
                let end = rest.find(['.', '[', ']']).unwrap_or(rest.len());
                (rest[..end].to_owned(), &rest[end..])
            }
        };
        parts.push(part);
        rest = after.trim_start_matches(']');
        rest = rest.strip_prefix(['.', '[']).unwrap_or(rest);
    }
    parts
}

/// The part in quotes at the start of `text`, and what follows it.
fn quoted_part(text: &str) -> (String, &str) {
    let mut escaped = false;
    for (place, byte) in text.bytes().enumerate().skip(1) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => {
                let (quoted, after) = text.split_at(place + 1);
                let part = serde_json::from_str(quoted).unwrap_or_else(|_| quoted.to_owned());
                return (part, after);
            }
            _ => {}
        }
    }
    (text.to_owned(), "")
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
default_plan = \"free\"
[limits]
exports = { quota = 10, window = \"1d\" }
[tenants.acme]
plan = \"pro\"
limits.tokens.keys.\"gpt-5.1\" = { capacity = 1 }
[[peers]]
region = 1
";

    fn line(path: &str) -> Option<usize> {
        Document::parse(TEXT)
            .expect("TOML")
            .line_of(&split_path(path))
    }

    #[test]
    fn a_path_is_found_at_its_key() {
        assert_eq!(line("default_plan"), Some(1));
        assert_eq!(line("limits.exports.window"), Some(3));
        assert_eq!(line("tenants.acme.plan"), Some(5));
        assert_eq!(
            line("tenants.acme.limits.tokens.keys.\"gpt-5.1\".capacity"),
            Some(6)
        );
    }

    #[test]
    fn a_missing_field_is_found_at_the_table_that_lacks_it() {
        assert_eq!(line("limits.exports.algorithm"), Some(3));
        assert_eq!(line("tenants.acme.time_zone"), Some(4));
        assert_eq!(line("plans.pro"), None);
    }

    #[test]
    fn an_offset_is_found_back_as_a_path() {
        let document = Document::parse(TEXT).expect("TOML");
        let path_of = |needle: &str| {
            let start = TEXT.find(needle).expect("in the text");
            document.path_at(&(start..start + needle.len()))
        };
        assert_eq!(path_of("window"), Some("limits.exports.window".to_owned()));
        assert_eq!(
            path_of("capacity"),
            Some("tenants.acme.limits.tokens.keys.\"gpt-5.1\".capacity".to_owned())
        );
        assert_eq!(path_of("region"), Some("peers.region".to_owned()));
        assert_eq!(path_of("\"pro\""), Some("tenants.acme.plan".to_owned()));
    }

    #[test]
    fn a_syntax_error_has_a_line() {
        let fault = Document::parse("a = 1\nb = \n").expect_err("not TOML");
        assert_eq!(fault.line, 2);
        let fault = Document::parse("a = 1\na = 2\n").expect_err("not TOML");
        assert_eq!(fault.line, 2);
        assert!(fault.message.contains("duplicate"), "{}", fault.message);
    }

    #[test]
    fn paths_are_read_back_as_written() {
        for parts in [
            vec!["a"],
            vec!["a", "b.c", "d"],
            vec!["ä\"x", "y z"],
            vec!["a\\b", "", "\n]"],
        ] {
            let parts: Vec<String> = parts.into_iter().map(str::to_owned).collect();
            assert_eq!(split_path(&join_path(&parts)), parts);
        }
        assert_eq!(
            split_path("limits.api.actions[2]"),
            ["limits", "api", "actions", "2"]
        );
    }
}
