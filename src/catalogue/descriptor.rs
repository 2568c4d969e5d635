//! Which limits a gateway's descriptor selects: the field `match` of a limit.
//!
//! A descriptor is a list of (key, value) entries, as Envoy's rate limit service is told. A limit with `match` is
//! selected by a descriptor of as many entries, one after the other:
//!
//! | entry of `match` | matches | counted |
//! |---|---|---|
//! | `key=value` | this value | |
//! | `key=pre*fix` | values like this; `*` stands for any text, also none | apart when the limit's `key` names it, else together |
//! | `key` | any value | apart |
//!
//! The most specific match wins, judged entry by entry from the first: a value beats a wildcard, a wildcard with
//! more letters one with fewer, any wildcard a key alone. Limits whose `match` is the same are selected together.
//!
//! The values that are counted apart make the counter's key, joined by commas. A comma (where there are several)
//! and a backslash inside a value stand behind a backslash, an empty value is `\0`, and what would be longer than
//! a key may be is cut and told apart by its digest: no two lists of values share a key.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt::Write;

use compact_str::CompactString;
use sha2::Digest;
use sha2::Sha256;
use smallvec::SmallVec;

use crate::domain::name::KEY_BYTES_MAX;

/// Most entries of a descriptor, and of a limit's `match`.
pub const ENTRIES_MAX: usize = 16;
/// The longest entry of a `match`, in bytes.
pub const ENTRY_BYTES_MAX: usize = 512;
/// What stays of a key that is too long; its digest and a mark follow.
const KEPT_BYTES: usize = 400;

/// One entry of a `match`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The descriptor's key.
    pub key: CompactString,
    /// The values that it matches.
    pub value: Value,
}

/// The values that an entry matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// This one.
    Is(CompactString),
    /// Those like this, where `*` stands for any text.
    Like(CompactString),
    /// All.
    Any,
}

impl Entry {
    /// Reads one entry of a `match`.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        if text.len() > ENTRY_BYTES_MAX {
            return Err("is longer than 512 bytes");
        }
        if text.chars().any(char::is_control) {
            return Err("has a control character");
        }
        let (key, value) = match text.split_once('=') {
            None => (text, Value::Any),
            Some((key, value)) if value.contains('*') => (key, Value::Like(value.into())),
            Some((key, value)) => (key, Value::Is(value.into())),
        };
        if key.is_empty() {
            return Err("has no key; write key=value, key=prefix* or key");
        }
        if key.contains('*') {
            return Err("has a * in its key; only a value can have one");
        }
        Ok(Self {
            key: key.into(),
            value,
        })
    }
}

/// The places of a `match` whose values are counted apart, by the limit's own `key`.
///
/// # Errors
/// When the limit has a `key` and nothing is counted apart, or the other way round.
pub fn counted(entries: &[Entry], key: Option<&str>) -> Result<Box<[usize]>, String> {
    let named = |entry: &Entry| key.is_some_and(|key| key.split(',').any(|part| part == entry.key));
    let places: Box<[usize]> = entries
        .iter()
        .enumerate()
        .filter(|(_, entry)| match entry.value {
            Value::Is(_) => false,
            Value::Like(_) => named(entry),
            Value::Any => true,
        })
        .map(|(place, _)| place)
        .collect();
    match (key, places.is_empty()) {
        (Some(_), true) => {
            let wildcards: Vec<&str> = entries
                .iter()
                .filter(|entry| matches!(entry.value, Value::Like(_)))
                .map(|entry| entry.key.as_str())
                .collect();
            Err(match wildcards.as_slice() {
                [] => "counts nothing apart, so the limit can have no key; write an entry without a value, or leave \
                       the key out"
                    .to_owned(),
                keys => format!(
                    "counts its wildcards together unless the key names them; write key = \"{}\", or leave the key out",
                    keys.join(",")
                ),
            })
        }
        (None, false) => {
            let keys: Vec<&str> = places
                .iter()
                .filter_map(|place| entries.get(*place))
                .map(|entry| entry.key.as_str())
                .collect();
            Err(format!(
                "counts each value apart, so the limit needs a key, as in \"{}\"",
                keys.join(",")
            ))
        }
        _ => Ok(places),
    }
}

/// The counter's key: the values at `places` of a descriptor. Empty when there are none.
pub fn key<'d>(descriptor: &[(&'d str, &'d str)], places: &[usize]) -> Cow<'d, str> {
    let value = |place: &usize| descriptor.get(*place).map_or("", |(_, value)| *value);
    match places {
        [] => Cow::Borrowed(""),
        // Nearly every value is its own key.
        [place] if is_plain(value(place)) => Cow::Borrowed(value(place)),
        places => Cow::Owned(joined(places.iter().map(value), places.len() > 1)),
    }
}

fn is_plain(value: &str) -> bool {
    (1..=KEY_BYTES_MAX).contains(&value.len()) && !value.contains('\\')
}

fn joined<'v>(values: impl Iterator<Item = &'v str>, several: bool) -> String {
    let mut key = String::new();
    for (place, value) in values.enumerate() {
        if place > 0 {
            key.push(',');
        }
        if value.is_empty() {
            key.push_str("\\0");
        }
        for character in value.chars() {
            if character == '\\' || (several && character == ',') {
                key.push('\\');
            }
            key.push(character);
        }
    }
    bounded(key)
}

/// The key of the counter that a limit of the call's own, per `unit`, has beside that of `key`.
pub fn key_per_unit(key: &str, unit: &str) -> String {
    // No value has this mark: a backslash inside one is doubled.
    bounded(format!("{key}\\@{unit}"))
}

fn bounded(mut key: String) -> String {
    if key.len() > KEY_BYTES_MAX {
        let digest = Sha256::digest(key.as_bytes());
        let mut kept = KEPT_BYTES;
        while !key.is_char_boundary(kept) {
            kept -= 1;
        }
        key.truncate(kept);
        key.push_str("\\#");
        for byte in digest {
            // Writing to a text cannot fail.
            let _ = write!(key, "{byte:02x}");
        }
    }
    key
}

/// Whether `text` is like `pattern`, where `*` stands for any text, also none.
pub fn is_like(pattern: &str, text: &str) -> bool {
    let Some((prefix, rest)) = pattern.split_once('*') else {
        return pattern == text;
    };
    let (middle, suffix) = rest.rsplit_once('*').unwrap_or(("", rest));
    let Some(mut text) = text
        .strip_prefix(prefix)
        .and_then(|text| text.strip_suffix(suffix))
    else {
        return false;
    };
    for part in middle.split('*').filter(|part| !part.is_empty()) {
        match text.find(part) {
            Some(at) => text = text.get(at + part.len()..).unwrap_or_default(),
            None => return false,
        }
    }
    true
}

/// What wildcards are tried in: the most specific first.
fn rank(pattern: &str) -> (Reverse<usize>, Reverse<usize>, &str) {
    let letters = pattern.len() - pattern.matches('*').count();
    let prefix = pattern.find('*').unwrap_or(pattern.len());
    (Reverse(letters), Reverse(prefix), pattern)
}

/// Things by the descriptors that select them.
#[derive(Clone, Debug, PartialEq)]
pub struct Index<T> {
    root: Node<T>,
}

#[derive(Clone, Debug, PartialEq)]
struct Node<T> {
    /// What a descriptor selects that ends here.
    items: Vec<T>,
    keys: BTreeMap<CompactString, Branches<T>>,
}

#[derive(Clone, Debug, PartialEq)]
struct Branches<T> {
    values: BTreeMap<CompactString, Node<T>>,
    /// In the order in which they are tried.
    wildcards: Vec<(CompactString, Node<T>)>,
    any: Option<Box<Node<T>>>,
}

impl<T> Default for Index<T> {
    fn default() -> Self {
        Self {
            root: Node::default(),
        }
    }
}

impl<T> Default for Node<T> {
    fn default() -> Self {
        Self {
            items: Vec::new(),
            keys: BTreeMap::new(),
        }
    }
}

impl<T> Default for Branches<T> {
    fn default() -> Self {
        Self {
            values: BTreeMap::new(),
            wildcards: Vec::new(),
            any: None,
        }
    }
}

impl<T> Index<T> {
    /// Adds what descriptors that match `entries` select.
    pub fn insert(&mut self, entries: &[Entry], item: T) {
        let mut node = &mut self.root;
        for entry in entries {
            let branches = node.keys.entry(entry.key.clone()).or_default();
            node = match &entry.value {
                Value::Is(value) => branches.values.entry(value.clone()).or_default(),
                Value::Like(pattern) => branches.wildcard(pattern),
                Value::Any => branches.any.get_or_insert_default(),
            };
        }
        node.items.push(item);
    }

    /// What `descriptor` selects: the most specific match, in the order of insertion. Empty: nothing.
    pub fn find(&self, descriptor: &[(&str, &str)]) -> &[T] {
        self.root.find(descriptor).unwrap_or_default()
    }

    /// Whether no descriptor selects anything.
    pub fn is_empty(&self) -> bool {
        self.root.items.is_empty() && self.root.keys.is_empty()
    }
}

impl<T> Node<T> {
    /// Each node is visited at most once, so a look-up ends after as many steps as there are nodes.
    fn find(&self, descriptor: &[(&str, &str)]) -> Option<&[T]> {
        let Some(((key, value), rest)) = descriptor.split_first() else {
            return (!self.items.is_empty()).then_some(self.items.as_slice());
        };
        let branches = self.keys.get(*key)?;
        let exact = branches.values.get(*value);
        if let Some(found) = exact.and_then(|node| node.find(rest)) {
            return Some(found);
        }
        let like = |(pattern, _): &&(CompactString, Self)| is_like(pattern, value);
        let mut wildcards = branches.wildcards.iter().filter(like);
        if let Some(found) = wildcards.find_map(|(_, node)| node.find(rest)) {
            return Some(found);
        }
        branches.any.as_ref()?.find(rest)
    }
}

impl<T> Branches<T> {
    fn wildcard(&mut self, pattern: &CompactString) -> &mut Node<T> {
        let place = self
            .wildcards
            .binary_search_by(|(known, _)| rank(known).cmp(&rank(pattern)));
        let place = match place {
            Ok(place) => place,
            Err(place) => {
                self.wildcards
                    .insert(place, (pattern.clone(), Node::default()));
                place
            }
        };
        &mut self.wildcards[place].1
    }
}

/// A descriptor's entries as they are looked up.
pub type Entries<'d> = SmallVec<[(&'d str, &'d str); 4]>;

#[cfg(test)]
mod tests {
    use proptest::prelude::Strategy;
    use proptest::prelude::prop;
    use proptest::prelude::prop_assert_eq;
    use proptest::proptest;

    use super::*;

    fn entries(texts: &[&str]) -> Vec<Entry> {
        let parsed = texts.iter().map(|text| Entry::parse(text));
        parsed.collect::<Result<_, _>>().expect("entries")
    }

    fn index(lists: &[&[&'static str]]) -> Index<usize> {
        let mut index = Index::default();
        for (place, list) in lists.iter().enumerate() {
            index.insert(&entries(list), place);
        }
        index
    }

    #[test]
    fn an_entry_is_a_value_a_wildcard_or_a_key() {
        let entry = |key: &str, value| Entry {
            key: key.into(),
            value,
        };
        assert_eq!(Entry::parse("a=b"), Ok(entry("a", Value::Is("b".into()))));
        assert_eq!(Entry::parse("a="), Ok(entry("a", Value::Is("".into()))));
        assert_eq!(
            Entry::parse("a=b=c"),
            Ok(entry("a", Value::Is("b=c".into())))
        );
        assert_eq!(
            Entry::parse("a=b*c"),
            Ok(entry("a", Value::Like("b*c".into())))
        );
        assert_eq!(Entry::parse("a"), Ok(entry("a", Value::Any)));
        for bad in ["", "=b", "a*=b", "a*", "a\n=b", &"x".repeat(513)] {
            assert!(Entry::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_star_stands_for_any_text() {
        for (pattern, good, bad) in [
            ("files/*", "files/", "file/a"),
            ("files/*", "files/a/b", "xfiles/a"),
            ("*", "", "-"),
            ("/api*v1", "/apiv1", "/api/v2"),
            ("/api*v1", "/api/users/v1", "/api/v1/"),
            ("svc*ep*rpc", "svc-a-ep-b-rpc", "svc-a-rpc"),
            ("svc*ep*rpc", "svceprpc", "svcepepc"),
            ("a*a", "aa", "a"),
            ("ab*ba", "abba", "aba"),
            ("*b*", "abc", "ac"),
            ("a**c", "abc", "ab"),
            ("é*", "éa", "ea"),
        ] {
            assert!(is_like(pattern, good), "{pattern} {good}");
            assert!(pattern == "*" || !is_like(pattern, bad), "{pattern} {bad}");
        }
    }

    #[test]
    fn the_most_specific_match_wins() {
        let index = index(&[
            &["file=test1"],
            &["file=test*"],
            &["file=te*"],
            &["file"],
            &["file=*"],
        ]);
        for (value, found) in [("test1", 0), ("test2", 1), ("team", 2), ("x", 4)] {
            assert_eq!(index.find(&[("file", value)]), [found], "{value}");
        }
        assert!(index.find(&[("other", "test1")]).is_empty());
    }

    #[test]
    fn the_depth_must_be_the_same_and_the_order_counts() {
        let index = index(&[&["foo"], &["foo", "bar"], &["foo", "bar=banned"]]);
        assert_eq!(index.find(&[("foo", "x")]), [0]);
        assert_eq!(index.find(&[("foo", "x"), ("bar", "y")]), [1]);
        assert_eq!(index.find(&[("foo", "x"), ("bar", "banned")]), [2]);
        for none in [
            &[][..],
            &[("bar", "y")],
            &[("bar", "y"), ("foo", "x")],
            &[("foo", "x"), ("bar", "y"), ("baz", "z")],
        ] {
            assert!(index.find(none).is_empty(), "{none:?}");
        }
    }

    #[test]
    fn the_first_entry_counts_most_and_a_dead_end_is_left_again() {
        let index = index(&[&["a=1", "b"], &["a", "b=2"], &["a", "c"]]);
        assert_eq!(index.find(&[("a", "1"), ("b", "2")]), [0]);
        assert_eq!(index.find(&[("a", "3"), ("b", "2")]), [1]);
        assert_eq!(index.find(&[("a", "1"), ("c", "9")]), [2]);
    }

    #[test]
    fn limits_with_the_same_match_are_selected_together() {
        let index = index(&[&["user"], &["user"], &["user=x*"]]);
        assert_eq!(index.find(&[("user", "a")]), [0, 1]);
        assert_eq!(index.find(&[("user", "xa")]), [2]);
    }

    #[test]
    fn the_limits_key_says_which_wildcards_are_counted_apart() {
        let list = entries(&["path=path/*", "file=file/*", "type", "fixed=1"]);
        let places = |key| counted(&list, key).expect("places").to_vec();
        assert_eq!(places(Some("type")), [2]);
        assert_eq!(places(Some("file,type")), [1, 2]);
        assert_eq!(places(Some("path,file")), [0, 1, 2]);
        let told = |list: &[&str], key| counted(&entries(list), key).expect_err("a fault");
        assert!(told(&["a"], None).contains("needs a key, as in \"a\""));
        assert!(told(&["a=1"], Some("a")).contains("can have no key"));
        assert!(told(&["a=1*"], Some("b")).contains("write key = \"a\""));
        assert_eq!(counted(&entries(&["a=1*"]), None), Ok([].into()));
        assert_eq!(counted(&entries(&["a"]), Some("ip")), Ok([0].into()));
    }

    #[test]
    fn a_single_value_is_the_key_itself() {
        let key_of = |values: &[&str]| {
            let descriptor: Vec<(&str, &str)> = values.iter().map(|value| ("k", *value)).collect();
            let places: Vec<usize> = (0..values.len()).collect();
            key(&descriptor, &places).into_owned()
        };
        assert_eq!(key_of(&[]), "");
        assert_eq!(key_of(&["10.0.0.1"]), "10.0.0.1");
        assert_eq!(key_of(&["a,b"]), "a,b");
        assert_eq!(key_of(&["a,b", "c"]), "a\\,b,c");
        assert_eq!(key_of(&["a\\b"]), "a\\\\b");
        assert_eq!(key_of(&["", ""]), "\\0,\\0");
        let long = "ä".repeat(300);
        assert!(key_of(&[&long]).len() <= KEY_BYTES_MAX);
        assert_ne!(key_of(&[&long]), key_of(&[&format!("{long}x")]));
    }

    fn value() -> impl Strategy<Value = String> {
        prop::string::string_regex("[ab,\\\\0#é]{0,5}|(a|,){500,600}").expect("a pattern")
    }

    proptest! {
        #[test]
        fn different_values_have_different_keys(
            a in prop::collection::vec(value(), 1..4),
            b in prop::collection::vec(value(), 1..4),
        ) {
            let key_of = |values: &[String]| {
                let descriptor: Vec<(&str, &str)> =
                    values.iter().map(|value| ("k", value.as_str())).collect();
                let places: Vec<usize> = (0..values.len()).collect();
                let key = key(&descriptor, &places).into_owned();
                assert!((1..=KEY_BYTES_MAX).contains(&key.len()));
                key
            };
            if a.len() == b.len() {
                prop_assert_eq!(a == b, key_of(&a) == key_of(&b), "{:?} {:?}", a, b);
            }
        }

        /// The index against a look at every list.
        #[test]
        fn the_index_finds_what_a_search_finds(
            lists in prop::collection::vec(
                prop::collection::vec("[ab](=[ab*]{0,3})?", 1..4), 0..12),
            descriptor in prop::collection::vec(("[ab]", "[ab]{0,3}"), 0..4),
        ) {
            let lists: Vec<Vec<Entry>> = lists
                .iter()
                .map(|list| list.iter().map(|text| Entry::parse(text).expect("an entry")).collect())
                .collect();
            let mut index = Index::default();
            for (place, list) in lists.iter().enumerate() {
                index.insert(list, place);
            }
            let descriptor: Vec<(&str, &str)> =
                descriptor.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
            let grade = |entry: &Entry| match &entry.value {
                Value::Is(_) => (0, Default::default()),
                Value::Like(pattern) => {
                    let letters = pattern.bytes().filter(|byte| *byte != b'*').count();
                    let prefix = pattern.bytes().take_while(|byte| *byte != b'*').count();
                    (1, (Reverse(letters), Reverse(prefix), pattern.clone()))
                }
                Value::Any => (2, Default::default()),
            };
            let fits = |list: &&Vec<Entry>| {
                list.len() == descriptor.len()
                    && list.iter().zip(&descriptor).all(|(entry, (key, value))| {
                        entry.key == *key
                            && match &entry.value {
                                Value::Is(known) => known == value,
                                Value::Like(pattern) => is_like_slow(pattern.as_bytes(), value.as_bytes()),
                                Value::Any => true,
                            }
                    })
            };
            let best = lists
                .iter()
                .filter(fits)
                .min_by_key(|list| list.iter().map(grade).collect::<Vec<_>>());
            let expected: Vec<usize> = lists
                .iter()
                .enumerate()
                .filter(|(_, list)| best == Some(list))
                .map(|(place, _)| place)
                .collect();
            prop_assert_eq!(index.find(&descriptor), expected);
        }
    }

    fn is_like_slow(pattern: &[u8], text: &[u8]) -> bool {
        match (pattern.split_first(), text.split_first()) {
            (None, _) => text.is_empty(),
            (Some((b'*', rest)), _) => {
                is_like_slow(rest, text)
                    || text
                        .split_first()
                        .is_some_and(|(_, text)| is_like_slow(pattern, text))
            }
            (Some((byte, rest)), Some((first, text))) => byte == first && is_like_slow(rest, text),
            (Some(_), None) => false,
        }
    }
}
