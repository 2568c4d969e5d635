//! Loads of a scenario file.

use serde::Deserialize;
use toml::Spanned;

use crate::domain::limit::Rule;

use super::super::COST_MAX;
use super::super::KEYS_MAX;
use super::super::Load;
use super::super::RATE_MAX;
use super::super::Shape;
use super::Reader;
use super::Text;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawLoad {
    limit: Text,
    tenant: Option<Text>,
    regions: Option<Vec<Text>>,
    rate: Spanned<u64>,
    shape: Option<Text>,
    keys: Option<Spanned<u32>>,
    cost: Option<Spanned<RawCost>>,
    #[serde(default)]
    idempotent: bool,
    from: Option<Text>,
    until: Option<Text>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(untagged)]
enum RawCost {
    One(u64),
    Between([u64; 2]),
}

impl Reader<'_> {
    pub(super) fn loads(&mut self, given: &Spanned<Vec<Spanned<RawLoad>>>) -> Vec<Load> {
        if given.get_ref().is_empty() {
            self.fault(&given.span(), "load: a drill without callers shows nothing");
        }
        given
            .get_ref()
            .iter()
            .filter_map(|raw| self.load(raw.get_ref()))
            .collect()
    }

    fn load(&mut self, raw: &RawLoad) -> Option<Load> {
        let limit = self.limit_named(&raw.limit);
        if raw.regions.as_ref().is_some_and(Vec::is_empty) {
            self.fault(
                &raw.limit.span(),
                "load.regions: name some, or leave it out for all",
            );
        }
        let regions = match &raw.regions {
            None => (0..self.regions.len()).collect(),
            some => self.regions_of("load.regions", some.as_ref()),
        };
        let rate = *raw.rate.get_ref();
        if !(1..=RATE_MAX).contains(&rate) {
            self.fault(
                &raw.rate.span(),
                format!("rate: 1 to {RATE_MAX} calls a second in each region"),
            );
        }
        let shape = raw
            .shape
            .as_ref()
            .map_or(Shape::Steady, |text| self.shape(text));
        let span_ms = self.span(raw);
        let keys = raw.keys.as_ref().map_or(1, |keys| *keys.get_ref());
        let cost = raw
            .cost
            .as_ref()
            .map_or(RawCost::One(1), |cost| *cost.get_ref());
        let cost = match cost {
            RawCost::One(cost) => (cost, cost),
            RawCost::Between([from, to]) => (from, to),
        };
        if cost.0 == 0 || cost.1 < cost.0 || cost.1 > COST_MAX {
            let at = raw.cost.as_ref().map_or(raw.limit.span(), Spanned::span);
            self.fault(
                &at,
                format!("cost: one number from 1 to {COST_MAX}, or two, from and to"),
            );
        }
        let limit = limit?;
        self.fits(raw, limit, keys);
        Some(Load {
            tenant: self.tenant(raw),
            limit,
            regions,
            rate,
            shape,
            keys,
            cost,
            is_keyed: raw.idempotent,
            span_ms,
        })
    }

    /// Whether callers can ask for so many keys of the limit.
    fn fits(&mut self, raw: &RawLoad, limit: usize, keys: u32) {
        let Some(asked) = self.limits.get(limit) else {
            return;
        };
        let has_key = asked.has_key();
        let is_leased = matches!(asked.limit.rule, Rule::Concurrency { .. });
        let at = raw.keys.as_ref().map_or(raw.limit.span(), Spanned::span);
        if keys == 0 || keys > KEYS_MAX {
            self.fault(&at, format!("keys: 1 to {KEYS_MAX}"));
        }
        if keys > 1 && !has_key {
            self.fault(
                &at,
                format!(
                    "keys: the limit {} has no key, so there is one counter",
                    raw.limit.get_ref()
                ),
            );
        }
        if is_leased {
            self.fault(
                &raw.limit.span(),
                "limit: drills ask by checks, and a concurrency limit is taken by holds",
            );
        }
    }

    fn shape(&mut self, text: &Text) -> Shape {
        match text.get_ref().as_str() {
            "steady" => Shape::Steady,
            "bursty" => Shape::Bursty,
            "poisson" => Shape::Poisson,
            _ => {
                self.fault(&text.span(), "shape: one of steady, bursty, poisson");
                Shape::Steady
            }
        }
    }

    fn tenant(&mut self, raw: &RawLoad) -> String {
        let Some(tenant) = &raw.tenant else {
            return "a".to_owned();
        };
        let is_word = !tenant.get_ref().is_empty()
            && tenant.get_ref().len() <= 32
            && tenant
                .get_ref()
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        if !is_word {
            self.fault(
                &tenant.span(),
                "tenant: a word of up to 32 letters, digits and hyphens; the drill makes a tenant of its own of it",
            );
        }
        tenant.get_ref().clone()
    }

    fn span(&mut self, raw: &RawLoad) -> (u64, u64) {
        let from = raw
            .from
            .as_ref()
            .map_or(0, |text| self.milliseconds("from", text));
        let until = raw
            .until
            .as_ref()
            .map_or(self.duration_ms, |text| self.milliseconds("until", text));
        if let Some(text) = raw.until.as_ref().or(raw.from.as_ref())
            && (until > self.duration_ms || from >= until)
        {
            self.fault(
                &text.span(),
                "from, until: a stretch of the drill's duration",
            );
        }
        (from, until.min(self.duration_ms))
    }
}
