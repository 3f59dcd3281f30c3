//! Rows as values of the application's own types.

use tokio_postgres::Row;
use tokio_postgres::types::FromSqlOwned;

/// A type that a row can be read as: a tuple of its columns in their order, or a struct
/// ([`from_row!`](crate::from_row) reads each field from the column of its name).
///
/// ```no_run
/// use pgshard::from_row;
///
/// from_row! {
///     #[derive(Debug)]
///     struct Photo { id: i64, title: String, place: Option<String> }
/// }
///
/// # async fn example(router: pgshard::Router, user: i64) -> Result<(), pgshard::router::Error> {
/// let user_of = router.by_key(user);
/// let select = "SELECT id, title, place FROM {shard}.photos";
/// let photos: Vec<Photo> = user_of.query_as(select, &[]).await?;
/// let (count, last): (i64, Option<i64>) =
///     user_of.query_one_as("SELECT count(*), max(id) FROM {shard}.photos", &[]).await?;
/// # Ok(()) }
/// ```
pub trait FromRow: Sized {
    /// Reads the row.
    ///
    /// # Errors
    /// When a column is missing, has another type, or is NULL where the type has no NULL.
    fn from_row(row: &Row) -> Result<Self, tokio_postgres::Error>;
}

macro_rules! tuples {
    ($($name:ident $at:tt),+) => {
        impl<$($name: FromSqlOwned),+> FromRow for ($($name,)+) {
            fn from_row(row: &Row) -> Result<Self, tokio_postgres::Error> {
                Ok(($(row.try_get::<_, $name>($at)?,)+))
            }
        }
    };
}

tuples!(A 0);
tuples!(A 0, B 1);
tuples!(A 0, B 1, C 2);
tuples!(A 0, B 1, C 2, D 3);
tuples!(A 0, B 1, C 2, D 3, E 4);
tuples!(A 0, B 1, C 2, D 3, E 4, F 5);
tuples!(A 0, B 1, C 2, D 3, E 4, F 5, G 6);
tuples!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7);

/// A struct that is read from the columns with its fields' names:
/// [`router::FromRow`](crate::router::FromRow).
#[macro_export]
macro_rules! from_row {
    (
        $(#[$about:meta])* $seen:vis struct $name:ident {
            $($(#[$about_field:meta])* $seen_field:vis $field:ident: $type:ty),+ $(,)?
        }
    ) => {
        $(#[$about])*
        $seen struct $name {
            $($(#[$about_field])* $seen_field $field: $type),+
        }

        impl $crate::router::FromRow for $name {
            fn from_row(
                row: &$crate::tokio_postgres::Row,
            ) -> Result<Self, $crate::tokio_postgres::Error> {
                Ok($name { $($field: row.try_get(stringify!($field))?),+ })
            }
        }
    };
}
