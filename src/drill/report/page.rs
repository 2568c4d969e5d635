//! The report as one page: no script, nothing from a network; for a phone, a desk and paper, light and dark.

use std::fmt::Write;

use crate::domain::time::Timestamp;
use crate::drill::scenario::step::seconds;
use crate::drill::timeline::Bar;
use crate::drill::timeline::Curves;
use crate::drill::timeline::ModeCurves;
use crate::drill::verdict::figures::Buckets;
use crate::drill::verdict::percent;

use super::Report;
use super::chart::Chart;
use super::chart::Line;
use super::chart::escaped;

pub use crate::drill::verdict::STALL_MS;

/// Words of findings and tables, and what they mean.
const WORDS: [(&str, &str); 9] = [
    ("full", "a window whose quota is used up."),
    ("told", "units of calls that were answered as allowed."),
    (
        "in doubt",
        "units of calls that got no yes or no, and may have been charged all the same.",
    ),
    (
        "held",
        "strict units that a region was granted and has not used, or has used and not yet told the leader of.",
    ),
    (
        "stranded",
        "strict units that a region held when its process ended. Nobody uses them again in that window.",
    ),
    (
        "by policy",
        "let through by on_unavailable = open, because the region could not decide. They are counted apart.",
    ),
    (
        "degraded",
        "answers that rest on the failure policy, or on counts of which reports are missing.",
    ),
    (
        "without a right answer",
        "calls with no answer, or with one that is no yes, no no and no 503.",
    ),
    (
        "nothing to judge by",
        "what is expected was not put to the test; it is not met.",
    ),
];
const STYLE: &str = include_str!("style.css");

/// The page.
pub fn page(report: &Report) -> String {
    let mut text = String::new();
    let (met, all) = report.met();
    let (class, word) = if report.is_passed {
        ("yes", "passed")
    } else {
        ("no", "failed")
    };
    put(
        &mut text,
        format_args!(
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <title>Drill {name}: {word}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n\
             <h1>{title}</h1>\n\
             <p><span class=\"verdict {class}\">{word}</span> {met} of {all} expectations met</p>\n<p>{about}</p>\n\
             <p class=\"soft\">Drill <b>{name}</b>, {began}, on {stage}; callers asked for {took}; {calls} calls; seed {seed}; \
             Highwater {version}.</p>\n",
            name = escaped(&report.scenario),
            title = escaped(&report.title),
            about = escaped(&report.about),
            began = began(report.began_unix_ms),
            stage = escaped(&report.stage.describe()),
            took = seconds(report.duration_ms),
            calls = report.figures.calls,
            seed = report.seed,
            version = escaped(&report.version),
        ),
    );
    for note in &report.notes {
        put(
            &mut text,
            format_args!("<p class=\"note\">{}</p>\n", escaped(note)),
        );
    }
    verdict(&mut text, report);
    course(&mut text, report);
    charts(&mut text, report);
    figures(&mut text, report);
    text.push_str("</body>\n</html>\n");
    text
}

/// Writing to a text cannot fail.
fn put(text: &mut String, what: std::fmt::Arguments<'_>) {
    let _ = text.write_fmt(what);
}

/// A moment as people write it, in UTC.
fn began(unix_ms: i64) -> String {
    let nanos = i128::from(Timestamp::from_unix_ms(unix_ms).as_nanos());
    let moment = jiff::Timestamp::from_nanosecond(nanos);
    moment.map_or_else(
        |_| unix_ms.to_string(),
        |moment| moment.strftime("%Y-%m-%d %H:%M:%S UTC").to_string(),
    )
}

fn verdict(text: &mut String, report: &Report) {
    text.push_str(
        "<h2>Verdict</h2>\n<table class=\"cards\">\n<thead><tr><th>Met</th><th>Expected</th><th>Wanted</th><th>Found</th>\
         </tr></thead>\n<tbody>\n",
    );
    for finding in &report.findings {
        let (class, word) = if finding.is_met {
            ("yes", "yes")
        } else {
            ("no", "no")
        };
        put(
            text,
            format_args!(
                "<tr><td class=\"{class}\"><b>{word}</b></td><td>{} <span class=\"note\">line {}</span></td>\
                 <td data-is=\"wanted\">{}</td><td data-is=\"found\"><b>{}</b><div class=\"note\">{}</div></td></tr>\n",
                escaped(&finding.expectation),
                finding.line,
                escaped(&finding.wanted),
                escaped(&finding.found),
                escaped(&finding.note),
            ),
        );
    }
    text.push_str("</tbody>\n</table>\n");
    text.push_str("<h3>Words</h3>\n<dl class=\"note\">\n");
    for (word, meaning) in WORDS {
        put(text, format_args!("<dt>{word}</dt><dd>{meaning}</dd>\n"));
    }
    text.push_str("</dl>\n");
}

fn course(text: &mut String, report: &Report) {
    let told = |ms: Option<u64>| ms.map_or_else(|| "-".to_owned(), seconds);
    let figures = &report.figures;
    text.push_str("<h2>What happened</h2>\n<ul>\n");
    let lines = [
        ("Another region led from", figures.new_leader_after_ms),
        (
            "After the last step every call was answered yes or no from",
            figures.answered_after_ms,
        ),
        (
            "After the last step every region said that it is well from",
            figures.healed_after_ms,
        ),
        (
            "After the last call and step all regions counted the same from",
            figures.converged_after_ms,
        ),
    ];
    for (what, took) in lines {
        if let Some(took) = took {
            put(
                text,
                format_args!("<li>{what} <b>{}</b></li>\n", seconds(took)),
            );
        }
    }
    text.push_str("</ul>\n");
    if figures.stall_ms_max >= STALL_MS {
        put(
            text,
            format_args!(
                "<p class=\"no\">The machine of the drill stood still for {}: answers may be late by as much through no \
                 fault of a region.</p>\n",
                seconds(figures.stall_ms_max)
            ),
        );
    }
    text.push_str(
        "<table class=\"cards\">\n<thead><tr><th>Step</th><th class=\"n\">Began</th><th class=\"n\">Ended</th>\
         <th class=\"n\">Well again</th></tr></thead>\n<tbody>\n",
    );
    for healing in &figures.healing {
        put(
            text,
            format_args!(
                "<tr><td>{}</td><td class=\"n\" data-is=\"began\">{}</td><td class=\"n\" data-is=\"ended\">{}</td>\
                 <td class=\"n\" data-is=\"well again\">{}</td></tr>\n",
                escaped(&healing.step),
                seconds(healing.began_ms),
                told(healing.ended_ms),
                healing
                    .well_after_ms
                    .map_or_else(|| "-".to_owned(), |ms| format!("{} later", seconds(ms))),
            ),
        );
    }
    text.push_str("</tbody>\n</table>\n");
}

fn charts(text: &mut String, report: &Report) {
    text.push_str("<h2>Over time</h2>\n<p class=\"soft\">");
    for (number, region) in report.regions.iter().enumerate() {
        key(text, number, region);
    }
    text.push_str("</p>\n");
    bars(text, &report.timeline.bars);
    let curves = |of: fn(&Curves) -> Vec<Option<u64>>| -> Vec<Line<'_>> {
        let all = report.timeline.curves.iter();
        all.map(|curves| Line {
            name: &curves.region,
            values: of(curves),
        })
        .collect()
    };
    let charts = [
        (
            "Units that callers were allowed, a second",
            curves(|curves| {
                curves
                    .units_per_s
                    .iter()
                    .map(|units| Some(*units))
                    .collect()
            }),
            None,
            (|value| value.to_string()) as fn(u64) -> String,
        ),
        (
            "Availability: calls answered yes or no",
            curves(|curves| curves.answered.clone()),
            Some(10_000),
            percent,
        ),
        (
            "Latency: 99 of a hundred answers came within",
            curves(|curves| curves.p99_ms.clone()),
            None,
            milliseconds,
        ),
        (
            "Lag: how long counts waited for a peer",
            curves(|curves| curves.lag_ms.clone()),
            None,
            milliseconds,
        ),
    ];
    for (title, lines, top, write) in charts {
        figure(text, report, title, lines, top, write);
    }
    by_mode(text, report);
}

fn by_mode(text: &mut String, report: &Report) {
    let modes = &report.timeline.modes;
    text.push_str("<p class=\"soft\">");
    for (number, mode) in modes.iter().enumerate() {
        key(text, number, &mode.mode);
    }
    text.push_str("</p>\n");
    let lines = |of: fn(&ModeCurves) -> &Vec<Option<u64>>| -> Vec<Line<'_>> {
        let all = modes.iter();
        all.map(|curves| Line {
            name: &curves.mode,
            values: of(curves).clone(),
        })
        .collect()
    };
    let answered = lines(|curves| &curves.answered);
    let title = "Availability by mode: calls answered yes or no";
    figure(text, report, title, answered, Some(10_000), percent);
    let degraded = lines(|curves| &curves.degraded);
    let title =
        "Degraded by mode: answers that rest on a failure policy, or on reports that are missing";
    figure(text, report, title, degraded, Some(10_000), percent);
}

fn key(text: &mut String, number: usize, name: &str) {
    put(
        text,
        format_args!(
            "<span class=\"key\"><svg viewBox=\"0 0 20 10\"><path class=\"line c{}\" d=\"M0 5H20\"/></svg>{}</span>",
            number % 8,
            escaped(name)
        ),
    );
}

fn figure(
    text: &mut String,
    report: &Report,
    title: &str,
    lines: Vec<Line<'_>>,
    top: Option<u64>,
    write: fn(u64) -> String,
) {
    let chart = Chart {
        title,
        lines,
        top,
        write,
        step_ms: report.timeline.step_ms,
        end_ms: report.timeline.end_ms,
    };
    put(
        text,
        format_args!(
            "<figure><figcaption>{title}</figcaption>{}</figure>\n",
            chart.svg(&report.timeline.bars)
        ),
    );
}

/// A time as short as it goes on an axis.
fn milliseconds(value: u64) -> String {
    if value >= 1_000 {
        seconds(value)
    } else {
        format!("{value} ms")
    }
}

fn bars(text: &mut String, bars: &[Bar]) {
    if bars.is_empty() {
        return;
    }
    text.push_str("<ul class=\"note\">\n");
    for bar in bars {
        put(
            text,
            format_args!(
                "<li>{} to {}: {} <span class=\"soft\">({})</span></li>\n",
                seconds(bar.from_ms),
                seconds(bar.until_ms),
                escaped(&bar.step),
                escaped(&bar.region)
            ),
        );
    }
    text.push_str("</ul>\n");
}

fn figures(text: &mut String, report: &Report) {
    text.push_str(
        "<h2>Availability</h2>\n<div class=\"wide\"><table>\n<thead><tr><th>Callers in</th><th>Limits</th><th class=\"n\">Calls</th>\
         <th class=\"n\">Allowed</th><th class=\"n\">Refused</th><th class=\"n\">503</th><th class=\"n\">No answer</th>\
         <th class=\"n\">Degraded</th><th class=\"n\">p50</th><th class=\"n\">p99</th></tr></thead>\n<tbody>\n",
    );
    for row in &report.figures.availability {
        put(
            text,
            format_args!(
                "<tr><td>{}</td><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>\
                 <td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{} ms</td>\
                 <td class=\"n\">{} ms</td></tr>\n",
                escaped(&row.region),
                row.mode,
                row.calls,
                row.allowed,
                row.refused,
                row.unavailable,
                row.unanswered,
                row.degraded,
                row.p50_ms,
                row.p99_ms,
            ),
        );
    }
    text.push_str(
        "</tbody>\n</table></div>\n<h2>Units</h2>\n<div class=\"wide\"><table>\n<thead><tr><th>Limit</th><th>Mode</th>\
         <th class=\"n\">Quota</th><th class=\"n\">Windows</th><th class=\"n\">Full</th><th class=\"n\">Allowed</th>\
         <th class=\"n\">Most over</th><th class=\"n\">By policy</th><th class=\"n\">Stranded</th></tr></thead>\n<tbody>\n",
    );
    for row in &report.figures.admitted {
        put(
            text,
            format_args!(
                "<tr><td>{}</td><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>\
                 <td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td></tr>\n",
                escaped(&row.limit),
                row.mode,
                row.quota,
                row.windows,
                row.full,
                row.allowed,
                row.over_most,
                row.by_policy,
                row.stranded,
            ),
        );
    }
    text.push_str("</tbody>\n</table></div>\n");
    buckets(text, &report.figures.buckets);
}

fn buckets(text: &mut String, rows: &[Buckets]) {
    if rows.is_empty() {
        return;
    }
    text.push_str(
        "<div class=\"wide\"><table>\n<thead><tr><th>Bucket</th><th>Mode</th><th class=\"n\">Holds</th>\
         <th class=\"n\">Earns</th><th class=\"n\">Buckets</th><th class=\"n\">Allowed</th>\
         <th class=\"n\">Refused calls</th><th class=\"n\">Most over</th><th class=\"n\">By policy</th></tr></thead>\n<tbody>\n",
    );
    for row in rows {
        put(
            text,
            format_args!(
                "<tr><td>{}</td><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{} in {}</td><td class=\"n\">{}</td>\
                 <td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td></tr>\n",
                escaped(&row.limit),
                row.mode,
                row.capacity,
                row.refill,
                seconds(row.per_ms),
                row.buckets,
                row.allowed,
                row.refused,
                row.over_most
                    .map_or_else(|| "-".to_owned(), |over| over.to_string()),
                row.by_policy,
            ),
        );
    }
    text.push_str("</tbody>\n</table></div>\n");
}
