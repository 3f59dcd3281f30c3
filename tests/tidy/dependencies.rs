//! What may be among our dependencies, by deny.toml. It is what `script/check-dependencies` checks
//! with cargo-deny, which takes minutes to build; here only for the platform that the tests run on,
//! and without known holes.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::Value;
use toml_edit::{Array, DocumentMut, InlineTable, Item};

use super::{none_of, root};

const CRATES_IO: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// A crate that is built with ours. What only tests and benches use is not shipped; cargo-deny
/// passes over it too.
struct Package {
    name: String,
    version: String,
    licence: Option<String>,
    source: Option<String>,
}

fn text(value: &Value) -> String {
    value
        .as_str()
        .unwrap_or_else(|| panic!("text, not {value}"))
        .to_owned()
}

/// All features are on, as deny.toml wants it. Also returns what cargo reports about our own
/// package.
fn packages() -> (Vec<Package>, Value) {
    let version = Command::new(env!("CARGO")).arg("-vV").output().unwrap();
    let version = String::from_utf8(version.stdout).unwrap();
    let platform = version
        .lines()
        .find_map(|line| line.strip_prefix("host: "))
        .unwrap();
    let mut command = Command::new(env!("CARGO"));
    command.args([
        "metadata",
        "--format-version=1",
        "--locked",
        "--all-features",
        "--filter-platform",
        platform,
    ]);
    let output = command.current_dir(root()).output().unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let all: Value = serde_json::from_slice(&output.stdout).unwrap();

    let nodes: BTreeMap<&str, &Value> = all["resolve"]["nodes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|node| (node["id"].as_str().unwrap(), node))
        .collect();
    let ours = all["resolve"]["root"].as_str().unwrap();
    let mut built = BTreeSet::from([ours]);
    let mut next = vec![ours];
    while let Some(id) = next.pop() {
        for dependency in nodes[id]["deps"].as_array().unwrap() {
            let is_only_for_tests = dependency["dep_kinds"]
                .as_array()
                .unwrap()
                .iter()
                .all(|kind| kind["kind"] == "dev");
            let on = dependency["pkg"].as_str().unwrap();
            if !is_only_for_tests && built.insert(on) {
                next.push(on);
            }
        }
    }
    let mut found = Vec::new();
    let mut manifest = Value::Null;
    for package in all["packages"].as_array().unwrap() {
        let id = package["id"].as_str().unwrap();
        if id == ours {
            manifest = package.clone();
        } else if built.contains(id) {
            found.push(Package {
                name: text(&package["name"]),
                version: text(&package["version"]),
                licence: package["license"].as_str().map(str::to_owned),
                source: package["source"].as_str().map(str::to_owned),
            });
        }
    }
    assert!(found.len() > 100, "{} dependencies", found.len());
    (found, manifest)
}

fn rules() -> DocumentMut {
    std::fs::read_to_string(root().join("deny.toml"))
        .unwrap()
        .parse()
        .unwrap()
}

fn texts(list: &Array) -> impl Iterator<Item = String> {
    list.iter().map(|one| one.as_str().unwrap().to_owned())
}

/// The tables of a list, each with the crate it is about.
fn about_crates(list: &Item) -> impl Iterator<Item = (&str, &InlineTable)> {
    list.as_array().unwrap().iter().map(|one| {
        let one = one.as_inline_table().unwrap();
        (one["crate"].as_str().unwrap(), one)
    })
}

/// What is wrong with a licence, if these are allowed.
fn refused(licence: Option<&str>, allowed: &[String]) -> Option<String> {
    let Some(licence) = licence else {
        return Some("it names no licence".to_owned());
    };
    // The old way to write OR, which crates.io takes.
    let expression = match spdx::Expression::parse_mode(licence, spdx::ParseMode::LAX) {
        Ok(expression) => expression,
        Err(error) => return Some(format!("{licence}: {}", error.reason)),
    };
    let allows = |request: &spdx::LicenseReq| {
        request.addition.is_none()
            && request
                .license
                .id()
                .is_some_and(|id| allowed.iter().any(|one| one == id.name))
    };
    (!expression.evaluate(allows)).then(|| format!("{licence} is not allowed"))
}

#[test]
fn licences_are_judged() {
    let allowed = ["MIT".to_owned(), "Apache-2.0".to_owned()];
    for fine in [
        "MIT",
        "MIT OR GPL-3.0-only",
        "MIT/Apache-2.0",
        "MIT AND Apache-2.0",
        "(MIT OR Zlib) AND Apache-2.0",
    ] {
        assert_eq!(refused(Some(fine), &allowed), None, "{fine}");
    }
    for bad in [
        "GPL-3.0-only",
        "MIT AND Zlib",
        "Apache-2.0 WITH LLVM-exception",
        "LicenseRef-mine",
        "MIT OR",
        "",
    ] {
        assert!(refused(Some(bad), &allowed).is_some(), "{bad}");
    }
    assert!(refused(None, &allowed).is_some());
}

#[test]
fn dependencies_are_what_deny_toml_allows() {
    let rules = rules();
    let (packages, manifest) = packages();
    let mut mistakes = Vec::new();

    let licences = &rules["licenses"];
    for Package {
        name,
        version,
        licence,
        source,
    } in &packages
    {
        let exceptions = about_crates(&licences["exceptions"]).filter(|(about, _)| about == name);
        let mut allowed: Vec<String> = texts(licences["allow"].as_array().unwrap()).collect();
        allowed.extend(exceptions.flat_map(|(_, one)| texts(one["allow"].as_array().unwrap())));
        mistakes.extend(
            refused(licence.as_deref(), &allowed)
                .map(|why| format!("{name} {version}: its licence: {why}")),
        );
        if source.as_deref() != Some(CRATES_IO) {
            mistakes.push(format!(
                "{name} {version}: from {source:?}, not from crates.io"
            ));
        }
    }

    let skip: Vec<(&str, String)> = about_crates(&rules["bans"]["skip"])
        .map(|(about, _)| about.split_once('@').unwrap())
        .map(|(name, version)| (name, format!("{version}.")))
        .collect();
    let mut versions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for Package { name, version, .. } in &packages {
        if !skip
            .iter()
            .any(|(skipped, start)| skipped == name && version.starts_with(start))
        {
            versions.entry(name).or_default().push(version);
        }
    }
    for (name, versions) in versions
        .into_iter()
        .filter(|(_, versions)| versions.len() > 1)
    {
        mistakes.push(format!(
            "{name}: two versions or more: {}",
            versions.join(", ")
        ));
    }

    for dependency in manifest["dependencies"].as_array().unwrap() {
        if dependency["req"] == "*" {
            mistakes.push(format!("{}: its version has no bound", dependency["name"]));
        }
    }
    none_of(mistakes, "each dependency is one that deny.toml allows:");
}

#[test]
fn python_packages_are_pinned_by_hash() {
    let mut seen = 0;
    let mut bare = Vec::new();
    for file in super::files(&[".txt"]) {
        if !file.path.starts_with("python/requirements-") {
            continue;
        }
        // An entry continues if its line ends with a backslash.
        for entry in file
            .text
            .replace("\\\n", " ")
            .lines()
            .filter(|line| !line.is_empty() && !line.starts_with([' ', '#']))
        {
            seen += 1;
            if !entry.contains("==") || !entry.contains("--hash=sha256:") {
                bare.push(format!("{}: {entry}", file.path));
            }
        }
    }
    assert!(seen > 20, "{seen} entries");
    none_of(
        bare,
        "each package of python/requirements-*.txt has one version, and its hash:",
    );
}
