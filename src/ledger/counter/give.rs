//! Gives units of a counter back.

use crate::domain::limit::Rule;
use crate::domain::time::WindowId;
use crate::ledger::counter::Counter;
use crate::ledger::counter::GiveBack;
use crate::ledger::counter::NOT_DRAWN;
use crate::ledger::counter::State;
use crate::ledger::counter::flow;
use crate::usage::window::WindowUse;

impl Counter {
    /// Gives units back to the charge they came from; returns how many were given. The window must still
    /// be one that the algorithm reads, else nothing is.
    pub fn give_back(&mut self, rule: &Rule, what: &GiveBack, own_start: u32) -> u64 {
        let before = self.windows[1].own();
        let given = self.give_back_to_charge(rule, what, own_start);
        self.mark_before_unsent(before);
        given
    }

    fn give_back_to_charge(&mut self, rule: &Rule, what: &GiveBack, own_start: u32) -> u64 {
        let of_all = self.is_shared;
        match &mut self.state {
            State::Aligned | State::Calendar { .. } => {
                let read = if matches!(rule, Rule::SlidingWindow { .. }) {
                    2
                } else {
                    1
                };
                give_to(
                    &mut self.windows[..read],
                    Some(what.window),
                    what.units,
                    of_all,
                )
            }
            State::Bucket(level) => {
                // What was drawn before the last two segments began has come back by itself.
                let remembered = self.windows.iter().any(|w| w.id == what.window);
                let units = if remembered { what.units } else { 0 };
                if what.entry.count == NOT_DRAWN && of_all {
                    // Nor was it counted.
                    units
                } else if what.entry.count == NOT_DRAWN {
                    give_to(&mut self.windows, Some(what.window), units, of_all)
                } else {
                    let given = flow(rule).map_or(0, |flow| level.put_back(&flow, units));
                    give_to(&mut self.windows, Some(what.window), given, of_all);
                    given
                }
            }
            State::Log(log) => {
                let given = log.give_back(what.units, what.entry, own_start);
                give_to(&mut self.windows, Some(what.window), given, of_all);
                given
            }
            State::Leases(leases) => leases.free(what.hold, what.units),
        }
    }

    /// Gives back up to `units` of whatever is in use now, newest first; returns how many.
    pub fn refund(&mut self, rule: &Rule, units: u64) -> u64 {
        let before = self.windows[1].own();
        let given = self.refund_newest_first(rule, units);
        self.mark_before_unsent(before);
        given
    }

    fn refund_newest_first(&mut self, rule: &Rule, units: u64) -> u64 {
        let of_all = self.is_shared;
        match &mut self.state {
            State::Aligned | State::Calendar { .. } => {
                let read = if matches!(rule, Rule::SlidingWindow { .. }) {
                    2
                } else {
                    1
                };
                give_to(&mut self.windows[..read], None, units, of_all)
            }
            State::Bucket(level) => {
                let given = flow(rule).map_or(0, |flow| level.put_back(&flow, units));
                give_to(&mut self.windows, None, given, of_all);
                given
            }
            State::Log(log) => {
                let given = log.refund(units);
                give_to(&mut self.windows, None, given, of_all);
                given
            }
            State::Leases(_) => 0,
        }
    }
}

/// Gives `units` back to the windows (newest first), or to the one named, as far as they are in use here, or by
/// all regions: of a limit that they share, what one charged may be given back in another.
fn give_to(windows: &mut [WindowUse], only: Option<WindowId>, units: u64, of_all: bool) -> u64 {
    let mut left = units;
    for window in windows {
        if only.is_none_or(|only| only == window.id) {
            let used = if of_all {
                window.world()
            } else {
                window.home()
            };
            let given = left.min(used);
            window.give_back(given);
            left -= given;
        }
    }
    units - left
}
