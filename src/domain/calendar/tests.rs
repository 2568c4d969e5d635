//! Exact windows from published examples, and the laws of windows in many zones.

use proptest::prelude::Just;
use proptest::prelude::Strategy;
use proptest::prelude::any;
use proptest::prelude::prop_oneof;
use proptest::prop_assert;
use proptest::prop_assert_eq;
use proptest::proptest;

use super::*;

fn calendar(period: Period, every: u32, anchor: &str, zone_name: &str) -> Calendar {
    let anchor = anchor.parse().expect("a civil time");
    Calendar::new(period, every, anchor, zone(zone_name).expect("a zone"))
}

fn default_calendar(period: Period) -> Calendar {
    Calendar::new(period, 1, period.default_anchor(), TimeZone::UTC)
}

fn at(text: &str) -> Timestamp {
    let instant: jiff::Timestamp = text.parse().expect("an instant");
    Timestamp::from_nanos(i64::try_from(instant.as_nanosecond()).expect("in range"))
}

fn just_before(text: &str) -> Timestamp {
    Timestamp::from_nanos(at(text).as_nanos() - 1)
}

/// The window around `now` as the text of its bounds.
#[track_caller]
fn check(calendar: &Calendar, now: &str, start: &str, end: &str) {
    let window = calendar.window(at(now));
    assert_eq!(
        (window.start, window.end),
        (at(start), at(end)),
        "around {now}"
    );
    assert_eq!(calendar.window(window.start), window, "the start is inside");
    let last = Timestamp::from_nanos(window.end.as_nanos() - 1);
    assert_eq!(
        calendar.window(last),
        window,
        "the last nanosecond is inside"
    );
    assert_eq!(
        calendar.window(window.end).start,
        window.end,
        "the end is the next start"
    );
}

#[test]
fn cal_1_months_days_and_weeks_end_with_the_calendar() {
    let month = default_calendar(Period::Month);
    check(
        &month,
        "2027-02-10T12:00:00Z",
        "2027-02-01T00:00:00Z",
        "2027-03-01T00:00:00Z",
    );
    check(
        &month,
        "2027-02-28T23:59:59.999Z",
        "2027-02-01T00:00:00Z",
        "2027-03-01T00:00:00Z",
    );
    check(
        &month,
        "2027-03-01T00:00:00Z",
        "2027-03-01T00:00:00Z",
        "2027-04-01T00:00:00Z",
    );

    let day = default_calendar(Period::Day);
    check(
        &day,
        "2027-02-10T23:59:59.999Z",
        "2027-02-10T00:00:00Z",
        "2027-02-11T00:00:00Z",
    );
    check(
        &day,
        "2027-02-11T00:00:00Z",
        "2027-02-11T00:00:00Z",
        "2027-02-12T00:00:00Z",
    );

    // 10 February 2027 is a Wednesday; the week begins on Monday.
    let week = default_calendar(Period::Week);
    check(
        &week,
        "2027-02-10T12:00:00Z",
        "2027-02-08T00:00:00Z",
        "2027-02-15T00:00:00Z",
    );
    // A fixed window of seven days is aligned to the epoch, a Thursday.
    let aligned = Window::aligned(at("2027-02-10T12:00:00Z"), Span::from_seconds(604_800));
    assert_eq!(aligned.start, at("2027-02-04T00:00:00Z"));
}

#[test]
fn the_clamp_to_a_short_month_does_not_stick() {
    let month = calendar(Period::Month, 1, "2026-01-31T00:00:00", "UTC");
    let starts = [
        "2026-01-31",
        "2026-02-28",
        "2026-03-31",
        "2026-04-30",
        "2026-05-31",
    ];
    for pair in starts.windows(2) {
        let [start, end] = [pair[0], pair[1]].map(|day| format!("{day}T00:00:00Z"));
        check(&month, &start, &start, &end);
    }
    check(
        &month,
        "2028-02-29T00:00:00Z",
        "2028-02-29T00:00:00Z",
        "2028-03-31T00:00:00Z",
    );
}

#[test]
fn boundaries_of_a_published_billing_library_are_met() {
    let month = calendar(Period::Month, 1, "2025-01-31T15:00:00", "UTC");
    check(
        &month,
        "2025-09-30T15:00:00Z",
        "2025-09-30T15:00:00Z",
        "2025-10-31T15:00:00Z",
    );
    let month = calendar(Period::Month, 1, "2025-01-30T00:00:00", "UTC");
    check(
        &month,
        "2025-02-13T00:00:00Z",
        "2025-01-30T00:00:00Z",
        "2025-02-28T00:00:00Z",
    );
}

#[test]
fn an_anchor_on_29_february_means_28_february_in_common_years() {
    let year = calendar(Period::Year, 1, "2024-02-29T00:00:00", "UTC");
    check(
        &year,
        "2025-03-01T00:00:00Z",
        "2025-02-28T00:00:00Z",
        "2026-02-28T00:00:00Z",
    );
    check(
        &year,
        "2028-02-29T00:00:00Z",
        "2028-02-29T00:00:00Z",
        "2029-02-28T00:00:00Z",
    );
}

#[test]
fn the_anchor_may_lie_in_the_future() {
    let month = calendar(Period::Month, 1, "2030-01-31T00:00:00", "UTC");
    check(
        &month,
        "2026-02-10T00:00:00Z",
        "2026-01-31T00:00:00Z",
        "2026-02-28T00:00:00Z",
    );
    let quarter = calendar(Period::Quarter, 1, "2030-01-01T00:00:00", "UTC");
    check(
        &quarter,
        "1969-12-31T00:00:00Z",
        "1969-10-01T00:00:00Z",
        "1970-01-01T00:00:00Z",
    );
}

#[test]
fn several_periods_make_one_window() {
    let fortnight = calendar(Period::Week, 2, "1970-01-05T00:00:00", "UTC");
    check(
        &fortnight,
        "1970-01-18T23:59:59Z",
        "1970-01-05T00:00:00Z",
        "1970-01-19T00:00:00Z",
    );
    let half = calendar(Period::Quarter, 2, "1970-01-01T00:00:00", "UTC");
    check(
        &half,
        "2026-11-29T00:00:00Z",
        "2026-07-01T00:00:00Z",
        "2027-01-01T00:00:00Z",
    );
    let hours = calendar(Period::Hour, 5, "1970-01-01T00:00:00", "UTC");
    check(
        &hours,
        "1970-01-01T05:00:00Z",
        "1970-01-01T05:00:00Z",
        "1970-01-01T10:00:00Z",
    );
}

#[test]
fn a_boundary_in_a_gap_moves_ahead_and_a_doubled_one_is_the_first() {
    let day = calendar(Period::Day, 1, "1970-01-01T02:30:00", "America/New_York");
    check(
        &day,
        "2026-03-08T07:30:00Z",
        "2026-03-08T07:30:00Z",
        "2026-03-09T06:30:00Z",
    );
    let day = calendar(Period::Day, 1, "1970-01-01T01:30:00", "America/New_York");
    check(
        &day,
        "2026-11-01T05:30:00Z",
        "2026-11-01T05:30:00Z",
        "2026-11-02T06:30:00Z",
    );
}

#[test]
fn local_days_have_23_or_25_hours_when_the_clock_changes() {
    let day = calendar(Period::Day, 1, "1970-01-01T00:00:00", "America/New_York");
    check(
        &day,
        "2026-03-08T12:00:00Z",
        "2026-03-08T05:00:00Z",
        "2026-03-09T04:00:00Z",
    );
    check(
        &day,
        "2026-11-01T12:00:00Z",
        "2026-11-01T04:00:00Z",
        "2026-11-02T05:00:00Z",
    );
}

#[test]
fn a_day_whose_midnight_is_skipped_starts_at_one() {
    for (zone_name, start) in [
        ("America/Santiago", "2026-09-06T04:00:00Z"),
        ("Africa/Cairo", "2026-04-23T22:00:00Z"),
        ("Asia/Beirut", "2026-03-28T22:00:00Z"),
    ] {
        let day = calendar(Period::Day, 1, "1970-01-01T00:00:00", zone_name);
        assert_eq!(day.window(at(start)).start, at(start), "{zone_name}");
        assert!(
            day.window(just_before(start)).start < at(start),
            "{zone_name}"
        );
        let window = day.window(at(start));
        assert_eq!(
            window.end.since(window.start),
            Span::from_seconds(23 * 3_600)
        );
    }
}

#[test]
fn a_day_that_never_happened_has_no_window() {
    // Samoa went from 29 to 31 December 2011.
    let day = calendar(Period::Day, 1, "1970-01-01T12:00:00", "Pacific/Apia");
    check(
        &day,
        "2011-12-30T11:00:00Z",
        "2011-12-29T22:00:00Z",
        "2011-12-30T22:00:00Z",
    );
    check(
        &day,
        "2011-12-30T22:00:00Z",
        "2011-12-30T22:00:00Z",
        "2011-12-31T22:00:00Z",
    );
}

#[test]
fn hours_have_full_length_and_their_own_names_when_the_clock_goes_back() {
    let hour = calendar(Period::Hour, 1, "1970-01-01T00:00:00", "America/New_York");
    check(
        &hour,
        "2026-11-01T05:59:59Z",
        "2026-11-01T05:00:00Z",
        "2026-11-01T06:00:00Z",
    );
    check(
        &hour,
        "2026-11-01T06:00:00Z",
        "2026-11-01T06:00:00Z",
        "2026-11-01T07:00:00Z",
    );
    let first = hour.window(at("2026-11-01T05:30:00Z"));
    let second = hour.window(at("2026-11-01T06:30:00Z"));
    assert_ne!(first.id, second.id, "01:00 to 02:00 happens twice");
    // A zone that is half an hour off has its hours at the local full hour.
    let hour = calendar(Period::Hour, 1, "1970-01-01T00:00:00", "Asia/Kolkata");
    check(
        &hour,
        "2026-11-01T05:59:59Z",
        "2026-11-01T05:30:00Z",
        "2026-11-01T06:30:00Z",
    );
}

#[test]
fn a_window_is_named_by_its_civil_start() {
    let month = calendar(Period::Month, 1, "2026-01-31T00:00:00", "Asia/Kolkata");
    let window = month.window(at("2026-02-10T00:00:00Z"));
    assert_eq!(window.start, at("2026-01-30T18:30:00Z"));
    assert_eq!(window.id, WindowId(at("2026-01-31T00:00:00Z").as_nanos()));
}

#[test]
fn the_ends_of_time_are_inside_some_window() {
    for period in [Period::Hour, Period::Day, Period::Month, Period::Year] {
        for every in [1, 7, u32::MAX] {
            for anchor in [
                "-009999-01-01T00:00:00",
                "9999-12-31T23:59:59",
                "2026-01-31T00:00",
            ] {
                let calendar = calendar(period, every, anchor, "Asia/Kolkata");
                for now in [i64::MIN, i64::MIN + 1, -1, 0, i64::MAX - 1, i64::MAX] {
                    let now = Timestamp::from_nanos(now);
                    let window = calendar.window(now);
                    assert!(
                        window.start <= now && now <= window.end,
                        "{calendar:?} {now:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn no_window_is_longer_than_announced() {
    let month = calendar(Period::Month, 1, "2026-01-31T00:00:00", "UTC");
    assert_eq!(month.longest(), Span::from_seconds(33 * 86_400));
    let hours = calendar(Period::Hour, 3, "2026-01-31T00:00:00", "UTC");
    assert_eq!(hours.longest(), Span::from_seconds(3 * 3_600));
}

#[test]
fn unknown_zones_are_told_from_known_ones() {
    assert!(zone("Asia/Kolkata").is_some());
    assert!(zone("UTC").is_some());
    assert!(zone("Mars/Olympus").is_none());
    assert!(zone("").is_none());
}

fn zone_name() -> impl Strategy<Value = &'static str> {
    prop_oneof![
        Just("UTC"),
        Just("Asia/Kolkata"),
        Just("America/New_York"),
        Just("America/Santiago"),
        Just("Pacific/Apia"),
        Just("Pacific/Kwajalein"),
        Just("Asia/Manila"),
        Just("America/Juneau"),
        Just("Australia/Lord_Howe"),
        Just("Africa/Monrovia"),
        Just("Antarctica/Troll"),
    ]
}

fn period() -> impl Strategy<Value = Period> {
    prop_oneof![
        Just(Period::Hour),
        Just(Period::Day),
        Just(Period::Week),
        Just(Period::Month),
        Just(Period::Quarter),
        Just(Period::Year),
    ]
}

proptest! {
    #[test]
    fn windows_tile_time_in_every_zone(
        name in zone_name(),
        period in period(),
        every in 1_u32..40,
        anchor_seconds in -4_000_000_000_i64..7_000_000_000,
        now in -5_000_000_000_000_000_000_i64..8_000_000_000_000_000_000,
    ) {
        let anchor = jiff::Timestamp::from_second(anchor_seconds).expect("in range");
        let anchor = TimeZone::UTC.to_datetime(anchor);
        let calendar = Calendar::new(period, every, anchor, zone(name).expect("a zone"));
        let now = Timestamp::from_nanos(now);
        let window = calendar.window(now);
        prop_assert!(window.start <= now && now < window.end);
        prop_assert!(window.end.since(window.start) <= calendar.longest());
        prop_assert_eq!(calendar.window(window.start), window);
        prop_assert_eq!(calendar.window(Timestamp::from_nanos(window.end.as_nanos() - 1)), window);
        let next = calendar.window(window.end);
        prop_assert_eq!(next.start, window.end);
        prop_assert!(next.id > window.id);
    }

    #[test]
    fn no_instant_and_no_definition_panics(
        name in zone_name(),
        period in period(),
        every in any::<u32>(),
        year in -9999_i16..=9999,
        month in 1_i8..=12,
        now in any::<i64>(),
    ) {
        let anchor = Date::new(year, month, 1).expect("a date").at(23, 59, 59, 999_999_999);
        let calendar = Calendar::new(period, every, anchor, zone(name).expect("a zone"));
        let window = calendar.window(Timestamp::from_nanos(now));
        prop_assert!(window.start.as_nanos() <= now && now <= window.end.as_nanos());
    }
}
