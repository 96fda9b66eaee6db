//! How a server is reached: passwords, the password file, TLS, options as libpq names them.

use std::{
    env, fs,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::{Command, Output},
};

use mynah_log::{Log as _, conformance::Sample};
use mynah_postgres::PostgresLog;

use crate::server;

const PASSWORD: &str = "a pass:word with \\ in it";

/// What a process does that is started with other variables: it connects, and prints how that went.
#[test]
fn connects_as_it_is_told() {
    #[expect(clippy::disallowed_methods, reason = "the test above this process says what to do")]
    let Ok(url) = env::var("MYNAH_CONNECT") else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let connected = runtime.expect("a runtime").block_on(async {
        let log = PostgresLog::open(&url)?;
        log.init().await?;
        log.run("none").await
    });
    match connected {
        Ok(_) => println!("connected"),
        Err(error) => println!("refused: {error} {}", error.to_value()),
    }
}

/// Connects in a process with these variables.
fn connect(url: &str, variables: &[(&str, &str)]) -> String {
    let mut process = Command::new(env::current_exe().expect("this program"));
    process.args(["--exact", "connect::connects_as_it_is_told", "--nocapture"]);
    for name in [
        "PGPASSWORD",
        "PGPASSFILE",
        "PGUSER",
        "PGHOST",
        "PGPORT",
        "PGDATABASE",
        "PGSSLMODE",
        "PGSSLROOTCERT",
        "PGSSLCERT",
        "PGSSLKEY",
    ] {
        process.env_remove(name);
    }
    let home = env::temp_dir();
    process.env("HOME", home).env("MYNAH_CONNECT", url).envs(variables.iter().copied());
    let Output { stdout, stderr, .. } = process.output().expect("a process");
    String::from_utf8_lossy(&stdout).into_owned() + &String::from_utf8_lossy(&stderr)
}

fn is_connected(told: &str) -> bool {
    told.contains("connected") && !told.contains("refused")
}

#[test]
fn a_password_comes_from_the_url_a_variable_or_the_password_file() {
    let Some(server) = server::start() else { return };
    let port = server.port.to_string();
    server.sql("SET password_encryption = 'scram-sha-256'");
    server.sql(&format!("CREATE ROLE ann LOGIN SUPERUSER PASSWORD '{PASSWORD}'"));
    server.demand_passwords();
    let url = format!("postgres://ann@127.0.0.1:{port}/postgres");
    let refused = connect(&url, &[]);
    assert!(!is_connected(&refused), "{refused}");
    assert!(refused.contains("unusable") && refused.contains("PGPASSWORD"), "{refused}");
    let encoded = "a%20pass%3Aword%20with%20%5C%20in%20it";
    let in_url = format!("postgres://ann:{encoded}@127.0.0.1:{port}/postgres");
    assert!(is_connected(&connect(&in_url, &[])));
    assert!(is_connected(&connect(&url, &[("PGPASSWORD", PASSWORD)])));
    let file = server.folder().join("passwords");
    let lines = format!(
        "# passwords\nelsewhere:*:*:*:wrong\n127.0.0.1:{port}:*:ann:a pass\\:word with \\\\ in it\n"
    );
    fs::write(&file, lines).expect("a file");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("rights");
    let file = file.display().to_string();
    let from_file = connect(&url, &[("PGPASSFILE", &file)]);
    assert!(is_connected(&from_file), "{from_file}");
    let named = format!("postgres://ann@?passfile={}", file.replace('/', "%2F"));
    let place = [("PGHOST", "127.0.0.1"), ("PGPORT", &*port), ("PGDATABASE", "postgres")];
    let from_variables = connect(&named, &place);
    assert!(is_connected(&from_variables), "{from_variables}");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).expect("rights");
    let open = connect(&url, &[("PGPASSFILE", &file)]);
    assert!(!is_connected(&open) && open.contains("chmod 600"), "{open}");
    // A wrong password is in no message, and neither is the right one.
    let wrong =
        format!("postgres://ann:wrong-secret@127.0.0.1:{port}/postgres?password=other-secret");
    let told = connect(&wrong, &[]);
    assert!(!is_connected(&told) && told.contains("ann"), "{told}");
    assert!(!told.contains("wrong-secret") && !told.contains("other-secret"), "{told}");
}

#[tokio::test]
async fn options_have_the_names_that_libpq_gives_them() {
    let Some(server) = server::start() else { return };
    server.sql("CREATE SCHEMA named");
    let base = server.url("named", server.port);
    let more = "&application_name=teller&connect_timeout=3&keepalives_idle=30&target_session_attrs=read-write";
    let log = PostgresLog::open(&format!("{base}{more}")).expect("a URL");
    log.append(Sample::new("run", 0).batch()).await.expect("a new run");
    assert_eq!(server.sql("SELECT count(*) FROM named.mynah_runs"), "1");
    let teller = "SELECT count(*) > 0 FROM pg_stat_activity WHERE application_name = 'teller'";
    assert_eq!(server.sql(teller), "t");
    // A host that does not answer is passed over for the next.
    let two = base.replace("127.0.0.1:", "127.0.0.1:1,127.0.0.1:");
    let log = PostgresLog::open(&two).expect("two hosts");
    assert!(log.run("run").await.expect("an index").is_some());
    let wrong =
        PostgresLog::open("postgres://h/d?no_such_option=1").map(drop).expect_err("an option");
    assert_eq!(wrong.reason(), "unusable");
    let plain = PostgresLog::open("host=127.0.0.1 password=hidden-one port=x").map(drop);
    let told = plain.expect_err("a port").to_string();
    assert!(!told.contains("hidden-one"), "{told}");
}

#[test]
fn a_server_is_verified_when_that_is_asked_for() {
    let Some(server) = server::start() else { return };
    let Some((own, other)) = certificates(server.folder()) else {
        return eprintln!("notice: openssl is not installed, so TLS was not tested");
    };
    let plain = format!("postgres://test@localhost:{}/postgres?sslmode=verify-full", server.port);
    let told = connect(&plain, &[]);
    assert!(told.contains("unusable") && told.contains("give an sslmode"), "{told}");
    server.speak_tls();
    let url = |host: &str, options: &str| {
        format!("postgres://test@{host}:{}/postgres?{options}", server.port)
    };
    let connect = |host: &str, options: &str| connect(&url(host, options), &[]);
    for (host, options, connects) in [
        ("localhost", format!("sslmode=verify-full&sslrootcert={own}"), true),
        ("localhost", format!("sslmode=require&sslrootcert={}", own.replace('/', "%2F")), true),
        ("127.0.0.1", format!("sslmode=verify-full&sslrootcert={own}"), false),
        ("localhost", format!("sslmode=verify-full&sslrootcert={other}"), false),
        ("localhost", "sslmode=verify-full".to_owned(), false),
        ("localhost", format!("sslmode=verify-full&sslrootcert={own}.none"), false),
        ("localhost", "sslmode=prefer".to_owned(), true),
        ("localhost", "sslmode=disable".to_owned(), true),
    ] {
        let told = connect(host, &options);
        assert_eq!(is_connected(&told), connects, "{host} {options}: {told}");
        assert!(connects || told.contains("unusable"), "{host} {options}: {told}");
    }
    // Without TLS nothing gets in, so what got in before was encrypted.
    server.demand_tls();
    assert!(is_connected(&connect("localhost", &format!("sslmode=verify-full&sslrootcert={own}"))));
    assert!(is_connected(&connect("localhost", "sslmode=prefer")));
    assert!(!is_connected(&connect("localhost", "sslmode=disable")));
    let by_variable = url("localhost", "").trim_end_matches('?').to_owned();
    let variables = [("PGSSLMODE", "verify-full"), ("PGSSLROOTCERT", own.as_str())];
    assert!(is_connected(&self::connect(&by_variable, &variables)));
    // A role that needs a certificate of its own.
    server.sql("CREATE ROLE ann LOGIN SUPERUSER");
    server.demand_certificates("ann");
    let url = url("localhost", "sslmode=require").replace("test@", "ann@");
    let own = own.trim_end_matches(".crt");
    for (options, connects) in [
        (format!("&sslrootcert={own}.crt"), false),
        (format!("&sslrootcert={own}.crt&sslcert={own}.crt&sslkey={own}.key"), true),
    ] {
        let told = self::connect(&format!("{url}{options}"), &[]);
        assert_eq!(is_connected(&told), connects, "{options}: {told}");
    }
}

/// A certificate of `localhost` for the server, whose authority is the first file, and another authority; none if there is no
/// program to make them.
fn certificates(folder: &Path) -> Option<(String, String)> {
    let openssl = |args: &str| {
        let made =
            Command::new("openssl").args(args.split(' ')).current_dir(folder).output().ok()?;
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        Some(())
    };
    for name in ["own", "other"] {
        openssl(&format!(
            "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN={name} -keyout {name}.key -out {name}.crt"
        ))?;
    }
    openssl("req -newkey rsa:2048 -nodes -subj /CN=localhost -keyout server.key -out server.csr")?;
    fs::write(folder.join("names"), "subjectAltName=DNS:localhost\n").expect("a file");
    openssl(
        "x509 -req -days 2 -in server.csr -CA own.crt -CAkey own.key -CAcreateserial -extfile names -out server.crt",
    )?;
    let path = |name: &str| folder.join(name).display().to_string();
    Some((path("own.crt"), path("other.crt")))
}
