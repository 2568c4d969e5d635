//! How one window was used, holder by holder, so that anyone can add it up.

use serde::Deserialize;
use serde::Serialize;

use crate::domain::name::RegionName;
use crate::domain::time::Window;
use crate::grants::account::Account;
use crate::grants::book::pool::Pool;
use crate::grants::book::pool::Tally;
use crate::grants::book::regions::Regions;

/// One window of one counter, in full.
///
/// `free + withheld + Σ (granted − returned + charged − refunded) = quota + earned`, and in every row
/// `granted = spent + held + returned + stranded`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proof {
    /// The counter.
    pub account: Account,
    /// The window.
    pub window: Window,
    /// The quota that was in force at the last entry.
    pub quota: u64,
    /// The largest quota that was in force: no more units than this were admitted.
    pub quota_max: u64,
    /// Units that nobody holds; below zero when a lowered quota left less than what is out.
    pub free: i128,
    /// Units kept back because holders of an earlier epoch may still spend as many.
    pub withheld: u64,
    /// Units that a bucket earned, less those that were lost; 0 for a window that ends.
    pub earned: i128,
    /// By region, then by process; what is added up of a region's ended processes comes first.
    pub rows: Vec<ProofRow>,
}

/// One holder's part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProofRow {
    /// The region.
    pub region: RegionName,
    /// The process; `None`: the sum over processes that ended long ago.
    pub incarnation: Option<u64>,
    /// Units that it was granted.
    pub granted: u64,
    /// Units that it told to have spent.
    pub spent: u64,
    /// Units that its process may still spend.
    pub held: u64,
    /// Units that came back unspent.
    pub returned: u64,
    /// Units that its process took with it when it ended.
    pub stranded: u64,
    /// Units that the leader charged for it.
    pub charged: u64,
    /// Units given back of what was spent or charged.
    pub refunded: u64,
}

impl Proof {
    pub(super) fn of(account: Account, pool: &Pool, regions: &Regions) -> Self {
        let ended = pool
            .ended()
            .map(|(region, tally)| ProofRow::new(region.clone(), None, tally, false));
        let kept = pool.rows().map(|(holder, tally)| {
            let lives = regions.is_newest(holder);
            let incarnation = Some(holder.incarnation);
            ProofRow::new(holder.region.clone(), incarnation, tally, lives)
        });
        let mut rows: Vec<ProofRow> = ended.chain(kept).collect();
        rows.sort_by(|one, other| {
            (&one.region, one.incarnation).cmp(&(&other.region, other.incarnation))
        });
        Self {
            account,
            window: pool.window(),
            quota: pool.quota().units(),
            quota_max: pool.quota_max(),
            free: pool.free(),
            withheld: pool.withheld(),
            earned: pool.bucket().earned(),
            rows,
        }
    }

    /// Units used: spent and charged, less what was refunded.
    pub fn used(&self) -> u64 {
        let used: i128 = self
            .rows
            .iter()
            .map(|row| i128::from(row.spent) + i128::from(row.charged) - i128::from(row.refunded))
            .sum();
        u64::try_from(used.max(0)).unwrap_or(u64::MAX)
    }

    /// Whether everything adds up: every row, and the rows with what is left of the quota. Always, unless the
    /// book is wrong; worked out from the numbers here alone, so that anyone can check it.
    pub fn adds_up(&self) -> bool {
        let rows = self.rows.iter().all(|row| {
            let parts = [row.spent, row.held, row.returned, row.stranded];
            parts.into_iter().map(u128::from).sum::<u128>() == u128::from(row.granted)
        });
        let out: i128 = self
            .rows
            .iter()
            .map(|row| {
                i128::from(row.granted) - i128::from(row.returned) + i128::from(row.charged)
                    - i128::from(row.refunded)
            })
            .sum();
        rows && self.free + i128::from(self.withheld) + out == i128::from(self.quota)
    }

    /// Units that ended processes took with them.
    pub fn stranded(&self) -> u64 {
        self.rows
            .iter()
            .fold(0, |sum, row| sum.saturating_add(row.stranded))
    }
}

impl ProofRow {
    fn new(region: RegionName, incarnation: Option<u64>, tally: &Tally, lives: bool) -> Self {
        let outstanding = tally.outstanding();
        Self {
            region,
            incarnation,
            granted: tally.granted,
            spent: tally.granted - tally.returned - outstanding,
            held: if lives { outstanding } else { 0 },
            returned: tally.returned,
            stranded: if lives { 0 } else { outstanding },
            charged: tally.charged,
            refunded: tally.refunded,
        }
    }
}
