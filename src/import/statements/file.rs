//! Statements of a file: a log of PostgreSQL as text, CSV or JSON, or a statement on each line. The
//! file is read line by line.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::Path;

use serde::Deserialize;

use super::collect::StatementForms;
use super::csv;

/// The most bytes of a line, and of a statement. What is longer is cut.
const LINE_MAX: u64 = 1 << 20;

/// The place of the message in a record of a log in CSV.
const CSV_MESSAGE: usize = 13;

/// The format of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    /// `log_destination = stderr`.
    Log,
    /// `log_destination = csvlog`.
    Csv,
    /// `log_destination = jsonlog`.
    Json,
    /// A statement on each line.
    Lines,
}

#[derive(Deserialize)]
struct JsonRecord {
    #[serde(default)]
    message: String,
}

/// Reads the statements of a file.
///
/// # Errors
/// When the file cannot be read.
pub(super) fn read(path: &Path) -> io::Result<StatementForms> {
    read_from(BufReader::with_capacity(1 << 20, File::open(path)?))
}

fn read_from(mut file: impl BufRead) -> io::Result<StatementForms> {
    let mut collected = StatementForms::default();
    let mut format = None;
    // A record that is not complete yet.
    let mut open = String::new();
    let mut entry: Option<Entry> = None;
    while let Some(line) = line(&mut file)? {
        let format = match format {
            Some(format) => format,
            None if line.trim().is_empty() => continue,
            None => *format.insert(format_of(&line)),
        };
        match format {
            Format::Lines => collected.add(&line, 1, 0.0),
            Format::Json => {
                if let Ok(record) = serde_json::from_str::<JsonRecord>(&line) {
                    Entry::of(&record.message).add_to(&mut collected);
                }
            }
            Format::Csv => {
                if !open.is_empty() {
                    open.push('\n');
                }
                open.push_str(&line);
                if csv::is_complete(&open) {
                    let fields = csv::fields(&open);
                    if let Some(message) = fields.get(CSV_MESSAGE) {
                        Entry::of(message).add_to(&mut collected);
                    }
                    open.clear();
                }
            }
            Format::Log => match (line.strip_prefix('\t'), &mut entry) {
                // A line that begins with a tab continues the one before.
                (Some(rest), Some(entry)) => entry.continue_with(rest),
                (Some(_), None) => {}
                (None, _) => {
                    if let Some(entry) = entry.take() {
                        entry.add_to(&mut collected);
                    }
                    entry = line
                        .split_once("LOG:  ")
                        .map(|(_, message)| Entry::of(message));
                }
            },
        }
    }
    if let Some(entry) = entry {
        entry.add_to(&mut collected);
    }
    Ok(collected)
}

/// What an entry of a log contains about a statement.
#[derive(Debug, PartialEq)]
struct Entry {
    text: String,
    calls: u64,
    time_ms: f64,
}

impl Entry {
    /// `duration: 0.3 ms  statement: SELECT …`, `execute s1: SELECT …`. To parse and to bind take
    /// time too, and are no calls.
    fn of(message: &str) -> Entry {
        let mut rest = message;
        let mut time_ms = 0.0;
        if let Some(after) = rest.strip_prefix("duration: ")
            && let Some((time, after)) = after.split_once(" ms")
        {
            time_ms = time.trim().parse().unwrap_or_default();
            rest = after.trim_start();
        }
        let (word, after) = rest.split_once(": ").unwrap_or((rest, ""));
        let (calls, text) = match word.split(' ').next() {
            Some("statement") => (1, after),
            // A fetch from a portal repeats the statement.
            Some("execute") => (1, after),
            Some("parse" | "bind") => (0, after),
            _ => (0, ""),
        };
        Entry {
            text: text.to_owned(),
            calls,
            time_ms,
        }
    }

    fn continue_with(&mut self, line: &str) {
        if !self.text.is_empty() && self.text.len() < LINE_MAX as usize {
            self.text.push('\n');
            self.text.push_str(line);
        }
    }

    fn add_to(self, collected: &mut StatementForms) {
        if !self.text.is_empty() {
            collected.add(&self.text, self.calls, self.time_ms);
        }
    }
}

/// The next line without its end, cut if it is too long. Bytes that are no UTF-8 are replaced.
fn line(file: &mut impl BufRead) -> io::Result<Option<String>> {
    let mut bytes = Vec::new();
    let read = io::Read::take(&mut *file, LINE_MAX).read_until(b'\n', &mut bytes)?;
    if read == 0 {
        return Ok(None);
    }
    if bytes.last() == Some(&b'\n') {
        bytes.pop();
    } else if read as u64 == LINE_MAX {
        skip_line(file)?;
    }
    if bytes.last() == Some(&b'\r') {
        bytes.pop();
    }
    Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
}

fn skip_line(file: &mut impl BufRead) -> io::Result<()> {
    loop {
        let buffer = file.fill_buf()?;
        if buffer.is_empty() {
            return Ok(());
        }
        let end = buffer.iter().position(|byte| *byte == b'\n');
        let skipped = end.map_or(buffer.len(), |at| at + 1);
        file.consume(skipped);
        if end.is_some() {
            return Ok(());
        }
    }
}

fn format_of(line: &str) -> Format {
    if line.starts_with('{') && serde_json::from_str::<JsonRecord>(line).is_ok() {
        return Format::Json;
    }
    let begins_with_time = line.len() > 20
        && line.starts_with(|c: char| c.is_ascii_digit())
        && line.get(4..5) == Some("-");
    if begins_with_time && !line.contains("LOG:  ") && csv::fields(line).len() > CSV_MESSAGE {
        return Format::Csv;
    }
    // Any entry may come first, with any prefix.
    let levels = [
        "LOG:  ",
        "ERROR:  ",
        "WARNING:  ",
        "FATAL:  ",
        "NOTICE:  ",
        "DETAIL:  ",
        "STATEMENT:  ",
        "HINT:  ",
        "CONTEXT:  ",
    ];
    if levels.iter().any(|level| line.contains(level)) {
        Format::Log
    } else {
        Format::Lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn collected(text: &str) -> Vec<(String, u64, f64)> {
        let collected = read_from(text.as_bytes()).unwrap();
        let mut forms: Vec<_> = collected
            .forms
            .into_iter()
            .map(|(form, tally)| (form, tally.calls, tally.time_ms))
            .collect();
        forms.sort_by(|a, b| a.0.cmp(&b.0));
        forms
    }

    #[test]
    fn a_log_as_text_is_read() {
        let log = "2026-11-28 01:00:00.000 UTC [7] LOG:  checkpoint starting: time
2026-11-28 01:00:01.000 UTC [8] app@db LOG:  duration: 1.500 ms  statement: SELECT *
\tFROM photos
\tWHERE id = 7
2026-11-28 01:00:01.000 UTC [8] app@db LOG:  duration: 0.250 ms  parse <unnamed>: SELECT 1
2026-11-28 01:00:01.000 UTC [8] app@db LOG:  duration: 0.750 ms  execute <unnamed>: SELECT 1
2026-11-28 01:00:01.000 UTC [8] app@db DETAIL:  parameters: $1 = '7'
2026-11-28 01:00:02.000 UTC [8] app@db ERROR:  syntax error
2026-11-28 01:00:02.000 UTC [8] app@db STATEMENT:  SELEC
2026-11-28 01:00:02.000 UTC [8] app@db LOG:  statement: COMMIT
";
        assert_eq!(
            collected(log),
            [
                ("COMMIT".to_owned(), 1, 0.0),
                ("SELECT $1".to_owned(), 1, 1.0),
                ("SELECT * FROM photos WHERE id = $1".to_owned(), 1, 1.5),
            ]
        );
    }

    #[test]
    fn a_log_as_csv_is_read() {
        let log = "2026-11-28 01:00:00.000 UTC,\"app\",\"db\",8,\"[local]\",a.b,1,\"SELECT\",\
            2026-11-28 00:00:00 UTC,3/4,0,LOG,00000,\
            \"duration: 2.0 ms  statement: SELECT \"\"A\"\"\n\
            FROM t\",,,,,,,,,\"psql\",\"client backend\",,0\n";
        let expected = [("SELECT \"A\" FROM t".to_owned(), 1, 2.0)];
        assert_eq!(collected(log), expected);
    }

    #[test]
    fn a_log_as_json_is_read() {
        let log = "{\"timestamp\":\"2026\",\"error_severity\":\"LOG\",\
            \"message\":\"execute s1: SELECT 2\"}\n";
        assert_eq!(collected(log), [("SELECT $1".to_owned(), 1, 0.0)]);
    }

    #[test]
    fn statements_on_lines_are_read() {
        let lines = "SELECT 1;\nSELECT 2;\n\nDELETE FROM t";
        let expected = [
            ("DELETE FROM t".to_owned(), 1, 0.0),
            ("SELECT $1".to_owned(), 2, 0.0),
        ];
        assert_eq!(collected(lines), expected);
    }

    #[test]
    fn a_line_without_end_is_cut() {
        let long = format!("SELECT a{}\nSELECT 1", " ".repeat(3 << 20));
        let forms: Vec<String> = collected(&long)
            .into_iter()
            .map(|(form, ..)| form)
            .collect();
        assert_eq!(forms, ["SELECT $1", "SELECT a"]);
    }
}
