//! A PostgreSQL server in a temporary folder.
#![allow(dead_code, reason = "each test uses some of it")]
#![allow(clippy::expect_used, clippy::panic, reason = "helpers fail as tests do")]

use std::{
    env, fs,
    net::TcpListener,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::atomic::{AtomicU32, Ordering},
};

use tempfile::TempDir;

/// A server that is stopped when this is dropped.
pub(crate) struct Server {
    folder: TempDir,
    programs: PathBuf,
    pub(crate) port: u16,
    schemas: AtomicU32,
}

/// A server; none, with a notice, where PostgreSQL is not installed, unless this runs on CI.
pub(crate) fn start() -> Option<Server> {
    let Some(programs) = programs() else {
        let on_ci = env::var_os("CI").is_some_and(|value| !value.is_empty());
        assert!(!on_ci, "PostgreSQL is not installed: apt-get install postgresql");
        eprintln!(
            "notice: PostgreSQL is not installed, so this was not tested: apt-get install postgresql"
        );
        return None;
    };
    let folder = tempfile::Builder::new().prefix("mynah-pg").tempdir().expect("a folder");
    // The server's user must be able to enter it.
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).expect("rights");
    let port = TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr());
    let port = port.expect("a free port").port();
    let server = Server { folder, programs, port, schemas: AtomicU32::new(0) };
    let data = server.data();
    server.succeed(
        "initdb",
        &["-D", &data, "-A", "trust", "-U", "test", "--no-sync", "-E", "UTF8", "--locale=C"],
    );
    server.up();
    Some(server)
}

/// Where the programs of PostgreSQL are.
fn programs() -> Option<PathBuf> {
    let mut found: Vec<PathBuf> = fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path().join("bin")))
        .filter(|folder| folder.join("initdb").exists())
        .collect();
    found.sort();
    let path = env::var_os("PATH").unwrap_or_default();
    let on_path = env::split_paths(&path).find(|folder| folder.join("initdb").exists());
    found.pop().or(on_path)
}

impl Server {
    fn data(&self) -> String {
        self.folder.path().join("data").display().to_string()
    }

    /// Runs a program of the server's, as a user who is not root: the server refuses that one.
    fn run(&self, program: &str, args: &[&str]) -> Output {
        let program = self.programs.join(program);
        let is_root =
            fs::metadata("/proc/self").map(|own| std::os::unix::fs::MetadataExt::uid(&own));
        let mut command = if is_root.is_ok_and(|uid| uid == 0) {
            let mut command = Command::new("runuser");
            command.args(["-u", "postgres", "--"]).arg(program);
            command
        } else {
            Command::new(program)
        };
        command.args(args).current_dir(self.folder.path()).output().expect("a program")
    }

    fn succeed(&self, program: &str, args: &[&str]) {
        let output = self.run(program, args);
        let told = String::from_utf8_lossy(&output.stderr);
        let log = fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
        assert!(output.status.success(), "{program}: {told}\n{log}");
    }

    /// Starts it.
    pub(crate) fn up(&self) {
        let folder = self.folder.path().display().to_string();
        let options = format!(
            "-c listen_addresses=127.0.0.1 -p {} -k {folder} -c max_connections=200",
            self.port
        );
        let log = format!("{folder}/log");
        // Without `-l` the server would keep this process's pipes open.
        let args = ["-D", &self.data(), "-w", "-s", "-l", &log, "-o", &options, "start"];
        self.succeed("pg_ctl", &args);
    }

    /// Stops it at once, as a crash does.
    pub(crate) fn crash(&self) {
        self.succeed("pg_ctl", &["-D", &self.data(), "-s", "-m", "immediate", "stop"]);
    }

    /// Runs statements as the one who may do anything.
    pub(crate) fn sql(&self, statements: &str) -> String {
        let port = self.port.to_string();
        let args = [
            "-X",
            "-q",
            "-t",
            "-A",
            "-h",
            "127.0.0.1",
            "-p",
            &port,
            "-U",
            "test",
            "-d",
            "postgres",
        ];
        let output =
            Command::new("psql").args(args).args(["-c", statements]).output().expect("psql");
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{statements}: {told}");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// The URL of a place without tables.
    pub(crate) fn fresh(&self) -> String {
        let schema = format!("s{}", self.schemas.fetch_add(1, Ordering::Relaxed));
        self.sql(&format!("CREATE SCHEMA {schema}"));
        self.url(&schema, self.port)
    }

    /// The URL of a schema, by this port.
    pub(crate) fn url(&self, schema: &str, port: u16) -> String {
        format!(
            "postgres://test@127.0.0.1:{port}/postgres?sslmode=disable&options=-csearch_path%3D{schema}"
        )
    }

    /// From now on, everyone but `test` needs a password.
    pub(crate) fn demand_passwords(&self) {
        self.admit("host all test all trust\nhost all all all scram-sha-256\n");
    }

    /// From now on, only encrypted connections are taken, except those of `psql`.
    pub(crate) fn demand_tls(&self) {
        self.admit("hostssl all all all trust\n");
    }

    /// From now on, this role needs a certificate of the authority in `own.crt`.
    pub(crate) fn demand_certificates(&self, role: &str) {
        let from = format!("{}/own.crt", self.folder.path().display());
        self.copy(&from, &format!("{}/root.crt", self.data()));
        self.sql("ALTER SYSTEM SET ssl_ca_file = 'root.crt'");
        self.admit(&format!(
            "hostssl all {role} all trust clientcert=verify-ca\nhostssl all test all trust\n"
        ));
    }

    /// Sets who may connect, and how.
    fn admit(&self, rules: &str) {
        fs::write(format!("{}/pg_hba.conf", self.data()), rules).expect("rules");
        self.reload();
    }

    /// Lets it read its settings again.
    fn reload(&self) {
        self.succeed("pg_ctl", &["-D", &self.data(), "-s", "reload"]);
        // It does so a moment later, and says nothing.
        self.sql("SELECT pg_sleep(0.3)");
    }

    /// Offers TLS with `server.crt` and `server.key` of its folder.
    pub(crate) fn speak_tls(&self) {
        let folder = self.folder.path().display();
        // The server demands that the key is its own, or root's with no rights for others.
        for name in ["server.crt", "server.key"] {
            let to = format!("{}/{name}", self.data());
            self.copy(&format!("{folder}/{name}"), &to);
        }
        self.sql("ALTER SYSTEM SET ssl = on");
        self.reload();
    }

    /// Copies a file as the server's user.
    fn copy(&self, from: &str, to: &str) {
        fs::set_permissions(from, fs::Permissions::from_mode(0o644)).expect("rights");
        let copied = self.run("/usr/bin/install", &["-m", "600", from, to]);
        assert!(copied.status.success(), "{}", String::from_utf8_lossy(&copied.stderr));
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.run("pg_ctl", &["-D", &self.data(), "-s", "-m", "immediate", "stop"]);
    }
}
