//! Sums over runs, and how they are printed.

use super::Setup;
use super::Tally;

/// Sums over windows of several runs.
#[derive(Clone, Debug, Default)]
pub struct Row {
    windows: u64,
    over: f64,
    over_max: f64,
    /// The most units of one window.
    pub over_max_units: u64,
    under: f64,
    under_max: f64,
    under_max_units: u64,
    checks: u64,
    refused_early: u64,
    granted: u64,
    entries: u64,
    /// What the window was a part of that passed the quota furthest.
    worst: Option<Setup>,
}

impl Row {
    pub const HEAD: &'static str = "over mean % | over max % | units | under mean % | under max % | units | refused early % | entries per grant | most over at |\n|---|---|---|---|---|---|---|---|---|---|";

    pub fn add(&mut self, setup: &Setup, windows: &[Tally], entries: u64) {
        let quota = setup.quota;
        for tally in windows {
            let (over, under) = (tally.over(quota), tally.under(quota));
            let percent = |units: u64| 100.0 * units as f64 / quota as f64;
            self.windows += 1;
            self.over += percent(over);
            if percent(over) > self.over_max {
                self.worst = Some(*setup);
            }
            self.over_max = self.over_max.max(percent(over));
            self.over_max_units = self.over_max_units.max(over);
            self.under += percent(under);
            self.under_max = self.under_max.max(percent(under));
            self.under_max_units = self.under_max_units.max(under);
            self.checks += tally.checks;
            self.refused_early += tally.refused_early;
            self.granted += tally.grants;
        }
        self.entries += entries;
    }

    /// Mean over windows, % of the quota.
    pub fn over(&self) -> f64 {
        self.over / self.windows.max(1) as f64
    }

    /// Mean over windows, % of the quota.
    pub fn under(&self) -> f64 {
        self.under / self.windows.max(1) as f64
    }

    /// Checks that were refused while units were left, % of all.
    pub fn refused_early(&self) -> f64 {
        100.0 * self.refused_early as f64 / self.checks.max(1) as f64
    }

    pub fn print(&self, name: &str) {
        println!(
            "| {name} | {:.3} | {:.2} | {} | {:.3} | {:.2} | {} | {:.2} | {:.2} | {} |",
            self.over(),
            self.over_max,
            self.over_max_units,
            self.under(),
            self.under_max,
            self.under_max_units,
            self.refused_early(),
            self.entries as f64 / self.granted.max(1) as f64,
            self.worst.map_or_else(String::new, |worst| format!(
                "{} {} {} {:?} {}",
                worst.regions, worst.quota, worst.load, worst.traffic, worst.seed
            )),
        );
    }
}
