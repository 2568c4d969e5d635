//! Whether the store works, readable in one relaxed load.
//!
//! Each file fails and recovers by itself; the store works while both do. The region time of a failure is
//! the newest one that a caller has told, because nothing here reads a clock.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicI64;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;

use crate::domain::time::Timestamp;
use crate::store::error::StoreError;

/// Whether the store works.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// It does.
    Ok,
    /// It refuses work until a probe has written successfully.
    Failed {
        /// What went wrong first.
        reason: String,
        /// Region time when it did.
        since: Timestamp,
    },
}

/// One of the two files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Which {
    Log,
    Counters,
}

#[derive(Clone, Debug)]
struct Failure {
    reason: String,
    since: Timestamp,
}

#[derive(Debug, Default)]
struct Failures {
    log: Option<Failure>,
    counters: Option<Failure>,
}

impl Failures {
    fn of(&mut self, which: Which) -> &mut Option<Failure> {
        match which {
            Which::Log => &mut self.log,
            Which::Counters => &mut self.counters,
        }
    }
}

/// Shared by the writers and all users of the store.
#[derive(Debug, Default)]
pub(super) struct HealthBoard {
    any_failed: AtomicBool,
    region_time: AtomicI64,
    failures: Mutex<Failures>,
}

impl HealthBoard {
    pub fn saw(&self, now: Timestamp) {
        self.region_time.store(now.as_nanos(), Ordering::Relaxed);
    }

    pub fn is_failed(&self) -> bool {
        self.any_failed.load(Ordering::Relaxed)
    }

    pub fn health(&self) -> Health {
        let failures = self.failures.lock();
        let earliest = [&failures.log, &failures.counters]
            .into_iter()
            .flatten()
            .min_by_key(|it| it.since);
        match earliest {
            Some(failure) => Health::Failed {
                reason: failure.reason.clone(),
                since: failure.since,
            },
            None => Health::Ok,
        }
    }

    /// The reason why one file refuses work, if it does.
    pub fn refusal(&self, which: Which) -> Option<StoreError> {
        if !self.is_failed() {
            return None;
        }
        let mut failures = self.failures.lock();
        let failure = failures.of(which).as_ref()?;
        Some(StoreError::Failed {
            reason: failure.reason.clone(),
        })
    }

    /// Marks one file failed. The first reason stays: what follows is mostly its consequence.
    pub fn fail(&self, which: Which, reason: String) -> StoreError {
        let since = Timestamp::from_nanos(self.region_time.load(Ordering::Relaxed));
        let mut failures = self.failures.lock();
        let failure = failures.of(which).get_or_insert(Failure { reason, since });
        let error = StoreError::Failed {
            reason: failure.reason.clone(),
        };
        self.any_failed.store(true, Ordering::Relaxed);
        error
    }

    pub fn recover(&self, which: Which) {
        let mut failures = self.failures.lock();
        *failures.of(which) = None;
        let any_failed = failures.log.is_some() || failures.counters.is_some();
        self.any_failed.store(any_failed, Ordering::Relaxed);
    }
}
