//! The application's shard migrations: a folder of `NNNN_name.sql`, run in the order of their
//! numbers in every shard.
//!
//! In the SQL, `{shard}` is the name of the shard's schema, wherever it occurs (in strings and
//! function bodies too), and `{shard_id}` is the shard's number; `{{shard}}` is the text `{shard}`,
//! `{{shard_id}}` the text `{shard_id}`.
//! The search path is empty while they run, so a table without `{shard}.` before its name is an
//! error, never a table in `public`.
//!
//! Comments before the first statement can define how a file runs. `-- pgshard: no-transaction` is
//! for a single statement such as CREATE INDEX CONCURRENTLY. `-- pgshard: once-per-host` is for a
//! file that runs not in shards, but once in each host's database, before its shards.
//!
//! Invariant: a file that some shard has run does not change, and no file is inserted before it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::dump::{About, FromDump, from_dump};
use crate::pg::Template;
use crate::schema::control::RecordedMigration;
use crate::schema::control::id_functions::{ID_FUNCTIONS, MARK};
use crate::schema::control::script::{
    Repeatable, Statement, forbidden, repeatable, statements, unclosed,
};
use crate::schema::control::steps::checksum;
use crate::shard::ShardId;

/// The application's shard migrations, checked, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Migrations {
    of_shards: Vec<Migration>,
    of_hosts: Vec<Migration>,
}

/// How a file runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::schema) enum Kind {
    /// In every shard, in a transaction.
    Shard,
    /// In every shard, without one. `quickly` is the same in a transaction, for an empty shard that
    /// is not in use yet.
    NoTransaction {
        repeatable: Repeatable,
        quickly: Template,
    },
    /// Once in a host's database, in a transaction.
    Host,
}

/// One file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Migration {
    number: u64,
    name: String,
    checksum: String,
    first_lines: Vec<String>,
    sql: String,
    /// Bytes.
    size: usize,
    pub(in crate::schema) kind: Kind,
    template: Template,
}

/// A mistake in the folder.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MigrationMistake {
    /// The folder cannot be listed, or a file not read.
    #[error("{file} cannot be read: {reason}")]
    Unreadable {
        /// The folder or file.
        file: String,
        /// Why not.
        reason: String,
    },
    /// Not `NNNN_name.sql`.
    #[error(
        "{file} is not named like 0001_photos.sql: a number of at least four digits, _, and a-z \
            A-Z 0-9 _ -"
    )]
    Name {
        /// The file.
        file: String,
    },
    /// Two files have the same number.
    #[error("{first} and {second} have the same number: give the later one the next")]
    SameNumber {
        /// The one that sorts first.
        first: String,
        /// The other.
        second: String,
    },
    /// A file without a statement.
    #[error("{file} holds no statement: remove it, or write one")]
    Empty {
        /// The file.
        file: String,
    },
    /// A file that would do the same thing once for each of thousands of shards.
    #[error(
        "{file} never says {{shard}}, so it would do the same once for every shard: name the \
            shard's tables {{shard}}.photos; what a database needs once goes into a file that \
            begins with `-- pgshard: once-per-host`"
    )]
    NoShard {
        /// The file.
        file: String,
    },
    /// A once-per-host file that names a shard.
    #[error("{file} is run once per host and says {{shard}}, but no shard is meant: remove that")]
    NamesShard {
        /// The file.
        file: String,
    },
    /// `-- pgshard: …` with an unknown word, or with both words.
    #[error(
        "{file}: `-- pgshard: {said}` is neither no-transaction nor once-per-host, or there are two"
    )]
    Directive {
        /// The file.
        file: String,
        /// The text.
        said: String,
    },
    /// A file without a transaction that has more than one statement.
    #[error(
        "{file} has {count} statements; without a transaction it can have one: make a file of each"
    )]
    SeveralStatements {
        /// The file.
        file: String,
        /// How many.
        count: usize,
    },
    /// A statement that cannot be part of a migration.
    #[error("{file} line {line}: {statement} {why}")]
    Statement {
        /// The file.
        file: String,
        /// Where the statement, or the text, begins, from 1.
        line: usize,
        /// Its first words, or the mark that opens a text without an end.
        statement: String,
        /// Why it cannot.
        why: &'static str,
    },
}

/// Every mistake in the folder of shard migrations.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the shard migrations in {} cannot be used: {}", folder.display(),
        mistakes.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
pub struct MigrationsError {
    /// The folder.
    pub folder: PathBuf,
    /// In the order of the files.
    pub mistakes: Vec<MigrationMistake>,
}

/// How the migrations that a shard has differ from those that it should have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Drift {
    /// The file has changed since it was run.
    #[error("{name} was changed after it was run")]
    Changed {
        /// The migration.
        name: String,
    },
    /// The file is gone.
    #[error("{name} was run, but its file no longer exists")]
    Missing {
        /// The migration.
        name: String,
    },
    /// The file came too late.
    #[error("{name} was not run, but {after} after it was")]
    OutOfOrder {
        /// The migration that was not run.
        name: String,
        /// The last one that was.
        after: String,
    },
    /// One of pgshard's own that this pgshard does not know.
    #[error("{name} was run by a newer pgshard")]
    Newer {
        /// The migration.
        name: String,
    },
}

impl MigrationMistake {
    /// The file that it is about; of two, the one that sorts first.
    pub fn file(&self) -> &str {
        match self {
            MigrationMistake::Unreadable { file, .. }
            | MigrationMistake::Name { file }
            | MigrationMistake::Empty { file }
            | MigrationMistake::NoShard { file }
            | MigrationMistake::NamesShard { file }
            | MigrationMistake::Directive { file, .. }
            | MigrationMistake::SeveralStatements { file, .. }
            | MigrationMistake::Statement { file, .. }
            | MigrationMistake::SameNumber { first: file, .. } => file,
        }
    }
}

impl Drift {
    /// What to do.
    pub fn remedy(&self) -> String {
        match self {
            Drift::Changed { name } if name.starts_with(MARK) => {
                "use the pgshard that ran it, or a later release of it".to_owned()
            }
            Drift::Changed { name } => format!(
                "put {name}.sql back as it was, and write the change as a new file; where what ran \
                    is as good as the new text, `pgshard migrate resolve {name} --accept-edit`"
            ),
            Drift::Missing { name } => {
                format!("put {name}.sql back as it was, and write the change as a new file")
            }
            Drift::OutOfOrder { name, after } => format!("give {name}.sql a number after {after}"),
            Drift::Newer { .. } => "use the newer pgshard".to_owned(),
        }
    }
}

/// What a shard still lacks: the first missing one of pgshard's own migrations, and of the
/// application's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::schema) struct Pending {
    pub(in crate::schema) own_from: usize,
    pub(in crate::schema) from: usize,
}

impl Migrations {
    /// No migrations: shards contain nothing but the ID function.
    pub fn none() -> Migrations {
        Migrations::default()
    }

    /// Reads the `*.sql` files of a folder. Other files, and those that start with a dot, are
    /// ignored. A name that only looks as if it ended in `.sql`, such as `0002_a.SQL`, is a
    /// mistake.
    ///
    /// # Errors
    /// Every mistake in it.
    pub fn read(folder: &Path) -> Result<Migrations, MigrationsError> {
        match Migrations::read_lenient(folder) {
            (migrations, None) => Ok(migrations),
            (_, Some(error)) => Err(error),
        }
    }

    /// The same, and where there are mistakes, the files without one: for code that only compares
    /// which shards have which.
    pub fn read_lenient(folder: &Path) -> (Migrations, Option<MigrationsError>) {
        let (texts, mut mistakes) = match texts(folder) {
            Ok(read) => read,
            Err(reason) => {
                let file = "the folder".to_owned();
                (
                    BTreeMap::new(),
                    vec![MigrationMistake::Unreadable { file, reason }],
                )
            }
        };
        let (migrations, more) = Migrations::of_texts(&texts);
        mistakes.extend(more);
        let error = (!mistakes.is_empty()).then(|| MigrationsError {
            folder: folder.to_owned(),
            mistakes,
        });
        (migrations, error)
    }

    /// The migrations of these files, by file name.
    ///
    /// # Errors
    /// Every mistake in them.
    pub fn from_texts(
        texts: &BTreeMap<String, String>,
    ) -> Result<Migrations, Vec<MigrationMistake>> {
        match Migrations::of_texts(texts) {
            (migrations, mistakes) if mistakes.is_empty() => Ok(migrations),
            (_, mistakes) => Err(mistakes),
        }
    }

    fn of_texts(texts: &BTreeMap<String, String>) -> (Migrations, Vec<MigrationMistake>) {
        let mut list: Vec<Migration> = Vec::new();
        let mut numbers: BTreeMap<u64, String> = BTreeMap::new();
        let mut mistakes = Vec::new();
        for (file, text) in texts {
            let text = text.strip_prefix('\u{feff}').unwrap_or(text);
            let Some((number, name)) = parse_name(file) else {
                mistakes.push(MigrationMistake::Name { file: file.clone() });
                continue;
            };
            match kind(file, text) {
                Ok(kind) => {
                    list.push(Migration {
                        number,
                        name: name.to_owned(),
                        checksum: checksum(text),
                        first_lines: first_lines(text),
                        sql: sql(text),
                        size: text.len(),
                        kind,
                        template: Template::new(text),
                    });
                }
                Err(more) => mistakes.extend(more),
            }
            match numbers.get(&number) {
                Some(first) => {
                    let (first, second) = (String::clone(first), file.clone());
                    mistakes.push(MigrationMistake::SameNumber { first, second });
                }
                None => drop(numbers.insert(number, file.clone())),
            }
        }
        list.sort_by_key(|migration| migration.number);
        let (of_hosts, of_shards) = list
            .into_iter()
            .partition(|migration| migration.kind == Kind::Host);
        (
            Migrations {
                of_shards,
                of_hosts,
            },
            mistakes,
        )
    }

    /// The migrations of shards, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Migration> {
        self.of_shards.iter()
    }

    /// The once-per-host migrations, in order.
    pub fn of_hosts(&self) -> impl ExactSizeIterator<Item = &Migration> {
        self.of_hosts.iter()
    }

    /// The first once-per-host migration that a host with these still lacks.
    ///
    /// # Errors
    /// Every way in which what it has is not the beginning of what it should have.
    pub(in crate::schema) fn pending_on_host(
        &self,
        applied: &[RecordedMigration],
    ) -> Result<usize, Vec<Drift>> {
        let expected: Vec<_> = self.of_hosts().map(Migration::recorded).collect();
        let applied: Vec<_> = applied.iter().collect();
        begins(&expected, &applied, |name| Drift::Missing { name })
    }

    /// What a shard with these migrations still lacks.
    ///
    /// # Errors
    /// Every way in which what it has is not the beginning of what it should have.
    pub(in crate::schema) fn pending(
        &self,
        applied: &[RecordedMigration],
    ) -> Result<Pending, Vec<Drift>> {
        let (own, ours): (Vec<_>, Vec<_>) = applied
            .iter()
            .partition(|migration| migration.name.starts_with(MARK));
        let expected_own: Vec<_> = ID_FUNCTIONS
            .iter()
            .map(crate::schema::control::id_functions::IdFunctions::recorded)
            .collect();
        let expected: Vec<_> = self.iter().map(Migration::recorded).collect();
        let gone_own = |name| Drift::Newer { name };
        let gone = |name| Drift::Missing { name };
        match (
            begins(&expected_own, &own, gone_own),
            begins(&expected, &ours, gone),
        ) {
            (Ok(own_from), Ok(from)) => Ok(Pending { own_from, from }),
            (a, b) => Err([a.err(), b.err()].into_iter().flatten().flatten().collect()),
        }
    }
}

impl Migration {
    /// The file's name without `.sql`, the name it is recorded under.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// SHA-256 of the file's text, in hexadecimal; line ends count as `\n`.
    pub fn checksum(&self) -> &str {
        &self.checksum
    }

    /// The SQL for a shard. It has the same lines as the file.
    pub fn render(&self, schema: &str, shard: ShardId) -> String {
        self.template.render_shard(schema, shard)
    }

    /// The SQL for a shard that is being created, in its transaction: no application waits, so
    /// nothing needs to be concurrent.
    pub(in crate::schema) fn render_for_new(&self, schema: &str, shard: ShardId) -> String {
        match &self.kind {
            Kind::NoTransaction { quickly, .. } => quickly.render_shard(schema, shard),
            _ => self.render(schema, shard),
        }
    }

    /// The size of the file in bytes.
    pub(in crate::schema) fn size(&self) -> usize {
        self.size
    }

    /// The SQL of a once-per-host migration.
    pub(in crate::schema) fn text(&self) -> String {
        self.template.render("")
    }

    /// The first line of SQL, for people.
    pub fn first_line(&self) -> &str {
        self.first_lines.first().map_or("", String::as_str)
    }

    /// The first line of each of its statements, for people.
    pub fn first_lines(&self) -> &[String] {
        &self.first_lines
    }

    /// The SQL as the file has it, comments before the first statement left out.
    pub fn sql(&self) -> &str {
        &self.sql
    }

    /// `no-transaction` or `once-per-host`, if the file has it.
    pub fn directive(&self) -> Option<&'static str> {
        match self.kind {
            Kind::Shard => None,
            Kind::NoTransaction { .. } => Some(NO_TRANSACTION),
            Kind::Host => Some(ONCE_PER_HOST),
        }
    }

    pub(in crate::schema) fn recorded(&self) -> RecordedMigration {
        RecordedMigration {
            name: self.name.clone(),
            checksum: self.checksum.clone(),
        }
    }
}

const NO_TRANSACTION: &str = "no-transaction";
const ONCE_PER_HOST: &str = "once-per-host";

fn first_lines(text: &str) -> Vec<String> {
    let line = |statement: &Statement| {
        text[statement.at.start..]
            .lines()
            .next()
            .unwrap_or_default()
            .trim_end()
    };
    statements(text)
        .iter()
        .map(|statement| line(statement).to_owned())
        .collect()
}

fn sql(text: &str) -> String {
    let begins = statements(text)
        .first()
        .map_or(0, |statement| statement.at.start);
    text[begins..].trim_end().to_owned()
}

/// How a file runs, by its comments and its statements.
fn kind(file: &str, text: &str) -> Result<Kind, Vec<MigrationMistake>> {
    let about = match text.lines().any(|line| is_directive(line, ONCE_PER_HOST)) {
        true => About::Host,
        false => About::Shard,
    };
    let dumped = from_dump(text, about);
    if !dumped.is_empty() {
        let mistake = |found: FromDump| MigrationMistake::Statement {
            file: file.to_owned(),
            line: found.line,
            statement: found.statement,
            why: found.why,
        };
        return Err(dumped.into_iter().map(mistake).collect());
    }
    if let Some(found) = unclosed(text) {
        let (file, line, statement, why) = (file.to_owned(), found.line, found.mark, found.why);
        return Err(vec![MigrationMistake::Statement {
            file,
            line,
            statement,
            why,
        }]);
    }
    let found = statements(text);
    let Some(first) = found.first() else {
        return Err(vec![MigrationMistake::Empty {
            file: file.to_owned(),
        }]);
    };
    let mut mistakes = Vec::new();
    let comments = text[..first.at.start]
        .lines()
        .filter_map(|line| line.trim().strip_prefix("--"));
    let said: Vec<&str> = comments
        .filter_map(|line| line.trim().strip_prefix("pgshard:"))
        .map(str::trim)
        .collect();
    let directive = match said.as_slice() {
        [] => None,
        [one] if [NO_TRANSACTION, ONCE_PER_HOST].contains(one) => Some(*one),
        _ => {
            mistakes.push(MigrationMistake::Directive {
                file: file.to_owned(),
                said: said.join(", "),
            });
            None
        }
    };
    let template = Template::new(text);
    match directive {
        Some(ONCE_PER_HOST) if template.names_shard() => {
            mistakes.push(MigrationMistake::NamesShard {
                file: file.to_owned(),
            })
        }
        Some(ONCE_PER_HOST) => {}
        _ if !template.names_schema() => mistakes.push(MigrationMistake::NoShard {
            file: file.to_owned(),
        }),
        _ => {}
    }
    let bad = |statement: &Statement, why| {
        let words: Vec<&str> = statement.words.iter().take(2).map(String::as_str).collect();
        let (line, statement) = (statement.line, words.join(" "));
        MigrationMistake::Statement {
            file: file.to_owned(),
            line,
            statement,
            why,
        }
    };
    let kind = if directive == Some(NO_TRANSACTION) {
        if found.len() > 1 {
            mistakes.push(MigrationMistake::SeveralStatements {
                file: file.to_owned(),
                count: found.len(),
            });
        }
        match repeatable(text, first) {
            Ok(repeatable) => Kind::NoTransaction {
                repeatable,
                quickly: Template::new(&quickly(text, first)),
            },
            Err(why) => {
                mistakes.push(bad(first, why));
                Kind::Shard
            }
        }
    } else {
        mistakes.extend(
            found
                .iter()
                .filter_map(|statement| Some(bad(statement, forbidden(statement)?))),
        );
        if directive == Some(ONCE_PER_HOST) {
            Kind::Host
        } else {
            Kind::Shard
        }
    };
    if mistakes.is_empty() {
        Ok(kind)
    } else {
        Err(mistakes)
    }
}

/// Whether a line is the comment that gives this directive.
fn is_directive(line: &str, directive: &str) -> bool {
    line.trim()
        .strip_prefix("--")
        .and_then(|comment| comment.trim().strip_prefix("pgshard:"))
        .is_some_and(|said| said.trim() == directive)
}

/// A statement that runs outside transactions, changed to run in one for a shard without rows and
/// readers.
fn quickly(text: &str, statement: &Statement) -> String {
    let sql = &text[statement.at.clone()];
    match statement.words.first().map(String::as_str) {
        Some("VACUUM") => String::new(),
        _ => {
            let at = sql
                .to_ascii_uppercase()
                .find("CONCURRENTLY")
                .unwrap_or_default();
            let after = sql.get(at + "CONCURRENTLY".len()..).unwrap_or_default();
            format!("{}{after}", &sql[..at])
        }
    }
}

/// How many of the expected migrations are applied, if those are the first of the expected.
fn begins(
    expected: &[RecordedMigration],
    applied: &[&RecordedMigration],
    gone: impl Fn(String) -> Drift,
) -> Result<usize, Vec<Drift>> {
    let mut drifts = Vec::new();
    let last = expected
        .iter()
        .rposition(|one| applied.iter().any(|had| had.name == one.name));
    for (at, one) in expected.iter().enumerate() {
        match applied.iter().find(|had| had.name == one.name) {
            Some(had) if had.checksum != one.checksum => drifts.push(Drift::Changed {
                name: one.name.clone(),
            }),
            Some(_) => {}
            None => {
                if let Some(last) = last.filter(|last| at < *last) {
                    drifts.push(Drift::OutOfOrder {
                        name: one.name.clone(),
                        after: expected[last].name.clone(),
                    });
                }
            }
        }
    }
    for had in applied {
        if expected.iter().all(|one| one.name != had.name) {
            drifts.push(gone(had.name.clone()));
        }
    }
    if drifts.is_empty() {
        Ok(applied.len())
    } else {
        Err(drifts)
    }
}

/// Splits `0001_photos.sql` into its number and its name without `.sql`.
fn parse_name(file: &str) -> Option<(u64, &str)> {
    let name = file.strip_suffix(".sql")?;
    let (digits, rest) = name.split_once('_')?;
    let plain = !rest.is_empty()
        && rest
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
    let number = digits.len() >= 4 && digits.bytes().all(|b| b.is_ascii_digit());
    (plain && number)
        .then(|| digits.parse().ok().map(|number| (number, name)))
        .flatten()
}

type Texts = BTreeMap<String, String>;

/// The text of every `*.sql` file of a folder, and the files that cannot be read.
fn texts(folder: &Path) -> Result<(Texts, Vec<MigrationMistake>), String> {
    let mut texts = BTreeMap::new();
    let mut mistakes = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(|error| error.to_string())? {
        let entry = entry.map_err(|error| error.to_string())?;
        let file = entry.file_name().to_string_lossy().into_owned();
        if file.starts_with('.') || !file.trim().to_ascii_lowercase().ends_with(".sql") {
            continue;
        }
        if !file.ends_with(".sql") || file.starts_with(char::is_whitespace) {
            // In quotes, so that a space at its end is visible.
            mistakes.push(MigrationMistake::Name {
                file: format!("{file:?}"),
            });
            continue;
        }
        // A pipe or a device may have no end.
        let read = std::fs::metadata(entry.path()).and_then(|metadata| match metadata.is_file() {
            true => std::fs::read_to_string(entry.path()),
            false => Err(std::io::Error::other("it is not a file")),
        });
        match read {
            Ok(text) => match text.lines().position(|line| line.contains('\0')) {
                // The protocol ends a text at a NUL: the server would close the connection.
                Some(before) => {
                    let reason = format!(
                        "line {} has a NUL byte, which no statement can have",
                        before + 1
                    );
                    mistakes.push(MigrationMistake::Unreadable { file, reason });
                }
                None => {
                    texts.insert(file, text);
                }
            },
            Err(error) => mistakes.push(MigrationMistake::Unreadable {
                file,
                reason: error.to_string(),
            }),
        }
    }
    Ok((texts, mistakes))
}

#[cfg(test)]
pub(in crate::schema) mod tests {
    use super::*;

    pub(in crate::schema) fn migrations(
        files: &[(&str, &str)],
    ) -> Result<Migrations, Vec<MigrationMistake>> {
        let texts = files
            .iter()
            .map(|(file, text)| ((*file).to_owned(), (*text).to_owned()))
            .collect();
        Migrations::from_texts(&texts)
    }

    #[test]
    fn order_is_by_number() {
        let list = migrations(&[
            ("10000_z.sql", "select {shard}.f()"),
            ("0002_a-B.sql", "drop table {shard}.t"),
        ])
        .unwrap();
        let names: Vec<_> = list.iter().map(Migration::name).collect();
        assert_eq!(names, ["0002_a-B", "10000_z"]);
    }

    #[test]
    fn placeholders_are_replaced() {
        let list =
            migrations(&[("0001_a.sql", "select '{shard}', {shard_id}, '{{shard}}'")]).unwrap();
        let sql = list.of_shards[0].render("shard_0007", ShardId::new(7).unwrap());
        assert_eq!(sql, "select 'shard_0007', 7, '{shard}'");
    }

    #[test]
    fn line_ends_and_byte_order_marks_are_no_change() {
        let unix = migrations(&[("0001_a.sql", "select\n{shard}.f()\n")]).unwrap();
        let other = migrations(&[("0001_a.sql", "\u{feff}select\r\n{shard}.f()\r\n")]).unwrap();
        assert_eq!(unix.of_shards[0].checksum(), other.of_shards[0].checksum());
    }

    #[test]
    fn mistakes_all_at_once() {
        let mistakes = migrations(&[
            ("0001_a.sql", "create table {shard}.t ();\n\ncommit;"),
            ("0001_b.sql", "create table public.t ()"),
            ("0002_c.sql", "-- {shard}\n"),
            (
                "0003_d.sql",
                "create table {shard}.t ();\ncomment on table {shard}.t is 'never;\ncommit;",
            ),
            ("0004_e.sql", "copy {shard}.t to stdout"),
            ("3_d.sql", ""),
            ("readme.sql", ""),
        ]);
        let said: Vec<String> = mistakes
            .unwrap_err()
            .iter()
            .map(ToString::to_string)
            .collect();
        let no_shard = "0001_b.sql never says {shard}, so it would do the same once for every \
            shard: name the shard's tables {shard}.photos; what a database needs once goes into a \
            file that begins with `-- pgshard: once-per-host`";
        let form = "is not named like 0001_photos.sql: a number of at least four digits, _, and \
            a-z A-Z 0-9 _ -";
        assert_eq!(
            said,
            [
                "0001_a.sql line 3: COMMIT controls the transaction; each shard's migrations run \
                    in one that pgshard begins and commits",
                no_shard,
                "0001_a.sql and 0001_b.sql have the same number: give the later one the next",
                "0002_c.sql holds no statement: remove it, or write one",
                "0003_d.sql line 2: ' opens a text that is never closed",
                "0004_e.sql line 1: COPY SHARD gives rows to the client, which drops them: leave \
                    it out",
                &format!("3_d.sql {form}"),
                &format!("readme.sql {form}"),
            ]
        );
    }

    #[test]
    fn directives_are_read() {
        let list = migrations(&[
            (
                "0001_ext.sql",
                "-- Needed by all.\n-- pgshard: once-per-host\ncreate extension hstore",
            ),
            ("0002_a.sql", "create table {shard}.t (n int)"),
            (
                "0003_b.sql",
                "-- pgshard: no-transaction\ncreate index concurrently t_n on {shard}.t (n);",
            ),
        ])
        .unwrap();
        let names = |list: Vec<&Migration>| {
            list.iter()
                .map(|one| one.name().to_owned())
                .collect::<Vec<_>>()
        };
        assert_eq!(
            (
                names(list.of_hosts().collect()),
                names(list.iter().collect())
            ),
            (
                vec!["0001_ext".to_owned()],
                vec!["0002_a".to_owned(), "0003_b".to_owned()]
            )
        );
        let new = list.of_shards[1].render_for_new("shard_0001", ShardId::MAX);
        assert_eq!(new, "create index  t_n on shard_0001.t (n)");
        assert_eq!(
            list.of_shards[1].first_line(),
            "create index concurrently t_n on {shard}.t (n);"
        );
        let mistakes = migrations(&[
            (
                "0001_a.sql",
                "-- pgshard: once-per-host\ncreate table {shard}.t ()",
            ),
            ("0002_b.sql", "-- pgshard: notransaction\nvacuum {shard}.t"),
            (
                "0003_c.sql",
                "-- pgshard: no-transaction\nvacuum {shard}.t; vacuum {shard}.u",
            ),
        ]);
        assert_eq!(mistakes.unwrap_err().len(), 4);
    }

    #[test]
    fn folders_are_read_in_order() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("0001_a.sql"), "select {shard}.f()").unwrap();
        std::fs::write(folder.path().join("README.md"), "about").unwrap();
        std::fs::write(folder.path().join(".0002_b.sql"), "an editor's").unwrap();
        std::fs::write(folder.path().join("0002_b.sql.orig"), "an editor's").unwrap();
        assert_eq!(Migrations::read(folder.path()).unwrap().iter().len(), 1);
        for odd in ["0002_b.SQL", "0002_b.sql ", " 0002_b.sql"] {
            std::fs::write(folder.path().join(odd), "select {shard}.f()").unwrap();
            let error = Migrations::read(folder.path()).unwrap_err();
            assert!(
                error.mistakes[0]
                    .to_string()
                    .starts_with(&format!("{odd:?} is not named like")),
                "{error}"
            );
            std::fs::remove_file(folder.path().join(odd)).unwrap();
        }
        std::fs::write(folder.path().join("0002_b.sql"), b"\xff{shard}").unwrap();
        let error = Migrations::read(folder.path()).unwrap_err();
        assert!(
            error.to_string().contains("0002_b.sql cannot be read"),
            "{error}"
        );
        assert!(
            Migrations::read(&folder.path().join("none"))
                .unwrap_err()
                .to_string()
                .contains("the folder cannot")
        );
    }

    #[test]
    fn a_nul_byte_is_named() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("0001_a.sql"), "SELECT 1;\nSELECT '\0'").unwrap();
        let error = Migrations::read(folder.path()).unwrap_err();
        assert!(
            error.mistakes[0]
                .to_string()
                .contains("line 2 has a NUL byte"),
            "{error:?}"
        );
    }

    #[test]
    fn what_a_shard_lacks() {
        let list = migrations(&[
            ("0001_a.sql", "select {shard}.a()"),
            ("0002_b.sql", "select {shard}.b()"),
            ("0003_c.sql", "select {shard}.c()"),
        ])
        .unwrap();
        let all: Vec<RecordedMigration> = list.iter().map(Migration::recorded).collect();
        let own = ID_FUNCTIONS[0].recorded();
        let named = |name: &str| RecordedMigration {
            name: name.to_owned(),
            checksum: String::new(),
        };
        let (a, b, c) = (all[0].clone(), all[1].clone(), all[2].clone());
        let changed = RecordedMigration {
            checksum: "other".to_owned(),
            ..a.clone()
        };
        let rows = [
            (vec![], Ok((0, 0))),
            (vec![own.clone(), a.clone()], Ok((1, 1))),
            (
                vec![a.clone(), b.clone(), c.clone(), own.clone()],
                Ok((1, 3)),
            ),
            (
                vec![a.clone(), c.clone()],
                Err(vec!["0002_b was not run, but 0003_c after it was"]),
            ),
            (
                vec![changed, named("0009_z"), named("pgshard:9999_later")],
                Err(vec![
                    "pgshard:9999_later was run by a newer pgshard",
                    "0001_a was changed after it was run",
                    "0009_z was run, but its file no longer exists",
                ]),
            ),
        ];
        for (applied, expected) in rows {
            let pending = list
                .pending(&applied)
                .map(|pending| (pending.own_from, pending.from));
            let said = pending
                .map_err(|drifts| drifts.iter().map(ToString::to_string).collect::<Vec<_>>());
            assert_eq!(
                said,
                expected.map_err(|said| said.into_iter().map(str::to_owned).collect()),
                "{applied:?}"
            );
        }
    }
}
