//! No two files import each other, directly or through others: each can be read and changed with
//! only those below it in mind.
//!
//! A file's imports are the paths in its code that begin with `crate`, `super`, `self`, or a module
//! that the file declares. A `pub use` is no import of the file that has it: a path through it
//! leads to the file that defines the name. Test modules do not count.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{Delimiter, TokenStream, TokenTree};

use super::{File, files, none_of};

type Path = Vec<String>;

/// What one Rust file has: the paths that it uses, what it hands on by `pub use`, and its modules.
#[derive(Default)]
struct Module {
    file: String,
    paths: Vec<Path>,
    handed_on: BTreeMap<String, Path>,
    children: BTreeSet<String>,
}

fn path_of(root: &str, file: &str) -> Path {
    let inner = file.strip_prefix(root).unwrap().trim_end_matches(".rs");
    let mut path: Path = inner.split('/').map(str::to_owned).collect();
    if path
        .last()
        .is_some_and(|last| ["mod", "lib", "main"].contains(&last.as_str()))
    {
        path.pop();
    }
    path
}

fn ident(token: Option<&TokenTree>) -> Option<String> {
    match token {
        Some(TokenTree::Ident(ident)) => {
            Some(ident.to_string().trim_start_matches("r#").to_owned())
        }
        _ => None,
    }
}

fn is_punct(token: Option<&TokenTree>, punct: char) -> bool {
    matches!(token, Some(TokenTree::Punct(found)) if found.as_char() == punct)
}

fn is_separator(tokens: &[TokenTree], at: usize) -> bool {
    is_punct(tokens.get(at), ':') && is_punct(tokens.get(at + 1), ':')
}

/// The paths of one `use` tree, or of one path in an expression, and the place after it.
fn tree(
    tokens: &[TokenTree],
    mut at: usize,
    before: &Path,
    found: &mut Vec<(Path, String)>,
) -> usize {
    let mut path = before.clone();
    loop {
        match tokens.get(at) {
            Some(TokenTree::Ident(_)) => {
                path.push(ident(tokens.get(at)).unwrap());
                at += 1;
                if is_separator(tokens, at) {
                    at += 2;
                    continue;
                }
                let mut name = path.last().cloned().unwrap();
                if name == "self" {
                    path.pop();
                    name = path.last().cloned().unwrap_or_default();
                }
                if ident(tokens.get(at)).as_deref() == Some("as") {
                    name = ident(tokens.get(at + 1)).unwrap_or(name);
                    at += 2;
                }
                found.push((path, name));
                return at;
            }
            Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace => {
                let inner: Vec<TokenTree> = group.stream().into_iter().collect();
                let mut next = 0;
                while next < inner.len() {
                    next = tree(&inner, next, &path, found) + 1;
                }
                return at + 1;
            }
            Some(TokenTree::Punct(star)) if star.as_char() == '*' => {
                found.push((path, "*".to_owned()));
                return at + 1;
            }
            // `a::<T>`, or the end.
            _ => {
                found.push((path, String::new()));
                return at + 1;
            }
        }
    }
}

/// Whether an attribute group is `#[cfg(test)]` or the like.
fn is_for_tests(group: &TokenTree) -> bool {
    let text = group.to_string().replace(' ', "");
    text.starts_with("[cfg(") && text.contains("test") && !text.contains("not(test")
}

fn read(stream: TokenStream, depth: usize, module: &mut Module) {
    let tokens: Vec<TokenTree> = stream.into_iter().collect();
    let (mut at, mut hands_on, mut for_tests) = (0, false, false);
    while at < tokens.len() {
        match &tokens[at] {
            TokenTree::Punct(hash) if hash.as_char() == '#' => {
                if tokens.get(at + 1).is_some_and(is_for_tests) {
                    for_tests = true;
                }
                at += if matches!(tokens.get(at + 1), Some(TokenTree::Group(_))) {
                    2
                } else {
                    1
                };
            }
            TokenTree::Ident(word) if for_tests => {
                // The item to which the attribute belongs: up to its `;` or its block.
                let is_use = word == "use";
                while at < tokens.len() {
                    let ends = match &tokens[at] {
                        TokenTree::Punct(end) => end.as_char() == ';',
                        TokenTree::Group(group) => !is_use && group.delimiter() == Delimiter::Brace,
                        _ => false,
                    };
                    at += 1;
                    if ends {
                        break;
                    }
                }
                for_tests = false;
            }
            TokenTree::Ident(word) if word == "pub" => {
                hands_on = true;
                at += 1;
                if matches!(tokens.get(at), Some(TokenTree::Group(_))) {
                    at += 1;
                }
            }
            TokenTree::Ident(word) if word == "mod" && is_punct(tokens.get(at + 2), ';') => {
                module.children.extend(ident(tokens.get(at + 1)));
                hands_on = false;
                at += 3;
            }
            TokenTree::Ident(word) if word == "use" => {
                let mut found = Vec::new();
                at = tree(&tokens, at + 1, &Path::new(), &mut found);
                for (path, name) in found {
                    if hands_on && depth == 0 {
                        module.handed_on.insert(name, path);
                    } else {
                        module.paths.push(path);
                    }
                }
                hands_on = false;
            }
            TokenTree::Ident(_) if is_separator(&tokens, at + 1) => {
                let mut found = Vec::new();
                at = tree(&tokens, at, &Path::new(), &mut found);
                module.paths.extend(found.into_iter().map(|(path, _)| path));
                hands_on = false;
            }
            TokenTree::Group(group) => {
                read(group.stream(), depth + 1, module);
                at += 1;
            }
            _ => {
                hands_on = false;
                at += 1;
            }
        }
    }
}

/// A path as one from the crate's root, if it leads into this crate at all.
fn absolute(own: &Path, children: &BTreeSet<String>, path: &Path) -> Option<Path> {
    let mut base = own.clone();
    let mut rest = path.as_slice();
    match rest.first()?.as_str() {
        "crate" => {
            base.clear();
            rest = &rest[1..];
        }
        "self" => rest = &rest[1..],
        "super" => {}
        child if children.contains(child) => {}
        _ => return None,
    }
    while rest.first().is_some_and(|word| word == "super") {
        base.pop()?;
        rest = &rest[1..];
    }
    base.extend(rest.iter().cloned());
    Some(base)
}

/// The file to which a path leads, through what is handed on.
fn leads_to<'a>(modules: &'a BTreeMap<Path, Module>, path: &Path) -> Option<&'a Module> {
    let mut path = path.clone();
    for _ in 0..16 {
        let depth = (0..=path.len())
            .rev()
            .find(|depth| modules.contains_key(&path[..*depth]))?;
        let (own, module) = modules.get_key_value(&path[..depth]).unwrap();
        let next = path.get(depth).and_then(|name| {
            let target = module.handed_on.get(name).cloned().or_else(|| {
                let all = module.handed_on.get("*")?;
                Some(all.iter().cloned().chain([name.clone()]).collect())
            })?;
            absolute(own, &module.children, &target)
        });
        match next {
            Some(mut next) if next != path => {
                next.extend(path[depth + 1..].iter().cloned());
                path = next;
            }
            _ => return Some(module),
        }
    }
    None
}

/// The imports between the Rust files of one crate.
fn imports(root: &str, files: &[File]) -> BTreeMap<String, BTreeSet<String>> {
    let mut modules = BTreeMap::new();
    for file in files {
        let mut module = Module {
            file: file.path.clone(),
            ..Module::default()
        };
        let stream: TokenStream = file.text.parse().unwrap();
        read(stream, 0, &mut module);
        modules.insert(path_of(root, &file.path), module);
    }
    let mut imports: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (own, module) in &modules {
        let targets = module
            .paths
            .iter()
            .filter_map(|path| absolute(own, &module.children, path))
            .filter_map(|path| leads_to(&modules, &path))
            .map(|target| target.file.clone())
            .filter(|target| *target != module.file);
        imports.insert(module.file.clone(), targets.collect());
    }
    imports
}

/// The circles: sets of files that reach each other, each sorted.
fn circles(imports: &BTreeMap<String, BTreeSet<String>>) -> Vec<Vec<String>> {
    let reached = |from: &str| {
        let (mut seen, mut next) = (BTreeSet::new(), vec![from.to_owned()]);
        while let Some(file) = next.pop() {
            for target in imports.get(&file).into_iter().flatten() {
                if seen.insert(target.clone()) {
                    next.push(target.clone());
                }
            }
        }
        seen
    };
    let all: BTreeMap<&String, BTreeSet<String>> =
        imports.keys().map(|file| (file, reached(file))).collect();
    let mut found: BTreeSet<Vec<String>> = BTreeSet::new();
    for (file, reaches) in &all {
        if reaches.contains(*file) {
            let back = |other: &&String| all.get(other).is_some_and(|seen| seen.contains(*file));
            found.insert(reaches.iter().filter(back).cloned().collect());
        }
    }
    found.into_iter().collect()
}

fn judge(imports: &BTreeMap<String, BTreeSet<String>>) {
    let mut mistakes = Vec::new();
    for circle in circles(imports) {
        mistakes.push(circle.join(", "));
        for file in &circle {
            let into: Vec<&String> = imports[file]
                .iter()
                .filter(|target| circle.contains(target))
                .collect();
            mistakes.push(format!("    {file} imports {into:?}"));
        }
    }
    none_of(
        mistakes,
        "no two files import each other, directly or through others",
    );
}

fn is_for_users(file: &File) -> bool {
    !["src/server_tests/", "src/simulation/"]
        .iter()
        .any(|only| file.path.starts_with(only))
        && !file.path.ends_with("/tests.rs")
        && !file.path.contains("/tests/")
        && !file.path.contains("/testing/")
        && !file.path.contains("/model/")
        && !file.path.contains("/simulated/")
}

/// The imports between the Rust files of the library and of the command, without those of tests.
pub(super) fn rust_imports() -> BTreeMap<String, BTreeSet<String>> {
    let command = "src/bin/pgshard/";
    let (ours, library): (Vec<File>, Vec<File>) = files(&[".rs"])
        .into_iter()
        .filter(|file| file.path.starts_with("src/") && is_for_users(file))
        .partition(|file| file.path.starts_with(command));
    let mut all = imports("src/", &library);
    all.extend(imports(command, &ours));
    assert!(
        all.values().map(BTreeSet::len).sum::<usize>() > 1000,
        "imports are found"
    );
    all
}

#[test]
fn no_rust_files_import_each_other() {
    judge(&rust_imports());
}

/// The modules that a Python file imports, also within functions and for its types only.
fn python_imports(own: &[String], is_package: bool, text: &str) -> Vec<(Path, Vec<String>)> {
    let joined = text.replace("(\n", "(").replace(",\n", ",");
    let mut found = Vec::new();
    for line in joined.lines().map(str::trim) {
        let Some((module, names)) = line
            .strip_prefix("from ")
            .and_then(|rest| rest.split_once(" import "))
        else {
            continue;
        };
        let dots = module.len() - module.trim_start_matches('.').len();
        let mut path: Path = Vec::new();
        if dots > 0 {
            let up = dots - usize::from(is_package);
            path.extend(own[..own.len().saturating_sub(up)].iter().cloned());
        }
        path.extend(
            module
                .trim_start_matches('.')
                .split('.')
                .filter(|word| !word.is_empty())
                .map(str::to_owned),
        );
        let names = names.trim_matches(['(', ')']).split(',');
        let names = names
            .filter_map(|name| name.split_whitespace().next())
            .map(str::to_owned);
        found.push((path, names.collect()));
    }
    found
}

#[test]
fn no_python_files_import_each_other() {
    let ours: Vec<File> = files(&[".py"])
        .into_iter()
        .filter(|file| file.path.starts_with("python/pgshard/"))
        .collect();
    let module = |file: &File| -> Path {
        let inner = file
            .path
            .strip_prefix("python/")
            .unwrap()
            .trim_end_matches(".py");
        inner
            .trim_end_matches("/__init__")
            .split('/')
            .map(str::to_owned)
            .collect()
    };
    let paths: BTreeMap<Path, &File> = ours.iter().map(|file| (module(file), file)).collect();
    let mut imports: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (own, file) in &paths {
        let is_package = file.path.ends_with("/__init__.py");
        // A package's face only hands names on.
        if is_package {
            continue;
        }
        let targets = imports.entry(file.path.clone()).or_default();
        for (path, names) in python_imports(own, is_package, &file.text) {
            for name in names {
                let mut longer = path.clone();
                longer.push(name);
                let target = paths.get(&longer).or_else(|| paths.get(&path));
                targets.extend(target.map(|target| target.path.clone()));
            }
        }
        targets.remove(&file.path);
    }
    assert!(
        imports.values().map(BTreeSet::len).sum::<usize>() > 100,
        "imports are found"
    );
    judge(&imports);
}

#[test]
fn circles_are_found() {
    let file = |path: &str, text: &str| File {
        path: path.to_owned(),
        text: text.to_owned(),
    };
    let files = [
        file("src/lib.rs", "mod a; pub use a::B;"),
        file(
            "src/a/mod.rs",
            "mod b; mod c; pub(crate) use self::b::{B as Renamed, B}; use c::C;",
        ),
        file(
            "src/a/b.rs",
            "use super::c::C; struct B; #[cfg(test)] mod t { use super::super::d; }",
        ),
        file(
            "src/a/c.rs",
            "struct C; fn f() { m!(super::Renamed::new()) }",
        ),
    ];
    let imports = imports("src/", &files);
    let list = |path: &str| imports[path].iter().map(String::as_str).collect::<Vec<_>>();
    assert_eq!(list("src/a/mod.rs"), ["src/a/c.rs"]);
    assert_eq!(list("src/a/b.rs"), ["src/a/c.rs"]);
    assert_eq!(list("src/a/c.rs"), ["src/a/b.rs"]);
    assert_eq!(circles(&imports), [["src/a/b.rs", "src/a/c.rs"]]);
}
