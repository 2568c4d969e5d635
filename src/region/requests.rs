//! Numbers of requests to the log, and which of them have been answered.
//!
//! The log remembers what came of a request until it is told that nobody will ask again: every request
//! carries the number below which all were answered.

use std::collections::BTreeSet;

use parking_lot::Mutex;

use crate::grants::account::Holder;
use crate::machine::charge::RequestNumber;

#[derive(Debug, Default)]
struct State {
    last: u64,
    open: BTreeSet<u64>,
}

/// The requests of this process.
#[derive(Debug, Default)]
pub struct Requests(Mutex<State>);

impl Requests {
    /// A new request of the process `holder`. It is open until [`Requests::answered`].
    pub fn next(&self, holder: &Holder) -> RequestNumber {
        let mut state = self.0.lock();
        state.last += 1;
        let number = state.last;
        state.open.insert(number);
        RequestNumber {
            holder: holder.clone(),
            number,
            answered_below: state.open.first().copied().unwrap_or(number),
        }
    }

    /// Nobody asks about request `number` any more.
    pub fn answered(&self, number: u64) {
        self.0.lock().open.remove(&number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::name::RegionName;

    #[test]
    fn a_request_tells_below_which_number_all_were_answered() {
        let holder = Holder {
            region: RegionName::new("a").expect("a name"),
            incarnation: 1,
        };
        let requests = Requests::default();
        assert_eq!(requests.next(&holder).answered_below, 1);
        assert_eq!(requests.next(&holder).answered_below, 1);
        requests.answered(2);
        assert_eq!(requests.next(&holder).answered_below, 1);
        requests.answered(1);
        assert_eq!(requests.next(&holder).answered_below, 3);
    }
}
