//! Looking closer than a check does: use by region, and use of the window before.

use std::collections::BTreeMap;

use crate::algorithm::Standing;
use crate::domain::limit::Mode;
use crate::domain::limit::Rule;
use crate::domain::name::RegionName;
use crate::domain::time::Span;
use crate::domain::time::Timestamp;
use crate::domain::time::Window;
use crate::ledger::Ledger;
use crate::ledger::check::Item;
use crate::ledger::check::Outcome;
use crate::ledger::check::Request;
use crate::ledger::counter::Counter;

impl Ledger {
    /// How `item` stands, without its cost and without judging it.
    pub fn standing(&self, item: &Item<'_>, tenant: &str, now: Timestamp) -> Standing {
        let (shard, hash) = self.locate(item.id, tenant, item.key);
        let mut shard = self.shards[shard].lock();
        let found = shard.find(hash, item.id, tenant, item.key);
        let known = found.and_then(|place| shard.get(place));
        match known.filter(|entry| entry.counter.epoch == item.epoch) {
            Some(entry) => {
                // What came from disk or from peers was not asked yet, and does not know whether it is shared.
                entry.counter.enter_with(item.epoch, item.limit);
                entry.counter.prepare(&item.limit.rule, now);
                entry.counter.standing(&item.limit.rule, now)
            }
            None => {
                let mut unused = Counter::new(item.epoch);
                unused.prepare(&item.limit.rule, now);
                unused.standing(&item.limit.rule, now)
            }
        }
    }

    /// Units in use by region, as far as they are known here; empty when nothing was ever charged.
    pub fn use_by_region(
        &self,
        item: &Item<'_>,
        tenant: &str,
        now: Timestamp,
    ) -> BTreeMap<RegionName, u64> {
        let (shard, hash) = self.locate(item.id, tenant, item.key);
        let mut shard = self.shards[shard].lock();
        let found = shard.find(hash, item.id, tenant, item.key);
        let Some(entry) = found.and_then(|place| shard.get(place)) else {
            return BTreeMap::new();
        };
        if !entry.counter.enter_with(item.epoch, item.limit) {
            return BTreeMap::new();
        }
        entry.counter.prepare(&item.limit.rule, now);
        let own = self.actors.own_actor().region.clone();
        let home = if item.limit.mode == Mode::Approximate {
            entry.counter.use_at_home()
        } else {
            entry.counter.standing(&item.limit.rule, now).used
        };
        let roster = self.roster.read();
        let away = entry.counter.use_by_site().into_iter();
        let away = away.filter_map(|(site, used)| Some((roster.region(site)?.clone(), used)));
        std::iter::once((own, home)).chain(away).collect()
    }

    /// Turns the outcome of a look into that of the window which contains `at`: the running one, or of fixed
    /// and calendar limits the one before. `None` when that window's use is not kept.
    pub fn rewind(
        &self,
        request: &Request<'_>,
        at: Timestamp,
        outcome: &mut Outcome,
    ) -> Option<()> {
        let item = request.items.first()?;
        let told = outcome.items.first_mut()?;
        let window = match &item.limit.rule {
            Rule::FixedWindow { window, .. } => Window::aligned(at, *window),
            Rule::CalendarWindow { calendar, .. } => calendar.window(at),
            _ => return None,
        };
        if told.window_start == Some(window.start) {
            return Some(());
        }
        let (shard, hash) = self.locate(item.id, request.tenant, item.key);
        let mut shard = self.shards[shard].lock();
        let place = shard.find(hash, item.id, request.tenant, item.key)?;
        let before = shard.get(place)?.counter.window_before();
        if before.id != window.id || window.end > request.now {
            return None;
        }
        let used = if item.limit.mode == Mode::Approximate {
            before.world()
        } else {
            before.home()
        };
        told.standing = Standing {
            used,
            remaining: item.limit.rule.quota().saturating_sub(used),
            reset_after: Span::ZERO,
        };
        told.retry_after = None;
        told.window_start = Some(window.start);
        Some(())
    }
}
