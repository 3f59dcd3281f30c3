//! Which module may use which: imports point one way.

use std::collections::BTreeMap;
use std::fs;

use super::{File, files, is_comment, library, none_of, root, word};

/// The modules of the library from the bottom up. A module uses itself and those before it. The
/// reasons are in ARCHITECTURE.md.
const ORDER: &[&str] = &[
    "exploration",
    "backoff",
    "shard",
    "id",
    "map",
    "pg",
    "store",
    "idgen",
    "values",
    "router",
    "fanout",
    "lookups",
    "schema",
    "rebalance",
    "mover",
    "import",
    "config",
    "dev",
    "testing",
    "server_tests",
    "simulation",
    "fuzzing",
];

/// Exceptions to the order: these do not know each other, although one comes before the other.
const STRANGERS: [(&str, &str); 2] = [("mover", "router"), ("mover", "fanout")];

/// The first names after each `crate::` in the code, with their line numbers:
/// `use crate::{a::b, c}` has two. A link in a comment does not count.
fn uses(text: &str) -> Vec<(usize, String)> {
    let code: String = text
        .lines()
        .map(|line| {
            if is_comment(line) {
                "\n".into()
            } else {
                format!("{line}\n")
            }
        })
        .collect();
    let mut uses = Vec::new();
    for (at, found) in code.match_indices("crate::") {
        let before = code[..at].chars().next_back();
        if before.is_some_and(|c| c == '_' || c == '$' || c.is_alphanumeric()) {
            continue;
        }
        let line = code[..at].lines().count().max(1);
        let rest = &code[at + found.len()..];
        let Some(group) = rest.strip_prefix('{') else {
            uses.push((line, word(rest).to_owned()));
            continue;
        };
        let (mut depth, mut fresh) = (1, true);
        for (at, c) in group.char_indices() {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                ',' if depth == 1 => fresh = true,
                c if fresh && depth == 1 && (c == '_' || c.is_alphanumeric()) => {
                    uses.push((line, word(&group[at..]).to_owned()));
                    fresh = false;
                }
                _ => {}
            }
            if depth == 0 {
                break;
            }
        }
    }
    uses
}

#[test]
fn uses_are_found() {
    let text = "use crate::map::X;\n/// [`crate::dev`]\nuse crate::{\n    id::{Id, Epoch},\n    \
        ShardId,\n};\nlet x = \
                crate::pg::y();";
    let found = uses(text);
    let found: Vec<(usize, &str)> = found
        .iter()
        .map(|(line, name)| (*line, name.as_str()))
        .collect();
    assert_eq!(found, [(1, "map"), (3, "id"), (3, "ShardId"), (7, "pg")]);
}

/// What `src/lib.rs` re-exports at the root, and the module it comes from.
fn re_exports() -> BTreeMap<String, String> {
    let facade = fs::read_to_string(root().join("src/lib.rs")).unwrap();
    let mut names = BTreeMap::new();
    for statement in facade
        .split(';')
        .filter_map(|text| text.rsplit_once("pub use "))
    {
        // A whole crate is re-exported by its name.
        let Some((module, what)) = statement.1.split_once("::") else {
            continue;
        };
        for name in what.trim_matches(['{', '}']).split(',') {
            names.insert(name.trim().to_owned(), module.to_owned());
        }
    }
    names
}

/// Tests within the library are no exception: a layer that is tested with a higher one cannot be
/// used alone.
#[test]
fn a_module_uses_only_those_before_it() {
    let place = |module: &str| ORDER.iter().position(|known| *known == module);
    let re_exports = re_exports();
    let mut mistakes = Vec::new();
    for file in library() {
        let module = file.path["src/".len()..]
            .split(['/', '.'])
            .next()
            .unwrap()
            .to_owned();
        let Some(own) = place(&module) else {
            mistakes.push(format!(
                "{}: {module} has no place in the order: give it one, here and in src/lib.rs",
                file.path
            ));
            continue;
        };
        for (line, name) in uses(&file.text) {
            let at = format!("{}:{line}", file.path);
            let used = re_exports.get(&name).unwrap_or(&name);
            match place(used) {
                None => mistakes.push(format!("{at}: crate::{name} is no module of the library")),
                Some(other) if other > own => {
                    mistakes.push(format!("{at}: {module} uses {used}, which stands above it"));
                }
                Some(_) if STRANGERS.contains(&(module.as_str(), used)) => {
                    mistakes.push(format!(
                        "{at}: {module} uses {used}: they must not know of each other"
                    ));
                }
                Some(_) => {}
            }
        }
        mistakes.extend(out_by_super(&file));
    }
    let order = ORDER.join(", ");
    none_of(
        mistakes,
        &format!("a module of the library uses only itself and those before it in: {order}"),
    );
}

/// The folders of `src/mover`, each of which uses itself and those before it. `mod.rs` is the face,
/// which nothing inside imports.
const MOVER: &[&str] = &[
    "definition",
    "protocol",
    "control",
    "preflight",
    "copy",
    "stream",
    "step",
    "runner",
    "command",
];

#[test]
fn a_layer_of_the_mover_uses_only_those_before_it() {
    let mut mistakes = Vec::new();
    let mut seen = 0;
    for file in library() {
        let Some(path) = file.path.strip_prefix("src/mover/") else {
            continue;
        };
        let Some((folder, within)) = path.split_once('/') else {
            continue;
        };
        if folder == "model" {
            continue;
        }
        let Some(own) = MOVER.iter().position(|layer| *layer == folder) else {
            mistakes.push(format!("{}: {folder} is no layer of the mover", file.path));
            continue;
        };
        seen += 1;
        // A file in a folder of the layer has one `super` more before it leaves the layer.
        let out = "super::"
            .repeat(1 + within.matches('/').count() + usize::from(!within.ends_with("mod.rs")));
        for (line, text) in file
            .text
            .lines()
            .enumerate()
            .filter(|(_, text)| !is_comment(text))
        {
            let at = format!("{}:{}", file.path, line + 1);
            for (place, found) in text.match_indices("crate::mover::") {
                let used = word(&text[place + found.len()..]);
                match MOVER.iter().position(|layer| *layer == used) {
                    None => mistakes.push(format!("{at}: say in which layer {used} is")),
                    Some(other) if other > own => {
                        mistakes.push(format!("{at}: {folder} uses {used}, which stands above it"))
                    }
                    Some(_) => {}
                }
            }
            if MOVER
                .iter()
                .any(|layer| text.contains(&format!("{out}{layer}::")))
            {
                mistakes.push(format!(
                    "{at}: say crate::mover::, so that it shows where this comes from"
                ));
            }
        }
    }
    assert!(seen > 50);
    none_of(
        mistakes,
        &format!(
            "a layer of the mover uses only itself and those before it in: {}",
            MOVER.join(", ")
        ),
    );
}

/// A method in another place than its type hides an import.
#[test]
fn methods_of_the_mover_stand_beside_their_types() {
    let files: Vec<File> = library()
        .into_iter()
        .filter(|file| file.path.starts_with("src/mover/"))
        .collect();
    let folder = |file: &File| file.path.rsplit_once('/').unwrap().0.to_owned();
    let mut types: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for file in &files {
        for line in file.text.lines() {
            let declared = ["struct ", "enum "]
                .iter()
                .find_map(|kind| line.split_once(kind));
            if let Some((before, name)) =
                declared.filter(|(before, _)| before.trim().is_empty() || before.contains("pub"))
            {
                assert!(!before.contains("//"), "{line}");
                types
                    .entry(word(name).to_owned())
                    .or_default()
                    .push(folder(file));
            }
        }
    }
    assert!(types.len() > 100);
    let mut mistakes = Vec::new();
    for file in &files {
        for (line, text) in file.text.lines().enumerate() {
            let Some(rest) = text
                .strip_prefix("impl")
                .filter(|rest| rest.starts_with([' ', '<']) && !rest.contains(" for "))
            else {
                continue;
            };
            let name = word(rest.trim_start_matches(|c: char| c != ' ').trim_start());
            let beside = types
                .get(name)
                .is_some_and(|folders| folders.contains(&folder(file)));
            if !beside {
                mistakes.push(format!(
                    "{}:{}: the type {name} is not in this folder",
                    file.path,
                    line + 1
                ));
            }
        }
    }
    none_of(
        mistakes,
        "methods of a type stand in its own file or folder",
    );
}

/// The paths out of a module that do not begin with `crate`: `super::` up to the root.
fn out_by_super(file: &File) -> Vec<String> {
    // src/map.rs and src/map/mod.rs are one below the root, src/map/ranges.rs two.
    let parts = file.path.split('/').count() - 1;
    let below = if file.path.ends_with("/mod.rs") {
        parts - 1
    } else {
        parts
    };
    let mut inner = 0;
    let mut mistakes = Vec::new();
    for (line, text) in file.text.lines().enumerate() {
        if !text.starts_with(' ') && text.contains("mod ") && text.ends_with(" {") {
            inner = 1;
        } else if text == "}" {
            inner = 0;
        }
        let longest = text.split(|c: char| c != ':' && c != '_' && !c.is_alphanumeric());
        let supers = longest
            .map(|path| path.split("::").take_while(|part| *part == "super").count())
            .max();
        if !is_comment(text) && supers.unwrap_or(0) >= below + inner {
            mistakes.push(format!(
                "{}:{}: say crate::, so that it shows where this comes from",
                file.path,
                line + 1
            ));
        }
    }
    mistakes
}

/// The compiler makes sure that the command uses the public API only, unless the command includes
/// the library's files.
#[test]
fn the_command_includes_no_file_of_the_library() {
    let mut mistakes = Vec::new();
    for file in files(&[".rs"])
        .iter()
        .filter(|file| file.path.starts_with("src/bin/"))
    {
        for (line, text) in file.text.lines().enumerate() {
            if text.contains("#[path") || text.contains("include!(") {
                mistakes.push(format!("{}:{}: {}", file.path, line + 1, text.trim()));
            }
        }
    }
    none_of(mistakes, "the command uses the library's public API only");
}
