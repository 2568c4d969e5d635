//! What is known of the use of buckets: one bucket beside each, that sees every unit admitted, in the order of
//! the time that buckets earn by.
//!
//! That time is log time, without what passes between the loss of a leader and the election of the next. Between
//! any two instants no more is used than the capacity and what the time between them earns. Changed amounts
//! count from the first entry about the bucket under them, which the leader makes at once. Of a lowered
//! capacity the law holds from when the book has no more out than it allows; of a reset from the first entry of the
//! new epoch, to which counts what is used of the old one afterwards.

use highwater::algorithm::bucket::Flow;

/// What happens to a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Happens {
    /// Units were admitted.
    Use(u64),
    /// Units were given back.
    Credit(u64),
    /// Other amounts are in force.
    Flow(Flow),
    /// The book has no more out than the capacity in force allows.
    Settled,
    /// The book has opened a new epoch.
    Epoch,
}

/// The use of one counter.
#[derive(Clone, Debug, Default)]
pub struct BucketAudit {
    /// By the time that buckets earn by, in nanoseconds.
    happened: Vec<(u64, Happens)>,
    /// The newest epoch that the book has.
    epoch: u64,
    flow: Option<Flow>,
    is_lowered: bool,
}

impl BucketAudit {
    pub fn happens(&mut self, at: u64, what: Happens) {
        if let (Happens::Settled, false) = (what, self.is_lowered) {
            return;
        }
        self.is_lowered = match what {
            Happens::Flow(_) => true,
            Happens::Settled => false,
            _ => self.is_lowered,
        };
        self.happened.push((at, what));
    }

    /// The book has these amounts.
    pub fn amounts(&mut self, at: u64, flow: Flow) {
        if self.flow != Some(flow) {
            self.flow = Some(flow);
            self.happens(at, Happens::Flow(flow));
        }
    }

    /// The book has a bucket of this epoch.
    pub fn opened(&mut self, at: u64, epoch: u64) {
        if epoch > self.epoch {
            self.epoch = epoch;
            self.happens(at, Happens::Epoch);
        }
    }

    pub const fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Units used in all, less what was given back.
    pub fn used(&self) -> u64 {
        let used: i64 = self
            .happened
            .iter()
            .map(|(_, what)| match what {
                Happens::Use(units) => *units as i64,
                Happens::Credit(units) => -(*units as i64),
                _ => 0,
            })
            .sum();
        used as u64
    }

    /// S8: how much of which capacity was used at most; panics when that was too much at any time.
    pub fn assert_within(&self, counter: usize) {
        let mut happened = self.happened.clone();
        // Charges and refunds count from when their entries were made and are known when those are committed.
        happened.sort_by_key(|(at, _)| *at);
        let Some((_, Happens::Flow(mut flow))) = happened.first().copied() else {
            panic!("the amounts come first");
        };
        let per = |flow: &Flow| u128::from(flow.per.as_nanos());
        let (mut drawn, mut then, mut lowered) = (0_u128, 0, 0_u64);
        for (at, what) in happened {
            drawn = drawn.saturating_sub(u128::from(at - then) * u128::from(flow.rate));
            then = at;
            match what {
                Happens::Use(units) => {
                    drawn += u128::from(units) * per(&flow);
                    let most = u128::from(flow.capacity + lowered) * per(&flow);
                    assert!(
                        drawn <= most,
                        "S8: {drawn} drawn of {most} in bucket {counter} after {at} ns, {flow:?}, lowered by \
                         {lowered}"
                    );
                }
                Happens::Credit(units) => {
                    drawn = drawn.saturating_sub(u128::from(units) * per(&flow));
                }
                Happens::Flow(new) => {
                    drawn = drawn * per(&new) / per(&flow);
                    lowered += flow.capacity.saturating_sub(new.capacity);
                    flow = new;
                }
                Happens::Settled => lowered = 0,
                Happens::Epoch => drawn = 0,
            }
        }
    }
}
