//! The limits under test, and which amounts may have been in force when.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use serde_json::Value;
use serde_json::json;

/// Tenants of the load.
pub const TENANTS: [&str; 3] = ["acme", "beta", "ciel"];
/// Keys of every limit and tenant.
pub const KEYS: u32 = 5;
/// Regions' clocks, and with them log time, may be this far from the harness's, in milliseconds; and a
/// window may be granted this long before it begins.
pub const SLACK_MS: i64 = 8_000;

/// How a limit is held to its promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Units per window, told by the answers. The length in milliseconds.
    Windowed(i64),
    /// The same; only keyed calls, and never reset, so that use is known exactly.
    Once,
    /// Units over any interval: capacity, refill in its `per` of so many milliseconds.
    Bucket(i64),
    /// Leases at any instant.
    Concurrency,
}

/// A limit.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    /// Its name.
    pub name: &'static str,
    /// How it is judged.
    pub kind: Kind,
    /// The amount that it begins with.
    pub quota: u64,
    /// Units of a check: 1 to this.
    pub cost_max: u64,
    /// The share of the load, in parts of all.
    pub weight: u32,
    /// Whether units are given back by refunds and settles.
    pub gives_back: bool,
    /// Whether its amount is changed in the run.
    pub changes: bool,
}

const fn windowed(
    name: &'static str,
    seconds: i64,
    quota: u64,
    cost_max: u64,
    weight: u32,
) -> Limit {
    Limit {
        name,
        kind: Kind::Windowed(seconds * 1_000),
        quota,
        cost_max,
        weight,
        gives_back: false,
        changes: false,
    }
}

/// All of them. 15 counters each.
pub const LIMITS: [Limit; 17] = [
    windowed("w5-one", 5, 1, 1, 4),
    windowed("w5-ten", 5, 10, 3, 6),
    Limit {
        changes: true,
        ..windowed("w5-many", 5, 60, 5, 8)
    },
    windowed("w10-two", 10, 2, 1, 4),
    Limit {
        gives_back: true,
        ..windowed("w10-twenty", 10, 20, 5, 8)
    },
    Limit {
        changes: true,
        ..windowed("w10-more", 10, 150, 5, 10)
    },
    windowed("w10-huge", 10, 100_000, 5, 6),
    Limit {
        gives_back: true,
        changes: true,
        ..windowed("w60-fifty", 60, 50, 5, 6)
    },
    windowed("w60-thousand", 60, 1_000, 5, 10),
    windowed("w60-huge", 60, 100_000, 5, 6),
    windowed("w10-open", 10, 15, 3, 4),
    Limit {
        kind: Kind::Once,
        gives_back: true,
        ..windowed("once", 1, 1_000_000_000, 5, 6)
    },
    Limit {
        kind: Kind::Bucket(10_000),
        ..windowed("bucket", 10, 30, 5, 5)
    },
    Limit {
        kind: Kind::Bucket(5_000),
        ..windowed("bucket-few", 5, 3, 1, 4)
    },
    Limit {
        kind: Kind::Bucket(20_000),
        changes: true,
        ..windowed("bucket-more", 20, 200, 5, 6)
    },
    windowed("slide", 10, 40, 5, 5),
    Limit {
        kind: Kind::Concurrency,
        ..windowed("lease", 10, 4, 1, 5)
    },
];

/// The limit of that name.
pub fn limit(name: &str) -> Option<&'static Limit> {
    LIMITS.iter().find(|limit| limit.name == name)
}

impl Limit {
    /// Its definition with an amount.
    pub fn definition(&self, quota: u64) -> Value {
        match self.kind {
            Kind::Windowed(ms) => json!({
                "algorithm": if self.name == "slide" { "sliding_window" } else { "fixed_window" },
                "quota": quota, "window": format!("{ms}ms"), "key": "user", "mode": "strict",
                "on_unavailable": if self.name == "w10-open" { "open" } else { "closed" },
            }),
            Kind::Once => json!({
                "algorithm": "fixed_window", "quota": quota, "window": "3650d", "key": "user", "mode": "strict",
            }),
            Kind::Bucket(ms) => json!({
                "algorithm": "token_bucket", "capacity": quota, "refill": quota, "per": format!("{ms}ms"),
                "key": "user", "mode": "strict",
            }),
            Kind::Concurrency => json!({
                "algorithm": "concurrency", "quota": quota, "ttl": "4s", "key": "user", "mode": "strict",
            }),
        }
    }
}

/// The catalogue that the run begins with.
pub fn catalogue() -> Value {
    let limits: serde_json::Map<String, Value> = LIMITS
        .iter()
        .map(|limit| (limit.name.to_owned(), limit.definition(limit.quota)))
        .collect();
    let tenants: serde_json::Map<String, Value> = TENANTS
        .iter()
        .map(|tenant| ((*tenant).to_owned(), json!({ "plan": "all" })))
        .collect();
    json!({ "plans": { "all": {} }, "limits": limits, "tenants": tenants })
}

/// An amount that may have been in force.
#[derive(Clone, Copy, Debug)]
struct Force {
    quota: u64,
    /// From when on it may have been.
    from: i64,
    /// When it surely was no more.
    until: i64,
    /// Whether the change was acknowledged; another one may be made late.
    is_known: bool,
}

/// A change whose outcome is not known may be made so much later, in milliseconds.
const LATE_MS: i64 = 15_000;

/// Which amounts may have been in force when, by limit.
#[derive(Debug, Default)]
pub struct Amounts(Mutex<BTreeMap<&'static str, Vec<Force>>>);

impl Amounts {
    /// The amounts of [`catalogue`], from the beginning of time.
    pub fn new() -> Self {
        let first = |limit: &Limit| {
            let force = Force {
                quota: limit.quota,
                from: i64::MIN,
                until: i64::MAX,
                is_known: true,
            };
            (limit.name, vec![force])
        };
        Self(Mutex::new(LIMITS.iter().map(first).collect()))
    }

    /// A change to `quota` is sent at `now`.
    pub fn begin(&self, limit: &'static str, quota: u64, now: i64) {
        let force = Force {
            quota,
            from: now,
            until: i64::MAX,
            is_known: false,
        };
        self.0.lock().entry(limit).or_default().push(force);
    }

    /// The change that was begun last was acknowledged at `now`: all before it are over.
    pub fn acknowledged(&self, limit: &'static str, now: i64) {
        let mut all = self.0.lock();
        let forces = all.entry(limit).or_default();
        let before = forces.len().saturating_sub(1);
        for force in &mut forces[..before] {
            let late = if force.is_known { 0 } else { LATE_MS };
            force.until = force.until.min(now + late);
        }
        if let Some(last) = forces.last_mut() {
            last.is_known = true;
        }
    }

    /// The largest that may have been in force between two instants, with the clocks' slack.
    pub fn largest(&self, limit: &str, from: i64, until: i64) -> u64 {
        let all = self.0.lock();
        let forces = all.get(limit).map(Vec::as_slice).unwrap_or_default();
        forces
            .iter()
            .filter(|force| {
                force.from <= until.saturating_add(SLACK_MS)
                    && force.until >= from.saturating_sub(SLACK_MS)
            })
            .map(|force| force.quota)
            .max()
            .unwrap_or(0)
    }
}
