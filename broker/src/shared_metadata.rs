//! The metadata of the moment, shared by all requests: readers take the image and keep it, a request of the controller
//! replaces it, and whoever waits for a change is told.

use std::sync::Arc;

use kafka_protocol::messages::UpdateMetadataRequest;
use parking_lot::RwLock;
use tokio::sync::watch;
use zurau_common::rejection::Rejection;

use crate::metadata::MetadataImage;

/// The current image, shared by all requests.
#[derive(Debug)]
pub(crate) struct SharedMetadata {
    image: RwLock<Arc<MetadataImage>>,
    changes: watch::Sender<u64>,
}

impl Default for SharedMetadata {
    fn default() -> Self {
        Self { image: RwLock::default(), changes: watch::Sender::new(0) }
    }
}

impl SharedMetadata {
    pub(crate) fn image(&self) -> Arc<MetadataImage> {
        Arc::clone(&self.image.read())
    }

    /// Takes over what a controller says.
    ///
    /// # Errors
    /// As [`MetadataImage::after`].
    pub(crate) fn apply(&self, request: &UpdateMetadataRequest) -> Result<(), Rejection> {
        let mut image = self.image.write();
        *image = Arc::new(image.after(request)?);
        drop(image);
        self.changes.send_modify(|count| *count += 1);
        Ok(())
    }

    /// Marks that a new registration began: the highest controller epoch is forgotten (coordination.md, section 4).
    pub(crate) fn forget_controller_epoch(&self) {
        let mut image = self.image.write();
        *image = Arc::new(image.without_controller_epoch());
    }

    /// Waits until `found` sees in an image what it looks for. Never returns without it: use a deadline.
    pub(crate) async fn wait_until<T>(&self, mut found: impl FnMut(&MetadataImage) -> Option<T>) -> T {
        let mut changes = self.changes.subscribe();
        loop {
            changes.mark_unchanged();
            if let Some(result) = found(&self.image()) {
                return result;
            }
            changes.changed().await.expect("the sender lives as long as this object");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::tests::{id, topic, update};

    #[test]
    fn replaced_controllers_are_not_believed() {
        let shared = SharedMetadata::default();
        shared.apply(&update(2, vec![topic("a", id(1), &[1])])).unwrap();
        assert_eq!(shared.apply(&update(1, vec![])), Err(Rejection::StaleControllerEpoch));
        assert!(shared.image().topic("a").is_some());
        shared.forget_controller_epoch();
        shared.apply(&update(1, vec![])).unwrap();
    }

    #[tokio::test]
    async fn waiting_ends_with_the_change_that_brings_it() {
        let shared = Arc::new(SharedMetadata::default());
        let waiter = Arc::clone(&shared);
        let waiting =
            tokio::spawn(
                async move { waiter.wait_until(|image| image.topic("a").map(|t| t.topic_id)).await },
            );
        shared.apply(&update(1, vec![])).unwrap();
        shared.apply(&update(1, vec![topic("a", id(7), &[1])])).unwrap();
        assert_eq!(waiting.await.unwrap(), id(7));
    }
}
