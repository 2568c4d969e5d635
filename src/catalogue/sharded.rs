//! A map that shares what did not change with its earlier copies.
//!
//! A view of the catalogue is immutable, and a new one is made for every write. With a hundred thousand
//! tenants a plain map would be copied whole each time; this one is a list of small maps, of which a
//! write copies the one that it touches.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::hash::BuildHasher;
use std::hash::Hash;
use std::sync::Arc;

use hashbrown::HashMap;
use serde::Deserialize;
use serde::Deserializer;
use serde::Serialize;
use serde::Serializer;

/// Entries for which one small map stands; a write copies about so many.
const ENTRIES_PER_SHARD: usize = 64;
/// The factor by which the number of small maps grows; a power of two.
const GROWTH: usize = 8;

/// Hashes with fixed seeds: the order inside a map never matters here, and the pure half of the program
/// draws no randomness. Only names from the catalogue are put in, so no caller can choose what collides.
#[derive(Clone, Copy, Debug, Default)]
pub struct FixedState;

const SEEDS: ahash::RandomState = ahash::RandomState::with_seeds(
    0x243f_6a88_85a3_08d3,
    0x1319_8a2e_0370_7344,
    0xa409_3822_299f_31d0,
    0x082e_fa98_ec4e_6c89,
);

impl BuildHasher for FixedState {
    type Hasher = ahash::AHasher;

    fn build_hasher(&self) -> Self::Hasher {
        SEEDS.build_hasher()
    }
}

type Shard<K, V> = HashMap<K, V, FixedState>;

/// See the module. A copy of the whole costs nothing.
#[derive(Clone, Debug)]
pub struct ShardedMap<K, V> {
    shards: Arc<Vec<Arc<Shard<K, V>>>>,
    len: usize,
}

impl<K, V> Default for ShardedMap<K, V> {
    fn default() -> Self {
        Self {
            shards: Arc::new(vec![Arc::new(Shard::default())]),
            len: 0,
        }
    }
}

impl<K: Clone + Eq + Hash, V: Clone> ShardedMap<K, V> {
    /// Entries in the map.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether the map has no entry.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The value of `key`.
    pub fn get<Q: Eq + Hash + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.shards.get(self.shard_of(key))?.get(key)
    }

    /// Sets the value of `key`.
    pub fn insert(&mut self, key: K, value: V) {
        if self.len >= self.shards.len().saturating_mul(ENTRIES_PER_SHARD) {
            self.grow();
        }
        let index = self.shard_of(&key);
        if let Some(shard) = Arc::make_mut(&mut self.shards).get_mut(index)
            && Arc::make_mut(shard).insert(key, value).is_none()
        {
            self.len += 1;
        }
    }

    /// Takes `key` out.
    pub fn remove<Q: Eq + Hash + ?Sized>(&mut self, key: &Q)
    where
        K: Borrow<Q>,
    {
        let index = self.shard_of(key);
        if self.get(key).is_some()
            && let Some(shard) = Arc::make_mut(&mut self.shards).get_mut(index)
        {
            Arc::make_mut(shard).remove(key);
            self.len -= 1;
        }
    }

    /// Whether the two are copies of each other that have not parted.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shards, &other.shards)
    }

    /// All entries, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.shards.iter().flat_map(|shard| shard.iter())
    }

    fn shard_of<Q: Hash + ?Sized>(&self, key: &Q) -> usize {
        // From the middle of the hash: hashbrown places by the low bits and tags by the high ones.
        let middle = usize::try_from(FixedState.hash_one(key) >> 32).unwrap_or_default();
        middle & self.shards.len().saturating_sub(1)
    }

    fn grow(&mut self) {
        let mut shards: Vec<Arc<Shard<K, V>>> = Vec::new();
        shards.resize_with(self.shards.len().saturating_mul(GROWTH), Arc::default);
        let old = std::mem::replace(&mut self.shards, Arc::new(shards));
        for shard in Arc::unwrap_or_clone(old) {
            for (key, value) in Arc::unwrap_or_clone(shard) {
                let index = self.shard_of(&key);
                if let Some(shard) = Arc::make_mut(&mut self.shards).get_mut(index) {
                    Arc::make_mut(shard).insert(key, value);
                }
            }
        }
    }
}

impl<K: Clone + Eq + Hash, V: Clone + PartialEq> PartialEq for ShardedMap<K, V> {
    fn eq(&self, other: &Self) -> bool {
        self.len == other.len
            && self
                .iter()
                .all(|(key, value)| other.get(key) == Some(value))
    }
}

impl<K: Ord + Serialize, V: Serialize> Serialize for ShardedMap<K, V> {
    /// In the order of the keys, so that the same map is always the same text.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let entries = self.shards.iter().flat_map(|shard| shard.iter());
        serializer.collect_map(entries.collect::<BTreeMap<_, _>>())
    }
}

impl<'de, K, V> Deserialize<'de> for ShardedMap<K, V>
where
    K: Clone + Eq + Hash + Ord + Deserialize<'de>,
    V: Clone + Deserialize<'de>,
{
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(BTreeMap::deserialize(deserializer)?.into_iter().collect())
    }
}

impl<K: Clone + Eq + Hash, V: Clone> FromIterator<(K, V)> for ShardedMap<K, V> {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> Self {
        let mut map = Self::default();
        for (key, value) in entries {
            map.insert(key, value);
        }
        map
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::any;
    use proptest::prop_assert_eq;
    use proptest::proptest;

    use super::*;

    #[test]
    fn earlier_copies_keep_what_they_had() {
        let mut map: ShardedMap<u32, u32> = (0..10_000).map(|i| (i, i)).collect();
        let before = map.clone();
        map.insert(7, 70);
        map.remove(&8);
        assert_eq!(
            (before.get(&7), before.get(&8), before.len()),
            (Some(&7), Some(&8), 10_000)
        );
        assert_eq!(
            (map.get(&7), map.get(&8), map.len()),
            (Some(&70), None, 9_999)
        );
    }

    proptest! {
        #[test]
        fn it_answers_as_an_ordinary_map(steps in vec((any::<u8>(), any::<Option<u8>>()), 0..400)) {
            let mut map = ShardedMap::default();
            let mut oracle = BTreeMap::new();
            for (key, value) in steps {
                match value {
                    Some(value) => {
                        map.insert(key, value);
                        oracle.insert(key, value);
                    }
                    None => {
                        map.remove(&key);
                        oracle.remove(&key);
                    }
                }
            }
            prop_assert_eq!(map.len(), oracle.len());
            let entries: BTreeMap<u8, u8> = map.iter().map(|(k, v)| (*k, *v)).collect();
            prop_assert_eq!(entries, oracle);
        }
    }
}
