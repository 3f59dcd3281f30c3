//! The control schema as bootstrap creates it, for tests that use nothing else of the library.

/// Every control migration, in order.
pub(crate) fn control() -> String {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/migrations/control");
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|file| file.unwrap().path())
        .collect();
    files.sort();
    files
        .iter()
        .map(|file| std::fs::read_to_string(file).unwrap() + "\n")
        .collect()
}
