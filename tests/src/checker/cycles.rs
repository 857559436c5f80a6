//! Who could have seen whom: a graph of operations with an edge from a writer to whoever read it, and from what was
//! over to whatever began later. In a log that shows only what is committed it has no cycle: one of reads alone is
//! G1c without write edges, one with an edge of time is a read from the future. Cycles with edges of write order are
//! allowed by Kafka's model and not looked for.

use super::history::{History, Outcome};
use super::values::Table;
use super::{Verdict, Violation};

pub(super) fn check(history: &History, table: &Table, verdict: &mut Verdict) {
    let graph = Graph::of(history, table);
    for component in graph.components() {
        let members: Vec<usize> =
            component.iter().copied().filter(|node| *node < history.operations.len()).collect();
        if members.len() > 1 {
            let names = members.iter().take(4).map(|node| {
                let operation = &history.operations[*node];
                format!("{} [{}, {}]", operation.process, operation.start, operation.end)
            });
            let what =
                format!("{} operations see each other: {:?}", members.len(), names.collect::<Vec<_>>());
            verdict.add(Violation::Cycle, what);
        }
    }
}

/// Nodes: the operations, then one instant per operation's end, in order of time.
struct Graph {
    edges: Vec<Vec<usize>>,
}

impl Graph {
    fn of(history: &History, table: &Table) -> Self {
        let count = history.operations.len();
        let mut edges = vec![Vec::new(); 2 * count];
        for fact in table.values.values() {
            let Some(writer) = fact.writer else { continue };
            for reader in fact.readers.iter().filter(|reader| **reader != writer) {
                edges[writer].push(*reader);
            }
        }
        // Instead of an edge for every pair: end → instant → later instants → operations that begin after it. Only
        // what is known to be over has a place in time.
        let mut ends: Vec<usize> =
            (0..count).filter(|index| history.operations[*index].outcome == Outcome::Ok).collect();
        ends.sort_by_key(|index| history.operations[*index].end);
        for (instant, index) in ends.iter().enumerate() {
            edges[*index].push(count + instant);
            if instant + 1 < ends.len() {
                edges[count + instant].push(count + instant + 1);
            }
        }
        for (index, operation) in history.operations.iter().enumerate() {
            let over = ends.partition_point(|end| history.operations[*end].end < operation.start);
            if let Some(last) = over.checked_sub(1) {
                edges[count + last].push(index);
            }
        }
        Self { edges }
    }

    /// Strongly connected components of more than one node (Tarjan's algorithm, without recursion).
    fn components(&self) -> Vec<Vec<usize>> {
        let mut search = Search::new(self.edges.len());
        for root in 0..self.edges.len() {
            if search.index[root].is_none() {
                search.explore(root, &self.edges);
            }
        }
        search.found
    }
}

struct Search {
    index: Vec<Option<usize>>,
    low: Vec<usize>,
    on_stack: Vec<bool>,
    stack: Vec<usize>,
    next: usize,
    found: Vec<Vec<usize>>,
}

impl Search {
    fn new(nodes: usize) -> Self {
        Self {
            index: vec![None; nodes],
            low: vec![0; nodes],
            on_stack: vec![false; nodes],
            stack: Vec::new(),
            next: 0,
            found: Vec::new(),
        }
    }

    fn enter(&mut self, node: usize) {
        self.index[node] = Some(self.next);
        self.low[node] = self.next;
        self.next += 1;
        self.stack.push(node);
        self.on_stack[node] = true;
    }

    fn explore(&mut self, root: usize, edges: &[Vec<usize>]) {
        let mut path = vec![(root, 0)];
        self.enter(root);
        while let Some((node, edge)) = path.last_mut() {
            let node = *node;
            if let Some(next) = edges[node].get(*edge).copied() {
                *edge += 1;
                match self.index[next] {
                    None => {
                        self.enter(next);
                        path.push((next, 0));
                    }
                    Some(index) if self.on_stack[next] => self.low[node] = self.low[node].min(index),
                    Some(_) => {}
                }
                continue;
            }
            path.pop();
            if let Some((parent, _)) = path.last() {
                self.low[*parent] = self.low[*parent].min(self.low[node]);
            }
            if Some(self.low[node]) == self.index[node] {
                self.close(node);
            }
        }
    }

    fn close(&mut self, root: usize) {
        let mut component = Vec::new();
        while let Some(node) = self.stack.pop() {
            self.on_stack[node] = false;
            component.push(node);
            if node == root {
                break;
            }
        }
        if component.len() > 1 {
            self.found.push(component);
        }
    }
}
