//! What of this module reads texts, for [`crate::fuzzing`].

use crate::schema::control::script::{forbidden, guarded, repeatable, statements};

/// The statements of a script lie one after the other, within it; a guard changes none of them.
pub(crate) fn script(data: &[u8]) {
    let Ok(sql) = std::str::from_utf8(data) else {
        return;
    };
    let found = statements(sql);
    let mut end = 0;
    for statement in &found {
        assert!(
            statement.at.start >= end && statement.at.end > statement.at.start,
            "{found:?}"
        );
        end = statement.at.end;
        assert!(
            sql.get(statement.at.clone()).is_some(),
            "a statement begins and ends at letters"
        );
        assert!(statement.line >= 1 && statement.line <= sql.matches('\n').count() + 1);
        let _ = (forbidden(statement), repeatable(sql, statement).is_ok());
    }
    let guarded = guarded(sql, "SET LOCAL lock_timeout = 1; ");
    assert_eq!(
        guarded.replace("SET LOCAL lock_timeout = 1; ", ""),
        sql.replace("SET LOCAL lock_timeout = 1; ", "")
    );
}
