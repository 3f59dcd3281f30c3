//! Functions that run while a shard is copied, and that have text as their bodies. Such a text is
//! read under the `search_path` of the caller: a mover has only PostgreSQL's own schema in it, an
//! application has others. `e = 'a'` compares citext for the one and text for the other, so an
//! index over it would be damaged from the beginning. A text that finds nothing outside
//! PostgreSQL's own schema means the same for both.
//!
//! Nothing here parses a text: what looks as if it needed the path is refused.

use std::collections::BTreeSet;

use crate::mover::control::session::Session;
use crate::mover::definition::refusal::Refusal;
use crate::mover::protocol::error::Error;
use crate::pg::quote_ident;
use crate::schema::catalog::objects_sql;
use crate::shard::SchemaPrefix;

const UNBOUND: &str = concat!(
    objects_sql!(),
    include_str!("../definition/sql/unbound.sql")
);
const SURROUNDINGS: &str = include_str!("../definition/sql/surroundings.sql");

/// A function with a body that is text and no `search_path` of its own.
struct Unbound {
    /// What runs it: `index i`.
    user: String,
    /// Its name with its arguments, qualified.
    name: String,
    body: String,
    keyword: String,
    oid: u32,
}

/// Something outside the shard and PostgreSQL's own schema that a text can name.
struct OutsideObject {
    kind: String,
    name: String,
    schema: String,
    /// The function that has this type for an argument or a result.
    function: u32,
}

/// The refusals for what computes values of a schema by functions that need the `search_path`.
///
/// Locks: none but ACCESS SHARE on catalogs.
pub(crate) async fn computed(
    source: &Session,
    schema: u32,
    prefix: &SchemaPrefix,
) -> Result<Vec<Refusal>, Error> {
    let what = "looking for functions that need the search_path";
    let rows = source.rows(what, UNBOUND, &[&schema]).await?;
    let functions = rows
        .iter()
        .map(|row| {
            Ok(Unbound {
                user: row.get(0)?,
                name: row.get(1)?,
                body: row.get(2)?,
                keyword: row.get(4)?,
                oid: row.get(5)?,
            })
        })
        .collect::<Result<Vec<_>, Error>>()?;
    // Most schemas have none, and to look around costs more.
    if functions.is_empty() {
        return Ok(Vec::new());
    }
    let oids: Vec<u32> = functions.iter().map(|one| one.oid).collect();
    let rows = source
        .rows(what, SURROUNDINGS, &[&oids, &prefix.as_str()])
        .await?;
    let around = rows
        .iter()
        .map(|row| {
            Ok(OutsideObject {
                kind: row.get(0)?,
                name: row.get(1)?,
                schema: row.get(2)?,
                function: row.get(3)?,
            })
        })
        .collect::<Result<Vec<_>, Error>>()?;
    Ok(functions
        .iter()
        .filter_map(|function| refusal(function, &around))
        .collect())
}

fn refusal(function: &Unbound, around: &[OutsideObject]) -> Option<Refusal> {
    let found: Vec<&OutsideObject> = around
        .iter()
        .filter(|named| needs(function, named))
        .collect();
    let first = found.first()?;
    let found_by_path = match first.kind.as_str() {
        "own" | "type" | "of type" => "operators of",
        kind => kind,
    };
    let reason = format!(
        "runs {} while rows are copied, whose text finds {found_by_path} {}.{} by the search_path \
         of whoever calls it",
        function.name, first.schema, first.name
    );
    let schemas: BTreeSet<&str> = found.iter().map(|one| one.schema.as_str()).collect();
    let schemas: Vec<String> = schemas.into_iter().map(quote_ident).collect();
    let remedy = format!(
        "ALTER {} {} SET search_path = pg_catalog, {}; or give it a body in SQL (RETURN …), which \
         is bound to what it calls",
        function.keyword,
        function.name,
        schemas.join(", ")
    );
    Some(Refusal::new(&function.user, reason, remedy))
}

/// Whether the function's text may find this by the path.
fn needs(function: &Unbound, named: &OutsideObject) -> bool {
    let (body, name) = (function.body.as_str(), named.name.as_str());
    match named.kind.as_str() {
        "own" => named.function == function.oid && resolves(body),
        // However it is named: its operators and casts are not.
        "type" | "of type" => words(body).any(|word| word.text == name),
        "function" => words(body).any(|word| word.text == name && word.is_call && !word.qualified),
        "relation" => {
            words(body).any(|word| word.text == name && word.after_from && !word.qualified)
        }
        "operator" => symbols(body).any(|symbol| symbol == name),
        _ => false,
    }
}

/// Whether a text over values of a type with operators of its own looks any of them up, or a
/// function: extensions' own functions name the schema of everything that they call.
fn resolves(body: &str) -> bool {
    const FORMS: [&str; 12] = [
        "in", "like", "ilike", "similar", "between", "case", "nullif", "distinct", "using",
        "natural", "any", "execute",
    ];
    const BEFORE_PARENTHESES: [&str; 12] = [
        "select", "return", "where", "from", "and", "or", "not", "as", "when", "then", "else", "if",
    ];
    // The characters of a literal are no operators.
    let code: String = body.split('\'').step_by(2).collect::<Vec<_>>().join(" ");
    symbols(&code).next().is_some()
        || words(&code).any(|word| {
            let is_call = word.is_call && !word.qualified;
            FORMS.contains(&word.text.as_str())
                || is_call && !BEFORE_PARENTHESES.contains(&word.text.as_str())
        })
}

/// A name in a text, as PostgreSQL folds it.
#[derive(Debug, PartialEq, Eq)]
struct Word {
    text: String,
    /// Whether a schema or table is named before it.
    qualified: bool,
    /// Whether a parenthesis follows.
    is_call: bool,
    /// Whether it is where a query names a table.
    after_from: bool,
}

/// The names in a text, those in its strings and comments too: a text may be run that is made of
/// strings.
fn words(text: &str) -> impl Iterator<Item = Word> {
    let is_part = |c: char| c == '_' || c == '$' || c.is_alphanumeric();
    let mut found: Vec<Word> = Vec::new();
    let mut rest = text;
    let mut before = ' ';
    while let Some(first) = rest.chars().next() {
        let quoted = first == '"';
        let length = match quoted {
            true => rest[1..].find('"').map_or(rest.len(), |end| end + 2),
            false => rest.find(|c| !is_part(c)).unwrap_or(rest.len()),
        };
        if length == 0 {
            if !first.is_whitespace() {
                before = first;
            }
            rest = &rest[first.len_utf8()..];
            continue;
        }
        let (word, after) = rest.split_at(length.min(rest.len()));
        let word = match quoted {
            true => word.trim_matches('"').to_owned(),
            false => word.to_lowercase(),
        };
        let from = found.last().is_some_and(|last| {
            ["from", "join", "into", "update", "table"].contains(&last.text.as_str())
        });
        found.push(Word {
            text: word,
            qualified: before == '.',
            is_call: after.trim_start().starts_with('('),
            after_from: from || before == ',',
        });
        before = ' ';
        rest = after;
    }
    found.into_iter()
}

/// The runs of characters that operators are made of.
fn symbols(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !"+-*/<>=~!@#%^&|`?".contains(c))
        .filter(|symbol| !symbol.is_empty())
}

#[cfg(test)]
mod tests {
    use super::{OutsideObject, Unbound, needs};

    #[test]
    fn a_text_over_citext_needs_the_path_unless_it_names_all_schemas() {
        for (body, expected) in [
            ("BEGIN RETURN $1 = 'a'; END", true),
            ("SELECT replace($1, 'a', 'b')", true),
            ("SELECT nullif($1, $2) IS NULL", true),
            (
                "SELECT pg_catalog.strpos($1::pg_catalog.text, 'a=b')",
                false,
            ),
            (
                "SELECT (pg_catalog.regexp_split_to_array($1::pg_catalog.text, $2, 'i'))[$3]",
                false,
            ),
        ] {
            assert_eq!(super::resolves(body), expected, "{body}");
        }
    }

    #[test]
    fn a_text_needs_the_path_if_it_names_what_is_elsewhere() {
        for (body, kind, name, expected) in [
            (
                "BEGIN RETURN unaccent($1); END",
                "function",
                "unaccent",
                true,
            ),
            ("SELECT UNACCENT ($1)", "function", "unaccent", true),
            (
                "SELECT public.unaccent('public.unaccent', $1)",
                "function",
                "unaccent",
                false,
            ),
            ("SELECT lower($1)", "function", "unaccent", false),
            ("SELECT $1::public.citext = 'a'", "type", "citext", true),
            ("SELECT $1 = 'a'", "type", "citext", false),
            ("SELECT public.fold($1) = 'a'", "of type", "fold", true),
            ("SELECT $1 %> $2", "operator", "%>", true),
            ("SELECT $1 > $2", "operator", "%>", false),
            (
                "SELECT count(*) FROM countries",
                "relation",
                "countries",
                true,
            ),
            (
                "SELECT count(*) FROM public.countries",
                "relation",
                "countries",
                false,
            ),
            ("SELECT countries FROM x", "relation", "countries", false),
        ] {
            let function = Unbound {
                user: String::new(),
                name: String::new(),
                body: body.to_owned(),
                keyword: String::new(),
                oid: 7,
            };
            let named = OutsideObject {
                kind: kind.to_owned(),
                name: name.to_owned(),
                schema: "public".to_owned(),
                function: 0,
            };
            assert_eq!(needs(&function, &named), expected, "{name} in {body}");
        }
    }
}
