//! What a region keeps and tells of the windows that it shares, beside their counts.

use highwater::domain::name::RegionName;
use highwater::domain::time::Span;
use highwater::ledger::exchange::LONG_AGO;
use highwater::ledger::exchange::News;
use highwater::ledger::exchange::Told;
use highwater::ledger::mesh::Mesh;
use highwater::ledger::mesh::Peer;
use highwater::usage::actor::Actor;
use highwater::usage::window::Slot;

use super::gathered;
use super::of_two_regions;
use super::shared;
use super::tells_after;
use super::window;
use crate::scene::fixed;
use crate::scene::ms;
use crate::scene::seconds;
use crate::scene::sliding;

/// A region that had not asked for a limit kept no part of it for those that were cut off before it did, and then took
/// theirs from what its own side of the cut had left: 18 % over a quota in a simulated cut of 30 s.
#[test]
fn parts_of_regions_that_are_cut_off_are_kept_before_this_one_asks() {
    for (rule, starts) in [
        (fixed(100, seconds(60)), ms(0)),
        (sliding(100, seconds(60)), ms(0)),
    ] {
        let ledger = of_two_regions();
        let mut mesh = Mesh::clone(&ledger.mesh());
        let third = RegionName::new("us-west-1").expect("a region's name");
        mesh.peers.push(Peer {
            site: ledger.site(&third).expect("room"),
            is_in_touch: false,
            is_reachable: false,
            ..mesh.peers[0]
        });
        mesh.regions = 3;
        ledger.set_mesh(mesh.clone());
        let desk = shared(rule);
        let now = ms(1_000);
        for p in [10, 40] {
            let told = (window(starts), p);
            let lives = (ms(120_000), LONG_AGO);
            tells_after(&ledger, &desk, now, lives, told, |counter| {
                counter.reserve(&desk.limit, &mesh, Span::ZERO, now);
            });
        }
        // A third of 100 is kept for the region that is cut off, not of the 60 that are left.
        let passed = (0..100).filter(|_| desk.passes(&ledger, now, 1)).count();
        assert_eq!(passed, 27, "{desk:?}");
    }
}

/// Peers told of what an earlier process of this region had charged in a window that this one had not come to. Once it
/// had, they were taken to know all of it, from each other, and one of them did not.
#[test]
fn what_an_earlier_process_charged_ahead_is_told_with_what_comes_next() {
    let ledger = of_two_regions();
    let desk = shared(fixed(8, seconds(60)));
    assert!(desk.passes(&ledger, ms(59_000), 3));
    let before = Actor {
        incarnation: 1,
        ..ledger.actors().own_actor().clone()
    };
    let (actor, site) = ledger.number(&before).expect("room");
    let (p, n) = (2, 0);
    let news = News {
        limit: desk.id,
        tenant: &desk.tenant,
        key: &desk.key,
        epoch: desk.epoch,
        dead_at: ms(120_000),
        since: LONG_AGO,
    };
    let handed_back = Told {
        window: window(ms(60_000)),
        slot: Slot { actor, p, n, site },
        speaks: false,
        is_fresh: true,
    };
    let told = std::iter::once(handed_back);
    ledger.hear(&news, ms(59_500), told, |_| (), |_| ());
    gathered(&ledger);
    assert!(desk.passes(&ledger, ms(60_500), 1));
    let (mut known, mut with_others) = (Vec::new(), false);
    for shard in 0..ledger.shards() {
        ledger.gather(shard, |_, _, counter| {
            known.push(counter.known_by(u64::MAX));
            counter.tell(1, Span::ZERO);
            known.push(counter.known_by(u64::MAX));
            with_others = counter.take_unsent().with_others();
        });
    }
    assert_eq!((known, with_others), (vec![0, 3], true));
}
