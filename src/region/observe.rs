//! What metrics, logs and `why` are told of a check.

use crate::catalogue::view::TenantView;
use crate::domain::decision::DecidedBy;
use crate::domain::decision::Decision;
use crate::domain::decision::Reason;
use crate::domain::limit::Mode;
use crate::domain::time::Timestamp;
use crate::ledger::check::Item;
use crate::ledger::check::ItemOutcome;
use crate::ledger::check::Outcome;
use crate::region::clock::Stopwatch;
use crate::region::rejections::Rejection;
use crate::region::state::Region;
use crate::telemetry::refusal::Refusal;

/// A check as it came in.
#[derive(Debug)]
pub struct Seen<'a> {
    /// Region time.
    pub now: Timestamp,
    /// Who asked.
    pub tenant: &'a str,
    /// The tenant in the catalogue.
    pub tenant_view: &'a TenantView,
    /// What was asked.
    pub items: &'a [Item<'a>],
    /// The endpoint that the caller named.
    pub endpoint: Option<&'a str>,
    /// The address that the caller named.
    pub ip: Option<&'a str>,
}

impl Region {
    /// Counts a check, and remembers and logs its refusals.
    pub fn observe(&self, seen: &Seen<'_>, outcome: &Outcome, started: Stopwatch) {
        if outcome.is_urgent {
            self.exchange.urgent.notify_one();
        }
        let endpoint = self.metrics.limits.endpoint(seen.endpoint);
        let tier = seen.tenant_view.plan.as_ref();
        for (item, told) in seen.items.iter().zip(&outcome.items) {
            let meters = self.meters(item, tier);
            match told.reason {
                None => {
                    meters.allowed(endpoint).inc();
                }
                Some(reason) => {
                    meters.rejected(endpoint, reason).inc();
                    self.refused(seen, item, told, reason);
                }
            }
            if item.limit.mode == Mode::Strict && item.cost > 0 {
                self.metrics.count_strict(told.decided_by);
            }
            if told.degraded && told.decided_by == DecidedBy::Fallback {
                self.metrics.degraded(item.limit.on_unavailable).inc();
            } else if told.degraded {
                self.metrics.cut_off(item.limit.on_partition).inc();
            }
        }
        if let Some(first) = seen.items.first() {
            self.metrics
                .check_duration(first.limit.mode)
                .observe(started.elapsed());
        }
    }

    fn refused(&self, seen: &Seen<'_>, item: &Item<'_>, told: &ItemOutcome, reason: Reason) {
        debug_assert_eq!(
            told.decision,
            Decision::Deny,
            "a reason is given for a refusal alone"
        );
        let key = (!item.key.is_empty()).then_some(item.key);
        let quota = item.limit.rule.quota();
        let logged = self.refusal_log.log(
            seen.now,
            &Refusal {
                tenant: seen.tenant,
                limit: item.limit.name.as_str(),
                key,
                ip: seen.ip,
                endpoint: seen.endpoint,
                used: told.standing.used,
                quota,
                reason: reason.as_str(),
            },
        );
        if !logged {
            self.metrics.unlogged_refusals.inc();
        }
        if item.cost == 0 {
            // A look takes nothing and is refused nothing.
            return;
        }
        let rejection = Rejection {
            at_ms: seen.now.as_unix_ms(),
            tenant: seen.tenant.to_owned(),
            limit: item.limit.name.to_string(),
            key: key.map(str::to_owned),
            endpoint: seen.endpoint.map(str::to_owned),
            ip: seen.ip.map(str::to_owned),
            cost: item.cost,
            used: told.standing.used,
            quota,
            reason,
            decided_by: told.decided_by,
            retry_at_ms: told
                .retry_after
                .map(|wait| seen.now.plus(wait).as_unix_ms()),
        };
        self.rejections.push(rejection, seen.tenant_view.known);
    }
}
