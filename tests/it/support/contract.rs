//! Compares what commands print with `--json` with the schemas in `docs/json/`.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Mutex};

use jsonschema::Validator;
use serde_json::Value;

/// The folder of the schemas.
pub(crate) fn schemas() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/json")
}

/// The schemas, by the names of their files.
static KNOWN: LazyLock<HashMap<String, Value>> = LazyLock::new(|| {
    let files = fs::read_dir(schemas())
        .unwrap()
        .map(|file| file.unwrap().path());
    let json = files.filter(|path| path.extension().is_some_and(|end| end == "json"));
    let parsed = json.map(|path| {
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        (
            name,
            serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap(),
        )
    });
    parsed.collect()
});

/// Checks that a run's output matches the schemas. `args` are the command's arguments, as a shell
/// has them.
#[track_caller]
pub(crate) fn keeps(args: &[&str], stdout: &str, stderr: &str) {
    static VALIDATORS: LazyLock<Mutex<HashMap<String, &'static Validator>>> =
        LazyLock::new(Mutex::default);
    let validator = |name: &str| -> &'static Validator {
        let mut validators = VALIDATORS.lock().unwrap();
        validators.entry(name.to_owned()).or_insert_with(|| {
            let schema = KNOWN
                .get(name)
                .unwrap_or_else(|| panic!("docs/json has {name}.json: {args:?}"));
            Box::leak(Box::new(
                jsonschema::validator_for(schema).expect("it is a schema"),
            ))
        })
    };
    let check = |name: &str, line: &str| {
        let value: Value =
            serde_json::from_str(line).unwrap_or_else(|error| panic!("{args:?}: {error}: {line}"));
        let wrong: Vec<String> = validator(name)
            .iter_errors(&value)
            .map(|error| format!("{}: {error}", error.instance_path()))
            .collect();
        assert!(
            wrong.is_empty(),
            "{args:?} prints what docs/json/{name}.json does not have: {wrong:?}\n{line}"
        );
    };
    if !stdout.is_empty() {
        let name = command(args);
        stdout.lines().for_each(|line| check(&name, line));
    }
    stderr.lines().for_each(|line| check("stderr", line));
}

/// The longest beginning of the arguments that is the name of a schema.
fn command(args: &[&str]) -> String {
    // `moves` alone is `moves list`.
    let mut words: Vec<&str> = Vec::new();
    let mut rest = args.iter().copied();
    while let Some(word) = rest.next() {
        match word {
            "--config" => drop(rest.next()),
            "--" => break,
            word if word.starts_with('-') => {}
            word => words.push(word),
        }
    }
    let names = (1..=words.len().min(2))
        .rev()
        .map(|count| words[..count].join("-"));
    let listed = (words.first() == Some(&"moves")).then(|| "moves-list".to_owned());
    names
        .chain(listed)
        .find(|name| KNOWN.contains_key(name))
        .unwrap_or_else(|| panic!("{args:?} has a schema"))
}
