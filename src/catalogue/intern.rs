//! Small numbers for limit names.
//!
//! A limit's number is the same for all tenants and for as long as the catalogue lives, so it can stand
//! for the name in counters and index the metrics of a limit. Names are only ever added: a deleted
//! limit's number is never given to another name.

use std::sync::Arc;

use hashbrown::HashMap;
use serde::Deserialize;
use serde::Serialize;

use crate::catalogue::sharded::FixedState;
use crate::domain::name::CL_THROTTLE;
use crate::domain::name::LimitName;

/// Most limit names that one catalogue can ever have had: each is a label value in the metrics and a
/// number that is kept for good.
pub const LIMIT_NAMES_MAX: usize = 10_000;

/// The number of a limit's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LimitId(pub u32);

impl LimitId {
    /// The number of [`CL_THROTTLE`], which is in no catalogue and known to all.
    pub const CL_THROTTLE: Self = Self(u32::MAX);
}

const CL_THROTTLE_NAME: &LimitName = &CL_THROTTLE;

/// Every limit name that the catalogue has seen, in order of appearance. Cheap to clone.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(from = "Vec<LimitName>", into = "Vec<LimitName>")]
pub struct Interner {
    names: Arc<Vec<LimitName>>,
    ids: Arc<HashMap<LimitName, LimitId, FixedState>>,
}

impl Interner {
    /// The number of `name`, a new one when it was never seen. `None` when no number is left.
    pub fn intern(&mut self, name: &LimitName) -> Option<LimitId> {
        if let Some(id) = self.get(name.as_str()) {
            return Some(id);
        }
        if self.names.len() >= LIMIT_NAMES_MAX {
            return None;
        }
        let id = LimitId(u32::try_from(self.names.len()).ok()?);
        Arc::make_mut(&mut self.names).push(name.clone());
        Arc::make_mut(&mut self.ids).insert(name.clone(), id);
        Some(id)
    }

    /// The number of `name`, when it was ever seen.
    pub fn get(&self, name: &str) -> Option<LimitId> {
        if name == CL_THROTTLE_NAME.as_str() {
            return Some(LimitId::CL_THROTTLE);
        }
        self.ids.get(name).copied()
    }

    /// The name that `id` stands for.
    pub fn name(&self, id: LimitId) -> Option<&LimitName> {
        if id == LimitId::CL_THROTTLE {
            return Some(CL_THROTTLE_NAME);
        }
        self.names.get(usize::try_from(id.0).ok()?)
    }

    /// All names; a name's position is its number.
    pub fn names(&self) -> &[LimitName] {
        &self.names
    }
}

impl PartialEq for Interner {
    fn eq(&self, other: &Self) -> bool {
        self.names == other.names
    }
}

impl From<Vec<LimitName>> for Interner {
    fn from(names: Vec<LimitName>) -> Self {
        let mut interner = Self::default();
        for name in &names {
            interner.intern(name);
        }
        interner
    }
}

impl From<Interner> for Vec<LimitName> {
    fn from(interner: Interner) -> Self {
        interner.names.to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> LimitName {
        LimitName::new(text).expect("a limit's name")
    }

    #[test]
    fn a_name_keeps_its_number() {
        let mut interner = Interner::default();
        assert_eq!(interner.intern(&name("api")), Some(LimitId(0)));
        let before = interner.clone();
        assert_eq!(interner.intern(&name("login")), Some(LimitId(1)));
        assert_eq!(interner.intern(&name("api")), Some(LimitId(0)));
        assert_eq!(before.get("login"), None, "an earlier copy is not touched");
        let json = serde_json::to_string(&interner).expect("json");
        assert_eq!(json, r#"["api","login"]"#);
        assert_eq!(
            serde_json::from_str::<Interner>(&json).expect("an interner"),
            interner
        );
    }

    #[test]
    fn names_run_out_at_the_bound() {
        let mut interner = Interner::default();
        for i in 0..LIMIT_NAMES_MAX {
            assert!(interner.intern(&name(&format!("limit-{i}"))).is_some());
        }
        assert_eq!(interner.intern(&name("one-more")), None);
        assert_eq!(interner.intern(&name("limit-7")), Some(LimitId(7)));
    }
}
