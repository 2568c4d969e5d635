//! A check that comes from elsewhere than a body of ours: from a gateway's request or a Redis client's command.
//!
//! Resolved, decided and seen as every other check; only its names and its answer look otherwise.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::catalogue::view::View;
use crate::domain::time::Span;
use crate::domain::time::Timestamp;
use crate::http::check;
use crate::http::check::LOOKUPS_MAX;
use crate::http::problem::Problem;
use crate::http::resolve;
use crate::http::resolve::Purpose;
use crate::http::resolve::Resolved;
use crate::ledger::check::Item;
use crate::ledger::check::Outcome;
use crate::region::clock::Stopwatch;
use crate::region::decide::Together;
use crate::region::deciding::Ended;
use crate::region::deciding::Terms;
use crate::region::observe::Seen;
use crate::region::state::Region;

/// What is asked.
#[derive(Clone, Copy, Debug)]
pub struct Question<'q> {
    /// Whose limits.
    pub tenant: &'q str,
    /// Which of them.
    pub limits: Limits<'q>,
    /// Units.
    pub cost: u64,
    /// A label for metrics and logs.
    pub endpoint: Option<&'q str>,
    /// A label for logs.
    pub ip: Option<&'q str>,
    /// How long the leader of strict limits may be waited for; `None`: as long as a check that does not say.
    pub max_wait: Option<Span>,
}

/// Which limits of a tenant are asked.
#[derive(Clone, Copy, Debug)]
pub enum Limits<'q> {
    /// All that have the action and whose key is absent or given.
    Action {
        /// The action.
        action: &'q str,
        /// Keys by label.
        keys: &'q [(&'q str, &'q str)],
    },
    /// One.
    One {
        /// Its name.
        limit: &'q str,
        /// Its key, exactly when it has one.
        key: Option<&'q str>,
    },
}

impl Question<'_> {
    fn resolve<'a>(&'a self, view: &'a View, now: Timestamp) -> Result<Resolved<'a>, Problem> {
        let tenant_view = resolve::tenant(view, self.tenant)?;
        let mut items: SmallVec<[Item<'a>; 2]> = SmallVec::new();
        match self.limits {
            Limits::One { limit, key } => {
                let found = resolve::limit(tenant_view, self.tenant, limit)?;
                items.push(resolve::item(found, key, self.cost, now, Purpose::Check)?);
            }
            Limits::Action { action, keys } => {
                for found in tenant_view.action(action) {
                    let given = match found.limit.key.as_deref() {
                        None => None,
                        Some(label) => match keys.iter().find(|(known, _)| *known == label) {
                            Some((_, key)) => Some(*key),
                            None => continue,
                        },
                    };
                    items.push(resolve::item(found, given, self.cost, now, Purpose::Check)?);
                }
            }
        }
        Ok(Resolved {
            tenant: self.tenant,
            tenant_view,
            items,
        })
    }

    fn see(&self, region: &Region, resolved: &Resolved<'_>, outcome: &Outcome, began: Began) {
        let seen = Seen {
            now: began.now,
            tenant: resolved.tenant,
            tenant_view: resolved.tenant_view,
            items: &resolved.items,
            endpoint: self.endpoint,
            ip: self.ip,
        };
        region.observe(&seen, outcome, began.started);
    }
}

/// When a check began.
#[derive(Clone, Copy)]
struct Began {
    now: Timestamp,
    started: Stopwatch,
}

/// Decides a check that waits for nothing and tells `tell` of it. `None`: it must wait for the disk or for the
/// leader of strict limits, and nothing has happened yet.
///
/// # Errors
/// Those of [`resolve::tenant`], [`resolve::limit`] and [`resolve::item`].
pub fn at_once<T>(
    region: &Region,
    question: &Question<'_>,
    tell: impl FnOnce(&[Item<'_>], &Outcome, Timestamp) -> T,
) -> Option<Result<T, Problem>> {
    let began = Began {
        now: region.clock.now(),
        started: region.clock.stopwatch(),
    };
    let view = region.view();
    let resolved = match question.resolve(&view, began.now) {
        Ok(resolved) => resolved,
        Err(problem) => return Some(Err(problem)),
    };
    let outcome = check::decided_at_once(region, &resolved, began.now)?;
    let told = tell(&resolved.items, &outcome, began.now);
    question.see(region, &resolved, &outcome, began);
    Some(Ok(told))
}

/// Decides a check and tells `tell` of it.
///
/// # Errors
/// As [`at_once`], and when a limit changes faster than it can be looked up.
pub async fn decide<T>(
    region: &Arc<Region>,
    question: &Question<'_>,
    tell: impl Fn(&[Item<'_>], &Outcome, Timestamp) -> T,
) -> Result<T, Problem> {
    if let Some(decided) = at_once(region, question, &tell) {
        return decided;
    }
    let terms = Terms {
        max_wait: question.max_wait,
        keyed: None,
    };
    let started = region.clock.stopwatch();
    for _ in 0..LOOKUPS_MAX {
        let now = region.clock.now();
        let view = region.view_full();
        let resolved = question.resolve(&view, now)?;
        let asked = check::request(region, &resolved, now, true);
        let ended = region
            .decide_strict(&asked, &terms, |_| Together::default())
            .await;
        if let Ended::Decided(outcome) = ended {
            let told = tell(&resolved.items, &outcome, now);
            question.see(region, &resolved, &outcome, Began { now, started });
            return Ok(told);
        }
    }
    Err(check::changing())
}
