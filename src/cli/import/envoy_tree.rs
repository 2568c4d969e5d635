//! The files of envoyproxy/ratelimit as trees, with the line of everything.

use saphyr::LoadableYamlNode;
use saphyr::MarkedYaml;
use saphyr::Scalar;
use saphyr::YamlData;

/// What is told of one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// The file.
    pub file: String,
    /// The line, from 1.
    pub line: usize,
    /// What differs.
    pub text: String,
}

impl std::fmt::Display for Note {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.text)
    }
}

/// One file.
#[derive(Debug)]
pub struct Root {
    pub domain: String,
    pub descriptors: Vec<Node>,
}

/// One descriptor.
#[derive(Clone, Debug)]
pub struct Node {
    pub file: String,
    pub line: usize,
    pub key: String,
    pub value: Option<String>,
    /// All values that a wildcard matches share one counter.
    pub is_shared: bool,
    pub is_shadow: bool,
    pub rule: Option<Rule>,
    pub children: Vec<Node>,
}

/// A descriptor's limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    pub name: Option<String>,
    /// Units and seconds; `None`: unlimited.
    pub amount: Option<(u64, u64)>,
}

/// Reads a file. `None`: it says nothing that could be taken; the notes say why.
pub fn read(file: &str, text: &str, notes: &mut Vec<Note>) -> Option<Root> {
    let mut reader = Reader { file, notes };
    let documents = match MarkedYaml::load_from_str(text) {
        Ok(documents) => documents,
        Err(error) => {
            reader.note(
                error.marker().line(),
                format!("is not YAML: {}", error.info()),
            );
            return None;
        }
    };
    let [document] = documents.as_slice() else {
        reader.note(1, "must be one document with a domain and descriptors");
        return None;
    };
    reader.root(document)
}

struct Reader<'r> {
    file: &'r str,
    notes: &'r mut Vec<Note>,
}

/// A field's name, its line and its value.
type Field<'n, 'y> = (String, usize, &'n MarkedYaml<'y>);

impl Reader<'_> {
    fn note(&mut self, line: usize, text: impl Into<String>) {
        self.notes.push(Note {
            file: self.file.to_owned(),
            line,
            text: text.into(),
        });
    }

    fn fields<'n, 'y>(&mut self, node: &'n MarkedYaml<'y>, what: &str) -> Vec<Field<'n, 'y>> {
        let YamlData::Mapping(mapping) = &node.data else {
            self.note(line(node), format!("{what} must be a mapping; left out"));
            return Vec::new();
        };
        let mut fields = Vec::new();
        for (name, value) in mapping {
            match self.text(name) {
                Some(text) => fields.push((text, line(name), value)),
                None => self.note(line(name), "a field's name must be a text; left out"),
            }
        }
        fields
    }

    fn items<'n, 'y>(&mut self, node: &'n MarkedYaml<'y>, what: &str) -> &'n [MarkedYaml<'y>] {
        match &node.data {
            YamlData::Sequence(items) => items,
            YamlData::Value(Scalar::Null) => &[],
            _ => {
                self.note(line(node), format!("{what} must be a list; left out"));
                &[]
            }
        }
    }

    /// A text; a number or a truth value is taken for one and told.
    fn text(&mut self, node: &MarkedYaml<'_>) -> Option<String> {
        let (text, kind) = match &node.data {
            YamlData::Value(Scalar::String(text)) => return Some(text.to_string()),
            YamlData::Value(Scalar::Integer(number)) => (number.to_string(), "a number"),
            YamlData::Value(Scalar::Boolean(truth)) => (truth.to_string(), "true or false"),
            _ => return None,
        };
        self.note(
            line(node),
            format!("{text} is {kind}, taken for the text \"{text}\"; quotes would make it one"),
        );
        Some(text)
    }

    fn wanted(&mut self, node: &MarkedYaml<'_>, what: &str) -> Option<String> {
        let text = self.text(node);
        if text.is_none() {
            self.note(line(node), format!("{what} must be a text; left out"));
        }
        text
    }

    fn switch(&mut self, node: &MarkedYaml<'_>, what: &str) -> bool {
        match node.data {
            YamlData::Value(Scalar::Boolean(truth)) => truth,
            _ => {
                self.note(
                    line(node),
                    format!("{what} must be true or false; taken for false"),
                );
                false
            }
        }
    }

    fn root(&mut self, node: &MarkedYaml<'_>) -> Option<Root> {
        let mut domain = None;
        let mut descriptors = Vec::new();
        for (name, at, value) in self.fields(node, "the document") {
            match name.as_str() {
                "domain" => domain = self.wanted(value, "domain"),
                "descriptors" => descriptors = self.nodes(value),
                other => self.note(at, format!("{other}: is unknown here and there; left out")),
            }
        }
        match domain.filter(|domain| !domain.is_empty()) {
            Some(domain) => Some(Root {
                domain,
                descriptors,
            }),
            None => {
                self.note(1, "there is no domain, so no tenant; the file is left out");
                None
            }
        }
    }

    fn nodes(&mut self, list: &MarkedYaml<'_>) -> Vec<Node> {
        let items = self.items(list, "descriptors");
        items.iter().filter_map(|item| self.node(item)).collect()
    }

    fn node(&mut self, item: &MarkedYaml<'_>) -> Option<Node> {
        let at = line(item);
        let mut key = None;
        let mut node = Node {
            file: self.file.to_owned(),
            line: at,
            key: String::new(),
            value: None,
            is_shared: false,
            is_shadow: false,
            rule: None,
            children: Vec::new(),
        };
        for (name, at, value) in self.fields(item, "a descriptor") {
            match name.as_str() {
                "key" => key = self.wanted(value, "key"),
                "value" => node.value = self.wanted(value, "value").filter(|text| !text.is_empty()),
                "rate_limit" => node.rule = self.rule(value),
                "descriptors" => node.children = self.nodes(value),
                "shadow_mode" => node.is_shadow = self.switch(value, "shadow_mode"),
                "share_threshold" => node.is_shared = self.switch(value, "share_threshold"),
                "quota_mode" if self.switch(value, "quota_mode") => self.note(
                    at,
                    "quota_mode: has no equivalent; there a call is refused when all of these are over, here when one is",
                ),
                "quota_mode" => {}
                "detailed_metric" | "value_to_metric" if self.switch(value, &name) => self.note(
                    at,
                    format!("{name}: has no equivalent; metrics are by limit, values are never labels"),
                ),
                "detailed_metric" | "value_to_metric" => {}
                other => self.note(at, format!("{other}: is unknown here and there; left out")),
            }
        }
        match key.filter(|key| !key.is_empty()) {
            Some(key) => Some(Node { key, ..node }),
            None => {
                self.note(at, "the descriptor has no key; left out with all below it");
                None
            }
        }
    }

    fn rule(&mut self, node: &MarkedYaml<'_>) -> Option<Rule> {
        let at = line(node);
        // Left out it is 0 there: always refused.
        let (mut units, mut unit, mut times) = (Some(0), None, Some(1));
        let (mut name, mut is_unlimited) = (None, false);
        for (field, at, value) in self.fields(node, "rate_limit") {
            match field.as_str() {
                "requests_per_unit" => units = self.number(value, &field, 0),
                "unit_multiplier" => times = self.number(value, &field, 1),
                "unit" => {
                    let text = self.wanted(value, "unit")?;
                    unit = seconds(&text);
                    if unit.is_none() {
                        self.note(
                            at,
                            format!("unit: {text} is no unit of time; the limit is left out"),
                        );
                    }
                }
                "unlimited" => is_unlimited = self.switch(value, "unlimited"),
                "name" => name = self.wanted(value, "name"),
                "replaces" => {
                    if !self.items(value, "replaces").is_empty() {
                        self.note(
                            at,
                            "replaces: has no equivalent; there this limit takes the place of the named ones in the same call, here all hold",
                        );
                    }
                }
                other => self.note(at, format!("{other}: is unknown here and there; left out")),
            }
        }
        if is_unlimited {
            return Some(Rule { name, amount: None });
        }
        let Some(unit) = unit else {
            self.note(at, "the limit has no unit; it is left out");
            return None;
        };
        // What is wrong with a number was told where it stands.
        Some(Rule {
            name,
            amount: Some((units?, unit.saturating_mul(times?))),
        })
    }

    fn number(&mut self, node: &MarkedYaml<'_>, what: &str, least: u64) -> Option<u64> {
        let number = match node.data {
            YamlData::Value(Scalar::Integer(number)) => u32::try_from(number).ok().map(u64::from),
            _ => None,
        };
        let number = number.filter(|number| *number >= least);
        if number.is_none() {
            self.note(
                line(node),
                format!("{what}: must be a whole number from {least} on; the limit is left out"),
            );
        }
        number
    }
}

fn line(node: &MarkedYaml<'_>) -> usize {
    node.span.start.line()
}

/// A month has 30 days there, a year 365.
fn seconds(unit: &str) -> Option<u64> {
    const DAY: u64 = 86_400;
    Some(match unit.to_ascii_lowercase().as_str() {
        "second" => 1,
        "minute" => 60,
        "hour" => 3_600,
        "day" => DAY,
        "week" => 7 * DAY,
        "month" => 30 * DAY,
        "year" => 365 * DAY,
        _ => return None,
    })
}
