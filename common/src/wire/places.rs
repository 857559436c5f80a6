//! A limited number of connections at once, in all and from one address; used by every listener.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;

/// Counts open connections against their limits.
#[derive(Debug)]
pub struct Places {
    total_max: usize,
    per_address_max: usize,
    taken: Mutex<HashMap<IpAddr, usize>>,
}

impl Places {
    /// Both limits are inclusive.
    pub fn new(total_max: usize, per_address_max: usize) -> Arc<Self> {
        Arc::new(Self { total_max, per_address_max, taken: Mutex::default() })
    }

    /// Number of open connections.
    pub fn taken(&self) -> usize {
        self.taken.lock().values().sum()
    }

    /// A place for one more connection from this address; `None` at a limit.
    pub fn take(self: &Arc<Self>, address: IpAddr) -> Option<Place> {
        let mut taken = self.taken.lock();
        let of_address = taken.get(&address).copied().unwrap_or(0);
        let total: usize = taken.values().sum();
        if self.total_max <= total || self.per_address_max <= of_address {
            return None;
        }
        taken.insert(address, of_address + 1);
        drop(taken);
        Some(Place { places: Arc::clone(self), address })
    }
}

/// A connection's place among the counted ones; given back when dropped.
#[derive(Debug)]
pub struct Place {
    places: Arc<Places>,
    address: IpAddr,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.taken.lock();
        match taken.get_mut(&self.address) {
            Some(1) | None => {
                taken.remove(&self.address);
            }
            Some(count) => *count -= 1,
        }
    }
}
