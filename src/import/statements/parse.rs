//! Parses statements, and reduces each to what matters: which tables each of its levels uses, and
//! which of their columns are compared with values.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use sqlparser::ast::{
    BinaryOperator, CopySource, Delete, Expr, FromTable, InTarget, Insert, JoinConstraint,
    JoinOperator, ObjectName, Query, Select, Statement, TableFactor, TableObject, TableWithJoins,
    Update, UpdateTableFromKind, Visit, Visitor,
};
use sqlparser::dialect::PostgreSqlDialect;
use sqlparser::parser::Parser;

/// A name of a table as a statement has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Name {
    pub(super) schema: Option<String>,
    pub(super) table: String,
    /// What columns call it.
    pub(super) alias: String,
}

/// A column that a statement compares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ComparedColumn {
    /// The alias of the table, if the column is qualified.
    pub(super) alias: Option<String>,
    pub(super) column: String,
    /// Whether it is compared with a value. Otherwise with another column or the rows of a query.
    pub(super) with_value: bool,
}

/// What a level of a statement reads or writes: a SELECT, also in another statement, an UPDATE, a
/// DELETE, or an INSERT.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Level {
    pub(super) tables: Vec<Name>,
    /// The columns of which each row must have a given value: alternatives, each a list. A row of
    /// the level is found by at least one alternative.
    pub(super) alternatives: Vec<Vec<ComparedColumn>>,
    /// For an INSERT: its columns. Empty if it names none.
    pub(super) inserts: Option<Vec<String>>,
}

/// The levels of a statement.
///
/// # Errors
/// Why it cannot be parsed.
pub(super) fn levels(text: &str) -> Result<Vec<Level>, String> {
    let statements = parsed(text)?;
    let mut found = Found {
        levels: Vec::new(),
        hidden: BTreeSet::new(),
        unknown: None,
    };
    for statement in &statements {
        let _ = Visit::visit(statement, &mut found);
    }
    if let Some(unknown) = found.unknown {
        return Err(unknown);
    }
    let Found { levels, hidden, .. } = found;
    Ok(levels
        .into_iter()
        .map(|mut level| {
            // The name of a WITH query hides a table.
            level
                .tables
                .retain(|name| name.schema.is_some() || !hidden.contains(&name.table));
            level
        })
        .collect())
}

fn parsed(text: &str) -> Result<Vec<Statement>, String> {
    let dialect = PostgreSqlDialect {};
    let parse = |text: &str| Parser::parse_sql(&dialect, text);
    parse(text).or_else(|error| {
        // `interval $1` is what is left of `interval '1 day'`.
        parse(&text.replace("$1", "'1'")).map_err(|_| error.to_string())
    })
}

struct Found {
    levels: Vec<Level>,
    /// The names of WITH queries.
    hidden: BTreeSet<String>,
    /// Why what it does is not in its text.
    unknown: Option<String>,
}

impl Visitor for Found {
    type Break = ();

    fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<()> {
        let ctes = query.with.iter().flat_map(|with| &with.cte_tables);
        self.hidden.extend(ctes.map(|cte| folded(&cte.alias.name)));
        ControlFlow::Continue(())
    }

    fn pre_visit_select(&mut self, select: &Select) -> ControlFlow<()> {
        let mut level = Level::default();
        let mut all = vec![Vec::new()];
        from(&select.from, &mut level.tables, &mut all);
        if let Some(selection) = &select.selection {
            all = both(all, conditions(selection));
        }
        level.alternatives = all;
        self.levels.push(level);
        ControlFlow::Continue(())
    }

    fn pre_visit_statement(&mut self, statement: &Statement) -> ControlFlow<()> {
        match statement {
            Statement::Update(update) => self.levels.push(of_update(update)),
            Statement::Delete(delete) => self.levels.push(of_delete(delete)),
            Statement::Insert(insert) => self.levels.extend(of_insert(insert)),
            Statement::Merge(merge) => {
                let mut level = Level {
                    alternatives: vec![Vec::new()],
                    ..Level::default()
                };
                for factor in [&merge.table, &merge.source] {
                    level.tables.extend(table(factor));
                }
                level.alternatives = both(level.alternatives, conditions(&merge.on));
                self.levels.push(level);
            }
            Statement::Copy {
                source:
                    CopySource::Table {
                        table_name,
                        columns,
                    },
                ..
            } => self.levels.push(Level {
                tables: name_of(table_name, None).into_iter().collect(),
                alternatives: vec![Vec::new()],
                inserts: Some(columns.iter().map(folded).collect()),
            }),
            Statement::Truncate(truncate) => {
                let names = truncate.table_names.iter();
                self.levels.push(Level {
                    tables: names
                        .filter_map(|target| name_of(&target.name, None))
                        .collect(),
                    alternatives: vec![Vec::new()],
                    inserts: None,
                });
            }
            Statement::Execute { .. } | Statement::Call(_) => {
                self.unknown = Some("what it does is not in its text".to_owned());
            }
            _ => {}
        }
        ControlFlow::Continue(())
    }
}

fn of_update(update: &Update) -> Level {
    let mut level = Level::default();
    let mut all = vec![Vec::new()];
    from(
        std::slice::from_ref(&update.table),
        &mut level.tables,
        &mut all,
    );
    if let Some(UpdateTableFromKind::BeforeSet(tables) | UpdateTableFromKind::AfterSet(tables)) =
        &update.from
    {
        from(tables, &mut level.tables, &mut all);
    }
    if let Some(selection) = &update.selection {
        all = both(all, conditions(selection));
    }
    level.alternatives = all;
    level
}

fn of_delete(delete: &Delete) -> Level {
    let mut level = Level::default();
    let mut all = vec![Vec::new()];
    let (FromTable::WithFromKeyword(tables) | FromTable::WithoutKeyword(tables)) = &delete.from;
    from(tables, &mut level.tables, &mut all);
    if let Some(using) = &delete.using {
        from(using, &mut level.tables, &mut all);
    }
    if let Some(selection) = &delete.selection {
        all = both(all, conditions(selection));
    }
    level.alternatives = all;
    level
}

fn of_insert(insert: &Insert) -> Option<Level> {
    let TableObject::TableName(name) = &insert.table else {
        return None;
    };
    let columns = insert.columns.iter();
    let columns = columns.filter_map(|name| Some(folded(name.0.last()?.as_ident()?)));
    Some(Level {
        tables: name_of(name, None).into_iter().collect(),
        alternatives: vec![Vec::new()],
        inserts: Some(columns.collect()),
    })
}

/// Adds the tables of a FROM, and what its joins compare.
fn from(tables: &[TableWithJoins], names: &mut Vec<Name>, all: &mut Vec<Vec<ComparedColumn>>) {
    for one in tables {
        names.extend(table(&one.relation));
        if let TableFactor::NestedJoin {
            table_with_joins, ..
        } = &one.relation
        {
            from(std::slice::from_ref(table_with_joins), names, all);
        }
        for join in &one.joins {
            names.extend(table(&join.relation));
            let constraint = match &join.join_operator {
                JoinOperator::Join(constraint)
                | JoinOperator::Inner(constraint)
                | JoinOperator::Left(constraint)
                | JoinOperator::LeftOuter(constraint)
                | JoinOperator::Right(constraint)
                | JoinOperator::RightOuter(constraint)
                | JoinOperator::FullOuter(constraint) => constraint,
                _ => continue,
            };
            if let JoinConstraint::On(condition) = constraint {
                *all = both(std::mem::take(all), conditions(condition));
            }
        }
    }
}

fn table(factor: &TableFactor) -> Option<Name> {
    match factor {
        TableFactor::Table {
            name,
            alias,
            args: None,
            ..
        } => name_of(name, alias.as_ref().map(|alias| folded(&alias.name))),
        _ => None,
    }
}

fn name_of(name: &ObjectName, alias: Option<String>) -> Option<Name> {
    let mut parts: Vec<String> = name
        .0
        .iter()
        .filter_map(|part| part.as_ident().map(folded))
        .collect();
    let table = parts.pop()?;
    Some(Name {
        alias: alias.unwrap_or_else(|| table.clone()),
        schema: parts.pop(),
        table,
    })
}

/// A name as PostgreSQL folds it.
fn folded(ident: &sqlparser::ast::Ident) -> String {
    match ident.quote_style {
        Some(_) => ident.value.clone(),
        None => ident.value.to_lowercase(),
    }
}

/// The most alternatives that are followed; a condition with more of them counts as none.
const ALTERNATIVES_MAX: usize = 32;

/// What a condition requires: alternatives, of which each row fulfils one.
fn conditions(condition: &Expr) -> Vec<Vec<ComparedColumn>> {
    match condition {
        Expr::Nested(inner) => conditions(inner),
        Expr::BinaryOp {
            left,
            op: BinaryOperator::And,
            right,
        } => both(conditions(left), conditions(right)),
        Expr::BinaryOp {
            left,
            op: BinaryOperator::Or,
            right,
        } => {
            let mut either = conditions(left);
            either.extend(conditions(right));
            either.truncate(ALTERNATIVES_MAX + 1);
            if either.len() > ALTERNATIVES_MAX {
                return vec![Vec::new()];
            }
            either
        }
        Expr::BinaryOp {
            left,
            op: BinaryOperator::Eq,
            right,
        } => vec![compared(left, right)],
        Expr::In {
            expr,
            target,
            negated: false,
            ..
        } => {
            let with_value = !matches!(target, InTarget::Subquery(_));
            vec![column(expr, with_value).into_iter().collect()]
        }
        Expr::AnyOp {
            left,
            compare_op: BinaryOperator::Eq,
            right,
            ..
        } => {
            let with_value = !matches!(**right, Expr::Subquery(_));
            vec![column(left, with_value).into_iter().collect()]
        }
        _ => vec![Vec::new()],
    }
}

fn both(
    one: Vec<Vec<ComparedColumn>>,
    other: Vec<Vec<ComparedColumn>>,
) -> Vec<Vec<ComparedColumn>> {
    if one.len().saturating_mul(other.len()) > ALTERNATIVES_MAX {
        // What either requires is required; the shorter list is kept.
        return if one.len() <= other.len() { one } else { other };
    }
    one.iter()
        .flat_map(|a| {
            other
                .iter()
                .map(move |b| a.iter().chain(b).cloned().collect())
        })
        .collect()
}

/// The columns that an equation compares.
fn compared(left: &Expr, right: &Expr) -> Vec<ComparedColumn> {
    // `(a, b) = ($1, $2)` is an equation for each.
    if let (Expr::Tuple(left), Expr::Tuple(right)) = (left, right) {
        let pairs = left.iter().zip(right);
        return pairs
            .flat_map(|(left, right)| compared(left, right))
            .collect();
    }
    match (column(left, false), column(right, false)) {
        (Some(left), Some(right)) => vec![left, right],
        (Some(one), None) => vec![ComparedColumn {
            with_value: is_value(right),
            ..one
        }],
        (None, Some(one)) => vec![ComparedColumn {
            with_value: is_value(left),
            ..one
        }],
        (None, None) => Vec::new(),
    }
}

/// Whether an expression is known without reading a row.
fn is_value(expression: &Expr) -> bool {
    match expression {
        Expr::Value(_) | Expr::Function(_) => true,
        Expr::Cast { expr, .. } | Expr::Nested(expr) | Expr::UnaryOp { expr, .. } => is_value(expr),
        Expr::TypedString { .. } | Expr::Interval(_) => true,
        Expr::BinaryOp { left, right, .. } => is_value(left) && is_value(right),
        _ => false,
    }
}

fn column(expression: &Expr, with_value: bool) -> Option<ComparedColumn> {
    match expression {
        Expr::Identifier(name) => Some(ComparedColumn {
            alias: None,
            column: folded(name),
            with_value,
        }),
        Expr::CompoundIdentifier(names) => {
            let column = names.last()?;
            let alias = names.len().checked_sub(2).and_then(|at| names.get(at));
            Some(ComparedColumn {
                alias: alias.map(folded),
                column: folded(column),
                with_value,
            })
        }
        Expr::Nested(inner) | Expr::Cast { expr: inner, .. } => column(inner, with_value),
        _ => None,
    }
}
