//! Lists that are read page by page, in the order of their names.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::ops::Bound;

use serde::Deserialize;
use utoipa::IntoParams;

use crate::http::input;
use crate::http::problem::Problem;

/// The longest page.
const PAGE_SIZE_MAX: usize = 1000;
/// A page when nobody says how long.
const PAGE_SIZE: usize = 100;

/// Which part of a list is asked for.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct PageQuery {
    /// Entries after this name.
    #[param(nullable = false)]
    after: Option<String>,
    /// At most so many; 1000 at most.
    #[param(nullable = false, minimum = 1, maximum = 1000)]
    page_size: Option<usize>,
}

/// Which part of a list is asked for.
#[derive(Debug)]
pub struct Page {
    after: Option<String>,
    size: usize,
}

impl Page {
    /// Reads a query.
    ///
    /// # Errors
    /// 400 when a parameter is unknown or out of bounds.
    pub fn read(raw: Option<&str>) -> Result<Self, Problem> {
        let PageQuery { after, page_size } = input::query(raw)?;
        let size = page_size.unwrap_or(PAGE_SIZE);
        if !(1..=PAGE_SIZE_MAX).contains(&size) {
            return Err(Problem::malformed("page_size: 1 to 1000"));
        }
        Ok(Self { after, size })
    }

    /// The page's entries, and `after` of the next page when there is one.
    pub fn of<'m, K, V, T>(
        &self,
        map: &'m BTreeMap<K, V>,
        entry: impl Fn(&'m K, &'m V) -> T,
    ) -> (Vec<T>, Option<String>)
    where
        K: Ord + Borrow<str>,
    {
        let from = self
            .after
            .as_deref()
            .map_or(Bound::Unbounded, Bound::Excluded);
        let mut rest = map.range::<str, _>((from, Bound::Unbounded));
        let page: Vec<(&K, &V)> = rest.by_ref().take(self.size).collect();
        let last = page.last().map(|(name, _)| (*name).borrow().to_owned());
        let next = last.filter(|_| rest.next().is_some());
        (
            page.into_iter()
                .map(|(name, value)| entry(name, value))
                .collect(),
            next,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(query: &str) -> (Vec<String>, Option<String>) {
        let map: BTreeMap<String, u8> = ["a", "b/c", "d"]
            .into_iter()
            .map(|name| (name.to_owned(), 0))
            .collect();
        Page::read(Some(query))
            .expect("a page")
            .of(&map, |name, _| name.clone())
    }

    #[test]
    fn pages_follow_each_other_without_gap_or_overlap() {
        assert_eq!(
            read("page_size=2"),
            (
                vec!["a".to_owned(), "b/c".to_owned()],
                Some("b/c".to_owned())
            )
        );
        assert_eq!(
            read("page_size=2&after=b%2Fc"),
            (vec!["d".to_owned()], None)
        );
        assert_eq!(
            read("page_size=3").1,
            None,
            "the last page says so even when it is full"
        );
        assert_eq!(
            read("after=aa").0,
            ["b/c", "d"],
            "a name that is gone still marks a place"
        );
        assert_eq!(read("after=zz"), (Vec::new(), None));
    }

    #[test]
    fn odd_queries_are_refused() {
        for odd in [
            "page_size=0",
            "page_size=1001",
            "page_size=-1",
            "page_size=x",
            "size=3",
            "after=a&after=b",
        ] {
            assert_eq!(Page::read(Some(odd)).expect_err(odd).status, 400);
        }
    }
}
