//! Calendar: periods end with the calendar.
//!
//! The case's days of 2027 are those of 2035 here, for the clock starts at the real time and should go forward;
//! both Februaries have 28 days.

use jiff::Timestamp;
use serde_json::Value;
use serde_json::json;

use crate::answer::Answer;
use crate::counter::Counter;
use crate::server::Server;

fn at(server: &Server, time: &str) {
    server.set_clock(ms(time));
}

fn ms(time: &str) -> i64 {
    time.parse::<Timestamp>().expect("a time").as_millisecond()
}

fn calendar(fields: Value) -> Server {
    let server = Server::start();
    let mut limit = json!({ "algorithm": "calendar_window", "quota": 10 });
    let members = limit.as_object_mut().expect("an object");
    members.extend(fields.as_object().expect("an object").clone());
    server.limits(&json!({ "calendar": limit }));
    server
}

fn starts_and_ends(answer: &Answer, start: &str, end: &str) {
    assert_eq!(
        answer.only()["window_start_ms"],
        ms(start),
        "starts {start}: {answer:?}"
    );
    assert_eq!(answer.reset_at(), ms(end) / 1000, "ends {end}: {answer:?}");
    let length = (ms(end) - ms(start)) / 1000;
    assert_eq!(
        answer.policy("w"),
        Some(length.to_string().as_str()),
        "this period's real length: {answer:?}"
    );
}

/// CAL-1, month.
#[test]
fn a_month_ends_with_the_month() {
    let server = calendar(json!({ "period": "month" }));
    let counter = Counter::new(&server, "t", "calendar");
    at(&server, "2035-02-10T00:00:00Z");
    assert_eq!(counter.passes(10), 10);
    starts_and_ends(
        &counter.look(),
        "2035-02-01T00:00:00Z",
        "2035-03-01T00:00:00Z",
    );
    at(&server, "2035-02-28T23:59:59.999Z");
    let refused = counter.take(1);
    assert!(!refused.allowed());
    assert_eq!(refused.retry_after_ms(), Some(1), "{refused:?}");
    at(&server, "2035-03-01T00:00:00Z");
    let answer = counter.take(1);
    assert_eq!(
        (answer.allowed(), answer.remaining()),
        (true, 9),
        "{answer:?}"
    );
    starts_and_ends(&answer, "2035-03-01T00:00:00Z", "2035-04-01T00:00:00Z");
}

/// CAL-1, day and hour.
#[test]
fn days_and_hours_are_half_open() {
    for (period, last, next, after) in [
        (
            "day",
            "2035-02-10T23:59:59.999Z",
            "2035-02-11T00:00:00Z",
            "2035-02-12T00:00:00Z",
        ),
        (
            "hour",
            "2035-02-10T07:59:59.999Z",
            "2035-02-10T08:00:00Z",
            "2035-02-10T09:00:00Z",
        ),
    ] {
        let server = calendar(json!({ "period": period }));
        let counter = Counter::new(&server, "t", "calendar");
        at(&server, last);
        assert_eq!(counter.passes(11), 10, "{period}");
        at(&server, next);
        let answer = counter.take(1);
        assert_eq!(
            (answer.allowed(), answer.remaining()),
            (true, 9),
            "{period}: {answer:?}"
        );
        starts_and_ends(&answer, next, after);
    }
}

/// CAL-1, week: from Monday. A fixed window of seven days starts on Thursdays, as the Unix epoch did.
#[test]
fn a_calendar_week_begins_on_monday_and_a_window_of_seven_days_on_thursday() {
    let server = Server::start();
    server.limits(&json!({
        "week": { "algorithm": "calendar_window", "quota": 10, "period": "week" },
        "seven-days": { "algorithm": "fixed_window", "quota": 10, "window": "604800s" },
    }));
    let [week, seven_days] = ["week", "seven-days"].map(|limit| Counter::new(&server, "t", limit));
    at(&server, "2035-02-11T23:59:59.999Z");
    assert_eq!(week.passes(11), 10, "a Sunday");
    at(&server, "2035-02-12T00:00:00Z");
    assert_eq!(week.take(1).remaining(), 9, "a Monday");
    starts_and_ends(&week.look(), "2035-02-12T00:00:00Z", "2035-02-19T00:00:00Z");
    starts_and_ends(
        &seven_days.look(),
        "2035-02-08T00:00:00Z",
        "2035-02-15T00:00:00Z",
    );
    assert_eq!(seven_days.passes(10), 10);
    at(&server, "2035-02-14T23:59:59.999Z");
    assert!(!seven_days.take(1).allowed(), "a Wednesday");
    at(&server, "2035-02-15T00:00:00Z");
    assert!(seven_days.take(1).allowed(), "a Thursday");
}

/// Quarters, years and multiples.
#[test]
fn quarters_years_and_multiples_of_a_period() {
    for (fields, start, end) in [
        (
            json!({ "period": "quarter" }),
            "2035-04-01T00:00:00Z",
            "2035-07-01T00:00:00Z",
        ),
        (
            json!({ "period": "year" }),
            "2035-01-01T00:00:00Z",
            "2036-01-01T00:00:00Z",
        ),
        (
            json!({ "period": "month", "every": 6 }),
            "2035-01-01T00:00:00Z",
            "2035-07-01T00:00:00Z",
        ),
        (
            json!({ "period": "day", "every": 7 }),
            "2035-05-10T00:00:00Z",
            "2035-05-17T00:00:00Z",
        ),
        (
            json!({ "period": "week", "every": 2 }),
            "2035-05-14T00:00:00Z",
            "2035-05-28T00:00:00Z",
        ),
    ] {
        let server = calendar(fields.clone());
        at(&server, "2035-05-15T12:00:00Z");
        let look = Counter::new(&server, "t", "calendar").look();
        println!("{fields}");
        starts_and_ends(&look, start, end);
    }
}

/// An anchor on the 31st: February ends with its last day, and March is on the 31st again.
#[test]
fn an_anchor_on_the_31st_is_clamped_and_comes_back() {
    let server = calendar(json!({ "period": "month", "anchor": "2026-01-31T00:00:00" }));
    let counter = Counter::new(&server, "t", "calendar");
    let bounds = [
        "2035-01-31",
        "2035-02-28",
        "2035-03-31",
        "2035-04-30",
        "2035-05-31",
    ]
    .map(|day| format!("{day}T00:00:00Z"));
    for pair in bounds.windows(2) {
        at(&server, &pair[0]);
        assert_eq!(counter.passes(11), 10, "from {}", pair[0]);
        starts_and_ends(&counter.look(), &pair[0], &pair[1]);
        server.set_clock(ms(&pair[1]) - 1);
        assert!(!counter.take(1).allowed(), "until {}", pair[1]);
    }
}

/// A yearly anchor on 29 February falls on the 28th in common years.
#[test]
fn a_leap_day_anchor_is_the_28th_in_common_years() {
    let server = calendar(json!({ "period": "year", "anchor": "2028-02-29T00:00:00" }));
    at(&server, "2035-05-01T00:00:00Z");
    starts_and_ends(
        &Counter::new(&server, "t", "calendar").look(),
        "2035-02-28T00:00:00Z",
        "2036-02-29T00:00:00Z",
    );
}

/// Days of a zone: a day of 23 hours, one of 25, and one that has no midnight.
#[test]
fn days_follow_the_zone_and_its_changes() {
    let server = calendar(json!({ "period": "day", "time_zone": "America/New_York" }));
    let counter = Counter::new(&server, "t", "calendar");
    at(&server, "2035-03-11T12:00:00Z");
    starts_and_ends(
        &counter.look(),
        "2035-03-11T05:00:00Z",
        "2035-03-12T04:00:00Z",
    );
    at(&server, "2035-11-04T12:00:00Z");
    starts_and_ends(
        &counter.look(),
        "2035-11-04T04:00:00Z",
        "2035-11-05T05:00:00Z",
    );
    assert_eq!(counter.passes(11), 10);
    at(&server, "2035-11-05T05:00:00Z");
    assert!(counter.take(1).allowed());

    let server = calendar(json!({ "period": "day", "time_zone": "Asia/Kolkata" }));
    at(&server, "2035-02-10T18:30:00Z");
    let look = Counter::new(&server, "t", "calendar").look();
    starts_and_ends(&look, "2035-02-10T18:30:00Z", "2035-02-11T18:30:00Z");
}

/// The zone and the anchor of a tenant hold for its limits that name none.
#[test]
fn a_tenants_zone_and_anchor_hold_for_its_limits() {
    let server = Server::start();
    server.catalogue(&json!({
        "limits": {
            "month": { "algorithm": "calendar_window", "quota": 10, "period": "month" },
            "utc": { "algorithm": "calendar_window", "quota": 10, "period": "month", "time_zone": "UTC", "anchor": "2020-01-01T00:00:00" },
        },
        "tenants": { "t": { "time_zone": "Asia/Kolkata", "anchor": "2026-01-15T06:00:00" }, "u": {} },
    }));
    at(&server, "2035-02-10T00:00:00Z");
    starts_and_ends(
        &Counter::new(&server, "t", "month").look(),
        "2035-01-15T00:30:00Z",
        "2035-02-15T00:30:00Z",
    );
    starts_and_ends(
        &Counter::new(&server, "t", "utc").look(),
        "2035-02-01T00:00:00Z",
        "2035-03-01T00:00:00Z",
    );
    starts_and_ends(
        &Counter::new(&server, "u", "month").look(),
        "2035-02-01T00:00:00Z",
        "2035-03-01T00:00:00Z",
    );
}
