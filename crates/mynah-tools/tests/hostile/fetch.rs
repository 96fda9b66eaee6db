//! Addresses, names and servers.

use std::{
    future::{Ready, ready},
    io::{self, ErrorKind},
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use mynah_tools::fetch;
use serde_json::json;
use tokio::net::TcpListener;

use super::{ARGUMENTS, Table};
use crate::common::{Reply, call, page, redirect, serve};

const PUBLIC: &str = "93.184.215.14";

type Answer = Ready<io::Result<Vec<IpAddr>>>;

/// Names of the tests, without a DNS server.
fn lookup() -> impl Fn(String) -> Answer {
    |name| {
        let addresses: &[&str] = match name.trim_end_matches('.') {
            "localhost" | "a.localhost" | "127.0.0.1.names.test" => &["127.0.0.1"],
            "localhost6.test" => &["::1"],
            "internal.test" => &["10.0.0.5"],
            "metadata.test" => &["169.254.169.254"],
            "mixed.test" => &[PUBLIC, "10.0.0.1"],
            "mapped.test" => &["::ffff:10.0.0.1"],
            "nat64.test" => &["64:ff9b::a00:1"],
            "private6.test" => &["fd00::1"],
            "zero.test" => &["0.0.0.0"],
            "empty.test" => &[],
            "public.test" => &[PUBLIC],
            _ => return ready(Err(ErrorKind::NotFound.into())),
        };
        let addresses = addresses.iter().map(|address| address.parse::<IpAddr>().unwrap());
        ready(Ok(addresses.collect()))
    }
}

pub(super) async fn urls(table: &mut Table) {
    let tool = fetch().lookup(lookup()).tool().unwrap();
    table.section("fetch: the URL", "Nothing is connected to.");
    let scheme = "is not allowed; use http or https";
    let spaces = "white space or control characters";
    let login = "contains a user name or a password";
    let no_url = "is not a URL";
    let rows = [
        ("file:///etc/passwd", "a local file", scheme),
        ("FILE:///etc/passwd", "a local file, in capitals", scheme),
        ("ftp://public.test/", "another protocol", scheme),
        ("gopher://127.0.0.1:6379/_FLUSHALL", "bytes to a Redis server", scheme),
        ("dict://127.0.0.1:11211/stats", "a command to a memcached server", scheme),
        ("ldap://127.0.0.1/", "a directory server", scheme),
        ("data:text/html,hello", "content of the model's own", scheme),
        ("javascript:alert(1)", "a script", scheme),
        ("ws://public.test/", "a WebSocket", scheme),
        ("unix:/var/run/docker.sock", "a local socket", scheme),
        ("view-source:http://127.0.0.1/", "a URL inside of a URL", scheme),
        ("jar:http://127.0.0.1!/", "a URL inside of a URL", scheme),
        ("public.test", "no scheme", no_url),
        ("//127.0.0.1/", "no scheme", no_url),
        ("", "nothing", no_url),
        ("http://", "no host", no_url),
        ("http://[::1/", "an address that is not closed", no_url),
        ("http://[fe80::1%25eth0]/", "an IPv6 zone", no_url),
        ("http://[::1].public.test/", "an address that goes on as a name", no_url),
        ("http://4294967296/", "a number beyond IPv4", no_url),
        ("http://256.256.256.256/", "numbers beyond IPv4", no_url),
        ("http://127.0.0.1.5/", "an address of five numbers", no_url),
        ("http://0x1ffffffff/", "a hexadecimal number beyond IPv4", no_url),
        ("http://public.test:65536/", "a port beyond TCP", no_url),
        ("http://public.test:80abc/", "a port that is not a number", no_url),
        ("http://pub<lic.test/", "a character that no host has", no_url),
        ("http://user:secret@public.test/", "credentials", login),
        ("http://public.test@127.0.0.1/", "a host that looks like another", login),
        ("http://127.0.0.1:80@public.test/", "a host that looks like another", login),
        ("http://:secret@public.test/", "a password alone", login),
        ("http://public.test%2f@127.0.0.1/", "an encoded slash before the host", login),
        ("http://127.0.0.1 .public.test/", "white space in the host", spaces),
        ("http://127.0.\n0.1/", "a line feed, which a parser drops", spaces),
        ("\thttp://127.0.0.1/", "a tab, which a parser drops", spaces),
        ("http://public.test/\r\nX-Injected: 1", "another header", spaces),
        ("http://public.test/ HTTP/1.1", "another request line", spaces),
        ("http://public.test\0.evil.test/", "a NUL in the host", spaces),
        ("http://public.test:22/", "SSH", "port 22 is not allowed"),
        ("http://public.test:25/", "mail", "port 25 is not allowed"),
        ("http://public.test:6379/", "Redis", "port 6379 is not allowed"),
        (
            "https://public.test:8443/",
            "another HTTPS port",
            "port 8443 is not allowed; allowed: 80, 443",
        ),
        ("http://public.test:0/", "port zero", "port 0 is not allowed"),
    ];
    table.rows(&tool, "url", &rows).await;
    let long = format!("http://public.test/{}", "a".repeat(9_000));
    table.rows(&tool, "url", &[(&long, "a URL of 9,019 bytes", "too long")]).await;
    let objects = [
        (json!({"url": "http://public.test/", "method": "POST"}), "another method", ARGUMENTS),
        (
            json!({"url": "http://public.test/", "headers": {"Host": "x"}}),
            "headers of its own",
            ARGUMENTS,
        ),
        (json!({"url": ["http://public.test/", "http://127.0.0.1/"]}), "two URLs", ARGUMENTS),
        (json!({"url": "http://public.test/", "offset": -1}), "a negative offset", ARGUMENTS),
        (json!({}), "no URL", ARGUMENTS),
    ];
    table.objects(&tool, &objects).await;

    table.section(
        "fetch: addresses",
        "Every spelling becomes the address that would be connected to.",
    );
    let loopback = "a loopback address, which is not allowed";
    let private = "a private address, which is not allowed";
    let link_local = "a link-local address, which is not allowed";
    let documentation = "a documentation address";
    let rows = [
        ("http://127.0.0.1/", "loopback", loopback),
        ("HTTP://127.0.0.1:80/", "loopback", loopback),
        ("http://127.255.255.254/", "the end of loopback", loopback),
        ("http://2130706433/", "loopback as one number", loopback),
        ("http://0x7f000001/", "loopback in hexadecimal", loopback),
        ("http://017700000001/", "loopback in octal", loopback),
        ("http://0177.0.0.1/", "loopback, partly octal", loopback),
        ("http://0x7f.0.0.0x1/", "loopback, partly hexadecimal", loopback),
        ("http://127.1/", "loopback, short", loopback),
        ("http://127.0.1/", "loopback, short", loopback),
        ("http://127.000.000.001/", "loopback with zeros", loopback),
        ("http://127.0.0.1./", "loopback with a dot at the end", loopback),
        ("http://%31%32%37.0.0.1/", "loopback, percent-encoded", loopback),
        ("http://１２７.０.０.１/", "loopback in full-width digits", loopback),
        ("http://①②⑦.⓪.⓪.①/", "loopback in circled digits", loopback),
        ("http://127。0。0。1/", "loopback with ideographic dots", loopback),
        ("http://127.0.0.1\\@public.test/", "a backslash as the end of the host", loopback),
        ("http:127.0.0.1/", "loopback without slashes", loopback),
        ("http:////127.0.0.1/", "loopback with more slashes", loopback),
        ("http://0/", "this host", "an address of this network"),
        ("http://0.0.0.0/", "this host", "an address of this network"),
        ("http://10.0.0.1/", "a private network", private),
        ("http://172.16.0.1/", "a private network", private),
        ("http://172.31.255.255/", "the end of a private network", private),
        ("http://192.168.1.1/", "a router", private),
        ("http://3232235777/", "a router as one number", private),
        ("http://169.254.169.254/latest/meta-data/", "a cloud's metadata", link_local),
        ("http://2852039166/", "a cloud's metadata as one number", link_local),
        ("http://0xa9fea9fe/", "a cloud's metadata in hexadecimal", link_local),
        ("http://0251.0376.0251.0376/", "a cloud's metadata in octal", link_local),
        ("http://100.100.100.200/", "a cloud's metadata", "shared behind a carrier's NAT"),
        ("http://168.63.129.16/", "a cloud's metadata at a public address", "metadata address"),
        ("http://192.0.0.192/", "a cloud's metadata", "protocol assignment"),
        ("http://198.18.0.1/", "a benchmarking network", "a benchmarking address"),
        ("http://192.0.2.1/", "a documentation network", documentation),
        ("http://198.51.100.1/", "a documentation network", documentation),
        ("http://203.0.113.1/", "a documentation network", documentation),
        ("http://192.88.99.1/", "a 6to4 relay", "a 6to4 relay address"),
        ("http://224.0.0.1/", "multicast", "a multicast address"),
        ("http://240.0.0.1/", "a reserved network", "a reserved address"),
        ("http://255.255.255.255/", "broadcast", "the broadcast address"),
        ("http://[::1]/", "IPv6 loopback", loopback),
        ("http://[0:0:0:0:0:0:0:1]/", "IPv6 loopback, written out", loopback),
        ("http://[::]/", "this host in IPv6", "the unspecified address"),
        ("http://[::ffff:127.0.0.1]/", "loopback, mapped", "an IPv4-mapped address"),
        ("http://[::ffff:a9fe:a9fe]/", "a cloud's metadata, mapped", "an IPv4-mapped address"),
        ("http://[::127.0.0.1]/", "loopback, IPv4-compatible", "an IPv4-compatible address"),
        ("http://[::ffff:0:7f00:1]/", "loopback, translated", "not a global unicast address"),
        ("http://[64:ff9b::127.0.0.1]/", "loopback behind NAT64", loopback),
        ("http://[64:ff9b::a9fe:a9fe]/", "a cloud's metadata behind NAT64", link_local),
        ("http://[64:ff9b:1::a00:1]/", "a local NAT64 prefix", "a local NAT64 address"),
        ("http://[2002:7f00:1::]/", "loopback in 6to4", "a 6to4 address"),
        ("http://[2001:0:5ef5:79fd::1]/", "Teredo", "protocol assignment"),
        ("http://[fe80::1]/", "an IPv6 link", link_local),
        ("http://[fec0::1]/", "an IPv6 site", "not a global unicast address"),
        ("http://[fc00::1]/", "an IPv6 private network", private),
        ("http://[fd00:ec2::254]/", "a cloud's metadata in IPv6", private),
        ("http://[ff02::1]/", "IPv6 multicast", "a multicast address"),
        ("http://[2001:db8::1]/", "IPv6 documentation", documentation),
        ("http://[3fff::1]/", "IPv6 documentation", documentation),
        ("http://[100::1]/", "IPv6 discard", "not a global unicast address"),
        ("http://[5f00::1]/", "segment routing", "not a global unicast address"),
    ];
    table.rows(&tool, "url", &rows).await;
}

pub(super) async fn names(table: &mut Table) {
    let tool = fetch().lookup(lookup()).tool().unwrap();
    table.section(
        "fetch: names",
        "All addresses of a name are checked, and one of the checked addresses is connected to.",
    );
    let loopback = "127.0.0.1 is a loopback address";
    let rows = [
        ("http://localhost/", "a name of loopback", loopback),
        ("http://LOCALHOST./", "a name of loopback", loopback),
        ("http://a.localhost/", "a name of loopback", loopback),
        ("http://ⓛocalhost/", "a name that is normalised to localhost", loopback),
        ("http://local\u{ad}host/", "a name with a soft hyphen", loopback),
        ("http://127.0.0.1.names.test/", "a public name of loopback", loopback),
        ("http://localhost6.test/", "a name with an IPv6 address", "::1 is a loopback address"),
        ("http://internal.test/", "a name in a private network", "10.0.0.5 is a private address"),
        ("http://metadata.test/", "a cloud's metadata by name", "a link-local address"),
        ("http://mixed.test/", "a public and a private address", "10.0.0.1 is a private address"),
        ("http://mapped.test/", "a mapped address by name", "an IPv4-mapped address"),
        ("http://nat64.test/", "a private address behind NAT64 by name", "a private address"),
        ("http://private6.test/", "a private IPv6 address by name", "a private address"),
        ("http://zero.test/", "this host by name", "an address of this network"),
        ("http://empty.test/", "a name without addresses", "has no address"),
        ("http://unknown.test/", "a name that does not exist", "cannot be resolved"),
    ];
    table.rows(&tool, "url", &rows).await;

    // A name whose answers change with each look-up. The first leads to the server.
    let server = serve(|path| match path {
        "/moved" => redirect("/again"),
        _ => page("content-type: text/plain\r\n", "the first answer"),
    })
    .await;
    let changing = |answers: &'static [&'static str]| {
        let asked = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&asked);
        let lookup = move |_| {
            let answer = answers[count.fetch_add(1, Ordering::SeqCst).min(answers.len() - 1)];
            ready(Ok(vec![answer.parse::<IpAddr>().unwrap()]))
        };
        (fetch().allow_address(server).lookup(lookup).tool().unwrap(), asked)
    };
    let url = |path: &str| json!({"url": format!("http://changing.test:{}{path}", server.port())});
    for (answers, error) in [
        (&["127.0.0.1", "10.0.0.1"], "10.0.0.1 is a private address"),
        (&["127.0.0.1", "127.0.0.2"], "127.0.0.2 is a loopback address"),
        (&["127.0.0.1", "169.254.169.254"], "169.254.169.254 is a link-local address"),
    ] {
        let (tool, asked) = changing(answers);
        let found = call(&tool, url("/moved")).await;
        assert_eq!(asked.load(Ordering::SeqCst), 2, "one look-up for each request");
        let input = format!("http://changing.test:PORT/moved ({})", answers.join(", then "));
        table.row(&input, "another answer after a redirect", found, error);
    }
    // Between the check and the connection nothing is looked up: the second answer is never asked for.
    let (tool, asked) = changing(&["127.0.0.1", "10.0.0.1"]);
    assert_eq!(call(&tool, url("/")).await.unwrap()["text"], "the first answer");
    assert_eq!(asked.load(Ordering::SeqCst), 1);
}

pub(super) async fn servers(table: &mut Table) {
    // No connection may arrive here.
    let forbidden = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let forbidden_port = forbidden.local_addr().unwrap().port();
    let server = serve(move |path| hostile_reply(path, forbidden_port)).await;
    let allowed = fetch().allow_address(server).lookup(lookup()).max_bytes(10_000);
    let tool = allowed.clone().tool().unwrap();
    let hasty = allowed.timeout(Duration::from_millis(300)).tool().unwrap();
    let port = server.port();

    table.section("fetch: redirects", "Each redirect is checked like the first URL.");
    let scheme = "is not allowed; use http or https";
    for (to, attempt, error) in [
        ("http://127.0.0.1/", "loopback", "a loopback address"),
        ("http://127.0.0.1:FORBIDDEN/", "another service on loopback", "a loopback address"),
        (
            "//127.0.0.1:FORBIDDEN/",
            "another service on loopback, without a scheme",
            "a loopback address",
        ),
        ("http://2130706433/", "loopback as one number", "a loopback address"),
        ("http://[::1]/", "IPv6 loopback", "a loopback address"),
        ("http://localhost/", "loopback by name", "a loopback address"),
        ("http://169.254.169.254/latest/meta-data/", "a cloud's metadata", "a link-local address"),
        ("http://10.0.0.1/", "a private network", "a private address"),
        ("http://internal.test/", "a private network by name", "a private address"),
        ("https://192.168.0.1/", "a private network with TLS", "a private address"),
        ("file:///etc/passwd", "a local file", scheme),
        ("javascript:alert(1)", "a script", scheme),
        ("data:text/plain,hello", "content of its own", scheme),
        ("gopher://public.test/", "another protocol", scheme),
        ("http://user:secret@public.test/", "credentials", "a user name or a password"),
        ("http://public.test:22/", "another port", "port 22 is not allowed"),
        ("http://[", "no URL", "which is not a URL"),
        ("/loop", "itself, for ever", "more than 5 redirects"),
        ("", "nowhere", "more than 5 redirects"),
    ] {
        let path = format!("/to?{to}");
        let found = call(&tool, json!({"url": format!("http://127.0.0.1:{port}{path}")})).await;
        table.row(&format!("http://127.0.0.1:PORT/ → {to}"), attempt, found, error);
    }
    for (path, attempt, error) in [
        ("/no-location", "a redirect to nowhere", "without a readable location"),
        ("/bad-location", "a location that is not text", "without a readable location"),
        ("/long-location", "a location of 10,000 bytes", "too long"),
    ] {
        let found = call(&tool, json!({"url": format!("http://127.0.0.1:{port}{path}")})).await;
        table.row(&format!("http://127.0.0.1:PORT{path}"), attempt, found, error);
    }
    let nobody = tokio::time::timeout(Duration::from_millis(100), forbidden.accept()).await;
    assert!(nobody.is_err(), "the forbidden service was connected to");

    table.section("fetch: answers", "The limits are 10,000 bytes and 300 ms.");
    let too_large = "more than 10000 bytes";
    let too_late = "no complete answer within 300 ms";
    for (path, attempt, error) in [
        ("/announced", "a body of 10 GB by its header", too_large),
        ("/larger", "a body that is one byte too large", too_large),
        ("/endless", "a body without end", too_large),
        ("/endless-chunks", "chunks without end", too_large),
        ("/endless-html", "nested tags without end", too_large),
        ("/endless-headers", "headers without end", "could not be fetched"),
        ("/endless-informational", "informational answers without end", too_late),
        ("/slow-body", "a byte every 50 ms", too_late),
        ("/slow-head", "a byte every 50 ms in the headers", too_late),
        ("/silence", "no answer", too_late),
        ("/short", "a body that is shorter than announced", "could not be fetched"),
        ("/not-http", "an SSH server", "could not be fetched"),
        ("/nothing", "a connection that is closed", "could not be fetched"),
        ("/gzip", "a compressed body", "is compressed"),
        ("/brotli", "a compressed body", "is compressed"),
        ("/double", "a body that is compressed twice", "is compressed"),
        ("/image", "an image", "is not text but \"image/png\""),
        ("/binary", "a program", "is not text but \"application/octet-stream\""),
        ("/pdf", "a PDF", "is not text but \"application/pdf\""),
        ("/untyped", "a body without a type", "is not text but \"\""),
        ("/stream", "an endless stream of parts", "is not text but \"multipart/x-mixed-replace\""),
        ("/almost-text", "a type that looks like text", "is not text but \"textual/html\""),
        ("/long-type", "a type of 5,000 bytes", "is not text but \"xxx"),
        ("/missing", "a page that is missing", "answered 404 Not Found"),
        ("/login", "a page that wants credentials", "answered 401 Unauthorized"),
        ("/broken", "a server that fails", "answered 500 Internal Server Error"),
    ] {
        let tool = if error == too_late { &hasty } else { &tool };
        let found = call(tool, json!({"url": format!("http://127.0.0.1:{port}{path}")})).await;
        table.row(&format!("http://127.0.0.1:PORT{path}"), attempt, found, error);
    }
    let tls = call(&tool, json!({"url": format!("https://127.0.0.1:{port}/")})).await;
    table.row(
        "https://127.0.0.1:PORT/",
        "TLS with a server that has none",
        tls,
        "could not be fetched",
    );
    let long = format!("/missing?{}", "a".repeat(8_000));
    let found = call(&tool, json!({"url": format!("http://127.0.0.1:{port}{long}")})).await;
    let input = format!("http://127.0.0.1:PORT{long}");
    table.row(&input, "an error of 8,000 bytes", found, "answered 404 Not Found");
    let after = json!({"url": format!("http://127.0.0.1:{port}/small"), "offset": 100});
    let found = call(&tool, after).await;
    table.row(
        "http://127.0.0.1:PORT/small, offset 100",
        "text after the end",
        found,
        "after the end",
    );
}

fn hostile_reply(path: &str, forbidden: u16) -> Reply {
    let text = "content-type: text/plain\r\n";
    let ok = "HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n";
    let status =
        |line: &str| Reply::Bytes(format!("HTTP/1.1 {line}\r\ncontent-length: 0\r\n\r\n").into());
    let endless = |head: String, then: &str| Reply::Endless(head.into(), then.as_bytes().to_vec());
    if let Some(to) = path.strip_prefix("/to?") {
        return redirect(&to.replace("FORBIDDEN", &forbidden.to_string()));
    }
    let path = path.split('?').next().unwrap_or_default();
    match path {
        "/loop" => redirect("/loop"),
        "/no-location" => status("302 Found"),
        "/bad-location" => Reply::Bytes(
            b"HTTP/1.1 302 Found\r\nlocation: \xff\xfe\r\ncontent-length: 0\r\n\r\n".to_vec(),
        ),
        "/long-location" => redirect(&format!("/{}", "a".repeat(10_000))),
        "/announced" => Reply::Drip(format!("{ok}content-length: 10000000000\r\n\r\n").into()),
        "/larger" => page(text, &"a".repeat(10_001)),
        "/endless" => endless(format!("{ok}\r\n"), &"a".repeat(1_000)),
        "/endless-chunks" => {
            endless(format!("{ok}transfer-encoding: chunked\r\n\r\n"), "1\r\na\r\n")
        }
        "/endless-html" => endless(
            "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\n\r\n".into(),
            "<div><a href='x'>",
        ),
        "/endless-headers" => endless("HTTP/1.1 200 OK\r\n".into(), "x-more: and more\r\n"),
        "/endless-informational" => {
            Reply::Endless(Vec::new(), b"HTTP/1.1 103 Early Hints\r\n\r\n".to_vec())
        }
        "/slow-body" => Reply::Drip(format!("{ok}content-length: 1000\r\n\r\n").into()),
        "/slow-head" => Reply::Drip(b"HTTP/1.1 200 OK\r\nx-slow: ".to_vec()),
        "/silence" => Reply::Silence,
        "/short" => Reply::Bytes(format!("{ok}content-length: 1000\r\n\r\nshort").into()),
        "/not-http" => Reply::Bytes(b"SSH-2.0-OpenSSH_9.9\r\n".to_vec()),
        "/nothing" => Reply::Bytes(Vec::new()),
        "/gzip" => page(&format!("{text}content-encoding: gzip\r\n"), "\u{1f}"),
        "/brotli" => page(&format!("{text}content-encoding: br\r\n"), "x"),
        "/double" => page(&format!("{text}content-encoding: identity, gzip\r\n"), "x"),
        "/image" => page("content-type: image/png\r\n", "x"),
        "/binary" => page("content-type: application/octet-stream\r\n", "x"),
        "/pdf" => page("content-type: application/pdf\r\n", "x"),
        "/untyped" => page("", "x"),
        "/stream" => page("content-type: multipart/x-mixed-replace; boundary=x\r\n", "x"),
        "/almost-text" => page("content-type: textual/html\r\n", "x"),
        "/long-type" => page(&format!("content-type: {}\r\n", "x".repeat(5_000)), "x"),
        "/missing" => status("404 Not Found"),
        "/login" => status("401 Unauthorized"),
        "/broken" => status("500 Internal Server Error"),
        _ => page(text, "small"),
    }
}
