//! A limit's fields as flags: `--quota 10 --period day`.
//!
//! The server judges them; here they only become the JSON that it reads.

use clap::Args;
use serde_json::Map;
use serde_json::Value;

/// Every field of a limit.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Fields of the limit")]
pub struct LimitFlags {
    /// How use is counted; may be left out where the other fields leave one answer.
    #[arg(long, value_parser = [
        "fixed_window", "calendar_window", "sliding_window", "sliding_log", "token_bucket", "leaky_bucket", "concurrency",
    ])]
    algorithm: Option<String>,
    /// Units per window, or units held at once; 0 refuses always.
    #[arg(long, value_name = "N")]
    quota: Option<u64>,
    /// Length of a fixed or sliding window, as in 60s.
    #[arg(long, value_name = "DURATION")]
    window: Option<String>,
    /// Calendar period.
    #[arg(long, value_parser = ["hour", "day", "week", "month", "quarter", "year"])]
    period: Option<String>,
    /// Periods in one calendar window.
    #[arg(long, value_name = "N")]
    every: Option<u32>,
    /// Civil time from which calendar windows are counted, as in 2026-01-31T00:00:00.
    #[arg(long, value_name = "TIME")]
    anchor: Option<String>,
    /// Time zone of the anchor, as in Asia/Kolkata.
    #[arg(long, value_name = "ZONE")]
    time_zone: Option<String>,
    /// Most units that a bucket holds.
    #[arg(long, value_name = "N")]
    capacity: Option<u64>,
    /// Units that a token bucket earns per --per.
    #[arg(long, value_name = "N")]
    refill: Option<u64>,
    /// Units that a leaky bucket serves per --per.
    #[arg(long, value_name = "N")]
    drain: Option<u64>,
    /// The time in which --refill or --drain units pass, as in 1m.
    #[arg(long, value_name = "DURATION")]
    per: Option<String>,
    /// How long a concurrency slot is held without renewal, as in 60s.
    #[arg(long, value_name = "DURATION")]
    ttl: Option<String>,
    /// What is counted apart, as in user or ip; absent: one counter per tenant.
    #[arg(long, value_name = "NAME")]
    key: Option<String>,
    /// Actions that the limit applies to, with commas in between.
    #[arg(long, value_name = "ACTIONS", value_delimiter = ',')]
    actions: Option<Vec<String>>,
    /// Descriptors of a gateway that the limit applies to, with commas in between: key=value, key=prefix* or key.
    #[arg(long = "match", value_name = "ENTRIES", value_delimiter = ',')]
    matches: Option<Vec<String>>,
    /// How global the limit is.
    #[arg(long, value_parser = ["regional", "approximate", "strict"])]
    mode: Option<String>,
    /// What a check gets when the region cannot decide.
    #[arg(long, value_parser = ["open", "closed", "local"])]
    on_unavailable: Option<String>,
    /// The region's own quota for --on-unavailable local.
    #[arg(long, value_name = "N")]
    fallback_quota: Option<u64>,
    /// Approximate limits: what a cut-off side may admit.
    #[arg(long, value_parser = ["share", "open", "majority"])]
    on_partition: Option<String>,
    /// Approximate limits: how the remainder is shared near the limit.
    #[arg(long, value_parser = ["adaptive", "equal", "none"])]
    split: Option<String>,
    /// Keys that are never refused, with commas in between.
    #[arg(long, value_name = "KEYS", value_delimiter = ',')]
    always_allow: Option<Vec<String>>,
    /// Pass while 1 unit is left, then charge in full.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    overdraft: Option<bool>,
    /// When a charge is on disk: within the flush interval, or before the answer.
    #[arg(long, value_parser = ["async", "sync"])]
    durability: Option<String>,
    /// false counts and reports, and refuses nothing.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    enforce: Option<bool>,
    /// Count, and refuse nothing.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    unlimited: Option<bool>,
    /// With --override: when the override ends by itself, as in 2027-01-01T00:00:00Z.
    #[arg(long, value_name = "TIME", requires = "override_key")]
    expires_at: Option<String>,
}

impl LimitFlags {
    /// The given fields as the server reads them.
    pub fn to_json(&self) -> Map<String, Value> {
        let text = |text: &Option<String>| text.clone().map(Value::from);
        let list = |list: &Option<Vec<String>>| list.clone().map(Value::from);
        let fields = [
            ("algorithm", text(&self.algorithm)),
            ("quota", self.quota.map(Value::from)),
            ("window", text(&self.window)),
            ("period", text(&self.period)),
            ("every", self.every.map(Value::from)),
            ("anchor", text(&self.anchor)),
            ("time_zone", text(&self.time_zone)),
            ("capacity", self.capacity.map(Value::from)),
            ("refill", self.refill.map(Value::from)),
            ("drain", self.drain.map(Value::from)),
            ("per", text(&self.per)),
            ("ttl", text(&self.ttl)),
            ("key", text(&self.key)),
            ("actions", list(&self.actions)),
            ("match", list(&self.matches)),
            ("mode", text(&self.mode)),
            ("on_unavailable", text(&self.on_unavailable)),
            ("fallback_quota", self.fallback_quota.map(Value::from)),
            ("on_partition", text(&self.on_partition)),
            ("split", text(&self.split)),
            ("always_allow", list(&self.always_allow)),
            ("overdraft", self.overdraft.map(Value::from)),
            ("durability", text(&self.durability)),
            ("enforce", self.enforce.map(Value::from)),
            ("unlimited", self.unlimited.map(Value::from)),
            ("expires_at", text(&self.expires_at)),
        ];
        fields
            .into_iter()
            .filter_map(|(name, value)| Some((name.to_owned(), value?)))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;
    use clap::Parser;
    use serde_json::json;

    use crate::domain::limit::LimitSpec;

    use super::*;

    #[derive(Debug, Parser)]
    struct Harness {
        #[command(flatten)]
        flags: LimitFlags,
        #[arg(long = "override")]
        override_key: Option<String>,
    }

    #[test]
    fn every_field_of_a_limit_has_a_flag_and_every_flag_is_a_field() {
        let names: Vec<String> = Harness::command()
            .get_arguments()
            .filter_map(|argument| argument.get_long().map(|long| long.replace('-', "_")))
            .filter(|name| !matches!(name.as_str(), "help" | "override" | "expires_at"))
            .collect();
        let error =
            serde_json::from_value::<LimitSpec>(json!({ "unheard_of": 1 })).expect_err("unknown");
        let known = error.to_string();
        for name in &names {
            assert!(
                known.contains(&format!("`{name}`")),
                "{name} is no field: {known}"
            );
        }
        assert_eq!(
            known.matches('`').count() / 2 - 1,
            names.len(),
            "{known}\n{names:?}"
        );
    }

    #[test]
    fn flags_become_the_json_that_the_server_reads() {
        let given = [
            "x",
            "--quota",
            "10",
            "--period",
            "day",
            "--actions",
            "a,b",
            "--match",
            "path=/v1/*,ip",
            "--overdraft",
            "--enforce",
            "false",
            "--time-zone",
            "Asia/Kolkata",
            "--anchor",
            "2026-01-31T00:00:00",
        ];
        let json = Value::Object(
            Harness::try_parse_from(given)
                .expect("flags")
                .flags
                .to_json(),
        );
        let expected = json!({
            "quota": 10, "period": "day", "actions": ["a", "b"], "match": ["path=/v1/*", "ip"], "overdraft": true, "enforce": false,
            "time_zone": "Asia/Kolkata", "anchor": "2026-01-31T00:00:00",
        });
        assert_eq!(json, expected);
        serde_json::from_value::<LimitSpec>(json).expect("a limit");
    }
}
