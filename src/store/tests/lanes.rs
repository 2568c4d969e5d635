//! What the two lanes write, without threads: rollbacks at every step, and the bound of the audit.

use std::sync::Arc;

use rusqlite::Connection;

use super::*;
use crate::store::counters;
use crate::store::counters::CounterLane;
use crate::store::log;
use crate::store::log::LogLane;
use crate::store::schema;
use crate::store::schema::COUNTERS;
use crate::store::schema::LOG;
use crate::store::writer::Lane;

fn counters_file(dir: &Path) -> Connection {
    schema::create(&dir.join("counters.db"), &COUNTERS, COUNTERS.migrations).expect("a file")
}

fn tend_job() -> counters::Job {
    let (to, _) = tokio::sync::oneshot::channel();
    counters::Job::Tend {
        now: after_noon(6),
        more: false,
        to,
    }
}

/// Commits one step of housekeeping; answers whether more waits.
fn commit_step(lane: &mut CounterLane, connection: &mut Connection) -> bool {
    let mut jobs = vec![tend_job()];
    let tx = connection.transaction().expect("a transaction");
    lane.write(&tx, &mut jobs).expect("a step");
    tx.commit().expect("a commit");
    let more = matches!(jobs[0], counters::Job::Tend { more: true, .. });
    lane.committed(jobs);
    more
}

#[test]
fn a_fold_that_is_rolled_back_at_any_step_is_begun_again_and_loses_nothing() {
    const KEYS: u64 = 5_000;
    for rolled_back_at in 0..14 {
        let dir = directory();
        let mut connection = counters_file(dir.path());
        let mut lane = CounterLane::new(&connection, Arc::default()).expect("a lane");
        for p in 1..=2 {
            let (to, _) = tokio::sync::oneshot::channel();
            let records = (0..KEYS).map(|key| record(key, ActorId(0), p)).collect();
            let mut jobs = vec![counters::Job::Flush(Box::new(batch(records)), to)];
            let tx = connection.transaction().expect("a transaction");
            lane.write(&tx, &mut jobs).expect("a flush");
            tx.commit().expect("a commit");
            lane.committed(jobs);
        }
        let mut step = 0;
        loop {
            if step == rolled_back_at {
                let tx = connection.transaction().expect("a transaction");
                lane.write(&tx, &mut [tend_job()]).expect("a step");
                tx.rollback().expect("a rollback");
                lane.rolled_back();
            }
            step += 1;
            if !commit_step(&mut lane, &mut connection) {
                break;
            }
        }
        connection.close().expect("a close");
        let rows = |table| count(dir.path(), "counters.db", table);
        assert_eq!(
            (rows("counters"), rows("journal")),
            (KEYS, 0),
            "rolled back at {rolled_back_at}"
        );
    }
}

#[test]
fn the_audit_keeps_its_bound_but_never_drops_what_no_snapshot_covers() {
    let dir = directory();
    let mut connection =
        schema::create(&dir.path().join("log.db"), &LOG, LOG.migrations).expect("a file");
    connection
        .execute_batch(
            "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 101000) \
             INSERT INTO changes (idx, at, author, summary, entry) SELECT i, i, 'admin', '', x'' FROM n",
        )
        .expect("many changes");
    let mut lane = LogLane::new(&connection, Arc::default()).expect("a lane");
    let mut append = |change: Change| {
        let (to, _) = tokio::sync::oneshot::channel();
        let mut jobs = vec![log::Job::Append {
            change,
            outcome: Ok(()),
            to,
        }];
        let tx = connection.transaction().expect("a transaction");
        lane.write(&tx, &mut jobs).expect("a change");
        tx.commit().expect("a commit");
        lane.committed(jobs);
        let bounds = "SELECT min(idx), max(idx) FROM changes";
        connection
            .query_row(bounds, [], |row| Ok((row.get(0)?, row.get(1)?)))
            .expect("bounds")
    };
    let bounds: (u64, u64) = append(change(101_001));
    assert_eq!(bounds, (1, 101_001), "a start needs them all");
    let with_snapshot = Change {
        snapshot: Some(vec![1]),
        ..change(101_002)
    };
    assert_eq!(append(with_snapshot), (1_003, 101_002));
    assert_eq!(
        append(change(101_003)),
        (1_003, 101_003),
        "the surplus is deleted now and then"
    );
}
