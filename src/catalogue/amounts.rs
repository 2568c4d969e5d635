//! Other amounts for the same limit: a tenant's own choice, and overrides of single keys.
//!
//! An administrator's override replaces amounts. What a tenant chooses itself only ever lowers them: it
//! is cut to what plan and administrator have set, also when that falls below the choice later on.
//! A choice that no longer fits the limit's algorithm is passed over rather than refused, so that no
//! tenant can stand in the way of an administrator.

use std::collections::BTreeSet;
use std::sync::Arc;

use hashbrown::HashMap;

use crate::catalogue::change::FieldError;
use crate::catalogue::check::REFILL_MAX;
use crate::catalogue::effective::Compiled;
use crate::catalogue::effective::fallback_quota;
use crate::catalogue::effective::time_to_fill;
use crate::catalogue::field;
use crate::catalogue::path::FieldPath;
use crate::catalogue::sharded::FixedState;
use crate::catalogue::tree::Amounts;
use crate::catalogue::tree::KeySpec;
use crate::catalogue::tree::TenantLimit;
use crate::domain::limit::Limit;
use crate::domain::limit::Rule;
use crate::domain::name::Key;
use crate::domain::time::Timestamp;

/// What one key gets instead of the limit, in order of time: the first piece whose end is not past.
pub type Pieces = Box<[(Timestamp, Arc<Limit>)]>;
/// Overrides by key.
pub type Overrides = HashMap<Key, Pieces, FixedState>;

/// The amounts of a rule.
pub const fn of_rule(rule: &Rule) -> Amounts {
    let mut amounts = Amounts {
        quota: None,
        capacity: None,
        refill: None,
        drain: None,
    };
    match rule {
        Rule::FixedWindow { quota, .. }
        | Rule::CalendarWindow { quota, .. }
        | Rule::SlidingWindow { quota, .. }
        | Rule::SlidingLog { quota, .. }
        | Rule::Concurrency { quota, .. } => amounts.quota = Some(*quota),
        Rule::TokenBucket {
            capacity, refill, ..
        } => {
            amounts.capacity = Some(*capacity);
            amounts.refill = Some(*refill);
        }
        Rule::LeakyBucket {
            capacity, drain, ..
        } => {
            amounts.capacity = Some(*capacity);
            amounts.drain = Some(*drain);
        }
    }
    amounts
}

fn set_rule(rule: &mut Rule, amounts: &Amounts) {
    let set = |place: &mut u64, amount: Option<u64>| *place = amount.unwrap_or(*place);
    match rule {
        Rule::FixedWindow { quota, .. }
        | Rule::CalendarWindow { quota, .. }
        | Rule::SlidingWindow { quota, .. }
        | Rule::SlidingLog { quota, .. }
        | Rule::Concurrency { quota, .. } => set(quota, amounts.quota),
        Rule::TokenBucket {
            capacity, refill, ..
        } => {
            set(capacity, amounts.capacity);
            set(refill, amounts.refill);
        }
        Rule::LeakyBucket {
            capacity, drain, ..
        } => {
            set(capacity, amounts.capacity);
            set(drain, amounts.drain);
        }
    }
}

/// How long a bucket takes to fill or drain; nothing for the rest.
fn fill_of(rule: &Rule) -> Option<(u64, &'static str, bool)> {
    let (capacity, rate, per, name) = match rule {
        Rule::TokenBucket {
            capacity,
            refill,
            per,
        } => (*capacity, *refill, *per, "refill"),
        Rule::LeakyBucket {
            capacity,
            drain,
            per,
        } => (*capacity, *drain, *per, "drain"),
        Rule::FixedWindow { .. }
        | Rule::CalendarWindow { .. }
        | Rule::SlidingWindow { .. }
        | Rule::SlidingLog { .. }
        | Rule::Concurrency { .. } => return None,
    };
    let held = u128::from(REFILL_MAX.as_nanos()) * u128::from(rate);
    let held = held / u128::from(per.as_nanos().max(1));
    let most = u64::try_from(held).unwrap_or(u64::MAX).max(1);
    Some((most, name, time_to_fill(capacity, rate, per) > REFILL_MAX))
}

/// Faults of amounts that are to replace those of `limit`: names that its algorithm does not have, and a
/// bucket that would take too long to fill.
pub fn faults(path: &FieldPath, limit: &Limit, amounts: &Amounts) -> Vec<FieldError> {
    let used = field::used_by(limit.rule.algorithm());
    let mut faults: Vec<FieldError> = amounts
        .named()
        .filter(|(name, _)| !used.iter().any(|field| field.name() == *name))
        .map(|(name, _)| {
            let algorithm = field::algorithm_name(limit.rule.algorithm());
            let fields = field::choices(of_rule(&limit.rule).named().map(|(name, _)| name));
            let message = format!("does not belong to {algorithm}; its amounts are {fields}");
            FieldError::new(&path.with(name), message)
        })
        .collect();
    let mut rule = limit.rule.clone();
    set_rule(&mut rule, amounts);
    if let Some((_, name, true)) = fill_of(&rule) {
        let message = "is too slow: to fill the bucket would take more than ten years";
        faults.push(FieldError::new(&path.with(name), message));
    }
    faults
}

/// `limit` with an administrator's override laid over it.
fn overridden(base: &Compiled, limit: &Limit, spec: &KeySpec, regions: u32) -> Limit {
    let mut limit = limit.clone();
    let amounts = spec.amounts();
    set_rule(&mut limit.rule, &amounts);
    if amounts.quota.is_some() || amounts.capacity.is_some() {
        limit.unlimited = false;
    }
    limit.unlimited = spec.unlimited.unwrap_or(limit.unlimited);
    limit.enforce = spec.enforce.unwrap_or(limit.enforce);
    match spec.fallback_quota {
        Some(units) => limit.fallback_quota = units,
        None if base.fallback_named => {}
        None => limit.fallback_quota = fallback_quota(&limit.rule, regions),
    }
    limit
}

/// `limit` with amounts that a tenant has chosen, each cut to what `ceiling` has.
fn chosen(base: &Compiled, limit: &Limit, ceiling: &Limit, own: &Amounts, regions: u32) -> Limit {
    let most = of_rule(&ceiling.rule);
    let cut = |own: Option<u64>, most: Option<u64>| Some(own?.min(most?));
    let amounts = Amounts {
        quota: cut(own.quota, most.quota),
        capacity: cut(own.capacity, most.capacity),
        refill: cut(own.refill, most.refill),
        drain: cut(own.drain, most.drain),
    };
    if amounts.is_empty() {
        return limit.clone();
    }
    let mut limit = limit.clone();
    set_rule(&mut limit.rule, &amounts);
    if let Some((most, _, true)) = fill_of(&limit.rule) {
        let amounts = Amounts {
            capacity: Some(most),
            ..Amounts::default()
        };
        set_rule(&mut limit.rule, &amounts);
    }
    if amounts.quota.is_some() || amounts.capacity.is_some() {
        limit.unlimited = false;
    }
    if !base.fallback_named {
        limit.fallback_quota = fallback_quota(&limit.rule, regions);
    }
    limit
}

/// What plan and administrator allow `key` at `now`, the tenant's own choices left out.
pub fn ceiling(
    base: &Compiled,
    tenant_limit: &TenantLimit,
    key: Option<&Key>,
    now: Timestamp,
    regions: u32,
) -> Limit {
    let spec = key
        .and_then(|key| tenant_limit.keys.get(key))
        .filter(|spec| now < spec.ends());
    match spec {
        Some(spec) => overridden(base, &base.limit, spec, regions),
        None => base.limit.clone(),
    }
}

/// The limit as the tenant has it, with its own choice, and what single keys get instead.
///
/// # Errors
/// Overrides of an administrator that do not fit the limit; `path` is where the tenant's limit stands.
pub fn lay_over(
    path: &FieldPath,
    base: &Compiled,
    tenant_limit: &TenantLimit,
    regions: u32,
) -> Result<(Limit, Overrides), Vec<FieldError>> {
    let mut faults_found = Vec::new();
    for (key, spec) in &tenant_limit.keys {
        let path = path.with("keys").with(key.as_str());
        if base.limit.key.is_none() {
            faults_found.push(FieldError::new(
                &path,
                "names a key, but the limit has no `key`",
            ));
        } else {
            faults_found.extend(faults(&path, &base.limit, &spec.amounts()));
        }
    }
    if !faults_found.is_empty() {
        return Err(faults_found);
    }
    let own = &tenant_limit.own;
    let limit = chosen(base, &base.limit, &base.limit, &own.amounts(), regions);
    let keys: BTreeSet<&Key> = tenant_limit.keys.keys().chain(own.keys.keys()).collect();
    let mut overrides = Overrides::default();
    if base.limit.key.is_some() {
        for key in keys {
            overrides.insert(
                key.clone(),
                pieces(base, &limit, tenant_limit, key, regions),
            );
        }
    }
    Ok((limit, overrides))
}

/// The limit of one key over time: both kinds of override end by themselves.
fn pieces(
    base: &Compiled,
    limit: &Limit,
    tenant_limit: &TenantLimit,
    key: &Key,
    regions: u32,
) -> Pieces {
    let admin = tenant_limit.keys.get(key);
    let own = tenant_limit.own.keys.get(key);
    let mut ends: Vec<Timestamp> = [admin, own]
        .into_iter()
        .flatten()
        .map(KeySpec::ends)
        .collect();
    ends.sort_unstable();
    ends.dedup();
    ends.into_iter()
        .map(|end| {
            // Inside a piece exactly those overrides count that last at least until its end.
            let lasts = |spec: &&KeySpec| spec.ends() >= end;
            let mut result = limit.clone();
            let mut ceiling = base.limit.clone();
            if let Some(spec) = admin.filter(lasts) {
                result = overridden(base, &result, spec, regions);
                ceiling = overridden(base, &ceiling, spec, regions);
            }
            if let Some(spec) = own.filter(lasts) {
                result = chosen(base, &result, &ceiling, &spec.amounts(), regions);
            }
            (end, Arc::new(result))
        })
        .collect()
}
