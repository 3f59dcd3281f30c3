//! The commands that talk to servers, on real ones.

use super::{folder, pgshard};

/// `dev up`, again, `status`, `down`: a cluster for development from one command.
#[test]
fn dev_up_status_down() {
    let folder = folder();
    let path = folder.path().display().to_string();
    // Servers may run as another user, who must be able to get there.
    std::fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let up = pgshard(folder.path(), &["dev", "up", "--hosts", "2", "--shards", "8", "--dir", &path, "--json"]);
    assert_eq!(up.exit, 0, "{}", up.stderr);
    let up = up.json().remove(0);
    let config = up["config"].as_str().unwrap().to_owned();
    let url = up["hosts"]["db2"]["url"].as_str().unwrap().to_owned();

    let again = pgshard(folder.path(), &["dev", "up", "--hosts", "2", "--dir", &path, "--json"]);
    assert_eq!(again.json()[0], up, "{}", again.stderr);
    let status = pgshard(folder.path(), &["dev", "status", "--dir", &path, "--json"]).json().remove(0);
    assert_eq!((&status["hosts"]["db2"]["running"], &status["hosts"]["db2"]["url"]), (&true.into(), &url.into()));
    let shown = pgshard(folder.path(), &["--config", &config, "map", "show", "--json"]).json().remove(0);
    assert_eq!(shown["hosts"]["db2"]["ranges"], "4-7");

    let asked = pgshard(folder.path(), &["dev", "down", "--dir", &path]);
    assert_eq!(asked.exit, 2, "nobody is here to be asked: {}", asked.stderr);
    assert!(asked.stderr.contains("--yes"));
    let down = pgshard(folder.path(), &["dev", "down", "--dir", &path, "--yes", "--json"]);
    assert_eq!(down.json()[0]["removed"], serde_json::json!(["db1", "db2"]), "{}", down.stderr);
    let nothing = pgshard(folder.path(), &["dev", "down", "--dir", &path]);
    assert_eq!(nothing.exit, 0, "{}", nothing.stderr);
}
