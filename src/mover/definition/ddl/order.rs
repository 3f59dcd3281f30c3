//! The order of creation: by stage, and within a stage each object after those that it needs.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use crate::mover::definition::ddl::stage::Stage;
use crate::mover::definition::refusal::Refusal;
use crate::schema::catalog::Address;

/// An object to create, with the statements about it that follow right after.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) address: Address,
    pub(super) stage: Stage,
    /// The order within a stage among objects that do not need each other: smaller first.
    pub(super) rank: u8,
    pub(super) what: String,
    pub(super) sql: Vec<String>,
    /// The table that it is a key or an index of.
    pub(super) table: Option<String>,
    /// Whether it may move to a later stage if it needs something from there. A table may not: its
    /// data comes before.
    pub(super) may_wait: bool,
}

/// Sorts the nodes. An edge `(a, b)` means that `a` needs `b`. Edges to or from objects that are no
/// nodes are ignored.
///
/// # Errors
/// Names the objects that need each other in a circle, and the tables that need what is made after
/// the data.
pub(super) fn order(
    mut nodes: Vec<Node>,
    edges: &[(Address, Address)],
) -> Result<Vec<Node>, Vec<Refusal>> {
    nodes.sort_by(|a, b| (a.stage, a.rank, &a.what).cmp(&(b.stage, b.rank, &b.what)));
    let at: BTreeMap<Address, usize> = nodes
        .iter()
        .enumerate()
        .map(|(i, node)| (node.address.clone(), i))
        .collect();
    let mut needs: Vec<BTreeSet<usize>> = vec![BTreeSet::new(); nodes.len()];
    for (from, to) in edges {
        if let (Some(&from), Some(&to)) = (at.get(from), at.get(to))
            && from != to
        {
            needs[from].insert(to);
        }
    }
    let mut refusals = Vec::new();
    // A view over a primary key (GROUP BY) waits for it, and what needs the view waits too. A chain
    // is at most as long as the list.
    for _ in 0..nodes.len() {
        let mut changed = false;
        for i in 0..nodes.len() {
            let Some(latest) = needs[i].iter().map(|&j| nodes[j].stage).max() else {
                continue;
            };
            if latest > nodes[i].stage {
                if !nodes[i].may_wait {
                    refusals.push(Refusal::new(
                        nodes[i].what.clone(),
                        "needs a constraint or index, which is made after the data",
                        "take the function that needs it out of the definition",
                    ));
                }
                nodes[i].stage = latest;
                changed = true;
            }
        }
        if !changed {
            break;
        }
    }
    if !refusals.is_empty() {
        return Err(refusals);
    }
    // The nodes were sorted by stage, rank and name, but stages may have changed since: of those
    // that are ready, the smallest is next.
    let mut missing: Vec<usize> = needs.iter().map(BTreeSet::len).collect();
    let mut needed_by: Vec<Vec<usize>> = vec![Vec::new(); nodes.len()];
    for (i, needs) in needs.iter().enumerate() {
        needs.iter().for_each(|&j| needed_by[j].push(i));
    }
    let place = |i: usize| Reverse((nodes[i].stage, nodes[i].rank, i));
    let mut ready: BinaryHeap<_> = (0..nodes.len())
        .filter(|&i| missing[i] == 0)
        .map(place)
        .collect();
    let mut ordered = Vec::with_capacity(nodes.len());
    let mut done = vec![false; nodes.len()];
    while let Some(Reverse((_, _, next))) = ready.pop() {
        done[next] = true;
        ordered.push(nodes[next].clone());
        for &waiting in &needed_by[next] {
            missing[waiting] -= 1;
            if missing[waiting] == 0 {
                ready.push(place(waiting));
            }
        }
    }
    if ordered.len() == nodes.len() {
        return Ok(ordered);
    }
    // What only waits for a circle is not in it: remove what nothing unfinished needs, until only
    // the circles are left.
    let mut circle: BTreeSet<usize> = (0..nodes.len()).filter(|&i| !done[i]).collect();
    loop {
        let outer: Vec<usize> = circle
            .iter()
            .copied()
            .filter(|&i| !circle.iter().any(|&j| needs[j].contains(&i)))
            .collect();
        if outer.is_empty() {
            break;
        }
        circle.retain(|i| !outer.contains(i));
    }
    let names: Vec<&str> = circle.iter().map(|&i| nodes[i].what.as_str()).collect();
    Err(vec![Refusal::new(
        names.join(", "),
        "need each other, so that none can be made first",
        "break the circle, for example by a function with a text body",
    )])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn node(oid: u32, stage: Stage, may_wait: bool) -> Node {
        Node {
            address: Address::new("x", oid),
            stage,
            rank: 0,
            what: format!("node {oid:02}"),
            sql: vec![],
            table: None,
            may_wait,
        }
    }

    fn edge(from: u32, to: u32) -> (Address, Address) {
        (Address::new("x", from), Address::new("x", to))
    }

    #[test]
    fn a_view_waits_for_the_key() {
        let nodes = vec![
            node(1, Stage::Definition, true),
            node(2, Stage::PrimaryKey, true),
            node(3, Stage::Definition, true),
        ];
        let ordered = order(nodes, &[edge(1, 2), edge(3, 1)]).unwrap();
        let seen: Vec<_> = ordered.iter().map(|n| (n.address.oid, n.stage)).collect();
        assert_eq!(
            seen,
            [
                (2, Stage::PrimaryKey),
                (1, Stage::PrimaryKey),
                (3, Stage::PrimaryKey)
            ]
        );
    }

    #[test]
    fn a_table_cannot_wait() {
        let nodes = vec![
            node(1, Stage::Definition, false),
            node(2, Stage::Index, true),
        ];
        assert_eq!(
            order(nodes, &[edge(1, 2)]).unwrap_err()[0].object,
            "node 01"
        );
    }

    #[test]
    fn a_circle_is_named_without_its_tail() {
        let nodes = (1..=4)
            .map(|oid| node(oid, Stage::Definition, true))
            .collect();
        let refusals = order(nodes, &[edge(1, 2), edge(2, 3), edge(3, 2), edge(3, 4)]).unwrap_err();
        assert_eq!(refusals[0].object, "node 02, node 03");
    }

    proptest! {
        #[test]
        fn everything_comes_after_what_it_needs(
            pairs in prop::collection::vec((0u32..20, 0u32..20), 0..60),
        ) {
            // Edges that always lead from a larger number to a smaller one make no circle.
            let edges: Vec<_> = pairs
                .iter()
                .filter(|(a, b)| a > b)
                .map(|(a, b)| edge(*a, *b))
                .collect();
            let nodes = (0..20).rev().map(|oid| node(oid, Stage::Definition, true)).collect();
            let ordered = order(nodes, &edges).unwrap();
            let place: BTreeMap<_, _> = ordered
                .iter()
                .enumerate()
                .map(|(i, n)| (n.address.clone(), i))
                .collect();
            prop_assert_eq!(place.len(), 20);
            for (from, to) in &edges {
                prop_assert!(place[to] < place[from]);
            }
        }
    }
}
