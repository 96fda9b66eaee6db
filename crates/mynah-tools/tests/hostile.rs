//! Hostile inputs: each is refused with an error that the model can read, and listed in `docs/tools-hostile.md`.
//!
//! `MYNAH_BLESS=1` writes the list anew.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "helpers fail as tests do"
)]
#![cfg(unix)]

mod common;

use std::{
    fmt::Write as _,
    fs,
    future::{Ready, ready},
    io::{self, ErrorKind},
    net::IpAddr,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use common::{Reply, call, named, outcome, page, redirect, serve};
use mynah_data::ToolOutcome;
use mynah_step::Tool;
use mynah_tools::{ask_user, calculator, fetch, files, now, shell};
use serde_json::{Value, json};
use tokio::net::TcpListener;

/// The list, and what was found wrong while it was made.
#[derive(Default)]
struct Table {
    text: String,
    count: usize,
    wrong: Vec<String>,
}

impl Table {
    fn section(&mut self, title: &str, words: &str) {
        let _ = write!(
            self.text,
            "\n## {title}\n\n{words}\n\n| input | what it attempts | error contains |\n|---|---|---|\n"
        );
    }

    fn row(&mut self, input: &str, attempt: &str, found: Result<Value, String>, error: &str) {
        self.count += 1;
        let input: String = match input.chars().count() > 80 {
            true => input.chars().take(60).chain("…".chars()).collect(),
            false => input.to_owned(),
        };
        let input = input.escape_debug().to_string().replace("\\\"", "\"").replace('|', "\\|");
        let shown = error.replace('|', "\\|");
        let _ = writeln!(self.text, "| `{input}` | {attempt} | {shown} |");
        match found {
            Err(told) if told.contains(error) && told.len() < 1_000 => {}
            found => self.wrong.push(format!("{input} ({attempt}): {found:?}")),
        }
    }

    /// Calls a tool with one argument in many spellings.
    async fn rows(&mut self, tool: &Tool, argument: &str, rows: &[(&str, &str, &str)]) {
        for (input, attempt, error) in rows {
            let found = call(tool, json!({argument: input})).await;
            self.row(input, attempt, found, error);
        }
    }

    /// Calls a tool with whole objects of arguments.
    async fn objects(&mut self, tool: &Tool, rows: &[(Value, &str, &str)]) {
        for (arguments, attempt, error) in rows {
            let found = call(tool, arguments.clone()).await;
            self.row(&arguments.to_string(), attempt, found, error);
        }
    }
}

const HEAD: &str = "# Hostile inputs of the ready-made tools

COUNT inputs that a model may pass to the tools of `mynah-tools`, by mistake or because a page that it read told it to, and the error that it gets for each. \
Each row is a call in `crates/mynah-tools/tests/hostile.rs`, which writes this page (`MYNAH_BLESS=1`).

`PORT` is the port of a test server on loopback that was allowed with `allow_address`.
";

#[tokio::test(flavor = "multi_thread")]
async fn every_hostile_input_is_refused_and_listed() {
    let mut table = Table::default();
    urls(&mut table).await;
    names(&mut table).await;
    servers(&mut table).await;
    paths(&mut table).await;
    writes(&mut table).await;
    searches(&mut table).await;
    races(&mut table).await;
    commands(&mut table).await;
    small(&mut table).await;
    assert!(table.wrong.is_empty(), "\n{}", table.wrong.join("\n"));
    assert!(table.count >= 100, "only {} inputs", table.count);

    let text = HEAD.replace("COUNT", &table.count.to_string()) + &table.text;
    let list = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/tools-hostile.md");
    if std::env::var_os("MYNAH_BLESS").is_some() {
        fs::write(&list, &text).unwrap();
    }
    let listed = fs::read_to_string(&list).unwrap_or_default();
    assert!(listed == text, "docs/tools-hostile.md is not this list; MYNAH_BLESS=1 writes it");
}

/// What the loop reports of arguments that do not fit the schema.
const ARGUMENTS: &str = "invalid_arguments";

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

async fn urls(table: &mut Table) {
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

async fn names(table: &mut Table) {
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

async fn servers(table: &mut Table) {
    // Nobody may connect here.
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

/// A folder with traps, and a folder beside it that must stay as it is.
struct Trapped {
    _dir: tempfile::TempDir,
    root: PathBuf,
    outside: PathBuf,
}

impl Trapped {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().canonicalize().unwrap();
        let (root, outside) = (base.join("root"), base.join("outside"));
        fs::create_dir_all(root.join("sub")).unwrap();
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("secret"), "secret").unwrap();
        fs::write(root.join("file.txt"), "aaaa\nbb\nbb\n").unwrap();
        fs::write(root.join("binary"), b"a\0b").unwrap();
        fs::write(root.join("latin1"), b"caf\xe9").unwrap();
        fs::write(root.join("large"), vec![b'a'; 20_000]).unwrap();
        fs::File::create(root.join("sparse")).unwrap().set_len(1 << 40).unwrap();
        fs::write(root.join("read-only"), "fixed").unwrap();
        let mut fixed = fs::metadata(root.join("read-only")).unwrap().permissions();
        fixed.set_readonly(true);
        fs::set_permissions(root.join("read-only"), fixed).unwrap();
        for (to, name) in [
            (outside.join("secret"), "link"),
            ("../outside/secret".into(), "relative-link"),
            (outside.clone(), "dir-link"),
            ("../outside".into(), "relative-dir-link"),
            ("second".into(), "first"),
            ("link".into(), "second"),
            ("loop".into(), "loop"),
            (outside.join("new"), "dangling"),
            ("/".into(), "slash"),
            ("/etc/passwd".into(), "passwd"),
            ("/proc/self/environ".into(), "environ"),
            ("/dev/zero".into(), "zero"),
            ("sub/../..".into(), "up"),
        ] {
            symlink(to, root.join(name)).unwrap();
        }
        let made = std::process::Command::new("mkfifo").arg(root.join("fifo")).status().unwrap();
        assert!(made.success());
        std::os::unix::net::UnixListener::bind(root.join("socket")).unwrap();
        Self { _dir: dir, root, outside }
    }

    fn tools(&self) -> Vec<Tool> {
        files(&self.root).unwrap().max_file(10_000).read_write()
    }

    fn check_outside(&self) {
        let names: Vec<_> =
            fs::read_dir(&self.outside).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(names, ["secret"]);
        assert_eq!(fs::read_to_string(self.outside.join("secret")).unwrap(), "secret");
    }
}

const OUT: &str = "leads out of the folder";
const ABSOLUTE: &str = "is an absolute path";
const PARENT: &str = "contains \"..\"";
const IRREGULAR: &str = "is not a regular file but a device, pipe or socket";
const UNFOLLOWED: &str = "leads through a symbolic link that cannot be followed";
const CONTROL: &str = "contains control characters";

async fn paths(table: &mut Table) {
    let trapped = Trapped::new();
    let tools = trapped.tools();
    table.section("read_file", "The folder has links to its outside, pipes, and files that are no text. The limit is 10,000 bytes.");
    let read = named(&tools, "read_file");
    let long_name = "n".repeat(300);
    let long_path = "d/".repeat(3_000);
    let rows = [
        ("../outside/secret", "the folder beside", PARENT),
        ("sub/../../outside/secret", "the folder beside", PARENT),
        ("sub/..", "the folder above", PARENT),
        ("./../outside/secret", "the folder beside", PARENT),
        ("..", "the folder above", PARENT),
        ("/etc/passwd", "an absolute path", ABSOLUTE),
        ("//etc/passwd", "an absolute path", ABSOLUTE),
        ("/proc/self/environ", "the environment of the process", ABSOLUTE),
        ("link", "a link to an absolute path", OUT),
        ("relative-link", "a link to a relative path", OUT),
        ("dir-link/secret", "a link to a folder", OUT),
        ("relative-dir-link/secret", "a link to a folder", OUT),
        ("first", "a link to a link", OUT),
        ("up/outside/secret", "a link that goes up", OUT),
        ("slash/etc/passwd", "a link to the root", OUT),
        ("passwd", "a link to a system file", OUT),
        ("environ", "a link to the environment", OUT),
        ("zero", "a link to a device", OUT),
        ("loop", "a link to itself", UNFOLLOWED),
        ("dangling", "a link to nothing", OUT),
        ("fifo", "a pipe that nobody writes to", IRREGULAR),
        ("socket", "a socket", IRREGULAR),
        ("sub", "a folder", "is a folder, not a file"),
        (".", "the folder itself", "is a folder, not a file"),
        ("", "no path", "is a folder, not a file"),
        ("missing", "a file that is missing", "does not exist"),
        ("file.txt/x", "a file as a folder", "leads through something that is not a folder"),
        ("file.txt\0.png", "a NUL", CONTROL),
        ("file\n.txt", "a line feed", CONTROL),
        ("\u{1b}[2Jfile", "an escape sequence for the terminal", CONTROL),
        ("file\u{202e}txt.exe", "a name that is shown backwards", CONTROL),
        (long_name.as_str(), "a name of 300 bytes", "is too long a name"),
        (long_path.as_str(), "a path of 6,000 bytes", "too long"),
        ("~/.ssh/id_rsa", "the home folder of a shell", "does not exist"),
        ("$HOME/.ssh/id_rsa", "a variable of a shell", "does not exist"),
        ("file:///etc/passwd", "a URL", "does not exist"),
        ("%2e%2e/outside/secret", "percent-encoded dots", "does not exist"),
        ("..\\outside\\secret", "backslashes", "does not exist"),
        ("‥/outside/secret", "a character that looks like two dots", "does not exist"),
        ("binary", "a file with a NUL", "is not UTF-8 text"),
        ("latin1", "a file in another encoding", "is not UTF-8 text"),
        ("large", "a file of 20,000 bytes", "is larger than 10000 bytes"),
        ("sparse", "a file of 1 TiB", "is larger than 10000 bytes"),
    ];
    table.rows(&read, "path", &rows).await;
    let objects = [
        (
            json!({"path": "file.txt", "first_line": 1_000_000}),
            "lines after the end",
            "after the end",
        ),
        (json!({"path": "file.txt", "first_line": -1}), "a negative line", ARGUMENTS),
        (json!({"path": "file.txt", "max_lines": 1e99}), "a number beyond any", ARGUMENTS),
        (json!({"path": "file.txt", "root": "/"}), "another root", ARGUMENTS),
        (json!({"path": null}), "no path", ARGUMENTS),
    ];
    table.objects(&read, &objects).await;

    table.section("read_file in /proc and /dev", "Even with such a folder as the root.");
    let system = named(&files("/proc").unwrap().max_file(100).read_only(), "read_file");
    let rows = [
        ("self/root/etc/passwd", "a link of the kernel to the root", UNFOLLOWED),
        ("self/cwd/Cargo.toml", "a link of the kernel to the current folder", UNFOLLOWED),
        ("self/exe", "a link of the kernel to the program", UNFOLLOWED),
        ("self/fd/0", "a link of the kernel to an open file", UNFOLLOWED),
        ("self/status", "a file that says it is empty", "is larger than 100 bytes"),
    ];
    table.rows(&system, "path", &rows).await;
    let devices = named(&files("/dev").unwrap().max_file(10_000).read_only(), "read_file");
    let rows = [
        ("zero", "a device without end", IRREGULAR),
        ("null", "a device", IRREGULAR),
        ("random", "a device", IRREGULAR),
        ("tty", "the terminal", IRREGULAR),
    ];
    table.rows(&devices, "path", &rows).await;

    table.section("list_dir", "The same folder.");
    let rows = [
        ("..", "the folder above", PARENT),
        ("/", "an absolute path", ABSOLUTE),
        ("dir-link", "a link to a folder", OUT),
        ("up", "a link that goes up", OUT),
        ("slash", "a link to the root", OUT),
        ("file.txt", "a file", "leads through something that is not a folder"),
        ("fifo", "a pipe", "leads through something that is not a folder"),
        ("sub\0", "a NUL", CONTROL),
    ];
    table.rows(&named(&tools, "list_dir"), "path", &rows).await;
    trapped.check_outside();
}

async fn writes(table: &mut Table) {
    let trapped = Trapped::new();
    let tools = trapped.tools();
    table.section("write_file", "Nothing outside of the folder is created or changed.");
    let write = named(&tools, "write_file");
    let long_name = "n".repeat(300);
    for (path, attempt, error) in [
        ("../new", "the folder above", PARENT),
        ("sub/../../new", "the folder above", PARENT),
        ("/tmp/new", "an absolute path", ABSOLUTE),
        ("link", "a link to a file", "is a symbolic link"),
        ("dangling", "a link to a file that would be created", "is a symbolic link"),
        ("dir-link/new", "a link to a folder", OUT),
        ("dir-link/new/deep", "folders below a link", OUT),
        ("relative-dir-link/secret", "a link to a folder", OUT),
        ("up/new", "a link that goes up", OUT),
        ("slash/tmp/new", "a link to the root", OUT),
        ("environ", "a link to the environment", "is a symbolic link"),
        ("fifo", "a pipe", IRREGULAR),
        ("socket", "a socket", IRREGULAR),
        ("sub", "a folder", "is a folder, not a file"),
        (".", "the folder itself", "is a folder, not a file"),
        ("file.txt/new", "a file as a folder", "file.txt/new"),
        ("read-only", "a file that is read-only", "is read-only"),
        ("new\0", "a NUL", CONTROL),
        (long_name.as_str(), "a name of 300 bytes", "is too long a name"),
    ] {
        let found = call(&write, json!({"path": path, "content": "x"})).await;
        table.row(path, attempt, found, error);
    }
    let large = "a".repeat(10_001);
    let found = call(&write, json!({"path": "new", "content": large})).await;
    table.row("new", "10,001 bytes", found, "would have 10001 bytes; the limit is 10000");
    let objects = [
        (
            json!({"path": "new", "content": "x", "mode": "4755"}),
            "permissions of its own",
            ARGUMENTS,
        ),
        (json!({"path": "new"}), "no content", ARGUMENTS),
    ];
    table.objects(&write, &objects).await;

    table.section("edit_file", "The file `file.txt` holds `aaaa`, `bb` and `bb` in three lines.");
    let edit = named(&tools, "edit_file");
    let change = |path: &str, old: &str, new: &str| json!({"path": path, "old": old, "new": new});
    let objects = [
        (change("file.txt", "", "x"), "nothing to replace", "the old text is empty"),
        (change("file.txt", "missing", "x"), "text that is missing", "occurs 0 times"),
        (
            change("file.txt", "bb", "x"),
            "text that is not unique",
            "occurs 2 times in file.txt, not 1",
        ),
        (
            json!({"path": "file.txt", "old": "bb", "new": "x", "count": 3}),
            "a wrong count",
            "occurs 2 times in file.txt, not 3",
        ),
        (
            json!({"path": "file.txt", "old": "zz", "new": "x", "count": 0}),
            "a count of zero",
            "occurs 0 times",
        ),
        (
            json!({"path": "file.txt", "old": "a", "new": "x".repeat(5_000), "count": 4}),
            "growth beyond the limit",
            "would have 20007 bytes",
        ),
        (change("../outside/secret", "secret", "x"), "the folder beside", PARENT),
        (change("/etc/passwd", "root", "x"), "an absolute path", ABSOLUTE),
        (change("link", "secret", "x"), "a link to a file", OUT),
        (change("dir-link/secret", "secret", "x"), "a link to a folder", OUT),
        (change("fifo", "a", "x"), "a pipe", IRREGULAR),
        (change("binary", "a", "x"), "a file that is not text", "is not UTF-8 text"),
        (change("large", "a", "x"), "a file that is too large", "is larger than 10000 bytes"),
        (change("read-only", "fixed", "x"), "a file that is read-only", "is read-only"),
        (change("missing", "a", "x"), "a file that is missing", "does not exist"),
    ];
    table.objects(&edit, &objects).await;
    trapped.check_outside();
    assert_eq!(fs::read_to_string(trapped.root.join("file.txt")).unwrap(), "aaaa\nbb\nbb\n");
    let is_temporary = |entry: fs::DirEntry| entry.path().extension().is_some_and(|e| e == "tmp");
    assert!(!fs::read_dir(&trapped.root).unwrap().any(|entry| is_temporary(entry.unwrap())));
}

async fn searches(table: &mut Table) {
    let trapped = Trapped::new();
    let search = named(&trapped.tools(), "search_files");
    table.section("search_files", "Patterns are bounded in length and compiled size, and matched in linear time. No program is run.");
    let deep = format!("{}a{}", "(".repeat(400), ")".repeat(400));
    let long = "a".repeat(1_001);
    let braces = format!("{}a{}", "{".repeat(400), "}".repeat(400));
    let no_pattern = "the pattern cannot be used";
    let no_glob = "the glob cannot be used";
    let objects = [
        (json!({"path": ".."}), "the folder above", PARENT),
        (json!({"path": "/etc"}), "an absolute path", ABSOLUTE),
        (json!({"path": "dir-link", "pattern": "secret"}), "a link to a folder", OUT),
        (json!({"path": "up"}), "a link that goes up", OUT),
        (json!({"path": "missing"}), "a folder that is missing", "does not exist"),
        (json!({"path": "sub\0"}), "a NUL", CONTROL),
        (json!({"pattern": "(a{1000}){1000}"}), "a pattern that explodes", no_pattern),
        (json!({"pattern": "((a{99}){99}){99}"}), "a pattern that explodes", no_pattern),
        (json!({"pattern": "\\w{10000}"}), "a pattern that explodes", no_pattern),
        (json!({"pattern": deep}), "a pattern that nests 400 levels", no_pattern),
        (json!({"pattern": long}), "a pattern of 1,001 bytes", "too long"),
        (json!({"pattern": "("}), "a pattern that is not closed", no_pattern),
        (json!({"pattern": "(a)\\1"}), "a back-reference", no_pattern),
        (json!({"pattern": "(?<=a)b"}), "a look-behind", no_pattern),
        (json!({"glob": "["}), "a glob that is not closed", no_glob),
        (json!({"glob": "{a"}), "a glob that is not closed", no_glob),
        (json!({"glob": "[z-a]"}), "a range that runs backwards", no_glob),
        (json!({"glob": braces}), "a glob that nests 400 levels", no_glob),
        (json!({"glob": long}), "a glob of 1,001 bytes", "too long"),
        (json!({"pattern": "a", "command": "grep"}), "a program", ARGUMENTS),
    ];
    table.objects(&search, &objects).await;
    // A whole search passes the traps, and finds nothing of the outside.
    let found = call(&search, json!({"pattern": "secret|root:"})).await.unwrap();
    assert_eq!(found, json!({"matches": []}));
    let found = call(&search, json!({})).await.unwrap().to_string();
    assert!(
        found.contains("file.txt") && !found.contains("fifo") && !found.contains("link"),
        "{found}"
    );
    // Patterns that need exponential time elsewhere.
    fs::write(trapped.root.join("as"), "a".repeat(9_999)).unwrap();
    let begun = tokio::time::Instant::now();
    let found =
        call(&search, json!({"pattern": "(a+)+$|(a|aa)+b|(.*a){12}", "glob": "as"})).await.unwrap();
    assert_eq!(found["matches"].as_array().unwrap().len(), 1);
    assert!(begun.elapsed() < Duration::from_secs(5));
}

/// Swaps a folder and a link to the outside, until it is dropped.
struct Swapping(Arc<AtomicBool>, Option<std::thread::JoinHandle<usize>>);

impl Swapping {
    fn new(root: &Path, outside: &Path) -> Self {
        let (live, link) = (root.join("live"), root.join("spare"));
        fs::create_dir(&live).unwrap();
        fs::write(live.join("secret"), "inside").unwrap();
        symlink(outside, &link).unwrap();
        let on = Arc::new(AtomicBool::new(true));
        let is_on = Arc::clone(&on);
        let swap = move || {
            let mut count = 0;
            while is_on.load(Ordering::SeqCst) {
                let flags = rustix::fs::RenameFlags::EXCHANGE;
                rustix::fs::renameat_with(rustix::fs::CWD, &live, rustix::fs::CWD, &link, flags)
                    .unwrap();
                count += 1;
            }
            count
        };
        Self(on, Some(std::thread::spawn(swap)))
    }

    fn stop(mut self) -> usize {
        self.0.store(false, Ordering::SeqCst);
        self.1.take().unwrap().join().unwrap()
    }
}

async fn races(table: &mut Table) {
    table.section(
        "Races",
        "A thread swaps the folder `live` and a link to the outside as fast as it can. Each call succeeds inside of the folder or is refused.",
    );
    let search = json!({"path": "live", "pattern": "."});
    for (tool, arguments) in [
        ("read_file", json!({"path": "live/secret"})),
        ("list_dir", json!({"path": "live"})),
        ("search_files", search),
        ("write_file", json!({"path": "live/secret", "content": "inside"})),
        ("edit_file", json!({"path": "live/secret", "old": "inside", "new": "inside"})),
    ] {
        let trapped = Trapped::new();
        // What tells the outside apart.
        let marker = "outside-only";
        fs::write(trapped.outside.join(marker), "secret").unwrap();
        let swapping = Swapping::new(&trapped.root, &trapped.outside);
        let tool_of = named(&trapped.tools(), tool);
        let (mut refusal, mut done, mut calls) = (None, 0, 0);
        let begun = tokio::time::Instant::now();
        let within = |seconds| begun.elapsed() < Duration::from_secs(seconds);
        // Until both happened, and often enough to hit a gap between a check and its use.
        while calls < 6_000 && within(3) || (done == 0 || refusal.is_none()) && within(60) {
            calls += 1;
            match call(&tool_of, arguments.clone()).await {
                Ok(value) => {
                    let text = value.to_string();
                    assert!(!text.contains(marker) && value["text"] != "secret", "{tool}: {text}");
                    let is_secret = value["matches"]
                        .as_array()
                        .is_some_and(|found| found.iter().any(|m| m["text"] == "secret"));
                    assert!(!is_secret, "{tool}: {text}");
                    done += 1;
                }
                Err(error) if error.contains(OUT) => refusal = Some(error),
                Err(_) => {}
            }
        }
        assert!(swapping.stop() > 100);
        assert!(done > 0, "{tool} never succeeded");
        fs::remove_file(trapped.outside.join(marker)).unwrap();
        trapped.check_outside();
        let found = refusal.map_or(Ok(Value::Null), Err);
        table.row(&arguments.to_string(), tool, found, OUT);
    }
}

async fn commands(table: &mut Table) {
    let dir = tempfile::tempdir().unwrap();
    let tool = shell().dir(dir.path()).timeout(Duration::from_millis(400)).max_output(200).tool();
    table.section(
        "shell",
        "A person has allowed the command. The limits are 400 ms and 200 bytes of each output.",
    );
    let killed = "did not end within 400 ms and was killed";
    let long = "a".repeat((64 << 10) + 1);
    let rows = [
        ("", "nothing", "the command is empty"),
        (" \n\t", "white space", "the command is empty"),
        ("echo a\0b", "a NUL", "contains a NUL character"),
        (long.as_str(), "a command of 65,537 bytes", "too long"),
        ("sleep 60", "a command that does not end", killed),
        ("sleep 60 | sleep 60", "processes that do not end", killed),
        ("sleep 60 & wait", "a process in the background", killed),
        ("(sleep 60; touch late) & wait", "a process in the background that would go on", killed),
        ("trap '' TERM INT HUP; while :; do :; done", "a command that ignores signals", killed),
        ("exec >&- 2>&-; sleep 60", "a command that closes its output", killed),
        ("yes", "output without end", killed),
        ("yes >&2", "errors without end", killed),
        ("cat /dev/zero", "zeros without end", killed),
        ("kill -STOP $$", "a command that stops itself", killed),
    ];
    table.rows(&tool, "command", &rows).await;
    let objects = [
        (
            json!({"command": "env", "env": {"LD_PRELOAD": "x.so"}}),
            "variables of its own",
            ARGUMENTS,
        ),
        (json!({"command": "pwd", "dir": "/"}), "a folder of its own", ARGUMENTS),
        (json!({"command": "sleep 60", "timeout": 3600}), "a time limit of its own", ARGUMENTS),
        (json!({"command": ["rm", "-rf", "/"]}), "a list", ARGUMENTS),
    ];
    table.objects(&tool, &objects).await;
    let nowhere = shell().dir("/no/such/folder").tool();
    let found = call(&nowhere, json!({"command": "true"})).await;
    table.row("true", "a folder that is missing", found, "the command cannot be run");

    let tool = shell().dir(dir.path()).tool();
    // What begins with a dash is a command and no option of the shell; input is empty; nothing is inherited.
    let option = call(&tool, json!({"command": "-s"})).await.unwrap();
    assert_eq!(option["exit_code"], 127);
    assert_eq!(call(&tool, json!({"command": "cat"})).await.unwrap()["stdout"], "");
    let env = call(&tool, json!({"command": "env | cut -d= -f1 | sort"})).await.unwrap();
    assert_eq!(env["stdout"], "LANG\nPATH\nPWD\n");
    // A process in the background does not outlive its command, and does not hold the call.
    let left =
        call(&tool, json!({"command": "(sleep 0.3; touch late) & echo done"})).await.unwrap();
    assert_eq!(left["stdout"], "done\n");
    tokio::time::sleep(Duration::from_millis(600)).await;
    assert!(!dir.path().join("late").exists());
}

async fn small(table: &mut Table) {
    table.section(
        "calculator",
        "Length, nesting and numbers are bounded, and there is nothing but arithmetic.",
    );
    let nested = "(".repeat(900);
    let signs = format!("{}1", "-".repeat(900));
    let powers = format!("{}2", "2^".repeat(400));
    let digits = "9".repeat(1_001);
    let calls = format!("{}1{}", "abs(".repeat(100), ")".repeat(100));
    let too_large = "too large or too small";
    let rows = [
        (nested.as_str(), "900 parentheses", "nests deeper than 64 levels"),
        (signs.as_str(), "900 signs", "nests deeper than 64 levels"),
        (powers.as_str(), "400 powers", "nests deeper than 64 levels"),
        (calls.as_str(), "100 functions", "nests deeper than 64 levels"),
        (digits.as_str(), "1,001 digits", "at most 1000 are allowed"),
        ("9^9^9^9", "a tower of powers", too_large),
        ("2^4097", "a number of 4,098 bits", too_large),
        ("10^-5000", "a number close to zero", too_large),
        ("1e999999999", "a huge literal", too_large),
        ("1e-999999999", "a tiny literal", too_large),
        ("1e99999999999999999999", "an exponent beyond any", "is not a number"),
        ("exp(1000)", "a function that overflows", too_large),
        ("1/0", "a division by zero", "division by zero"),
        ("5 % (1 - 1)", "a remainder of zero", "division by zero"),
        ("0^-1", "a power of zero", "division by zero"),
        ("sqrt(-1)", "a number that is not real", "not a real number"),
        ("(-8)^0.5", "a number that is not real", "not a real number"),
        ("ln(0)", "infinity", too_large),
        ("round(1.5, 1e9)", "a billion decimals", "round takes 0 to 100 decimals"),
        ("max()", "a function without arguments", "expected a number"),
        ("sin(1, 2)", "too many arguments", "does not take 2 arguments"),
        ("__import__('os')", "a program", "expected a number"),
        ("system(1)", "a function that is none", "there is no function or constant \"system\""),
        ("a = 1", "a variable", "there is no function or constant \"a\""),
        ("1; 2", "two expressions", "expected an operator or the end"),
        ("1 2", "two numbers", "expected an operator or the end"),
        ("1,000", "a thousands separator", "expected an operator or the end"),
        ("(1", "a parenthesis that is not closed", "expected \")\", found the end"),
        ("1 +", "a missing number", "expected a number, found the end"),
        ("", "nothing", "expected a number, found the end"),
        (".", "a point alone", "is not a number"),
        ("１+１", "full-width digits", "expected a number"),
        ("1\0", "a NUL", "expected an operator or the end"),
    ];
    table.rows(&calculator(), "expression", &rows).await;

    table.section("ask_user", "The question is shown in a terminal.");
    let long = "a".repeat(4_001);
    let control = "contains the control character";
    let many: Vec<_> = (0..21).map(|number| number.to_string()).collect();
    let objects = [
        (json!({"question": " "}), "nothing", "the question is empty"),
        (json!({"question": "\u{1b}[2J\u{1b}[HPassword:"}), "a cleared screen", control),
        (json!({"question": "\u{9b}2JPassword:"}), "a cleared screen, in one character", control),
        (json!({"question": "a\u{7}"}), "a bell", control),
        (json!({"question": "pay \u{202e}001"}), "text that is shown backwards", control),
        (json!({"question": "ok\rno"}), "a line that is overwritten", control),
        (
            json!({"question": "a?", "choices": ["\u{1b}]0;x\u{7}"]}),
            "a title of the window",
            control,
        ),
        (json!({"question": long}), "a question of 4,001 bytes", "too long for a question"),
        (json!({"question": "a?", "choices": many}), "21 choices", "are too many"),
    ];
    let asked = |found| match found {
        Ok(ToolOutcome::Error { error, .. }) => Err(error.as_str().unwrap_or_default().to_owned()),
        other => Ok(json!(format!("{other:?}"))),
    };
    for (arguments, attempt, error) in &objects {
        let found = asked(outcome(&ask_user(), arguments.clone()).await);
        table.row(&arguments.to_string(), attempt, found, error);
    }

    table.section("now", "Time zones are built in.");
    let long = "a".repeat(100_000);
    let no_zone = "there is no time zone";
    let rows = [
        ("../../etc/passwd", "a file", no_zone),
        ("/etc/localtime", "a file", no_zone),
        ("Mars/Phobos", "a zone that is none", no_zone),
        ("", "nothing", no_zone),
        ("UTC\0", "a NUL", no_zone),
        (long.as_str(), "a name of 100,000 bytes", no_zone),
    ];
    table.rows(&now(), "time_zone", &rows).await;
}
