//! The configuration of envoyproxy/ratelimit as a catalogue file: a tenant for each domain, a limit for each rule.
//!
//! What differs is told line by line, and nothing is guessed in silence. One thing is translated though it is not
//! written down there: a descriptor hides less specific ones beside it with all below them, also where it says
//! nothing itself ("effectively whitelisted"). Here every limit stands for itself, so what was hidden is
//! written as a limit that is unlimited.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::fmt::Write;

use serde_json::Value;

use crate::catalogue::descriptor;
use crate::catalogue::descriptor::Entry;
use crate::catalogue::intern::LIMIT_NAMES_MAX;
use crate::domain::duration;
use crate::domain::name::is_limit_name;
use crate::domain::name::is_tenant_name;
use crate::domain::time::Span;
use crate::region::config::document::quote_key;

use super::envoy_tree;
use super::envoy_tree::Node;
use super::envoy_tree::Note;
use super::envoy_tree::Rule;

/// The longest window: a hundred years.
const WINDOW_MAX: Span = Span::from_seconds(36_525 * 86_400);
/// The longest part of a name that is made from a path.
const NAME_BYTES_MAX: usize = 48;
/// The longest label of a limit's key.
const LABEL_BYTES_MAX: usize = 64;

/// A catalogue file, and what in it is not as it was.
#[derive(Debug)]
pub struct Translated {
    /// The file.
    pub toml: String,
    /// What differs, in the order of files and lines.
    pub notes: Vec<Note>,
}

/// One entry of a path, with what is counted apart.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Part {
    key: String,
    value: Option<String>,
    is_shared: bool,
}

/// A rule at the end of its path.
#[derive(Debug)]
struct Limit<'n> {
    node: &'n Node,
    path: Vec<Part>,
    /// `None`: nothing limits these calls there.
    rule: Option<&'n Rule>,
}

/// Translates files (name, text).
///
/// # Errors
/// When no file holds a domain.
pub fn translate(files: &[(String, String)]) -> anyhow::Result<Translated> {
    let mut notes = Vec::new();
    let mut domains: BTreeMap<String, Vec<Node>> = BTreeMap::new();
    for (name, text) in files {
        if let Some(root) = envoy_tree::read(name, text, &mut notes) {
            if domains.contains_key(&root.domain) {
                let domain = &root.domain;
                notes.push(Note {
                    file: name.clone(),
                    line: 1,
                    text: format!("domain {domain:?} stands in another file too, which is refused there unless files are merged; merged"),
                });
            }
            domains
                .entry(root.domain)
                .or_default()
                .extend(root.descriptors);
        }
    }
    if domains.is_empty() {
        let notes: Vec<String> = notes.iter().map(ToString::to_string).collect();
        anyhow::bail!("no file holds a domain\n{}", notes.join("\n"));
    }
    let mut tenants = String::new();
    let mut names = BTreeSet::new();
    for (domain, nodes) in &domains {
        let mut limits = Vec::new();
        collect(&[], nodes, &mut limits, &mut notes);
        names.extend(write_tenant(domain, &limits, &mut tenants, &mut notes));
    }
    if names.len() > LIMIT_NAMES_MAX {
        notes.push(Note {
            file: files.first().map_or_else(String::new, |(name, _)| name.clone()),
            line: 1,
            text: format!(
                "these are {} limits of different names, and a catalogue has at most {LIMIT_NAMES_MAX}; apply will refuse the file",
                names.len()
            ),
        });
    }
    notes.sort_by(|a, b| (&a.file, a.line).cmp(&(&b.file, b.line)));
    let mut toml = HEAD.to_owned();
    if !notes.is_empty() {
        toml.push_str("#\n# What differs, by file and line:\n");
    }
    for note in &notes {
        // One line each, whatever stood in a name.
        let text = note.to_string().replace(char::is_control, " ");
        let _ = writeln!(toml, "#   {text}");
    }
    toml.push_str(&tenants);
    Ok(Translated { toml, notes })
}

const HEAD: &str = "\
# From the configuration of envoyproxy/ratelimit. Each domain is a tenant; apply it with `highwater apply -f FILE`.
#
# What is another way for all of them: a refused call is not counted here. Each region counts alone unless a limit says
# mode = \"approximate\" or \"strict\". Windows are aligned alike; a month has 30 days, a year 365.
";

fn part(node: &Node) -> Part {
    Part {
        key: node.key.clone(),
        value: node.value.clone(),
        is_shared: node.is_shared && is_wildcard(node),
    }
}

fn is_wildcard(node: &Node) -> bool {
    node.value.as_ref().is_some_and(|value| value.contains('*'))
}

/// All rules at and below `siblings`, and what these hide of each other.
fn collect<'n>(
    prefix: &[Part],
    siblings: &'n [Node],
    limits: &mut Vec<Limit<'n>>,
    notes: &mut Vec<Note>,
) {
    let mut note = |node: &Node, text: String| {
        notes.push(Note {
            file: node.file.clone(),
            line: node.line,
            text,
        });
    };
    let mut seen: Vec<&Node> = Vec::new();
    for node in siblings {
        if seen
            .iter()
            .any(|known| (&known.key, &known.value) == (&node.key, &node.value))
        {
            note(
                node,
                format!(
                    "{} stands twice, which is refused there; left out",
                    shown(node)
                ),
            );
            continue;
        }
        if node.is_shared && !is_wildcard(node) {
            note(
                node,
                "share_threshold: only wildcards can share; it says nothing here and there"
                    .to_owned(),
            );
        }
        for earlier in seen
            .iter()
            .filter(|earlier| is_wildcard(earlier) && is_wildcard(node) && earlier.key == node.key)
        {
            if letters(earlier) < letters(node) {
                note(
                    node,
                    format!(
                        "a value that {} matches too is limited by that one there, because it stands first, and by \
                         this one here, because it has more letters",
                        shown(earlier)
                    ),
                );
            }
        }
        seen.push(node);
    }
    for node in &seen {
        let mut path = prefix.to_vec();
        path.push(part(node));
        let own: BTreeSet<Vec<(String, Option<String>)>> = rules_of(node)
            .into_iter()
            .map(|(path, _)| bare(&path))
            .collect();
        if let Some(rule) = &node.rule {
            limits.push(Limit {
                node,
                path: path.clone(),
                rule: Some(rule),
            });
        }
        let mut freed = BTreeSet::new();
        for less in seen.iter().filter(|less| hides(node, less)) {
            for (below, rule) in rules_of(less) {
                let limits_something = rule.amount.is_some();
                let free = bare(&below);
                if limits_something && !own.contains(&free) && freed.insert(free) {
                    let path = path.iter().cloned().chain(below).collect();
                    limits.push(Limit {
                        node,
                        path,
                        rule: None,
                    });
                }
            }
        }
        collect(&path, &node.children, limits, notes);
    }
}

/// Rules at and below a node, by the path from it.
fn rules_of(node: &Node) -> Vec<(Vec<Part>, &Rule)> {
    let own = node.rule.iter().map(|rule| (Vec::new(), rule));
    let below = node.children.iter().flat_map(|child| {
        rules_of(child).into_iter().map(|(path, rule)| {
            let path = std::iter::once(part(child)).chain(path).collect();
            (path, rule)
        })
    });
    own.chain(below).collect()
}

fn bare(path: &[Part]) -> Vec<(String, Option<String>)> {
    path.iter()
        .map(|part| (part.key.clone(), part.value.clone()))
        .collect()
}

/// Whether `node` is taken for some values that `less` would match too.
fn hides(node: &Node, less: &Node) -> bool {
    let (Some(value), true) = (&node.value, node.key == less.key) else {
        return false;
    };
    match &less.value {
        None => true,
        Some(pattern) => {
            !value.contains('*') && pattern.contains('*') && descriptor::is_like(pattern, value)
        }
    }
}

fn letters(node: &Node) -> usize {
    let value = node.value.as_deref().unwrap_or_default();
    value.len() - value.matches('*').count()
}

fn shown(node: &Node) -> String {
    match &node.value {
        Some(value) => format!("{}={value}", node.key),
        None => node.key.clone(),
    }
}

/// Writes a tenant; the names of its limits.
fn write_tenant(
    domain: &str,
    limits: &[Limit<'_>],
    toml: &mut String,
    notes: &mut Vec<Note>,
) -> BTreeSet<String> {
    let first = limits.first().map(|limit| limit.node);
    if !is_tenant_name(domain) {
        notes.push(Note {
            file: first.map_or_else(String::new, |node| node.file.clone()),
            line: 1,
            text: format!("domain {domain:?} cannot be a tenant's name; its limits are left out"),
        });
        return BTreeSet::new();
    }
    // Writing to a text cannot fail.
    let _ = write!(toml, "\n[tenants.{}.limits]\n", quote_key(domain));
    let mut names = BTreeSet::new();
    for limit in limits {
        let mut told: Vec<String> = Vec::new();
        let fields = fields(limit, &mut told);
        let name = name(limit, &mut names, &mut told);
        for text in told {
            notes.push(Note {
                file: limit.node.file.clone(),
                line: limit.node.line,
                text,
            });
        }
        if let Some(fields) = fields {
            if limit.rule.is_none() {
                let _ = writeln!(
                    toml,
                    "# line {}: nothing limits these calls there",
                    limit.node.line
                );
            }
            let _ = writeln!(toml, "{name} = {{ {fields} }}");
        }
    }
    names
}

/// The limit's fields, or nothing when it cannot be.
fn fields(limit: &Limit<'_>, told: &mut Vec<String>) -> Option<String> {
    let (matches, key) = match matching(&limit.path) {
        Ok(found) => found,
        Err(message) => {
            told.push(format!("{message}; the limit is left out"));
            return None;
        }
    };
    let mut fields = Vec::new();
    match limit.rule.and_then(|rule| rule.amount) {
        None => fields.push("unlimited = true".to_owned()),
        Some((units, seconds)) => {
            let window = Span::from_seconds(seconds);
            if window > WINDOW_MAX {
                told.push(format!(
                    "the window is longer than {WINDOW_MAX}; the limit is left out"
                ));
                return None;
            }
            fields.push(format!(
                "algorithm = \"fixed_window\", quota = {units}, window = \"{}\"",
                duration::format(window)
            ));
        }
    }
    let list: Vec<String> = matches.iter().map(|text| quoted(text)).collect();
    fields.push(format!("match = [{}]", list.join(", ")));
    if let Some(key) = key {
        fields.push(format!("key = {}", quoted(&key)));
    }
    if limit.rule.is_some() && limit.node.is_shadow {
        fields.push("enforce = false".to_owned());
    }
    Some(fields.join(", "))
}

fn quoted(text: &str) -> String {
    // A JSON string is a TOML basic string.
    Value::from(text).to_string()
}

/// The entries of a path as `match` has them, and the key that counts apart what is counted apart there.
fn matching(path: &[Part]) -> Result<(Vec<String>, Option<String>), String> {
    if path.len() > descriptor::ENTRIES_MAX {
        return Err(format!("is deeper than {}", descriptor::ENTRIES_MAX));
    }
    let mut matches = Vec::new();
    let (mut apart, mut together, mut bare): (Vec<&str>, Vec<&str>, Vec<&str>) = Default::default();
    for part in path {
        if part.key.contains(['=', '*']) {
            return Err(format!("key {:?} has a = or a *", part.key));
        }
        let text = match &part.value {
            Some(value) => format!("{}={value}", part.key),
            None => part.key.clone(),
        };
        Entry::parse(&text).map_err(|message| format!("{text:?} {message}"))?;
        matches.push(text);
        let list = match &part.value {
            None => &mut bare,
            Some(value) if !value.contains('*') => continue,
            Some(_) if part.is_shared => &mut together,
            Some(_) => &mut apart,
        };
        if !list.contains(&part.key.as_str()) {
            list.push(&part.key);
        }
    }
    if let Some(key) = apart.iter().find(|key| together.contains(key)) {
        return Err(format!(
            "one wildcard of {key} is shared and another is not, which cannot be told apart"
        ));
    }
    if let Some(key) = apart.iter().find(|key| key.contains(',')) {
        return Err(format!(
            "the wildcards of {key} cannot be counted apart, its name has a comma"
        ));
    }
    if apart.is_empty() && bare.is_empty() {
        return Ok((matches, None));
    }
    let fits = |label: &String| {
        label.len() <= LABEL_BYTES_MAX && !label.split(',').any(|name| together.contains(&name))
    };
    // Bare keys are counted apart whatever the key is called; their names are there for people.
    let all = apart
        .iter()
        .chain(bare.iter().filter(|key| !apart.contains(key)));
    let all: Vec<&str> = all.copied().collect();
    let labels = [all.join(","), apart.join(","), "value".to_owned()];
    let needs = |label: &String| {
        apart.is_empty()
            || apart
                .iter()
                .all(|key| label.split(',').any(|name| name == *key))
    };
    labels
        .into_iter()
        .find(|label| !label.is_empty() && fits(label) && needs(label))
        .map(|label| (matches, Some(label)))
        .ok_or_else(|| "its keys have names that are too long together".to_owned())
}

/// A name that no other limit of the tenant has: the rule's own, or one made from its path.
fn name(limit: &Limit<'_>, taken: &mut BTreeSet<String>, told: &mut Vec<String>) -> String {
    let own = limit.rule.and_then(|rule| rule.name.as_deref());
    let mut from_path = Vec::new();
    for part in &limit.path {
        from_path.push(part.key.as_str());
        from_path.extend(part.value.as_deref());
    }
    if limit.rule.is_none() {
        from_path.push("free");
    }
    let wanted = own.map_or_else(|| slug(&from_path.join("-")), slug);
    let mut name = wanted.clone();
    let mut number = 2;
    while !taken.insert(name.clone()) {
        name = format!("{wanted}-{number}");
        number += 1;
    }
    if let Some(own) = own.filter(|own| *own != name) {
        told.push(format!("the limit {own:?} is called {name} here"));
    }
    name
}

fn slug(text: &str) -> String {
    if is_limit_name(text) && text.len() <= NAME_BYTES_MAX {
        return text.to_owned();
    }
    let mut slug = String::new();
    for character in text.to_lowercase().chars() {
        match character {
            'a'..='z' | '0'..='9' | '_' => slug.push(character),
            '*' if slug.is_empty() || slug.ends_with('-') => slug.push_str("any-"),
            '*' => slug.push_str("-any-"),
            _ if slug.is_empty() || slug.ends_with('-') => {}
            _ => slug.push('-'),
        }
        if slug.len() >= NAME_BYTES_MAX {
            break;
        }
    }
    let slug = slug.trim_matches(['-', '_']).to_owned();
    if slug.is_empty() {
        "limit".to_owned()
    } else {
        slug
    }
}
