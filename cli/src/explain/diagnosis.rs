//! What is wrong with a partition, in words, and what would mend it. Pure.

use super::facts::{Facts, Replica};
use crate::table::ids;

/// The worst first; empty when all is well.
pub(super) fn diagnose(facts: &Facts) -> Vec<String> {
    let mut findings = Vec::new();
    for error in &facts.errors {
        findings.push(format!("{} was rejected: {}", error.input, error.error));
    }
    findings.extend(leadership(facts));
    if facts.leader.is_some() && facts.isr.len() < facts.min_insync_replicas {
        findings.push(format!(
            "acks=all is refused: {} in sync, min.insync.replicas asks for {}",
            facts.isr.len(),
            facts.min_insync_replicas
        ));
    }
    findings.extend(facts.cur.iter().filter_map(|id| catching_up(facts, *id)));
    if let Some(wanted) = &facts.rar {
        let missing: Vec<i32> = wanted.iter().copied().filter(|id| !facts.isr.contains(id)).collect();
        findings.push(match missing.as_slice() {
            [] => format!("moves to {}: all of them are in sync, it ends soon", ids(wanted)),
            missing => format!("moves to {}: waits for {} to be in sync", ids(wanted), ids(missing)),
        });
    }
    if let Some(leaving) = facts.leaving.as_deref().filter(|leaving| !leaving.is_empty()) {
        findings.push(format!(
            "brokers {} must still delete their copies; one that is down does so later",
            ids(leaving)
        ));
    }
    findings
}

fn leadership(facts: &Facts) -> Option<String> {
    let alive = |id: &i32| facts.replicas.iter().any(|replica| replica.broker == *id && replica.alive);
    match (facts.leader, facts.elected) {
        (Some(_), _) => None,
        (None, Some(elected)) if alive(&elected) => Some(format!(
            "no leader: broker {elected} was elected and has not taken office yet; its log says why"
        )),
        (None, _) => {
            let mut eligible = facts.isr.clone();
            eligible.extend(facts.elr.iter().flatten().filter(|id| !facts.isr.contains(id)));
            let live: Vec<i32> = eligible.iter().copied().filter(alive).collect();
            Some(match live.as_slice() {
                [] if eligible.is_empty() => {
                    "no leader: it has never had one; a live broker among the replicas is needed".to_owned()
                }
                [] => format!(
                    "offline: none of {} is alive, and only they have every acknowledged record; start one of them",
                    ids(&eligible)
                ),
                live => format!("no leader yet, although {} could lead; is a controller active?", ids(live)),
            })
        }
    }
}

fn catching_up(facts: &Facts, broker: i32) -> Option<String> {
    let replica: &Replica = facts.replicas.iter().find(|replica| replica.broker == broker)?;
    Some(if !replica.alive {
        format!("replica {broker} is not in sync: the broker is not alive")
    } else if let Some(error) = &replica.error {
        format!("replica {broker} is not in sync, and does not say how far it is: {error}")
    } else {
        match replica.lag {
            Some(0) => format!("replica {broker} has caught up and joins the ISR soon"),
            Some(lag) => format!("replica {broker} is {lag} records behind the leader"),
            None => format!("replica {broker} is not in sync"),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::explain::facts::InputError;

    fn replica(broker: i32, alive: bool, lag: Option<i64>) -> Replica {
        Replica { broker, alive, lag, ..Replica::default() }
    }

    fn healthy() -> Facts {
        Facts {
            leader: Some(1),
            ar: vec![1, 2],
            isr: vec![1, 2],
            min_insync_replicas: 1,
            replicas: vec![replica(1, true, Some(0)), replica(2, true, Some(0))],
            ..Facts::default()
        }
    }

    #[test]
    fn a_healthy_partition_has_no_findings() {
        assert!(diagnose(&healthy()).is_empty());
    }

    #[test]
    fn each_trouble_has_its_sentence() {
        let says = |facts: Facts, words: &[&str]| {
            let findings = diagnose(&facts).join("\n");
            for word in words {
                assert!(findings.contains(word), "{word:?} is not in {findings:?}");
            }
        };
        let dead = vec![replica(1, false, None), replica(2, true, Some(7))];
        says(
            Facts { leader: None, isr: vec![1], cur: vec![2], replicas: dead.clone(), ..healthy() },
            &["offline: none of 1", "7 records behind"],
        );
        says(
            Facts { leader: None, isr: vec![1], elr: Some(vec![2]), replicas: dead.clone(), ..healthy() },
            &["2 could lead"],
        );
        says(Facts { leader: None, elected: Some(2), replicas: dead, ..healthy() }, &["not taken office"]);
        says(Facts { leader: None, isr: vec![], ..healthy() }, &["never had one"]);
        says(
            Facts { isr: vec![1], min_insync_replicas: 2, ..healthy() },
            &["acks=all is refused: 1 in sync"],
        );
        says(Facts { rar: Some(vec![2, 3]), ..healthy() }, &["moves to 2,3: waits for 3"]);
        says(Facts { leaving: Some(vec![3]), ..healthy() }, &["3 must still delete"]);
        let error = InputError { input: "the assignment".to_owned(), error: "id 1 stands twice".to_owned() };
        says(Facts { errors: vec![error], ..healthy() }, &["the assignment was rejected: id 1 stands twice"]);
    }
}
