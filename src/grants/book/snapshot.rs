//! The book as bytes: what cannot be worked out again.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::Deserializer;
use serde::Serialize;
use serde::Serializer;

use crate::domain::time::Span;
use crate::domain::time::Timestamp;
use crate::grants::book::Book;
use crate::grants::book::Bounds;
use crate::grants::book::counters::Counter;
use crate::grants::book::counters::Counters;
use crate::grants::book::counters::Name;
use crate::grants::book::regions::Regions;

/// What is written.
#[derive(Serialize)]
struct Writing<'a> {
    bounds: &'a Bounds,
    log: Timestamp,
    skipped: Span,
    regions: &'a Regions,
    counters: &'a BTreeMap<Name, Counter>,
}

/// What is read; the same fields in the same order.
#[derive(Deserialize)]
struct Reading {
    bounds: Bounds,
    log: Timestamp,
    skipped: Span,
    regions: Regions,
    counters: BTreeMap<Name, Counter>,
}

impl Serialize for Book {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let writing = Writing {
            bounds: &self.bounds,
            log: self.log,
            skipped: self.skipped,
            regions: &self.regions,
            counters: self.counters.parts(),
        };
        writing.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Book {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let reading = Reading::deserialize(deserializer)?;
        Ok(Self {
            bounds: reading.bounds,
            log: reading.log,
            skipped: reading.skipped,
            regions: reading.regions,
            counters: Counters::from_parts(reading.counters),
        })
    }
}
