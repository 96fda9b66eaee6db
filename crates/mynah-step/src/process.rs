//! Names of processes that hold runs, and whether a process on this machine has ended.

use std::{fs, sync::OnceLock};

use mynah_log::Hash;

/// The name of this process: where it runs, its number there, and when it started. Empty if the system does not tell.
///
/// A number means something only on one machine since its last start, and in one namespace of processes; so both are part of
/// the name.
pub(crate) fn name() -> &'static str {
    static NAME: OnceLock<String> = OnceLock::new();
    NAME.get_or_init(|| {
        let id = std::process::id();
        let name = place().zip(started(id)).map(|(place, at)| format!("{place}-{id}-{at}"));
        name.unwrap_or_default()
    })
}

/// Whether the process of this name has certainly ended. One on another machine, or in another container, may live.
pub(crate) fn has_ended(name: &str) -> bool {
    let mut parts = name.splitn(3, '-');
    let (Some(at), Some(id), Some(began)) = (parts.next(), parts.next(), parts.next()) else {
        return false;
    };
    let (Some(here), Ok(id)) = (place(), id.parse()) else { return false };
    at == here && started(id).is_none_or(|started| started != began)
}

/// This machine since its last start, and the namespace in which processes are numbered.
fn place() -> Option<String> {
    let boot = fs::read("/proc/sys/kernel/random/boot_id").ok()?;
    let namespace = fs::read_link("/proc/self/ns/pid").ok()?;
    let place = Hash::of(&[&boot, namespace.as_os_str().as_encoded_bytes()]).to_string();
    place.get(..16).map(str::to_owned)
}

/// When a process started, in ticks since the machine did; none if it is not there or has ended.
fn started(id: u32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    // The name of its program stands in parentheses and may hold anything.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace();
    let state = fields.next()?;
    (!matches!(state, "Z" | "X" | "x")).then(|| fields.nth(18).map(str::to_owned))?
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_process_has_ended_once_it_is_killed_and_not_while_it_lives_or_runs_elsewhere() {
        assert!(!has_ended(name()), "this process");
        let mut child = Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().unwrap();
        let place = place().unwrap();
        let lives = format!("{place}-{}-{}", child.id(), started(child.id()).unwrap());
        assert!(!has_ended(&lives));
        assert!(has_ended(&format!("{place}-{}-1", child.id())), "another had its number before");
        child.kill().unwrap();
        while started(child.id()).is_some() {
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
