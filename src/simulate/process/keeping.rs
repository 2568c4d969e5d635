//! What a process takes from its disk, and what it puts there.

use crate::domain::time::Timestamp;
use crate::grants::message::ToLeader;
use crate::ledger::restore::Restorer;
use crate::machine::Machine;
use crate::simulate::exchange::Limits;
use crate::simulate::log::Body;
use crate::usage::record::CounterRecord;

use super::Context;
use super::Disk;
use super::Event;
use super::PROBE;
use super::Process;
use super::WINDOWS_KEPT;

impl Process {
    /// Takes over what the disk has counted, of limits that are known by now; the rest once this process has enrolled.
    pub(super) fn restore(&mut self, context: &Context<'_>, records: Vec<CounterRecord>) {
        let mut restorer = Restorer::new(&self.counts.ledger);
        let catalogue = self.machine.catalogue();
        for record in records {
            let Some(limit) = catalogue.names().get(record.id.limit.as_str()) else {
                self.unplaced.push(record);
                continue;
            };
            let id = &record.id;
            let known = catalogue.limit(&id.tenant, id.limit.as_str(), &id.key, context.at.now);
            let actors = self.counts.ledger.actors();
            self.inherited.note(actors, &record, known);
            restorer.counter(record, limit);
        }
        restorer.finish(|limit| catalogue.names().get(limit.as_str()));
    }

    /// A state in place of entries that are no more there.
    pub(super) fn install(&mut self, context: &Context<'_>) {
        let Some(snapshot) = context.disk.log.snapshot() else {
            return;
        };
        let (index, term) = snapshot.last;
        if index <= self.applied || context.disk.log.entry(self.applied + 1).is_some() {
            return;
        }
        if let Ok(mut machine) = Machine::from_snapshot(&snapshot.bytes) {
            let regions = u32::try_from(self.names.len()).unwrap_or(u32::MAX);
            machine.set_regions(regions);
            self.machine = machine;
            (self.applied, self.applied_term) = (index, term);
        }
    }

    /// Tells the leader what the book lacks of what earlier processes spent.
    pub(in crate::simulate) fn tell_inherited(&mut self, context: &mut Context<'_>) {
        if !self.is_enrolled {
            return;
        }
        for report in self.inherited.lacking(self.machine.book()) {
            self.say_to_leader(context, ToLeader::Report(report));
        }
    }

    pub(super) fn apply(&mut self, context: &mut Context<'_>) {
        while self.applied < context.disk.log.committed() {
            let index = self.applied + 1;
            let Some(entry) = context.disk.log.entry(index).cloned() else {
                // What is no more there is in a snapshot.
                return;
            };
            (self.applied, self.applied_term) = (index, entry.term);
            let reply = match &*entry.body {
                Body::Payload(payload) => Some(self.machine.apply_in(entry.term, payload)),
                Body::Blank | Body::Members(_) => None,
            };
            if let Some(reply) = reply {
                self.entry_applied(context, index, reply);
            }
            if context.disk.log.wants_snapshot(index)
                && let Ok(bytes) = self.machine.snapshot()
            {
                context.disk.log.keep_snapshot(index, bytes);
            }
        }
        self.follow_applied(context);
        let version = self.machine.catalogue().version();
        if version != self.version {
            self.version = version;
            self.reconcile(context);
            self.requote(context);
            self.go_on_parked(context);
        }
    }

    /// What changed goes to disk.
    pub(super) fn flush(&mut self, context: &mut Context<'_>) {
        if context.is_full {
            self.fail_store(context);
        }
        if self.is_store_failed {
            return;
        }
        let mut records = Vec::new();
        let names = self.machine.catalogue().names();
        let name_of = |id: crate::catalogue::intern::LimitId| {
            names.names().get(usize::try_from(id.0).ok()?).cloned()
        };
        for shard in 0..self.counts.ledger.shards() {
            self.counts.ledger.drain(shard, name_of, &mut records);
        }
        for record in records {
            keep(context.disk, record);
        }
    }

    /// The disk takes nothing: the log stops, and each limit follows its policy.
    pub(in crate::simulate) fn fail_store(&mut self, context: &mut Context<'_>) {
        if self.is_store_failed {
            return;
        }
        self.is_store_failed = true;
        self.log = None;
        self.follow_lead(context);
    }

    pub(super) fn probe(&mut self, context: &mut Context<'_>) {
        context.later(PROBE, Event::Probe);
        if self.is_store_failed && !context.is_full {
            self.is_store_failed = false;
            self.join_log(context.at.boot);
        }
        let now = context.at.now;
        let records = &mut context.disk.records;
        records.retain(|_, record| record.dead_at > now);
        for record in records.values_mut() {
            let surplus = record.windows.len().saturating_sub(WINDOWS_KEPT);
            let from = record.windows.keys().nth(surplus).copied();
            if let Some(from) = from.filter(|_| surplus > 0) {
                record.prune(from, record.log_from.unwrap_or(Timestamp::EPOCH));
            }
        }
    }
}

pub(in crate::simulate) fn keep(disk: &mut Disk, record: CounterRecord) {
    match disk.records.get_mut(&record.id) {
        Some(known) => known.merge(record),
        None => {
            disk.records.insert(record.id.clone(), record);
        }
    }
}
