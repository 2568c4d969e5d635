//! The same entries give the same machine, also over a snapshot.

use proptest::prelude::ProptestConfig;
use proptest::prelude::prop_assert_eq;
use proptest::prelude::proptest;

use super::Scene;
use super::keyed;
use crate::domain::time::Timestamp;
use crate::grants::account::Transfer;
use crate::machine::Machine;
use crate::machine::command::Command;
use crate::machine::command::Payload;
use crate::machine::give::GiveBack;
use crate::machine::give::Source;

const LIMITS: [&str; 5] = ["fixed", "sliding", "log", "bucket", "slots"];

/// Makes the entries that the steps stand for.
fn entries(steps: &[(u8, u8, u64, u64)]) -> Vec<Payload> {
    let mut scene = Scene::new();
    for (kind, which, units, wait_ms) in steps {
        scene.at_ms += i64::try_from(*wait_ms).unwrap_or(0);
        let limit = LIMITS[usize::from(*which) % LIMITS.len()];
        let region = if which % 2 == 0 { "a" } else { "b" };
        match kind % 6 {
            0 | 1 => {
                let mut charge = scene.charge_of(region, &[limit], *units);
                if limit == "slots" {
                    let end = Timestamp::from_unix_ms(scene.at_ms + 3_000);
                    charge.hold = Some((u128::from(*units), end));
                }
                scene.send(charge);
            }
            2 => {
                let mut charge = scene.charge_of(region, &[limit, "bucket"][..1], *units);
                charge.keyed = Some(keyed(&units.to_string(), u128::from(*which)));
                charge.hold =
                    (limit == "slots").then(|| (7, Timestamp::from_unix_ms(scene.at_ms + 3_000)));
                scene.send(charge);
            }
            3 => {
                let account = scene.account(limit);
                let give = GiveBack {
                    request: scene.request(region),
                    keyed: None,
                    tenant: "t".into(),
                    units: *units,
                    source: Source::Use {
                        limit: account.limit,
                        key: account.key,
                        epoch: account.epoch,
                        window: scene.window_of(limit),
                    },
                    told: None,
                };
                scene.apply(Command::GiveBack(give));
            }
            4 => {
                let limit = if units % 2 == 0 { "fixed" } else { "bucket" };
                let transfer = Transfer {
                    account: scene.account(limit),
                    window: scene.window_of(limit).expect("it has windows"),
                    returns: Vec::new(),
                    grants: vec![(super::holder(region), *units)],
                };
                scene.apply(Command::Transfer(transfer));
                if *wait_ms > 3_500 {
                    scene.apply(Command::Lapse(super::holder(region)));
                }
            }
            _ => {
                scene.change(serde_json::json!({
                    "reset": { "tenant": "t", "limit": limit, "key": null }
                }));
            }
        }
    }
    scene.entries
}

/// Buckets were decided otherwise when the format was another one.
#[test]
fn a_snapshot_of_another_format_is_refused_by_its_name() {
    let mut bytes = super::Scene::new().machine.snapshot().expect("a snapshot");
    assert!(Machine::from_snapshot(&bytes).is_ok());
    bytes[0] = 1;
    let error = Machine::from_snapshot(&bytes).expect_err("an older one");
    let text = error.to_string();
    assert!(
        text.contains("format 1") && text.contains("format 2"),
        "{text}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn a_snapshot_goes_on_like_the_original(
        steps in proptest::collection::vec((0..6u8, 0..10u8, 1..6u64, 0..4_000u64), 1..60),
        cut in 0..60usize,
    ) {
        let entries = entries(&steps);
        let cut = cut.min(entries.len());
        let mut original = Machine::new();
        for entry in &entries[..cut] {
            original.apply(entry);
        }
        let bytes = original.snapshot().expect("a snapshot");
        let mut copy = Machine::from_snapshot(&bytes).expect("readable");
        for entry in &entries[cut..] {
            prop_assert_eq!(original.apply(entry), copy.apply(entry));
        }
        prop_assert_eq!(original.log_time(), copy.log_time());
        prop_assert_eq!(original.book(), copy.book());
        prop_assert_eq!(&original.closed, &copy.closed);
        prop_assert_eq!(original.catalogue(), copy.catalogue());
    }
}

#[test]
fn a_snapshot_of_another_format_or_damaged_is_refused() {
    let bytes = Scene::new().machine.snapshot().expect("a snapshot");
    let mut newer = bytes.clone();
    newer[0] = 200;
    assert!(Machine::from_snapshot(&newer).is_err());
    assert!(Machine::from_snapshot(&bytes[..bytes.len() - 3]).is_err());
    assert!(Machine::from_snapshot(&[]).is_err());
}
