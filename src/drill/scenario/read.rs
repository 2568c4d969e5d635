//! From TOML to a scenario. Every fault is told with its line, all of them at once.

mod expects;
mod loads;
mod steps;

use std::collections::BTreeMap;
use std::ops::Range;

use serde::Deserialize;
use toml::Spanned;

use crate::catalogue;
use crate::domain::duration;
use crate::domain::limit::LimitSpec;
use crate::domain::name::LimitName;
use crate::domain::name::RegionName;
use crate::domain::time::Span;

use super::COST_MAX;
use super::DrillLimit;
use super::FAULT_MS_MAX;
use super::Link;
use super::REGIONS_MAX;
use super::Scenario;
use super::ScenarioError;

/// How long all may take to be well again when the scenario does not say.
const SETTLE_MS: u64 = 30_000;
/// How long regions take to come together, at most.
const START_MS: u64 = 60_000;
/// The longest delay and jitter of a link.
const DELAY_MS_MAX: u64 = 2_000;

type Text = Spanned<String>;
/// A field that only some entries have: its name, where it stands when it is given, and whose it is.
type Owned = (&'static str, Option<Range<usize>>, &'static [&'static str]);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawScenario {
    title: Text,
    about: Option<Text>,
    regions: Spanned<Vec<Text>>,
    duration: Text,
    settle: Option<Text>,
    #[serde(default)]
    links: RawLinks,
    #[serde(default)]
    link: Vec<Spanned<RawLink>>,
    #[serde(default)]
    limits: BTreeMap<Text, Spanned<LimitSpec>>,
    load: Spanned<Vec<Spanned<loads::RawLoad>>>,
    #[serde(default)]
    steps: Vec<Spanned<steps::RawStep>>,
    expect: Spanned<Vec<Spanned<expects::RawExpect>>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawLinks {
    delay: Option<Text>,
    jitter: Option<Text>,
    loss_percent: Option<Spanned<u8>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawLink {
    between: Spanned<Vec<Text>>,
    delay: Option<Text>,
    jitter: Option<Text>,
    loss_percent: Option<Spanned<u8>>,
}

/// Faults by their place in the text, and what names mean.
struct Reader<'t> {
    text: &'t str,
    faults: Vec<(usize, String)>,
    regions: Vec<String>,
    limits: Vec<DrillLimit>,
    duration_ms: u64,
    duration_ms_max: u64,
}

/// Reads a scenario.
///
/// # Errors
/// Everything that is wrong with it.
pub(super) fn scenario(
    name: &str,
    text: &str,
    duration_ms_max: u64,
) -> Result<Scenario, ScenarioError> {
    let raw: RawScenario = toml::from_str(text).map_err(|error| {
        let line = line_of(text, error.span().map_or(0, |span| span.start));
        let message = error.message().trim_end().replace('\n', ", ");
        let message = in_words(text, error.span(), message);
        ScenarioError {
            faults: vec![(line, message)],
        }
    })?;
    let mut reader = Reader {
        text,
        faults: Vec::new(),
        regions: Vec::new(),
        limits: Vec::new(),
        duration_ms: 0,
        duration_ms_max,
    };
    let read = reader.read(name, raw);
    if reader.faults.is_empty() {
        return Ok(read);
    }
    reader.faults.sort();
    reader.faults.dedup();
    Err(ScenarioError {
        faults: reader.faults,
    })
}

/// Fields that are times.
const TIMES: [&str; 12] = [
    "at", "delay", "duration", "every", "for", "from", "jitter", "per", "settle", "until",
    "window", "within",
];

/// What was wrong with a value, by its field and by what is written instead, when it has the wrong kind.
fn in_words(text: &str, span: Option<Range<usize>>, message: String) -> String {
    let Some(span) = span else { return message };
    let expected = message.rsplit("expected ").next().unwrap_or_default();
    let is_of_kind = ["invalid type", "invalid value", "data did not match"]
        .iter()
        .any(|kind| message.starts_with(kind));
    let before = text.get(..span.start).unwrap_or_default().trim_end();
    let field = before.strip_suffix('=').map_or("", str::trim_end);
    let is_of_word = |one: char| one.is_ascii_alphanumeric() || one == '_' || one == '-';
    let start = field.trim_end_matches(is_of_word).len();
    let field = field.get(start..).unwrap_or_default();
    if !is_of_kind || field.is_empty() {
        return message;
    }
    let value = text.get(span).unwrap_or_default().trim();
    let number = value.replace('_', "").parse::<f64>().ok();
    let told = match (expected, number) {
        ("a string", Some(_)) if TIMES.contains(&field) => {
            format!("write a time with its unit, as in \"{value}s\"")
        }
        ("a string", _) => "write it in quotes, as in \"…\"".to_owned(),
        ("u64" | "u32" | "u8", Some(number)) if number < 0.0 || number.fract() != 0.0 => {
            format!("{value} is not a whole number from 0 on")
        }
        ("i64", Some(number)) if number.fract() != 0.0 => {
            format!("{value} is not a whole number")
        }
        ("u64" | "u32" | "u8" | "i64", Some(_)) => format!("{value} is too large"),
        ("u64" | "u32" | "u8" | "i64" | "f64", None) => "write a number, without quotes".to_owned(),
        ("a sequence", _) => "write a list, as in [ … ]".to_owned(),
        ("a boolean", _) => "write true or false".to_owned(),
        // One number or two.
        _ if field == "cost" => format!("one number from 1 to {COST_MAX}, or two, from and to"),
        _ => return message,
    };
    format!("{field}: {told}")
}

fn line_of(text: &str, offset: usize) -> usize {
    let before = text.as_bytes().iter().take(offset);
    1 + before.filter(|byte| **byte == b'\n').count()
}

impl Reader<'_> {
    fn read(&mut self, name: &str, raw: RawScenario) -> Scenario {
        if raw.title.get_ref().trim().is_empty() {
            self.fault(
                &raw.title.span(),
                "title: say in a few words what is rehearsed",
            );
        }
        self.regions(&raw.regions);
        let has_duration = self.duration(&raw.duration);
        let settle_ms = raw
            .settle
            .as_ref()
            .map_or(SETTLE_MS, |text| self.milliseconds("settle", text));
        let links = self.links(&raw.links, &raw.link);
        let is_uneven = links
            .iter()
            .any(|link| link.jitter_ms > 0 || link.loss_percent > 0);
        // Until the last look at the regions, and while they come together before the first call.
        let takes_ms = self
            .duration_ms
            .saturating_add(settle_ms)
            .saturating_add(START_MS);
        if is_uneven && has_duration && takes_ms > FAULT_MS_MAX {
            self.fault(
                &raw.duration.span(),
                "duration: with jitter or loss on links, duration and settle must be under 14m together",
            );
        }
        for (limit, spec) in &raw.limits {
            self.limit(limit, spec);
        }
        let loads = self.loads(&raw.load);
        let steps = self.steps(&raw.steps);
        let expectations = self.expectations(&raw.expect, &loads, &steps);
        Scenario {
            name: name.to_owned(),
            title: raw.title.into_inner(),
            about: raw
                .about
                .map(Spanned::into_inner)
                .unwrap_or_default()
                .trim()
                .to_owned(),
            regions: self.regions.clone(),
            duration_ms: self.duration_ms,
            settle_ms,
            links,
            limits: self.limits.clone(),
            loads,
            steps,
            expectations,
        }
    }

    /// Whether the duration is one. Else the longest one stands for it, so that nothing else is at fault for it.
    fn duration(&mut self, text: &Text) -> bool {
        let faults = self.faults.len();
        self.duration_ms = self.milliseconds("duration", text);
        let longest_ms = self.duration_ms_max;
        if self.faults.len() == faults && !(1_000..=longest_ms).contains(&self.duration_ms) {
            let longest = duration::format(Span::from_ms(longest_ms));
            self.fault(&text.span(), format!("duration: give 1s to {longest}"));
        }
        let is_one = self.faults.len() == faults;
        if !is_one {
            self.duration_ms = longest_ms;
        }
        is_one
    }

    fn fault(&mut self, at: &Range<usize>, message: impl Into<String>) {
        let line = line_of(self.text, at.start);
        self.faults.push((line, message.into()));
    }

    fn line(&self, at: &Range<usize>) -> usize {
        line_of(self.text, at.start)
    }

    fn milliseconds(&mut self, field: &str, text: &Text) -> u64 {
        match duration::parse(text.get_ref()) {
            Ok(span) => span.as_ms_ceil(),
            Err(error) => {
                self.fault(&text.span(), format!("{field}: {error}"));
                0
            }
        }
    }

    fn regions(&mut self, given: &Spanned<Vec<Text>>) {
        if given.get_ref().is_empty() || given.get_ref().len() > REGIONS_MAX {
            self.fault(
                &given.span(),
                format!("regions: name 1 to {REGIONS_MAX} of them"),
            );
        }
        for name in given.get_ref() {
            if let Err(error) = RegionName::new(name.get_ref()) {
                self.fault(&name.span(), format!("regions: {error}"));
            }
            if self.regions.contains(name.get_ref()) {
                self.fault(
                    &name.span(),
                    format!("regions: {} is named twice", name.get_ref()),
                );
            }
            self.regions.push(name.get_ref().clone());
        }
    }

    /// A region of the scenario.
    fn region(&mut self, field: &str, name: &Text) -> Option<usize> {
        let found = self
            .regions
            .iter()
            .position(|known| known == name.get_ref());
        if found.is_none() {
            let known = self.regions.join(", ");
            self.fault(
                &name.span(),
                format!(
                    "{field}: there is no region {:?} here; there are {known}",
                    name.get_ref()
                ),
            );
        }
        found
    }

    fn regions_of(&mut self, field: &str, names: Option<&Vec<Text>>) -> Vec<usize> {
        let Some(names) = names else {
            return Vec::new();
        };
        names
            .iter()
            .filter_map(|name| self.region(field, name))
            .collect()
    }

    /// A limit of the scenario.
    fn limit_named(&mut self, name: &Text) -> Option<usize> {
        let found = self
            .limits
            .iter()
            .position(|known| known.name == *name.get_ref());
        if found.is_none() {
            let known: Vec<&str> = self
                .limits
                .iter()
                .map(|limit| limit.name.as_str())
                .collect();
            let known = known.join(", ");
            self.fault(
                &name.span(),
                format!(
                    "limit: there is no limit {:?} here; there are: {known}",
                    name.get_ref()
                ),
            );
        }
        found
    }

    fn limit(&mut self, name: &Text, spec: &Spanned<LimitSpec>) {
        let at = name.span();
        let limit_name = match LimitName::new(name.get_ref()) {
            Ok(name) => name,
            Err(error) => return self.fault(&at, format!("limits: {error}")),
        };
        let regions = u32::try_from(self.regions.len()).unwrap_or(1).max(1);
        match catalogue::complete(&limit_name, spec.get_ref(), regions) {
            Ok(limit) => self.limits.push(DrillLimit {
                name: name.get_ref().clone(),
                spec: spec.get_ref().clone(),
                limit,
            }),
            Err(errors) => {
                for error in errors {
                    self.fault(&at, format!("{}: {}", error.path, error.message));
                }
            }
        }
    }

    fn links(&mut self, all: &RawLinks, some: &[Spanned<RawLink>]) -> Vec<Link> {
        let delay_ms = self.delay("links.delay", all.delay.as_ref());
        let jitter_ms = self.delay("links.jitter", all.jitter.as_ref());
        let loss_percent = self.loss("links.loss_percent", all.loss_percent.as_ref());
        let count = self.regions.len();
        let mut links: Vec<Link> = (0..count)
            .flat_map(|a| (a + 1..count).map(move |b| (a, b)))
            .map(|between| Link {
                between,
                delay_ms,
                jitter_ms,
                loss_percent,
            })
            .collect();
        for raw in some {
            let RawLink {
                between,
                delay,
                jitter,
                loss_percent,
            } = raw.get_ref();
            let ends = self.regions_of("link.between", Some(between.get_ref()));
            let &[a, b] = ends.as_slice() else {
                self.fault(&between.span(), "link.between: name two regions");
                continue;
            };
            if a == b {
                self.fault(&between.span(), "link.between: name two different regions");
            }
            let delay = delay
                .as_ref()
                .map(|text| self.delay("link.delay", Some(text)));
            let jitter = jitter
                .as_ref()
                .map(|text| self.delay("link.jitter", Some(text)));
            let loss = loss_percent
                .as_ref()
                .map(|loss| self.loss("link.loss_percent", Some(loss)));
            let found = links
                .iter_mut()
                .find(|link| link.between == (a.min(b), a.max(b)));
            if let Some(link) = found {
                link.delay_ms = delay.unwrap_or(link.delay_ms);
                link.jitter_ms = jitter.unwrap_or(link.jitter_ms);
                link.loss_percent = loss.unwrap_or(link.loss_percent);
            }
        }
        links
    }

    fn delay(&mut self, field: &str, text: Option<&Text>) -> u64 {
        let Some(text) = text else { return 0 };
        let ms = self.milliseconds(field, text);
        if ms > DELAY_MS_MAX {
            self.fault(&text.span(), format!("{field}: at most {DELAY_MS_MAX}ms"));
        }
        ms
    }

    fn loss(&mut self, field: &str, percent: Option<&Spanned<u8>>) -> u8 {
        let Some(percent) = percent else { return 0 };
        if *percent.get_ref() > 100 {
            self.fault(&percent.span(), format!("{field}: 0 to 100"));
        }
        *percent.get_ref()
    }
}
