//! Commands on a disk that is full. Needs the right to mount one.

#![cfg(target_os = "linux")]

use std::{
    fs::{self, File},
    io::Write as _,
    path::PathBuf,
    process::Command,
};

use crate::{
    common::{Ran, Store, run},
    pty::{Terminal, agent, says},
};

/// A disk of its own.
struct Disk(PathBuf);

impl Disk {
    /// None, with a notice, if it cannot be mounted.
    fn mounted(store: &Store) -> Option<Self> {
        let folder = PathBuf::from(store.beside("disk"));
        fs::create_dir(&folder).unwrap();
        let mount = ["-t", "tmpfs", "-o", "size=1m", "tmpfs"];
        let mounted = Command::new("mount").args(mount).arg(&folder).output();
        match mounted {
            Ok(done) if done.status.success() => Some(Self(folder)),
            _ => {
                eprintln!("skipped: only root can mount a small disk");
                None
            }
        }
    }

    fn log(&self) -> String {
        format!("sqlite:{}", self.0.join("runs.db").display())
    }

    fn fill(&self) {
        let mut file = File::create(self.0.join("fill")).unwrap();
        while file.write_all(&[0; 4096]).is_ok() {}
    }

    fn make_room(&self) {
        fs::remove_file(self.0.join("fill")).unwrap();
    }

    fn run(&self, arguments: &[&str]) -> Ran {
        run(arguments.iter().copied().chain(["--log", &self.log()]))
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

#[test]
fn runs_on_a_full_disk_are_read_and_none_is_begun() {
    let (store, agent) = agent(&[says("One."), says("Two.")].join(","), "");
    let Some(disk) = Disk::mounted(&store) else { return };
    assert_eq!(disk.run(&["run", &agent, "Go."]).code, Some(0));
    disk.fill();
    for (arguments, shown) in [
        (&["runs"][..], "completed"),
        (&["show", "last"], "One."),
        (&["verify"], "verified"),
        (&["doctor"], "nearly full"),
    ] {
        let read = disk.run(arguments);
        assert_eq!(read.code, Some(0), "{arguments:?}: {}", read.stderr);
        assert!(read.stdout.contains(shown), "{arguments:?}: {}", read.stdout);
    }
    let full = "runs.db: the disk is full; make room, and try again: no model was called";
    for arguments in [&["run", &agent, "Go."][..], &["chat", &agent]] {
        let refused = disk.run(arguments);
        assert_eq!(refused.code, Some(4), "{arguments:?}: {}", refused.stderr);
        assert!(refused.stderr.contains(full), "{arguments:?}: {}", refused.stderr);
    }
    let refused = disk.run(&["fork", "last", "--at", "1"]);
    assert_eq!(refused.code, Some(4), "{}", refused.stderr);
    assert!(refused.stderr.contains("the disk is full; make room and go on"), "{}", refused.stderr);
}

#[test]
fn a_chat_whose_disk_fills_is_stopped_by_ctrl_c_and_continues_with_room() {
    // More than the room that the log has made for itself.
    let long = " and two".repeat(50_000);
    let slow = format!(
        r#"[{{"text": "Well"}}, {{"delay_ms": 1500}}, {{"text": "{long}"}}, {{"finish": "stop"}}]"#
    );
    let scripts = [says("One."), slow, says("Three.")];
    let (store, agent) = agent(&scripts.join(","), "");
    let Some(disk) = Disk::mounted(&store) else { return };
    let chat = ["chat", &agent, "--session", "s", "--log", &disk.log()];
    let mut terminal = Terminal::start(&store, &chat, 80, &[]);
    terminal.wait("›");
    terminal.send("one\r");
    terminal.wait_prompt("One.");
    terminal.send("two\r");
    terminal.wait("Well");
    disk.fill();
    terminal.wait("waiting for the log");
    terminal.send("\x03");
    terminal.wait_prompt("stopped; the log cannot be written");
    // No model is called while there is no room.
    terminal.send("/retry\r");
    terminal.wait_prompt("/retry sends the message");
    disk.make_room();
    terminal.send("/retry\r");
    terminal.wait_prompt("Three.");
    terminal.send("\x04");
    let (code, all) = terminal.end();
    assert_eq!(code, Some(0), "{all}");
    assert_eq!(disk.run(&["verify"]).code, Some(0));
}
