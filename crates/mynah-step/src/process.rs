//! Names of processes that hold runs, and whether a process on this machine has ended.

use std::{
    fs,
    hash::{BuildHasher as _, RandomState},
    io,
    sync::OnceLock,
};

use mynah_log::{Hash, backend::process};

/// What this process beats as in a log: no other process does, nor does this one in another log.
pub(crate) fn beat_name(log: usize) -> String {
    static RANDOM: OnceLock<RandomState> = OnceLock::new();
    // The number differs even after a fork, or if the system does not provide the name of a
    // process.
    let random = RANDOM.get_or_init(RandomState::new).hash_one((std::process::id(), log));
    format!("{random:016x}:{}", name())
}

/// Whether an owner is of this process. Where the system does not provide its name, that is not known.
pub(crate) fn is_own(owner: &str) -> bool {
    process(owner).split_once(':').is_some_and(|(_, of)| !of.is_empty() && of == name())
}

/// Whether the process of an owner has certainly ended.
pub(crate) fn owner_has_ended(owner: &str) -> bool {
    process(owner).split_once(':').is_some_and(|(_, name)| has_ended(name))
}

/// The name of this process: its machine, its number, and its start time. Empty if the system does
/// not provide them.
///
/// A process number is meaningful only on one machine since its last boot, and in one process
/// namespace. A process may not see those of other users. So all of that is part of the name.
fn name() -> String {
    static NAME: OnceLock<(u32, String)> = OnceLock::new();
    let id = std::process::id();
    let look = || {
        let began = started(id).ok().flatten();
        let name = place().zip(began).map(|(place, began)| format!("{place}-{id}-{began}"));
        (id, name.unwrap_or_default())
    };
    let (of, name) = NAME.get_or_init(look);
    // A process that was forked has its parent's memory.
    if *of == id { name.clone() } else { look().1 }
}

/// Whether the process of this name has certainly ended. One on another machine, in another container or of another user may live.
fn has_ended(name: &str) -> bool {
    let mut parts = name.splitn(3, '-');
    let (Some(at), Some(id), Some(began)) = (parts.next(), parts.next(), parts.next()) else {
        return false;
    };
    let (Some(here), Ok(id)) = (place(), id.parse()) else { return false };
    at == here && started(id).is_ok_and(|started| started.is_none_or(|started| started != began))
}

/// This machine since its last start, the namespace in which processes are numbered, and the user.
fn place() -> Option<String> {
    let boot = fs::read("/proc/sys/kernel/random/boot_id").ok()?;
    let namespace = fs::read_link("/proc/self/ns/pid").ok()?;
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let user = status.lines().find(|line| line.starts_with("Uid:"))?;
    let parts = [&*boot, namespace.as_os_str().as_encoded_bytes(), user.as_bytes()];
    Hash::of(&parts).to_string().get(..16).map(str::to_owned)
}

/// When a process started, in ticks since the machine did; none if there is no such process, or it has ended.
fn started(id: u32) -> io::Result<Option<String>> {
    let stat = match fs::read_to_string(format!("/proc/{id}/stat")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        stat => stat?,
    };
    // The name of its program stands in parentheses and may hold anything.
    let fields = stat.rsplit_once(')').map(|(_, fields)| fields.split_ascii_whitespace());
    let mut fields = fields.ok_or(io::ErrorKind::InvalidData)?;
    match fields.next() {
        Some("Z" | "X" | "x") => Ok(None),
        _ => fields
            .nth(18)
            .map(|ticks| Some(ticks.to_owned()))
            .ok_or_else(|| io::ErrorKind::InvalidData.into()),
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_process_has_ended_once_it_is_killed_and_not_while_it_lives_or_runs_elsewhere() {
        assert!(!has_ended(&name()), "this process");
        let mut child = Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().unwrap();
        let place = place().unwrap();
        let lives = format!("{place}-{}-{}", child.id(), started(child.id()).unwrap().unwrap());
        assert!(!has_ended(&lives));
        assert!(has_ended(&format!("{place}-{}-1", child.id())), "another had its number before");
        child.kill().unwrap();
        while started(child.id()).unwrap().is_some() {
            std::thread::yield_now();
        }
        assert!(has_ended(&lives), "killed, and its parent has not looked yet");
        child.wait().unwrap();
        assert!(has_ended(&lives));
        let elsewhere = lives.replacen(&place, "0123456789abcdef", 1);
        for unknown in ["", "a-b", &elsewhere, "0123456789abcdef-x-1"] {
            assert!(!has_ended(unknown), "{unknown}");
        }
    }
}
