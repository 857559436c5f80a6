//! A part of the world that worlds share until one of them changes it, and whose fingerprint is computed once.

use std::cell::Cell;
use std::fmt::{self, Debug, Write};
use std::hash::{DefaultHasher, Hasher};
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
        let mut text = Text(DefaultHasher::new());
        write!(text, "{:?}", self.value).expect("a hasher takes everything");
        let fingerprint = text.0.finish();
        self.fingerprint.set(Some(fingerprint));
        fingerprint
    }
}

/// Hashes text as it is written.
struct Text(DefaultHasher);

impl Write for Text {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.write(text.as_bytes());
        Ok(())
    }
}
