//! The files of envoyproxy/ratelimit as trees, with the line of everything.

use saphyr::MarkedYaml;
use saphyr::ScalarStyle;
use saphyr::ScanError;
use saphyr::YamlData;
use saphyr::YamlLoader;
use saphyr_parser::Parser;

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
    let documents = match documents(text) {
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

/// The documents of a file, scalars as they are written: `1.10` and `010` are other texts than the numbers that they mean.
fn documents(text: &str) -> Result<Vec<MarkedYaml<'_>>, ScanError> {
    let mut loader = YamlLoader::default();
    loader.early_parse(false);
    Parser::new_from_str(text).load(&mut loader, true)?;
    match loader.error() {
        Some(error) => Err(error.clone()),
        None => Ok(loader.into_documents()),
    }
}

/// A scalar as it is written; `None`: it is none, or nothing is written.
fn scalar<'n>(node: &'n MarkedYaml<'_>) -> Option<&'n str> {
    match &node.data {
        YamlData::Representation(text, ScalarStyle::Plain, None) => {
            Some(text.as_ref()).filter(|text| !matches!(*text, "" | "~" | "null" | "Null" | "NULL"))
        }
        YamlData::Representation(text, _, _) => Some(text.as_ref()),
        _ => None,
    }
}

fn is_nothing(node: &MarkedYaml<'_>) -> bool {
    matches!(node.data, YamlData::Representation(..)) && scalar(node).is_none()
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
            match scalar(name) {
                Some("<<") => self.note(
                    line(name),
                    "<<: is not followed; what it brings in is left out, write it out instead",
                ),
                Some(text) => fields.push((text.to_owned(), line(name), value)),
                None => self.note(line(name), "a field's name must be a text; left out"),
            }
        }
        fields
    }

    fn items<'n, 'y>(&mut self, node: &'n MarkedYaml<'y>, what: &str) -> &'n [MarkedYaml<'y>] {
        match &node.data {
            YamlData::Sequence(items) => items,
            _ if is_nothing(node) => &[],
            _ => {
                self.note(line(node), format!("{what} must be a list; left out"));
                &[]
            }
        }
    }

    /// A text. Nothing is an empty one, as it is there.
    fn wanted(&mut self, node: &MarkedYaml<'_>, what: &str) -> Option<String> {
        if is_nothing(node) {
            return Some(String::new());
        }
        let text = scalar(node).map(str::to_owned);
        if text.is_none() {
            self.note(line(node), format!("{what} must be a text; left out"));
        }
        text
    }

    fn switch(&mut self, node: &MarkedYaml<'_>, what: &str) -> bool {
        match scalar(node).map(str::to_ascii_lowercase).as_deref() {
            Some("true" | "yes" | "on") => true,
            Some("false" | "no" | "off") => false,
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
        let (mut key, mut is_readable) = (None, true);
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
                "value" => match self.wanted(value, "value") {
                    Some(text) => node.value = Some(text).filter(|text| !text.is_empty()),
                    // Without it the limit would hold for every value.
                    None => is_readable = false,
                },
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
        if !is_readable {
            self.note(at, "the descriptor is left out with all below it");
            return None;
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
        let mut is_counted = false;
        let (mut name, mut is_unlimited) = (None, false);
        for (field, at, value) in self.fields(node, "rate_limit") {
            match field.as_str() {
                "requests_per_unit" => {
                    units = self.number(value, &field, 0);
                    is_counted = true;
                }
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
            if is_counted || unit.is_some() {
                self.note(
                    at,
                    "unlimited beside a unit or a number is refused there; taken for unlimited",
                );
            }
            return Some(Rule { name, amount: None });
        }
        if !is_counted {
            self.note(
                at,
                "requests_per_unit is missing, which is 0 there and here: all is refused",
            );
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
        // With a zero in front it is octal there, and others write numbers in other ways.
        let digits = scalar(node).filter(|text| {
            text.bytes().all(|byte| byte.is_ascii_digit())
                && (*text == "0" || !text.starts_with('0'))
        });
        let number = digits.and_then(|text| text.parse::<u32>().ok());
        let number = number.map(u64::from).filter(|number| *number >= least);
        if number.is_none() {
            self.note(
                line(node),
                format!(
                    "{what}: must be a plain whole number from {least} on; the limit is left out"
                ),
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
