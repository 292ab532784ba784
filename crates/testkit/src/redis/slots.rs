//! A slot of a cluster that moves from one node to another while it is used.

use super::Redis;

/// The move of a slot; it does what it is told, step by step.
#[derive(Clone, Debug)]
pub struct SlotMove {
    slot: String,
    from: usize,
    to: usize,
}

impl SlotMove {
    /// Of the slot of this key, from the one of these nodes to the other.
    ///
    /// # Panics
    /// When a node does not answer.
    #[must_use]
    pub fn new(nodes: &[Redis], key: &str, from: usize, to: usize) -> Self {
        Self { slot: nodes[from].ask(&["cluster", "keyslot", key]), from, to }
    }

    /// Both nodes are told. From now on a key is where it is.
    ///
    /// # Panics
    /// When one does not take it.
    pub fn begin(&self, nodes: &[Redis]) {
        let [from, to] = [self.from, self.to].map(|node| nodes[node].ask(&["cluster", "myid"]));
        nodes[self.to].ask(&["cluster", "setslot", &self.slot, "importing", &from]);
        nodes[self.from].ask(&["cluster", "setslot", &self.slot, "migrating", &to]);
    }

    /// Takes some keys along. Returns whether there were any left.
    ///
    /// # Errors
    /// When they cannot be moved now: what a node says.
    pub fn step(&self, nodes: &[Redis], most: usize) -> Result<bool, String> {
        let keys = nodes[self.from].try_ask(&["cluster", "getkeysinslot", &self.slot, &most.to_string()])?;
        if keys.is_empty() {
            return Ok(false);
        }
        let to = nodes[self.to].addr();
        let (host, port) = (to.ip().to_string(), to.port().to_string());
        let mut migrate = vec!["migrate", &host, &port, "", "0", "5000", "keys"];
        migrate.extend(keys.lines());
        nodes[self.from].try_ask(&migrate).map(|_| true)
    }

    /// How many keys are still where they were.
    ///
    /// # Errors
    /// When the node does not say.
    pub fn left(&self, nodes: &[Redis]) -> Result<usize, String> {
        let count = nodes[self.from].try_ask(&["cluster", "countkeysinslot", &self.slot])?;
        count.parse().map_err(|_| count)
    }

    /// Everybody is told whose it is now.
    ///
    /// # Panics
    /// When a node does not take it, as while there are keys left.
    pub fn finish(&self, nodes: &[Redis]) {
        let to = nodes[self.to].ask(&["cluster", "myid"]);
        let others = (0..nodes.len()).filter(|node| ![self.from, self.to].contains(node));
        for node in [self.to, self.from].into_iter().chain(others) {
            nodes[node].ask(&["cluster", "setslot", &self.slot, "node", &to]);
        }
    }
}
