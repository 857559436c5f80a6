//! Those who wait for a coordinator's answer.

use std::collections::HashMap;

use tokio::sync::oneshot;

use super::ReplyId;

/// Answers of one worker that are still to come.
#[derive(Debug)]
pub(crate) struct Replies<A> {
    waiting: HashMap<ReplyId, oneshot::Sender<A>>,
    last: u64,
}

impl<A> Default for Replies<A> {
    fn default() -> Self {
        Self { waiting: HashMap::new(), last: 0 }
    }
}

impl<A> Replies<A> {
    /// Names an answer that `sender` shall get.
    pub(crate) fn expect(&mut self, sender: oneshot::Sender<A>) -> ReplyId {
        self.last += 1;
        let reply = ReplyId(self.last);
        self.waiting.insert(reply, sender);
        reply
    }

    pub(crate) fn give(&mut self, reply: ReplyId, answer: A) {
        if let Some(sender) = self.waiting.remove(&reply) {
            // The client may be gone.
            let _ = sender.send(answer);
        }
    }
}
