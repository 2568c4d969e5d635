//! What the rule says in single situations.

use super::*;

const PEERS: usize = 2;

fn mesh(peers: usize) -> Mesh {
    Mesh {
        peers: (1..=peers)
            .map(|site| Peer {
                site: Site(u8::try_from(site).expect("few peers")),
                heard: Span::ZERO,
                is_in_touch: true,
                is_reachable: true,
                acked_round: 0,
                latency: Span::from_ms(30 * site as u64),
            })
            .collect(),
        regions: u8::try_from(peers + 1).expect("few peers"),
        order: 0,
    }
}

/// `own` and `remaining` at `ms`.
fn at(mesh: &Mesh, ms: u64, own: u64, remaining: u64) -> Position<'_> {
    Position {
        boot: Span::from_ms(ms),
        mesh,
        own,
        remaining,
        quota: 1_000,
        split: Split::Adaptive,
        on_partition: OnPartition::Share,
        bucket: None,
    }
}

fn told(demand: u64, peak: u64) -> Gossip {
    Gossip {
        demand: gossip::encoded(demand << FRACTION_BITS),
        peak: gossip::encoded(peak << FRACTION_BITS),
    }
}

fn refused(ms: u64) -> Shared {
    Shared::Refused {
        retry_after: Span::from_ms(ms),
    }
}

/// The most that passes in one call.
fn most(sharing: &Sharing, at: &Position<'_>) -> u64 {
    let grants = |units: &u64| sharing.clone().judge(at, *units) == Shared::Granted;
    let least_refused = (1..=at.remaining + 1).find(|units| !grants(units));
    least_refused.map_or(at.remaining, |units| units - 1)
}

/// The most that passes unit by unit.
fn most_in_units(sharing: &Sharing, at: &Position<'_>) -> u64 {
    let mut sharing = sharing.clone();
    sharing.news();
    let mut at = *at;
    let mut passed = 0;
    while sharing.judge(&at, 1) == Shared::Granted {
        passed += 1;
        at.own += 1;
        at.remaining -= 1;
        sharing.news();
    }
    passed
}

#[test]
fn it_is_small() {
    let heap = PEERS * size_of::<Told>();
    assert!(size_of::<Sharing>() <= 120, "{}", size_of::<Sharing>());
    assert!(size_of::<Sharing>() + heap <= 136);
}

#[test]
fn alone_or_unasked_elsewhere_a_region_gets_all() {
    for peers in [0, 2, 7] {
        let mesh = mesh(peers);
        for left in [1, 2, 999] {
            let sharing = Sharing::new(Span::ZERO);
            assert_eq!(most_in_units(&sharing, &at(&mesh, 50, 7, left)), left);
            assert_eq!(most(&sharing, &at(&mesh, 50, 7, left)), left);
        }
    }
}

#[test]
fn what_others_may_have_used_unheard_is_guarded() {
    let mesh = mesh(PEERS);
    let mut sharing = Sharing::new(Span::ZERO);
    sharing.attempt(Span::ZERO, 1);
    sharing.hear(Span::ZERO, Site(1), told(128, 0));
    // Twice what is wanted in 250 ms.
    assert_eq!(sharing.judge(&at(&mesh, 250, 0, 500), 1), Shared::Granted);
    assert_eq!(sharing.cap, 500 - 64);
    assert!(!sharing.is_near(0));
    sharing.news();
    assert_eq!(sharing.judge(&at(&mesh, 250, 400, 100), 1), Shared::Granted);
    assert!(sharing.is_near(400));
    // Half of a peak, whenever it was heard.
    sharing.hear(Span::from_ms(250), Site(2), told(0, 65));
    sharing.hear(Span::from_ms(250), Site(1), told(0, 1));
    assert_eq!(sharing.judge(&at(&mesh, 250, 0, 500), 1), Shared::Granted);
    assert_eq!(sharing.cap, 500 - 32);
}

#[test]
fn silence_of_more_than_a_second_is_guarded_no_further() {
    let mesh = mesh(PEERS);
    let mut sharing = Sharing::new(Span::ZERO);
    sharing.hear(Span::from_ms(4_900), Site(1), told(100, 0));
    assert_eq!(sharing.judge(&at(&mesh, 5_000, 0, 900), 1), Shared::Granted);
    let guard = 900 - sharing.cap;
    assert!((190..=210).contains(&guard), "{guard}");
}

#[test]
fn near_the_limit_shares_follow_demand() {
    let mesh = mesh(1);
    let boot = Span::from_ms(50);
    let mut sharing = Sharing::new(Span::ZERO);
    // A quarter of a peak counts like demand of 833 ms: both regions have three of the first.
    sharing.attempt(boot, 300);
    sharing.hear(boot, Site(1), told(300, 300));
    // Guard 150: all 100 are shared, by halves.
    assert_eq!(most_in_units(&sharing, &at(&mesh, 50, 0, 100)), 50);
    sharing.hear(boot, Site(1), told(100, 100));
    // A tenth each, and three quarters of four fifths.
    assert_eq!(most_in_units(&sharing, &at(&mesh, 50, 0, 40)), 28);
    assert_eq!(sharing.judge(&at(&mesh, 50, 28, 12), 1), refused(160));
    // What is known over there is used up, the rest is shared anew.
    sharing.gathered(1, 28);
    let mut acked = mesh.clone();
    acked.peers[0].acked_round = 1;
    assert_eq!(most_in_units(&sharing, &at(&acked, 50, 28, 12)), 8);
}

#[test]
fn one_call_may_be_all_that_is_left() {
    let mesh = mesh(1);
    let boot = Span::from_ms(50);
    let mut sharing = Sharing::new(Span::ZERO);
    sharing.attempt(boot, 300);
    sharing.hear(boot, Site(1), told(100, 100));
    // 40 units are four calls of ten, three of them ours; one of forty goes to the one who wants most.
    assert_eq!(sharing.judge(&at(&mesh, 50, 0, 40), 40), Shared::Granted);
    sharing.hear(boot, Site(1), told(400, 400));
    assert_eq!(sharing.judge(&at(&mesh, 50, 0, 40), 40), refused(160));
}

#[test]
fn equal_shares_are_equal_from_the_first_unit_on() {
    let mesh = mesh(PEERS);
    let mut sharing = Sharing::new(Span::ZERO);
    sharing.attempt(Span::ZERO, 500);
    let mut at = at(&mesh, 50, 0, 1_000);
    at.split = Split::Equal;
    // Two thirds of a unit are over: one each for the first two in order.
    assert_eq!(most_in_units(&sharing, &at), 334);
    assert_eq!(sharing.judge(&at, 1), Shared::Granted);
    assert!(sharing.is_near(1));
    let mut last = mesh.clone();
    last.order = 2;
    at.mesh = &last;
    assert_eq!(most_in_units(&sharing, &at), 333);
}

#[test]
fn without_a_split_all_that_is_known_to_be_left_passes() {
    let mesh = mesh(PEERS);
    let mut sharing = Sharing::new(Span::ZERO);
    sharing.hear(Span::ZERO, Site(1), told(1_000, 1_000));
    let mut at = at(&mesh, 50, 0, 77);
    at.split = Split::None;
    assert_eq!(most_in_units(&sharing, &at), 77);
}

#[test]
fn the_guard_of_a_bucket_is_a_quarter_of_it() {
    let mesh = mesh(PEERS);
    let mut sharing = Sharing::new(Span::ZERO);
    sharing.hear(Span::from_ms(4_900), Site(1), told(1_000, 1_000));
    let mut at = at(&mesh, 5_000, 0, 400);
    at.bucket = Some(400);
    assert_eq!(sharing.judge(&at, 1), Shared::Granted);
    assert_eq!(sharing.cap, 300);
}

#[test]
fn nothing_passes_what_is_known_to_be_left() {
    let mesh = mesh(PEERS);
    let mut sharing = Sharing::new(Span::ZERO);
    assert_eq!(sharing.judge(&at(&mesh, 50, 990, 10), 10), Shared::Granted);
    assert_eq!(sharing.judge(&at(&mesh, 50, 990, 10), 11), NOTHING_LEFT);
    // Nobody said that something was merged: the cap is old, the remainder is not.
    assert_eq!(sharing.judge(&at(&mesh, 50, 990, 3), 4), NOTHING_LEFT);
    assert_eq!(
        sharing.judge(&at(&mesh, 50, u64::MAX, 0), u64::MAX),
        NOTHING_LEFT
    );
}

#[test]
fn a_cap_holds_for_ten_milliseconds() {
    let mut mesh = mesh(1);
    let mut sharing = Sharing::new(Span::ZERO);
    assert_eq!(sharing.judge(&at(&mesh, 50, 0, 100), 1), Shared::Granted);
    mesh.peers[0].is_in_touch = false;
    mesh.peers[0].is_reachable = false;
    assert_eq!(sharing.judge(&at(&mesh, 55, 60, 40), 1), Shared::Granted);
    assert!(!sharing.is_degraded());
    assert_eq!(sharing.judge(&at(&mesh, 65, 60, 40), 1), refused(1_000));
    assert!(sharing.is_degraded());
}

#[test]
fn a_part_of_what_was_left_is_kept_for_a_region_that_is_cut_off() {
    let mut mesh = mesh(PEERS);
    mesh.peers[1].is_in_touch = false;
    mesh.peers[1].is_reachable = false;
    let mut sharing = Sharing::new(Span::ZERO);
    assert_eq!(most_in_units(&sharing, &at(&mesh, 50, 0, 300)), 200);
    // Once: use on this side does not lessen it.
    sharing.reserve(&at(&mesh, 50, 0, 300));
    assert_eq!(most_in_units(&sharing, &at(&mesh, 5_000, 90, 210)), 110);
    assert_eq!(
        sharing.judge(&at(&mesh, 5_000, 200, 100), 1),
        refused(1_000)
    );
    assert!(sharing.is_degraded());
    // Another window, another part.
    sharing.enter();
    assert_eq!(most_in_units(&sharing, &at(&mesh, 6_000, 0, 600)), 400);
    sharing.reserve(&at(&mesh, 6_000, 0, 600));
    mesh.peers[1].is_in_touch = true;
    mesh.peers[1].is_reachable = true;
    assert_eq!(most_in_units(&sharing, &at(&mesh, 7_000, 400, 200)), 200);
    assert_eq!(
        sharing.judge(&at(&mesh, 7_000, 400, 200), 1),
        Shared::Granted
    );
    assert!(sharing.reserves.is_none());
    assert!(!sharing.is_degraded());
}

#[test]
fn use_that_a_cut_off_region_does_not_know_of_counts_as_left_at_the_cut() {
    let mut mesh = mesh(1);
    let mut sharing = Sharing::new(Span::ZERO);
    sharing.gathered(1, 40);
    sharing.gathered(2, 100);
    mesh.peers[0].acked_round = 1;
    mesh.peers[0].is_in_touch = false;
    mesh.peers[0].is_reachable = false;
    // Over there 160 are left, and we have had 60 of our half.
    assert_eq!(most_in_units(&sharing, &at(&mesh, 2_000, 100, 100)), 20);
}

#[test]
fn nothing_is_kept_for_others_when_a_limit_is_open_or_wants_a_majority() {
    let mut mesh = mesh(4);
    mesh.peers[0].is_in_touch = false;
    mesh.peers[0].is_reachable = false;
    mesh.peers[3].is_in_touch = false;
    mesh.peers[3].is_reachable = false;
    let mut sharing = Sharing::new(Span::ZERO);
    let mut at = at(&mesh, 50, 0, 300);
    at.on_partition = OnPartition::Open;
    assert_eq!(most_in_units(&sharing, &at), 300);
    at.on_partition = OnPartition::Majority;
    assert_eq!(most_in_units(&sharing, &at), 300);
    let mut smaller = mesh.clone();
    smaller.peers[1].is_in_touch = false;
    smaller.peers[1].is_reachable = false;
    at.mesh = &smaller;
    sharing.news();
    assert_eq!(sharing.judge(&at, 1), Shared::Minority);
    at.on_partition = OnPartition::Open;
    sharing.news();
    assert_eq!(sharing.judge(&at, 1), Shared::Granted);
}

#[test]
fn half_of_the_regions_are_no_majority() {
    let mut mesh = mesh(1);
    mesh.peers[0].is_in_touch = false;
    mesh.peers[0].is_reachable = false;
    let mut at = at(&mesh, 50, 0, 300);
    at.on_partition = OnPartition::Majority;
    assert_eq!(Sharing::new(Span::ZERO).judge(&at, 1), Shared::Minority);
}

#[test]
fn a_counter_is_pushed_when_others_know_too_little() {
    let mesh = mesh(PEERS);
    let mut sharing = Sharing::new(Span::ZERO);
    assert!(!sharing.wants_push(&at(&mesh, 50, 0, 0)), "nothing to tell");
    assert!(!sharing.wants_push(&at(&mesh, 50, 9, 120)), "9 of 120/12");
    assert!(sharing.wants_push(&at(&mesh, 50, 10, 120)), "10 of 120/12");
    sharing.gathered(1, 10);
    assert!(!sharing.wants_push(&at(&mesh, 150, 10, 120)));
    assert!(
        sharing.wants_push(&at(&mesh, 150, 11, 11)),
        "each of the last"
    );
    assert!(!sharing.wants_push(&at(&mesh, 169, 12, 10)), "too soon");
    assert!(sharing.wants_push(&at(&mesh, 173, 12, 10)));
    let mut bucket = at(&mesh, 200, 13, 9);
    bucket.bucket = Some(100);
    assert!(!sharing.wants_push(&bucket), "buckets wait longer");
    bucket.boot = Span::from_ms(226);
    assert!(sharing.wants_push(&bucket));
}

#[test]
fn sites_that_cannot_be_are_passed_over() {
    let mut sharing = Sharing::new(Span::ZERO);
    sharing.hear(Span::ZERO, Site::HOME, told(1, 1));
    sharing.hear(Span::ZERO, Site(Site::MAX), told(1, 1));
    assert!(sharing.told.is_empty());
    sharing.hear(Span::ZERO, Site(Site::MAX - 1), told(1, 1));
    assert_eq!(sharing.told.len(), 31);
}

/// A region that had been away was taken to know what only the others had acknowledged since it was heard again.
#[test]
fn what_a_region_that_is_back_has_not_merged_is_not_known_to_all() {
    let mut mesh = mesh(PEERS);
    let mut sharing = Sharing::new(Span::ZERO);
    sharing.gathered(3, 10);
    sharing.gathered(5, 20);
    mesh.peers[0].acked_round = 5;
    mesh.peers[1].acked_round = 3;
    mesh.peers[1].is_reachable = false;
    assert_eq!(sharing.judge(&at(&mesh, 10, 20, 900), 1), Shared::Granted);
    mesh.peers[1].is_reachable = true;
    sharing.news();
    assert_eq!(sharing.judge(&at(&mesh, 20, 20, 900), 1), Shared::Granted);
    assert_eq!(sharing.known_by(3), 10);
    // While it is away, nothing waits for it.
    mesh.peers[1].is_reachable = false;
    mesh.peers[1].is_in_touch = false;
    sharing.news();
    assert_eq!(sharing.judge(&at(&mesh, 30, 20, 900), 1), Shared::Granted);
    assert_eq!(sharing.known_by(3), 20);
}
