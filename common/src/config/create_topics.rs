//! `KAFKA_CREATE_TOPICS`: topics that a container image is asked to create at its start, in the form of the wurstmeister
//! image: `name:partitions:replicas[:cleanup.policy]`, separated by commas or lines.

use crate::id::topic_name_problem;

/// Topics that one variable may name: it is typed by a person.
const TOPICS_MAX: usize = 1_000;

/// What the variable should look like, for error messages.
pub(super) const CREATE_TOPICS_FORM: &str =
    "name:partitions:replicas[:cleanup.policy] for each topic, separated by commas or lines, each name once";

/// One topic of the variable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicToCreate {
    pub name: String,
    /// At least 1.
    pub partitions: i32,
    /// At least 1.
    pub replication_factor: i16,
    /// `delete`, `compact` or both; `None` leaves it to the broker.
    pub cleanup_policy: Option<String>,
}

/// Reads the variable. Blanks around the parts mean nothing, and so do empty entries.
///
/// # Errors
/// What is wrong with the first entry that is.
pub(super) fn parse_create_topics(text: &str) -> Result<Vec<TopicToCreate>, String> {
    let mut topics: Vec<TopicToCreate> = Vec::new();
    for entry in text.split([',', '\n']).map(str::trim).filter(|entry| !entry.is_empty()) {
        let topic = parse_topic(entry).ok_or_else(|| format!("{CREATE_TOPICS_FORM}; '{entry}' is not"))?;
        if topics.iter().any(|other| other.name == topic.name) || topics.len() == TOPICS_MAX {
            return Err(format!("{CREATE_TOPICS_FORM}; '{entry}' is one too many"));
        }
        topics.push(topic);
    }
    Ok(topics)
}

fn parse_topic(entry: &str) -> Option<TopicToCreate> {
    let parts: Vec<&str> = entry.split(':').map(str::trim).collect();
    let (name, partitions, replicas, policy) = match parts.as_slice() {
        [name, partitions, replicas] => (name, partitions, replicas, None),
        [name, partitions, replicas, policy] => (name, partitions, replicas, Some(*policy)),
        _ => return None,
    };
    let policy = policy.filter(|policy| !policy.is_empty());
    // A comma separates topics here, so both policies at once are written with a plus or a semicolon.
    let policy = policy.map(|policy| policy.replace(['+', ';'], ","));
    let known = |policy: &String| policy.split(',').all(|one| matches!(one, "delete" | "compact"));
    if topic_name_problem(name).is_some() || !policy.iter().all(known) {
        return None;
    }
    Some(TopicToCreate {
        name: (*name).to_owned(),
        partitions: partitions.parse().ok().filter(|count| 1 <= *count)?,
        replication_factor: replicas.parse().ok().filter(|count| 1 <= *count)?,
        cleanup_policy: policy,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topic(name: &str, partitions: i32, replication_factor: i16, policy: Option<&str>) -> TopicToCreate {
        let cleanup_policy = policy.map(ToOwned::to_owned);
        TopicToCreate { name: name.to_owned(), partitions, replication_factor, cleanup_policy }
    }

    #[test]
    fn topics_are_read_in_every_form_that_people_write() {
        let read = parse_create_topics("a:1:3, b.c:12:1:compact,\n  d : 2 : 2 : \n,e:1:1:compact+delete\n");
        let expected = vec![
            topic("a", 1, 3, None),
            topic("b.c", 12, 1, Some("compact")),
            topic("d", 2, 2, None),
            topic("e", 1, 1, Some("compact,delete")),
        ];
        assert_eq!(read, Ok(expected));
        assert_eq!(parse_create_topics(" \n"), Ok(Vec::new()));
    }

    #[test]
    fn a_mistake_names_the_entry() {
        for bad in ["a", "a:1", "a:0:1", "a:1:0", "a:x:1", "a b:1:1", "a:1:1:keep", "a:1:1:delete:x", ":1:1"]
        {
            let problem = parse_create_topics(&format!("good:1:1,{bad}")).unwrap_err();
            assert!(problem.contains(&format!("'{bad}' is not")), "{problem}");
        }
        assert!(parse_create_topics("a:1:1,a:2:1").unwrap_err().contains("'a:2:1' is one too many"));
    }
}
