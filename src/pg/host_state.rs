//! The state of a host, by how it answers: the one place that distinguishes a server that is gone
//! from one that answers with an error.
//!
//! Invariant: [`HostState::Unreachable`] is the only state in which a host can be gone. A server
//! that spoke PostgreSQL runs, and may serve its shards to others, whatever error it sent.

use tokio_postgres::error::SqlState;

use super::connect_error::ConnectError;

/// The state of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum HostState {
    /// It answers.
    Serving,
    /// It answers, and refuses this login: its user, password or database (classes 28 and 3D).
    RefusesLogins,
    /// It answers, and has no connection or memory left for another session (class 53).
    OutOfConnections,
    /// It answers, and takes no new session while it starts up, recovers or shuts down (57P01 to
    /// 57P03). Open sessions may be served until a shutdown ends.
    StartingUp,
    /// It answers with any other error: a lock that is not released, a damaged control schema.
    AnswersWithError,
    /// Another server answers in its place: a standby, a former primary, or one of another system.
    OtherServer,
    /// Nothing that speaks PostgreSQL answers.
    Unreachable,
    /// It was not contacted: the config does not name it, or its password or certificates cannot be
    /// read.
    NotAsked,
}

impl HostState {
    /// The state that a server's error shows.
    pub fn of_code(code: &SqlState) -> HostState {
        let code = code.code();
        match code {
            // 42501: the role may not connect to the database.
            "3D000" | "42501" => HostState::RefusesLogins,
            "57P01" | "57P02" | "57P03" => HostState::StartingUp,
            _ if code.starts_with("28") => HostState::RefusesLogins,
            _ if code.starts_with("53") => HostState::OutOfConnections,
            _ => HostState::AnswersWithError,
        }
    }

    /// The state of a host with a connection that was open when this error came.
    pub fn of_query(error: &tokio_postgres::Error) -> HostState {
        error
            .code()
            .map_or(HostState::AnswersWithError, HostState::of_code)
    }

    /// Whether the host may be gone permanently. If not, it may serve its shards to others.
    pub fn may_be_gone(self) -> bool {
        self == HostState::Unreachable
    }

    /// Whether the host's own server answers.
    pub fn is_up(self) -> bool {
        !matches!(
            self,
            HostState::OtherServer | HostState::Unreachable | HostState::NotAsked
        )
    }

    /// A stable name for programs: `out_of_connections`.
    pub fn as_str(self) -> &'static str {
        match self {
            HostState::Serving => "serving",
            HostState::RefusesLogins => "refuses_logins",
            HostState::OutOfConnections => "out_of_connections",
            HostState::StartingUp => "starting_up",
            HostState::AnswersWithError => "answers_with_error",
            HostState::OtherServer => "other_server",
            HostState::Unreachable => "unreachable",
            HostState::NotAsked => "not_asked",
        }
    }

    /// What an operator can do so that the host answers.
    pub fn remedy(self) -> &'static str {
        match self {
            HostState::Serving => "nothing is wrong with it",
            HostState::RefusesLogins => {
                "correct its user, password or database: in the config, or where the config says \
                    that the password is"
            }
            HostState::OutOfConnections => {
                "it runs, and serves the sessions that it has: end idle ones (pg_stat_activity), \
                    lower pool_size in the configs of its applications, or raise max_connections \
                    and restart it"
            }
            HostState::StartingUp => {
                "it runs: wait until it has started; its log says what it does"
            }
            HostState::AnswersWithError => "it runs: see what its log says about the error",
            HostState::OtherServer => {
                "correct its url in the config, or complete the fail-over \
                    (docs/high-availability.md)"
            }
            HostState::Unreachable => "start it, or correct its url in the config",
            HostState::NotAsked => {
                "set the variable or write the file that the config names for its password or \
                    certificates; if the config does not name the host, add it"
            }
        }
    }
}

/// The end of a sentence that begins with the host: "cannot be reached".
impl std::fmt::Display for HostState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            HostState::Serving => "answers",
            HostState::RefusesLogins => "does not let us in",
            HostState::OutOfConnections => "has no free connection",
            HostState::StartingUp => "is starting up or shutting down",
            HostState::AnswersWithError => "answers with an error",
            HostState::OtherServer => "has another server in its place",
            HostState::Unreachable => "cannot be reached",
            HostState::NotAsked => "was not contacted",
        })
    }
}

impl ConnectError {
    /// The state of the host to which no connection was made.
    pub fn host_state(&self) -> HostState {
        match self {
            ConnectError::Password { .. } | ConnectError::Tls { .. } => HostState::NotAsked,
            ConnectError::Refused { source, .. } => match source.code() {
                Some(code) => HostState::of_code(code),
                None if self.is_unreachable() => HostState::Unreachable,
                // The server wants a password, and there is none.
                None if std::error::Error::source(source)
                    .is_some_and(|cause| cause.to_string() == "password missing") =>
                {
                    HostState::RefusesLogins
                }
                None => HostState::AnswersWithError,
            },
            ConnectError::Stalled { .. } => HostState::AnswersWithError,
            ConnectError::Unreachable { .. } | ConnectError::TimedOut { .. } => {
                HostState::Unreachable
            }
            ConnectError::OtherRole { .. }
            | ConnectError::Impostor { .. }
            | ConnectError::TwoPrimaries { .. } => HostState::OtherServer,
        }
    }

    /// What an operator can do.
    pub fn remedy(&self) -> &'static str {
        self.host_state().remedy()
    }

    /// The more telling one of the errors of two addresses of one host: that of a server that
    /// answers.
    pub(super) fn or_more_telling(self, former: Option<ConnectError>) -> ConnectError {
        match former {
            Some(former) if self.host_state().may_be_gone() => former,
            _ => self,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_host_that_did_not_speak_may_be_gone() {
        for (code, state) in [
            ("28000", HostState::RefusesLogins),
            ("28P01", HostState::RefusesLogins),
            ("3D000", HostState::RefusesLogins),
            ("42501", HostState::RefusesLogins),
            ("53300", HostState::OutOfConnections),
            ("53400", HostState::OutOfConnections),
            ("53200", HostState::OutOfConnections),
            ("57P01", HostState::StartingUp),
            ("57P03", HostState::StartingUp),
            ("55P03", HostState::AnswersWithError),
            ("42P01", HostState::AnswersWithError),
            ("57014", HostState::AnswersWithError),
            ("XX000", HostState::AnswersWithError),
            ("08P01", HostState::AnswersWithError),
        ] {
            let found = HostState::of_code(&SqlState::from_code(code));
            assert_eq!(found, state, "{code}");
            assert!(found.is_up() && !found.may_be_gone(), "{code}");
        }
    }

    #[test]
    fn a_server_that_answers_says_more_than_an_address_that_does_not() {
        let to = || "app@there/app".to_owned();
        let silent = || ConnectError::TimedOut {
            to: to(),
            timeout_ms: 5,
        };
        let stalled = || ConnectError::Stalled {
            to: to(),
            timeout_ms: 5,
        };
        let told = [
            silent().or_more_telling(Some(stalled())),
            stalled().or_more_telling(Some(silent())),
            stalled().or_more_telling(None),
        ];
        for error in told {
            assert_eq!(error.host_state(), HostState::AnswersWithError);
        }
        let neither = silent().or_more_telling(None);
        assert_eq!(neither.host_state(), HostState::Unreachable);
    }
}
