//! A list of limits for people: one line each, amounts in words, and what matters most of the rest.

use serde_json::Value;

use super::output;

/// Fields beside name and amounts, in this order.
const COLUMNS: [&str; 5] = ["algorithm", "key", "actions", "mode", "on_unavailable"];

/// One line for each limit of a list.
pub fn lines(limits: &[Value]) -> String {
    if limits.is_empty() {
        return "(none)\n".to_owned();
    }
    let has = |limit: &Value, column: &str| limit.get(column).is_some_and(|value| !is_empty(value));
    let shown: Vec<&str> = COLUMNS
        .into_iter()
        .filter(|column| limits.iter().any(|limit| has(limit, column)))
        .collect();
    let header: Vec<String> = ["name", "amounts"]
        .iter()
        .chain(&shown)
        .map(|column| column.to_uppercase())
        .collect();
    let line = |limit: &Value| {
        let field = |name: &str| output::cell(name, limit.get(name).unwrap_or(&Value::Null));
        let rest = shown.iter().map(|column| field(column));
        [field("name"), amounts(limit)]
            .into_iter()
            .chain(rest)
            .collect()
    };
    let lines: Vec<Vec<String>> = limits.iter().map(line).collect();
    output::aligned(&header, &lines)
}

fn is_empty(value: &Value) -> bool {
    value.is_null() || value.as_array().is_some_and(Vec::is_empty)
}

/// What a limit gives, in words. A layer that changes only some amounts has only those.
fn amounts(limit: &Value) -> String {
    let number = |name: &str| limit.get(name).and_then(Value::as_u64);
    let text = |name: &str| limit.get(name).and_then(Value::as_str);
    if limit.get("unlimited").and_then(Value::as_bool) == Some(true) {
        return "unlimited".to_owned();
    }
    let mut parts = Vec::new();
    parts.extend(number("quota").map(|quota| quota.to_string()));
    parts.extend(text("window").map(|window| format!("per {window}")));
    parts.extend(text("period").map(|period| match number("every") {
        None | Some(1) => format!("per {period}"),
        Some(every) => format!("per {every} {period}s"),
    }));
    parts.extend(text("ttl").map(|ttl| format!("at once, for {ttl}")));
    parts.extend(number("capacity").map(|capacity| format!("up to {capacity}")));
    for (name, word) in [("refill", "refilled"), ("drain", "drained")] {
        parts.extend(number(name).map(|amount| format!("{word} {amount}")));
    }
    parts.extend(text("per").map(|per| format!("per {per}")));
    if limit.get("enforce").and_then(Value::as_bool) == Some(false) {
        parts.push("(not enforced)".to_owned());
    }
    if parts.is_empty() {
        "-".to_owned()
    } else {
        parts.join(" ")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn amounts_are_told_in_words() {
        let told = |limit: Value| amounts(&limit);
        assert_eq!(told(json!({ "quota": 100, "window": "1s" })), "100 per 1s");
        assert_eq!(
            told(json!({ "quota": 10, "period": "day", "every": 1 })),
            "10 per day"
        );
        assert_eq!(
            told(json!({ "quota": 10, "period": "week", "every": 2 })),
            "10 per 2 weeks"
        );
        assert_eq!(
            told(json!({ "capacity": 9, "refill": 3, "per": "1m" })),
            "up to 9 refilled 3 per 1m"
        );
        assert_eq!(
            told(json!({ "quota": 5, "ttl": "1m", "enforce": false })),
            "5 at once, for 1m (not enforced)"
        );
        assert_eq!(told(json!({ "quota": 5, "unlimited": true })), "unlimited");
        assert_eq!(told(json!({ "mode": "regional" })), "-");
    }

    #[test]
    fn a_limit_is_one_line_with_the_columns_that_any_of_them_has() {
        let limits = [
            json!({ "name": "exports", "algorithm": "calendar_window", "quota": 10, "period": "day", "actions": ["a", "b"] }),
            json!({ "name": "tokens", "algorithm": "token_bucket", "capacity": 9, "key": "model", "actions": [] }),
        ];
        let text = "\
NAME     AMOUNTS     ALGORITHM        KEY    ACTIONS
exports  10 per day  calendar_window  -      a, b
tokens   up to 9     token_bucket     model  -
";
        assert_eq!(lines(&limits), text);
        assert_eq!(lines(&[]), "(none)\n");
    }
}
