//! The catalogue's log: one change at a time, on disk before it is in force.
//!
//! A change is tried on a copy of the catalogue (copies share what does not change), appended to the log
//! file, and only then put in force; readers see the old catalogue or the new one, never a part. The log
//! will be replicated between regions: what callers see here (propose an entry, get its outcome, read the
//! view) is all that they may rely on.

use std::sync::Arc;

use arc_swap::ArcSwap;
use arc_swap::Guard;
use thiserror::Error;
use tokio::sync::Mutex;

use crate::catalogue::Catalogue;
use crate::catalogue::change::Applied;
use crate::catalogue::change::Entry;
use crate::catalogue::change::Refused;
use crate::catalogue::intern::Interner;
use crate::catalogue::view::View;
use crate::domain::time::Timestamp;
use crate::store::Change;
use crate::store::Snapshot;
use crate::store::Store;
use crate::store::StoreError;
use crate::store::StoredChange;

/// A snapshot of the whole catalogue is written after so many changes.
const CHANGES_PER_SNAPSHOT: u64 = 256;

/// Why a change is not in force.
#[derive(Debug, Error)]
pub enum ProposeError {
    /// It may not be made.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// Nothing was written.
    #[error("the store cannot be written: {0}")]
    Unavailable(String),
    /// It may or may not have been written; a later change, or the next start, will show it.
    #[error("the store failed while the change was written: {0}")]
    OutcomeUnknown(StoreError),
}

#[derive(Debug)]
struct Log {
    index: u64,
    since_snapshot: u64,
    /// A change whose write failed in the middle, with its index and time.
    in_doubt: Option<(u64, Timestamp, Entry)>,
}

/// The catalogue and its log.
#[derive(Debug)]
pub struct Changes {
    store: Store,
    log: Mutex<Log>,
    catalogue: ArcSwap<Catalogue>,
    view: ArcSwap<View>,
    names: ArcSwap<Interner>,
}

impl Changes {
    /// The catalogue as the store kept it.
    ///
    /// # Errors
    /// When an entry cannot be read or no longer applies: the log file is damaged.
    pub fn restore(
        store: Store,
        snapshot: Option<Snapshot>,
        changes: Vec<StoredChange>,
    ) -> anyhow::Result<Self> {
        let (mut catalogue, mut index) = match snapshot {
            Some(snapshot) => (
                serde_json::from_slice::<Catalogue>(&snapshot.body)?,
                snapshot.index,
            ),
            None => (Catalogue::default(), 0),
        };
        let since_snapshot = u64::try_from(changes.len()).unwrap_or(u64::MAX);
        for change in changes {
            let entry: Entry = serde_json::from_slice(&change.entry)?;
            catalogue
                .apply(change.index, change.at, &entry)
                .map_err(|refused| {
                    anyhow::anyhow!("change {} does not apply: {refused}", change.index)
                })?;
            index = change.index;
        }
        let view = ArcSwap::new(Arc::clone(catalogue.view()));
        let names = ArcSwap::from_pointee(catalogue.names().clone());
        let log = Mutex::new(Log {
            index,
            since_snapshot,
            in_doubt: None,
        });
        Ok(Self {
            store,
            log,
            catalogue: ArcSwap::from_pointee(catalogue),
            view,
            names,
        })
    }

    /// The catalogue in force.
    pub fn view(&self) -> Guard<Arc<View>> {
        self.view.load()
    }

    /// The catalogue in force, to be held across waits.
    pub fn view_full(&self) -> Arc<View> {
        self.view.load_full()
    }

    /// The numbers of limits' names.
    pub fn names(&self) -> Guard<Arc<Interner>> {
        self.names.load()
    }

    /// The whole catalogue in force, to be read at leisure; waits for nobody.
    pub fn catalogue(&self) -> Arc<Catalogue> {
        self.catalogue.load_full()
    }

    /// Makes a change at region time `at`: it is on disk and in force when this returns.
    ///
    /// # Errors
    /// When it may not be made, or cannot be written.
    pub async fn propose(&self, at: Timestamp, entry: Entry) -> Result<Applied, ProposeError> {
        let mut log = self.log.lock().await;
        self.settle_doubt(&mut log).await?;
        if self.store.is_failed() {
            return Err(ProposeError::Unavailable(
                "it has failed before and is being tried again".to_owned(),
            ));
        }
        let mut next = Catalogue::clone(&self.catalogue.load());
        let index = log.index + 1;
        let applied = next.apply(index, at, &entry)?;
        let with_snapshot = log.since_snapshot + 1 >= CHANGES_PER_SNAPSHOT;
        let unwritable = |error: serde_json::Error| ProposeError::Unavailable(error.to_string());
        let change = Change {
            index,
            at,
            author: entry.author.to_string(),
            summary: entry.change.summary(),
            entry: serde_json::to_vec(&entry).map_err(unwritable)?,
            snapshot: with_snapshot
                .then(|| serde_json::to_vec(&next))
                .transpose()
                .map_err(unwritable)?,
        };
        if let Err(error) = self.store.append_change(change).await {
            log.in_doubt = Some((index, at, entry));
            return Err(ProposeError::OutcomeUnknown(error));
        }
        log.since_snapshot = if with_snapshot {
            0
        } else {
            log.since_snapshot + 1
        };
        self.put_in_force(&mut log, next, index);
        Ok(applied)
    }

    /// Finds out whether a change whose write failed in the middle is on disk after all.
    async fn settle_doubt(&self, log: &mut Log) -> Result<(), ProposeError> {
        let Some((index, at, entry)) = log.in_doubt.take() else {
            return Ok(());
        };
        match self.store.audit(index - 1, 1).await {
            Ok(rows) => {
                if rows.iter().any(|row| row.index == index) {
                    let mut next = Catalogue::clone(&self.catalogue.load());
                    next.apply(index, at, &entry)?;
                    self.put_in_force(log, next, index);
                }
                Ok(())
            }
            Err(error) => {
                log.in_doubt = Some((index, at, entry));
                Err(ProposeError::Unavailable(error.to_string()))
            }
        }
    }

    fn put_in_force(&self, log: &mut Log, next: Catalogue, index: u64) {
        log.index = index;
        // Names first: a counter of a new limit must find its name when it is flushed.
        self.names.store(Arc::new(next.names().clone()));
        self.view.store(Arc::clone(next.view()));
        self.catalogue.store(Arc::new(next));
    }
}
