//! Merkle trees as RFC 9162 builds them, with proofs that others can check.
//!
//! A leaf is hashed with a zero byte in front, a node with a one byte, so that neither can pass for the other; a tree of
//! any size splits at the largest power of two below it, so that no leaf is counted twice.

use crate::Hash;

/// The hash of a leaf.
pub fn leaf(data: &[u8]) -> Hash {
    Hash::of(&[&[0], data])
}

/// The leaf that stands for something with a hash.
pub(crate) fn leaf_of(hash: &Hash) -> Hash {
    leaf(&hash.0)
}

fn node(left: &Hash, right: &Hash) -> Hash {
    Hash::of(&[&[1], &left.0, &right.0])
}

/// The root over no leaves.
pub fn empty_root() -> Hash {
    Hash::of(&[])
}

/// A tree that grows leaf by leaf and keeps only what its root needs: one hash for each bit of its size.
///
/// ```
/// # mod mynah { pub use mynah_log as log; }
/// use mynah::log::merkle::{Tree, self};
/// let leaves: Vec<_> = (0..5u8).map(|n| merkle::leaf(&[n])).collect();
/// let mut tree = Tree::new();
/// leaves.iter().for_each(|leaf| tree.push(*leaf));
/// assert_eq!(tree.root(), merkle::root(&leaves));
/// ```
#[derive(Clone, Debug, Default)]
pub struct Tree {
    /// Roots of perfect subtrees, the largest first.
    peaks: Vec<Hash>,
    size: u64,
}

impl Tree {
    /// A tree without leaves.
    pub fn new() -> Self {
        Self::default()
    }

    /// How many leaves there are.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Adds a leaf, given its hash.
    pub fn push(&mut self, leaf: Hash) {
        let mut hash = leaf;
        for _ in 0..self.size.trailing_ones() {
            if let Some(left) = self.peaks.pop() {
                hash = node(&left, &hash);
            }
        }
        self.peaks.push(hash);
        self.size += 1;
    }

    /// The root over all leaves so far.
    pub fn root(&self) -> Hash {
        let mut peaks = self.peaks.iter().rev();
        match peaks.next() {
            None => empty_root(),
            Some(last) => peaks.fold(*last, |right, left| node(left, &right)),
        }
    }
}

/// The root over leaf hashes.
pub fn root(leaves: &[Hash]) -> Hash {
    let mut tree = Tree::new();
    leaves.iter().for_each(|leaf| tree.push(*leaf));
    tree.root()
}

/// The largest power of two below a size of two or more.
fn split(size: usize) -> usize {
    size.next_power_of_two() / 2
}

/// The hashes that lead from a leaf to the root; none if there is no such leaf.
pub fn inclusion_proof(leaves: &[Hash], index: usize) -> Option<Vec<Hash>> {
    if index >= leaves.len() {
        return None;
    }
    let (mut leaves, mut index, mut path) = (leaves, index, Vec::new());
    while leaves.len() > 1 {
        let (left, right) = leaves.split_at(split(leaves.len()));
        if index < left.len() {
            path.push(root(right));
            leaves = left;
        } else {
            path.push(root(left));
            index -= left.len();
            leaves = right;
        }
    }
    path.reverse();
    Some(path)
}

/// Whether a proof leads from a leaf to the root of a tree of this size.
pub fn verify_inclusion(leaf: &Hash, index: u64, size: u64, root: &Hash, proof: &[Hash]) -> bool {
    if index >= size {
        return false;
    }
    let (mut position, mut last, mut hash) = (index, size - 1, *leaf);
    for sibling in proof {
        if last == 0 {
            return false;
        }
        if position & 1 == 1 || position == last {
            hash = node(sibling, &hash);
            while position & 1 == 0 && position != 0 {
                position >>= 1;
                last >>= 1;
            }
        } else {
            hash = node(&hash, sibling);
        }
        position >>= 1;
        last >>= 1;
    }
    last == 0 && hash == *root
}

/// The hashes that show that a tree began as its first `old` leaves; none if it never was that small.
pub fn consistency_proof(leaves: &[Hash], old: usize) -> Option<Vec<Hash>> {
    if old == 0 || old > leaves.len() {
        return None;
    }
    let (mut leaves, mut old, mut whole, mut path) = (leaves, old, true, Vec::new());
    while old < leaves.len() {
        let (left, right) = leaves.split_at(split(leaves.len()));
        if old <= left.len() {
            path.push(root(right));
            leaves = left;
        } else {
            path.push(root(left));
            old -= left.len();
            leaves = right;
            whole = false;
        }
    }
    if !whole {
        path.push(root(leaves));
    }
    path.reverse();
    Some(path)
}

/// Whether a tree of size `new` began as the tree of size `old`.
pub fn verify_consistency(
    old: u64,
    new: u64,
    old_root: &Hash,
    new_root: &Hash,
    proof: &[Hash],
) -> bool {
    if old == 0 || old > new {
        return false;
    }
    if old == new {
        return proof.is_empty() && old_root == new_root;
    }
    let mut hashes = proof.iter();
    let mut position = old - 1;
    let mut last = new - 1;
    while position & 1 == 1 {
        position >>= 1;
        last >>= 1;
    }
    // A perfect old tree is a node of the new one, and needs no hash of its own.
    let start = if old.is_power_of_two() { Some(old_root) } else { hashes.next() };
    let Some(start) = start else { return false };
    let (mut from_old, mut from_new) = (*start, *start);
    for sibling in hashes {
        if last == 0 {
            return false;
        }
        if position & 1 == 1 || position == last {
            from_old = node(sibling, &from_old);
            from_new = node(sibling, &from_new);
            while position & 1 == 0 && position != 0 {
                position >>= 1;
                last >>= 1;
            }
        } else {
            from_new = node(&from_new, sibling);
        }
        position >>= 1;
        last >>= 1;
    }
    last == 0 && from_old == *old_root && from_new == *new_root
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaves(count: usize) -> Vec<Hash> {
        (0..count).map(|n| leaf(&n.to_be_bytes())).collect()
    }

    #[test]
    fn the_known_roots_of_the_transparency_world_come_out() {
        let data: [&[u8]; 8] = [
            b"",
            b"\x00",
            b"\x10",
            b"\x20\x21",
            b"\x30\x31",
            b"\x40\x41\x42\x43",
            b"\x50\x51\x52\x53\x54\x55\x56\x57",
            b"\x60\x61\x62\x63\x64\x65\x66\x67\x68\x69\x6a\x6b\x6c\x6d\x6e\x6f",
        ];
        let hashes: Vec<Hash> = data.iter().map(|data| leaf(data)).collect();
        let expected = "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328";
        assert_eq!(root(&hashes).to_string(), expected);
        let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(root(&[]).to_string(), empty);
    }

    #[test]
    fn every_leaf_of_every_small_tree_is_proven_included_and_nothing_else_is() {
        for size in 1..=33 {
            let leaves = leaves(size);
            let root = root(&leaves);
            for index in 0..size {
                let proof = inclusion_proof(&leaves, index).expect("a leaf");
                let verify = |leaf: &Hash, index: usize, proof: &[Hash]| {
                    verify_inclusion(leaf, index as u64, size as u64, &root, proof)
                };
                assert!(verify(&leaves[index], index, &proof), "{index} of {size}");
                assert!(!verify(&leaf(b"other"), index, &proof));
                assert!(size == 1 || !verify(&leaves[index], (index + 1) % size, &proof));
                assert!(proof.is_empty() || !verify(&leaves[index], index, &proof[1..]));
                let longer: Vec<Hash> = proof.iter().copied().chain([root]).collect();
                assert!(!verify(&leaves[index], index, &longer));
            }
            assert_eq!(inclusion_proof(&leaves, size), None);
        }
    }

    #[test]
    fn every_small_tree_is_proven_to_have_begun_as_each_smaller_one() {
        for new in 1..=33 {
            let leaves = leaves(new);
            for old in 1..=new {
                let (old_root, new_root) = (root(&leaves[..old]), root(&leaves));
                let proof = consistency_proof(&leaves, old).expect("a smaller tree");
                let verify = |a: &Hash, b: &Hash, proof: &[Hash]| {
                    verify_consistency(old as u64, new as u64, a, b, proof)
                };
                assert!(verify(&old_root, &new_root, &proof), "{old} of {new}");
                if old < new {
                    assert!(!verify(&leaf(b"other"), &new_root, &proof), "{old} of {new}");
                    assert!(!verify(&old_root, &leaf(b"other"), &proof), "{old} of {new}");
                    assert!(!verify(&old_root, &new_root, &proof[1..]), "{old} of {new}");
                }
            }
            assert_eq!(consistency_proof(&leaves, new + 1), None);
        }
    }
}
