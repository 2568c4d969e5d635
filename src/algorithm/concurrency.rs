//! Concurrency: units that are held at once, each under a lease that ends by itself.
//!
//! What is held is always the sum of the leases that have not ended: there is no second count that could
//! drift away. A lease is named by its hold.

use serde::Deserialize;
use serde::Serialize;

use crate::algorithm::Admission;
use crate::algorithm::BACK_STEP_MAX;
use crate::algorithm::Standing;
use crate::domain::time::Span;
use crate::domain::time::Timestamp;

/// The longest lease.
pub const TTL_MAX: Span = Span::from_seconds(86_400);

/// One holder's units.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// The hold that names it.
    pub hold: u128,
    /// The first instant at which it is over.
    pub expires_at: Timestamp,
    /// Units held.
    pub units: u64,
}

/// The leases of one key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leases(Vec<Lease>);

/// Whether a lease that ends at `expires_at` still holds. One that would outlast every legal lease was
/// written before the clock was set back, and is over.
pub fn is_live(expires_at: Timestamp, now: Timestamp) -> bool {
    now < expires_at && expires_at <= now.plus(TTL_MAX).plus(BACK_STEP_MAX)
}

impl Leases {
    /// Drops the leases that are over.
    pub fn advance(&mut self, now: Timestamp) {
        self.0.retain(|lease| is_live(lease.expires_at, now));
    }

    /// Units held. Call [`Leases::advance`] first.
    pub fn held(&self) -> u64 {
        self.0
            .iter()
            .fold(0, |held, lease| u64::saturating_add(held, lease.units))
    }

    /// When each lease ends, and the units under it.
    pub fn ends(&self) -> impl Iterator<Item = (Timestamp, u64)> {
        self.0.iter().map(|lease| (lease.expires_at, lease.units))
    }

    /// When the last lease ends.
    pub fn last_end(&self) -> Option<Timestamp> {
        self.0.iter().map(|lease| lease.expires_at).max()
    }

    /// May `asked` units be taken? Call [`Leases::advance`] first.
    pub fn admission(&self, quota: u64, asked: u64, now: Timestamp) -> Admission {
        if asked > quota {
            return Admission::Never;
        }
        let mut excess = self.held().saturating_add(asked).saturating_sub(quota);
        if excess == 0 {
            return Admission::Pass;
        }
        let mut by_end: Vec<&Lease> = self.0.iter().collect();
        by_end.sort_by_key(|lease| lease.expires_at);
        let mut retry_after = Span::ZERO;
        for lease in by_end {
            excess = excess.saturating_sub(lease.units);
            retry_after = lease.expires_at.since(now);
            if excess == 0 {
                break;
            }
        }
        Admission::Wait { retry_after }
    }

    /// How the key stands. Call [`Leases::advance`] first.
    pub fn standing(&self, quota: u64) -> Standing {
        let used = self.held();
        Standing {
            used,
            remaining: quota.saturating_sub(used),
            reset_after: Span::ZERO,
        }
    }

    /// Takes units under a lease, or adds them to the lease that the hold has already.
    pub fn take(&mut self, lease: Lease) {
        match self.0.iter_mut().find(|known| known.hold == lease.hold) {
            Some(known) => {
                known.units = known.units.saturating_add(lease.units);
                known.expires_at = lease.expires_at;
            }
            None => self.0.push(lease),
        }
    }

    /// Puts a lease in, in place of the one that the hold has.
    pub fn set(&mut self, lease: Lease) {
        self.0.retain(|known| known.hold != lease.hold);
        self.0.push(lease);
    }

    /// Moves the end of a hold's lease; false when it is not there any more.
    pub fn renew(&mut self, hold: u128, expires_at: Timestamp) -> bool {
        match self.0.iter_mut().find(|lease| lease.hold == hold) {
            Some(lease) => {
                lease.expires_at = expires_at;
                true
            }
            None => false,
        }
    }

    /// Frees up to `units` of a hold's lease; returns how many.
    pub fn free(&mut self, hold: u128, units: u64) -> u64 {
        let Some(index) = self.0.iter().position(|lease| lease.hold == hold) else {
            return 0;
        };
        let lease = &mut self.0[index];
        let freed = units.min(lease.units);
        lease.units -= freed;
        if lease.units == 0 {
            self.0.swap_remove(index);
        }
        freed
    }

    /// Whether nobody holds anything.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
