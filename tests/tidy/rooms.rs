//! The rooms of `src/schema`, and which may use which.

use super::circles::rust_imports;
use super::none_of;

/// From the bottom up: a file of a room imports only files of its own room and of those before it.
const ROOMS: [&str; 5] = ["control", "survey", "catalog", "fleet", "check"];

/// The room of a file; none for the face, and for what only tests use.
fn room(file: &str) -> Option<usize> {
    let (folder, _) = file.strip_prefix("src/schema/")?.split_once('/')?;
    Some(
        ROOMS
            .iter()
            .position(|room| *room == folder)
            .unwrap_or_else(|| panic!("{file}: {folder} is no room: see tests/tidy/rooms.rs")),
    )
}

#[test]
fn a_room_of_schema_uses_only_those_before_it() {
    let mut mistakes = Vec::new();
    let mut crossings = 0;
    for (file, targets) in rust_imports() {
        let Some(own) = room(&file) else { continue };
        for target in targets {
            if target == "src/schema/mod.rs" {
                mistakes.push(format!("{file}: name the room that a name comes from"));
            }
            let Some(used) = room(&target) else { continue };
            crossings += usize::from(used != own);
            if used > own {
                mistakes.push(format!("{file} uses {target}, which is in a higher room"));
            }
        }
    }
    assert!(crossings > 50, "imports between rooms are found");
    none_of(
        mistakes,
        &format!(
            "a room of src/schema uses only itself and those before it in: {}",
            ROOMS.join(", ")
        ),
    );
}
