//! Brings a counter to an instant: rolls its windows, drops what has ended.

use crate::algorithm::BACK_STEP_MAX;
use crate::algorithm::bucket::Flow;
use crate::algorithm::bucket::Level;
use crate::domain::limit::Rule;
use crate::domain::time::Timestamp;
use crate::domain::time::Window;
use crate::domain::time::WindowId;
use crate::ledger::counter::Counter;
use crate::ledger::counter::State;
use crate::ledger::counter::flow;
use crate::usage::window::WindowUse;

/// The shortest segment in which a bucket's use is counted, as a power of two of nanoseconds: 1.07 s.
const SEGMENT_SHIFT_MIN: u32 = 30;

/// The segment of time in which a bucket's use at `now` is counted: aligned, a power of two of
/// nanoseconds, no shorter than the time to refill and at most four times as long.
fn segment(flow: &Flow, now: Timestamp) -> WindowId {
    let bits = |n: u64| u64::BITS - n.leading_zeros();
    let shift =
        (bits(flow.capacity) + bits(flow.per.as_nanos()) + 1).saturating_sub(bits(flow.rate));
    let shift = shift.clamp(SEGMENT_SHIFT_MIN, 62);
    WindowId(now.as_nanos() >> shift << shift)
}

impl Counter {
    /// Brings the state to `now` for `rule`.
    pub fn prepare(&mut self, rule: &Rule, now: Timestamp) {
        match rule {
            Rule::FixedWindow { window, .. } | Rule::SlidingWindow { window, .. } => {
                self.state = State::Aligned;
                let at = Window::aligned(now, *window);
                let previous = WindowId(at.id.0.saturating_sub_unsigned(window.as_nanos()));
                self.roll(at.id, previous, now);
            }
            Rule::CalendarWindow { calendar, .. } => {
                if let State::Calendar { start, end } = self.state
                    && now < end
                    && (start <= now || start <= now.plus(BACK_STEP_MAX))
                {
                    return;
                }
                let at = calendar.window(now);
                self.state = State::Calendar {
                    start: at.start,
                    end: at.end,
                };
                self.roll(at.id, WindowId(i64::MIN), now);
            }
            Rule::TokenBucket { .. } | Rule::LeakyBucket { .. } => {
                let Some(flow) = flow(rule) else { return };
                let level = if let State::Bucket(level) = self.state {
                    level
                } else {
                    Level { drawn: 0, at: now }
                };
                self.state = State::Bucket(level.at(&flow, now));
                let id = segment(&flow, now);
                if id > self.windows[0].id {
                    self.shift(id);
                }
            }
            Rule::SlidingLog { window, .. } => {
                if !matches!(self.state, State::Log(_)) {
                    self.state = State::Log(Box::default());
                }
                if let State::Log(log) = &mut self.state {
                    log.advance(*window, now);
                }
                let at = Window::aligned(now, *window);
                let previous = WindowId(at.id.0.saturating_sub_unsigned(window.as_nanos()));
                self.roll(at.id, previous, now);
            }
            Rule::Concurrency { .. } => {
                if !matches!(self.state, State::Leases(_)) {
                    self.state = State::Leases(Box::default());
                }
                if let State::Leases(leases) = &mut self.state {
                    leases.advance(now);
                }
            }
        }
    }

    /// Makes `id` the newest window. An older one is taken only when the clock was set back so far that it
    /// has to be followed.
    fn roll(&mut self, id: WindowId, previous: WindowId, now: Timestamp) {
        let newest = self.windows[0].id;
        if id == newest {
            return;
        }
        if id < newest && newest.0 <= now.plus(BACK_STEP_MAX).as_nanos() {
            return;
        }
        if id < newest {
            let [newest, older] = &mut self.windows;
            let back = if older.id == id {
                std::mem::take(older)
            } else {
                WindowUse::new(id)
            };
            *newest = back;
            *older = WindowUse::new(WindowId(i64::MIN));
            return;
        }
        self.shift(id);
        if self.windows[1].id != previous && previous.0 != i64::MIN {
            self.windows[1] = WindowUse::new(previous);
        }
    }

    pub(super) fn shift(&mut self, id: WindowId) {
        let newest = std::mem::replace(&mut self.windows[0], WindowUse::new(id));
        self.windows[1] = newest;
    }
}
