//! What the random tests have found, each with the values that showed it, so that it stays found.

use highwater::domain::time::Span;

use crate::scene::Desk;
use crate::scene::bucket;
use crate::scene::fixed;
use crate::scene::ledger;
use crate::scene::ms;
use crate::scene::seconds;
use crate::scene::sliding;

/// The waits were told as if the clock stood where the counter had last seen it; a caller who waited that
/// long after a small step back came too early.
#[test]
fn waits_include_the_time_by_which_the_clock_is_behind() {
    let ledger = ledger();
    let window = Desk::new(fixed(1, seconds(60)));
    assert!(window.passes(&ledger, ms(0), 1));
    let told = window.take(&ledger, ms(-500), 1);
    assert_eq!(told.retry_after, Some(Span::from_ms(60_500)));
    assert_eq!(told.standing.reset_after, Span::from_ms(60_500));

    let weighted = Desk::new(sliding(1, seconds(60))).with_id(2);
    assert!(weighted.passes(&ledger, ms(0), 1));
    let told = weighted.take(&ledger, ms(-500), 1);
    assert_eq!(told.retry_after, Some(Span::from_ms(120_500)));

    let level = Desk::new(bucket(1, 1, seconds(1))).with_id(3);
    assert!(level.passes(&ledger, ms(0), 1));
    let told = level.take(&ledger, ms(-500), 1);
    assert_eq!(told.retry_after, Some(Span::from_ms(1_500)));
    assert!(!level.passes(&ledger, ms(999), 1));
    assert!(level.passes(&ledger, ms(1_000), 1));
}
