//! Fixed and calendar windows: `quota` units in each half-open window.
//!
//! admit ⇔ used + asked ≤ quota; come back when the window ends. Twice the quota can pass around an edge:
//! that is what a fixed window is; the sliding kinds do not have it.

use crate::algorithm::Admission;
use crate::algorithm::Standing;
use crate::domain::time::Timestamp;

/// May `asked` units pass when `used` are in use in the window that ends at `end`?
pub fn admission(quota: u64, used: u64, asked: u64, end: Timestamp, now: Timestamp) -> Admission {
    if asked > quota {
        Admission::Never
    } else if used <= quota - asked {
        Admission::Pass
    } else {
        Admission::Wait {
            retry_after: end.since(now),
        }
    }
}

/// How the window stands.
pub fn standing(quota: u64, used: u64, end: Timestamp, now: Timestamp) -> Standing {
    Standing {
        used,
        remaining: quota.saturating_sub(used),
        reset_after: end.since(now),
    }
}
