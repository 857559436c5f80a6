//! Environment variables of the usual container images as configuration keys.
//!
//! `KAFKA_ADVERTISED_LISTENERS` and `KAFKA_CFG_ADVERTISED_LISTENERS` mean `advertised.listeners`. One underscore is a
//! dot in every image; two and three mean `_` and `-` in one image and the reverse in another, so both readings are
//! tried against the known keys.

use super::keys::is_known;

/// What an environment variable is to us.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Variable {
    /// Sets this key, which may be unknown.
    Key(String),
    /// Belongs to a Java image's start script; it has no meaning here.
    ForJava,
    /// Names topics to create at start, in the form of the wurstmeister image.
    CreateTopics,
    /// Not for us.
    Other,
}

/// Variables that steer the Java process or the start script of an image.
const FOR_JAVA: [&str; 15] = [
    "KAFKA_VERSION",
    "KAFKA_HEAP_OPTS",
    "KAFKA_LOG4J_OPTS",
    "KAFKA_OPTS",
    "KAFKA_JMX_OPTS",
    "KAFKA_JMX_PORT",
    "KAFKA_JMX_HOSTNAME",
    "KAFKA_JVM_PERFORMANCE_OPTS",
    "KAFKA_GC_LOG_OPTS",
    "KAFKA_LOG4J_ROOT_LOGLEVEL",
    "KAFKA_LOG4J_LOGGERS",
    "KAFKA_TOOLS_LOG4J_LOGLEVEL",
    "KAFKA_HOME",
    "KAFKA_DEBUG",
    "KAFKA_CLUSTER_ID",
];

/// Judges a variable by its name.
pub fn classify_variable(name: &str) -> Variable {
    if name == "KAFKA_CREATE_TOPICS" {
        return Variable::CreateTopics;
    }
    if FOR_JAVA.contains(&name) {
        return Variable::ForJava;
    }
    let Some(rest) = name.strip_prefix("KAFKA_CFG_").or_else(|| name.strip_prefix("KAFKA_")) else {
        return Variable::Other;
    };
    if rest.is_empty() {
        return Variable::Other;
    }
    let usual = to_key(rest, "_", "-");
    let swapped = to_key(rest, "-", "_");
    Variable::Key(if !is_known(&usual) && is_known(&swapped) { swapped } else { usual })
}

fn to_key(rest: &str, two: &str, three: &str) -> String {
    // A character that cannot stand in a variable's name keeps the longer runs apart from the single underscore.
    let marked = rest.to_lowercase().replace("___", "\u{1}").replace("__", "\u{2}");
    marked.replace('_', ".").replace('\u{1}', three).replace('\u{2}', two)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_of_all_images() {
        let key = |name: &str| Variable::Key(name.to_owned());
        for (variable, expected) in [
            ("KAFKA_BROKER_ID", key("broker.id")),
            ("KAFKA_CFG_BROKER_ID", key("broker.id")),
            ("KAFKA_ADVERTISED_LISTENERS", key("advertised.listeners")),
            ("KAFKA_LOG_DIRS", key("log.dirs")),
            ("KAFKA_LOG_DIR", key("log.dir")),
            (
                "KAFKA_LISTENER_NAME_A_SCRAM___SHA___256_SASL_JAAS_CONFIG",
                key("listener.name.a.scram-sha-256.sasl.jaas.config"),
            ),
            ("KAFKA_NO_SUCH_KEY", key("no.such.key")),
            ("KAFKA_ZOOKEEPER__CONNECT", key("zookeeper_connect")),
            ("KAFKA_HEAP_OPTS", Variable::ForJava),
            ("KAFKA_CREATE_TOPICS", Variable::CreateTopics),
            ("KAFKA_", Variable::Other),
            ("PATH", Variable::Other),
            ("kafka_broker_id", Variable::Other),
        ] {
            assert_eq!(classify_variable(variable), expected, "{variable}");
        }
    }

    #[test]
    fn both_readings_of_long_underscores_find_a_known_key() {
        // No key of the table holds '-' or '_' today, so the two readings are compared on the conversion itself.
        assert_eq!(to_key("A__B___C_D", "_", "-"), "a_b-c.d");
        assert_eq!(to_key("A__B___C_D", "-", "_"), "a-b_c.d");
    }
}
