//! A refusal of a broker as people read it: what was refused, why, and what to do about it.

use thiserror::Error;
use zurau_common::rejection::Rejection;
use zurau_common::wire::peer::PeerError;

/// A broker said no.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(crate) struct Refused {
    /// What was refused, for instance `topic orders`.
    subject: String,
    pub(crate) rejection: Rejection,
    /// Kafka's error code as it came, which may be one that `rejection` cannot tell.
    code: i16,
    message: Option<String>,
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {} ({:?}, {})", self.subject, self.why(), self.rejection, self.code)?;
        advice(self.rejection).map_or(Ok(()), |advice| write!(f, "; {advice}"))
    }
}

impl Refused {
    pub(super) fn new(rejection: Rejection, subject: String) -> Self {
        Self { subject, rejection, code: rejection.code(), message: None }
    }

    /// An answer's error code and message as an outcome.
    ///
    /// # Errors
    /// The code is not 0.
    pub(crate) fn check(
        code: i16,
        message: Option<&str>,
        subject: impl FnOnce() -> String,
    ) -> Result<(), Self> {
        match Rejection::from_code(code) {
            None => Ok(()),
            Some(rejection) => {
                let message = message.filter(|text| !text.is_empty()).map(str::to_owned);
                Err(Self { subject: subject(), rejection, code, message })
            }
        }
    }

    /// The broker's own words, or what the code means.
    pub(crate) fn why(&self) -> String {
        self.message.clone().unwrap_or_else(|| self.rejection.to_string())
    }
}

fn advice(rejection: Rejection) -> Option<&'static str> {
    Some(match rejection {
        Rejection::UnknownTopicOrPartition => "`zurau topics list` shows what exists",
        Rejection::TopicAlreadyExists => "--if-not-exists takes that for success",
        Rejection::InvalidReplicationFactor => "`zurau brokers` shows how many brokers are alive",
        Rejection::LeaderNotAvailable => "`zurau explain TOPIC PARTITION` says why",
        Rejection::NotEnoughReplicas | Rejection::NotEnoughReplicasAfterAppend => {
            "`zurau topics describe --under-min-isr` shows what is missing"
        }
        Rejection::NonEmptyGroup => {
            "stop its members first; `zurau groups describe GROUP --members` names them"
        }
        Rejection::GroupIdNotFound => "`zurau groups list` shows what exists",
        Rejection::GroupSubscribedToTopic => "its members still read the topic; stop them first",
        Rejection::ReassignmentInProgress => {
            "`zurau reassign status` shows it, `zurau reassign cancel` ends it"
        }
        Rejection::InvalidConfig => "`zurau configs describe --all` lists the keys",
        Rejection::LogDirNotFound => "`zurau log-dirs describe` lists them",
        Rejection::TopicDeletionDisabled => "set delete.topic.enable=true on the brokers",
        _ => return None,
    })
}

/// Whether a failure passes by itself: an election, a coordinator that loads, a connection that broke.
pub(super) fn passes(error: &anyhow::Error) -> bool {
    if let Some(refused) = error.downcast_ref::<Refused>() {
        return matches!(
            refused.rejection,
            Rejection::LeaderNotAvailable
                | Rejection::NotLeaderOrFollower
                | Rejection::CoordinatorLoadInProgress
                | Rejection::CoordinatorNotAvailable
                | Rejection::NotCoordinator
                | Rejection::OffsetNotAvailable
                | Rejection::FencedLeaderEpoch
                | Rejection::UnknownLeaderEpoch
                | Rejection::NetworkException
                | Rejection::ConcurrentTransactions
        );
    }
    matches!(error.downcast_ref::<PeerError>(), Some(PeerError::Closed { .. }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_says_what_why_and_what_to_do() {
        assert_eq!(Refused::check(0, None, String::new), Ok(()));
        let refused = Refused::check(3, None, || "topic t".to_owned()).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "topic t: this broker does not host that topic or partition (UnknownTopicOrPartition, 3); \
             `zurau topics list` shows what exists"
        );
        let refused = Refused::check(42, Some("both given"), || "topic t".to_owned()).unwrap_err();
        assert_eq!(refused.to_string(), "topic t: both given (InvalidRequest, 42)");
        let unknown = Refused::check(9999, Some(""), || "x".to_owned()).unwrap_err();
        assert!(unknown.to_string().contains("9999"), "{unknown}");
    }

    #[test]
    fn only_what_passes_by_itself_is_tried_again() {
        let passes_with =
            |code| passes(&Refused::check(code, None, String::new).expect_err("an error code").into());
        for code in [5, 6, 14, 15, 16, 51, 78] {
            assert!(passes_with(code), "{code}");
        }
        for code in [3, 7, 17, 36, 68] {
            assert!(!passes_with(code), "{code}");
        }
        assert!(!passes(&anyhow::anyhow!("x")));
    }
}
