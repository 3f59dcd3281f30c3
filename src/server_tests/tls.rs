//! Connections over TLS, against a server with a certificate of its own.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::tls_world::{World, give, superuser};
use crate::pg::{ConnectError, ConnectOptions, ReplicationError};

/// The first value that a statement gives on a replication connection.
async fn replicated(
    options: &ConnectOptions,
    sql: &str,
) -> Result<Option<String>, ReplicationError> {
    options.replicate("a test").await?.value(sql).await
}

/// The server's SQLSTATE, or the driver's error.
fn refusal<T: std::fmt::Debug>(outcome: Result<T, ConnectError>) -> String {
    let ConnectError::Refused { source, .. } = outcome.unwrap_err() else {
        panic!("the server was not asked")
    };
    match source.code() {
        Some(code) => code.code().to_owned(),
        None => std::error::Error::source(&source)
            .map(ToString::to_string)
            .unwrap_or_default(),
    }
}

on_each_version! {
    /// Each mode checks what libpq's documentation promises, and no less.
    async fn each_mode_checks_what_libpq_checks(version) {
        let world = World::start(version).await;
        let root = |path: &Path| format!("sslrootcert={}", path.display());
        let (ours, theirs) = (root(&world.authority), root(&world.stranger));
        // The name, the parameters, and the outcome: encrypted, not encrypted, or refused.
        let cases: [(&str, String, Option<bool>); 16] = [
            ("localhost", "sslmode=disable".to_owned(), Some(false)),
            ("localhost", String::new(), Some(true)),
            ("localhost", "sslmode=prefer".to_owned(), Some(true)),
            ("localhost", "sslmode=require".to_owned(), Some(true)),
            ("localhost", format!("sslmode=require {ours}"), Some(true)),
            ("localhost", format!("sslmode=require {theirs}"), None),
            ("localhost", format!("sslmode=verify-ca {ours}"), Some(true)),
            (
                "db.example",
                format!("sslmode=verify-ca {ours}"),
                Some(true),
            ),
            ("localhost", format!("sslmode=verify-ca {theirs}"), None),
            (
                "localhost",
                format!("sslmode=verify-full {ours}"),
                Some(true),
            ),
            ("db.example", format!("sslmode=verify-full {ours}"), None),
            ("localhost", format!("sslmode=verify-full {theirs}"), None),
            (
                "127.0.0.1",
                format!("sslmode=verify-full {ours}"),
                Some(true),
            ),
            ("127.0.0.2", format!("sslmode=verify-full {ours}"), None),
            ("127.0.0.2", format!("sslmode=verify-ca {ours}"), Some(true)),
            ("127.0.0.1", format!("sslmode=verify-full {theirs}"), None),
        ];
        for (name, tls, expected) in cases {
            let outcome = world.connect(name, &tls).await;
            match (outcome, expected) {
                (Ok(encrypted), Some(expected)) => assert_eq!(encrypted, expected, "{name} {tls}"),
                (Err(ConnectError::Refused { source, .. }), None) => {
                    let words = std::error::Error::source(&source)
                        .map(ToString::to_string)
                        .unwrap_or_default();
                    assert!(words.contains("certificate"), "{name} {tls}: {words}");
                }
                (outcome, _) => panic!("{name} {tls}: {:?}", outcome),
            }
        }
        let missing = world
            .connect("localhost", "sslmode=verify-full sslrootcert=/nowhere.pem")
            .await;
        assert!(
            matches!(missing, Err(ConnectError::Tls { .. })),
            "{missing:?}"
        );
    }

    /// The server lets every client in that shows a certificate from its authority, issued to the
    /// role.
    async fn a_client_certificate_lets_its_role_in(version) {
        let world = World::start(version).await;
        let authority = std::fs::read_to_string(&world.authority).unwrap();
        give(&world.server().data_directory(), "root.crt", &authority);
        let superuser = superuser(world.server()).await;
        superuser
            .execute("ALTER SYSTEM SET ssl_ca_file = 'root.crt'", &[])
            .await
            .unwrap();
        world
            .rule("hostssl all app 127.0.0.1/32 cert", "sslmode=require")
            .await;
        let full = format!(
            "sslmode=verify-full sslrootcert={}",
            world.authority.display()
        );
        let app = world.client("app", 0);
        assert!(
            world
                .connect("localhost", &format!("{full} {app}"))
                .await
                .unwrap()
        );
        assert!(
            world.connect("localhost", &app).await.unwrap(),
            "sslmode=prefer shows it too"
        );
        let key = world.cluster.directory().join("app0.key");
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o644)).unwrap();
        let outcome = world.connect("localhost", &app).await;
        assert!(
            matches!(outcome, Err(ConnectError::Tls { .. })),
            "others can read the key: {outcome:?}"
        );
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).unwrap();
        let hidden = world
            .connect("localhost", &format!("{app} sslcertmode=disable"))
            .await;
        assert_eq!(refusal(hidden), "28000");
        let refused =
            async |keys: &str| refusal(world.connect("localhost", &format!("{full} {keys}")).await);
        assert_eq!(refused("").await, "28000");
        assert_eq!(refused(&world.client("somebody", 0)).await, "28000");
        // The server receives the foreign certificate during the handshake, and ends it.
        refused(&world.client("app", 1)).await;

        let (certificate, key) = app.split_once(' ').unwrap();
        for half in [certificate, key, "sslcert=/nowhere.crt sslkey=/nowhere.key"] {
            let outcome = world.connect("localhost", &format!("{full} {half}")).await;
            assert!(
                matches!(outcome, Err(ConnectError::Tls { .. })),
                "{half}: {outcome:?}"
            );
        }
    }

    /// `channel_binding=require` takes a server that proves to know the password over this very TLS
    /// connection, and no

    /// other.
    async fn channel_binding_is_required_as_configured(version) {
        let world = World::start(version).await;
        let connect = async |keys: &str| world.connect("localhost", keys).await;
        // No password is requested, so nothing is bound.
        let words = refusal(connect("sslmode=require channel_binding=require").await);
        assert!(words.contains("channel binding"), "{words}");
        assert!(
            connect("sslmode=require channel_binding=prefer")
                .await
                .unwrap()
        );

        let superuser = superuser(world.server()).await;
        let sql = "SET password_encryption = 'scram-sha-256'; ALTER ROLE app PASSWORD 'secret'";
        superuser.batch_execute(sql).await.unwrap();
        world
            .rule("host all app 127.0.0.1/32 scram-sha-256", "password=wrong")
            .await;
        let full = format!(
            "sslmode=verify-full sslrootcert={} channel_binding=require",
            world.authority.display()
        );
        assert!(connect(&format!("{full} password=secret")).await.unwrap());
        assert_eq!(
            refusal(connect(&format!("{full} password=wrong")).await),
            "28P01"
        );
        for binding in ["disable", "prefer"] {
            assert!(
                !connect(&format!(
                    "sslmode=disable channel_binding={binding} password=secret"
                ))
                .await
                .unwrap()
            );
            assert!(
                connect(&format!(
                    "sslmode=require channel_binding={binding} password=secret"
                ))
                .await
                .unwrap()
            );
        }
        // Without TLS there is nothing to bind to.
        let words =
            refusal(connect("sslmode=disable channel_binding=require password=secret").await);
        assert!(words.contains("channel binding"), "{words}");

        // A server that wants the password itself could hand it on.
        world
            .rule("host all app 127.0.0.1/32 password", "password=wrong")
            .await;
        assert!(connect("sslmode=require password=secret").await.unwrap());
        let words = refusal(connect(&format!("{full} password=secret")).await);
        assert!(words.contains("channel binding"), "{words}");
    }

    /// Replication connections have an implementation of our own: they have the same modes, and
    /// every way to send a password.
    async fn replication_connections_have_the_same_modes(version) {
        let world = World::start(version).await;
        let port = world.server().port();
        let options = |name: &str, keys: &str| {
            let text = format!(
                "host={name} hostaddr=127.0.0.1 port={port} user=app dbname=app \
                {keys}"
            );
            ConnectOptions::parse(&text).unwrap()
        };
        let encrypted = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
        let (ours, theirs) = (world.authority.display(), world.stranger.display());
        for (name, keys, expected) in [
            ("localhost", "sslmode=disable".to_owned(), Some("f")),
            ("localhost", "sslmode=prefer".to_owned(), Some("t")),
            (
                "localhost",
                format!("sslmode=verify-full sslrootcert={ours}"),
                Some("t"),
            ),
            (
                "localhost",
                format!("sslmode=verify-full sslrootcert={theirs}"),
                None,
            ),
            (
                "db.example",
                format!("sslmode=verify-full sslrootcert={ours}"),
                None,
            ),
        ] {
            let answer = replicated(&options(name, &keys), encrypted)
                .await
                .ok()
                .flatten();
            assert_eq!(answer.as_deref(), expected, "{name} {keys}");
        }

        let superuser = superuser(world.server()).await;
        let rules = world.server().data_directory().join("pg_hba.conf");
        let before = std::fs::read_to_string(&rules).unwrap();
        for (method, stored) in [
            ("scram-sha-256", "scram-sha-256"),
            ("md5", "md5"),
            ("password", "scram-sha-256"),
        ] {
            let sql = format!(
                "SET password_encryption = '{stored}'; ALTER ROLE app PASSWORD 'pass \
                wörd'"
            );
            superuser.batch_execute(&sql).await.unwrap();
            std::fs::write(
                &rules,
                format!("host all app 127.0.0.1/32 {method}\n{before}"),
            )
            .unwrap();
            superuser
                .execute("SELECT pg_reload_conf()", &[])
                .await
                .unwrap();
            // Until the reload takes effect, no password is requested.
            let wrong = options("localhost", "password=wrong sslmode=require");
            for _ in 0..200 {
                if replicated(&wrong, encrypted).await.is_err() {
                    break;
                }
                tokio::time::sleep(std::time::Duration::from_millis(25)).await;
            }
            assert_eq!(
                replicated(&wrong, encrypted).await.unwrap_err().code(),
                Some("28P01"),
                "{method}"
            );
            let right = options("localhost", "password='pass wörd' sslmode=require");
            assert_eq!(
                replicated(&right, encrypted).await.unwrap().as_deref(),
                Some("t"),
                "{method}"
            );
            // A proof that is bound to this connection, or nothing is sent.
            let bound = options(
                "localhost",
                "password='pass wörd' sslmode=require channel_binding=require",
            );
            let outcome = replicated(&bound, encrypted).await;
            match method {
                "scram-sha-256" => assert_eq!(outcome.unwrap().as_deref(), Some("t")),
                _ => assert!(
                    outcome.unwrap_err().to_string().contains("channel binding"),
                    "{method}"
                ),
            }
            let plain = options(
                "localhost",
                "password='pass wörd' sslmode=disable channel_binding=require",
            );
            let outcome = replicated(&plain, encrypted).await;
            assert!(
                matches!(outcome, Err(ReplicationError::Unsupported { .. })),
                "{method}: {outcome:?}"
            );
            for allowed in [
                "scram-sha-256",
                "md5",
                "password",
                "none",
                "!password,!md5",
                "!none",
            ] {
                let keys = format!("password='pass wörd' sslmode=require require_auth={allowed}");
                let passes = match allowed {
                    "!none" => true,
                    "!password,!md5" => method == "scram-sha-256",
                    one => one == method,
                };
                let outcome = replicated(&options("localhost", &keys), encrypted).await;
                match outcome {
                    Ok(_) => assert!(passes, "{method} {allowed}"),
                    Err(ReplicationError::Unsupported { what, .. }) => {
                        assert!(
                            !passes && what.contains("require_auth"),
                            "{method} {allowed}: {what}"
                        );
                    }
                    Err(error) => panic!("{method} {allowed}: {error}"),
                }
            }
        }
    }

    /// `require_auth`: a server that requests another way gets no answer, with TLS and without,
    /// over a socket too; and a connection that is guarded so can be cancelled.
    async fn ways_to_authenticate(version) {
        let world = World::start(version).await;
        let superuser = superuser(world.server()).await;
        let (port, sockets) = (world.server().port(), "SHOW unix_socket_directories");
        let sockets: String = superuser.query_one(sockets, &[]).await.unwrap().get(0);
        for (method, stored) in [
            ("scram-sha-256", "scram-sha-256"),
            ("md5", "md5"),
            ("password", "scram-sha-256"),
        ] {
            let sql = format!(
                "SET password_encryption = '{stored}'; ALTER ROLE app PASSWORD \
                'secret'"
            );
            superuser.batch_execute(&sql).await.unwrap();
            world
                .rule(
                    &format!(
                        "local all app {method}\nhost all app 127.0.0.1/32 \
                {method}"
                    ),
                    "password=wrong",
                )
                .await;
            for allowed in [
                "scram-sha-256",
                "md5",
                "password",
                "none",
                "!scram-sha-256",
                "!none",
            ] {
                let passes = allowed == "!none"
                    || allowed == method
                    || allowed == "!scram-sha-256" && method != "scram-sha-256";
                for keys in ["sslmode=disable", "sslmode=prefer", "sslmode=require"] {
                    let keys = format!("{keys} password=secret require_auth={allowed}");
                    let outcome = world.connect("localhost", &keys).await;
                    match passes {
                        true => drop(
                            outcome.unwrap_or_else(|error| panic!("{method} {keys}: {error:?}")),
                        ),
                        false => {
                            assert!(refusal(outcome).contains("require_auth"), "{method} {keys}")
                        }
                    }
                }
                let keys = format!("user=app dbname=app password=secret require_auth={allowed}");
                let text = format!("host={sockets} port={port} {keys}");
                let outcome = ConnectOptions::parse(&text)
                    .unwrap()
                    .connect("tls test")
                    .await;
                assert_eq!(
                    outcome.is_ok(),
                    passes,
                    "{method} {text}: {:?}",
                    outcome.err()
                );
            }
        }
        for keys in ["sslmode=require", "sslmode=disable"] {
            let keys = format!("{keys} password=secret require_auth=!none");
            let text = format!(
                "host=localhost hostaddr=127.0.0.1 port={port} user=app dbname=app \
                {keys}"
            );
            let connection = ConnectOptions::parse(&text)
                .unwrap()
                .connect("tls test")
                .await
                .unwrap();
            let sleep = connection.batch_execute("SELECT pg_catalog.pg_sleep(60)");
            let cancel = async {
                let running = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE \
                    '%pg_sleep(60)' \
                    AND state = 'active' AND pid <> pg_backend_pid()";
                while superuser
                    .query_one(running, &[])
                    .await
                    .unwrap()
                    .get::<_, i64>(0)
                    == 0
                {
                    tokio::time::sleep(std::time::Duration::from_millis(10)).await;
                }
                connection.cancel().await.unwrap();
            };
            let (slept, ()) = tokio::join!(sleep, cancel);
            assert_eq!(
                slept.unwrap_err().code().map(|code| code.code()),
                Some("57014"),
                "{keys}"
            );
        }
    }

    /// A revoked certificate is refused, also where the string requires no more than a certificate
    /// of the authority.
    async fn revoked_certificates_are_refused(version) {
        let world = World::start(version).await;
        let (revoked, others) = (world.revoked_itself(), world.revoked("others.crl", &[5]));
        for mode in ["prefer", "require", "verify-ca", "verify-full"] {
            let keys = format!("sslmode={mode} sslrootcert={}", world.authority.display());
            assert!(
                world
                    .connect("localhost", &format!("{keys} sslcrl={}", others.display()))
                    .await
                    .unwrap()
            );
            let outcome = world
                .connect("localhost", &format!("{keys} sslcrl={}", revoked.display()))
                .await;
            assert!(refusal(outcome).contains("Revoked"), "{mode}");
        }
        let keys = format!(
            "sslmode=require sslrootcert={0} sslcrl={0}",
            world.authority.display()
        );
        assert!(
            matches!(
                world.connect("localhost", &keys).await,
                Err(ConnectError::Tls { .. })
            ),
            "it has no list"
        );
    }

    /// A certificate that is its own authority, as PostgreSQL's manual makes one, is trusted where
    /// it is the root certificate, and nowhere else; its common name is the server's.
    async fn a_certificate_that_signed_itself_is_trusted_as_by_libpq(version) {
        let world = World::start(version).await;
        let itself = world.sign_itself("localhost").await;
        for (name, mode, root, fits) in [
            ("localhost", "verify-ca", &itself, true),
            ("localhost", "verify-full", &itself, true),
            ("db.example", "verify-ca", &itself, true),
            ("db.example", "verify-full", &itself, false),
            ("localhost", "verify-ca", &world.stranger, false),
            ("localhost", "verify-full", &world.authority, false),
        ] {
            let keys = format!("sslmode={mode} sslrootcert={}", root.display());
            let outcome = world.connect(name, &keys).await;
            assert_eq!(outcome.is_ok(), fits, "{name} {keys}: {outcome:?}");
        }
    }

    /// A handshake without the request before it, which servers from 17 on take, and versions of
    /// TLS.
    async fn handshakes_without_a_request_succeed(version) {
        let world = World::start(version).await;
        let direct = world
            .connect("localhost", "sslmode=require sslnegotiation=direct")
            .await;
        assert_eq!(direct.is_ok(), version >= 17, "{direct:?}");
        let superuser = superuser(world.server()).await;
        superuser
            .execute(
                "ALTER SYSTEM SET ssl_max_protocol_version = \
            'TLSv1.2'",
                &[],
            )
            .await
            .unwrap();
        superuser
            .execute("SELECT pg_reload_conf()", &[])
            .await
            .unwrap();
        let newest = "sslmode=require ssl_min_protocol_version=TLSv1.3";
        for _ in 0..200 {
            if world.connect("localhost", newest).await.is_err() {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(25)).await;
        }
        assert!(world.connect("localhost", newest).await.is_err());
        assert!(
            world
                .connect(
                    "localhost",
                    "sslmode=require ssl_max_protocol_version=TLSv1.2"
                )
                .await
                .unwrap()
        );
    }
}
