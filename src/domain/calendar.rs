//! Calendar windows: hours, days, weeks, months, quarters and years counted from an anchor in a zone.
//!
//! The k-th boundary is always computed from the anchor itself, never from the boundary before it: an
//! anchor on 31 January gives 28 February and then 31 March, the clamp does not stick. A boundary that
//! falls into a gap of the local clock moves ahead by the gap; one that happens twice means the first
//! time. The k of an instant is estimated from its local date and then corrected; the work does not grow
//! with the distance from the anchor.
//!
//! - Windows are half-open and tile all of time: held by `tests::windows_tile_time_in_every_zone`.
//! - Windows of hours are counted in absolute time, so each has its full length on days when the local
//!   clock changes. Their id is the UTC instant of the start, since a local hour can happen twice.
//! - All other windows are named by their civil start read as if it were UTC, so that two regions with
//!   different zone databases name the same period alike.
//!
//! Nothing here panics: where a boundary lies outside the calendar or outside [`Timestamp`], the window
//! ends at the end of time.
//!
//! Zones come from the database compiled into the program, never from the machine.

use std::sync::LazyLock;

use jiff::SignedDuration;
use jiff::civil::Date;
use jiff::civil::DateTime;
use jiff::tz::Offset;
use jiff::tz::TimeZone;
use jiff::tz::TimeZoneDatabase;
use serde::Deserialize;
use serde::Serialize;
use utoipa::ToSchema;

use crate::domain::time::NANOS_PER_SECOND;
use crate::domain::time::Span;
use crate::domain::time::Timestamp;
use crate::domain::time::Window;
use crate::domain::time::WindowId;

const NANOS_PER_HOUR: i128 = 3_600 * NANOS_PER_SECOND as i128;
const HOURS_PER_DAY: i64 = 24;
const UNIX_EPOCH: Date = Date::constant(1970, 1, 1);
const FIRST_MONDAY: Date = Date::constant(1970, 1, 5);

/// The estimate of k can be off by one because of the time of day or the day of the month, and by one
/// more because the largest changes of a local clock skip or repeat a whole day.
const CORRECTIONS_MAX: u32 = 2;

/// A calendar period.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Period {
    /// 60 minutes of absolute time.
    Hour,
    /// From midnight to midnight, or from the anchor's time of day.
    Day,
    /// Seven days; from Monday unless the anchor says otherwise.
    Week,
    /// From the anchor's day of the month, or the month's last day when it is shorter.
    Month,
    /// Three months.
    Quarter,
    /// Twelve months.
    Year,
}

impl Period {
    /// The period as it is written.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Hour => "hour",
            Self::Day => "day",
            Self::Week => "week",
            Self::Month => "month",
            Self::Quarter => "quarter",
            Self::Year => "year",
        }
    }

    /// Where windows are counted from when nobody names an anchor: the start of 1970, and for weeks its
    /// first Monday.
    pub const fn default_anchor(self) -> DateTime {
        match self {
            Self::Week => FIRST_MONDAY.at(0, 0, 0, 0),
            Self::Hour | Self::Day | Self::Month | Self::Quarter | Self::Year => {
                UNIX_EPOCH.at(0, 0, 0, 0)
            }
        }
    }

    /// The most hours that one period can have, leaving out changes of the local clock.
    pub const fn hours_max(self) -> u64 {
        match self {
            Self::Hour => 1,
            Self::Day => 24,
            Self::Week => 7 * 24,
            Self::Month => 31 * 24,
            Self::Quarter => 92 * 24,
            Self::Year => 366 * 24,
        }
    }

    const fn step(self) -> Step {
        match self {
            Self::Hour => Step::Hours,
            Self::Day => Step::Days(1),
            Self::Week => Step::Days(7),
            Self::Month => Step::Months(1),
            Self::Quarter => Step::Months(3),
            Self::Year => Step::Months(12),
        }
    }
}

/// What a period is made of.
#[derive(Clone, Copy)]
enum Step {
    Hours,
    Days(i64),
    Months(i64),
}

/// The IANA zone called `name`, from the database compiled into the program.
pub fn zone(name: &str) -> Option<TimeZone> {
    static BUNDLED: LazyLock<TimeZoneDatabase> = LazyLock::new(TimeZoneDatabase::bundled);
    BUNDLED.get(name).ok()
}

/// Where the windows lie.
#[derive(Clone, Debug, PartialEq)]
pub struct Calendar {
    period: Period,
    every: u32,
    anchor: DateTime,
    zone: TimeZone,
}

/// One boundary: the instant, and the civil time that names the window which starts there.
#[derive(Clone, Copy)]
struct Boundary {
    instant: i128,
    id: i128,
}

impl Calendar {
    /// Windows of `every` (0 is taken as 1) periods, counted from `anchor` in `zone`.
    pub fn new(period: Period, every: u32, anchor: DateTime, zone: TimeZone) -> Self {
        Self {
            period,
            every: every.max(1),
            anchor,
            zone,
        }
    }

    /// The period of which each window has [`Calendar::every`].
    pub const fn period(&self) -> Period {
        self.period
    }

    /// Periods in one window, at least 1.
    pub const fn every(&self) -> u32 {
        self.every
    }

    /// The civil time that windows are counted from.
    pub const fn anchor(&self) -> DateTime {
        self.anchor
    }

    /// The IANA name of the zone.
    pub fn zone_name(&self) -> &str {
        self.zone.iana_name().unwrap_or("UTC")
    }

    /// A span that no window exceeds.
    pub const fn longest(&self) -> Span {
        let hours = self.period.hours_max().saturating_mul(self.every as u64);
        let clock_changes = match self.period {
            Period::Hour => 0,
            Period::Day | Period::Week | Period::Month | Period::Quarter | Period::Year => 48,
        };
        Span::from_seconds(hours.saturating_add(clock_changes).saturating_mul(3_600))
    }

    /// The window that contains `now`.
    pub fn window(&self, now: Timestamp) -> Window {
        let instant = i128::from(now.as_nanos());
        let (start, end) = match self.period.step() {
            Step::Hours => self.hours_around(instant),
            Step::Days(days) => self.civil_around(now, |date| {
                let step = days.saturating_mul(i64::from(self.every));
                (
                    days_between(self.anchor.date(), date).div_euclid(step),
                    step,
                )
            }),
            Step::Months(months) => self.civil_around(now, |date| {
                let step = months.saturating_mul(i64::from(self.every));
                (
                    months_between(self.anchor.date(), date).div_euclid(step),
                    step,
                )
            }),
        };
        Window {
            id: WindowId(clamp(start.id)),
            start: Timestamp::from_nanos(clamp(start.instant)),
            end: Timestamp::from_nanos(clamp(end.instant)),
        }
    }

    fn hours_around(&self, now: i128) -> (Boundary, Boundary) {
        let length = NANOS_PER_HOUR.saturating_mul(i128::from(self.every));
        // The catalogue refuses anchors that the calendar cannot place; the epoch stands in for one.
        let origin = self.instant_of(self.anchor).unwrap_or(0);
        let start = now.saturating_sub(now.saturating_sub(origin).rem_euclid(length));
        let end = start.saturating_add(length);
        (
            Boundary {
                instant: start,
                id: start,
            },
            Boundary {
                instant: end,
                id: end,
            },
        )
    }

    /// The two boundaries around `now`. `estimate` tells for a local date the nearest k and the length of
    /// one window in days or months.
    fn civil_around(
        &self,
        now: Timestamp,
        estimate: impl FnOnce(Date) -> (i64, i64),
    ) -> (Boundary, Boundary) {
        let instant = i128::from(now.as_nanos());
        // Every instant in nanoseconds of an i64 lies inside the calendar's 20 000 years.
        let local = jiff::Timestamp::from_nanosecond(instant)
            .map_or(UNIX_EPOCH, |at| self.zone.to_datetime(at).date());
        let (mut k, step) = estimate(local);
        let mut start = self.boundary(k, step);
        for _ in 0..CORRECTIONS_MAX {
            if start.instant > instant {
                k = k.saturating_sub(1);
                start = self.boundary(k, step);
            }
        }
        let mut end = self.boundary(k.saturating_add(1), step);
        for _ in 0..CORRECTIONS_MAX {
            if end.instant <= instant {
                k = k.saturating_add(1);
                start = end;
                end = self.boundary(k.saturating_add(1), step);
            }
        }
        (start, end)
    }

    fn boundary(&self, k: i64, step: i64) -> Boundary {
        let beyond = if k < 0 { i128::MIN } else { i128::MAX };
        let beyond = Boundary {
            instant: beyond,
            id: beyond,
        };
        let Some(distance) = k.checked_mul(step) else {
            return beyond;
        };
        let date = match self.period.step() {
            Step::Hours => None,
            Step::Days(_) => plus_days(self.anchor.date(), distance),
            Step::Months(_) => plus_months(self.anchor.date(), distance),
        };
        let Some(civil) = date.map(|date| date.to_datetime(self.anchor.time())) else {
            return beyond;
        };
        match (self.instant_of(civil), Offset::UTC.to_timestamp(civil)) {
            (Some(instant), Ok(id)) => Boundary {
                instant,
                id: id.as_nanosecond(),
            },
            _ => beyond,
        }
    }

    fn instant_of(&self, civil: DateTime) -> Option<i128> {
        let instant = self.zone.to_ambiguous_timestamp(civil).compatible().ok()?;
        Some(instant.as_nanosecond())
    }
}

fn clamp(nanos: i128) -> i64 {
    i64::try_from(nanos).unwrap_or(if nanos < 0 { i64::MIN } else { i64::MAX })
}

fn days_between(from: Date, to: Date) -> i64 {
    to.duration_since(from).as_hours() / HOURS_PER_DAY
}

fn plus_days(date: Date, days: i64) -> Option<Date> {
    // Counted from the epoch: the library takes no step that is longer than the calendar's two halves.
    let hours = days_between(UNIX_EPOCH, date)
        .checked_add(days)?
        .checked_mul(HOURS_PER_DAY)?;
    UNIX_EPOCH
        .checked_add(SignedDuration::try_from_hours(hours)?)
        .ok()
}

fn month_number(date: Date) -> i64 {
    i64::from(date.year()) * 12 + i64::from(date.month()) - 1
}

fn months_between(from: Date, to: Date) -> i64 {
    month_number(to) - month_number(from)
}

/// The date `months` later, on the same day of the month or on the month's last day.
fn plus_months(date: Date, months: i64) -> Option<Date> {
    let number = month_number(date).checked_add(months)?;
    let year = i16::try_from(number.div_euclid(12)).ok()?;
    let month = i8::try_from(number.rem_euclid(12) + 1).ok()?;
    let first = Date::new(year, month, 1).ok()?;
    Date::new(year, month, date.day().min(first.days_in_month())).ok()
}

#[cfg(test)]
mod tests;
