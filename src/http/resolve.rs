//! From names to limits: what a request's tenant, limits, keys and actions mean in the catalogue.

use smallvec::SmallVec;

use crate::catalogue::view::LimitView;
use crate::catalogue::view::TenantView;
use crate::catalogue::view::View;
use crate::domain::limit::Rule;
use crate::domain::name;
use crate::domain::time::Timestamp;
use crate::http::body::CheckBody;
use crate::http::body::Form;
use crate::http::body::Text;
use crate::http::problem::Code;
use crate::http::problem::Problem;
use crate::ledger::check::Item;

/// What a check is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A plain check: it may only look at concurrency limits.
    Check,
    /// A hold.
    Hold,
}

/// A check's limits as they hold for its tenant and keys.
#[derive(Debug)]
pub struct Resolved<'a> {
    /// Who asks.
    pub tenant: &'a str,
    /// The tenant in the catalogue.
    pub tenant_view: &'a TenantView,
    /// What is asked.
    pub items: SmallVec<[Item<'a>; 2]>,
}

/// Finds the tenant.
///
/// # Errors
/// 400 when it is no tenant's name, 404 when the catalogue does not know it and has no default plan.
pub fn tenant<'v>(view: &'v View, tenant: &str) -> Result<&'v TenantView, Problem> {
    if let Some(found) = view.tenant(tenant) {
        if found.known || name::is_tenant_name(tenant) {
            return Ok(found);
        }
    } else if name::is_tenant_name(tenant) {
        return Err(Problem::new(
            404,
            Code::UnknownTenant,
            format!(
                "there is no tenant \"{tenant}\"; make it, or set default_plan to count unknown tenants under a plan"
            ),
        ));
    }
    Err(Problem::malformed(format!(
        "tenant: {}",
        name::InvalidName::Free { kind: "tenant" }
    )))
}

/// Finds one limit of the tenant.
///
/// # Errors
/// 404 when the tenant has no such limit.
pub fn limit<'v>(
    tenant_view: &'v TenantView,
    tenant: &str,
    limit: &str,
) -> Result<&'v LimitView, Problem> {
    tenant_view.limit(limit).ok_or_else(|| {
        let shown: String = limit.chars().take(80).collect();
        Problem::new(
            404,
            Code::UnknownLimit,
            format!("tenant \"{tenant}\" has no limit \"{shown}\""),
        )
    })
}

/// Checks that a key is there exactly when the limit has one, and is a key.
///
/// # Errors
/// 400 when it is missing, unexpected, empty or too long.
pub fn key<'a>(limit: &LimitView, key: Option<&'a str>) -> Result<&'a str, Problem> {
    let name = &limit.limit.name;
    match (&limit.limit.key, key) {
        (None, None) => Ok(""),
        (Some(_), Some(key)) if name::is_key(key) => Ok(key),
        (Some(_), Some(_)) => Err(Problem::malformed(format!(
            "limit \"{name}\": {}",
            name::InvalidName::Key
        ))),
        (Some(kind), None) => Err(Problem::new(
            400,
            Code::KeyRequired,
            format!("limit \"{name}\" counts by {kind}: give its key"),
        )),
        (None, Some(_)) => Err(Problem::new(
            400,
            Code::KeyUnexpected,
            format!("limit \"{name}\" has one counter for the whole tenant: leave the key out"),
        )),
    }
}

/// Finds everything that a check names.
///
/// # Errors
/// Those of [`tenant`], [`limit`] and [`key`]; 400 when a limit and key stand twice, or when a concurrency
/// limit is to be charged by a plain check.
pub fn check<'a>(
    view: &'a View,
    body: &'a CheckBody<'_>,
    now: Timestamp,
    purpose: Purpose,
) -> Result<Resolved<'a>, Problem> {
    let form = body.form()?;
    let tenant_name = body.tenant.as_str();
    let tenant_view = tenant(view, tenant_name)?;
    let mut items: SmallVec<[Item<'a>; 2]> = SmallVec::new();
    match form {
        Form::One(limit_name, limit_key, cost) => {
            let found = limit(tenant_view, tenant_name, limit_name.as_str())?;
            items.push(item(
                found,
                limit_key.map(Text::as_str),
                cost,
                now,
                purpose,
            )?);
        }
        Form::Several(checks) => {
            for check in checks {
                let found = limit(tenant_view, tenant_name, check.limit.as_str())?;
                let cost = check.cost.map_or(1, |cost| cost.0);
                let new = item(
                    found,
                    check.key.as_ref().map(Text::as_str),
                    cost,
                    now,
                    purpose,
                )?;
                if items
                    .iter()
                    .any(|known| known.id == new.id && known.key == new.key)
                {
                    return Err(Problem::new(
                        400,
                        Code::DuplicateCheck,
                        format!(
                            "limit \"{}\" stands twice with the same key; add the costs up",
                            new.limit.name
                        ),
                    ));
                }
                items.push(new);
            }
        }
        Form::Action(action, keys, cost) => {
            for found in tenant_view.action(action.as_str()) {
                let kind = found.limit.key.as_deref();
                let given = kind.and_then(|kind| keys.and_then(|keys| keys.get(kind)));
                if kind.is_some() && given.is_none() {
                    continue;
                }
                items.push(item(found, given, cost, now, purpose)?);
            }
        }
    }
    Ok(Resolved {
        tenant: tenant_name,
        tenant_view,
        items,
    })
}

/// One limit of a check.
///
/// # Errors
/// Those of [`key`], and 400 when a concurrency limit is to be charged by a plain check.
pub fn item<'a>(
    found: &'a LimitView,
    given: Option<&'a str>,
    cost: u64,
    now: Timestamp,
    purpose: Purpose,
) -> Result<Item<'a>, Problem> {
    let key = key(found, given)?;
    let (limit, epoch) = found.at(key, now);
    if purpose == Purpose::Check && cost > 0 && matches!(limit.rule, Rule::Concurrency { .. }) {
        return Err(Problem::malformed(format!(
            "limit \"{}\" is held, not charged: take it with POST /v1/holds (a cost of 0 looks)",
            limit.name
        )));
    }
    Ok(Item {
        limit,
        id: found.id,
        epoch,
        key,
        cost,
    })
}
