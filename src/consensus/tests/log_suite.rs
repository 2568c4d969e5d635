//! The library's own tests of a log store and a state machine, on real files.

use std::io;
use std::sync::Arc;

use openraft::StorageError;
use openraft::testing::log::StoreBuilder;
use openraft::testing::log::Suite;
use tempfile::TempDir;

use crate::consensus::log::Log;
use crate::consensus::state::Applied;
use crate::consensus::state::State;
use crate::consensus::tests::Journal;
use crate::consensus::tests::name;
use crate::consensus::tests::open_store;
use crate::consensus::types::TypeConfig;

struct Builder;

impl StoreBuilder<TypeConfig, Log, State, TempDir> for Builder {
    async fn build(&self) -> Result<(TempDir, Log, State), StorageError<TypeConfig>> {
        let dir = tempfile::tempdir().expect("a directory");
        let store = open_store(dir.path(), &name("us-east-1")).expect("a store");
        let log = Log::open(store).await.map_err(|error: io::Error| {
            StorageError::read(openraft::errors::ErrorSource::from_error(&error))
        })?;
        let applied = Arc::new(Applied::new(Arc::new(Journal::default())));
        let state = State::new(applied, log.clone());
        Ok((dir, log, state))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_librarys_suite_passes() {
    Suite::test_all(Builder).await.expect("the suite");
}
