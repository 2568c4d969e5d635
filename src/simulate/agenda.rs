//! What will happen, in the order of time.

use std::collections::BTreeMap;

/// Things that will happen. Those of one instant happen in the order in which they were planned.
#[derive(Clone, Debug)]
pub struct Agenda<T> {
    planned: BTreeMap<(u64, u64), T>,
    /// How many were ever planned.
    count: u64,
}

impl<T> Default for Agenda<T> {
    fn default() -> Self {
        Self {
            planned: BTreeMap::new(),
            count: 0,
        }
    }
}

impl<T> Agenda<T> {
    /// Plans that `what` happens at `at`, in nanoseconds.
    pub fn plan(&mut self, at: u64, what: T) {
        self.count += 1;
        self.planned.insert((at, self.count), what);
    }

    /// Takes what happens next, and when.
    pub fn take_next(&mut self) -> Option<(u64, T)> {
        let ((at, _), what) = self.planned.pop_first()?;
        Some((at, what))
    }

    /// Takes what happens next, if that is before `end`.
    pub fn take_before(&mut self, end: u64) -> Option<(u64, T)> {
        let (&(at, _), _) = self.planned.first_key_value()?;
        if at < end { self.take_next() } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_planned_for_one_instant_happens_in_the_order_of_planning() {
        let mut agenda = Agenda::default();
        for (at, what) in [(5, 'c'), (2, 'a'), (5, 'd'), (2, 'b')] {
            agenda.plan(at, what);
        }
        let before: Vec<(u64, char)> = std::iter::from_fn(|| agenda.take_before(5)).collect();
        assert_eq!(before, [(2, 'a'), (2, 'b')]);
        let rest: Vec<(u64, char)> = std::iter::from_fn(|| agenda.take_next()).collect();
        assert_eq!(rest, [(5, 'c'), (5, 'd')]);
    }
}
