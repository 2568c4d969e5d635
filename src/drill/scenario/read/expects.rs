//! Expectations of a scenario file, and whether they can be judged.

use serde::Deserialize;
use toml::Spanned;

use crate::domain::limit::Mode;

use super::super::Load;
use super::super::expect::Expectation;
use super::super::expect::Scope;
use super::super::expect::That;
use super::super::expect::WORDS;
use super::super::step::Step;
use super::Owned;
use super::Reader;
use super::Text;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawExpect {
    that: Text,
    limit: Option<Text>,
    regions: Option<Vec<Text>>,
    from: Option<Text>,
    until: Option<Text>,
    at_least: Option<Spanned<f64>>,
    at_most: Option<Spanned<f64>>,
    units: Option<Spanned<u64>>,
    within: Option<Text>,
    percentile: Option<Spanned<u8>>,
}

impl RawExpect {
    fn fields(&self) -> [Owned; 9] {
        let at = |text: &Option<Text>| text.as_ref().map(Spanned::span);
        let of_calls: &[&str] = &["answered", "allowed", "unavailable", "degraded", "latency"];
        let of_time: &[&str] = &["latency", "new-leader", "detected", "converged", "healed"];
        let of_windows: &[&str] = &[
            "answered",
            "allowed",
            "unavailable",
            "degraded",
            "latency",
            "undershoot",
            "overshoot",
        ];
        let of_limits: &[&str] = &[
            "answered",
            "allowed",
            "unavailable",
            "degraded",
            "latency",
            "undershoot",
            "overshoot",
            "never-exceeded",
            "charged-once",
            "counters-agree",
        ];
        let regions = self
            .regions
            .as_ref()
            .and_then(|names| names.first())
            .map(Spanned::span);
        [
            ("limit", at(&self.limit), of_limits),
            ("regions", regions, of_calls),
            ("from", at(&self.from), of_windows),
            ("until", at(&self.until), of_windows),
            (
                "at_least",
                self.at_least.as_ref().map(Spanned::span),
                &["answered", "allowed"],
            ),
            (
                "at_most",
                self.at_most.as_ref().map(Spanned::span),
                &["unavailable", "degraded", "undershoot"],
            ),
            (
                "units",
                self.units.as_ref().map(Spanned::span),
                &["overshoot", "counters-agree"],
            ),
            ("within", at(&self.within), of_time),
            (
                "percentile",
                self.percentile.as_ref().map(Spanned::span),
                &["latency"],
            ),
        ]
    }
}

impl Reader<'_> {
    pub(super) fn expectations(
        &mut self,
        given: &Spanned<Vec<Spanned<RawExpect>>>,
        loads: &[Load],
        steps: &[Step],
    ) -> Vec<Expectation> {
        if given.get_ref().is_empty() {
            self.fault(
                &given.span(),
                "expect: a drill that expects nothing shows nothing",
            );
        }
        given
            .get_ref()
            .iter()
            .filter_map(|raw| self.expectation(raw, loads, steps))
            .collect()
    }

    fn expectation(
        &mut self,
        given: &Spanned<RawExpect>,
        loads: &[Load],
        steps: &[Step],
    ) -> Option<Expectation> {
        let raw = given.get_ref();
        let that = self.that(raw)?;
        for (field, at, owners) in raw.fields() {
            if let Some(at) = at
                && !owners.contains(&that.name())
            {
                self.fault(&at, format!("{field}: does not belong to {}", that.name()));
            }
        }
        let limit = match &raw.limit {
            Some(name) => Some(self.limit_named(name)?),
            None => None,
        };
        let scope = Scope {
            limit,
            regions: self.regions_of("regions", raw.regions.as_ref()),
            from_ms: raw
                .from
                .as_ref()
                .map_or(0, |text| self.milliseconds("from", text)),
            until_ms: raw
                .until
                .as_ref()
                .map_or(self.duration_ms, |text| self.milliseconds("until", text)),
        };
        if scope.from_ms >= scope.until_ms || scope.until_ms > self.duration_ms {
            let at = raw.until.as_ref().or(raw.from.as_ref());
            let at = at.map_or(given.span(), Spanned::span);
            self.fault(&at, "from, until: a stretch of the drill's duration");
        }
        if let Some(why) = self.cannot_be_judged(&that, &scope, loads, steps) {
            self.fault(&raw.that.span(), format!("{}: {why}", that.name()));
        }
        Some(Expectation {
            line: self.line(&given.span()),
            that,
            scope,
        })
    }

    fn that(&mut self, raw: &RawExpect) -> Option<That> {
        let units = raw.units.as_ref().map(|units| *units.get_ref());
        Some(match raw.that.get_ref().as_str() {
            "never-exceeded" => That::NeverExceeded,
            "charged-once" => That::ChargedOnce,
            "same-leader" => That::SameLeader,
            "counters-agree" => That::CountersAgree {
                units: units.unwrap_or(0),
            },
            "overshoot" => That::Overshoot { units },
            "undershoot" => That::Undershoot {
                share: self.share(raw, "at_most", raw.at_most.as_ref())?,
            },
            "answered" => That::Answered {
                share: self.share(raw, "at_least", raw.at_least.as_ref())?,
            },
            "allowed" => That::Allowed {
                share: self.share(raw, "at_least", raw.at_least.as_ref())?,
            },
            "unavailable" => That::Unavailable {
                share: self.share(raw, "at_most", raw.at_most.as_ref())?,
            },
            "degraded" => That::Degraded {
                share: self.share(raw, "at_most", raw.at_most.as_ref())?,
            },
            "latency" => That::Latency {
                percentile: self.percentile(raw),
                within_ms: self.within(raw)?,
            },
            "new-leader" => That::NewLeader {
                within_ms: self.within(raw)?,
            },
            "detected" => That::Detected {
                within_ms: self.within(raw)?,
            },
            "converged" => That::Converged {
                within_ms: self.within(raw)?,
            },
            "healed" => That::Healed {
                within_ms: self.within(raw)?,
            },
            other => {
                let words = WORDS.join(", ");
                self.fault(
                    &raw.that.span(),
                    format!("that: {other:?} is not known; one of {words}"),
                );
                return None;
            }
        })
    }

    /// A percentage in hundredths of a percent.
    fn share(
        &mut self,
        raw: &RawExpect,
        field: &str,
        percent: Option<&Spanned<f64>>,
    ) -> Option<u64> {
        let Some(percent) = percent else {
            self.fault(
                &raw.that.span(),
                format!("{}: say {field}, in percent", raw.that.get_ref()),
            );
            return None;
        };
        let hundredths = percent.get_ref() * 100.0;
        if !(0.0..=10_000.0).contains(&hundredths) {
            self.fault(&percent.span(), format!("{field}: 0 to 100 percent"));
            return None;
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "between 0 and 10000"
        )]
        let share = hundredths.round() as u64;
        Some(share)
    }

    fn percentile(&mut self, raw: &RawExpect) -> u8 {
        let Some(percentile) = &raw.percentile else {
            return 99;
        };
        if !(1..=99).contains(percentile.get_ref()) {
            self.fault(&percentile.span(), "percentile: 1 to 99");
        }
        *percentile.get_ref()
    }

    fn within(&mut self, raw: &RawExpect) -> Option<u64> {
        let Some(text) = &raw.within else {
            self.fault(
                &raw.that.span(),
                format!("{}: say within, as in \"5s\"", raw.that.get_ref()),
            );
            return None;
        };
        Some(self.milliseconds("within", text))
    }

    /// Why the expectation cannot be judged by what this scenario does.
    fn cannot_be_judged(
        &self,
        that: &That,
        scope: &Scope,
        loads: &[Load],
        steps: &[Step],
    ) -> Option<&'static str> {
        let limit = scope.limit.and_then(|at| self.limits.get(at));
        let needs_limit = matches!(
            that,
            That::NeverExceeded
                | That::ChargedOnce
                | That::CountersAgree { .. }
                | That::Overshoot { .. }
                | That::Undershoot { .. }
        );
        // A keyed call is repeated until it is decided, or given up: none ends as a 503.
        let asked = loads
            .iter()
            .filter(|load| scope.limit.is_none_or(|limit| load.limit == limit));
        if matches!(that, That::Unavailable { .. })
            && asked.clone().next().is_some()
            && asked.clone().all(|load| load.is_keyed)
        {
            return Some("calls that are idempotent are repeated until none ends as a 503");
        }
        let Some(limit) = limit else {
            return match that {
                _ if needs_limit => Some("say of which limit"),
                That::NewLeader { .. }
                    if !steps.iter().any(|step| step.action.takes_the_lead()) =>
                {
                    Some("no step takes the lead away")
                }
                That::Detected { .. } if !steps.iter().any(|step| step.action.silences()) => {
                    Some("no step silences a region")
                }
                _ => None,
            };
        };
        let mut asking = loads.iter().filter(|load| Some(load.limit) == scope.limit);
        let has_windows = limit.window().is_some();
        let span_ms = scope.until_ms.saturating_sub(scope.from_ms);
        match that {
            _ if asking.clone().next().is_none() => Some("no load asks for this limit"),
            That::NeverExceeded if limit.mode() != Mode::Strict => Some("the limit is not strict"),
            That::NeverExceeded if !has_windows && limit.bucket().is_none() => {
                Some("is judged of fixed windows and token buckets")
            }
            That::ChargedOnce | That::CountersAgree { .. } if limit.mode() == Mode::Regional => {
                Some("every region counts a regional limit by itself")
            }
            That::ChargedOnce if limit.mode() != Mode::Strict => Some("the limit is not strict"),
            That::Overshoot { .. } | That::Undershoot { .. } | That::CountersAgree { .. }
                if !has_windows =>
            {
                Some("is judged of fixed windows")
            }
            That::Undershoot { .. }
                if limit
                    .window()
                    .is_some_and(|(_, length_ms)| length_ms > span_ms) =>
            {
                Some("no whole window lies in this time")
            }
            That::Overshoot { .. } if limit.mode() != Mode::Approximate => {
                Some("the limit is not approximate")
            }
            That::ChargedOnce if !has_windows => Some("is judged of fixed windows"),
            That::ChargedOnce if !asking.all(|load| load.is_keyed) => {
                Some("all calls of the limit must be idempotent")
            }
            _ => None,
        }
    }
}
