//! Which strings are node paths, and how a path splits. Rules as in ZooKeeper's `PathUtils`.

/// Whether `path` may name a node.
pub(crate) fn is_valid(path: &str) -> bool {
    if path == "/" {
        return true;
    }
    let Some(rest) = path.strip_prefix('/') else { return false };
    rest.split('/').all(|name| !matches!(name, "" | "." | "..")) && !path.chars().any(is_forbidden)
}

fn is_forbidden(character: char) -> bool {
    matches!(character, '\0'..='\u{1f}' | '\u{7f}'..='\u{9f}' | '\u{e000}'..='\u{f8ff}' | '\u{fff0}'..='\u{ffff}')
}

/// Parent and last name; `None` when there is no slash. The parent of `/a` is `/`.
pub(crate) fn split(path: &str) -> Option<(&str, &str)> {
    let (parent, name) = path.rsplit_once('/')?;
    Some((if parent.is_empty() { "/" } else { parent }, name))
}

/// The parents of `path`, nearest first, down to `/`.
pub(crate) fn ancestors(path: &str) -> impl Iterator<Item = &str> {
    let mut current = if path == "/" { None } else { split(path).map(|(parent, _)| parent) };
    std::iter::from_fn(move || {
        let here = current?;
        current = if here == "/" { None } else { split(here).map(|(parent, _)| parent) };
        Some(here)
    })
}

pub(crate) fn join(parent: &str, name: &str) -> String {
    if parent == "/" { format!("/{name}") } else { format!("{parent}/{name}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths() {
        for (path, valid) in [
            ("/", true),
            ("/a", true),
            ("/a/b-0000000001", true),
            ("/ä/日本", true),
            ("/a.b/..c", true),
            ("", false),
            ("a", false),
            ("/a/", false),
            ("//", false),
            ("/a//b", false),
            ("/a/./b", false),
            ("/a/..", false),
            ("/a\0", false),
            ("/a\u{1}", false),
            ("/\u{7f}", false),
            ("/\u{f8ff}", false),
            ("/\u{fff0}", false),
        ] {
            assert_eq!(is_valid(path), valid, "{path:?}");
        }
    }

    #[test]
    fn splitting() {
        assert_eq!(split("/a"), Some(("/", "a")));
        assert_eq!(split("/a/b"), Some(("/a", "b")));
        assert_eq!(split("a"), None);
        assert_eq!(ancestors("/a/b/c").collect::<Vec<_>>(), ["/a/b", "/a", "/"]);
        assert_eq!(ancestors("/").count(), 0);
    }
}
