//! Each rule of the book by itself.

mod buckets;
mod shadow;

use crate::domain::name::LimitName;
use crate::domain::name::RegionName;
use crate::domain::time::Span;
use crate::domain::time::Timestamp;
use crate::domain::time::Window;
use crate::domain::time::WindowId;
use crate::grants::account::Account;
use crate::grants::account::Holder;
use crate::grants::account::Totals;
use crate::grants::account::Transfer;
use crate::grants::book::Book;
use crate::grants::book::Bounds;
use crate::grants::book::Charge;
use crate::grants::book::ENDED_PER_REGION_MAX;
use crate::grants::book::NotTaken;
use crate::grants::book::Transferred;

const MINUTE: Span = Span::from_seconds(60);

fn account(epoch: u64) -> Account {
    Account {
        tenant: "acme".into(),
        limit: LimitName::new("exports").expect("a limit's name"),
        key: "user-1".into(),
        epoch,
    }
}

fn holder(region: &str, incarnation: u64) -> Holder {
    Holder {
        region: RegionName::new(region).expect("a region's name"),
        incarnation,
    }
}

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_unix_ms(seconds * 1_000)
}

fn minute(seconds: i64) -> Window {
    Window::aligned(at(seconds), MINUTE)
}

fn told(spent: u64, returned: u64) -> Totals {
    Totals { spent, returned }
}

/// A book in which a, b and c are enrolled with incarnation 1.
fn book() -> Book {
    let mut book = Book::default();
    for region in ["a", "b", "c"] {
        book.enroll(at(0), &holder(region, 1));
    }
    book
}

fn transfer(returns: &[(&Holder, Totals)], grants: &[(&Holder, u64)]) -> Transfer {
    Transfer {
        account: account(1),
        window: minute(0),
        returns: returns
            .iter()
            .map(|(holder, totals)| ((*holder).clone(), *totals))
            .collect(),
        grants: grants
            .iter()
            .map(|(holder, to)| ((*holder).clone(), *to))
            .collect(),
    }
}

fn granted(transferred: Result<Transferred, NotTaken>) -> Vec<u64> {
    let transferred = transferred.expect("an entry that is taken");
    transferred.granted.iter().map(|(_, to)| *to).collect()
}

fn charge(holder: &Holder, units: u64, totals: Totals) -> Charge {
    Charge {
        account: account(1),
        window: minute(0),
        holder: holder.clone(),
        totals,
        units,
    }
}

fn free(book: &Book) -> u64 {
    book.standing(&account(1), minute(0).id, None)
        .expect("an open window")
        .free
}

#[track_caller]
fn assert_balanced(book: &Book) {
    assert_eq!(book.imbalances(), []);
}

#[test]
fn grants_are_clamped_to_the_pool_in_order() {
    let (mut book, a, b) = (book(), holder("a", 1), holder("b", 1));
    let entry = transfer(&[], &[(&a, 7), (&b, 7)]);
    assert_eq!(granted(book.transfer(at(1), &entry, 10)), [7, 3]);
    assert_balanced(&book);
}

#[test]
fn a_transfer_taken_twice_grants_once() {
    let (mut book, a, b) = (book(), holder("a", 1), holder("b", 1));
    let entry = transfer(&[], &[(&a, 4), (&b, 2)]);
    assert_eq!(granted(book.transfer(at(1), &entry, 10)), [4, 2]);
    let before = book.clone();
    assert_eq!(granted(book.transfer(at(1), &entry, 10)), [4, 2]);
    assert_eq!(book, before);
    assert_eq!(free(&book), 4);
}

/// A leader of a new term that planned from a book without the old leader's last entry promises what is
/// gone; the entry is cut when it is applied.
#[test]
fn a_leader_that_plans_before_it_has_the_old_tail_grants_nothing_twice() {
    let (mut book, a, b) = (book(), holder("a", 1), holder("b", 1));
    let seen_by_new_leader = book.clone();
    let old_tail = transfer(&[], &[(&a, 10)]);
    let plan = seen_by_new_leader.preview(at(1), &account(1), minute(0), 10);
    assert_eq!(plan.expect("a window that runs").free, 10);
    let new_first = transfer(&[], &[(&b, 10)]);
    assert_eq!(granted(book.transfer(at(1), &old_tail, 10)), [10]);
    assert_eq!(granted(book.transfer(at(1), &new_first, 10)), [0]);
    assert_balanced(&book);
}

#[test]
fn what_came_back_can_be_granted_in_the_same_entry() {
    let (mut book, a, b) = (book(), holder("a", 1), holder("b", 1));
    let entry = transfer(&[], &[(&a, 10)]);
    assert_eq!(granted(book.transfer(at(1), &entry, 10)), [10]);
    let entry = transfer(&[(&a, told(4, 6))], &[(&b, 9)]);
    assert_eq!(granted(book.transfer(at(2), &entry, 10)), [6]);
    assert_balanced(&book);
}

#[test]
fn a_return_that_does_not_fit_brings_nothing_back() {
    let (mut book, a) = (book(), holder("a", 1));
    let entry = transfer(&[], &[(&a, 6)]);
    assert_eq!(granted(book.transfer(at(1), &entry, 10)), [6]);
    for totals in [told(0, 7), told(4, 3), told(u64::MAX, 1), told(1, u64::MAX)] {
        let mut book = book.clone();
        let entry = transfer(&[(&a, totals)], &[]);
        book.transfer(at(1), &entry, 10).expect("a telling");
        assert_eq!(free(&book), 4, "{totals:?}");
        let tally = book.tally(&account(1), minute(0).id, &a);
        assert!(tally.spent <= tally.granted - tally.returned);
        assert_balanced(&book);
    }
}

#[test]
fn older_tellings_change_nothing() {
    let (mut book, a) = (book(), holder("a", 1));
    let entry = transfer(&[], &[(&a, 10)]);
    assert_eq!(granted(book.transfer(at(1), &entry, 10)), [10]);
    for totals in [told(3, 4), told(1, 0), told(3, 4), told(2, 4)] {
        book.returns(at(1), &account(1), minute(0).id, &[(a.clone(), totals)]);
    }
    let tally = book.tally(&account(1), minute(0).id, &a);
    assert_eq!((tally.spent, tally.returned), (3, 4));
    assert_balanced(&book);
}

/// REP-5: rights cannot be minted by sending them to oneself, to nobody, or more of them than one has.
#[test]
fn shares_are_conserved_under_transfer_duplicate_and_refusal() {
    let mut book = book();
    let (a, b, c, d) = (
        holder("a", 1),
        holder("b", 1),
        holder("c", 1),
        holder("d", 1),
    );
    let entry = transfer(&[], &[(&a, 10), (&b, 10), (&c, 10)]);
    assert_eq!(granted(book.transfer(at(1), &entry, 30)), [10, 10, 10]);
    let four_to_b = transfer(&[(&a, told(0, 4))], &[(&b, 14)]);
    assert_eq!(granted(book.transfer(at(2), &four_to_b, 30)), [14]);
    assert_eq!(granted(book.transfer(at(2), &four_to_b, 30)), [14]);
    // To itself: five come back and go out again, and no unit is added.
    let to_itself = transfer(&[(&a, told(0, 9))], &[(&a, 15)]);
    assert_eq!(granted(book.transfer(at(3), &to_itself, 30)), [15]);
    let tally = book.tally(&account(1), minute(0).id, &a);
    assert_eq!(tally.outstanding(), 6);
    // To a region that never enrolled, and from it.
    let to_unknown = transfer(&[(&d, told(0, 1))], &[(&d, 1)]);
    assert_eq!(granted(book.transfer(at(4), &to_unknown, 30)), [0]);
    // More than is held: of 6 units, 7.
    let too_large = transfer(&[(&a, told(0, 16))], &[(&b, 21)]);
    assert_eq!(granted(book.transfer(at(5), &too_large, 30)), [14]);
    let spendable =
        [&a, &b, &c].map(|holder| book.tally(&account(1), minute(0).id, holder).outstanding());
    assert_eq!(spendable, [6, 14, 10]);
    assert_eq!(free(&book), 0);
    assert_balanced(&book);
    // Each spends what it has, and tells more than that: 30 in all, and nobody gets a 31st.
    let all = [(&a, told(7, 9)), (&b, told(15, 0)), (&c, told(11, 0))];
    let entry = transfer(&all, &[(&a, 16), (&b, 15), (&c, 11)]);
    assert_eq!(granted(book.transfer(at(6), &entry, 30)), [15, 14, 10]);
    let standing = book.standing(&account(1), minute(0).id, None);
    let standing = standing.expect("an open window");
    assert_eq!((standing.used, standing.free), (30, 0));
    assert_balanced(&book);
}

#[test]
fn an_ended_process_gets_nothing_and_strands_what_it_held() {
    let (mut book, old, new) = (book(), holder("a", 1), holder("a", 2));
    let entry = transfer(&[], &[(&old, 6)]);
    assert_eq!(granted(book.transfer(at(1), &entry, 10)), [6]);
    book.enroll(at(2), &new);
    let entry = transfer(&[], &[(&old, 8), (&new, 2)]);
    assert_eq!(granted(book.transfer(at(3), &entry, 10)), [6, 2]);
    let standing = book.standing(&account(1), minute(0).id, None);
    assert_eq!(standing.expect("an open window").stranded, 6);
    // What it told before it ended arrives late and still counts.
    book.returns(at(4), &account(1), minute(0).id, &[(old, told(1, 3))]);
    let standing = book.standing(&account(1), minute(0).id, None);
    let standing = standing.expect("an open window");
    assert_eq!((standing.stranded, standing.free, standing.used), (2, 5, 1));
    assert_balanced(&book);
}

#[test]
fn a_late_enrolment_brings_no_ended_process_back() {
    let mut book = book();
    book.enroll(at(1), &holder("a", 2));
    book.enroll(at(2), &holder("a", 1));
    assert!(book.is_newest(&holder("a", 2)));
    let region = holder("a", 1).region;
    assert!(book.is_restarting(&region, at(30)));
    assert!(!book.is_restarting(&region, at(60)));
    assert!(!book.is_restarting(&holder("b", 1).region, at(1)));
    book.depart(at(61), &region);
    assert_eq!(book.newest(&region), None);
}

#[test]
fn windows_are_granted_from_shortly_before_they_begin_until_they_end() {
    let a = holder("a", 1);
    let mut entry = transfer(&[], &[(&a, 1)]);
    entry.window = minute(60);
    for (log_ms, taken) in [
        (54_999, false),
        (55_000, true),
        (119_999, true),
        (120_000, false),
    ] {
        let mut book = book();
        let log = Timestamp::from_unix_ms(log_ms);
        let preview = book.preview(log, &account(1), minute(60), 10);
        assert_eq!(preview.is_ok(), taken);
        let outcome = book.transfer(log, &entry, 10);
        assert_eq!(outcome.is_ok(), taken, "{log_ms}: {outcome:?}");
    }
    entry.window.end = entry.window.start;
    assert_eq!(
        book().transfer(at(60), &entry, 10),
        Err(NotTaken::WindowClosed)
    );
}

#[test]
fn log_time_never_falls() {
    let (mut book, a) = (book(), holder("a", 1));
    book.enroll(at(120), &a);
    let entry = transfer(&[], &[(&a, 1)]);
    assert_eq!(
        book.transfer(at(1), &entry, 10),
        Err(NotTaken::WindowClosed)
    );
    assert_eq!(book.log_time(), at(120));
}

#[test]
fn an_ended_window_still_counts_what_is_told() {
    let (mut book, a) = (book(), holder("a", 1));
    let entry = transfer(&[], &[(&a, 5)]);
    assert_eq!(granted(book.transfer(at(1), &entry, 10)), [5]);
    let entry = transfer(&[(&a, told(5, 0))], &[]);
    book.transfer(at(61), &entry, 10).expect("only tells");
    let entry = transfer(&[(&a, told(5, 0))], &[(&a, 6)]);
    assert_eq!(
        book.transfer(at(62), &entry, 10),
        Err(NotTaken::WindowClosed)
    );
    assert_eq!(book.expire(at(69), 10), []);
    let closed = book.expire(at(70), 10);
    let [proof] = &closed[..] else {
        panic!("one window: {closed:?}");
    };
    assert_eq!((proof.used(), proof.free, proof.stranded()), (5, 5, 0));
    assert_eq!(book.counters(), 0);
}

#[test]
fn windows_of_an_account_never_overlap() {
    let (mut book, a) = (book(), holder("a", 1));
    let mut entry = transfer(&[], &[(&a, 1)]);
    book.transfer(at(1), &entry, 10).expect("taken");
    entry.window = Window {
        id: WindowId(minute(60).id.0),
        start: at(57),
        end: at(117),
    };
    let taken = book.transfer(at(56), &entry, 10).expect("taken");
    assert_eq!((taken.window.start, taken.window.end), (at(60), at(117)));
    // What names the same window with other bounds means the window that is known.
    entry.window.end = at(900);
    let taken = book.transfer(at(57), &entry, 10).expect("taken");
    assert_eq!(taken.window.end, at(117));
}

#[test]
fn a_raised_quota_is_free_at_once_and_a_lowered_one_stops_grants() {
    let (mut book, a, b) = (book(), holder("a", 1), holder("b", 1));
    let entry = transfer(&[], &[(&a, 10)]);
    assert_eq!(granted(book.transfer(at(1), &entry, 10)), [10]);
    let entry = transfer(&[], &[(&b, 9)]);
    assert_eq!(granted(book.transfer(at(2), &entry, 14)), [4]);
    assert_eq!(granted(book.transfer(at(3), &entry, 6)), [4]);
    let preview = book.preview(at(3), &account(1), minute(0), 6);
    assert_eq!(preview.expect("a window that runs").free, -8);
    // 8 too many are out: the first 8 that come back go to nobody.
    let entry = transfer(&[(&a, told(1, 9))], &[(&b, 9)]);
    assert_eq!(granted(book.transfer(at(4), &entry, 6)), [5]);
    let proof = book.proof(&account(1), minute(0).id);
    let proof = proof.expect("an open window");
    assert_eq!((proof.quota, proof.quota_max, proof.free), (6, 14, 0));
    assert_balanced(&book);
}

#[test]
fn a_new_epoch_begins_without_what_the_old_one_has_out() {
    let (mut book, a, b) = (book(), holder("a", 1), holder("b", 1));
    let old = transfer(&[], &[(&a, 7)]);
    assert_eq!(granted(book.transfer(at(1), &old, 10)), [7]);
    book.returns(at(2), &account(1), minute(0).id, &[(a.clone(), told(2, 0))]);
    // 2 were spent under the old epoch and do not count; 5 may still be spent.
    let mut new = transfer(&[], &[(&b, 20)]);
    new.account = account(2);
    let preview = book.preview(at(3), &account(2), minute(0), 10);
    assert_eq!(preview.expect("a window that runs").free, 5);
    assert_eq!(granted(book.transfer(at(3), &new, 10)), [5]);
    // The old epoch is granted nothing any more, whatever comes back to it.
    let again = transfer(&[(&a, told(3, 4))], &[(&a, 20)]);
    assert_eq!(book.transfer(at(4), &again, 10), Err(NotTaken::Superseded));
    assert_eq!(granted(book.transfer(at(5), &new, 10)), [9]);
    assert_balanced(&book);
}

#[test]
fn what_an_old_epoch_withholds_ends_with_its_window() {
    let (mut book, a, b) = (book(), holder("a", 1), holder("b", 1));
    let old = transfer(&[], &[(&a, 7)]);
    assert_eq!(granted(book.transfer(at(1), &old, 10)), [7]);
    let mut new = transfer(&[], &[(&b, 20)]);
    new.account = account(2);
    new.window = Window::aligned(at(0), Span::from_seconds(3_600));
    assert_eq!(granted(book.transfer(at(3), &new, 10)), [3]);
    assert_eq!(granted(book.transfer(at(59), &new, 10)), [3]);
    let preview = book.preview(at(60), &account(2), new.window, 10);
    assert_eq!(preview.expect("a window that runs").free, 7);
    assert_eq!(granted(book.transfer(at(60), &new, 10)), [10]);
    assert_balanced(&book);
}

#[test]
fn charges_of_one_check_are_made_together_or_not_at_all() {
    let (mut book, a) = (book(), holder("a", 1));
    let entry = transfer(&[], &[(&a, 8)]);
    assert_eq!(granted(book.transfer(at(1), &entry, 10)), [8]);
    let (two, one) = (
        charge(&a, 2, Totals::default()),
        charge(&a, 1, Totals::default()),
    );
    let before = book.clone();
    assert_eq!(
        book.charge(at(1), &[(&two, 10), (&one, 10)]),
        Err((1, NotTaken::Empty))
    );
    assert_eq!(book, before);
    // What the region gave back for the charge pays for it.
    let paid = charge(&a, 3, told(0, 1));
    let standings = book.charge(at(1), &[(&paid, 10)]).expect("charged");
    assert_eq!((standings[0].used, standings[0].free), (3, 0));
    assert_balanced(&book);
}

#[test]
fn only_the_newest_process_is_charged_and_only_in_a_window_that_runs() {
    let (mut book, a) = (book(), holder("a", 1));
    let unknown = charge(&holder("a", 9), 1, Totals::default());
    assert_eq!(
        book.charge(at(1), &[(&unknown, 10)]),
        Err((0, NotTaken::NotEnrolled))
    );
    let mut ahead = charge(&a, 1, Totals::default());
    ahead.window = minute(60);
    assert_eq!(
        book.charge(at(58), &[(&ahead, 10)]),
        Err((0, NotTaken::WindowClosed))
    );
    assert!(book.charge(at(60), &[(&ahead, 10)]).is_ok());
    assert_balanced(&book);
}

#[test]
fn refunds_are_capped_by_what_the_holder_used() {
    let (mut book, a) = (book(), holder("a", 1));
    let id = minute(0).id;
    let entry = transfer(&[], &[(&a, 6)]);
    assert_eq!(granted(book.transfer(at(1), &entry, 10)), [6]);
    let charged = charge(&a, 2, Totals::default());
    book.charge(at(1), &[(&charged, 10)]).expect("charged");
    let mut refund = |units, totals| book.refund(at(2), &account(1), id, &a, totals, units);
    assert_eq!(refund(5, told(1, 0)), 3);
    assert_eq!(refund(5, told(1, 0)), 0);
    assert_eq!(refund(u64::MAX, told(6, 0)), 5);
    assert_eq!(
        book.refund(at(2), &account(1), id, &holder("z", 1), told(9, 0), 5),
        0
    );
    let standing = book.standing(&account(1), id, Some(&a));
    let standing = standing.expect("an open window");
    assert_eq!(
        (standing.used, standing.used_by_holder, standing.free),
        (0, 6, 10)
    );
    assert_balanced(&book);
}

#[test]
fn open_counters_are_bounded_by_tenant_and_in_all() {
    let mut book = Book::new(Bounds {
        counters_per_tenant_max: 2,
        counters_max: 3,
    });
    let a = holder("a", 1);
    book.enroll(at(0), &a);
    let mut outcomes = Vec::new();
    for (tenant, key) in [("t", "1"), ("t", "2"), ("t", "3"), ("u", "1"), ("v", "1")] {
        let mut entry = transfer(&[], &[(&a, 1)]);
        entry.account.tenant = tenant.into();
        entry.account.key = key.into();
        outcomes.push(book.transfer(at(1), &entry, 10).err());
        // Another window of an open counter needs no room.
        entry.window = minute(60);
        outcomes.push(book.transfer(at(56), &entry, 10).err());
    }
    let full = Some(NotTaken::Capacity);
    assert_eq!(
        outcomes,
        [None, None, None, None, full, full, None, None, full, full]
    );
    assert_eq!(book.expire(at(130), 2).len(), 2);
    assert_eq!(book.expire(at(130), 9).len(), 4);
    assert_eq!(book.counters(), 0);
}

#[test]
fn a_region_that_restarts_for_ever_keeps_a_window_small() {
    let mut book = book();
    for incarnation in 1..200 {
        let a = holder("a", incarnation);
        book.enroll(at(1), &a);
        let entry = transfer(&[], &[(&a, 2)]);
        assert_eq!(granted(book.transfer(at(1), &entry, 1_000)), [2]);
        book.returns(at(1), &account(1), minute(0).id, &[(a, told(1, 0))]);
    }
    let proof = book.proof(&account(1), minute(0).id);
    let proof = proof.expect("an open window");
    assert!(proof.rows.len() <= ENDED_PER_REGION_MAX + 2);
    assert_eq!(
        (proof.used(), proof.stranded(), proof.free),
        (199, 198, 602)
    );
    // A charge of a process that is added up by now can still be given back.
    let id = minute(0).id;
    assert_eq!(
        book.refund(at(2), &account(1), id, &holder("a", 1), told(0, 0), 1),
        1
    );
    assert_balanced(&book);
}
