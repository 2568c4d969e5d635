//! Catalogue files: TOML for people, the JSON that the server reads, and the way back from a fault that the
//! server found to the line that holds it.

use std::fmt;
use std::io::Read;
use std::path::Path;

use anyhow::Context;
use serde_json::Map;
use serde_json::Number;
use serde_json::Value;
use toml::de::DeInteger;
use toml::de::DeTable;
use toml::de::DeValue;

use crate::region::config::document::Document;
use crate::region::config::document::join_path;
use crate::region::config::document::split_path;

use super::client::Answer;
use super::client::ServerError;

/// The most bytes of a catalogue file; what a server takes at once is no more.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// A file's name and text.
#[derive(Debug)]
pub struct CatalogueFile {
    name: String,
    text: String,
}

/// What is wrong with a file, one line for each fault.
#[derive(Debug, PartialEq, Eq)]
pub struct FileFaults(pub Vec<String>);

impl fmt::Display for FileFaults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("\n"))
    }
}

/// The name and the text of the file at `path`, or of standard input when it is `-`; at most `bytes_max` bytes.
///
/// # Errors
/// When it cannot be read, is no UTF-8, or is too large.
pub fn read_text(path: &Path, bytes_max: u64) -> anyhow::Result<(String, String)> {
    let name = path.display().to_string();
    let mut text = String::new();
    let mut reader: Box<dyn Read> = if name == "-" {
        Box::new(std::io::stdin())
    } else {
        Box::new(std::fs::File::open(path).with_context(|| format!("{name} cannot be read"))?)
    };
    reader
        .by_ref()
        .take(bytes_max)
        .read_to_string(&mut text)
        .with_context(|| format!("{name} cannot be read"))?;
    anyhow::ensure!(
        reader.read(&mut [0])? == 0,
        "{name} is larger than {bytes_max} bytes"
    );
    Ok((name, text))
}

impl CatalogueFile {
    /// Reads the file at `path`, or standard input when it is `-`.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let (name, text) = read_text(path, FILE_BYTES_MAX)?;
        Ok(Self { name, text })
    }

    /// The file's content as the server reads it. Dates and times become texts.
    ///
    /// # Errors
    /// Every fault that can be seen without the server.
    pub fn to_json(&self) -> Result<Value, FileFaults> {
        let document = self.document()?;
        let mut faults = Vec::new();
        let json = table(
            document.root(),
            &mut Vec::new(),
            &mut |offset, path, message| {
                let line = document.line_of_offset(offset);
                faults.push(format!(
                    "{}:{line}: {}: {message}",
                    self.name,
                    join_path(path)
                ));
            },
        );
        if faults.is_empty() {
            Ok(Value::Object(json))
        } else {
            Err(FileFaults(faults))
        }
    }

    fn document(&self) -> Result<Document<'_>, FileFaults> {
        Document::parse(&self.text).map_err(|fault| {
            FileFaults(vec![format!(
                "{}:{}: not TOML: {}",
                self.name, fault.line, fault.message
            )])
        })
    }

    /// The answer when it is a yes. When the server found faults in fields they are told with the lines of
    /// the file that hold them.
    ///
    /// # Errors
    /// The faults, or the server's no.
    pub fn accepted(&self, answer: Answer) -> Result<Answer, Rejection> {
        let error = match answer.success() {
            Ok(answer) => return Ok(answer),
            Err(error) => error,
        };
        let fields = error.field_errors();
        let Ok(document) = self.document() else {
            return Err(Rejection::Server(error));
        };
        if fields.is_empty() {
            return Err(Rejection::Server(error));
        }
        let told = fields
            .iter()
            .map(|(path, message)| self.tell(&document, path, message))
            .collect();
        Err(Rejection::Fields(FileFaults(told)))
    }

    /// One fault of the field at `path`. The server names fields from the root of the catalogue; a file
    /// that holds a part of it begins further down, so the longest ending of the path that is in the file
    /// is taken.
    fn tell(&self, document: &Document<'_>, path: &str, message: &str) -> String {
        let parts = split_path(path);
        let from = (0..parts.len()).find(|from| document.line_of(&parts[*from..]).is_some());
        let line = from.and_then(|from| document.line_of(&parts[from..]));
        match line {
            Some(line) => format!("{}:{line}: {path}: {message}", self.name),
            None => format!("{}: {path}: {message}", self.name),
        }
    }
}

/// Why a file was not taken.
#[derive(Debug)]
pub enum Rejection {
    /// Faults in single fields.
    Fields(FileFaults),
    /// Something else.
    Server(ServerError),
}

type Fault<'a> = &'a mut dyn FnMut(usize, &[String], &str);

fn table(table: &DeTable<'_>, path: &mut Vec<String>, fault: Fault<'_>) -> Map<String, Value> {
    let mut json = Map::new();
    for (key, item) in table {
        path.push(key.get_ref().clone().into_owned());
        let read = value(item.get_ref(), item.span().start, path, fault);
        json.insert(key.get_ref().clone().into_owned(), read);
        path.pop();
    }
    json
}

fn value(item: &DeValue<'_>, offset: usize, path: &mut Vec<String>, fault: Fault<'_>) -> Value {
    match item {
        DeValue::String(text) => Value::from(text.as_ref()),
        DeValue::Boolean(flag) => Value::from(*flag),
        DeValue::Datetime(time) => Value::from(time.to_string()),
        DeValue::Table(inner) => Value::Object(table(inner, path, fault)),
        DeValue::Array(items) => items
            .iter()
            .map(|item| value(item.get_ref(), item.span().start, path, fault))
            .collect(),
        DeValue::Integer(number) => integer(number).unwrap_or_else(|| {
            fault(offset, path, "the number is too large");
            Value::Null
        }),
        DeValue::Float(number) => number
            .as_str()
            .parse()
            .ok()
            .and_then(Number::from_f64)
            .map_or_else(
                || {
                    fault(offset, path, "is not a number that can be sent");
                    Value::Null
                },
                Value::Number,
            ),
    }
}

fn integer(number: &DeInteger<'_>) -> Option<Value> {
    let (text, radix) = (number.as_str(), number.radix());
    let signed = i64::from_str_radix(text, radix).map(Value::from);
    signed
        .or_else(|_| u64::from_str_radix(text, radix).map(Value::from))
        .ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn file(text: &str) -> CatalogueFile {
        CatalogueFile {
            name: "c.toml".to_owned(),
            text: text.to_owned(),
        }
    }

    #[test]
    fn toml_becomes_the_json_that_the_server_reads() {
        let text = r#"
default_plan = "free"
[limits]
exports = { quota = 10, period = "day", enforce = true, actions = ["a", "b"] }
[tenants.acme]
anchor = 2026-01-31T00:00:00
limits.tokens.keys."gpt-5" = { capacity = 800_000, expires_at = 2027-01-01T00:00:00Z }
"#;
        let expected = json!({
            "default_plan": "free",
            "limits": { "exports": { "quota": 10, "period": "day", "enforce": true, "actions": ["a", "b"] } },
            "tenants": { "acme": {
                "anchor": "2026-01-31T00:00:00",
                "limits": { "tokens": { "keys": { "gpt-5": {
                    "capacity": 800_000, "expires_at": "2027-01-01T00:00:00Z",
                } } } },
            } },
        });
        assert_eq!(file(text).to_json(), Ok(expected));
    }

    #[test]
    fn numbers_keep_their_value_or_are_told_with_their_line() {
        let json = file("a = 18446744073709551615\nb = -1\nc = 0xff\nd = 1.5\n").to_json();
        assert_eq!(
            json,
            Ok(json!({ "a": u64::MAX, "b": -1, "c": 255, "d": 1.5 }))
        );
        let faults = file("[l.a]\nquota = 99999999999999999999\nwindow = nan\n")
            .to_json()
            .expect_err("refused");
        assert_eq!(
            faults.0,
            [
                "c.toml:2: l.a.quota: the number is too large",
                "c.toml:3: l.a.window: is not a number that can be sent"
            ]
        );
    }

    #[test]
    fn a_syntax_error_is_told_with_its_line() {
        let faults = file("a = 1\nb = [\n").to_json().expect_err("refused");
        assert!(faults.0[0].starts_with("c.toml:2: not TOML: "), "{faults}");
    }

    fn refusal(path: &str) -> Answer {
        let body = json!({ "errors": [{ "path": path, "message": "is wrong" }] });
        Answer {
            status: 422,
            body,
            version: None,
        }
    }

    #[track_caller]
    fn told(text: &str, path: &str, expected: &str) {
        match file(text).accepted(refusal(path)).expect_err("refused") {
            Rejection::Fields(faults) => assert_eq!(faults.to_string(), expected),
            Rejection::Server(error) => panic!("{error}"),
        }
    }

    #[test]
    fn faults_of_the_server_are_told_with_the_line_of_the_field() {
        let text = "[limits]\nexports = { quota = 10 }\n\n[limits.api]\nquota = 1\nwindow = \"0s\"\n[plans.\"a b\"]\n";
        told(
            text,
            "limits.api.window",
            "c.toml:6: limits.api.window: is wrong",
        );
        told(
            text,
            "limits.exports.algorithm",
            "c.toml:2: limits.exports.algorithm: is wrong",
        );
        told(
            text,
            "plans.\"a b\".limits",
            "c.toml:7: plans.\"a b\".limits: is wrong",
        );
        told(text, "default_plan", "c.toml: default_plan: is wrong");
    }

    #[test]
    fn faults_in_a_part_of_the_catalogue_are_found_too() {
        let spec = "quota = 10\nwindow = \"0s\"\n";
        told(
            spec,
            "tenants.acme.limits.exports.window",
            "c.toml:2: tenants.acme.limits.exports.window: is wrong",
        );
        let plan = "[limits.exports]\nquota = 10\n";
        told(
            plan,
            "plans.pro.limits.exports.quota",
            "c.toml:2: plans.pro.limits.exports.quota: is wrong",
        );
    }
}
