//! How answers are written: as JSON, or for people.
//!
//! The form for people is made from the answer itself: single values as aligned lines, lists of objects as
//! tables. Names tell what a number is: `…_after_ms`, `delay_ms` and `staleness_ms` are lengths
//! of time, every other `…_ms` is an instant.

use std::io::Write;

use serde_json::Map;
use serde_json::Value;

/// How answers are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum OutputFormat {
    /// For people.
    #[default]
    Table,
    /// For programs: everything that the server sent.
    Json,
}

/// Columns that come first in a table, in this order.
const FIRST_COLUMNS: [&str; 14] = [
    "at_ms",
    "index",
    "id",
    "region",
    "name",
    "tenant",
    "limit",
    "plan",
    "key",
    "decision",
    "reason",
    "used",
    "quota",
    "remaining",
];

/// Writes `value` to standard output.
///
/// # Errors
/// When standard output is closed.
pub fn show(format: OutputFormat, value: &Value) -> std::io::Result<()> {
    let text = match format {
        OutputFormat::Json => format!("{value:#}\n"),
        OutputFormat::Table => describe(value),
    };
    print(&text)
}

/// Writes the list in `value` to standard output: an answer that is a list with a name.
///
/// # Errors
/// When standard output is closed.
pub fn show_list(format: OutputFormat, value: &Value) -> std::io::Result<()> {
    match format {
        OutputFormat::Json => show(format, value),
        OutputFormat::Table => print(&describe_list(list_in(value))),
    }
}

/// The list in an answer: its first member that is one.
pub fn list_in(value: &Value) -> &[Value] {
    let members = value.as_object().into_iter().flat_map(Map::values);
    members
        .filter_map(Value::as_array)
        .next()
        .map(Vec::as_slice)
        .unwrap_or_default()
}

/// Writes `text` to standard output.
///
/// # Errors
/// When standard output is closed.
pub fn print(text: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// `value` for people.
pub fn describe(value: &Value) -> String {
    match value {
        Value::Object(members) => describe_object(members),
        Value::Array(items) => describe_list(items),
        Value::Null => String::new(),
        Value::Bool(_) | Value::Number(_) | Value::String(_) => format!("{}\n", cell("", value)),
    }
}

fn describe_object(members: &Map<String, Value>) -> String {
    let is_section = |value: &Value| match value {
        Value::Array(items) => items.iter().any(Value::is_object),
        Value::Object(inner) => {
            inner
                .values()
                .any(|value| value.is_object() || value.is_array())
                || inner.len() > 4
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    };
    let lines: Vec<(&String, &Value)> = members
        .iter()
        .filter(|(_, value)| !is_section(value))
        .collect();
    let width = lines
        .iter()
        .map(|(name, _)| name.chars().count())
        .max()
        .unwrap_or(0);
    let mut text = String::new();
    for (name, value) in lines {
        text.push_str(&format!("{name:<width$}  {}\n", cell(name, value)));
    }
    for (name, value) in members.iter().filter(|(_, value)| is_section(value)) {
        if !text.is_empty() {
            text.push('\n');
        }
        text.push_str(&format!("{name}:\n"));
        for line in describe(value).lines() {
            let indented = if line.is_empty() {
                String::new()
            } else {
                format!("  {line}")
            };
            text.push_str(&(indented + "\n"));
        }
    }
    text
}

fn describe_list(items: &[Value]) -> String {
    if items.is_empty() {
        return "(none)\n".to_owned();
    }
    if items.iter().all(Value::is_object) {
        let rows: Vec<&Map<String, Value>> = items.iter().filter_map(Value::as_object).collect();
        return table_of(&rows);
    }
    items
        .iter()
        .map(|item| format!("{}\n", cell("", item)))
        .collect()
}

/// A table of objects: a column for each member that any of them has.
fn table_of(rows: &[&Map<String, Value>]) -> String {
    let mut columns: Vec<&str> = rows
        .iter()
        .flat_map(|row| row.keys().map(String::as_str))
        .collect();
    let rank = |column: &str| {
        FIRST_COLUMNS
            .iter()
            .position(|first| *first == column)
            .unwrap_or(FIRST_COLUMNS.len())
    };
    columns.sort_by_key(|column| (rank(column), *column));
    columns.dedup();
    columns.retain(|column| {
        rows.iter()
            .any(|row| row.get(*column).is_some_and(|value| !value.is_null()))
    });
    let header: Vec<String> = columns.iter().map(|column| column_title(column)).collect();
    let line = |row: &&Map<String, Value>| {
        columns
            .iter()
            .map(|column| {
                row.get(*column)
                    .map_or_else(|| "-".to_owned(), |value| cell(column, value))
            })
            .collect()
    };
    let lines: Vec<Vec<String>> = rows.iter().map(line).collect();
    aligned(&header, &lines)
}

fn column_title(column: &str) -> String {
    column.strip_suffix("_ms").unwrap_or(column).to_uppercase()
}

/// A header and lines in columns of even width.
pub fn aligned(header: &[String], lines: &[Vec<String>]) -> String {
    let all = || std::iter::once(header).chain(lines.iter().map(Vec::as_slice));
    let width = |column: usize| {
        all()
            .filter_map(|line| line.get(column))
            .map(|cell| cell.chars().count())
            .max()
    };
    let widths: Vec<usize> = (0..header.len())
        .map(|column| width(column).unwrap_or(0))
        .collect();
    let mut text = String::new();
    for line in all() {
        let cells = line
            .iter()
            .zip(&widths)
            .map(|(cell, width)| format!("{cell:<width$}"));
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// One value in one cell. `name` tells what a number of milliseconds is.
pub fn cell(name: &str, value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::Array(items) if items.is_empty() => "-".to_owned(),
        Value::String(text) => printable(text),
        Value::Number(number) => match number.as_i64().filter(|_| name.ends_with("_ms")) {
            Some(ms) if is_length(name) => length(ms),
            Some(ms) => instant(ms),
            None => number.to_string(),
        },
        Value::Bool(_) => value.to_string(),
        Value::Array(items) => items
            .iter()
            .map(|item| cell("", item))
            .collect::<Vec<_>>()
            .join(", "),
        // Of things with names the names must do; `get` shows one of them in full.
        Value::Object(members) if members.values().any(Value::is_object) => members
            .keys()
            .map(|name| printable(name))
            .collect::<Vec<_>>()
            .join(", "),
        Value::Object(members) => {
            let pairs = members
                .iter()
                .map(|(name, value)| format!("{}={}", printable(name), cell(name, value)));
            pairs.collect::<Vec<_>>().join(" ")
        }
    }
}

/// A text that cannot break out of its line or steer a terminal.
fn printable(text: &str) -> String {
    let one = |character: char| {
        if character.is_control() {
            character.escape_default().to_string()
        } else {
            character.to_string()
        }
    };
    text.chars().map(one).collect()
}

fn is_length(name: &str) -> bool {
    name.ends_with("_after_ms")
        || matches!(name, "delay_ms" | "staleness_ms")
        || name.ends_with("_offset_ms")
        || name.ends_with("_age_ms")
        || name.starts_with("rtt_")
}

fn instant(ms: i64) -> String {
    jiff::Timestamp::from_millisecond(ms).map_or_else(|_| ms.to_string(), |at| at.to_string())
}

/// A length of time in its two largest units.
pub fn length(ms: i64) -> String {
    const UNITS: [(i64, &str); 4] = [
        (86_400_000, "d"),
        (3_600_000, "h"),
        (60_000, "m"),
        (1_000, "s"),
    ];
    if ms.unsigned_abs() < 1_000 {
        return format!("{ms}ms");
    }
    let mut rest = ms;
    let mut parts = Vec::new();
    for (size, unit) in UNITS {
        if (rest / size != 0 || !parts.is_empty()) && parts.len() < 2 {
            parts.push(format!("{}{unit}", rest / size));
            rest %= size;
        }
    }
    if parts.len() == 1 && rest != 0 {
        parts.push(format!("{rest}ms"));
    }
    parts.retain(|part| part.starts_with(|digit: char| digit != '0'));
    parts.join(" ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn lengths_are_told_in_two_units() {
        let cases = [
            (0, "0ms"),
            (999, "999ms"),
            (1_000, "1s"),
            (1_500, "1s 500ms"),
            (60_000, "1m"),
            (61_000, "1m 1s"),
            (3_600_000, "1h"),
            (90_061_000, "1d 1h"),
            (86_400_000, "1d"),
        ];
        for (ms, text) in cases {
            assert_eq!(length(ms), text);
        }
    }

    #[test]
    fn names_tell_what_a_number_is() {
        assert_eq!(cell("retry_after_ms", &json!(1_500)), "1s 500ms");
        assert_eq!(
            cell("window_start_ms", &json!(1_796_000_400_000_i64)),
            "2026-11-30T01:00:00Z"
        );
        assert_eq!(cell("quota", &json!(1_500)), "1500");
        assert_eq!(
            cell("limits", &json!({ "a": { "quota": 1 }, "b": {} })),
            "a, b"
        );
        assert_eq!(
            cell("effective", &json!({ "quota": 1, "key": "user" })),
            "key=user quota=1"
        );
        assert_eq!(cell("key", &json!("a\u{1b}[1m\n")), "a\\u{1b}[1m\\n");
    }

    #[test]
    fn the_list_of_an_answer_is_found() {
        assert_eq!(
            list_in(&json!({ "audit": [1, 2], "next": 3 })),
            [json!(1), json!(2)]
        );
        assert!(list_in(&json!({ "next": null })).is_empty());
        assert_eq!(describe_list(&[]), "(none)\n");
    }

    #[test]
    fn lists_of_objects_are_tables() {
        let value = json!({
            "version": 7,
            "items": [
                { "name": "exports", "quota": 10, "mode": "strict" },
                { "name": "a-long-name", "quota": 5 },
            ],
        });
        let text = "\
version  7

items:
  NAME         QUOTA  MODE
  exports      10     strict
  a-long-name  5      -
";
        assert_eq!(describe(&value), text);
        assert_eq!(describe(&json!({ "items": [] })), "items  -\n");
    }
}
