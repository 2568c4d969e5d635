//! What processes that died had no time to tell.

use crdts::CmRDT;
use crdts::PNCounter;

use super::Scene;
use super::holder;
use crate::domain::limit::Limit;
use crate::grants::account::Transfer;
use crate::machine::command::Command;
use crate::machine::inherited::Inherited;
use crate::usage::actor::Actor;
use crate::usage::actor::ActorId;
use crate::usage::actor::ActorTable;
use crate::usage::record::CounterId;
use crate::usage::record::CounterRecord;

/// The process of region `a` that died, and the one after it.
fn actors() -> ActorTable {
    let actor = |incarnation| Actor {
        region: holder("a").region,
        incarnation,
    };
    ActorTable::new(vec![actor(1), actor(2)], ActorId(1))
}

/// What the disk of region `a` counts in the running window: each process its own.
fn record(scene: &Scene, limit: &str, used: &[(ActorId, u64)]) -> CounterRecord {
    let account = scene.account(limit);
    let id = CounterId {
        limit: account.limit,
        tenant: "t".into(),
        key: "".into(),
    };
    let mut record = CounterRecord::empty(id, account.epoch);
    let mut counter = PNCounter::new();
    for (actor, units) in used {
        counter.apply(counter.inc_many(*actor, *units));
    }
    let window = scene.window_of(limit).expect("a window");
    record.windows.insert(window.id, counter);
    record
}

fn note(scene: &Scene, inherited: &mut Inherited, record: &CounterRecord, epoch: u64) {
    let view = scene.machine.catalogue().view();
    let tenant = view.tenant("t").expect("the tenant");
    let found = tenant.limit(record.id.limit.as_str()).expect("the limit");
    let limit: &Limit = found.at("", scene.machine.log_time()).0;
    inherited.note(&actors(), record, Some((limit, epoch)));
}

fn grant(scene: &mut Scene, units: u64) {
    let transfer = Transfer {
        account: scene.account("fixed"),
        window: scene.window(),
        returns: Vec::new(),
        grants: vec![(holder("a"), units)],
    };
    scene.apply(Command::Transfer(transfer));
}

#[test]
fn what_a_dead_process_spent_is_told_until_the_book_has_it() {
    let mut scene = Scene::new();
    grant(&mut scene, 6);
    let mut inherited = Inherited::default();
    // Five by the one that died, and three by this process, which tells those itself.
    let record = record(&scene, "fixed", &[(ActorId(0), 5), (ActorId(1), 3)]);
    note(&scene, &mut inherited, &record, record.epoch);

    let lacking = inherited.lacking(scene.machine.book());
    assert_eq!(lacking.len(), 1);
    let report = &lacking[0];
    assert_eq!(
        (&report.holder, report.totals.spent, report.totals.returned),
        (&holder("a"), 5, 0)
    );
    // Not in the book yet: told again.
    assert_eq!(inherited.lacking(scene.machine.book()).len(), 1);

    scene.apply(Command::Transfer(Transfer {
        account: scene.account("fixed"),
        window: scene.window(),
        returns: vec![(holder("a"), report.totals)],
        grants: Vec::new(),
    }));
    assert!(inherited.lacking(scene.machine.book()).is_empty());
}

#[test]
fn what_the_leader_charged_and_what_was_never_granted_is_not_told_as_spent() {
    let mut scene = Scene::new();
    grant(&mut scene, 2);
    scene.charge("a", &["fixed"], 3);
    let mut inherited = Inherited::default();
    let record = record(&scene, "fixed", &[(ActorId(0), 9)]);
    note(&scene, &mut inherited, &record, record.epoch);
    let told: Vec<u64> = inherited
        .lacking(scene.machine.book())
        .iter()
        .map(|report| report.totals.spent)
        .collect();
    assert_eq!(told, [2]);
}

#[test]
fn a_leader_that_does_not_take_it_is_told_sixty_times() {
    let mut scene = Scene::new();
    grant(&mut scene, 6);
    let mut inherited = Inherited::default();
    let record = record(&scene, "fixed", &[(ActorId(0), 5)]);
    note(&scene, &mut inherited, &record, record.epoch);
    let book = scene.machine.book();
    let tellings = (0..1_000).take_while(|_| !inherited.lacking(book).is_empty());
    assert_eq!(tellings.count(), 60);
}

#[test]
fn use_of_another_epoch_and_of_limits_without_reservations_is_not_told() {
    let mut scene = Scene::new();
    grant(&mut scene, 6);
    let mut inherited = Inherited::default();
    let of_before = record(&scene, "fixed", &[(ActorId(0), 5)]);
    note(&scene, &mut inherited, &of_before, of_before.epoch + 1);
    let mut sliding = of_before;
    sliding.id.limit = scene.account("sliding").limit;
    sliding.epoch = scene.epoch("sliding");
    note(&scene, &mut inherited, &sliding, sliding.epoch);
    assert!(inherited.lacking(scene.machine.book()).is_empty());
}
