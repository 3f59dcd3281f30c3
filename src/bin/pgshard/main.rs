//! pgshard
fn main() {}
