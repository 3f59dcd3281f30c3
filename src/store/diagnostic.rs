//! One mistake in a TOML text, with the place that an editor can jump to.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// A mistake in a file, and what to do about it.
///
/// `Display` writes it the way compilers do, without colour:
///
/// ```text
/// pgshard.toml:12:1: unknown host "bd1" in [map.placement]
///    |
/// 12 | bd1 = "0-2047"
///    | ^^^
///   remedy: did you mean "db1"?
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// What is wrong.
    pub message: String,
    /// The file.
    pub file: PathBuf,
    /// The line, from 1.
    pub line: usize,
    /// The column in characters, from 1.
    pub column: usize,
    /// How many characters of the line are meant, at least 1.
    pub width: usize,
    /// The line in the file; `None` where it could show a password.
    pub source_line: Option<String>,
    /// The remedy.
    pub hint: Option<String>,
}

impl Diagnostic {
    /// The longest excerpt of a line that is shown, in characters. Lists of placements can be very
    /// long.
    const EXCERPT_MAX: usize = 100;
    /// How much of a clipped line is shown before the place that is meant.
    const EXCERPT_BEFORE: usize = 30;

    /// The part of the line that is shown, and how many characters of it are before the place.
    fn excerpt(&self, line: &str) -> (String, usize) {
        // A tab is shown as one space, so that the marks below are under the right characters.
        let plain = |c: char| if c.is_control() { ' ' } else { c };
        let before = self.column - 1;
        if line.chars().count() <= Self::EXCERPT_MAX {
            return (line.chars().map(plain).collect(), before);
        }
        let skipped = before.saturating_sub(Self::EXCERPT_BEFORE);
        let lead = if skipped > 0 { "… " } else { "" };
        let part: String = line
            .chars()
            .skip(skipped)
            .take(Self::EXCERPT_MAX)
            .map(plain)
            .collect();
        let tail = if skipped + Self::EXCERPT_MAX < line.chars().count() {
            " …"
        } else {
            ""
        };
        (
            format!("{lead}{part}{tail}"),
            before - skipped + lead.chars().count(),
        )
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}:{}:{}: {}",
            self.file.display(),
            self.line,
            self.column,
            self.message
        )?;
        if let Some(line) = self
            .source_line
            .as_ref()
            .filter(|line| !line.trim().is_empty())
        {
            let (excerpt, before) = self.excerpt(line);
            let number = self.line.to_string();
            let gutter = " ".repeat(number.len());
            let marks = "^".repeat(
                self.width
                    .min(excerpt.chars().count().saturating_sub(before))
                    .max(1),
            );
            let indent = " ".repeat(before);
            write!(
                f,
                "\n{gutter} |\n{number} | {excerpt}\n{gutter} | {indent}{marks}"
            )?;
        }
        if let Some(hint) = &self.hint {
            write!(f, "\n  remedy: {hint}")?;
        }
        Ok(())
    }
}

/// A text and the places of its bytes, with the mistakes found so far.
pub(crate) struct Findings<'a> {
    file: &'a Path,
    text: &'a str,
    /// The byte at which each line begins.
    lines: Vec<usize>,
    found: Vec<(usize, Diagnostic)>,
}

impl<'a> Findings<'a> {
    pub(crate) fn new(file: &'a Path, text: &'a str) -> Findings<'a> {
        let starts = text.match_indices('\n').map(|(at, _)| at + 1);
        Findings {
            file,
            text,
            lines: std::iter::once(0).chain(starts).collect(),
            found: Vec::new(),
        }
    }

    pub(crate) fn text(&self) -> &'a str {
        self.text
    }

    pub(crate) fn count(&self) -> usize {
        self.found.len()
    }

    /// Takes up a mistake about these bytes of the text.
    pub(crate) fn add(
        &mut self,
        at: &Range<usize>,
        message: impl Into<String>,
        hint: Option<String>,
    ) {
        let (line, column) = self.place(at.start);
        let whole = self.line(line);
        let end = at.end.min(self.lines[line - 1] + whole.len());
        let width = self
            .text
            .get(at.start..end)
            .map_or(1, |meant| meant.chars().count())
            .max(1);
        let source_line = (!may_hold_password(whole)).then(|| whole.to_owned());
        let (message, file) = (message.into(), self.file.to_owned());
        self.found.push((
            at.start,
            Diagnostic {
                message,
                file,
                line,
                column,
                width,
                source_line,
                hint,
            },
        ));
    }

    /// Takes up a mistake without showing its line.
    pub(crate) fn add_unshown(
        &mut self,
        at: &Range<usize>,
        message: impl Into<String>,
        hint: Option<String>,
    ) {
        self.add(at, message, hint);
        if let Some((_, last)) = self.found.last_mut() {
            last.source_line = None;
        }
    }

    /// Line and column of a byte, both from 1, the column in characters.
    pub(crate) fn place(&self, at: usize) -> (usize, usize) {
        let mut at = at.min(self.text.len());
        while !self.text.is_char_boundary(at) {
            at -= 1;
        }
        let line = self.lines.partition_point(|start| *start <= at);
        let before = &self.text[self.lines[line - 1]..at];
        // A byte order mark has no width.
        (
            line,
            before.chars().filter(|c| *c != '\u{feff}').count() + 1,
        )
    }

    /// The same as text, `12:9`.
    pub(crate) fn place_text(&self, at: usize) -> String {
        let (line, column) = self.place(at);
        format!("{line}:{column}")
    }

    fn line(&self, line: usize) -> &'a str {
        let start = self.lines[line - 1];
        let end = self
            .lines
            .get(line)
            .map_or(self.text.len(), |next| next - 1);
        self.text[start..end]
            .trim_end_matches('\r')
            .trim_start_matches('\u{feff}')
    }

    /// All mistakes, in the order of their places.
    pub(crate) fn into_sorted(mut self) -> Vec<Diagnostic> {
        self.found.sort_by_key(|(at, _)| *at);
        self.found
            .into_iter()
            .map(|(_, diagnostic)| diagnostic)
            .collect()
    }
}

/// Where a text cannot be read we do not know what its parts are, so a line that looks like a
/// connection string is better not shown.
fn may_hold_password(line: &str) -> bool {
    let line = line.to_ascii_lowercase();
    ["url", "pass", "pwd", "://"]
        .iter()
        .any(|sign| line.contains(sign))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_counted_in_characters() {
        let text = "\u{feff}a\r\nzwölf = 1\n\n";
        let findings = Findings::new(Path::new("x"), text);
        let place = |needle: &str| findings.place(text.find(needle).unwrap());
        assert_eq!(place("a"), (1, 1));
        assert_eq!(place("lf"), (2, 4));
        assert_eq!(findings.place(text.len()), (4, 1));
        assert_eq!(findings.place(text.len() + 9), (4, 1));
        assert_eq!(findings.line(1), "a");
    }

    #[test]
    fn a_long_line_is_clipped_around_its_place() {
        let text = format!("{}HERE{}", ".".repeat(500), ".".repeat(500));
        let mut findings = Findings::new(Path::new("x"), &text);
        findings.add(&(500..504), "wrong", None);
        let shown = findings.into_sorted()[0].to_string();
        let lines: Vec<&str> = shown.lines().collect();
        assert_eq!(lines[0], "x:1:501: wrong");
        let mark = lines[3].find('^').unwrap();
        let chars: Vec<char> = lines[2].chars().collect();
        assert_eq!(chars[mark..mark + 4], ['H', 'E', 'R', 'E']);
        assert!(chars.len() < 120);
    }

    #[test]
    fn lines_with_secrets_are_not_shown() {
        let text = "url = \"postgres://app:hunter2@\nshards = 1";
        let mut findings = Findings::new(Path::new("x"), text);
        findings.add(&(6..9), "wrong", None);
        assert_eq!(findings.into_sorted()[0].to_string(), "x:1:7: wrong");
    }
}
