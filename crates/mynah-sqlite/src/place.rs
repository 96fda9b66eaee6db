//! The place of the file: which file it is, and whether SQLite can share it there.

use std::{fs, io, path::Path};

use mynah_data::Result;

use crate::file::unusable;

/// Identifies a file on this machine, under any name.
#[cfg(unix)]
pub(crate) type Identity = (u64, u64);

#[cfg(unix)]
pub(crate) fn identity(path: &Path) -> io::Result<Identity> {
    use std::os::unix::fs::MetadataExt as _;
    fs::metadata(path).map(|found| (found.dev(), found.ino()))
}

/// A file that is open can neither be removed nor replaced on other systems.
#[cfg(not(unix))]
pub(crate) type Identity = ();

#[cfg(not(unix))]
pub(crate) fn identity(path: &Path) -> io::Result<Identity> {
    fs::metadata(path).map(drop)
}

/// Refuses a folder on a network file system. Locks and shared memory do not work there as SQLite needs them, and a log would be
/// damaged as soon as two machines use it.
pub(crate) fn check_local(folder: &Path) -> Result<()> {
    match network_file_system(folder) {
        None => Ok(()),
        Some(name) => Err(unusable(format!(
            "{} is on a network file system ({name}), where processes cannot share a SQLite file; give a path on a local disk",
            folder.display()
        ))),
    }
}

#[cfg(target_os = "linux")]
fn network_file_system(folder: &Path) -> Option<String> {
    // A folder that cannot be asked for is refused by SQLite, with the reason.
    let kind = rustix::fs::statfs(folder).ok()?.f_type;
    name_of(u32::try_from(kind).unwrap_or_default(), || {
        let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
        mounted_as(&mounts, device(folder)?).map(str::to_owned)
    })
}

#[cfg(target_os = "linux")]
fn device(folder: &Path) -> Option<(u32, u32)> {
    let (device, _) = identity(folder).ok()?;
    Some((rustix::fs::major(device), rustix::fs::minor(device)))
}

#[cfg(not(target_os = "linux"))]
fn network_file_system(_: &Path) -> Option<String> {
    None
}

/// The name of a network file system by its number in `statfs(2)`; none if it is local. File
/// systems in user space are identified by their mount type.
#[cfg(any(target_os = "linux", test))]
fn name_of(kind: u32, mounted_as: impl FnOnce() -> Option<String>) -> Option<String> {
    const IN_USER_SPACE: u32 = 0x6573_5546;
    const NETWORK: [(u32, &str); 10] = [
        (0x6969, "NFS"),
        (0x517b, "SMB"),
        (0xfe53_4d42, "SMB2"),
        (0xff53_4d42, "CIFS"),
        (0x0102_1997, "9p"),
        (0x5346_414f, "AFS"),
        (0x6b41_4653, "AFS"),
        (0x7375_7245, "Coda"),
        (0x00c3_6400, "Ceph"),
        (0x0bd0_0bd0, "Lustre"),
    ];
    /// Programs that mount what is on another machine.
    const REMOTE: [&str; 14] = [
        "sshfs",
        "s3fs",
        "rclone",
        "glusterfs",
        "gcsfuse",
        "goofys",
        "mount-s3",
        "davfs",
        "curlftpfs",
        "juicefs",
        "cephfs",
        "ceph-fuse",
        "smbnetfs",
        "blobfuse2",
    ];
    if kind == IN_USER_SPACE {
        let name = mounted_as()?;
        let program = name.strip_prefix("fuse.").unwrap_or(&name);
        return REMOTE.contains(&program).then_some(name);
    }
    NETWORK.iter().find(|(number, _)| *number == kind).map(|(_, name)| (*name).to_owned())
}

/// The type of the file system on this device, as a line of `/proc/self/mountinfo` has it.
#[cfg(any(target_os = "linux", test))]
fn mounted_as(mounts: &str, (major, minor): (u32, u32)) -> Option<&str> {
    let device = format!("{major}:{minor}");
    let mount = mounts.lines().find(|line| line.split(' ').nth(2) == Some(&device))?;
    mount.split_once(" - ")?.1.split(' ').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_file_systems_are_told_from_local_ones() {
        const LOCAL: [u32; 4] = [0xef53, 0x9123_683e, 0x0102_1994, 0x794c_7630];
        for kind in LOCAL {
            assert_eq!(name_of(kind, || None), None, "{kind:x}");
        }
        for (kind, name) in [(0x6969, "NFS"), (0xff53_4d42, "CIFS"), (0x0102_1997, "9p")] {
            assert_eq!(name_of(kind, || None).as_deref(), Some(name));
        }
        let mounts = "36 35 98:0 / /mnt rw,noatime shared:1 - ext4 /dev/root rw\n\
                      41 35 0:47 / /far rw - fuse.sshfs me@there:/ rw\n\
                      42 35 0:48 / /near rw - fuse.gocryptfs /home/me rw\n";
        for (device, name) in [((0, 47), Some("fuse.sshfs")), ((0, 48), None), ((9, 9), None)] {
            let told = name_of(0x6573_5546, || mounted_as(mounts, device).map(str::to_owned));
            assert_eq!(told.as_deref(), name);
        }
    }

    #[test]
    fn a_folder_on_a_local_disk_is_not_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        assert_eq!(check_local(folder.path()), Ok(()));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn the_system_is_asked_for_the_kind_of_a_folder() {
        let folder = Path::new("/proc");
        let kind = rustix::fs::statfs(folder).expect("a file system").f_type;
        assert_eq!(u32::try_from(kind), Ok(0x9fa0));
        let device = device(folder).expect("a device");
        let mounts = fs::read_to_string("/proc/self/mountinfo").expect("its mounts");
        assert_eq!(mounted_as(&mounts, device), Some("proc"));
    }
}
