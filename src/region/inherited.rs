//! Tells the leader what earlier processes of this region spent and had no time to tell; see `machine::inherited`.

use std::sync::Weak;
use std::time::Duration;

use crate::grants::message::ToLeader;
use crate::region::state::Region;
use crate::usage::record::CounterRecord;

/// How often what the book lacks is told again.
const TELL_INTERVAL: Duration = Duration::from_millis(500);

impl Region {
    /// Notes what a record from disk says of earlier processes.
    pub fn inherit(&self, record: &CounterRecord) {
        let view = self.view();
        let known = view
            .tenant(record.id.tenant.as_str())
            .and_then(|tenant| tenant.limit(record.id.limit.as_str()))
            .map(|found| found.at(record.id.key.as_str(), self.clock.now()))
            .map(|(limit, epoch)| (&**limit, epoch));
        let mut inherited = self.inherited.lock();
        inherited.note(self.ledger.actors(), record, known);
    }

    /// Tells the leader what was inherited until the book has it. To be called once this process has enrolled.
    pub(super) async fn tell_inherited(region: Weak<Self>) {
        while region
            .upgrade()
            .is_some_and(|region| region.tell_what_the_book_lacks())
        {
            tokio::time::sleep(TELL_INTERVAL).await;
        }
    }

    /// Tells once; whether the book lacked something.
    fn tell_what_the_book_lacks(&self) -> bool {
        let core = self.replica.core();
        let lacking = self.inherited.lock().lacking(core.machine.book());
        drop(core);
        let is_lacking = !lacking.is_empty();
        for report in lacking {
            self.outbox.to_leader(ToLeader::Report(report));
        }
        is_lacking
    }
}
