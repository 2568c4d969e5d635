//! Curves over time with bars for what was done, as SVG that stands in a page.
//!
//! Colours are classes, which the page's style gives for light, dark and paper.

use std::fmt::Write;

use crate::drill::timeline::Bar;

/// Width and height of a chart in its own units; the page scales it.
const WIDTH: u64 = 720;
const HEIGHT: u64 = 204;
/// Room for numbers, on the left and below.
const LEFT: u64 = 72;
const BELOW: u64 = 36;
const ABOVE: u64 = 8;
const RIGHT: u64 = 8;

/// One line of a chart; what is absent is left out.
#[derive(Clone, Debug)]
pub struct Line<'a> {
    /// What it is of.
    pub name: &'a str,
    /// A value for each step of time.
    pub values: Vec<Option<u64>>,
}

/// What is drawn.
#[derive(Clone, Debug)]
pub struct Chart<'a> {
    /// What the curves are, for who cannot see them.
    pub title: &'a str,
    /// The lines.
    pub lines: Vec<Line<'a>>,
    /// The highest value that is drawn; `None`: the highest there is.
    pub top: Option<u64>,
    /// A value as it is written on the left.
    pub write: fn(u64) -> String,
    /// From one value to the next.
    pub step_ms: u64,
    /// The right end.
    pub end_ms: u64,
}

/// Text in a page.
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

/// Where a moment is, from the left.
fn x(ms: u64, end_ms: u64) -> u64 {
    LEFT + (WIDTH - LEFT - RIGHT) * ms.min(end_ms) / end_ms.max(1)
}

/// A round number that is not smaller.
fn round_up(value: u64) -> u64 {
    let mut unit = 1_u64;
    loop {
        for digit in [1, 2, 5] {
            if unit.saturating_mul(digit) >= value {
                return unit.saturating_mul(digit);
            }
        }
        unit = unit.saturating_mul(10);
    }
}

impl Chart<'_> {
    /// The chart with the bars behind its lines.
    pub fn svg(&self, bars: &[Bar]) -> String {
        let highest = self.lines.iter().flat_map(|line| &line.values).flatten();
        let top = self
            .top
            .unwrap_or_else(|| round_up(highest.copied().max().unwrap_or(1).max(1)))
            .max(1);
        let mut svg = format!(
            "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">",
            escaped(self.title)
        );
        self.bars(&mut svg, bars);
        self.axes(&mut svg, top);
        for (number, line) in self.lines.iter().enumerate() {
            let path = self.path(line, top);
            add(
                &mut svg,
                format_args!("<path class=\"line c{}\" d=\"{path}\"/>", number % 8),
            );
        }
        svg.push_str("</svg>");
        svg
    }

    fn bars(&self, svg: &mut String, bars: &[Bar]) {
        for bar in bars {
            let (from, until) = (x(bar.from_ms, self.end_ms), x(bar.until_ms, self.end_ms));
            let class = if bar.is_fault { "fault" } else { "move" };
            add(
                svg,
                format_args!(
                    "<rect class=\"{class}\" x=\"{from}\" y=\"{ABOVE}\" width=\"{}\" height=\"{}\"><title>{}</title></rect>",
                    (until - from).max(2),
                    HEIGHT - ABOVE - BELOW,
                    escaped(&bar.step)
                ),
            );
        }
    }

    fn axes(&self, svg: &mut String, top: u64) {
        for part in 0..=2 {
            let value = top * part / 2;
            let at = y(value, top);
            add(
                svg,
                format_args!(
                    "<path class=\"grid\" d=\"M{LEFT} {at}H{}\"/><text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>",
                    WIDTH - RIGHT,
                    LEFT - 6,
                    at + 4,
                    escaped(&(self.write)(value))
                ),
            );
        }
        let seconds = self.end_ms / 1_000;
        let step = round_up(seconds.div_ceil(8).max(1));
        let mut at = 0;
        while at <= seconds {
            add(
                svg,
                format_args!(
                    "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{at} s</text>",
                    x(at * 1_000, self.end_ms),
                    HEIGHT - 6
                ),
            );
            at += step;
        }
    }

    fn path(&self, line: &Line<'_>, top: u64) -> String {
        let mut path = String::new();
        let mut is_down = false;
        for (number, value) in line.values.iter().enumerate() {
            let Some(value) = value else {
                is_down = false;
                continue;
            };
            let middle = u64::try_from(number).unwrap_or(0) * self.step_ms + self.step_ms / 2;
            let command = if is_down { 'L' } else { 'M' };
            add(
                &mut path,
                format_args!("{command}{} {}", x(middle, self.end_ms), y(*value, top)),
            );
            if !is_down {
                // A single value between two gaps would have no length, and would not be seen.
                path.push_str("h1");
            }
            is_down = true;
        }
        path
    }
}

/// Where a value is, from above.
fn y(value: u64, top: u64) -> u64 {
    let height = HEIGHT - ABOVE - BELOW;
    HEIGHT - BELOW - height * value.min(top) / top
}

/// Writing to a text cannot fail.
fn add(text: &mut String, what: std::fmt::Arguments<'_>) {
    let _ = text.write_fmt(what);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_breaks_the_line_and_a_bar_stands_behind_it() {
        let chart = Chart {
            title: "a < b",
            lines: vec![Line {
                name: "x",
                values: vec![Some(0), Some(10), None, Some(4)],
            }],
            top: None,
            write: |value| value.to_string(),
            step_ms: 1_000,
            end_ms: 4_000,
        };
        let bar = Bar {
            step: "kill a".to_owned(),
            region: "a".to_owned(),
            is_fault: true,
            from_ms: 1_000,
            until_ms: 3_000,
        };
        let svg = chart.svg(&[bar]);
        assert!(svg.contains("aria-label=\"a &lt; b\""));
        assert!(svg.contains("<rect class=\"fault\" x=\"232\" y=\"8\" width=\"320\""));
        let path = svg.split("line c0\" d=\"").nth(1).expect("a line");
        assert_eq!(path.split('"').next(), Some("M152 168h1L312 8M632 104h1"));
    }

    #[test]
    fn scales_end_at_round_numbers() {
        assert_eq!(
            [0, 1, 3, 11, 20, 501].map(round_up),
            [1, 1, 5, 20, 20, 1_000]
        );
    }
}
