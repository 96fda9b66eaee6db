//! Which server, and how it is reached: URLs as libpq reads them, the password file, TLS.

use std::{env, fs, path::PathBuf, sync::Arc, time::Duration};

use mynah_data::{Error, LogReason, Result};
use percent_encoding::percent_decode_str;
use rustls::{
    ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject as _},
};
use rustls_platform_verifier::BuilderVerifierExt as _;
use tokio_postgres::{
    Config,
    config::{Host, SslMode},
};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::fail::{chain, log_error, unavailable};

/// How long a connection is idle before the client probes it, if the URL does not say.
const KEEPALIVES_IDLE: Duration = Duration::from_secs(2 * 60 * 60);

/// A server and a database, with what is needed to connect.
#[derive(Clone)]
pub(crate) struct Target {
    pub(crate) config: Config,
    pub(crate) tls: MakeRustlsConnect,
    /// The URL without a password.
    pub(crate) name: String,
}

impl Target {
    pub(crate) fn parse(url: &str) -> Result<Self> {
        let wrong = |why: String| {
            let name = shown(url);
            log_error(
                LogReason::Unusable,
                format!("{name}: {why}; give postgres://USER@HOST/DATABASE"),
            )
        };
        let (plain, ssl) = Options::split(url);
        let mut config: Config = plain.parse().map_err(|error| wrong(chain(&error)))?;
        if config.get_application_name().is_none() {
            config.application_name("mynah");
        }
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(Duration::from_secs(10));
        }
        // A silently cut connection is detected instead of waited for.
        if config.get_keepalives_idle() == KEEPALIVES_IDLE {
            config.keepalives_idle(Duration::from_secs(10));
        }
        if config.get_tcp_user_timeout().is_none() {
            config.tcp_user_timeout(Duration::from_secs(20));
        }
        if config.get_user().is_none()
            && let Some(user) = variable("PGUSER").or_else(|| variable("USER"))
        {
            config.user(user);
        }
        if config.get_hosts().is_empty() {
            config.host(variable("PGHOST").unwrap_or_else(|| "localhost".to_owned()));
        }
        if config.get_ports().is_empty()
            && let Some(port) = variable("PGPORT")
        {
            config.port(port.parse().map_err(|_| wrong(format!("PGPORT={port} is not a port")))?);
        }
        if config.get_dbname().is_none()
            && let Some(database) = variable("PGDATABASE")
        {
            config.dbname(database);
        }
        if config.get_password().is_none() {
            let password = match variable("PGPASSWORD") {
                Some(password) => Some(password),
                None => from_file(&config, ssl.password_file.as_deref()).map_err(&wrong)?,
            };
            if let Some(password) = password {
                config.password(password);
            }
        }
        let verified = match ssl.mode.as_deref() {
            None | Some("prefer" | "allow") => false,
            Some("disable") => {
                config.ssl_mode(SslMode::Disable);
                false
            }
            Some("require" | "verify-ca" | "verify-full") => {
                config.ssl_mode(SslMode::Require);
                true
            }
            Some(other) => return Err(wrong(format!("sslmode={other} is not a mode"))),
        };
        let tls = MakeRustlsConnect::new(client_config(verified, &ssl).map_err(wrong)?);
        Ok(Self { config, tls, name: shown(url) })
    }
}

/// The URL without a password, and without options.
fn shown(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else {
        return "the connection string".to_owned();
    };
    let (user, place) = rest.rsplit_once('@').unwrap_or(("", rest));
    // A password that is not encoded as it must be could be anywhere.
    if user.contains(['/', '?']) {
        return format!("{scheme}://***");
    }
    let user = user.split(':').next().unwrap_or_default();
    let place = place.split('?').next().unwrap_or_default();
    let at = if user.is_empty() { "" } else { "@" };
    format!("{scheme}://{user}{at}{place}")
}

/// The options that the client does not read itself.
struct Options {
    mode: Option<String>,
    roots: Option<String>,
    /// The client's certificate, and its key.
    certificate: Option<String>,
    key: Option<String>,
    password_file: Option<String>,
}

impl Options {
    /// Takes them out of a URL.
    fn split(url: &str) -> (String, Self) {
        let mut options = Self {
            mode: variable("PGSSLMODE"),
            roots: variable("PGSSLROOTCERT"),
            certificate: variable("PGSSLCERT"),
            key: variable("PGSSLKEY"),
            password_file: variable("PGPASSFILE"),
        };
        let Some((base, query)) = url.split_once('?') else { return (url.to_owned(), options) };
        let mut rest = Vec::new();
        for option in query.split('&') {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            let member = match name {
                "sslmode" => &mut options.mode,
                "sslrootcert" => &mut options.roots,
                "sslcert" => &mut options.certificate,
                "sslkey" => &mut options.key,
                "passfile" => &mut options.password_file,
                _ => {
                    rest.push(option);
                    continue;
                }
            };
            *member = Some(percent_decode_str(value).decode_utf8_lossy().into_owned());
        }
        let query = if rest.is_empty() { String::new() } else { format!("?{}", rest.join("&")) };
        (format!("{base}{query}"), options)
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "these are libpq's variables, read once when a log is opened"
)]
fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

/// The password that the password file has for this server: the given one, or `.pgpass` in the home folder. Of several hosts, the
/// first that is in the file counts, as there is one password for all.
fn from_file(config: &Config, path: Option<&str>) -> Result<Option<String>, String> {
    let home = || variable("HOME").map(|home| PathBuf::from(home).join(".pgpass"));
    let Some(path) = path.map(PathBuf::from).or_else(home) else { return Ok(None) };
    let Ok(file) = fs::read_to_string(&path) else { return Ok(None) };
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        let is_open = fs::metadata(&path).is_ok_and(|file| file.permissions().mode() & 0o077 != 0);
        if is_open {
            let path = path.display();
            return Err(format!("others may read the password file {path}: chmod 600 {path}"));
        }
    }
    let user = config.get_user().unwrap_or_default();
    let database = config.get_dbname().unwrap_or(user);
    let ports = config.get_ports();
    Ok(config.get_hosts().iter().enumerate().find_map(|(at, host)| {
        let host = match host {
            Host::Tcp(host) => host.as_str(),
            Host::Unix(_) => "localhost",
        };
        let port = ports.get(at).or(ports.first()).copied().unwrap_or(5432).to_string();
        password(&file, [host, &port, database, user])
    }))
}

/// The password of the first line that fits: `host:port:database:user:password`, where `*` fits anything and `\` escapes.
fn password(file: &str, wanted: [&str; 4]) -> Option<String> {
    file.lines().filter(|line| !line.starts_with('#')).find_map(|line| {
        let (mut fields, mut escaped) = (vec![String::new()], false);
        for letter in line.chars() {
            match letter {
                '\\' if !escaped => escaped = true,
                ':' if !escaped && fields.len() < 5 => fields.push(String::new()),
                letter => {
                    fields.last_mut()?.push(letter);
                    escaped = false;
                }
            }
        }
        let password = (fields.len() == 5).then(|| fields.pop()).flatten()?;
        let fits = |(field, wanted): (&String, &str)| field == "*" || field == wanted;
        fields.iter().zip(wanted).all(fits).then_some(password)
    })
}

/// How TLS is spoken. Where it is only preferred, any certificate will do, as the connection could as well be plain.
fn client_config(verified: bool, options: &Options) -> Result<ClientConfig, String> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider));
    let builder =
        builder.with_safe_default_protocol_versions().map_err(|error| error.to_string())?;
    let roots = options.roots.as_deref().filter(|path| *path != "system");
    let builder = match roots {
        _ if !verified => {
            let any = Arc::new(AnyCertificate(provider));
            builder.dangerous().with_custom_certificate_verifier(any)
        }
        None => builder.with_platform_verifier().map_err(|error| error.to_string())?,
        Some(path) => builder.with_root_certificates(root_certificates(path)?),
    };
    match (&options.certificate, &options.key) {
        (None, None) => Ok(builder.with_no_client_auth()),
        (Some(certificate), Some(key)) => {
            let chain = certificates(certificate)?;
            let own = PrivateKeyDer::from_pem_file(key);
            let own = own.map_err(|error| format!("{key}: {error}"))?;
            builder.with_client_auth_cert(chain, own).map_err(|error| format!("{key}: {error}"))
        }
        _ => Err("sslcert and sslkey belong together: give both, or none".to_owned()),
    }
}

fn certificates(path: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let found = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    found.map_err(|error| format!("{path}: {error}"))
}

fn root_certificates(path: &str) -> Result<RootCertStore, String> {
    let mut store = RootCertStore::empty();
    for certificate in certificates(path)? {
        store.add(certificate).map_err(|error| format!("{path}: {error}"))?;
    }
    Ok(store)
}

/// Accepts any certificate, as libpq does unless it must verify.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.0.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, known)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.0.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, known)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// The thread that talks to the server could not be started.
pub(crate) fn no_thread(error: std::io::Error) -> Error {
    unavailable(format!("no thread to talk to PostgreSQL with: {error}")).caused_by(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_shown_without_its_password() {
        assert_eq!(shown("postgres://ann:se@cret@h:5/d?password=x"), "postgres://ann@h:5/d");
        assert_eq!(shown("postgres://h/d"), "postgres://h/d");
        assert_eq!(shown("postgres://ann:se?cr/et@h/d?x=y"), "postgres://***");
        assert_eq!(shown("postgres://h/d?password=sec@ret"), "postgres://***");
        assert_eq!(shown("postgres://h/d?password=secret"), "postgres://h/d");
        assert_eq!(shown("host=h password=secret"), "the connection string");
    }

    #[test]
    fn the_first_line_of_a_password_file_that_fits_counts() {
        let file = "# comment\nother:*:*:*:no\n*:5432:d:ann:a\\:b\\\\c\n*:*:*:*:last\nshort";
        let found = |host, port, database, user| password(file, [host, port, database, user]);
        assert_eq!(found("h", "5432", "d", "ann").as_deref(), Some("a:b\\c"));
        assert_eq!(found("h", "1", "d", "ann").as_deref(), Some("last"));
        assert_eq!(found("other", "1", "d", "ann").as_deref(), Some("no"));
    }

    #[test]
    fn options_are_decoded() {
        let url =
            "postgres://h/d?sslrootcert=%2Fa%20b&x=%2F&sslcert=c%e2%82%ac&sslkey=100%&passfile=p";
        let (rest, options) = Options::split(url);
        assert_eq!(rest, "postgres://h/d?x=%2F");
        let [roots, certificate, key, file] =
            [options.roots, options.certificate, options.key, options.password_file]
                .map(Option::unwrap_or_default);
        assert_eq!([&*roots, &*certificate, &*key, &*file], ["/a b", "c€", "100%", "p"]);
        let alone = Target::parse("postgres://h/d?sslcert=c").map(drop).unwrap_err();
        assert!(alone.to_string().contains("sslkey"), "{alone}");
    }

    #[test]
    fn modes_of_tls_are_those_of_libpq() {
        for (mode, expected) in [
            ("", Some(SslMode::Prefer)),
            ("?sslmode=disable", Some(SslMode::Disable)),
            ("?sslmode=prefer&application_name=x", Some(SslMode::Prefer)),
            ("?application_name=x&sslmode=verify-full", Some(SslMode::Require)),
            ("?sslmode=sometimes", None),
        ] {
            let target = Target::parse(&format!("postgres://ann:x@h/d{mode}"));
            assert_eq!(target.ok().map(|target| target.config.get_ssl_mode()), expected, "{mode}");
        }
        let idle = |options: &str| {
            let target = Target::parse(&format!("postgres://ann:x@h/d{options}"));
            target.unwrap().config.get_keepalives_idle().as_secs()
        };
        assert_eq!((idle(""), idle("?keepalives_idle=30")), (10, 30));
        let wrong = Target::parse("postgres://h:port/d").map(drop).unwrap_err();
        assert_eq!(wrong.reason(), "unusable");
    }
}
