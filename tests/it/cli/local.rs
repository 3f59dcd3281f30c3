//! Another user of the operator's machine leaves a config in a folder where a command is run, or
//! links, and waits for what a command writes.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown, symlink};
use std::path::Path;
use std::process::Command;

use super::{folder, pgshard};

/// The ID of no user.
const ANOTHER: u32 = 4_711_001;

/// A config that an operator who runs a command in this folder would take for their own: the
/// password goes elsewhere.
fn config() -> &'static str {
    pgshard::config::template()
}

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// Whether the test runs as root: only root can give files to another user. Prints a note
/// otherwise.
fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("not root: no file can be given to another user");
    }
    root
}

#[test]
fn a_config_that_another_user_can_have_written_is_not_found() {
    let folder = folder();
    let path = folder.path().join("pgshard.toml");
    fs::write(&path, config()).unwrap();
    let refused = |why: &str| {
        for args in [
            &["map", "show"][..],
            &["id", "decode", "1"],
            &["init", "--force"],
        ] {
            let run = pgshard(folder.path(), args);
            assert_eq!(run.exit, 2, "{args:?}: {}", run.stderr);
            assert!(
                run.stderr.contains(why) && run.stderr.contains("--config pgshard.toml"),
                "{}",
                run.stderr
            );
        }
        let named = pgshard(folder.path(), &["--config", "pgshard.toml", "map", "show"]);
        assert_eq!(named.exit, 0, "{}", named.stderr);
    };
    assert_eq!(pgshard(folder.path(), &["map", "show"]).exit, 0);
    chmod(&path, 0o646);
    refused("can be written by every user of this machine");
    chmod(&path, 0o664);
    assert_eq!(pgshard(folder.path(), &["map", "show"]).exit, 0);
    if is_root() {
        lchown(&path, Some(ANOTHER), None).unwrap();
        refused("belongs to another user (uid 4711001)");
        // The same for the other user's link to a file of ours: a command would write there.
        let ours = folder.path().join("ours");
        fs::rename(&path, &ours).unwrap();
        lchown(&ours, Some(0), None).unwrap();
        symlink("ours", &path).unwrap();
        assert_eq!(pgshard(folder.path(), &["map", "show"]).exit, 0);
        lchown(&path, Some(ANOTHER), None).unwrap();
        refused("belongs to another user (uid 4711001)");
        assert_eq!(fs::read_to_string(&ours).unwrap(), config());
        // A user who became root by sudo can use their own files.
        let mut sudo = Command::new(env!("CARGO_BIN_EXE_pgshard"));
        sudo.args(["map", "show"])
            .current_dir(folder.path())
            .env("SUDO_UID", ANOTHER.to_string());
        assert!(
            sudo.env_remove("PGSHARD_CONFIG")
                .output()
                .unwrap()
                .status
                .success()
        );
    }
}

/// Nothing that a command makes can be written to by others, even where the umask lets them.
#[test]
fn what_a_command_writes_is_closed_to_writers() {
    let folder = folder();
    let command = env!("CARGO_BIN_EXE_pgshard");
    for args in [
        "init",
        "migrate new first",
        "map show --svg map.svg",
        "man --out man",
        "json-schema --out json",
    ] {
        let script = format!("umask 0; exec '{command}' --config pgshard.toml {args}");
        let mut shell = Command::new("sh");
        let ran = shell
            .args(["-c", &script])
            .current_dir(folder.path())
            .output()
            .unwrap();
        assert!(
            ran.status.success(),
            "{args}: {}",
            String::from_utf8_lossy(&ran.stderr)
        );
        if args == "init" {
            let path = folder.path().join("pgshard.toml");
            let text = fs::read_to_string(&path)
                .unwrap()
                .replace("# migrations =", "migrations =");
            fs::write(&path, text).unwrap();
        }
    }
    let mut folders = vec![folder.path().to_owned()];
    let mut seen = 0;
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next).unwrap().flatten() {
            let facts = entry.metadata().unwrap();
            assert_eq!(
                facts.mode() & 0o002,
                0,
                "{} {:o}",
                entry.path().display(),
                facts.mode()
            );
            seen += 1;
            if facts.is_dir() {
                folders.push(entry.path());
            }
        }
    }
    assert!(seen > 20, "{seen} files");
}
