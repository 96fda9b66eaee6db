//! Connections to servers: directly, or through the proxy for each.

use std::{
    error::Error as StdError,
    io::{self, IoSlice},
    net::IpAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use http::{Uri, uri::Scheme};
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_rustls::{HttpsConnector, MaybeHttpsStream};
use hyper_util::{
    client::{
        legacy::connect::{
            HttpConnector,
            proxy::{SocksV4, SocksV5, Tunnel},
        },
        proxy::matcher::{Intercept, Matcher},
    },
    rt::TokioIo,
};
use rustls::ClientConfig;
use tokio::net::TcpStream;
use tower_service::Service;

pub(super) type BoxError = Box<dyn StdError + Send + Sync>;

/// Which server is called through which proxy.
pub(super) struct Proxies {
    matcher: Matcher,
    /// Whether a server on this machine is called directly.
    spares_local: bool,
}

impl Proxies {
    /// Those of the environment, for servers on other machines.
    pub(super) fn of_system() -> Self {
        Self { matcher: Matcher::from_system(), spares_local: true }
    }

    /// One for all servers but these.
    pub(super) fn all(proxy: &str, except: &str) -> Self {
        let matcher = Matcher::builder().all(proxy).no(except).build();
        Self { matcher, spares_local: false }
    }

    /// The proxy for a server.
    pub(super) fn of(&self, server: &Uri) -> Option<Intercept> {
        self.matcher.intercept(server).filter(|_| !(self.spares_local && is_local(server)))
    }
}

/// Whether a server is on this machine.
pub(super) fn is_local(server: &Uri) -> bool {
    let host = server.host().unwrap_or_default();
    let address = host.trim_matches(['[', ']']).parse::<IpAddr>();
    host.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.is_loopback())
}

/// Connects to servers.
#[derive(Clone)]
pub(super) struct Connector {
    pub(super) tls: Arc<ClientConfig>,
    pub(super) proxies: Arc<Proxies>,
    /// The time limit, TLS included.
    pub(super) limit: Duration,
}

impl Connector {
    /// Connects to a server within the time limit.
    pub(super) async fn connect(&self, server: Uri) -> Result<Wire, BoxError> {
        let limit = self.limit;
        tokio::time::timeout(limit, self.wire(server)).await.unwrap_or_else(|_| {
            let why = format!("no connection within {} s", limit.as_secs_f64());
            Err(io::Error::new(io::ErrorKind::TimedOut, why).into())
        })
    }

    async fn wire(&self, server: Uri) -> Result<Wire, BoxError> {
        let (tcp, tls) = (self.tcp(), Arc::clone(&self.tls));
        let mut direct = HttpsConnector::from((tcp.clone(), Arc::clone(&tls)));
        let Some(proxy) = self.proxies.of(&server) else {
            return Ok(Wire::from(direct.call(server).await?));
        };
        let scheme = proxy.uri().scheme_str().unwrap_or_default();
        let is_resolved_here = matches!(scheme, "socks4" | "socks5");
        match scheme {
            "socks4" | "socks4a" => {
                let to = with_port(proxy.uri(), 1080)?;
                let socks = SocksV4::new(to, tcp).local_dns(is_resolved_here);
                let server = with_port(&server, default_port(&server))?;
                Ok(Wire::from(HttpsConnector::from((socks, tls)).call(server).await?))
            }
            "socks5" | "socks5h" => {
                let to = with_port(proxy.uri(), 1080)?;
                let mut socks = SocksV5::new(to, tcp).local_dns(is_resolved_here);
                if let Some((user, password)) = proxy.raw_auth() {
                    socks = socks.with_auth(user.to_owned(), password.to_owned());
                }
                let server = with_port(&server, default_port(&server))?;
                Ok(Wire::from(HttpsConnector::from((socks, tls)).call(server).await?))
            }
            _ if server.scheme() == Some(&Scheme::HTTPS) => {
                let mut tunnel = Tunnel::new(proxy.uri().clone(), direct);
                if let Some(auth) = proxy.basic_auth() {
                    tunnel = tunnel.with_auth(auth.clone());
                }
                let stream = HttpsConnector::from((tunnel, tls)).call(server).await?;
                Ok(Wire { stream, is_proxied: false })
            }
            _ => {
                let wire = Wire::from(direct.call(proxy.uri().clone()).await?);
                Ok(Wire { is_proxied: true, ..wire })
            }
        }
    }

    fn tcp(&self) -> HttpConnector {
        const PROBES: Duration = Duration::from_secs(15);
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(self.limit));
        // A peer that is gone without a word is noticed within a minute.
        tcp.set_keepalive(Some(PROBES));
        tcp.set_keepalive_interval(Some(PROBES));
        tcp.set_keepalive_retries(Some(3));
        #[cfg(target_os = "linux")]
        tcp.set_tcp_user_timeout(Some(2 * PROBES));
        tcp
    }
}

fn default_port(server: &Uri) -> u16 {
    if server.scheme() == Some(&Scheme::HTTPS) { 443 } else { 80 }
}

/// The same address, which names its port: SOCKS has another default than HTTP.
fn with_port(uri: &Uri, default: u16) -> Result<Uri, http::Error> {
    let (host, port) = (uri.host().unwrap_or_default(), uri.port_u16().unwrap_or(default));
    let mut parts = uri.clone().into_parts();
    parts.authority = Some(format!("{host}:{port}").parse()?);
    Ok(Uri::from_parts(parts)?)
}

/// TCP, with TLS to a proxy, to a server, or to both.
type Layers = MaybeHttpsStream<MaybeHttpsStream<TokioIo<TcpStream>>>;

/// A connection to a server or its proxy.
pub(super) struct Wire {
    stream: Layers,
    /// Whether a proxy reads the requests, and needs the whole address in each.
    pub(super) is_proxied: bool,
}

impl From<MaybeHttpsStream<TokioIo<TcpStream>>> for Wire {
    fn from(stream: MaybeHttpsStream<TokioIo<TcpStream>>) -> Self {
        Self { stream: MaybeHttpsStream::Http(stream), is_proxied: false }
    }
}

impl Read for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl Write for Wire {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, parts)
    }
}
