//! The definition of a look-up, from the config.

use crate::pg::{quote_ident, quote_literal};

/// Which differences between two values do not count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fold {
    /// `none`: every byte counts.
    #[default]
    None,
    /// `ascii`: A to Z are a to z, in every language. Letters beyond ASCII stay as they are.
    Ascii,
}

impl Fold {
    /// All of them.
    pub const ALL: [Fold; 2] = [Fold::None, Fold::Ascii];

    /// The name in the config and in the shards.
    pub const fn as_str(self) -> &'static str {
        match self {
            Fold::None => "none",
            Fold::Ascii => "ascii",
        }
    }
}

/// A look-up: columns of a table with values that belong to one key each, over all shards.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Definition {
    /// Its name: `a` to `z`, digits and underscores.
    pub name: String,
    /// The table, which every shard has, without a schema and without quotes.
    pub table: String,
    /// The columns that are looked up, together.
    pub columns: Vec<String>,
    /// The column with the sharding key, in the same row.
    pub key: String,
    /// Which differences do not count.
    pub fold: Fold,
}

impl Definition {
    /// The longest name. It is a part of names in the shards.
    pub const NAME_MAX: usize = 40;

    /// This look-up, without folding. Names are without quotes, as the catalog has them.
    pub fn new(
        name: impl Into<String>,
        table: impl Into<String>,
        columns: impl IntoIterator<Item = impl Into<String>>,
        key: impl Into<String>,
    ) -> Definition {
        Definition {
            name: name.into(),
            table: table.into(),
            columns: columns.into_iter().map(Into::into).collect(),
            key: key.into(),
            fold: Fold::None,
        }
    }

    /// Sets what does not count.
    #[must_use]
    pub fn fold(mut self, fold: Fold) -> Definition {
        self.fold = fold;
        self
    }

    /// The definition as one text. Each shard has recorded it, and every statement compares it, so
    /// that a program with another config is refused.
    pub fn to_text(&self) -> String {
        let columns: Vec<String> = self.columns.iter().map(|name| quote_ident(name)).collect();
        format!(
            "{} ({}) key {} fold {}",
            quote_ident(&self.table),
            columns.join(", "),
            quote_ident(&self.key),
            self.fold.as_str()
        )
    }

    /// The hash of a row's value as an SQL expression, NULL where a column is NULL. `row` is what
    /// written before the names of the columns, `NEW` in a trigger.
    ///
    /// `to_jsonb` writes integers, texts, UUIDs and dates in one form, whatever the session's
    /// settings; `lower` in the collation "C" changes A to Z only.
    pub fn hash_sql(&self, row: &str) -> String {
        let form = |column: &String| {
            let text = text_sql(row, column);
            let text = match self.fold {
                Fold::None => text,
                Fold::Ascii => format!("pg_catalog.lower({text} COLLATE \"C\")"),
            };
            format!(
                "pg_catalog.octet_length(pg_catalog.convert_to({text}, 'UTF8'))::pg_catalog.text \
                    OPERATOR(pg_catalog.||) ':' OPERATOR(pg_catalog.||) {text}"
            )
        };
        let forms: Vec<String> = self.columns.iter().map(form).collect();
        format!(
            "pg_catalog.sha256(pg_catalog.convert_to({}, 'UTF8'))",
            forms.join(" OPERATOR(pg_catalog.||) ")
        )
    }

    /// A row's values as an SQL array of texts, in the form that [`Definition::hash_sql`] hashes,
    /// without folding.
    pub(crate) fn texts_sql(&self, row: &str) -> String {
        let texts: Vec<String> = self
            .columns
            .iter()
            .map(|name| text_sql(row, name))
            .collect();
        format!("ARRAY[{}]", texts.join(", "))
    }

    /// The condition that a row of the table has a key and a value: the key's text is `$1`, the
    /// columns' values are the parameters after it.
    pub(crate) fn has_row_sql(&self) -> String {
        self.is_row_sql("$1", |at| format!("${}", at + 2))
    }

    /// The condition that a row of the table has this key, a text, and these values, each folded.
    pub(crate) fn is_row_sql(&self, key: &str, value: impl Fn(usize) -> String) -> String {
        let key = format!("{}::text = {key}", quote_ident(&self.key));
        format!("{key} AND {}", self.has_values_sql(value))
    }

    /// The condition that a row of the table has these values, each folded.
    pub(crate) fn has_values_sql(&self, value: impl Fn(usize) -> String) -> String {
        let conditions = (0..self.columns.len()).map(|at| {
            let (column, value) = (self.folded_sql(at), value(at));
            format!("{column} = {value}")
        });
        conditions.collect::<Vec<_>>().join(" AND ")
    }

    /// The value of a column, folded.
    pub(crate) fn folded_sql(&self, at: usize) -> String {
        let column = quote_ident(&self.columns[at]);
        match self.fold {
            Fold::None => column,
            Fold::Ascii => format!("pg_catalog.lower({column} COLLATE \"C\")"),
        }
    }

    /// Its name as an SQL text.
    pub(crate) fn name_literal(&self) -> String {
        quote_literal(&self.name)
    }
}

/// A column's value as PostgreSQL's `to_jsonb` writes it.
fn text_sql(row: &str, column: &str) -> String {
    format!(
        "(pg_catalog.to_jsonb({row}.{}) OPERATOR(pg_catalog.#>>) '{{}}')",
        quote_ident(column)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_definition_is_one_text() {
        let emails = Definition::new("emails", "users", ["email"], "id").fold(Fold::Ascii);
        assert_eq!(emails.to_text(), r#""users" ("email") key "id" fold ascii"#);
        // Two definitions with the same text would be taken for each other.
        let one = Definition::new("x", "t", ["a\", \"b"], "id");
        let two = Definition::new("x", "t", ["a", "b"], "id");
        assert_ne!(one.to_text(), two.to_text());
    }
}
