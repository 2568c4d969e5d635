//! Sliding window counter: the previous window counts by the share of it that is still in sight.
//!
//! With window length W, e elapsed of the current window and use `previous` and `current`:
//!
//! - admit ⇔ previous·(W − e) + (current + asked)·W ≤ quota·W
//! - used = current + ⌈previous·(W − e)/W⌉
//! - retry, when the current use itself leaves room: wait until the previous window's weight has fallen to
//!   what the room allows, e' = W − ⌊room·W/previous⌋; else the current window must become the previous
//!   one first.
//!
//! The two-window estimate is Cloudflare's ("How we built rate limiting", 2017), here with exact integers.

use crate::algorithm::Admission;
use crate::algorithm::Standing;
use crate::domain::time::Span;
use crate::domain::time::Timestamp;

/// What the algorithm reads.
#[derive(Clone, Copy, Debug)]
pub struct Windows {
    /// Length of a window, not zero.
    pub length: Span,
    /// Start of the current window.
    pub start: Timestamp,
    /// Units in use in the current window.
    pub current: u64,
    /// Units in use in the window before.
    pub previous: u64,
}

impl Windows {
    fn elapsed(&self, now: Timestamp) -> u128 {
        u128::from(now.since(self.start).as_nanos().min(self.length.as_nanos()))
    }

    fn length(&self) -> u128 {
        u128::from(self.length.as_nanos().max(1))
    }

    /// ⌈previous·(W − e)/W⌉
    fn carried(&self, now: Timestamp) -> u64 {
        let carried = (u128::from(self.previous) * (self.length() - self.elapsed(now)))
            .div_ceil(self.length());
        u64::try_from(carried).unwrap_or(u64::MAX)
    }
}

/// May `asked` units pass?
pub fn admission(quota: u64, windows: &Windows, asked: u64, now: Timestamp) -> Admission {
    if asked > quota {
        return Admission::Never;
    }
    let length = windows.length();
    let elapsed = windows.elapsed(now);
    let previous = u128::from(windows.previous);
    let current = u128::from(windows.current);
    let (quota, asked) = (u128::from(quota), u128::from(asked));
    // Only the sum can pass 128 bits; what is allowed is one product of 64-bit numbers and lies below.
    let weighed = previous * (length - elapsed);
    let wanted = (current + asked).saturating_mul(length);
    if weighed.saturating_add(wanted) <= quota * length {
        return Admission::Pass;
    }
    let until_edge = length - elapsed;
    let retry_after = if current + asked <= quota {
        // previous > 0 here, or the check above would have passed.
        let weight_allowed = (quota - current - asked) * length / previous.max(1);
        (length - weight_allowed.min(length))
            .min(length)
            .saturating_sub(elapsed)
    } else {
        // Here current > quota − asked ≥ 0, so it is not zero.
        let weight_allowed = (quota - asked) * length / current.max(1);
        until_edge + (length - weight_allowed.min(length))
    };
    Admission::Wait {
        retry_after: Span::from_nanos_saturating(retry_after),
    }
}

/// How the window stands.
pub fn standing(quota: u64, windows: &Windows, now: Timestamp) -> Standing {
    let used = windows.current.saturating_add(windows.carried(now));
    let until_edge = Span::from_nanos_saturating(windows.length() - windows.elapsed(now));
    let reset_after = if windows.current > 0 {
        until_edge.plus(windows.length)
    } else if windows.previous > 0 {
        until_edge
    } else {
        Span::ZERO
    };
    Standing {
        used,
        remaining: quota.saturating_sub(used),
        reset_after,
    }
}
