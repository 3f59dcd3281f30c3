//! tmp
use tokio_postgres::Client;
use super::refusal::Refusal;
use crate::schema::catalog::Namespace;
/// x
#[derive(Debug, thiserror::Error)]
#[error("x")]
pub struct Error;
/// x
#[derive(Debug)]
pub struct Crossing;
impl Crossing { pub(crate) fn refusal(&self) -> Refusal { Refusal::new("", "", "") } }
impl std::fmt::Display for Crossing { fn fmt(&self, _f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result { Ok(()) } }
/// x
pub async fn crossings(_c: &Client, _n: &Namespace) -> Result<Vec<Crossing>, Error> { Ok(Vec::new()) }
