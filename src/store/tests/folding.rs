//! The fold changes where state is, never what it is; what has ended leaves no rows.

use proptest::collection::vec;
use proptest::prelude::Just;
use proptest::prelude::Strategy;
use proptest::prelude::any;
use proptest::prelude::prop_assert_eq;
use proptest::prop_oneof;
use proptest::proptest;
use proptest::test_runner::Config;
use proptest::test_runner::TestCaseError;

use super::*;
use crate::usage::record::BucketLevel;
use crate::usage::record::LogEntry;
use crate::usage::record::Stamp;

/// One thing that happens to a store.
#[derive(Clone, Debug)]
enum Step {
    Flush(Vec<CounterRecord>),
    /// Flushes what was kept since the last of these.
    FlushKept,
    Keep(Vec<CounterRecord>),
    Hold(u128),
    KeepHold(u128),
    /// One step of housekeeping on a journal that has been quiet, so that the fold begins or goes on.
    Tend,
    /// Housekeeping until nothing waits.
    TendAll,
    Restart,
}

fn any_record() -> impl Strategy<Value = CounterRecord> {
    let entry = (0_u64..6, 0_u64..3);
    (
        0_u64..4,
        0_u64..2,
        0_i64..3,
        0_u32..2,
        1_u64..50,
        vec(entry, 0..3),
        any::<bool>(),
    )
        .prop_map(|(key, epoch, window, actor, p, entries, has_horizon)| {
            let mut record = CounterRecord::empty(counter_id(key), epoch);
            record.set_slot(WindowId(window), ActorId(actor), p, p / 2);
            let stamp = Stamp { start: 1, count: p };
            record.bucket = Some(BucketLevel {
                stamp,
                at: noon(),
                drawn: u128::from(p),
            });
            for (count, cost) in entries {
                let at = after_noon(count);
                record
                    .log
                    .insert(Stamp { start: 1, count }, LogEntry { at, cost });
            }
            if has_horizon {
                record.prune(WindowId(window), after_noon(p % 5));
            }
            record.dead_at = after_noon(60);
            record
        })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => vec(any_record(), 1..4).prop_map(Step::Flush),
        1 => Just(Step::FlushKept),
        2 => vec(any_record(), 1..3).prop_map(Step::Keep),
        2 => (0_u128..2).prop_map(Step::Hold),
        2 => (0_u128..2).prop_map(Step::KeepHold),
        4 => Just(Step::Tend),
        2 => Just(Step::TendAll),
        1 => Just(Step::Restart),
    ]
}

/// Carries out all steps on a store and, as the oracle, on a plain map; compares after every one.
async fn compare(steps: Vec<Step>) -> Result<(), TestCaseError> {
    let dir = directory();
    let mut store = open(dir.path()).store;
    let mut expected = Collected::default();
    let mut unflushed = Batch::default();
    for (version, step) in (1..).zip(steps) {
        match step {
            Step::Flush(records) => {
                records
                    .iter()
                    .cloned()
                    .for_each(|record| expected.counter(record));
                store.flush(batch(records)).await.expect("a flush");
            }
            Step::FlushKept => {
                let covers = Some(store.sync_mark());
                let covering = Batch {
                    covers,
                    now: noon(),
                    ..std::mem::take(&mut unflushed)
                };
                store.flush(covering).await.expect("a flush");
            }
            Step::Keep(records) => {
                records
                    .iter()
                    .cloned()
                    .for_each(|record| expected.counter(record));
                unflushed.records.extend(records.iter().cloned());
                store.keep(kept(records)).await.expect("a keep");
            }
            Step::Hold(key) => {
                expected.hold(hold(key, version));
                let holds = vec![hold(key, version)];
                store
                    .flush(Batch {
                        holds,
                        ..batch(vec![])
                    })
                    .await
                    .expect("a flush");
            }
            Step::KeepHold(key) => {
                expected.hold(hold(key, version));
                unflushed.holds.push(hold(key, version));
                let holds = vec![hold(key, version)];
                store
                    .keep(Kept {
                        holds,
                        ..kept(vec![])
                    })
                    .await
                    .expect("a keep");
            }
            Step::Tend => {
                store.tend(after_noon(10)).await.expect("a step");
            }
            Step::TendAll => {
                tend_all(&store, after_noon(10)).await;
            }
            Step::Restart => {
                store.close().await.expect("a close");
                store = open(dir.path()).store;
                // The store has put it into its journal.
                unflushed = Batch::default();
            }
        }
        prop_assert_eq!(&collect(&store, Some(noon())).0, &expected);
    }
    Ok(())
}

proptest! {
    #![proptest_config(Config { cases: 24, ..Config::default() })]
    #[test]
    fn rows_journal_and_sync_records_restore_to_the_same_state_at_every_step(steps in vec(step(), 1..25)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(compare(steps))?;
    }
}

#[tokio::test]
async fn a_quiet_journal_becomes_rows_and_a_kill_in_between_loses_nothing() {
    const KEYS: u64 = 6_000;
    let dir = directory();
    let opened = open(dir.path());
    let (store, own) = (opened.store, opened.actors.own());
    for p in 1..=3 {
        let records = (0..KEYS).map(|key| record(key, own, p)).collect();
        store.flush(batch(records)).await.expect("a flush");
    }
    assert_eq!(
        count(dir.path(), "counters.db", "counters"),
        0,
        "nothing is folded while it is busy"
    );
    let now = after_noon(6);
    let mut images = 0;
    while store.tend(now).await.expect("a step") {
        let image = crash_image(dir.path(), &KILLED);
        let (collected, _) = collect(&open(image.path()).store, Some(now));
        assert_eq!(collected.counters.len(), 6_000);
        assert_eq!(
            (collected.charged(0, own), collected.charged(KEYS - 1, own)),
            (3, 3)
        );
        images += 1;
    }
    assert!(images > 3, "the fold goes in steps");
    assert_eq!(count(dir.path(), "counters.db", "counters"), KEYS);
    assert_eq!(count(dir.path(), "counters.db", "journal"), 0);
}

#[tokio::test]
async fn what_has_ended_leaves_no_rows() {
    let dir = directory();
    let opened = open(dir.path());
    let (store, own) = (opened.store, opened.actors.own());
    let records = (0..5_000).map(|key| record(key, own, 1)).collect();
    let holds = (0..3_000).map(|key| hold(key, 1)).collect();
    store
        .flush(Batch {
            holds,
            ..batch(records)
        })
        .await
        .expect("a flush");
    store
        .keep(Kept {
            answers: (0..3_000).map(answer).collect(),
            ..kept(vec![])
        })
        .await
        .expect("a keep");
    tend_all(&store, after_noon(6)).await;
    let rows = |file, table| count(dir.path(), file, table);
    assert_eq!(rows("counters.db", "counters"), 5_000);
    assert_eq!(rows("counters.db", "holds"), 3_000);
    assert_eq!(rows("log.db", "answers"), 3_000);

    // All of it ends a minute after noon; ten seconds are the grace.
    tend_all(&store, after_noon(70)).await;
    assert_eq!(rows("counters.db", "counters"), 5_000);
    for _ in 0..8 {
        tend_all(&store, after_noon(71)).await;
    }
    assert_eq!(rows("counters.db", "counters"), 0);
    assert_eq!(rows("counters.db", "holds"), 0);
    assert_eq!(rows("log.db", "answers"), 0);
}

#[tokio::test]
async fn an_older_hold_that_comes_to_light_later_replaces_nothing() {
    let dir = directory();
    let opened = open(dir.path());
    let holds = vec![hold(1, 1)];
    opened
        .store
        .keep(Kept {
            holds,
            ..kept(vec![])
        })
        .await
        .expect("a keep");
    opened
        .store
        .flush(Batch {
            holds: vec![hold(1, 2)],
            ..batch(vec![])
        })
        .await
        .expect("a flush");
    tend_all(&opened.store, after_noon(10)).await;
    opened.store.close().await.expect("a close");
    // The start takes the kept version over into the journal, behind the row of the newer one.
    let store = open(dir.path()).store;
    tend_all(&store, after_noon(10)).await;
    assert_eq!(count(dir.path(), "counters.db", "journal"), 0);
    assert_eq!(collect(&store, None).0.holds[&HoldKey(1)].version, 2);
}

#[tokio::test]
async fn what_ended_in_the_journal_never_becomes_a_row() {
    let dir = directory();
    let opened = open(dir.path());
    let (store, own) = (opened.store, opened.actors.own());
    store
        .flush(batch(vec![record(1, own, 1)]))
        .await
        .expect("a flush");
    tend_all(&store, after_noon(100)).await;
    assert_eq!(count(dir.path(), "counters.db", "counters"), 0);
    assert_eq!(count(dir.path(), "counters.db", "journal"), 0);
}

#[tokio::test]
async fn a_restore_leaves_out_what_has_ended_unless_it_is_asked_for_all() {
    let dir = directory();
    let opened = open(dir.path());
    let (store, own) = (opened.store, opened.actors.own());
    let mut long = record(1, own, 1);
    long.dead_at = after_noon(1_000);
    let flush = Batch {
        holds: vec![hold(1, 1)],
        ..batch(vec![long, record(2, own, 1)])
    };
    store.flush(flush).await.expect("a flush");
    store
        .keep(Kept {
            answers: vec![answer(1)],
            ..kept(vec![])
        })
        .await
        .expect("a keep");
    let sizes = |now| {
        let (collected, restored) = collect(&store, now);
        (
            collected.counters.len(),
            collected.holds.len(),
            collected.answers.len(),
            restored.ended,
        )
    };
    assert_eq!(sizes(Some(after_noon(70))), (2, 1, 1, 0));
    assert_eq!(sizes(Some(after_noon(71))), (1, 0, 0, 3));
    assert_eq!(sizes(None), (2, 1, 1, 0));
    // The same from rows.
    tend_all(&store, after_noon(6)).await;
    assert_eq!(sizes(Some(after_noon(70))), (2, 1, 1, 0));
    assert_eq!(sizes(Some(after_noon(71))), (1, 0, 0, 3));
    assert_eq!(sizes(None), (2, 1, 1, 0));
}

#[tokio::test]
async fn a_row_does_not_grow_with_the_years_of_its_counter() {
    let dir = directory();
    let opened = open(dir.path());
    let (store, own) = (opened.store, opened.actors.own());
    for minute in 0..300_u64 {
        let now = after_noon(60 * minute);
        let mut news = CounterRecord::empty(counter_id(1), 1);
        let window = |at: Timestamp| WindowId(at.as_nanos());
        news.set_slot(window(now), own, 5, 0);
        news.log.insert(
            Stamp {
                start: 1,
                count: minute,
            },
            LogEntry { at: now, cost: 1 },
        );
        let horizon = now.minus(Span::from_seconds(60));
        news.prune(window(horizon), horizon);
        news.dead_at = now.plus(Span::from_seconds(120));
        store
            .flush(Batch {
                now,
                ..batch(vec![news])
            })
            .await
            .expect("a flush");
        store
            .tend(now.plus(Span::from_seconds(6)))
            .await
            .expect("a step");
    }
    tend_all(&store, after_noon(60 * 299 + 10)).await;
    let (collected, _) = collect(&store, None);
    let record = &collected.counters[&counter_id(1)];
    assert_eq!((record.windows.len(), record.log.len()), (2, 2));
}
