//! How windows were used, while they are open and after they have ended.

use super::Scene;
use super::allowed;
use super::holder;
use crate::domain::time::Timestamp;
use crate::grants::account::Totals;
use crate::grants::account::Transfer;
use crate::grants::book::KEPT_AFTER_END;
use crate::grants::book::Proof;
use crate::machine::Machine;
use crate::machine::command::Command;
use crate::machine::command::Reply;

fn proof(machine: &Machine, at_ms: i64) -> Option<Proof> {
    machine.proof("t", "fixed", "", Timestamp::from_unix_ms(at_ms))
}

/// Region `a` is granted 4 of 10, spends 2 and returns 1; the log charges 3 for region `b`.
fn used(scene: &mut Scene) {
    let (account, window) = (scene.account("fixed"), scene.window());
    scene.apply(Command::Transfer(Transfer {
        account: account.clone(),
        window,
        returns: Vec::new(),
        grants: vec![(holder("a"), 4)],
    }));
    let told = Totals {
        spent: 2,
        returned: 1,
    };
    scene.apply(Command::Transfer(Transfer {
        account,
        window,
        returns: vec![(holder("a"), told)],
        grants: Vec::new(),
    }));
    assert!(allowed(&scene.charge("b", &["fixed"], 3)));
}

fn after_the_end(scene: &Scene) -> i64 {
    scene.window().end.plus(KEPT_AFTER_END).as_unix_ms()
}

#[test]
fn an_ended_window_stays_in_the_ledger() {
    let mut scene = Scene::new();
    used(&mut scene);
    let inside = scene.at_ms;
    let open = proof(&scene.machine, inside).expect("open");
    assert!(open.adds_up(), "{open:?}");
    assert_eq!((open.used(), open.free), (5, 4));
    assert!(proof(&scene.machine, inside - 60_000).is_none());

    scene.at_ms = after_the_end(&scene) - 1;
    assert!(allowed(&scene.charge("a", &["fixed"], 1)));
    assert_eq!(proof(&scene.machine, inside).as_ref(), Some(&open));
    assert!(scene.machine.closed.is_empty(), "late words still count");

    scene.at_ms += 1;
    assert!(allowed(&scene.charge("a", &["fixed"], 1)));
    assert_eq!(scene.machine.closed.len(), 1);
    assert_eq!(proof(&scene.machine, inside).as_ref(), Some(&open));
    let running = proof(&scene.machine, scene.at_ms).expect("the next window");
    assert_eq!(running.used(), 2);

    let bytes = scene.machine.snapshot().expect("a snapshot");
    let copy = Machine::from_snapshot(&bytes).expect("readable");
    assert_eq!(proof(&copy, inside).as_ref(), Some(&open));
}

#[test]
fn of_several_epochs_the_newest_is_shown() {
    let mut scene = Scene::new();
    used(&mut scene);
    let (inside, before) = (scene.at_ms, scene.epoch("fixed"));
    scene.change(serde_json::json!({ "reset": { "tenant": "t", "limit": "fixed", "key": null } }));
    let shown = proof(&scene.machine, inside).expect("the old one");
    assert_eq!(shown.account.epoch, before, "the new one has no window yet");
    assert!(allowed(&scene.charge("b", &["fixed"], 1)));
    let check = |scene: &Scene| {
        let shown = proof(&scene.machine, inside).expect("the new one");
        assert!(shown.account.epoch > before && shown.adds_up(), "{shown:?}");
        assert_eq!((shown.used(), shown.withheld), (1, 1), "one unit is held");
    };
    check(&scene);
    scene.at_ms = after_the_end(&scene);
    scene.apply(Command::Prefer(None));
    assert_eq!(scene.machine.closed.len(), 2);
    let shown = proof(&scene.machine, inside).expect("closed");
    assert!(shown.account.epoch > before && shown.adds_up(), "{shown:?}");
}

#[test]
fn a_region_that_has_gone_is_granted_nothing_until_it_enrolls_again() {
    let mut scene = Scene::new();
    used(&mut scene);
    let inside = scene.at_ms;
    let row_of_a = |machine: &Machine| {
        let rows = proof(machine, inside).expect("open").rows;
        let row = rows.into_iter().find(|row| row.region.as_str() == "a");
        let row = row.expect("a row");
        (row.held, row.stranded)
    };
    assert_eq!(row_of_a(&scene.machine), (1, 0));
    scene.apply(Command::Depart(holder("a").region));
    assert_eq!(row_of_a(&scene.machine), (0, 1));
    let more = Transfer {
        account: scene.account("fixed"),
        window: scene.window(),
        returns: Vec::new(),
        grants: vec![(holder("a"), 6)],
    };
    let granted = |reply| match reply {
        Reply::Transferred(transferred) => transferred.granted[0].1,
        other => panic!("{other:?}"),
    };
    assert_eq!(granted(scene.apply(Command::Transfer(more.clone()))), 4);
    scene.apply(Command::Enroll(holder("a")));
    assert_eq!(granted(scene.apply(Command::Transfer(more))), 6);
    assert_eq!(row_of_a(&scene.machine), (3, 0));
}
