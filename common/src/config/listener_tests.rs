use super::*;

fn read(pairs: &[(&str, &str)]) -> (Vec<String>, Vec<String>, String) {
    let settings = Settings::from_pairs(pairs.iter().copied()).unwrap();
    let mut problems = Problems::default();
    let (listeners, advertised) = read_listeners(&settings, None, &mut problems);
    let text = |all: &[Listener]| all.iter().map(Listener::to_string).collect();
    let problems = problems.into_result(()).err().map_or_else(String::new, |error| error.to_string());
    (text(&listeners), text(&advertised), problems)
}

type Pairs<'a> = &'a [(&'a str, &'a str)];

#[test]
fn listeners_and_what_is_advertised() {
    let map = ("listener.security.protocol.map", "IN:PLAINTEXT,out:PLAINTEXT");
    let cases: [(Pairs<'_>, &[&str], &[&str]); 5] = [
        (&[], &["PLAINTEXT://:9092"], &["PLAINTEXT://:9092"]),
        (&[("listeners", "PLAINTEXT://0.0.0.0:9092")], &["PLAINTEXT://0.0.0.0:9092"], &["PLAINTEXT://:9092"]),
        (&[("listeners", "plaintext://[::1]:0")], &["PLAINTEXT://[::1]:0"], &["PLAINTEXT://[::1]:0"]),
        (
            &[
                ("listeners", "PLAINTEXT://:9092"),
                ("advertised.listeners", "PLAINTEXT://kafka.example:19092"),
            ],
            &["PLAINTEXT://:9092"],
            &["PLAINTEXT://kafka.example:19092"],
        ),
        (
            &[map, ("listeners", "IN://:9092, OUT://:9093"), ("advertised.listeners", "IN://a:1,OUT://b:2")],
            &["IN://:9092", "OUT://:9093"],
            &["IN://a:1", "OUT://b:2"],
        ),
    ];
    for (pairs, listeners, advertised) in cases {
        let (found, told, problems) = read(pairs);
        assert_eq!(problems, "", "{pairs:?}");
        assert_eq!(
            (found, told),
            (
                listeners.iter().map(ToString::to_string).collect(),
                advertised.iter().map(ToString::to_string).collect()
            )
        );
    }
}

#[test]
fn bad_listeners_are_told() {
    for (pairs, expected) in [
        (&[("listeners", "")][..], "at least one listener"),
        (&[("listeners", "PLAINTEXT:9092")], "NAME://host:port"),
        (&[("listeners", "PLAINTEXT://host:99999")], "NAME://host:port"),
        (&[("listeners", "PLAINTEXT://::1:9092")], "IPv6 host in brackets"),
        (&[("listeners", "PLAINTEXT://:1,PLAINTEXT://:2")], "each name once"),
        (&[("listeners", "INSIDE://:9092")], "listener.security.protocol.map"),
        (&[("listeners", "SSL://:9092")], "listeners of protocol PLAINTEXT; SSL asks for another"),
        (&[("listener.security.protocol.map", "A:B"), ("listeners", "A://:1")], "NAME:PROTOCOL"),
        (
            &[("listener.security.protocol.map", "A:PLAINTEXT,B:PLAINTEXT"), ("listeners", "A://:1,B://:1")],
            "each with its own address",
        ),
        (&[("advertised.listeners", "OTHER://a:1")], "listener.security.protocol.map"),
        (&[("advertised.listeners", "SSL://a:1")], "names that listeners has too"),
        (&[("advertised.listeners", "PLAINTEXT://0.0.0.0:1")], "not 0.0.0.0"),
    ] {
        let (_, _, problems) = read(pairs);
        assert!(problems.contains(expected), "{pairs:?}: {problems}");
    }
}

#[test]
fn zookeeper_connect_strings() {
    for (text, servers, chroot) in [
        ("localhost:2181", "localhost:2181", ""),
        ("a:1,b:2 , c:3/kafka/prod", "a:1,b:2,c:3", "/kafka/prod"),
        ("a,b:2/", "a:2181,b:2", ""),
        ("[::1]:2181/x", "[::1]:2181", "/x"),
    ] {
        let parsed = ZookeeperConnect::parse(text).unwrap();
        assert_eq!((parsed.servers.as_str(), parsed.chroot.as_str()), (servers, chroot));
        assert_eq!(ZookeeperConnect::parse(&parsed.to_string()), Some(parsed));
    }
    for bad in [
        "",
        "a:",
        "a:0",
        "a:b",
        ":2181",
        "a:1,,b:1",
        "a:1//x",
        "a:1/x/",
        "a:1/x,b:2",
        "a:1/../x",
        "a b:1",
        "::1:2181",
    ] {
        assert_eq!(ZookeeperConnect::parse(bad), None, "{bad}");
    }
}

#[test]
fn http_listener_is_an_address_or_nothing() {
    let read = |text: &str| {
        let settings = Settings::from_pairs([("http.listener", text)]).unwrap();
        let mut problems = Problems::default();
        let found = read_http_listener(&settings, &mut problems).map(|listener| listener.to_string());
        (found, problems.into_result(()).is_ok())
    };
    for (text, found) in [
        ("", None),
        (":9644", Some(":9644")),
        ("0.0.0.0:9644", Some("0.0.0.0:9644")),
        ("[::1]:0", Some("[::1]:0")),
    ] {
        assert_eq!(read(text), (found.map(str::to_owned), true), "{text}");
    }
    for text in ["9644", "http://localhost:9644", "host:", "host:99999", "::1:9644"] {
        assert_eq!(read(text), (None, false), "{text}");
    }
}
