//! Brings a counter to an instant: rolls its windows, drops what has ended.

use std::mem;

use crate::algorithm::BACK_STEP_MAX;
use crate::algorithm::bucket::Flow;
use crate::algorithm::bucket::Level;
use crate::domain::calendar::Calendar;
use crate::domain::limit::Rule;
use crate::domain::time::Span;
use crate::domain::time::Timestamp;
use crate::domain::time::Window;
use crate::domain::time::WindowId;
use crate::ledger::counter::Come;
use crate::ledger::counter::Counter;
use crate::ledger::counter::State;
use crate::ledger::counter::flow;
use crate::usage::window::WindowUse;

/// The shortest segment in which a bucket's use is counted, as a power of two of nanoseconds: 1.07 s.
const SEGMENT_SHIFT_MIN: u32 = 30;
/// The longest: 146 years.
const SEGMENT_SHIFT_MAX: u32 = 62;

/// The length of the segments of time in which a bucket's use is counted: a power of two of nanoseconds, no
/// shorter than the time to refill and less than eight times as long.
pub(super) fn segment_length(flow: &Flow) -> Span {
    let bits = |n: u64| u64::BITS - n.leading_zeros();
    let shift =
        (bits(flow.capacity) + bits(flow.per.as_nanos()) + 1).saturating_sub(bits(flow.rate));
    Span::from_nanos(1 << shift.clamp(SEGMENT_SHIFT_MIN, SEGMENT_SHIFT_MAX))
}

/// The calendar window to decide in at `now` when `newest` was the last one: that of `now`, or the newest
/// when it begins at most [`BACK_STEP_MAX`] later.
///
/// A window's name is civil time, so only the calendar knows where the newest lies. An hour is the shortest
/// period, so that is at most two windows on.
fn calendar_window(calendar: &Calendar, newest: WindowId, now: Timestamp) -> Window {
    let current = calendar.window(now);
    let mut later = current;
    for _ in 0..2 {
        if later.id < newest {
            later = calendar.window(later.end);
        }
    }
    if later.id == newest && later.start <= now.plus(BACK_STEP_MAX) {
        later
    } else {
        current
    }
}

impl Counter {
    /// Brings the state to `now` for `rule`.
    pub fn prepare(&mut self, rule: &Rule, now: Timestamp) {
        match rule {
            Rule::FixedWindow { window, .. } => {
                self.state = State::Aligned;
                let before = self.windows[0].id;
                self.enter(self.held_window(Window::aligned(now, *window).id, now));
                if self.windows[0].id > before {
                    self.note_ended();
                }
            }
            Rule::SlidingWindow { window, .. } => {
                self.state = State::Aligned;
                self.enter_pair(
                    self.held_window(Window::aligned(now, *window).id, now),
                    *window,
                );
            }
            Rule::CalendarWindow { calendar, .. } => {
                let before = self.windows[0].id;
                self.prepare_calendar(calendar, now);
                if self.windows[0].id > before {
                    self.note_ended();
                }
            }
            Rule::TokenBucket { .. } | Rule::LeakyBucket { .. } => {
                if let Some(flow) = flow(rule) {
                    self.prepare_bucket(&flow, now);
                }
            }
            Rule::SlidingLog { window, .. } => {
                if !matches!(self.state, State::Log(_)) {
                    self.state = State::Log(Box::default());
                }
                if let State::Log(log) = &mut self.state {
                    log.advance(*window, now);
                }
                self.enter(self.held_window(Window::aligned(now, *window).id, now));
            }
            Rule::Concurrency { .. } => {
                if !matches!(self.state, State::Leases(_)) {
                    self.state = State::Leases(Box::default());
                }
                if let State::Leases(leases) = &mut self.state {
                    leases.advance(now);
                }
                self.prepare_slices(now);
            }
        }
    }

    fn prepare_calendar(&mut self, calendar: &Calendar, now: Timestamp) {
        // Finding the bounds is slow, so they are kept: while they hold, nothing is asked of the calendar.
        if let State::Calendar { start, end } = self.state
            && now < end
            && start <= now.plus(BACK_STEP_MAX)
        {
            return;
        }
        let newest = if self.is_entered() {
            self.windows[0].id
        } else {
            WindowId(i64::MIN)
        };
        let at = calendar_window(calendar, newest, now);
        self.state = State::Calendar {
            start: at.start,
            end: at.end,
        };
        self.enter(at.id);
    }

    fn prepare_bucket(&mut self, flow: &Flow, now: Timestamp) {
        let length = segment_length(flow);
        // Of the segment before, what is known must stay known where nobody asked in it, or it would be drawn again when
        // it is told again.
        self.enter_pair(
            self.held_window(Window::aligned(now, length).id, now),
            length,
        );
        if let State::Bucket(level) = self.state {
            self.state = State::Bucket(self.draw_elsewhere(level, flow, now));
            return;
        }
        // A level is lost only with the region's disk; the use itself may have come back from other
        // regions. Of the last two segments all is taken to be drawn still.
        let [newest, before] = &self.windows;
        let mut used = u128::from(self.used(newest));
        if before.id.0 >= newest.id.0.saturating_sub_unsigned(length.as_nanos()) {
            used += u128::from(self.used(before));
        }
        if self.is_shared {
            // Other regions may have drawn a bucketful many times over in that time; they left no debt.
            used = used.min(u128::from(flow.capacity));
        }
        self.forget_drawn_elsewhere();
        self.expect_words(flow, now);
        let mut drawn = used.saturating_mul(u128::from(flow.per.as_nanos()));
        if self.is_shared {
            drawn = drawn.min(self.drawn_at_most(flow, now));
        }
        self.state = State::Bucket(Level { drawn, at: now });
    }

    /// The window to decide in when `now` lies in `current`: the newest one if that began at most
    /// [`BACK_STEP_MAX`] ahead, so that a clock that was set back a little opens no closed window again.
    fn held_window(&self, current: WindowId, now: Timestamp) -> WindowId {
        let newest = self.windows[0].id;
        if self.is_entered() && current < newest && newest.0 <= now.plus(BACK_STEP_MAX).as_nanos() {
            newest
        } else {
            current
        }
    }

    /// Whether this region's time has come to the newest window.
    pub(super) fn is_entered(&self) -> bool {
        self.come != Come::Not
    }

    fn come_here(&mut self) {
        if self.come == Come::Not {
            self.come = Come::Here;
        }
    }

    /// Makes `id` the newest window and keeps the one that is left.
    pub(super) fn enter(&mut self, id: WindowId) {
        if self.windows[0].id != id {
            self.leave_to_peers(id);
            let entered = self.take_window(id);
            let left = mem::replace(&mut self.windows[0], entered);
            if left.id.0 != i64::MIN {
                self.windows[1] = left;
            }
            self.entered_another();
        }
        self.come_here();
    }

    /// Makes `id` the newest window and the one that ends where it begins the window before.
    fn enter_pair(&mut self, id: WindowId, length: Span) {
        let before = WindowId(id.0.saturating_sub_unsigned(length.as_nanos()));
        if self.windows[0].id != id || self.windows[1].id != before {
            self.leave_to_peers(id);
            let is_another = self.windows[0].id != id;
            self.windows = [self.take_window(id), self.take_window(before)];
            if is_another {
                self.entered_another();
            }
        }
        self.come_here();
    }

    /// Takes a window out, or an empty one of that name when it is not known.
    fn take_window(&mut self, id: WindowId) -> WindowUse {
        let known = self.windows.iter_mut().find(|window| window.id == id);
        match known {
            Some(known) => mem::replace(known, WindowUse::new(WindowId(i64::MIN))),
            None => self.take_ahead(id).unwrap_or(WindowUse::new(id)),
        }
    }
}
