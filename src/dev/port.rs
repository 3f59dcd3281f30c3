//! Free ports.

use std::net::{Ipv4Addr, TcpListener};

/// How many ports are tried for a new server.
pub(super) const ATTEMPTS: u32 = 30;

/// A port of 127.0.0.1 that is free now. Another process may take it before the server does: then
/// the server ends, and the caller gets another port.
///
/// Not one that the kernel would give (port 0): those it also gives to outgoing connections, which
/// could take the port of a server while it restarts.
pub(super) fn free() -> Option<u16> {
    (0..ATTEMPTS)
        .map(|_| fastrand::u16(15_000..32_000))
        .find(|port| is_free(*port))
}

/// Whether there is no listener on it.
pub(super) fn is_free(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
}

/// Whether a server could not get its port, by its log.
pub(super) fn was_taken(log: &str) -> bool {
    log.contains("Address already in use")
}
