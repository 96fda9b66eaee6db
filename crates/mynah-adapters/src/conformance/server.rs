//! A scripted server, down to the byte and the broken connection.

use std::{
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinHandle,
};

/// An HTTP/1.1 server on a port of its own. Dropping it closes the port.
///
/// ```
/// # mod mynah { pub use mynah_adapters as adapters; }
/// use mynah::adapters::conformance::{Reply, TestServer};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> std::io::Result<()> {
/// let server = TestServer::start(|received| Reply::json(404, format!("{{\"no\": {:?}}}", received.path))).await?;
/// assert!(server.url().starts_with("http://127.0.0.1:"));
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct TestServer {
    url: String,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    received: Mutex<Vec<Received>>,
    /// How many requests there were.
    asked: watch::Sender<usize>,
    /// How many clients went away while they were kept waiting.
    gone: watch::Sender<usize>,
}

/// A request as it came.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Received {
    /// Its path, with the query.
    pub path: String,
    /// Its headers, with lowercase names.
    pub headers: Vec<(String, String)>,
    /// Its body; null where that is no JSON.
    pub body: Value,
}

impl Received {
    /// A header by its lowercase name.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

/// What the server answers.
#[derive(Clone, Debug)]
pub struct Reply {
    status: u16,
    headers: Vec<(String, String)>,
    pieces: Vec<Vec<u8>>,
    end: End,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Whole,
    Hang,
    Abort,
    /// Not even a status.
    Silence,
}

impl Reply {
    /// A stream in these pieces, each written on its own.
    pub fn stream<P: Into<Vec<u8>>>(
        content_type: &str,
        pieces: impl IntoIterator<Item = P>,
    ) -> Self {
        let headers = vec![("content-type".to_owned(), content_type.to_owned())];
        Self {
            status: 200,
            headers,
            pieces: pieces.into_iter().map(Into::into).collect(),
            end: End::Whole,
        }
    }

    /// One JSON document.
    pub fn json(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Self { status, ..Self::stream("application/json", [body]) }
    }

    /// No answer at all, and the connection stays.
    pub fn silence() -> Self {
        Self { end: End::Silence, ..Self::json(200, "") }
    }

    /// With one more header.
    pub fn with_header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// After the last piece nothing comes, and the connection stays.
    pub fn then_hang(mut self) -> Self {
        self.end = End::Hang;
        self
    }

    /// After the last piece the connection breaks.
    pub fn then_break(mut self) -> Self {
        self.end = End::Abort;
        self
    }
}

impl TestServer {
    /// Starts on a free port of the loopback interface.
    ///
    /// # Errors
    /// No port is available.
    pub async fn start(
        reply: impl Fn(&Received) -> Reply + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}", listener.local_addr()?);
        let (asked, gone) = (watch::Sender::new(0), watch::Sender::new(0));
        let shared = Arc::new(Shared { received: Mutex::default(), asked, gone });
        let (reply, kept) = (Arc::new(reply), Arc::clone(&shared));
        let accepting = tokio::spawn(async move {
            while let Ok((connection, _)) = listener.accept().await {
                let (reply, shared) = (Arc::clone(&reply), Arc::clone(&kept));
                // What a client does to its connection is not the server's failure.
                tokio::spawn(async move { serve(connection, reply.as_ref(), &shared).await.ok() });
            }
        });
        Ok(Self { url, shared, accepting })
    }

    /// Where it is.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// What was asked so far.
    pub fn received(&self) -> Vec<Received> {
        self.shared.received().clone()
    }

    /// Waits until a request has arrived.
    pub async fn is_asked(&self) {
        let mut asked = self.shared.asked.subscribe();
        // The sender lives as long as the server.
        asked.wait_for(|count| *count > 0).await.ok();
    }

    /// Waits until a client that is kept waiting goes away, for so long at most.
    pub async fn client_leaves(&self, within: Duration) -> bool {
        let mut gone = self.shared.gone.subscribe();
        let left = gone.wait_for(|count| *count > 0);
        tokio::time::timeout(within, left).await.is_ok_and(|seen| seen.is_ok())
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Shared {
    fn received(&self) -> MutexGuard<'_, Vec<Received>> {
        self.received.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a client waiting.
    async fn hold(&self, mut connection: TcpStream) -> io::Result<()> {
        let left = connection.read(&mut [0; 1]).await;
        self.gone.send_modify(|count| *count += 1);
        left.map(drop)
    }
}

/// Answers requests in sequence until the client disconnects.
async fn serve(
    mut connection: TcpStream,
    reply: &(impl Fn(&Received) -> Reply + ?Sized),
    shared: &Shared,
) -> io::Result<()> {
    connection.set_nodelay(true)?;
    while let Some(received) = read_request(&mut connection).await? {
        let reply = reply(&received);
        shared.received().push(received);
        shared.asked.send_modify(|count| *count += 1);
        if reply.end == End::Silence {
            return shared.hold(connection).await;
        }
        let mut head =
            format!("HTTP/1.1 {} Status\r\ntransfer-encoding: chunked\r\n", reply.status);
        for (name, value) in &reply.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        connection.write_all(format!("{head}\r\n").as_bytes()).await?;
        for piece in reply.pieces.iter().filter(|piece| !piece.is_empty()) {
            connection.write_all(format!("{:x}\r\n", piece.len()).as_bytes()).await?;
            connection.write_all(piece).await?;
            connection.write_all(b"\r\n").await?;
        }
        match reply.end {
            End::Whole => connection.write_all(b"0\r\n\r\n").await?,
            End::Abort => return Ok(()),
            End::Hang | End::Silence => return shared.hold(connection).await,
        }
    }
    Ok(())
}

async fn read_request(connection: &mut TcpStream) -> io::Result<Option<Received>> {
    let mut bytes = Vec::new();
    let head_end = loop {
        if let Some(end) = memchr::memmem::find(&bytes, b"\r\n\r\n") {
            break end + 4;
        }
        if connection.read_buf(&mut bytes).await? == 0 {
            return Ok(None);
        }
    };
    let head = String::from_utf8_lossy(&bytes[..head_end]).into_owned();
    let mut lines = head.lines();
    let path = lines.next().and_then(|line| line.split(' ').nth(1)).unwrap_or_default().to_owned();
    let headers: Vec<(String, String)> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    let mut received = Received { path, headers, body: Value::Null };
    let length: usize = received.header("content-length").and_then(|n| n.parse().ok()).unwrap_or(0);
    while bytes.len() < head_end + length {
        if connection.read_buf(&mut bytes).await? == 0 {
            return Ok(None);
        }
    }
    received.body = serde_json::from_slice(&bytes[head_end..head_end + length]).unwrap_or_default();
    Ok(Some(received))
}
