//! Lays base, plan and tenant over each other and compiles the result into a complete [`Limit`].
//!
//! ```text
//!   limits.api  <  plans.pro.limits.api  <  tenants.acme.limits.api  <  …own  <  …keys.{key}
//!   \_____________________ merged, judged ______________________/     \_ amounts, see `amounts` _/
//! ```
//!
//! Each layer names only the fields that it changes. Four words change what lies below them:
//!
//! - naming `algorithm` drops the lower layers' fields that the algorithm does not have;
//! - naming `mode` drops lower `on_partition` and `split` unless it is `approximate`;
//! - naming `on_unavailable` drops a lower `fallback_quota` unless it is `local`;
//! - naming an amount takes back a lower `unlimited = true`.
//!
//! Faults are told with the path of the layer that the faulty field came from.

use compact_str::CompactString;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

use crate::catalogue::change::FieldError;
use crate::catalogue::check::REFILL_MAX;
use crate::catalogue::check::WINDOW_MAX;
use crate::catalogue::descriptor;
use crate::catalogue::descriptor::Entry;
use crate::catalogue::field;
use crate::catalogue::field::FIELDS;
use crate::catalogue::field::Field;
use crate::catalogue::path::FieldPath;
use crate::domain::calendar;
use crate::domain::calendar::Calendar;
use crate::domain::limit::AMOUNT_MAX;
use crate::domain::limit::Algorithm;
use crate::domain::limit::Limit;
use crate::domain::limit::LimitSpec;
use crate::domain::limit::Mode;
use crate::domain::limit::OnUnavailable;
use crate::domain::limit::Rule;
use crate::domain::name::LimitName;
use crate::domain::name::PlanName;
use crate::domain::name::TenantName;
use crate::domain::time::Span;

/// The window in which a limit is counted that is nothing but unlimited.
const UNLIMITED_WINDOW: Span = Span::from_seconds(86_400);
/// How long a concurrency slot is held when nobody says otherwise.
const DEFAULT_TTL: Span = Span::from_seconds(60);

/// Where a field of an effective limit was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Layer {
    /// `limits.{limit}`
    Base,
    /// `plans.{plan}.limits.{limit}`
    Plan,
    /// `tenants.{tenant}.limits.{limit}`
    Tenant,
}

/// The layers of one limit for one tenant, or for all tenants of a plan.
#[derive(Clone, Copy, Debug)]
pub struct Layers<'a> {
    /// The limit's name.
    pub limit: &'a LimitName,
    /// What holds for everybody.
    pub base: Option<&'a LimitSpec>,
    /// What the plan changes.
    pub plan: Option<(&'a PlanName, &'a LimitSpec)>,
    /// What an administrator has changed for the tenant.
    pub tenant: Option<(&'a TenantName, &'a LimitSpec)>,
    /// The tenant's time zone.
    pub time_zone: Option<&'a str>,
    /// The tenant's anchor.
    pub anchor: Option<DateTime>,
}

/// The layers laid over each other.
#[derive(Clone, Debug)]
pub struct Merged {
    /// All fields that are named.
    pub spec: LimitSpec,
    /// Where each was named.
    pub origin: [Option<Layer>; FIELDS],
}

/// A limit that was found complete and without contradiction.
#[derive(Clone, Debug)]
pub struct Compiled {
    /// The limit.
    pub limit: Limit,
    /// Whether somebody named `fallback_quota`; if not it follows the quota.
    pub fallback_named: bool,
}

impl<'a> Layers<'a> {
    fn present(&self) -> impl Iterator<Item = (Layer, &'a LimitSpec)> {
        let base = self.base.map(|spec| (Layer::Base, spec));
        let plan = self.plan.map(|(_, spec)| (Layer::Plan, spec));
        let tenant = self.tenant.map(|(_, spec)| (Layer::Tenant, spec));
        [base, plan, tenant].into_iter().flatten()
    }

    /// The path of this limit in `layer`.
    pub fn path(&self, layer: Layer) -> FieldPath {
        let root = FieldPath::root();
        let parent = match (layer, self.plan, self.tenant) {
            (Layer::Plan, Some((plan, _)), _) => root.with("plans").with(plan.as_str()),
            (Layer::Tenant, _, Some((tenant, _))) => root.with("tenants").with(tenant.as_str()),
            _ => root,
        };
        parent.with("limits").with(self.limit.as_str())
    }

    /// Lays the layers over each other.
    pub fn merge(&self) -> Merged {
        let mut merged = Merged {
            spec: LimitSpec::default(),
            origin: [None; FIELDS],
        };
        for (layer, spec) in self.present() {
            merged.lay_over(layer, spec);
        }
        merged
    }

    /// Merges, judges and completes the limit. `regions` share what `fallback_quota` leaves open.
    ///
    /// # Errors
    /// Everything that is missing, contradictory or not available.
    pub fn compile(&self, regions: u32) -> Result<Compiled, Vec<FieldError>> {
        let merged = self.merge();
        let mut judge = Judge {
            layers: self,
            merged: &merged,
            faults: Vec::new(),
        };
        let rule = judge.rule();
        judge.common(rule.as_ref().map(Rule::algorithm));
        match rule {
            Some(rule) if judge.faults.is_empty() => {
                Ok(complete(self.limit, merged, rule, regions))
            }
            _ => Err(judge.faults),
        }
    }
}

impl Merged {
    /// Where `field` was named.
    pub fn origin_of(&self, field: Field) -> Option<Layer> {
        // The table of all fields is in the order of the enum itself.
        self.origin.get(field as usize).copied().flatten()
    }

    fn lay_over(&mut self, layer: Layer, spec: &LimitSpec) {
        if let Some(algorithm) = spec.algorithm {
            let used = field::used_by(algorithm);
            field::OF_ALGORITHMS
                .iter()
                .filter(|of| !used.contains(of))
                .for_each(|of| self.drop(*of));
        }
        if spec.mode.is_some_and(|mode| mode != Mode::Approximate) {
            self.drop(Field::OnPartition);
            self.drop(Field::Split);
        }
        if spec
            .on_unavailable
            .is_some_and(|policy| policy != OnUnavailable::Local)
        {
            self.drop(Field::FallbackQuota);
        }
        if spec.quota.is_some() || spec.capacity.is_some() {
            self.drop(Field::Unlimited);
        }
        for field in Field::ALL.iter().filter(|field| field.is_in(spec)) {
            field.copy(spec, &mut self.spec);
            self.set_origin(*field, Some(layer));
        }
    }

    fn drop(&mut self, field: Field) {
        field.clear(&mut self.spec);
        self.set_origin(field, None);
    }

    fn set_origin(&mut self, field: Field, layer: Option<Layer>) {
        if let Some(origin) = self.origin.get_mut(field as usize) {
            *origin = layer;
        }
    }
}

/// Finds what is wrong with a merged limit.
struct Judge<'a> {
    layers: &'a Layers<'a>,
    merged: &'a Merged,
    faults: Vec<FieldError>,
}

impl Judge<'_> {
    /// A fault of `field` where it was named, or where it is missing.
    fn fault(&mut self, field: Field, message: impl Into<String>) {
        let origin = self.merged.origin_of(field);
        let layer = origin
            .or_else(|| self.merged.origin_of(Field::Algorithm))
            .or_else(|| self.layers.present().last().map(|(layer, _)| layer))
            .unwrap_or(Layer::Base);
        let path = self.layers.path(layer).with(field.name());
        self.faults.push(FieldError::new(&path, message));
    }

    fn needs<T>(&mut self, value: Option<T>, field: Field, what: &str) -> Option<T> {
        if value.is_none() {
            self.fault(field, format!("is missing; {what}"));
        }
        value
    }

    fn rule(&mut self) -> Option<Rule> {
        let spec = &self.merged.spec;
        let algorithm = match spec.algorithm {
            Some(algorithm) => algorithm,
            None if is_only_unlimited(spec) => {
                return Some(Rule::FixedWindow {
                    quota: spec.quota.unwrap_or(AMOUNT_MAX),
                    window: UNLIMITED_WINDOW,
                });
            }
            None => self.infer()?,
        };
        self.contradictions(algorithm);
        self.rule_of(algorithm)
    }

    /// The only algorithm that the named fields leave, or a fault that says what to name.
    fn infer(&mut self) -> Option<Algorithm> {
        let spec = &self.merged.spec;
        let hints: Vec<(Algorithm, Field)> = [
            (
                spec.period.is_some(),
                Algorithm::CalendarWindow,
                Field::Period,
            ),
            (spec.refill.is_some(), Algorithm::TokenBucket, Field::Refill),
            (spec.drain.is_some(), Algorithm::LeakyBucket, Field::Drain),
            (spec.ttl.is_some(), Algorithm::Concurrency, Field::Ttl),
        ]
        .into_iter()
        .filter_map(|(named, algorithm, field)| named.then_some((algorithm, field)))
        .collect();
        let message = match hints.as_slice() {
            [(algorithm, _)] => return Some(*algorithm),
            [] if spec.window.is_some() => {
                let windows = ["fixed_window", "sliding_window", "sliding_log"];
                format!(
                    "is missing; with `window` it can be {}",
                    field::choices(windows)
                )
            }
            [] if spec.capacity.is_some() => {
                "is missing; a bucket is a token_bucket with `refill` \
                                              or a leaky_bucket with `drain`"
                    .to_owned()
            }
            [] => self.nothing_to_go_by(),
            hints => {
                let fields = hints.iter().map(|(_, field)| field.name());
                format!(
                    "is missing, and {} exclude each other",
                    fields.collect::<Vec<_>>().join(" and ")
                )
            }
        };
        self.fault(Field::Algorithm, message);
        None
    }

    fn nothing_to_go_by(&self) -> String {
        let all = [
            "fixed_window",
            "calendar_window",
            "sliding_window",
            "sliding_log",
            "token_bucket",
            "leaky_bucket",
            "concurrency",
        ];
        let below = match self.layers.base {
            Some(_) => String::new(),
            None => format!("there is no limit {} below this one; ", self.layers.limit),
        };
        format!("is missing; {below}name {}", field::choices(all))
    }

    fn contradictions(&mut self, algorithm: Algorithm) {
        let used = field::used_by(algorithm);
        for of in field::OF_ALGORITHMS {
            if of.is_in(&self.merged.spec) && !used.contains(&of) {
                let name = field::algorithm_name(algorithm);
                let fields = field::choices(used.iter().map(|field| field.name()));
                let message = format!("does not belong to {name}, which has {fields}");
                self.fault(of, message);
            }
        }
    }

    fn rule_of(&mut self, algorithm: Algorithm) -> Option<Rule> {
        let spec = &self.merged.spec;
        let unlimited = spec.unlimited == Some(true);
        let quota = spec.quota.or(unlimited.then_some(AMOUNT_MAX));
        let quota_for =
            |judge: &mut Self| judge.needs(quota, Field::Quota, "write units per window");
        let window_for = |judge: &mut Self| {
            judge.needs(spec.window, Field::Window, "write a length, as in \"60s\"")
        };
        match algorithm {
            Algorithm::FixedWindow => {
                let (quota, window) = (quota_for(self), window_for(self));
                Some(Rule::FixedWindow {
                    quota: quota?,
                    window: window?,
                })
            }
            Algorithm::SlidingWindow => {
                let (quota, window) = (quota_for(self), window_for(self));
                Some(Rule::SlidingWindow {
                    quota: quota?,
                    window: window?,
                })
            }
            Algorithm::SlidingLog => {
                let (quota, window) = (quota_for(self), window_for(self));
                Some(Rule::SlidingLog {
                    quota: quota?,
                    window: window?,
                })
            }
            Algorithm::CalendarWindow => {
                let (quota, calendar) = (quota_for(self), self.calendar());
                Some(Rule::CalendarWindow {
                    quota: quota?,
                    calendar: calendar?,
                })
            }
            Algorithm::TokenBucket => {
                let (capacity, refill, per) = self.bucket(spec.refill, Field::Refill);
                Some(Rule::TokenBucket {
                    capacity: capacity?,
                    refill: refill?,
                    per: per?,
                })
            }
            Algorithm::LeakyBucket => {
                let (capacity, drain, per) = self.bucket(spec.drain, Field::Drain);
                Some(Rule::LeakyBucket {
                    capacity: capacity?,
                    drain: drain?,
                    per: per?,
                })
            }
            Algorithm::Concurrency => {
                let quota = self.needs(quota, Field::Quota, "write units held at once");
                Some(Rule::Concurrency {
                    quota: quota?,
                    ttl: spec.ttl.unwrap_or(DEFAULT_TTL),
                })
            }
        }
    }

    fn bucket(
        &mut self,
        rate: Option<u64>,
        rate_field: Field,
    ) -> (Option<u64>, Option<u64>, Option<Span>) {
        let spec = &self.merged.spec;
        let capacity = self.needs(
            spec.capacity,
            Field::Capacity,
            "write the most units it holds",
        );
        let rate = self.needs(rate, rate_field, "write the units that pass per `per`");
        let per = self.needs(spec.per, Field::Per, "write a length, as in \"1m\"");
        if let (Some(capacity), Some(rate), Some(per)) = (capacity, rate, per)
            && time_to_fill(capacity, rate, per) > REFILL_MAX
        {
            let name = rate_field.name();
            let message = format!(
                "is too slow: {capacity} units would take more than ten years; raise {name} or \
                 lower capacity"
            );
            self.fault(rate_field, message);
        }
        (capacity, rate, per)
    }

    fn calendar(&mut self) -> Option<Calendar> {
        let spec = &self.merged.spec;
        let what = "write hour, day, week, month, quarter or year";
        let period = self.needs(spec.period, Field::Period, what)?;
        let every = spec.every.unwrap_or(1);
        let anchor = spec
            .anchor
            .or(self.layers.anchor)
            .unwrap_or(period.default_anchor());
        let zone_name = spec.time_zone.as_deref().or(self.layers.time_zone);
        let zone = zone_name.map_or(Some(TimeZone::UTC), calendar::zone);
        let calendar = Calendar::new(
            period,
            every,
            anchor,
            self.needs(
                zone,
                Field::TimeZone,
                "write an IANA time zone, as in \"Europe/Berlin\"",
            )?,
        );
        if calendar.longest() > WINDOW_MAX {
            self.fault(
                Field::Every,
                "is too much: a window may last at most a hundred years",
            );
        }
        Some(calendar)
    }

    /// What does not depend on the amounts.
    fn common(&mut self, algorithm: Option<Algorithm>) {
        let spec = &self.merged.spec;
        let mode = spec.mode.unwrap_or_default();
        if let Some(algorithm) = algorithm {
            let modes = field::modes_of(algorithm);
            if !modes.contains(&mode) {
                let (algorithm, mode) = (field::algorithm_name(algorithm), field::mode_name(mode));
                let modes = field::choices(modes.iter().map(|mode| field::mode_name(*mode)));
                let message = format!("{algorithm} cannot be {mode}; it can be {modes}");
                self.fault(Field::Mode, message);
                return;
            }
        }
        for of in [Field::OnPartition, Field::Split] {
            if of.is_in(spec) && mode != Mode::Approximate {
                self.fault(of, "belongs to limits with mode = \"approximate\"");
            }
        }
        if spec.fallback_quota.is_some() && spec.on_unavailable != Some(OnUnavailable::Local) {
            self.fault(
                Field::FallbackQuota,
                "belongs to limits with on_unavailable = \"local\"",
            );
        }
        if spec.overdraft == Some(true) && mode == Mode::Strict {
            self.fault(
                Field::Overdraft,
                "cannot be kept by a strict limit, which is never exceeded",
            );
        }
        if spec
            .always_allow
            .as_ref()
            .is_some_and(|keys| !keys.is_empty())
            && spec.key.is_none()
        {
            self.fault(Field::AlwaysAllow, "lists keys, but the limit has no `key`");
        }
        if let Some(list) = spec.matches.as_deref().filter(|list| !list.is_empty()) {
            if algorithm == Some(Algorithm::Concurrency) {
                self.fault(
                    Field::Match,
                    "selects limits that are charged; concurrency is held",
                );
            }
            // What is wrong with a single entry was told where it is written.
            let entries: Result<Vec<Entry>, _> =
                list.iter().map(|text| Entry::parse(text)).collect();
            if let Ok(entries) = entries
                && let Err(message) = descriptor::counted(&entries, spec.key.as_deref())
            {
                self.fault(Field::Match, message);
            }
        }
    }
}

/// Whether nothing says how to count, and nothing needs to.
fn is_only_unlimited(spec: &LimitSpec) -> bool {
    let says_how = |of: &&Field| **of != Field::Quota && of.is_in(spec);
    spec.unlimited == Some(true) && !field::OF_ALGORITHMS.iter().any(|of| says_how(&of))
}

fn complete(name: &LimitName, merged: Merged, rule: Rule, regions: u32) -> Compiled {
    let spec = merged.spec;
    let mode = spec.mode.unwrap_or_default();
    let default_policy = match mode {
        Mode::Strict => OnUnavailable::Closed,
        Mode::Regional | Mode::Approximate => OnUnavailable::Open,
    };
    let limit = Limit {
        name: name.clone(),
        key: spec.key.map(CompactString::from),
        actions: spec.actions.unwrap_or_default(),
        matches: spec.matches.unwrap_or_default().into(),
        mode,
        on_unavailable: spec.on_unavailable.unwrap_or(default_policy),
        fallback_quota: spec
            .fallback_quota
            .unwrap_or_else(|| fallback_quota(&rule, regions)),
        on_partition: spec.on_partition.unwrap_or_default(),
        split: spec.split.unwrap_or_default(),
        always_allow: spec.always_allow.unwrap_or_default(),
        overdraft: spec.overdraft.unwrap_or(false),
        durability: spec.durability.unwrap_or_default(),
        enforce: spec.enforce.unwrap_or(true),
        unlimited: spec.unlimited.unwrap_or(false),
        rule,
    };
    Compiled {
        limit,
        fallback_named: spec.fallback_quota.is_some(),
    }
}

/// One region's part of the quota, rounded up.
pub fn fallback_quota(rule: &Rule, regions: u32) -> u64 {
    rule.quota().div_ceil(u64::from(regions.max(1)))
}

/// The time that `rate` units per `per` take for `capacity` units, rounded up.
pub fn time_to_fill(capacity: u64, rate: u64, per: Span) -> Span {
    let nanos = u128::from(capacity) * u128::from(per.as_nanos());
    Span::from_nanos_saturating(nanos.div_ceil(u128::from(rate.max(1))))
}
