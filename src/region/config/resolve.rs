//! Picks each setting from the first place that gives it: flag, environment, file, default.
//!
//! Everything that is wrong is collected, so that an operator sees it all at once; each problem names the
//! place that the value came from.

use std::collections::BTreeMap;
use std::fmt;
use std::fmt::Display;
use std::ops::RangeInclusive;

use super::document::Document;
use super::file::Given;

/// What every variable of the environment begins with.
const ENV_PREFIX: &str = "HIGHWATER_";
/// The settings that stand in no table. Only these are read from variables without two underscores in a row:
/// orchestrators set variables of that form by themselves, such as `HIGHWATER_SERVICE_HOST`.
const TOP_LEVEL: [&str; 3] = ["cluster", "region", "data_dir"];

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// `--set KEY=VALUE`.
    Flag,
    /// A variable of the environment.
    Env(String),
    /// A line of the file, from 1.
    Line(usize),
    /// The program.
    Default,
}

impl Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag => f.write_str("--set"),
            Self::Env(name) => f.write_str(name),
            Self::Line(line) => write!(f, "line {line}"),
            Self::Default => f.write_str("default"),
        }
    }
}

/// One thing that is wrong with a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Where: `regions/eu.toml:12`, a variable, a flag.
    pub place: String,
    /// Which setting; empty when the file as a whole is meant.
    pub key: String,
    /// What is wrong and what to do.
    pub message: String,
}

impl Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.key.is_empty() {
            return write!(f, "{}: {}", self.place, self.message);
        }
        write!(f, "{}: {}: {}", self.place, self.key, self.message)
    }
}

/// One setting as it was resolved, for `check-config`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolved {
    /// The setting.
    pub key: &'static str,
    /// Its value as TOML writes it; `None` for a secret.
    pub value: Option<String>,
    /// Where it comes from.
    pub origin: Origin,
}

/// Values from flags and the environment, by setting.
pub type Overlay = BTreeMap<String, (Origin, String)>;

/// Collects what the environment and then the flags set.
pub fn overlay(
    env: impl IntoIterator<Item = (String, String)>,
    flags: impl IntoIterator<Item = (String, String)>,
) -> Overlay {
    let mut overlay = Overlay::new();
    for (name, value) in env {
        if let Some(key) = key_of_variable(&name) {
            overlay.insert(key, (Origin::Env(name), value));
        }
    }
    for (key, value) in flags {
        overlay.insert(key, (Origin::Flag, value));
    }
    overlay
}

fn key_of_variable(name: &str) -> Option<String> {
    let key = name.strip_prefix(ENV_PREFIX)?.to_lowercase();
    if key.contains("__") {
        return Some(key.replace("__", "."));
    }
    TOP_LEVEL.contains(&key.as_str()).then_some(key)
}

/// Resolves settings one by one.
pub struct Resolver<'a> {
    file: &'a str,
    document: &'a Document<'a>,
    overlay: Overlay,
    problems: Vec<Problem>,
    resolved: Vec<Resolved>,
}

impl<'a> Resolver<'a> {
    /// A resolver of the file named `file`, of which `document` is the text.
    pub fn new(file: &'a str, document: &'a Document<'a>, overlay: Overlay) -> Self {
        Self {
            file,
            document,
            overlay,
            problems: Vec::new(),
            resolved: Vec::new(),
        }
    }

    /// Where the value comes from, as a problem names it.
    fn place(&self, origin: &Origin) -> String {
        match origin {
            Origin::Line(line) => format!("{}:{line}", self.file),
            Origin::Default => self.file.to_owned(),
            Origin::Flag | Origin::Env(_) => origin.to_string(),
        }
    }

    /// Notes that the setting `key` is wrong.
    pub fn problem(&mut self, origin: &Origin, key: &str, message: impl Into<String>) {
        let place = self.place(origin);
        self.problems.push(Problem {
            place,
            key: key.to_owned(),
            message: message.into(),
        });
    }

    /// Notes that the setting `key` is wrong, at the place where it was resolved from.
    pub fn problem_of(&mut self, key: &str, message: impl Into<String>) {
        let origin = self.resolved.iter().find(|resolved| resolved.key == key);
        let origin = origin.map_or(Origin::Default, |resolved| resolved.origin.clone());
        self.problem(&origin, key, message);
    }

    /// The line of a place in the file.
    pub fn line(&self, offset: usize) -> Origin {
        Origin::Line(self.document.line_of_offset(offset))
    }

    /// The value of `key` from flag or environment, else from the file.
    fn pick<T>(
        &mut self,
        key: &str,
        given: Given<T>,
        read: impl Fn(&str) -> Result<T, String>,
    ) -> Option<(Origin, T)> {
        let from_file = given.map(|value| (self.line(value.span().start), value.into_inner()));
        let Some((origin, text)) = self.overlay.remove(key) else {
            return from_file;
        };
        match read(&text) {
            Ok(value) => Some((origin, value)),
            Err(message) => {
                self.problem(&origin, key, message);
                None
            }
        }
    }

    fn keep(&mut self, key: &'static str, value: &toml::Value, origin: Origin) {
        let value = Some(value.to_string());
        self.resolved.push(Resolved { key, value, origin });
    }

    /// A setting that is written as text and read by `parse`.
    pub fn text<T>(
        &mut self,
        key: &'static str,
        given: Given<String>,
        default: Option<&str>,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Option<T> {
        let picked = self.pick(key, given, |text| Ok(text.to_owned()));
        let (origin, text) =
            picked.or_else(|| default.map(|text| (Origin::Default, text.to_owned())))?;
        match parse(&text) {
            Ok(value) => {
                self.keep(key, &toml::Value::String(text), origin);
                Some(value)
            }
            Err(message) => {
                self.problem(&origin, key, message);
                None
            }
        }
    }

    /// A setting that is a whole number within `range`.
    pub fn integer(
        &mut self,
        key: &'static str,
        given: Given<u64>,
        default: u64,
        range: RangeInclusive<u64>,
    ) -> Option<u64> {
        let picked = self.pick(key, given, |text| {
            text.parse()
                .map_err(|_| format!("\"{text}\" is not a whole number"))
        });
        let (origin, value) = picked.unwrap_or((Origin::Default, default));
        if !range.contains(&value) {
            let message = format!(
                "{value} is out of range; give {} to {}",
                range.start(),
                range.end()
            );
            self.problem(&origin, key, message);
            return None;
        }
        self.keep(
            key,
            &toml::Value::Integer(i64::try_from(value).unwrap_or(i64::MAX)),
            origin,
        );
        Some(value)
    }

    /// A setting that is on or off.
    pub fn switch(&mut self, key: &'static str, given: Given<bool>, default: bool) -> bool {
        let picked = self.pick(key, given, |text| {
            text.parse()
                .map_err(|_| format!("\"{text}\" is neither true nor false"))
        });
        let (origin, value) = picked.unwrap_or((Origin::Default, default));
        self.keep(key, &toml::Value::Boolean(value), origin);
        value
    }

    /// A setting that is a list of texts, each read by `parse`; with commas in between in the environment.
    pub fn list<T>(
        &mut self,
        key: &'static str,
        given: Given<Vec<String>>,
        default: &[&str],
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Option<Vec<T>> {
        let picked = self.pick(key, given, |text| {
            let parts = text
                .split(',')
                .map(str::trim)
                .filter(|part| !part.is_empty());
            Ok(parts.map(str::to_owned).collect())
        });
        let default = || default.iter().map(|text| (*text).to_owned()).collect();
        let (origin, texts) = picked.unwrap_or_else(|| (Origin::Default, default()));
        let parsed: Result<Vec<T>, String> = texts.iter().map(|text| parse(text)).collect();
        match parsed {
            Ok(values) => {
                let texts = texts.into_iter().map(toml::Value::String).collect();
                self.keep(key, &toml::Value::Array(texts), origin);
                Some(values)
            }
            Err(message) => {
                self.problem(&origin, key, message);
                None
            }
        }
    }

    /// A secret that is given as itself or as the file that holds it: all places that give it.
    /// Two of them at once are a problem whatever their precedence, because one of the two is then a
    /// secret that someone believes to be in force and that is not.
    pub fn secret(
        &mut self,
        keys: [&'static str; 2],
        given: [Given<String>; 2],
    ) -> Option<(Origin, &'static str, String)> {
        let mut places = Vec::new();
        for (key, given) in keys.into_iter().zip(given) {
            let from_file =
                given.map(|value| (self.line(value.span().start), key, value.into_inner()));
            let from_overlay = self
                .overlay
                .remove(key)
                .map(|(origin, text)| (origin, key, text));
            places.extend(from_overlay.into_iter().chain(from_file));
        }
        if let [first, second, ..] = places.as_slice() {
            let message = format!(
                "is given twice, as {} ({}) and as {} ({}); keep one of them",
                first.1, first.0, second.1, second.0
            );
            let origin = first.0.clone();
            self.problem(&origin, keys[0], message);
            return None;
        }
        let (origin, key, text) = places.pop()?;
        let value = (key != keys[0]).then(|| toml::Value::String(text.clone()).to_string());
        self.resolved.push(Resolved {
            key,
            value,
            origin: origin.clone(),
        });
        if text.trim().is_empty() {
            self.problem(
                &origin,
                key,
                "is empty; leave the setting out or give a value",
            );
            return None;
        }
        Some((origin, key, text))
    }

    /// Ends: what was resolved, or all problems. What flags and environment set and nobody asked for is a
    /// problem too.
    pub fn finish(mut self) -> Result<Vec<Resolved>, Vec<Problem>> {
        for (key, (origin, _)) in std::mem::take(&mut self.overlay) {
            let message = if key.starts_with("peers") {
                "can only be given in the file"
            } else {
                "unknown setting; see `highwater check-config FILE` for the known ones"
            };
            self.problem(&origin, &key, message);
        }
        if self.problems.is_empty() {
            Ok(self.resolved)
        } else {
            Err(self.problems)
        }
    }
}
