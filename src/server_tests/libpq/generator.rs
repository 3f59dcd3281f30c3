//! Environments and connection strings of a seed.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// How many strings each environment gets.
const STRINGS: usize = 10;

/// The variables of a process, and the strings that it connects with.
pub(super) struct Environment {
    pub(super) variables: Vec<(&'static str, String)>,
    pub(super) strings: Vec<String>,
}

/// Roles with passwords, and the method that requests them. The others are trusted.
pub(super) const ROLES: [(&str, &str, &str); 8] = [
    ("scram", "p@ss", "scram-sha-256"),
    ("we ird", "a b'c\\d", "scram-sha-256"),
    ("per%cent", "100%", "password"),
    ("old", "x:y/z", "md5"),
    ("clear", "ü?&=#", "password"),
    ("o'brien", "", "trust"),
    ("app", "", "trust"),
    ("at@sign", "+%41", "scram-sha-256"),
];

/// Databases of odd names.
pub(super) const DATABASES: [&str; 4] = ["app", "we ird", "da%ta", "d@b"];

/// What the generator chooses from.
pub(super) struct Places {
    pub(super) encrypted: u16,
    pub(super) plain: u16,
    pub(super) sockets: String,
    pub(super) authority: PathBuf,
    pub(super) stranger: PathBuf,
    pub(super) revoked: PathBuf,
    pub(super) not_revoked: PathBuf,
    pub(super) home: PathBuf,
    pub(super) libpq: PathBuf,
    pub(super) psql: PathBuf,
}

/// A value of a key that is the same for all servers.
fn word(key: &str, rng: &mut fastrand::Rng) -> &'static str {
    let words: &[&str] = match key {
        "hostaddr" => &[
            "127.0.0.1",
            "127.0.0.1,127.0.0.1",
            "",
            "127.0.0.1,",
            "::1",
            "x",
        ],
        "password" => &[
            "", "wrong", "p@ss", "a b'c\\d", "100%", "x:y/z", "ü?&=#", "+%41",
        ],
        "dbname" => &["app", "we ird", "da%ta", "d@b", ""],
        "sslmode" => &[
            "disable",
            "allow",
            "prefer",
            "require",
            "verify-ca",
            "verify-full",
            "verify-full",
            "",
            "x",
        ],
        "channel_binding" => &["require", "disable", "prefer", "", "x"],
        "require_auth" => &[
            "scram-sha-256",
            "password",
            "md5",
            "none",
            "!none",
            "!password",
            "!md5,!password",
            "scram-sha-256,none",
            "",
            "gss",
            "x",
            "md5,md5",
            "md5,!none",
            "scram-sha-256,",
        ],
        "sslnegotiation" => &["postgres", "direct", "x"],
        "gssencmode" => &["disable", "prefer", "require", "", "x"],
        "sslcertmode" => &["allow", "disable", "require", "", "x"],
        "ssl_min_protocol_version" => &["TLSv1", "TLSv1.2", "tlsv1.3", "", "x", "TLSv1.3"],
        "ssl_max_protocol_version" => &["TLSv1.1", "TLSv1.2", "tlsv1.3", "", "x", "TLSv1.3"],
        "requirepeer" => &["", "postgres", "nobody"],
        "requiressl" => &["0", "1", ""],
        "target_session_attrs" => &[
            "any",
            "read-write",
            "primary",
            "read-only",
            "standby",
            "prefer-standby",
            "",
            "x",
        ],
        "service" => &["one", "two", "three", "none", "trust"],
        "options" => &[
            "-c statement_timeout=7s",
            "-c statement_timeout=9s",
            "",
            "-c x",
        ],
        "application_name" => &["a b", "ünï", "x=y", ""],
        _ => &["0", "1", "5", " 3 ", "-1", "x", "", "99999999999"],
    };
    words[rng.usize(..words.len())]
}

/// One of a list; the first comes as often as all others together.
fn mostly<'a>(rng: &mut fastrand::Rng, list: &[&'a str]) -> &'a str {
    if rng.bool() {
        list[0]
    } else {
        list[rng.usize(..list.len())]
    }
}

impl Places {
    /// The environment of a seed; its files are laid into a home of its own.
    pub(super) fn environment(&self, seed: u64) -> Environment {
        let mut rng = fastrand::Rng::with_seed(seed);
        let home = self.home.join(seed.to_string());
        std::fs::create_dir_all(home.join(".postgresql")).unwrap();
        self.lay_files(&home, &mut rng);
        let mut variables = vec![("HOME", home.display().to_string())];
        for name in ["PGSERVICEFILE", "PGPASSFILE"] {
            if rng.u8(..6) == 0 {
                let file = [".pgpass", "services", "none", ""][rng.usize(..4)];
                let file = if file.is_empty() {
                    String::new()
                } else {
                    home.join(file).display().to_string()
                };
                variables.push((name, file));
            }
        }
        const NAMES: [(&str, &str); 13] = [
            ("PGSSLMODE", "sslmode"),
            ("PGSSLROOTCERT", "sslrootcert"),
            ("PGSSLCRL", "sslcrl"),
            ("PGCHANNELBINDING", "channel_binding"),
            ("PGREQUIREAUTH", "require_auth"),
            ("PGREQUIREPEER", "requirepeer"),
            ("PGGSSENCMODE", "gssencmode"),
            ("PGSSLCERTMODE", "sslcertmode"),
            ("PGSSLMINPROTOCOLVERSION", "ssl_min_protocol_version"),
            ("PGSSLMAXPROTOCOLVERSION", "ssl_max_protocol_version"),
            ("PGREQUIRESSL", "requiressl"),
            ("PGPASSWORD", "password"),
            ("PGSERVICE", "service"),
        ];
        for (name, key) in NAMES {
            if rng.u8(..6) == 0 {
                let value = if key == "service" {
                    "trust".to_owned()
                } else {
                    self.value(key, &mut rng)
                };
                variables.push((name, value));
            }
        }
        let strings = (0..STRINGS).map(|_| self.string(&mut rng)).collect();
        Environment { variables, strings }
    }

    fn lay_files(&self, home: &Path, rng: &mut fastrand::Rng) {
        let copy = |from: &Path, to: &str| {
            _ = std::fs::copy(from, home.join(".postgresql").join(to)).unwrap()
        };
        match rng.u8(..5) {
            0 => copy(&self.authority, "root.crt"),
            1 => copy(&self.stranger, "root.crt"),
            _ => {}
        }
        match rng.u8(..8) {
            0 => copy(&self.revoked, "root.crl"),
            1 => copy(&self.not_revoked, "root.crl"),
            _ => {}
        }
        if rng.bool() {
            let mut lines = "# passwords\n\\*:*:*:*:wrong\nlocalhost:1:*:*:wrong\n".to_owned();
            for (role, password, _) in ROLES {
                let escaped = |text: &str| text.replace('\\', "\\\\").replace(':', "\\:");
                let host = ["*", "127.0.0.1", "localhost", "db.example"][rng.usize(..4)];
                lines += &format!("{host}:*:*:{}:{}\n", escaped(role), escaped(password));
            }
            let file = home.join(".pgpass");
            std::fs::write(&file, lines).unwrap();
            let mode = if rng.u8(..4) == 0 { 0o644 } else { 0o600 };
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
        }
        let mut services = String::new();
        for head in ["[one]", "[one] # again", "[two] # ours", "[two]", "[three]"] {
            services += &format!("{head}\n# why\n");
            for key in [
                "host",
                "port",
                "user",
                "password",
                "dbname",
                "sslmode",
                "require_auth",
                "sslrootcert",
                "hostaddr",
            ] {
                if rng.u8(..3) == 0 {
                    services += &format!(
                        "{}{key}={}\n",
                        [" ", ""][rng.usize(..2)],
                        self.value(key, rng)
                    );
                }
            }
        }
        // What the environment may name does not determine which server is meant: there we differ
        // by intent.
        services += "[trust]\n";
        for key in ["sslmode", "require_auth", "sslrootcert", "channel_binding"] {
            if rng.bool() {
                services += &format!("{key}={}\n", self.value(key, rng));
            }
        }
        for name in [".pg_service.conf", "services"] {
            if rng.bool() {
                std::fs::write(home.join(name), &services).unwrap();
            }
        }
    }

    /// A value that a key can have, or one that it cannot.
    fn value(&self, key: &str, rng: &mut fastrand::Rng) -> String {
        let (encrypted, plain) = (self.encrypted.to_string(), self.plain.to_string());
        let file = |path: &Path| path.display().to_string();
        let nowhere = "/nowhere.pem";
        match key {
            "host" => mostly(
                rng,
                &[
                    "127.0.0.1",
                    "localhost",
                    &self.sockets,
                    "127.0.0.1,127.0.0.1",
                    "",
                    "a@b",
                ],
            )
            .to_owned(),
            "port" => mostly(
                rng,
                &[
                    &encrypted,
                    &plain,
                    &format!("1,{encrypted}"),
                    "",
                    "0",
                    "x",
                    "70000",
                    " 1 ",
                ],
            )
            .to_owned(),
            "user" => match rng.u8(..10) {
                0 => "only encrypted".to_owned(),
                1 => "only plain".to_owned(),
                2 => String::new(),
                _ => ROLES[rng.usize(..ROLES.len())].0.to_owned(),
            },
            "sslrootcert" => mostly(
                rng,
                &[
                    &file(&self.authority),
                    &file(&self.stranger),
                    nowhere,
                    "system",
                    "",
                ],
            )
            .to_owned(),
            "sslcrl" => mostly(
                rng,
                &[&file(&self.not_revoked), &file(&self.revoked), nowhere, ""],
            )
            .to_owned(),
            _ => word(key, rng).to_owned(),
        }
    }

    /// A connection string in one of the two notations. Keys may come twice, and there are escapes
    /// where none is needed.
    fn string(&self, rng: &mut fastrand::Rng) -> String {
        const OTHERS: [&str; 22] = [
            "sslmode",
            "sslmode",
            "sslrootcert",
            "sslrootcert",
            "require_auth",
            "require_auth",
            "channel_binding",
            "sslcrl",
            "sslnegotiation",
            "gssencmode",
            "sslcertmode",
            "ssl_min_protocol_version",
            "ssl_max_protocol_version",
            "target_session_attrs",
            "options",
            "application_name",
            "keepalives_idle",
            "connect_timeout",
            "tcp_user_timeout",
            "service",
            "hostaddr",
            "requirepeer",
        ];
        let mut keys: Vec<(&str, String)> = Vec::new();
        // A good string, in most of its parts.
        let (role, password, _) = ROLES[rng.usize(..ROLES.len())];
        let port = if rng.u8(..4) == 0 {
            self.plain
        } else {
            self.encrypted
        };
        let good = [
            (
                "host",
                mostly(rng, &["127.0.0.1", "localhost", "localhost"]).to_owned(),
            ),
            ("port", port.to_string()),
            ("user", role.to_owned()),
            ("password", password.to_owned()),
            ("dbname", DATABASES[rng.usize(..DATABASES.len())].to_owned()),
        ];
        for (key, value) in good {
            match rng.u8(..16) {
                0 => {}
                1 | 2 => keys.push((key, self.value(key, rng))),
                _ => keys.push((key, value)),
            }
        }
        if rng.u8(..6) == 0 {
            // A name that the certificate is not for.
            keys.retain(|(key, _)| *key != "host");
            keys.push(("host", "db.example".to_owned()));
            keys.push(("hostaddr", "127.0.0.1".to_owned()));
        }
        for _ in 0..rng.usize(..5) {
            let key = OTHERS[rng.usize(..OTHERS.len())];
            keys.push((key, self.value(key, rng)));
        }
        if rng.u8(..20) == 0 {
            keys.push(("sslcompression", "0".to_owned()));
        }
        if rng.bool() {
            url(&mut keys, rng)
        } else {
            pairs(&mut keys, rng)
        }
    }
}

fn pairs(keys: &mut [(&str, String)], rng: &mut fastrand::Rng) -> String {
    rng.shuffle(keys);
    let pair = |(key, value): &(&str, String)| {
        let space = [" ", "\t", "", "", "\n"][rng.usize(..5)];
        let escaped = value.replace('\\', "\\\\").replace('\'', "\\'");
        match rng.u8(..3) {
            0 if !value.is_empty() => {
                format!("{key}{space}={space}{}", escaped.replace(' ', "\\ "))
            }
            _ => format!("{key}{space}={space}'{escaped}'"),
        }
    };
    keys.iter().map(pair).collect::<Vec<_>>().join(" ")
}

fn url(keys: &mut [(&str, String)], rng: &mut fastrand::Rng) -> String {
    let mut before = std::collections::BTreeMap::new();
    let mut query = Vec::new();
    for (key, value) in keys.iter() {
        let first = !before.contains_key(key) && rng.u8(..5) > 0;
        match *key {
            "host" | "port" | "user" | "password" | "dbname" if first => {
                before.insert(*key, value.as_str());
            }
            _ => query.push(format!(
                "{}={}",
                escaped(key, rng, "="),
                escaped(value, rng, "=")
            )),
        }
    }
    let mut text = ["postgres://", "postgresql://"][rng.usize(..2)].to_owned();
    if let Some(user) = before.get("user") {
        text += &escaped(user, rng, "@:/");
        if let Some(password) = before.get("password") {
            text += &format!(":{}", escaped(password, rng, "@/"));
        }
        text.push('@');
    }
    text += &escaped(before.get("host").copied().unwrap_or_default(), rng, ":/?");
    if let Some(port) = before.get("port") {
        text += &format!(":{}", escaped(port, rng, "/?"));
    }
    if before.contains_key("dbname") || rng.bool() {
        text += &format!(
            "/{}",
            escaped(before.get("dbname").copied().unwrap_or_default(), rng, "?")
        );
    }
    rng.shuffle(&mut query);
    if !query.is_empty() {
        text += &format!("?{}", query.join("&"));
    }
    text
}

/// Escapes what must be, sometimes what need not be, and sometimes not even what should be.
fn escaped(text: &str, rng: &mut fastrand::Rng, must: &str) -> String {
    let careless = rng.u8(..30) == 0;
    let mut out = String::new();
    for c in text.chars() {
        let needed = must.contains(c) || "%&+#@?".contains(c) || c.is_whitespace() || !c.is_ascii();
        if needed && !careless || rng.u8(..20) == 0 {
            let mut bytes = [0; 4];
            c.encode_utf8(&mut bytes)
                .bytes()
                .for_each(|byte| out += &format!("%{byte:02X}"));
        } else {
            out.push(c);
        }
    }
    out
}
