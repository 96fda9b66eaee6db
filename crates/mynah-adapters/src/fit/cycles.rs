//! Definitions that refer to themselves.

use std::collections::HashMap;

use mynah_data::Metadata;
use serde_json::Value;

use super::neutral::{Neutral, name_of, parts, reference_to};

/// Groups of definitions that refer to each other, by reference. What is in no cycle is missing.
pub(super) struct Cycles(HashMap<String, usize>);

impl Cycles {
    pub(super) fn of(neutral: &Neutral) -> Self {
        let names: Vec<String> = std::iter::once("#".to_owned())
            .chain(neutral.defs.keys().map(|name| reference_to(name)))
            .collect();
        let index: HashMap<&str, usize> =
            names.iter().enumerate().map(|(index, name)| (name.as_str(), index)).collect();
        let edges: Vec<Vec<usize>> = names
            .iter()
            .map(|name| {
                let from = neutral.target(name);
                let to = from.map(references).unwrap_or_default();
                to.iter().filter_map(|to| index.get(to.as_str()).copied()).collect()
            })
            .collect();
        let mut back = vec![Vec::new(); names.len()];
        for (from, targets) in edges.iter().enumerate() {
            targets.iter().for_each(|to| back[*to].push(from));
        }
        // Two passes: by the order in which the first leaves them, the second finds what reaches each other.
        let mut order = Vec::new();
        let mut seen = vec![false; names.len()];
        for start in 0..names.len() {
            let mut open = vec![(start, 0)];
            while let Some((node, next)) = open.pop() {
                if next == 0 {
                    if seen[node] {
                        continue;
                    }
                    seen[node] = true;
                }
                match edges[node].get(next) {
                    Some(to) => open.extend([(node, next + 1), (*to, 0)]),
                    None => order.push(node),
                }
            }
        }
        let mut group = vec![usize::MAX; names.len()];
        let mut sizes: HashMap<usize, usize> = HashMap::new();
        for start in order.into_iter().rev() {
            let mut open = vec![start];
            while let Some(node) = open.pop() {
                if group[node] == usize::MAX {
                    group[node] = start;
                    *sizes.entry(start).or_default() += 1;
                    open.extend(&back[node]);
                }
            }
        }
        let is_cyclic = |node: usize| {
            edges[node].contains(&node) || sizes.get(&group[node]).is_some_and(|size| *size > 1)
        };
        let cyclic = names.iter().enumerate().filter(|(node, _)| is_cyclic(*node));
        Self(cyclic.map(|(node, name)| (name.clone(), group[node])).collect())
    }

    /// Whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a part of the target of `within` refers back to it.
    pub(super) fn returns(&self, within: &str, part: &Value) -> bool {
        let Some(group) = self.0.get(within) else { return false };
        let part = part.as_object().map(references).unwrap_or_default();
        part.iter().any(|to| self.0.get(to) == Some(group))
    }
}

/// The references in a schema, at any depth.
fn references(schema: &Metadata) -> Vec<String> {
    let mut found = Vec::new();
    let mut open = vec![schema];
    while let Some(schema) = open.pop() {
        if let Some(reference) = schema.get("$ref").and_then(Value::as_str) {
            // In one spelling.
            found.push(name_of(reference).map_or("#".to_owned(), |name| reference_to(&name)));
        }
        open.extend(parts(schema).filter_map(Value::as_object));
    }
    found
}
