//! The HTTP client: connections, TLS, proxies.

use std::{fmt, net::IpAddr, sync::Arc, time::Duration};

use hyper_util::client::proxy::matcher::Matcher;
use mynah_data::{AdapterReason, Error, Result};
use reqwest::{Client, NoProxy, Proxy, Url, redirect::Policy};
use rustls::{
    ClientConfig,
    crypto::ring,
    pki_types::{CertificateDer, pem::PemObject},
};
use rustls_platform_verifier::Verifier;

/// An HTTP client with a pool of connections. Clones share the pool, which belongs to the runtime that uses it first.
///
/// It speaks HTTP/1.1, where an abandoned answer closes only its own connection. It follows no
/// redirects, so that a key goes only to the given address. It trusts the system's certificates.
/// Proxies come from `HTTPS_PROXY` and similar variables unless one is set here; those are not used
/// for a server on this machine.
///
/// ```
/// # mod mynah { pub use mynah_adapters as adapters; }
/// use std::time::Duration;
/// use mynah::adapters::http::Http;
///
/// let http = Http::builder().connect_timeout(Duration::from_secs(3)).proxy("http://proxy.example:3128").build()?;
/// # Ok::<(), mynah_data::Error>(())
/// ```
#[derive(Clone)]
pub struct Http {
    client: Client,
    /// The proxy for each address.
    proxies: Arc<Matcher>,
    /// For servers on this machine, where the proxy is the environment's.
    direct: Option<Client>,
}

impl Http {
    /// A client with the defaults.
    ///
    /// # Errors
    /// A system whose trusted certificates cannot be read.
    pub fn new() -> Result<Self> {
        Self::builder().build()
    }

    /// A client with other settings.
    pub fn builder() -> HttpBuilder {
        HttpBuilder { connect_timeout: Duration::from_secs(10), proxy: None, roots: Vec::new() }
    }

    /// The proxy for this address, without its secrets.
    pub(super) fn proxy(&self, url: &str) -> Option<String> {
        let is_direct = self.direct.is_some() && is_local(url);
        let asked = self.proxies.intercept(&url.parse().ok()?).filter(|_| !is_direct)?;
        let (scheme, host) = (asked.uri().scheme_str()?, asked.uri().host()?);
        let port = asked.uri().port_u16().map(|port| format!(":{port}")).unwrap_or_default();
        Some(format!("{scheme}://{host}{port}"))
    }

    /// The client for this address.
    #[doc(hidden)]
    pub fn client(&self, url: &str) -> &Client {
        self.direct.as_ref().filter(|_| is_local(url)).unwrap_or(&self.client)
    }
}

impl fmt::Debug for Http {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Http").finish_non_exhaustive()
    }
}

/// The settings of an [`Http`].
#[derive(Clone)]
#[must_use]
pub struct HttpBuilder {
    connect_timeout: Duration,
    proxy: Option<String>,
    roots: Vec<u8>,
}

impl fmt::Debug for HttpBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpBuilder")
            .field("connect_timeout", &self.connect_timeout)
            .field("proxy", &self.proxy.as_ref().map(|_| "…"))
            .finish_non_exhaustive()
    }
}

impl HttpBuilder {
    /// The time limit to connect, TLS included. By default 10 seconds.
    pub fn connect_timeout(mut self, limit: Duration) -> Self {
        self.connect_timeout = limit;
        self
    }

    /// Uses this proxy, HTTP or SOCKS, instead of the environment's. `NO_PROXY` still applies.
    pub fn proxy(mut self, url: impl Into<String>) -> Self {
        self.proxy = Some(url.into());
        self
    }

    /// Trusts these certificates too: the text of a PEM file.
    pub fn root_certificates(mut self, pem: impl AsRef<[u8]>) -> Self {
        self.roots.extend_from_slice(pem.as_ref());
        self.roots.push(b'\n');
        self
    }

    /// The client.
    ///
    /// # Errors
    /// Certificates that are none, a proxy that is no URL, a system whose trusted certificates cannot be read.
    pub fn build(self) -> Result<Http> {
        let tls = self.tls()?;
        let builder = || {
            Client::builder()
                .tls_backend_preconfigured(tls.clone())
                .connect_timeout(self.connect_timeout)
                .redirect(Policy::none())
                .tcp_nodelay(true)
                .user_agent(concat!("mynah/", env!("CARGO_PKG_VERSION")))
        };
        let (client, direct, proxies) = match &self.proxy {
            Some(url) => {
                let malformed = || Error::invalid_option("proxy", "malformed");
                let url = parse_proxy(url).ok_or_else(malformed)?;
                let proxy = Proxy::all(url.clone()).map_err(|_| malformed())?;
                let without = no_proxy();
                let proxies = Matcher::builder().all(url.as_str()).no(without.as_str()).build();
                let proxy = proxy.no_proxy(NoProxy::from_string(&without));
                (builder().proxy(proxy).build(), None, proxies)
            }
            None => (builder().build(), Some(builder().no_proxy().build()), Matcher::from_system()),
        };
        let made = |client: reqwest::Result<Client>| client.map_err(unusable);
        let (client, direct) = (made(client)?, direct.map(made).transpose()?);
        Ok(Http { client, direct, proxies: Arc::new(proxies) })
    }

    fn tls(&self) -> Result<ClientConfig> {
        let provider = Arc::new(ring::default_provider());
        let roots = CertificateDer::pem_slice_iter(&self.roots)
            .collect::<Result<Vec<_>, _>>()
            .map_err(|_| Error::invalid_option("root_certificates", "malformed"))?;
        if roots.is_empty() && !self.roots.is_empty() {
            return Err(Error::invalid_option("root_certificates", "empty"));
        }
        let verifier =
            Verifier::new_with_extra_roots(roots, Arc::clone(&provider)).map_err(unusable)?;
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(unusable)?;
        Ok(config
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_no_client_auth())
    }
}

/// The address of a proxy, which may leave out that it speaks HTTP.
fn parse_proxy(url: &str) -> Option<Url> {
    const SCHEMES: [&str; 6] = ["http", "https", "socks4", "socks4a", "socks5", "socks5h"];
    let url = match url.contains("://") {
        true => Url::parse(url),
        false => Url::parse(&format!("http://{url}")),
    };
    url.ok().filter(|url| SCHEMES.contains(&url.scheme()) && url.has_host())
}

/// The servers that are called without a proxy.
fn no_proxy() -> String {
    #[expect(clippy::disallowed_methods, reason = "as for the proxies of the environment")]
    let named = ["NO_PROXY", "no_proxy"].iter().find_map(|name| std::env::var(name).ok());
    named.unwrap_or_default()
}

/// Whether a server is on this machine.
pub(super) fn is_local(url: &str) -> bool {
    let url = Url::parse(url).ok();
    let host = url.as_ref().and_then(Url::host_str).unwrap_or_default();
    let address = host.trim_matches(['[', ']']).parse::<IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

fn unusable(why: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::adapter(AdapterReason::NetworkError)
        .with_message(format!("adapter error: network_error: no HTTP client can be made: {why}"))
        .caused_by(why)
}
