//! Statements as the router takes them: a text, read once and remembered, or an [`Sql`] that was
//! read beforehand.

use std::borrow::Cow;
use std::hash::{BuildHasher, RandomState};
use std::num::NonZeroUsize;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use lru::LruCache;

use super::options::Selects;
use super::session_effects;
use super::statement_class::StatementClass;
use crate::pg::Template;
use crate::shard::{Layout, SchemaPrefix, ShardCount, ShardId, WholeSchema};

/// A statement read beforehand: [`Template`] and what the router may do with it. Cheap to clone.
///
/// Every method that takes SQL takes a text as well. This type saves the search in the cache of
/// texts.
#[derive(Clone, Debug)]
pub struct Sql {
    parsed: Arc<ParsedStatement>,
    /// The caller's word that it only reads.
    reading: bool,
}

#[derive(Debug)]
struct ParsedStatement {
    template: Template,
    class: StatementClass,
    may_change_session: bool,
    asks_about_names: bool,
    /// The text as it was given: the same for every shard.
    text: Box<str>,
    /// The hash of the text.
    hash: u64,
}

/// A statement for one shard. Its text is only put together where it is sent.
#[derive(Clone, Copy)]
pub(super) struct ShardStatement<'a> {
    sql: &'a Sql,
    tables: Tables<'a>,
}

/// Which tables a statement means.
#[derive(Clone, Copy)]
enum Tables<'a> {
    /// It names no shard.
    Named,
    Shard(Naming<'a>, ShardId),
    /// Those that `search_path` finds, with other types in each shard.
    SearchPath(Naming<'a>, ShardId),
}

/// How the shards' schemas are named on a host.
#[derive(Clone, Copy, Debug)]
pub(super) enum Naming<'a> {
    /// Each by its number.
    Numbered(&'a SchemaPrefix),
    /// All shards are in this one.
    Whole(&'a WholeSchema),
}

impl<'a> Naming<'a> {
    pub(super) fn new(layout: &'a Layout, prefix: &'a SchemaPrefix) -> Naming<'a> {
        layout
            .whole()
            .map_or(Naming::Numbered(prefix), Naming::Whole)
    }

    /// The name of a shard's schema, not quoted.
    pub(super) fn schema(self, shard: ShardId) -> Cow<'a, str> {
        match self {
            Naming::Numbered(prefix) => Cow::Owned(prefix.schema(shard)),
            Naming::Whole(schema) => Cow::Borrowed(schema.as_str()),
        }
    }
}

impl<'a> From<&'a SchemaPrefix> for Naming<'a> {
    fn from(prefix: &'a SchemaPrefix) -> Naming<'a> {
        Naming::Numbered(prefix)
    }
}

impl<'a> ShardStatement<'a> {
    pub(super) fn new(
        sql: &'a Sql,
        naming: impl Into<Naming<'a>>,
        shard: ShardId,
    ) -> ShardStatement<'a> {
        let names_shard = sql.parsed.template.names_shard();
        ShardStatement {
            sql,
            tables: if names_shard {
                Tables::Shard(naming.into(), shard)
            } else {
                Tables::Named
            },
        }
    }

    /// A statement without a shard, such as the router's own questions.
    pub(super) fn alone(sql: &'a Sql) -> ShardStatement<'a> {
        ShardStatement {
            sql,
            tables: Tables::Named,
        }
    }

    /// A statement in a transaction that has the shard's `search_path`.
    pub(super) fn by_search_path(
        sql: &'a Sql,
        naming: impl Into<Naming<'a>>,
        shard: ShardId,
    ) -> ShardStatement<'a> {
        ShardStatement {
            sql,
            tables: Tables::SearchPath(naming.into(), shard),
        }
    }

    pub(super) fn sql(self) -> &'a Sql {
        self.sql
    }

    /// The text that is sent.
    pub(super) fn text(self) -> Cow<'a, str> {
        let template = &self.sql.parsed.template;
        match self.tables {
            Tables::Named => Cow::Owned(template.render("")),
            Tables::Shard(naming, shard) => {
                Cow::Owned(template.render_shard(&naming.schema(shard), shard))
            }
            Tables::SearchPath(naming, shard) => {
                let schema = naming.schema(shard);
                let sql = template.render_shard(&schema, shard);
                match naming {
                    // The same text means other tables in each shard. The comment makes the texts
                    // differ, so that a prepared statement is for one shard.
                    Naming::Numbered(_) => Cow::Owned(format!("/* {schema} */ {sql}")),
                    Naming::Whole(_) => Cow::Owned(sql),
                }
            }
        }
    }

    /// Whether its tables are those that `search_path` finds.
    pub(super) fn is_by_search_path(self) -> bool {
        matches!(self.tables, Tables::SearchPath(..))
    }

    /// Which shard the prepared statement is for, and in which way it names the shard; `None` when
    /// it is for all. On an unsharded host it is one statement for all shards, unless it names the
    /// number.
    pub(super) fn shard(self) -> Option<u32> {
        let number = |naming, shard: ShardId| match naming {
            Naming::Whole(_) if !self.sql.names_number() => u32::from(ShardCount::MAX.get()),
            _ => u32::from(shard.get()),
        };
        match self.tables {
            Tables::Named => None,
            Tables::Shard(naming, shard) => Some(number(naming, shard) * 2),
            Tables::SearchPath(naming, shard) => Some(number(naming, shard) * 2 + 1),
        }
    }

    /// A hash of text and shard.
    pub(super) fn key(self) -> u64 {
        let shard = self.shard().map_or(0, |shard| u64::from(shard) + 1);
        (self.sql.parsed.hash ^ shard).wrapping_mul(0x9E37_79B9_7F4A_7C15)
    }

    /// As it was given, without a shard.
    pub(super) fn template(self) -> &'a str {
        &self.sql.parsed.text
    }

    /// Whether something of it may be left in the session.
    pub(super) fn may_change_session(self) -> bool {
        self.sql.parsed.may_change_session
    }

    pub(super) fn class(self) -> StatementClass {
        self.sql.class()
    }
}

impl Sql {
    /// Reads a statement; `{shard}` in it is the shard's schema, `{shard_id}` its number (see
    /// [`Template`]).
    pub fn new(sql: &str) -> Sql {
        let class = StatementClass::of(sql);
        let parsed = ParsedStatement {
            template: Template::new(sql),
            class,
            may_change_session: session_effects::may_change_session(sql, class),
            asks_about_names: session_effects::asks_about_names(sql),
            text: sql.into(),
            hash: hash(sql),
        };
        Sql {
            parsed: Arc::new(parsed),
            reading: false,
        }
    }

    /// As [`Sql::new`], with the caller's word that neither the statement nor any function that it
    /// calls changes anything, and that running it twice does no harm. So when its connection is
    /// lost or its time limit is reached, nothing [may have run](super::Error::may_have_run), and
    /// the same call may be made again. A call over many shards makes it again by itself. A SELECT
    /// alone does not promise that: the functions that it calls may write, and views, operators and
    /// policies call functions too.
    pub fn reading(sql: &str) -> Sql {
        Sql::new(sql).with_word()
    }

    /// As it was given.
    pub(crate) fn text(&self) -> &str {
        &self.parsed.text
    }

    pub(super) fn with_word(mut self) -> Sql {
        self.reading = true;
        self
    }

    pub(super) fn is_same_text(&self, other: &Sql) -> bool {
        Arc::ptr_eq(&self.parsed, &other.parsed) || self.parsed.text == other.parsed.text
    }

    /// Whether running it changes nothing, by the caller's word or by the options.
    pub(super) fn only_reads(&self, selects: Selects) -> bool {
        self.reading || (selects == Selects::OnlyRead && self.parsed.class == StatementClass::Read)
    }

    pub(super) fn class(&self) -> StatementClass {
        self.parsed.class
    }

    /// Whether it names the shard's number.
    pub(super) fn names_number(&self) -> bool {
        self.parsed.template.names_number()
    }

    /// Whether it may leave something in its session.
    pub(super) fn may_change_session(&self) -> bool {
        self.parsed.may_change_session
    }

    /// Whether its first word is one that queries begin with. A statement that begins with WITH can
    /// write nevertheless.
    pub(super) fn may_only_read(&self) -> bool {
        self.parsed.class == StatementClass::Read || StatementClass::is_with(&self.parsed.text)
    }

    /// Whether a host that does not serve the shard would give another answer to it instead of an
    /// error.
    pub(super) fn asks_about_names(&self) -> bool {
        self.parsed.asks_about_names
    }
}

/// What the methods that run SQL take: a text or an [`Sql`], owned or borrowed.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum SqlText<'a> {
    /// A text, looked up in the cache.
    Text(Cow<'a, str>),
    /// A statement read beforehand.
    Read(Cow<'a, Sql>),
}

impl SqlText<'_> {
    /// The statement; a text is read now. For statements that run many times.
    pub fn to_sql(&self) -> Sql {
        match self {
            SqlText::Text(text) => Sql::new(text),
            SqlText::Read(sql) => Sql::clone(sql),
        }
    }
}

impl<'a> From<&'a str> for SqlText<'a> {
    fn from(sql: &'a str) -> Self {
        SqlText::Text(Cow::Borrowed(sql))
    }
}

impl<'a> From<&'a String> for SqlText<'a> {
    fn from(sql: &'a String) -> Self {
        SqlText::Text(Cow::Borrowed(sql))
    }
}

impl From<String> for SqlText<'_> {
    fn from(sql: String) -> Self {
        SqlText::Text(Cow::Owned(sql))
    }
}

impl<'a> From<Cow<'a, str>> for SqlText<'a> {
    fn from(sql: Cow<'a, str>) -> Self {
        SqlText::Text(sql)
    }
}

impl<'a> From<&'a Sql> for SqlText<'a> {
    fn from(sql: &'a Sql) -> Self {
        SqlText::Read(Cow::Borrowed(sql))
    }
}

impl From<Sql> for SqlText<'_> {
    fn from(sql: Sql) -> Self {
        SqlText::Read(Cow::Owned(sql))
    }
}

/// One hasher for the whole process: equal texts have equal hashes, wherever they were read.
fn hash(text: &str) -> u64 {
    static HASHER: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    HASHER.hash_one(text)
}

/// The texts read last, in a few parts so that callers on many cores do not wait for one lock.
pub(super) struct SqlCache {
    hasher: lru::DefaultHasher,
    parts: [Mutex<LruCache<Box<str>, Sql>>; SqlCache::PARTS],
}

impl SqlCache {
    const PARTS: usize = 8;
    /// Texts that are remembered, in all. An application has a few hundred.
    const TEXTS_MAX: usize = 2048;
    /// A longer text is parsed each time: a program put it together, and it does not come again.
    const LENGTH_MAX: usize = 16 * 1024;

    pub(super) fn new() -> SqlCache {
        let size = NonZeroUsize::new(Self::TEXTS_MAX / Self::PARTS).expect("more texts than parts");
        SqlCache {
            hasher: lru::DefaultHasher::default(),
            parts: std::array::from_fn(|_| Mutex::new(LruCache::new(size))),
        }
    }

    pub(super) fn read(&self, sql: &SqlText<'_>) -> Sql {
        let text: &str = match sql {
            SqlText::Read(sql) => return Sql::clone(sql),
            SqlText::Text(text) => text,
        };
        if text.len() > Self::LENGTH_MAX {
            return Sql::new(text);
        }
        let part = self.hasher.hash_one(text) as usize % Self::PARTS;
        let mut part = self.parts[part]
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(sql) = part.get(text) {
            return sql.clone();
        }
        let sql = Sql::new(text);
        part.put(text.into(), sql.clone());
        sql
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_shards_of_an_unsharded_host_have_one_statement() {
        let schema = WholeSchema::new("a*/b", &SchemaPrefix::default()).unwrap();
        let (plain, numbered) = (Sql::new("TABLE {shard}.t"), Sql::new("SELECT {shard_id}"));
        let shard = |number| ShardId::new(number).unwrap();
        let rendered =
            |sql, number| ShardStatement::new(sql, Naming::Whole(&schema), shard(number));
        assert_eq!(rendered(&plain, 7).text(), r#"TABLE "a*/b".t"#);
        assert_eq!(rendered(&plain, 7).key(), rendered(&plain, 8).key());
        assert_ne!(rendered(&numbered, 7).key(), rendered(&numbered, 8).key());
        let path = ShardStatement::by_search_path(&plain, Naming::Whole(&schema), shard(7));
        assert_eq!(path.text(), r#"TABLE "a*/b".t"#);
        assert_ne!(path.shard(), rendered(&plain, 7).shard());
    }

    #[test]
    fn a_text_is_read_once_and_the_cache_has_an_end() {
        let cache = SqlCache::new();
        let first = cache.read(&"SELECT 1".into());
        assert!(Arc::ptr_eq(
            &first.parsed,
            &cache.read(&"SELECT 1".into()).parsed
        ));
        for number in 0..2 * SqlCache::TEXTS_MAX {
            cache.read(&format!("SELECT {number} FROM {{shard}}.t").into());
        }
        let held: usize = cache
            .parts
            .iter()
            .map(|part| part.lock().unwrap().len())
            .sum();
        assert!(held <= SqlCache::TEXTS_MAX, "{held}");
    }
}
