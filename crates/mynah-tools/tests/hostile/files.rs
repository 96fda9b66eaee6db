//! Paths, contents and races.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use mynah_step::Tool;
use mynah_tools::files;
use serde_json::{Value, json};

use super::{ARGUMENTS, Table};
use crate::common::{call, named};

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

pub(super) async fn paths(table: &mut Table) {
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

pub(super) async fn writes(table: &mut Table) {
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

pub(super) async fn searches(table: &mut Table) {
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

pub(super) async fn races(table: &mut Table) {
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
        // The marker of files outside the folder.
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
