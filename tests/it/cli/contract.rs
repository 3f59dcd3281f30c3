//! JSON is a contract: `docs/json/` has the schema of what each command prints. [`keeps`] compares
//! every run of the other tests with it; the tests here compare the schemas with the types.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use serde_json::Value;

use super::{alone, folder, pgshard};
use crate::support::contract::{keeps, schemas};

/// The schemas in `docs/json` are those of the types. After an intended change, run
/// `INSTA_UPDATE=always cargo test --test it cli::contract`, and read the difference:
/// docs/json/README.md has the promise.
#[test]
fn schemas_are_of_the_types() {
    let folder = folder();
    assert_eq!(
        pgshard(folder.path(), &["json-schema", "--out", "schemas"]).exit,
        0
    );
    let read = |folder: &Path| -> HashMap<String, String> {
        let files = fs::read_dir(folder)
            .unwrap()
            .map(|file| file.unwrap().path());
        let json = files.filter(|path| path.extension().is_some_and(|end| end == "json"));
        json.map(|path| {
            (
                path.file_name().unwrap().to_str().unwrap().to_owned(),
                fs::read_to_string(&path).unwrap(),
            )
        })
        .collect()
    };
    let new = read(&folder.path().join("schemas"));
    assert!(new.len() > 50);
    if std::env::var("INSTA_UPDATE").is_ok_and(|how| how == "always") {
        for (name, text) in &new {
            fs::write(schemas().join(name), text).unwrap();
        }
    }
    let kept = read(&schemas());
    let mut names: Vec<&String> = new.keys().chain(kept.keys()).collect();
    names.sort();
    for name in names {
        assert_eq!(kept.get(name), new.get(name), "docs/json/{name}");
    }
    assert_eq!(
        alone(&["json-schema", "moves", "list"]).stdout,
        kept["moves-list.json"]
    );
    assert_eq!(alone(&["json-schema", "man"]).exit, 2);
}

/// Errors are objects too: those of the command line and of the config, with causes, remedy and
/// exit code.
#[test]
fn errors_are_objects() {
    for (args, said, remedy) in [
        (&["locate", "--json"][..], "required arguments", "--help"),
        (&["locate", "--key", "1", "--json"], "cannot read", ""),
        (
            &["explain", "nothing", "--json"],
            "nothing of ours has the code",
            "lists all",
        ),
    ] {
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_pgshard"))
            .args(args)
            .current_dir(folder().path())
            .env_remove("PGSHARD_CONFIG")
            .output()
            .unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        keeps(args, "", &text);
        let object: Value =
            serde_json::from_str(text.trim()).unwrap_or_else(|error| panic!("{error}: {text}"));
        assert_eq!(
            (&object["level"], &object["exit_code"]),
            (&"error".into(), &2.into()),
            "{text}"
        );
        assert!(object["message"].as_str().unwrap().contains(said), "{text}");
        assert!(
            object["remedy"]
                .as_str()
                .unwrap_or_default()
                .contains(remedy),
            "{text}"
        );
    }
}

/// The log is objects too: a reader of stderr need not distinguish two forms.
#[test]
fn the_log_is_objects() {
    let folder = folder();
    let config = "[cluster]\nshards = 1\nepoch = \"2026-01-01T00:00:00Z\"\n[hosts.db1]\n\
                  url = \"postgres://app@127.0.0.1:1/app\"\n[map]\nversion = \
                  1\n[map.placement]\ndb1 = \"0\"\n";
    fs::write(folder.path().join("pgshard.toml"), config).unwrap();
    // `pgshard` compares each line with the schema.
    let run = pgshard(folder.path(), &["sql", "SELECT 1", "--json"]);
    assert!(
        run.stderr.contains("warning: out of reach"),
        "{}",
        run.stderr
    );
}
