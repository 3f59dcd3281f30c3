//! `require_auth`: the ways of authentication that a server may request, as libpq 16 and later know
//! them.
//! <https://www.postgresql.org/docs/current/libpq-connect.html#LIBPQ-CONNECT-REQUIRE-AUTH>

use super::options_error::OptionsError;

/// A way to authenticate that a connection string can name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    /// The server is sent the password itself.
    Password,
    /// The server is sent a hash of the password, which an attacker can use like the password.
    Md5,
    /// Both sides prove that they know the password, and neither learns it from the other.
    Scram,
    /// GSSAPI, SSPI and OAuth. pgshard has none of them, but a list may name them.
    Foreign(&'static str),
    /// The server requests nothing.
    None,
}

/// Every name that libpq knows.
const METHODS: [(&str, Method); 7] = [
    ("password", Method::Password),
    ("md5", Method::Md5),
    ("scram-sha-256", Method::Scram),
    ("none", Method::None),
    ("gss", Method::Foreign("gss")),
    ("sspi", Method::Foreign("sspi")),
    ("oauth", Method::Foreign("oauth")),
];

/// The methods that `require_auth` allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RequireAuth {
    /// As given.
    pub(super) text: String,
    methods: Vec<Method>,
    /// The methods are those that are not allowed.
    negated: bool,
}

impl RequireAuth {
    /// Reads the value of `require_auth`. An empty one allows no method, as in libpq.
    pub(super) fn read(value: &str) -> Result<RequireAuth, OptionsError> {
        let wrong = |reason: &str| OptionsError::WrongValue {
            key: "require_auth",
            reason: reason.to_owned(),
        };
        if value.is_empty() {
            return Ok(RequireAuth {
                text: String::new(),
                methods: vec![Method::None],
                negated: false,
            });
        }
        let negated = value.starts_with('!');
        let mut methods = Vec::new();
        for name in value.split(',') {
            if name.starts_with('!') != negated {
                return Err(wrong(
                    "it names what is allowed, or with ! before each what is not, but not both",
                ));
            }
            let known = METHODS
                .iter()
                .find(|(known, _)| *known == name.trim_start_matches('!'));
            let (_, method) = known.filter(|_| !name.starts_with("!!")).ok_or_else(|| {
                let names: Vec<&str> = METHODS.iter().map(|(name, _)| *name).collect();
                wrong(&format!("known are {}", names.join(", ")))
            })?;
            if methods.contains(method) {
                return Err(wrong("it names a method twice"));
            }
            methods.push(*method);
        }
        Ok(RequireAuth {
            text: value.to_owned(),
            methods,
            negated,
        })
    }

    fn allows(&self, method: Method) -> bool {
        self.methods.contains(&method) != self.negated
    }
}

/// The requests of a server on a connection so far, and whether they are allowed. Without
/// `require_auth` every method is allowed. An exchange that the server ends early never is.
#[derive(Debug, Default)]
pub(super) struct AuthRequests {
    required: Option<RequireAuth>,
    /// An allowed method is at its end.
    done: bool,
    /// SCRAM has begun, and the server has proved nothing yet.
    begun: bool,
}

impl AuthRequests {
    pub(super) fn new(required: Option<RequireAuth>) -> AuthRequests {
        AuthRequests {
            required,
            ..AuthRequests::default()
        }
    }

    /// Takes in a request of the server, the number that an authentication message begins with.
    ///
    /// # Errors
    /// When nothing may be answered; why.
    pub(super) fn take(&mut self, request: u32) -> Result<(), String> {
        let (method, ask) = match request {
            0 => return self.end(),
            3 => (Method::Password, "asks for the password itself"),
            5 => (Method::Md5, "asks for an MD5 hash of the password"),
            10 => (Method::Scram, "asks for SCRAM-SHA-256"),
            11 | 12 if self.begun => {
                self.done |= request == 12;
                return Ok(());
            }
            7 | 8 => (Method::Foreign("gss"), "asks for GSSAPI"),
            9 => (Method::Foreign("sspi"), "asks for SSPI"),
            _ => {
                return Err(
                    "the server asks for a way to authenticate that pgshard does not know"
                        .to_owned(),
                );
            }
        };
        if self
            .required
            .as_ref()
            .is_some_and(|required| !required.allows(method))
        {
            return Err(format!(
                "the server {ask}, which require_auth does not allow: nothing was sent"
            ));
        }
        self.begun = method == Method::Scram;
        self.done = matches!(method, Method::Password | Method::Md5);
        Ok(())
    }

    /// The server reports that the connection is authenticated.
    fn end(&self) -> Result<(), String> {
        if self.begun && !self.done {
            return Err(
                "the server ended the authentication before it had proved that it knows the \
                    password"
                    .to_owned(),
            );
        }
        match &self.required {
            Some(required) if !self.done && !required.allows(Method::None) => {
                Err("the server asks for no password, which require_auth does not allow".to_owned())
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether a server may send these requests one after the other.
    fn passes(value: &str, requests: &[u32]) -> bool {
        let mut asked =
            AuthRequests::new((value != "nothing said").then(|| RequireAuth::read(value).unwrap()));
        requests.iter().all(|request| asked.take(*request).is_ok())
    }

    #[test]
    fn as_libpq_means_it() {
        // Nothing, the password, MD5, SCRAM.
        let servers: [&[u32]; 4] = [&[0], &[3, 0], &[5, 0], &[10, 11, 12, 0]];
        for (value, expected) in [
            ("nothing said", [true; 4]),
            ("", [true, false, false, false]),
            ("none", [true, false, false, false]),
            ("password", [false, true, false, false]),
            ("md5", [false, false, true, false]),
            ("scram-sha-256", [false, false, false, true]),
            ("scram-sha-256,none", [true, false, false, true]),
            ("gss,sspi,oauth", [false; 4]),
            ("!none", [false, true, true, true]),
            ("!password", [true, false, true, true]),
            ("!password,!md5", [true, false, false, true]),
            ("!scram-sha-256,!none,!gss", [false, true, true, false]),
        ] {
            assert_eq!(
                servers.map(|requests| passes(value, requests)),
                expected,
                "{value}"
            );
        }
    }

    #[test]
    fn an_exchange_has_an_end() {
        for value in [
            "nothing said",
            "scram-sha-256",
            "!password",
            "scram-sha-256,none",
        ] {
            for requests in [&[10, 0][..], &[10, 11, 0], &[11], &[12, 0], &[99]] {
                assert!(!passes(value, requests), "{value} {requests:?}");
            }
        }
        // A method that was begun is not forgotten for another one.
        assert!(!passes("scram-sha-256", &[10, 11, 3]));
    }

    #[test]
    fn what_is_no_list_of_methods() {
        for value in [
            "x",
            "scram-sha-256,!md5",
            "!md5,none",
            "md5,md5",
            "md5,",
            ",md5",
            "!!md5",
            "MD5",
            " md5",
            "!",
        ] {
            let error = RequireAuth::read(value).unwrap_err().to_string();
            assert!(error.contains("require_auth"), "{value}: {error}");
        }
    }
}
