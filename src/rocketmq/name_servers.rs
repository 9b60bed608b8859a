//! The list of name servers and which one is asked: the same one while it answers, the next one once it does not.
//!
//! The socket form of the port asks it; it opens nothing and knows no clock. The list can be replaced while running.

/// The name servers of a client and the present choice.
#[derive(Clone, Debug)]
pub struct NameServers {
    list: Vec<String>,
    chosen: usize,
}

impl NameServers {
    /// With a list of `host:port`; repeats are dropped. `seed` decides which one is asked first, so that the clients of
    /// one list spread over it.
    pub fn new(list: impl IntoIterator<Item = String>, seed: u64) -> Self {
        let list = unique(list);
        let chosen = if list.is_empty() { 0 } else { (seed % list.len() as u64) as usize };
        Self { list, chosen }
    }

    /// Whom to ask now; `None` if no name server is configured.
    pub fn chosen(&self) -> Option<&str> {
        self.list.get(self.chosen).map(String::as_str)
    }

    /// All of them, in the order they were given.
    pub fn list(&self) -> &[String] {
        &self.list
    }

    /// `addr` could not be reached or has gone silent: the next one is asked from now on. Nothing changes if `addr` is
    /// not the present choice, so that one failure seen by many calls moves on once.
    pub fn failed(&mut self, addr: &str) {
        if self.chosen() == Some(addr) {
            self.chosen = (self.chosen + 1) % self.list.len();
        }
    }

    /// Replaces the list. The present choice stays if it is still listed. Returns the addresses that are gone.
    pub fn replace(&mut self, list: impl IntoIterator<Item = String>) -> Vec<String> {
        let list = unique(list);
        let chosen = self.chosen().and_then(|chosen| list.iter().position(|addr| addr == chosen));
        let gone = self.list.iter().filter(|addr| !list.contains(addr)).cloned().collect();
        self.chosen = chosen.unwrap_or(0);
        self.list = list;
        gone
    }
}

fn unique(list: impl IntoIterator<Item = String>) -> Vec<String> {
    let mut kept = Vec::new();
    for addr in list {
        if !kept.contains(&addr) {
            kept.push(addr);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn servers(list: &[&str]) -> NameServers {
        NameServers::new(list.iter().map(|addr| (*addr).to_owned()), 0)
    }

    #[test]
    fn b009_the_choice_is_kept_until_it_fails() {
        let mut servers = servers(&["a", "b", "c", "b"]);
        assert_eq!((servers.list().len(), servers.chosen()), (3, Some("a")));
        servers.failed("a");
        servers.failed("a");
        assert_eq!(servers.chosen(), Some("b"), "one failure moves on once");
    }

    #[test]
    fn b010_a_walk_over_the_list_comes_to_every_server() {
        let mut servers = NameServers::new(["dead1", "dead2", "live"].map(str::to_owned), 7);
        let mut seen = Vec::new();
        for _ in 0..3 {
            let addr = servers.chosen().unwrap().to_owned();
            servers.failed(&addr);
            seen.push(addr);
        }
        seen.sort();
        assert_eq!(seen, ["dead1", "dead2", "live"]);
    }

    #[test]
    fn b011_c028_a_removed_choice_is_not_asked_again() {
        let mut servers = servers(&["a", "b"]);
        assert_eq!(servers.replace(["b", "a"].map(str::to_owned)), [""; 0]);
        assert_eq!(servers.chosen(), Some("a"), "a new order changes nothing");
        assert_eq!(servers.replace(["c", "d"].map(str::to_owned)), ["b", "a"]);
        assert_eq!(servers.chosen(), Some("c"));
        assert_eq!(servers.replace([]), ["c", "d"]);
        assert_eq!(servers.chosen(), None);
        servers.failed("c");
    }
}
