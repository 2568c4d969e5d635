//! Looks at every region, several times a second, and what every region counts at the end, as `cli::drill::watch` and
//! `cli::drill::counters` have it.

use crate::domain::limit::Mode;
use crate::domain::time::Timestamp;
use crate::drill::record::Counted;
use crate::drill::record::Sample;
use crate::drill::record::Seen;
use crate::drill::scenario::DrillLimit;
use crate::drill::settled;
use crate::drill::settled::Settling;
use crate::drill::settled::Told;
use crate::ledger::check::Item;

use super::founding::tenant;
use super::log;
use super::net::MS;
use super::process::Process;
use super::world::Happening;
use super::world::World;

/// Between two looks at a region.
const LOOK_EVERY: u64 = 150 * MS;
/// A region that does not say how it is within this does not answer.
const SAY_WITHIN: u64 = 1_000 * MS;
/// Between two comparisons of the regions' counters.
const COMPARE_EVERY: u64 = 100 * MS;
/// So long all regions must have been well before it counts.
const WELL_MS: u64 = 1_000;

impl World<'_> {
    /// A region is looked at.
    pub(super) fn look(&mut self, region: usize) {
        let Some(place) = self.places.get(region) else {
            return;
        };
        if place.process.is_some() && place.held_back.is_some() {
            self.schedule(self.at + SAY_WITHIN, Happening::LookedInVain(region));
            return;
        }
        let seen = place.process.as_ref().map(|process| {
            let boot = place.clock.boot(self.at);
            let regions = 0..self.places.len();
            let is_linked = |peer: &usize| *peer != region && process.is_linked(*peer);
            let has_catalogue = process.machine.cluster().is_some();
            Seen {
                is_ready: has_catalogue && !process.is_store_failed && !process.is_draining,
                is_draining: process.is_draining,
                is_enrolled: process.is_enrolled,
                leads: process.log.as_ref().is_some_and(log::Node::leads),
                leader: process.leader(),
                term: place.disk.log.term(),
                is_store_ok: !process.is_store_failed,
                faults: self.net.of_region(region).count(),
                links: regions.filter(is_linked).collect(),
                lag_ms: process.counts.lag(boot).as_ms_ceil(),
            }
        });
        self.looked(region, seen);
    }

    /// What was seen.
    pub(super) fn looked(&mut self, region: usize, seen: Option<Seen>) {
        self.record.samples.push(Sample {
            at_ms: self.now_ms(),
            region,
            seen,
        });
        self.schedule(self.at + LOOK_EVERY, Happening::Look(region));
    }

    /// Whether all regions are well and count the same, or the scenario's patience is at its end.
    pub(super) fn settle(&mut self) {
        self.schedule(self.at + COMPARE_EVERY, Happening::Settle);
        if !self.callers.are_done() || self.done < self.scenario.steps.len() {
            return;
        }
        let now_ms = self.now_ms();
        let (scenario, regions) = (self.scenario, self.places.len());
        if self.settling.is_none() {
            self.record.load_ended_ms = now_ms;
            let calls = &self.record.calls;
            self.settling = Some(Settling::new(scenario, calls));
            self.windows = (0..scenario.limits.len())
                .map(|at| match scenario.limits.get(at).map(DrillLimit::mode) {
                    Some(Mode::Strict) => settled::strict_windows(scenario, calls, at),
                    _ => Vec::new(),
                })
                .collect();
            self.counters = (0..scenario.limits.len())
                .map(|at| {
                    let counters = settled::counters(scenario, calls, at).into_iter();
                    counters.map(|(word, key)| (word.to_owned(), key)).collect()
                })
                .collect();
        }
        if self.record.converged_ms.is_none() {
            self.record.counted = self.count();
            if let Some(settling) = &mut self.settling {
                let settled = settling.compare(now_ms, scenario, &self.record.counted);
                self.record.converged_ms = settled.ok();
            }
        }
        let from_ms = self.record.steps_ended_ms();
        let is_well = || {
            let well_from = self.record.well_from(from_ms, regions);
            well_from.is_some_and(|from| now_ms >= from + WELL_MS)
        };
        let is_late = now_ms >= self.record.load_ended_ms + scenario.settle_ms;
        self.is_over = is_late || (self.record.converged_ms.is_some() && is_well());
    }

    /// Counters that callers have used, and what each region counts of them now.
    fn count(&self) -> Vec<Counted> {
        let mut all = Vec::new();
        for (at, limit) in self.scenario.limits.iter().enumerate() {
            if limit.window().is_none() {
                continue;
            }
            match limit.mode() {
                Mode::Strict => self.count_strict(at, &limit.name, limit.has_key(), &mut all),
                Mode::Approximate => {
                    self.count_approximate(at, &limit.name, limit.has_key(), &mut all);
                }
                // Every region counts its own.
                Mode::Regional => {}
            }
        }
        all
    }

    fn count_strict(&self, at: usize, limit: &str, has_key: bool, all: &mut Vec<Counted>) {
        let windows = self.windows.get(at).into_iter().flatten().cloned();
        for (word, key, epoch, window_start_ms) in windows {
            let mut counted = Counted {
                limit: at,
                tenant: word,
                key,
                epoch,
                window_start_ms,
                used: Vec::new(),
                stranded: 0,
                held: 0,
            };
            let start = Timestamp::from_unix_ms(window_start_ms);
            let (tenant, key) = (tenant(&counted.tenant), name_of(has_key, key));
            for place in &self.places {
                let process = place.process.as_ref();
                let proof = process.and_then(|process| {
                    let proof = process.machine.proof(&tenant, limit, &key, start)?;
                    (proof.account.epoch == epoch).then_some(proof)
                });
                counted.used.push(proof.as_ref().map(|proof| proof.used()));
                if let Some(proof) = proof {
                    let held = proof.rows.iter().map(|row| row.held).sum();
                    counted.stranded = counted.stranded.max(proof.stranded());
                    counted.held = counted.held.max(held);
                }
            }
            all.push(counted);
        }
    }

    fn count_approximate(&self, at: usize, limit: &str, has_key: bool, all: &mut Vec<Counted>) {
        for (word, key) in self.counters.get(at).into_iter().flatten() {
            let (word, key) = (word.as_str(), *key);
            let (tenant, name) = (tenant(word), name_of(has_key, key));
            let told: Vec<Told> = self
                .places
                .iter()
                .map(|place| {
                    let now = place.clock.region_time(self.at);
                    used(place.process.as_ref()?, &tenant, limit, &name, now)
                })
                .collect();
            let (epoch, window_start_ms, used) = settled::one_window(&told);
            all.push(Counted {
                limit: at,
                tenant: word.to_owned(),
                key,
                epoch,
                window_start_ms,
                used,
                stranded: 0,
                held: 0,
            });
        }
    }
}

fn name_of(has_key: bool, key: u32) -> String {
    if has_key {
        settled::key_name(key)
    } else {
        String::new()
    }
}

/// Epoch, window and use of a counter, as a look is told.
fn used(
    process: &Process,
    tenant: &str,
    limit: &str,
    key: &str,
    now: Timestamp,
) -> Option<(u64, i64, u64)> {
    let view = process.machine.catalogue().view();
    let found = view.tenant(tenant)?.limit(limit)?;
    let (limit, epoch) = found.at(key, now);
    let item = Item {
        limit,
        id: found.id,
        epoch,
        key,
        cost: 0,
    };
    let window = crate::machine::lead::window_of(&limit.rule, now)?;
    let standing = process.counts.ledger.standing(&item, tenant, now);
    Some((epoch, window.start.as_unix_ms(), standing.used))
}
