//! Java's properties format, in which `server.properties` is written: comments with `#` or `!`, a key and a value with
//! `=`, `:` or blanks between, lines continued by a backslash, and `\t \n \r \f \uXXXX` escapes.

use std::iter::Peekable;
use std::str::Chars;

use thiserror::Error;

/// One key with its value, unescaped, and the number of the line where it begins (from 1).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Property {
    pub key: String,
    pub value: String,
    pub line: usize,
}

#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("line {line}: {problem}")]
pub struct PropertiesError {
    pub line: usize,
    pub problem: String,
}

/// Reads a whole file. A key may come again: the last one counts, and the caller sees both.
///
/// # Errors
/// A `\u` without four hexadecimal digits, as in Java; nothing else is malformed in this format.
pub fn parse_properties(text: &str) -> Result<Vec<Property>, PropertiesError> {
    let mut properties = Vec::new();
    let mut lines = natural_lines(text).enumerate();
    while let Some((index, first)) = lines.next() {
        let mut line = first.trim_start_matches(BLANKS).to_owned();
        if line.is_empty() || line.starts_with(['#', '!']) {
            continue;
        }
        while ends_in_continuation(&line) {
            line.pop();
            let Some((_, next)) = lines.next() else { break };
            line.push_str(next.trim_start_matches(BLANKS));
        }
        properties.push(parse_line(&line, index + 1)?);
    }
    Ok(properties)
}

const BLANKS: [char; 3] = [' ', '\t', '\u{c}'];

/// Lines end in `\n`, `\r` or `\r\n`.
fn natural_lines(text: &str) -> impl Iterator<Item = &str> {
    text.split('\n').flat_map(|line| line.strip_suffix('\r').unwrap_or(line).split('\r'))
}

fn ends_in_continuation(line: &str) -> bool {
    let backslashes = line.chars().rev().take_while(|c| *c == '\\').count();
    backslashes % 2 == 1
}

fn parse_line(text: &str, line: usize) -> Result<Property, PropertiesError> {
    let mut chars = text.chars().peekable();
    let mut key = String::new();
    while let Some(c) = chars.next_if(|c| !BLANKS.contains(c) && !matches!(c, '=' | ':')) {
        push_unescaped(&mut key, c, &mut chars, line)?;
    }
    while chars.next_if(|c| BLANKS.contains(c)).is_some() {}
    if chars.next_if(|c| matches!(c, '=' | ':')).is_some() {
        while chars.next_if(|c| BLANKS.contains(c)).is_some() {}
    }
    let mut value = String::new();
    while let Some(c) = chars.next() {
        push_unescaped(&mut value, c, &mut chars, line)?;
    }
    Ok(Property { key, value, line })
}

/// Appends `c`, or what the escape that begins with it means.
fn push_unescaped(
    to: &mut String,
    c: char,
    rest: &mut Peekable<Chars<'_>>,
    line: usize,
) -> Result<(), PropertiesError> {
    if c != '\\' {
        to.push(c);
        return Ok(());
    }
    match rest.next() {
        None => {}
        Some('t') => to.push('\t'),
        Some('n') => to.push('\n'),
        Some('r') => to.push('\r'),
        Some('f') => to.push('\u{c}'),
        Some('u') => {
            let digits: String = rest.take(4).collect();
            let code = Some(&digits)
                .filter(|digits| digits.len() == 4 && digits.chars().all(|c| c.is_ascii_hexdigit()))
                .and_then(|digits| u32::from_str_radix(digits, 16).ok())
                .ok_or_else(|| PropertiesError {
                    line,
                    problem: format!("\\u{digits} is no character; write \\u and four hexadecimal digits"),
                })?;
            to.push(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER));
        }
        Some(other) => to.push(other),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pairs(text: &str) -> Vec<(String, String)> {
        parse_properties(text).unwrap().into_iter().map(|property| (property.key, property.value)).collect()
    }

    #[test]
    fn every_form_of_a_line() {
        for (text, key, value) in [
            ("a=b", "a", "b"),
            ("a:b", "a", "b"),
            ("a b", "a", "b"),
            ("  a \t = \t b c ", "a", "b c "),
            ("a", "a", ""),
            ("a=", "a", ""),
            ("a==b", "a", "=b"),
            ("a = = b", "a", "= b"),
            ("a\\ b\\=c=d", "a b=c", "d"),
            ("a=b\\\n   c\\\r\n\td", "a", "bcd"),
            ("a=b\\\\", "a", "b\\"),
            ("a=b\\", "a", "b"),
            ("a=\\t\\n\\r\\f\\u00e4\\q\\:", "a", "\t\n\r\u{c}äq:"),
            ("a=ä # no comment", "a", "ä # no comment"),
            (
                "listeners=PLAINTEXT://:9092,SSL://[::1]:9093",
                "listeners",
                "PLAINTEXT://:9092,SSL://[::1]:9093",
            ),
        ] {
            assert_eq!(pairs(text), [(key.to_owned(), value.to_owned())], "{text:?}");
        }
    }

    #[test]
    fn comments_and_empty_lines_are_skipped_and_lines_are_counted() {
        let text = "# one\n\n  ! two \\\na=1\n   \r\nb=2\\\n  3\nc=4\ra=5";
        let found = parse_properties(text).unwrap();
        let lines: Vec<_> = found.iter().map(|p| (p.key.as_str(), p.value.as_str(), p.line)).collect();
        assert_eq!(lines, [("a", "1", 4), ("b", "23", 6), ("c", "4", 8), ("a", "5", 9)]);
    }

    #[test]
    fn a_broken_unicode_escape_names_its_line() {
        for text in ["a=1\nb=\\u12", "a=1\nb=\\u12xy", "a=1\nb=\\u+123"] {
            let error = parse_properties(text).unwrap_err();
            assert_eq!(error.line, 2, "{text:?}");
            assert!(error.to_string().contains("four hexadecimal digits"));
        }
    }

    proptest! {
        #[test]
        fn garbage_never_panics(text in any::<String>()) {
            let _ = parse_properties(&text);
        }

        #[test]
        fn what_is_escaped_comes_back(key in "[a-zA-Z0-9. =:#!\\\\äß]{1,12}", value in "[ -~\t\näß]{0,20}") {
            let escape = |text: &str| text.chars().fold(String::new(), |mut out, c| {
                match c {
                    '\n' => out.push_str("\\n"),
                    '\t' => out.push_str("\\t"),
                    'ä' => out.push_str("\\u00e4"),
                    c if c.is_ascii_alphanumeric() || c == 'ß' => out.push(c),
                    c => out.extend(['\\', c]),
                }
                out
            });
            prop_assert_eq!(pairs(&format!("{} = {}", escape(&key), escape(&value))), [(key, value)]);
        }
    }
}
