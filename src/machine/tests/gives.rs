//! Units that go back.

use super::Scene;
use super::allowed;
use super::keyed;
use crate::domain::time::Timestamp;
use crate::ledger::hold::Receipt;
use crate::ledger::idempotency::Operation;
use crate::machine::charge::Charged;
use crate::machine::charge::Keyed;
use crate::machine::command::Command;
use crate::machine::command::Reply;
use crate::machine::give::GiveBack;
use crate::machine::give::Given;
use crate::machine::give::Renew;
use crate::machine::give::Source;

fn give(scene: &mut Scene, region: &str, units: u64, source: Source, key: Option<Keyed>) -> Given {
    let give = GiveBack {
        request: scene.request(region),
        keyed: key,
        tenant: "t".into(),
        units,
        source,
        told: None,
    };
    match scene.apply(Command::GiveBack(give)) {
        Reply::Given(given) => given,
        reply => panic!("{reply:?}"),
    }
}

fn in_use(scene: &Scene, limit: &str) -> Source {
    let account = scene.account(limit);
    Source::Use {
        limit: account.limit,
        key: account.key,
        epoch: account.epoch,
        window: scene.window_of(limit),
    }
}

fn receipt(charged: Charged) -> Receipt {
    match charged {
        Charged::Allowed(answered) => answered.receipts[0].clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_refund_gives_back_what_is_in_use_and_no_more() {
    for limit in ["fixed", "sliding", "log", "bucket"] {
        let mut scene = Scene::new();
        scene.charge("a", &[limit], 2);
        scene.charge("b", &[limit], 1);
        let source = in_use(&scene, limit);
        let given = give(&mut scene, "b", 50, source, None);
        assert_eq!(given, Given::Units(3), "{limit}");
        let source = in_use(&scene, limit);
        assert_eq!(give(&mut scene, "b", 50, source, None), Given::Units(0));
        assert!(allowed(&scene.charge("a", &[limit], 3)), "{limit}");
    }
}

#[test]
fn a_refund_with_a_key_counts_once() {
    let mut scene = Scene::new();
    scene.charge("a", &["fixed"], 5);
    let key = |fingerprint| {
        Some(Keyed {
            operation: Operation::Refund,
            ..keyed("k", fingerprint)
        })
    };
    let source = in_use(&scene, "fixed");
    assert_eq!(
        give(&mut scene, "a", 2, source.clone(), key(1)),
        Given::Units(2)
    );
    assert_eq!(
        give(&mut scene, "b", 2, source.clone(), key(1)),
        Given::Repeated(2)
    );
    assert_eq!(give(&mut scene, "b", 1, source, key(2)), Given::Mismatch);
    assert!(!allowed(&scene.charge("a", &["fixed"], 8)));
    assert!(allowed(&scene.charge("a", &["fixed"], 7)));
}

#[test]
fn a_charge_is_given_back_to_where_it_came_from() {
    for limit in ["fixed", "sliding", "log", "bucket"] {
        let mut scene = Scene::new();
        let charge = scene.charge("a", &[limit], 3);
        let source = |receipt| Source::Charge { receipt, hold: 0 };
        let receipt = receipt(charge);
        assert_eq!(
            give(&mut scene, "a", 2, source(receipt.clone()), None),
            Given::Units(2),
            "{limit}"
        );
        assert_eq!(
            give(&mut scene, "a", 2, source(receipt), None),
            Given::Units(1),
            "{limit}: the rest"
        );
    }
}

#[test]
fn a_released_slot_is_free_and_a_renewed_one_lasts() {
    let mut scene = Scene::new();
    let take = |scene: &mut Scene, hold: u128| {
        let mut charge = scene.charge_of("a", &["slots"], 1);
        charge.hold = Some((hold, Timestamp::from_unix_ms(scene.at_ms + 5_000)));
        scene.send(charge)
    };
    let first = receipt(take(&mut scene, 1));
    let second = receipt(take(&mut scene, 2));
    assert!(!allowed(&take(&mut scene, 3)));
    let source = Source::Charge {
        receipt: first,
        hold: 1,
    };
    assert_eq!(give(&mut scene, "a", 1, source, None), Given::Units(1));
    assert!(allowed(&take(&mut scene, 3)));
    let renew = Renew {
        request: scene.request("a"),
        receipts: vec![second],
        hold: 2,
        expires_at: Timestamp::from_unix_ms(scene.at_ms + 20_000),
    };
    scene.apply(Command::Renew(renew));
    scene.at_ms += 19_999;
    assert!(allowed(&take(&mut scene, 4)), "the third has ended");
    assert!(!allowed(&take(&mut scene, 5)), "the second was renewed");
    scene.at_ms += 1;
    assert!(allowed(&take(&mut scene, 5)));
}
