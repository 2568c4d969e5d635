//! Remembered answers to keyed requests.
//!
//! A key counts for one tenant and one operation. While its request runs a repeat is told so; once it is
//! answered with yes a repeat gets the same answer, and the same key with another body is refused. A
//! refused request is forgotten: nothing was taken, so a repeat is judged afresh. The table is bounded and
//! forgets by age alone.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering;

use ahash::RandomState;
use hashbrown::HashMap;
use parking_lot::Mutex;

use crate::domain::time::Timestamp;
use crate::ledger::idempotency::KeptAnswer;
use crate::ledger::idempotency::RequestId;

const SHARDS: usize = 64;

#[derive(Debug)]
enum Known {
    Running { fingerprint: u128 },
    Answered(Arc<KeptAnswer>),
}

#[derive(Debug, Default)]
struct Shard {
    requests: HashMap<RequestId, Known>,
    /// Soonest end first; answers come back from disk in any order.
    by_end: BinaryHeap<Reverse<(Timestamp, RequestId)>>,
}

/// What is known of a request that arrives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Begin {
    /// Nothing: it is noted as running and must be finished or abandoned.
    Fresh,
    /// It is being answered right now.
    Running,
    /// The key was used with another body.
    Mismatch,
    /// It was answered.
    Answered(Arc<KeptAnswer>),
    /// The table is full.
    Full,
}

/// All remembered answers of one region.
#[derive(Debug)]
pub struct Answers {
    shards: Box<[Mutex<Shard>]>,
    hasher: RandomState,
    count: AtomicUsize,
    max: usize,
}

impl Answers {
    /// An empty table for at most `max` keys; `seed` keeps hashes unguessable.
    pub fn new(max: usize, seed: [u64; 2]) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            hasher: RandomState::with_seeds(
                seed[1],
                seed[0],
                0x853c_49e6_748f_ea9b,
                0xda3e_39cb_94b9_5bdb,
            ),
            count: AtomicUsize::new(0),
            max,
        }
    }

    fn shard(&self, request: &RequestId) -> &Mutex<Shard> {
        let hash = usize::try_from(self.hasher.hash_one(request) >> 1).unwrap_or(0);
        &self.shards[hash % SHARDS]
    }

    /// Keys that are remembered.
    pub fn len(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Looks a request up and notes it as running if it is new.
    pub fn begin(&self, request: &RequestId, fingerprint: u128, now: Timestamp) -> Begin {
        let mut shard = self.shard(request).lock();
        self.forget_old(&mut shard, now, 4);
        match shard.requests.get(request) {
            Some(Known::Running { fingerprint: known }) if *known == fingerprint => {
                return Begin::Running;
            }
            Some(Known::Running { .. }) => return Begin::Mismatch,
            Some(Known::Answered(answer)) if answer.expires_at <= now => {}
            Some(Known::Answered(answer)) if answer.fingerprint == fingerprint => {
                return Begin::Answered(Arc::clone(answer));
            }
            Some(Known::Answered(_)) => return Begin::Mismatch,
            None => {
                if self.count.fetch_add(1, Ordering::Relaxed) >= self.max {
                    self.count.fetch_sub(1, Ordering::Relaxed);
                    return Begin::Full;
                }
            }
        }
        shard
            .requests
            .insert(request.clone(), Known::Running { fingerprint });
        Begin::Fresh
    }

    /// Remembers the answer of a running request.
    pub fn finish(&self, answer: KeptAnswer) {
        let mut shard = self.shard(&answer.request).lock();
        self.remember(&mut shard, answer);
    }

    fn remember(&self, shard: &mut Shard, answer: KeptAnswer) {
        let end = Reverse((answer.expires_at, answer.request.clone()));
        shard.by_end.push(end);
        let request = answer.request.clone();
        let known = Known::Answered(Arc::new(answer));
        if shard.requests.insert(request, known).is_none() {
            self.count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Forgets a running request: it took nothing.
    pub fn abandon(&self, request: &RequestId) {
        let mut shard = self.shard(request).lock();
        if matches!(shard.requests.get(request), Some(Known::Running { .. })) {
            shard.requests.remove(request);
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Takes over an answer that was read back from disk; of two under one key the later one stays.
    pub fn restore(&self, answer: KeptAnswer) {
        let mut shard = self.shard(&answer.request).lock();
        if let Some(Known::Answered(known)) = shard.requests.get(&answer.request)
            && known.expires_at >= answer.expires_at
        {
            return;
        }
        self.remember(&mut shard, answer);
    }

    /// Forgets answers whose time is over: at most `most` of each shard.
    pub fn sweep(&self, now: Timestamp, most: usize) {
        for shard in &self.shards {
            self.forget_old(&mut shard.lock(), now, most);
        }
    }

    fn forget_old(&self, shard: &mut Shard, now: Timestamp, most: usize) {
        for _ in 0..most {
            match shard.by_end.peek() {
                Some(Reverse((end, _))) if *end <= now => {}
                _ => return,
            }
            let Some(Reverse((_, request))) = shard.by_end.pop() else {
                return;
            };
            // A later answer under the same key has its own place in the order.
            let over = matches!(shard.requests.get(&request), Some(Known::Answered(a)) if a.expires_at <= now);
            if over {
                shard.requests.remove(&request);
                self.count.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::idempotency::Operation;

    fn request(key: &str) -> RequestId {
        RequestId {
            tenant: "t".into(),
            operation: Operation::Check,
            key: key.into(),
        }
    }

    fn answer(key: &str, fingerprint: u128, expires_at: i64) -> KeptAnswer {
        KeptAnswer {
            request: request(key),
            fingerprint,
            status: 200,
            headers: vec![],
            body: Box::from(&b"{}"[..]),
            expires_at: Timestamp::from_nanos(expires_at),
        }
    }

    #[test]
    fn a_repeat_waits_then_gets_the_first_answer_and_another_body_is_refused() {
        let table = Answers::new(10, [1, 2]);
        let now = Timestamp::from_nanos(0);
        assert_eq!(table.begin(&request("k"), 7, now), Begin::Fresh);
        assert_eq!(table.begin(&request("k"), 7, now), Begin::Running);
        assert_eq!(table.begin(&request("k"), 8, now), Begin::Mismatch);
        table.finish(answer("k", 7, 100));
        assert!(matches!(
            table.begin(&request("k"), 7, now),
            Begin::Answered(_)
        ));
        assert_eq!(table.begin(&request("k"), 8, now), Begin::Mismatch);
        assert_eq!(
            table.begin(&request("k"), 8, Timestamp::from_nanos(100)),
            Begin::Fresh
        );
    }

    #[test]
    fn an_abandoned_request_is_judged_afresh_and_frees_its_place() {
        let table = Answers::new(1, [1, 2]);
        let now = Timestamp::from_nanos(0);
        assert_eq!(table.begin(&request("a"), 1, now), Begin::Fresh);
        assert_eq!(table.begin(&request("b"), 1, now), Begin::Full);
        table.abandon(&request("a"));
        assert_eq!(table.begin(&request("b"), 1, now), Begin::Fresh);
        assert_eq!(table.len(), 1);
    }

    #[test]
    fn answers_are_forgotten_by_age() {
        let table = Answers::new(100, [1, 2]);
        for i in 0..50 {
            table.begin(&request(&i.to_string()), 1, Timestamp::from_nanos(0));
            table.finish(answer(&i.to_string(), 1, 10));
        }
        table.sweep(Timestamp::from_nanos(9), 100);
        assert_eq!(table.len(), 50);
        table.sweep(Timestamp::from_nanos(10), 100);
        assert_eq!(table.len(), 0);
    }
}
