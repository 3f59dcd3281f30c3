//! The language of comments and documents: how often the words of docs/style.md occur that a reader
//! of PostgreSQL's or Django's documentation would stumble over.
//!
//! The limits are the counts of today. They may only fall: a change that rewrites a page lowers
//! them.

use super::{File, files, none_of};

/// Words, and how often they may occur among 10,000 words of comments and of documents. `jiff`,
/// `ripgrep`, `steno` and `rust-postgres` have 0 to 5 of each row in their comments.
const LIMITS: [(&[&str], f64, f64); 10] = [
    (&["say", "says", "said"], 1.0, 0.3),
    (&["ask", "asks", "asked"], 2.0, 0.7),
    (&["nobody", "somebody", "whoever"], 0.4, 0.3),
    (&["tell", "tells", "told"], 0.3, 0.3),
    (&["go on", "goes on", "went on", "going on"], 0.5, 0.3),
    (&["stand", "stands", "stood"], 0.5, 1.8),
    (&["beside", "besides"], 0.3, 0.3),
    (&["anew"], 0.3, 0.3),
    (&["whose"], 1.5, 6.4),
    (&["he", "his", "him"], 0.1, 0.3),
];

/// The text's words in lower case, without those of its code.
fn words(text: &str) -> Vec<String> {
    let mut is_code = false;
    let spans = text.split('`').filter(|_| {
        is_code = !is_code;
        is_code
    });
    spans
        .flat_map(|span| span.split(|c: char| !c.is_alphabetic() && c != '\''))
        .filter(|word| !word.is_empty())
        .map(str::to_lowercase)
        .collect()
}

fn comments(file: &File) -> String {
    let mut text = String::new();
    let mut is_code = false;
    for line in file.text.lines().map(str::trim_start) {
        let Some(comment) = line.strip_prefix("//") else {
            is_code = false;
            continue;
        };
        let comment = comment.trim_start_matches(['/', '!']);
        if comment.trim_start().starts_with("```") {
            is_code = !is_code;
        } else if !is_code {
            text.push_str(comment);
            text.push('\n');
        }
    }
    text
}

fn prose(file: &File) -> String {
    let mut is_code = false;
    let lines = file.text.lines().filter(|line| {
        let fence = line.trim_start().starts_with("```");
        is_code ^= fence;
        !is_code && !fence
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// How often one of the phrases occurs among 10,000 words.
fn rate(words: &[String], phrases: &[&str]) -> f64 {
    let count = |phrase: &&str| {
        let phrase: Vec<&str> = phrase.split(' ').collect();
        words
            .windows(phrase.len())
            .filter(|window| {
                window
                    .iter()
                    .zip(&phrase)
                    .all(|(word, wanted)| word == wanted)
            })
            .count()
    };
    let found: usize = phrases.iter().map(count).sum();
    10_000.0 * found as f64 / words.len() as f64
}

#[test]
fn words_to_avoid_become_no_more() {
    let code = files(&[".rs"])
        .into_iter()
        .filter(|file| file.path.starts_with("src/"));
    let code = words(&code.map(|file| comments(&file)).collect::<String>());
    let pages = files(&[".md"]).into_iter().filter(|file| {
        file.path != "CHANGELOG.md"
            && file.path != "docs/style.md"
            && !file.path.starts_with("fuzz/")
    });
    let pages = words(&pages.map(|file| prose(&file)).collect::<String>());
    assert!(
        code.len() > 30_000 && pages.len() > 20_000,
        "texts are found"
    );
    let mut mistakes = Vec::new();
    for (phrases, in_code, in_pages) in LIMITS {
        for (place, words, limit) in [
            ("comments", &code, in_code),
            ("documents", &pages, in_pages),
        ] {
            let rate = rate(words, phrases);
            if rate > limit {
                mistakes.push(format!(
                    "{}: {rate:.1} in 10,000 words of {place}, {limit} at most",
                    phrases.join(", ")
                ));
            }
        }
    }
    none_of(mistakes, "words of docs/style.md's list become no more");
}

#[test]
fn phrases_are_counted() {
    let text = words("He goes on, and `goes on` in code. Whoever asks, asks.");
    assert_eq!(text.len(), 9);
    let in_ten = |phrases: &[&str]| (rate(&text, phrases) * 9.0 / 10_000.0).round();
    assert_eq!(in_ten(&["goes on"]), 1.0);
    assert_eq!(in_ten(&["ask", "asks"]), 2.0);
    assert_eq!(in_ten(&["nobody", "whoever"]), 1.0);
}
