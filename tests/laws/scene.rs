//! Builds limits and ledgers, and asks a ledger the way a region does.

use std::collections::BTreeSet;

use highwater::algorithm::concurrency::Lease;
use highwater::catalogue::intern::LimitId;
use highwater::domain::calendar::Calendar;
use highwater::domain::calendar::Period;
use highwater::domain::calendar::zone;
use highwater::domain::limit::Durability;
use highwater::domain::limit::Limit;
use highwater::domain::limit::Mode;
use highwater::domain::limit::OnPartition;
use highwater::domain::limit::OnUnavailable;
use highwater::domain::limit::Rule;
use highwater::domain::limit::Split;
use highwater::domain::name::LimitName;
use highwater::domain::name::RegionName;
use highwater::domain::time::Span;
use highwater::domain::time::Timestamp;
use highwater::ledger::Bounds;
use highwater::ledger::Ledger;
use highwater::ledger::check::Item;
use highwater::ledger::check::ItemOutcome;
use highwater::ledger::check::Outcome;
use highwater::ledger::check::Request;
use highwater::ledger::hold::Receipt;
use highwater::usage::actor::Actor;
use highwater::usage::actor::ActorId;
use highwater::usage::actor::ActorTable;
use highwater::usage::record::CounterRecord;
use proptest::test_runner::Config;
use proptest::test_runner::RngSeed;

/// Nanoseconds in a second.
pub const SECOND: i64 = 1_000_000_000;
/// The last day of November 2026, at midnight.
pub const T0: i64 = 1_795_996_800 * SECOND;

/// `cases` random cases from a fixed seed, unless the environment asks for something else.
pub fn config(cases: u32) -> Config {
    let mut config = Config {
        failure_persistence: None,
        ..Config::default()
    };
    if std::env::var_os("PROPTEST_CASES").is_none() {
        config.cases = cases;
    }
    if std::env::var_os("PROPTEST_RNG_SEED").is_none() {
        config.rng_seed = RngSeed::Fixed(0x6869_6768_7761_7465);
    }
    config
}

/// The instant `nanos` after the Unix epoch.
pub fn at(nanos: i64) -> Timestamp {
    Timestamp::from_nanos(nanos)
}

/// The instant `ms` milliseconds after [`T0`].
pub fn ms(ms: i64) -> Timestamp {
    at(T0 + ms * 1_000_000)
}

/// `nanos` as a span.
pub fn span(nanos: i64) -> Span {
    Span::from_nanos(u64::try_from(nanos).expect("a span is not negative"))
}

/// Seconds as a span.
pub fn seconds(seconds: u64) -> Span {
    Span::from_seconds(seconds)
}

/// The name behind a number in all these tests.
pub fn name_of(id: LimitId) -> LimitName {
    LimitName::new(&format!("limit-{}", id.0)).expect("a limit's name")
}

/// The number behind a name in all these tests.
pub fn id_of(name: &LimitName) -> Option<LimitId> {
    let number = name.as_str().strip_prefix("limit-")?;
    number.parse().ok().map(LimitId)
}

/// An enforced regional limit without frills.
pub fn limit(rule: Rule) -> Limit {
    Limit {
        name: name_of(LimitId(1)),
        rule,
        key: None,
        actions: BTreeSet::new(),
        matches: Default::default(),
        mode: Mode::Regional,
        on_unavailable: OnUnavailable::Open,
        fallback_quota: 0,
        on_partition: OnPartition::Share,
        split: Split::Adaptive,
        always_allow: BTreeSet::new(),
        overdraft: false,
        durability: Durability::Async,
        enforce: true,
        unlimited: false,
    }
}

/// `quota` per `window`, aligned.
pub fn fixed(quota: u64, window: Span) -> Rule {
    Rule::FixedWindow { quota, window }
}

/// `quota` per `window`, weighted.
pub fn sliding(quota: u64, window: Span) -> Rule {
    Rule::SlidingWindow { quota, window }
}

/// `quota` in any `window`.
pub fn log(quota: u64, window: Span) -> Rule {
    Rule::SlidingLog { quota, window }
}

/// Holds `capacity`, earns `refill` per `per`.
pub fn bucket(capacity: u64, refill: u64, per: Span) -> Rule {
    Rule::TokenBucket {
        capacity,
        refill,
        per,
    }
}

/// Queues `capacity`, serves `drain` per `per`.
pub fn leaky(capacity: u64, drain: u64, per: Span) -> Rule {
    Rule::LeakyBucket {
        capacity,
        drain,
        per,
    }
}

/// `quota` held at once.
pub fn concurrency(quota: u64) -> Rule {
    Rule::Concurrency {
        quota,
        ttl: seconds(60),
    }
}

/// `quota` per calendar period in a zone.
pub fn calendar(quota: u64, period: Period, zone_name: &str) -> Rule {
    let zone = zone(zone_name).expect("a zone of the bundled database");
    Rule::CalendarWindow {
        quota,
        calendar: Calendar::new(period, 1, period.default_anchor(), zone),
    }
}

/// Bounds that no test meets by accident.
pub const WIDE: Bounds = Bounds {
    keys_max: 1_000_000,
    keys_per_tenant_max: 1_000_000,
};

/// The actor table of the `start`-th process of one region; the earlier ones are known too.
pub fn actors(start: u32) -> ActorTable {
    let region = RegionName::new("us-east-1").expect("a region's name");
    let actors = (0..=start)
        .map(|n| Actor {
            region: region.clone(),
            incarnation: 0x5eed_0000 + u64::from(n),
        })
        .collect();
    ActorTable::new(actors, ActorId(start))
}

/// An empty ledger of the `start`-th process.
pub fn ledger_of_start(start: u32, bounds: Bounds) -> Ledger {
    Ledger::new(bounds, actors(start), start, [start.into(), 0x1234])
}

/// An empty ledger.
pub fn ledger() -> Ledger {
    ledger_of_start(1, WIDE)
}

/// One limit of one tenant, asked with one key.
#[derive(Clone, Debug)]
pub struct Desk {
    /// The limit in force.
    pub limit: Limit,
    /// The number of its name.
    pub id: LimitId,
    /// Its epoch.
    pub epoch: u64,
    /// Who asks.
    pub tenant: String,
    /// The key.
    pub key: String,
    /// Whether the store is taken to have failed.
    pub store_failed: bool,
}

impl Desk {
    /// A desk for `rule`.
    pub fn new(rule: Rule) -> Self {
        Self::of(limit(rule))
    }

    /// A desk for `limit`.
    pub fn of(limit: Limit) -> Self {
        Self {
            limit,
            id: LimitId(1),
            epoch: 1,
            tenant: "acme".to_owned(),
            key: "user-1".to_owned(),
            store_failed: false,
        }
    }

    /// The same desk for another key.
    pub fn with_key(&self, key: &str) -> Self {
        Self {
            key: key.to_owned(),
            ..self.clone()
        }
    }

    /// The same desk under another number of limit.
    pub fn with_id(&self, id: u32) -> Self {
        let mut other = self.clone();
        other.id = LimitId(id);
        other.limit.name = name_of(other.id);
        other
    }

    /// What a check of `cost` names.
    pub fn item(&self, cost: u64) -> Item<'_> {
        Item {
            limit: &self.limit,
            id: self.id,
            epoch: self.epoch,
            key: &self.key,
            cost,
        }
    }

    /// Asks `ledger` for `cost` units.
    pub fn ask(
        &self,
        ledger: &Ledger,
        now: Timestamp,
        cost: u64,
        hold: Option<(u128, Timestamp)>,
    ) -> Outcome {
        let items = [self.item(cost)];
        ledger.check(&Request {
            judge_only: false,
            boot: Span::ZERO,
            words: &[],
            now,
            tenant: &self.tenant,
            items: &items,
            hold,
            keep: true,
            store_failed: self.store_failed,
        })
    }

    /// Asks for `cost` units and tells what the limit said.
    pub fn take(&self, ledger: &Ledger, now: Timestamp, cost: u64) -> ItemOutcome {
        self.ask(ledger, now, cost, None).items[0]
    }

    /// Whether `cost` units pass.
    pub fn passes(&self, ledger: &Ledger, now: Timestamp, cost: u64) -> bool {
        self.ask(ledger, now, cost, None).allowed
    }

    /// Looks.
    pub fn look(&self, ledger: &Ledger, now: Timestamp) -> ItemOutcome {
        self.take(ledger, now, 0)
    }

    /// Takes `units` under a hold; the receipt if they were there.
    pub fn hold(
        &self,
        ledger: &Ledger,
        now: Timestamp,
        units: u64,
        hold: u128,
        expires_at: Timestamp,
    ) -> Option<Receipt> {
        self.ask(ledger, now, units, Some((hold, expires_at)))
            .receipts
            .pop()
    }

    /// Gives up to `units` of what is in use back; returns how many.
    pub fn refund(&self, ledger: &Ledger, now: Timestamp, units: u64) -> u64 {
        ledger.refund(&self.item(units), &self.tenant, now).units
    }

    /// Gives up to `units` of one charge back; returns how many.
    pub fn give_back(
        &self,
        ledger: &Ledger,
        now: Timestamp,
        receipt: &Receipt,
        units: u64,
        hold: u128,
    ) -> u64 {
        ledger
            .give_back(self.id, &self.limit, receipt, units, hold, now)
            .units
    }

    /// Charges `units` that have been used already to a hold; returns how many.
    pub fn charge_late(
        &self,
        ledger: &Ledger,
        now: Timestamp,
        units: u64,
        hold: u128,
        expires_at: Timestamp,
    ) -> u64 {
        let lease = Lease {
            hold,
            expires_at,
            units,
        };
        ledger
            .charge_late(&self.item(units), &self.tenant, lease, now)
            .units
    }
}

/// Everything that `ledger` has changed since the last call.
pub fn drain(ledger: &Ledger) -> Vec<CounterRecord> {
    let mut records = Vec::new();
    for shard in 0..ledger.shards() {
        ledger.drain(shard, |id| Some(name_of(id)), &mut records);
    }
    records
}
