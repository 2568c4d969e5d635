//! Values that no limit can have, whatever it is laid over: judged where they are written.

use crate::catalogue::change::FieldError;
use crate::catalogue::descriptor;
use crate::catalogue::descriptor::Entry;
use crate::catalogue::path::FieldPath;
use crate::catalogue::tree::Amounts;
use crate::catalogue::tree::KeySpec;
use crate::catalogue::tree::OwnLimit;
use crate::catalogue::tree::Plan;
use crate::catalogue::tree::Tenant;
use crate::domain::calendar;
use crate::domain::limit::AMOUNT_MAX;
use crate::domain::limit::LimitSpec;
use crate::domain::time::Span;

const DAY_SECONDS: u64 = 86_400;
/// The longest window: a hundred years. Two of them fit the range of an instant.
pub const WINDOW_MAX: Span = Span::from_seconds(36_525 * DAY_SECONDS);
/// The longest time to fill or drain a bucket, and the longest `per`: ten years.
pub const REFILL_MAX: Span = Span::from_seconds(3_652 * DAY_SECONDS);
/// The longest lease: a day, as for holds.
pub const TTL_MAX: Span = Span::from_seconds(DAY_SECONDS);
/// Years in which an anchor may lie: those in which every window can be told as an instant.
const ANCHOR_YEARS: std::ops::RangeInclusive<i16> = 1700..=2200;
/// Most actions of one limit.
const ACTIONS_MAX: usize = 64;
/// The longest action or key label, in bytes.
const LABEL_BYTES_MAX: usize = 64;
/// Most keys that one limit always allows.
const ALWAYS_ALLOW_MAX: usize = 1_000;
/// Most overrides of one limit of one tenant, each of the two kinds.
pub const OVERRIDES_MAX: usize = 10_000;

/// Faults of a limit's fields, each by itself.
pub fn limit(path: &FieldPath, spec: &LimitSpec, faults: &mut Vec<FieldError>) {
    let mut fault = |name: &str, message: String| {
        faults.push(FieldError::new(&path.with(name), message));
    };
    amount("quota", spec.quota, 0, &mut fault);
    amount("capacity", spec.capacity, 1, &mut fault);
    amount("refill", spec.refill, 1, &mut fault);
    amount("drain", spec.drain, 1, &mut fault);
    amount("fallback_quota", spec.fallback_quota, 0, &mut fault);
    length("window", spec.window, WINDOW_MAX, &mut fault);
    length("per", spec.per, REFILL_MAX, &mut fault);
    length("ttl", spec.ttl, TTL_MAX, &mut fault);
    if spec.every == Some(0) {
        fault("every", "must be at least 1".to_owned());
    }
    calendar_fields(spec.anchor, spec.time_zone.as_deref(), &mut fault);
    if let Some(key) = &spec.key
        && !is_label(key)
    {
        fault(
            "key",
            "must be 1 to 64 bytes without control characters, as in \"user\"".to_owned(),
        );
    }
    if let Some(actions) = &spec.actions {
        if actions.len() > ACTIONS_MAX {
            fault(
                "actions",
                format!("must have at most {ACTIONS_MAX} entries"),
            );
        }
        if let Some(action) = actions.iter().find(|action| !is_label(action)) {
            let action: String = action.chars().take(LABEL_BYTES_MAX).collect();
            let message = "is not 1 to 64 bytes without control characters";
            fault("actions", format!("{action:?} {message}"));
        }
    }
    if let Some(list) = &spec.matches {
        if list.len() > descriptor::ENTRIES_MAX {
            let most = descriptor::ENTRIES_MAX;
            fault("match", format!("must have at most {most} entries"));
        }
        for text in list {
            if let Err(message) = Entry::parse(text) {
                let text: String = text.chars().take(LABEL_BYTES_MAX).collect();
                fault("match", format!("{text:?} {message}"));
            }
        }
    }
    if spec
        .always_allow
        .as_ref()
        .is_some_and(|keys| keys.len() > ALWAYS_ALLOW_MAX)
    {
        fault(
            "always_allow",
            format!("must have at most {ALWAYS_ALLOW_MAX} keys"),
        );
    }
}

/// Faults of a plan's limits, each by itself.
pub fn plan(path: &FieldPath, plan: &Plan, faults: &mut Vec<FieldError>) {
    for (name, spec) in &plan.limits {
        limit(&path.with("limits").with(name.as_str()), spec, faults);
    }
}

/// Faults of a tenant, each by itself.
pub fn tenant(path: &FieldPath, tenant: &Tenant, faults: &mut Vec<FieldError>) {
    calendar_fields(
        tenant.anchor,
        tenant.time_zone.as_deref(),
        &mut |name, message| {
            faults.push(FieldError::new(&path.with(name), message));
        },
    );
    for (name, tenant_limit) in &tenant.limits {
        let path = path.with("limits").with(name.as_str());
        limit(&path, &tenant_limit.spec, faults);
        count(&path.with("keys"), tenant_limit.keys.len(), faults);
        for (key, spec) in &tenant_limit.keys {
            key_override(&path.with("keys").with(key.as_str()), spec, faults);
        }
        own(&path.with("own"), &tenant_limit.own, faults);
    }
}

/// Faults of a tenant's own choices, each by itself.
pub fn own(path: &FieldPath, own: &OwnLimit, faults: &mut Vec<FieldError>) {
    amounts(path, &own.amounts(), faults);
    count(&path.with("keys"), own.keys.len(), faults);
    for (key, spec) in &own.keys {
        let path = path.with("keys").with(key.as_str());
        amounts(&path, &spec.amounts(), faults);
        only_amounts(&path, spec, faults);
    }
}

/// Faults of an override, each by itself.
pub fn key_override(path: &FieldPath, spec: &KeySpec, faults: &mut Vec<FieldError>) {
    amounts(path, &spec.amounts(), faults);
    amount(
        "fallback_quota",
        spec.fallback_quota,
        0,
        &mut |name, message| {
            faults.push(FieldError::new(&path.with(name), message));
        },
    );
}

/// Faults of an override that a tenant has made itself: anything but amounts and an end.
pub fn only_amounts(path: &FieldPath, spec: &KeySpec, faults: &mut Vec<FieldError>) {
    for (name, named) in [
        ("fallback_quota", spec.fallback_quota.is_some()),
        ("unlimited", spec.unlimited.is_some()),
        ("enforce", spec.enforce.is_some()),
    ] {
        if named {
            let message = "a tenant's own override may name quota, capacity, refill, drain and \
                           expires_at; ask an administrator for the rest";
            faults.push(FieldError::new(&path.with(name), message));
        }
    }
}

fn count(path: &FieldPath, entries: usize, faults: &mut Vec<FieldError>) {
    if entries > OVERRIDES_MAX {
        let message = format!("must have at most {OVERRIDES_MAX} overrides");
        faults.push(FieldError::new(path, message));
    }
}

fn amounts(path: &FieldPath, amounts: &Amounts, faults: &mut Vec<FieldError>) {
    for (name, units) in amounts.named() {
        let least = u64::from(name != "quota");
        amount(name, Some(units), least, &mut |name, message| {
            faults.push(FieldError::new(&path.with(name), message));
        });
    }
}

fn amount(name: &str, units: Option<u64>, least: u64, fault: &mut impl FnMut(&str, String)) {
    match units {
        Some(units) if units > AMOUNT_MAX => {
            fault(
                name,
                format!("must be at most {AMOUNT_MAX} (2^53 - 1), not {units}"),
            );
        }
        Some(units) if units < least => {
            let message = "must be at least 1; to refuse every call use a window with quota = 0";
            fault(name, message.to_owned());
        }
        _ => {}
    }
}

fn length(name: &str, span: Option<Span>, longest: Span, fault: &mut impl FnMut(&str, String)) {
    match span {
        Some(Span::ZERO) => fault(name, "must be longer than zero".to_owned()),
        Some(span) if span > longest => fault(name, format!("must be at most {longest}")),
        _ => {}
    }
}

fn calendar_fields(
    anchor: Option<jiff::civil::DateTime>,
    time_zone: Option<&str>,
    fault: &mut impl FnMut(&str, String),
) {
    if let Some(anchor) = anchor
        && !ANCHOR_YEARS.contains(&anchor.year())
    {
        let (first, last) = (ANCHOR_YEARS.start(), ANCHOR_YEARS.end());
        fault("anchor", format!("must lie in the years {first} to {last}"));
    }
    if let Some(name) = time_zone
        && calendar::zone(name).is_none()
    {
        let name: String = name.chars().take(LABEL_BYTES_MAX).collect();
        fault(
            "time_zone",
            format!("{name:?} is not an IANA time zone, as in \"Europe/Berlin\""),
        );
    }
}

fn is_label(text: &str) -> bool {
    (1..=LABEL_BYTES_MAX).contains(&text.len()) && !text.chars().any(char::is_control)
}
