//! What a user of the library can name, with all features: it changes only on purpose.
//!
//! `INSTA_UPDATE=always cargo test --test public_api` writes tests/data/public-api.snap again. The
//! format of rustdoc's JSON may change with each release of Rust: the version of `public-api` in
//! Cargo.toml reads what the newest stable release writes.

use std::path::Path;
use std::process::Command;

#[test]
fn what_the_library_offers() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let made = Command::new(root.join("script/rustdoc-json"))
        .output()
        .expect("a shell runs script/rustdoc-json");
    assert!(
        made.status.success(),
        "{}",
        String::from_utf8_lossy(&made.stderr)
    );
    let json = String::from_utf8(made.stdout).expect("a path of this machine is a text");
    let surface = public_api::Builder::from_rustdoc_json(json.trim_end())
        .omit_blanket_impls(true)
        .omit_auto_trait_impls(true)
        .omit_auto_derived_impls(true)
        .build()
        .expect(
            "public-api reads the JSON of this toolchain: Cargo.toml names the release that does",
        );
    insta::with_settings!({
        snapshot_path => "data",
        prepend_module_to_snapshot => false,
        omit_expression => true
    }, {
        insta::assert_snapshot!("public-api", surface.to_string());
    });
}
