//! A part of the world that worlds share until one of them changes it, and whose fingerprint is computed once.

use std::cell::{Cell, RefCell};
use std::fmt::{self, Debug, Write};
use std::ops::{Deref, DerefMut};
use std::rc::Rc;

#[derive(Clone)]
pub(crate) struct Part<T> {
    value: Rc<T>,
    fingerprint: Cell<Option<u64>>,
}

impl<T> From<T> for Part<T> {
    fn from(value: T) -> Self {
        Self { value: Rc::new(value), fingerprint: Cell::new(None) }
    }
}

impl<T> Deref for Part<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T: Clone> DerefMut for Part<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.fingerprint.set(None);
        Rc::make_mut(&mut self.value)
    }
}

impl<T: Debug> Debug for Part<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value.fmt(f)
    }
}

impl<T: Clone> Part<T> {
    pub(crate) fn into_value(self) -> T {
        Rc::unwrap_or_clone(self.value)
    }
}

impl<T: Debug> Part<T> {
    /// Of everything in it: equal values have equal fingerprints. The production cores derive `Debug`, which names
    /// every field, and not all of them `Hash`.
    pub(crate) fn fingerprint(&self) -> u64 {
        if let Some(known) = self.fingerprint.get() {
            return known;
        }
        let fingerprint = TEXT.with_borrow_mut(|text| {
            text.clear();
            write!(text, "{:?}", self.value).expect("a string takes everything");
            digest(text.as_bytes())
        });
        self.fingerprint.set(Some(fingerprint));
        fingerprint
    }
}

thread_local! {
    static TEXT: RefCell<String> = const { RefCell::new(String::new()) };
}

/// A hash for whole texts: standard hashers cost most of an exploration's time in builds without optimisation.
fn digest(bytes: &[u8]) -> u64 {
    let mut hash = bytes.len() as u64;
    for chunk in bytes.chunks(8) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        hash = (hash ^ u64::from_le_bytes(word)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        hash ^= hash >> 29;
    }
    hash
}
