//! From descriptors to limits: what a request of a gateway means in the catalogue.
//!
//! A descriptor selects the limits whose `match` fits it best ([`crate::catalogue::descriptor`]). What several
//! descriptors of a request select together stands once in its check, with the sum of the costs.
//!
//! A limit that travels with a descriptor takes the place of the limit that the descriptor selects: so many units
//! per second, minute, hour or day (or 30 or 365 days), aligned, always enforced, counted under the selected limit's
//! name. With the selected limit's own window it is counted together with it, otherwise beside it. A strict limit
//! keeps its own amounts: no caller can raise what the world agreed on.

use std::borrow::Cow;

use smallvec::SmallVec;
use tonic::Status;

use crate::catalogue::descriptor;
use crate::catalogue::descriptor::Entries;
use crate::catalogue::view::LimitView;
use crate::catalogue::view::TenantView;
use crate::catalogue::view::View;
use crate::domain::limit::AMOUNT_MAX;
use crate::domain::limit::Limit;
use crate::domain::limit::Mode;
use crate::domain::limit::Rule;
use crate::domain::time::Span;
use crate::domain::time::Timestamp;
use crate::grpc::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use crate::grpc::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride;
use crate::grpc::proto::envoy::service::ratelimit::v3::RateLimitRequest;
use crate::grpc::proto::envoy::r#type::v3::RateLimitUnit;
use crate::ledger::check::Item;

/// Most descriptors of a request.
pub const DESCRIPTORS_MAX: usize = 64;
/// Most entries of a descriptor.
pub const ENTRIES_MAX: usize = 64;
const DAY_SECONDS: u64 = 86_400;

/// The limits that a request selects.
#[derive(Debug)]
pub struct Selection<'a> {
    /// Whose they are.
    pub tenant: &'a str,
    /// The tenant in the catalogue.
    pub tenant_view: &'a TenantView,
    /// In the order of the descriptors.
    pub chosen: SmallVec<[Chosen<'a>; 2]>,
}

/// One limit that one descriptor selects.
#[derive(Debug)]
pub struct Chosen<'a> {
    /// The place of the descriptor.
    pub descriptor: usize,
    view: &'a LimitView,
    limit: Cow<'a, Limit>,
    epoch: u64,
    key: Cow<'a, str>,
    units: u64,
    /// Whether the units are given back.
    is_back: bool,
}

/// A selection as the ledger is asked for it.
#[derive(Debug, Default)]
pub struct Items<'s> {
    /// What is charged, or looked at.
    pub charged: SmallVec<[Item<'s>; 2]>,
    /// What is given back.
    pub given_back: SmallVec<[Item<'s>; 2]>,
    /// Of each chosen limit: whether it is given back, and its place there.
    pub places: SmallVec<[(bool, usize); 2]>,
}

/// Checks the form of a request.
///
/// # Errors
/// `INVALID_ARGUMENT` without a domain or descriptors, or over a bound.
pub fn form(request: &RateLimitRequest) -> Result<(), Status> {
    if request.domain.is_empty() {
        return Err(Status::invalid_argument(
            "the domain is empty; name a tenant",
        ));
    }
    if request.descriptors.is_empty() {
        return Err(Status::invalid_argument(
            "there are no descriptors; send at least one",
        ));
    }
    if request.descriptors.len() > DESCRIPTORS_MAX {
        return Err(Status::invalid_argument(format!(
            "there are more than {DESCRIPTORS_MAX} descriptors; send fewer"
        )));
    }
    let is_long = |descriptor: &RateLimitDescriptor| descriptor.entries.len() > ENTRIES_MAX;
    if request.descriptors.iter().any(is_long) {
        return Err(Status::invalid_argument(format!(
            "a descriptor has more than {ENTRIES_MAX} entries; send fewer"
        )));
    }
    Ok(())
}

/// The limits that `request` selects. `None`: nobody knows the domain.
///
/// # Errors
/// `INVALID_ARGUMENT` when units or a limit of the call's own are out of range.
pub fn select<'a>(
    view: &'a View,
    request: &'a RateLimitRequest,
    now: Timestamp,
) -> Result<Option<Selection<'a>>, Status> {
    let found = view.domain(&request.domain);
    let mut chosen: SmallVec<[Chosen<'a>; 2]> = SmallVec::new();
    for (place, descriptor) in request.descriptors.iter().enumerate() {
        let units = units(descriptor, request.hits_addend)?;
        let own = descriptor.limit.as_ref().map(own_rule).transpose()?;
        let Some((_, tenant_view)) = found else {
            continue;
        };
        let entries: Entries<'a> = descriptor
            .entries
            .iter()
            .map(|entry| (entry.key.as_str(), entry.value.as_str()))
            .collect();
        for selected in tenant_view.descriptor(&entries) {
            let key = descriptor::key(&entries, &selected.counted);
            let (limit, epoch) = selected.view.at(&key, now);
            let mut new = Chosen {
                descriptor: place,
                view: &selected.view,
                limit: Cow::Borrowed(limit),
                epoch,
                key,
                units,
                is_back: descriptor.is_negative_hits && units > 0,
            };
            if let Some((rule, unit)) = &own {
                new.put(rule, unit);
            }
            chosen.push(new);
        }
    }
    Ok(found.map(|(tenant, tenant_view)| Selection {
        tenant,
        tenant_view,
        chosen,
    }))
}

/// Units of a descriptor: its own, or the request's, where nothing means one.
fn units(descriptor: &RateLimitDescriptor, of_request: u32) -> Result<u64, Status> {
    match descriptor.hits_addend {
        Some(units) if units > AMOUNT_MAX => Err(Status::invalid_argument(format!(
            "hits_addend: {units} is more than {AMOUNT_MAX}"
        ))),
        Some(units) => Ok(units),
        None => Ok(u64::from(of_request.max(1))),
    }
}

/// The rule that travels with a descriptor, and its unit in words.
fn own_rule(own: &RateLimitOverride) -> Result<(Rule, &'static str), Status> {
    let (unit, seconds) = match RateLimitUnit::try_from(own.unit) {
        Ok(RateLimitUnit::Second) => ("second", 1),
        Ok(RateLimitUnit::Minute) => ("minute", 60),
        Ok(RateLimitUnit::Hour) => ("hour", 3_600),
        Ok(RateLimitUnit::Day) => ("day", DAY_SECONDS),
        Ok(RateLimitUnit::Month) => ("month", 30 * DAY_SECONDS),
        Ok(RateLimitUnit::Year) => ("year", 365 * DAY_SECONDS),
        Ok(RateLimitUnit::Unknown) | Err(_) => {
            return Err(Status::invalid_argument(format!(
                "limit.unit: {} is no unit of time",
                own.unit
            )));
        }
    };
    let rule = Rule::FixedWindow {
        quota: u64::from(own.requests_per_unit),
        window: Span::from_seconds(seconds),
    };
    Ok((rule, unit))
}

impl Chosen<'_> {
    /// Puts a limit that travels with the descriptor in the place of the selected one.
    fn put(&mut self, rule: &Rule, unit: &str) {
        if self.limit.mode == Mode::Strict {
            return;
        }
        let window = |rule: &Rule| match rule {
            Rule::FixedWindow { window, .. } => Some(*window),
            _ => None,
        };
        if window(&self.limit.rule) != window(rule) {
            self.key = Cow::Owned(descriptor::key_per_unit(&self.key, unit));
        }
        let limit = self.limit.to_mut();
        limit.rule = rule.clone();
        limit.enforce = true;
        limit.unlimited = false;
    }

    fn item(&self) -> Item<'_> {
        Item {
            limit: &self.limit,
            id: self.view.id,
            epoch: self.epoch,
            key: &self.key,
            cost: self.units,
        }
    }
}

impl Selection<'_> {
    /// Whether units are given back.
    pub fn gives_back(&self) -> bool {
        self.chosen.iter().any(|chosen| chosen.is_back)
    }

    /// What the ledger is asked: no (limit, key) twice.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` when the sum of one limit's units is out of range.
    pub fn items(&self) -> Result<Items<'_>, Status> {
        let mut items = Items::default();
        for chosen in &self.chosen {
            let new = chosen.item();
            let list = if chosen.is_back {
                &mut items.given_back
            } else {
                &mut items.charged
            };
            let known = list
                .iter()
                .position(|known| known.id == new.id && known.key == new.key);
            let place = known.unwrap_or(list.len());
            match list.get_mut(place) {
                None => list.push(new),
                Some(known) => {
                    known.cost = known.cost.saturating_add(new.cost);
                    // Of two limits of the calls' own the smaller one holds for both.
                    if new.limit.rule.quota() < known.limit.rule.quota() {
                        known.limit = new.limit;
                    }
                    if known.cost > AMOUNT_MAX {
                        return Err(Status::invalid_argument(format!(
                            "limit {}: more than {AMOUNT_MAX} units in one request",
                            new.limit.name
                        )));
                    }
                }
            }
            items.places.push((chosen.is_back, place));
        }
        Ok(items)
    }
}
