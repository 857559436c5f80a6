//! Sets of broker ids as people and programs write them into znodes. Written as a JSON array; read forgivingly,
//! because an admin types these values into a ZooKeeper shell (coordination.md, section 1).

use std::collections::HashSet;

use thiserror::Error;

use crate::id::BrokerId;

/// Why a value is not a set of broker ids. The text is what an `error` child shows to the admin.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum InvalidIds {
    #[error("the value is not UTF-8 text; write a set of broker ids such as [1,2,3]")]
    NotText,
    #[error("the set of broker ids is empty; write at least one id, such as [1]")]
    Empty,
    #[error("broker id {0} stands in the set twice; write each id once")]
    Duplicate(BrokerId),
    #[error("broker id {0} is negative; broker ids start at 0")]
    Negative(i64),
    #[error("'{0}' is not a set of broker ids; write [1,2,3], {{1,2,3}}, 1,2,3 or 1 2 3")]
    Malformed(String),
}

/// Most characters of a bad value that an error repeats.
const SHOWN_CHARACTERS_MAX: usize = 80;

/// Reads `[1,2,3]`, `{1,2,3}`, `1,2,3` and `1 2 3` alike. Order is kept: the first replica is the preferred one.
///
/// # Errors
/// An id twice, a negative id, an empty set and anything else that is not a set of ids.
pub fn parse_ids(value: &[u8]) -> Result<Vec<BrokerId>, InvalidIds> {
    let text = std::str::from_utf8(value).map_err(|_| InvalidIds::NotText)?.trim();
    let malformed = || InvalidIds::Malformed(text.chars().take(SHOWN_CHARACTERS_MAX).collect());
    let inner = match (text.chars().next(), text.chars().last()) {
        (Some('['), Some(']')) | (Some('{'), Some('}')) => text[1..text.len() - 1].trim(),
        (Some('[' | '{'), _) | (_, Some(']' | '}')) => return Err(malformed()),
        _ => text,
    };
    if inner.is_empty() {
        return Err(InvalidIds::Empty);
    }
    let words: Vec<&str> = if inner.contains(',') {
        inner.split(',').map(str::trim).collect()
    } else {
        inner.split_whitespace().collect()
    };
    let mut ids = Vec::with_capacity(words.len());
    let mut seen = HashSet::new();
    for word in words {
        let digits = word.strip_prefix('-').unwrap_or(word);
        if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
            return Err(malformed());
        }
        let number: i64 = word.parse().map_err(|_| malformed())?;
        if number < 0 {
            return Err(InvalidIds::Negative(number));
        }
        let id = BrokerId(i32::try_from(number).map_err(|_| malformed())?);
        if !seen.insert(id) {
            return Err(InvalidIds::Duplicate(id));
        }
        ids.push(id);
    }
    Ok(ids)
}

/// The written form: a JSON array without spaces, `[1,2,3]`.
pub fn format_ids(ids: &[BrokerId]) -> String {
    let words: Vec<String> = ids.iter().map(ToString::to_string).collect();
    format!("[{}]", words.join(","))
}

/// Whether two lists hold the same ids, in whatever order.
pub fn same_set(left: &[BrokerId], right: &[BrokerId]) -> bool {
    left.len() == right.len() && left.iter().all(|id| right.contains(id))
}

/// `left` followed by those of `right` that it does not hold; order kept.
pub fn union(left: &[BrokerId], right: &[BrokerId]) -> Vec<BrokerId> {
    let mut all = left.to_vec();
    all.extend(right.iter().filter(|id| !left.contains(id)));
    all
}

/// `left` without the ids of `right`; order kept.
pub fn difference(left: &[BrokerId], right: &[BrokerId]) -> Vec<BrokerId> {
    left.iter().copied().filter(|id| !right.contains(id)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(numbers: &[i32]) -> Vec<BrokerId> {
        numbers.iter().copied().map(BrokerId).collect()
    }

    #[test]
    fn the_four_spellings_mean_the_same() {
        let spellings = ["[1,2,3]", "{1,2,3}", "1,2,3", "1 2 3", " [ 1 , 2 , 3 ] ", "{1, 2, 3}\n", "[1 2 3]"];
        for spelling in spellings {
            assert_eq!(parse_ids(spelling.as_bytes()), Ok(ids(&[1, 2, 3])), "{spelling}");
        }
        assert_eq!(parse_ids(b"[3,1,2]"), Ok(ids(&[3, 1, 2])), "the order carries the preference");
        assert_eq!(parse_ids(b"0"), Ok(ids(&[0])));
    }

    #[test]
    fn everything_else_is_rejected() {
        let rows: [(&[u8], InvalidIds); 6] = [
            (b"[]", InvalidIds::Empty),
            (b"", InvalidIds::Empty),
            (b"[1,1]", InvalidIds::Duplicate(BrokerId(1))),
            (b"[1,-2]", InvalidIds::Negative(-2)),
            (b"\xff\xfe", InvalidIds::NotText),
            (b"{1,2", InvalidIds::Malformed("{1,2".to_owned())),
        ];
        for (value, expected) in rows {
            assert_eq!(parse_ids(value), Err(expected), "{value:?}");
        }
        for value in
            ["hello", "1,,2", "1,2,", "[1,2}", "1 2]", "1.5", "+1", "99999999999", "1 2,3 4", "\"1\"", "é"]
        {
            assert!(matches!(parse_ids(value.as_bytes()), Err(InvalidIds::Malformed(_))), "{value}");
        }
    }

    proptest::proptest! {
        #[test]
        fn reading_never_panics_and_written_sets_read_back(text in ".*", numbers in proptest::collection::hash_set(0..i32::MAX, 1..9)) {
            let _ = parse_ids(text.as_bytes());
            let set: Vec<BrokerId> = numbers.into_iter().map(BrokerId).collect();
            proptest::prop_assert_eq!(parse_ids(format_ids(&set).as_bytes()), Ok(set));
        }
    }
}
