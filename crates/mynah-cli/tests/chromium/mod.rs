//! A real Chromium, driven over the WebDriver protocol.

#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::panic,
    reason = "each test file uses a part of this, and a helper may fail the test that calls it"
)]

use std::{
    cell::OnceCell,
    env,
    io::{self, BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    os::unix::process::CommandExt as _,
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use serde_json::{Value, json};

/// A window of the browser that all tests of a program share. It is empty, and nothing is left of earlier ones. The first command
/// waits for it, so what a test prepares before takes no time of others.
pub(crate) struct Browser(OnceCell<MutexGuard<'static, Option<Session>>>);

/// The browser, and the driver through which it is reached.
struct Session {
    driver: Child,
    port: u16,
    id: String,
}

/// Starts the driver, and ends it and the browser when the standard input closes: no value of a static is ever dropped.
const DRIVER: &str = "chromedriver --port=0 & read -r _; kill -- -$$";

impl Browser {
    /// The browser. None where there is none, which a machine of the CI may not say.
    pub(crate) fn start() -> Option<Self> {
        if installed("chromedriver").is_none() {
            let why = "chromedriver is not installed; Debian has it in `chromium-driver`";
            assert!(env::var_os("CI").is_none(), "{why}");
            eprintln!("skipped: {why}");
            return None;
        }
        Some(Self(OnceCell::new()))
    }

    /// The session of the browser, which the first caller starts.
    fn session(&self) -> &Session {
        // Several at once take longer than one after the other.
        static SHARED: Mutex<Option<Session>> = Mutex::new(None);
        let claimed = self.0.get_or_init(|| {
            let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
            if shared.as_ref().is_none_or(|session| session.clear().is_err()) {
                *shared = None;
                *shared = Some(Session::start());
            }
            shared
        });
        claimed.as_ref().unwrap()
    }

    fn command(&self, path: &str, body: &Value) -> Value {
        let done = self.session().attempt("POST", path, body);
        done.unwrap_or_else(|error| panic!("POST {path}: {error}"))
    }

    /// Opens an address.
    pub(crate) fn open(&self, url: &str) {
        // The same address with another fragment would not be loaded again.
        self.command("/url", &json!({"url": "about:blank"}));
        self.command("/url", &json!({"url": url}));
    }

    /// The value of a JavaScript function body, which may be a promise.
    pub(crate) fn run(&self, script: &str) -> Value {
        self.command("/execute/sync", &json!({"script": script, "args": []}))
    }

    /// Asks again until an answer fits; the last answer where none does in 30 seconds.
    #[expect(clippy::disallowed_methods, reason = "a test waits for a browser")]
    fn until<T>(&self, ask: impl Fn(&Self) -> T, fits: impl Fn(&T) -> bool) -> Result<T, T> {
        for _ in 0..1500 {
            let answer = ask(self);
            if fits(&answer) {
                return Ok(answer);
            }
            thread::sleep(Duration::from_millis(20));
        }
        Err(ask(self))
    }

    fn fail(&self, wanted: &str, found: &Value) -> ! {
        let page = self.run("return document.body.innerText.slice(0, 3000)");
        panic!("{wanted}; found {found}\n{page}\n{:?}", self.logged("browser"));
    }

    /// Waits until an expression holds, and gives its value.
    pub(crate) fn wait(&self, expression: &str) -> Value {
        let script = format!("return {expression}");
        let holds = |value: &Value| value.as_bool() != Some(false) && !value.is_null();
        let held = self.until(|browser| browser.run(&script), holds);
        held.unwrap_or_else(|found| self.fail(&format!("{expression} does not hold"), &found))
    }

    /// Waits until a function body gives a value. It may be run many times.
    pub(crate) fn gives(&self, script: &str, value: impl Into<Value>) {
        let value = value.into();
        if let Err(found) = self.until(|browser| browser.run(script), |found| *found == value) {
            self.fail(&format!("{script} does not give {value}"), &found);
        }
    }

    /// The text of the first element of a selector.
    pub(crate) fn text(&self, selector: &str) -> String {
        self.wait(&inner_text(selector)).as_str().unwrap().to_owned()
    }

    /// Waits until the first element of a selector has this text and no other.
    pub(crate) fn shows(&self, selector: &str, text: impl Into<Value>) {
        self.gives(&format!("return {}", inner_text(selector)), text);
    }

    /// Waits until the first element of a selector has this text among others.
    pub(crate) fn has(&self, selector: &str, part: &str) {
        self.wait(&format!("{}?.includes({})", inner_text(selector), json!(part)));
    }

    /// Clicks the first element of a selector, as a person does.
    pub(crate) fn click(&self, selector: &str) {
        // A live page may draw it anew between two requests, or move it under something else.
        const PASSING: [&str; 3] =
            ["stale element reference", "element click intercepted", "element not interactable"];
        let click = |browser: &Self| {
            browser.wait(&format!("document.querySelector({}) !== null", json!(selector)));
            let found = browser.element(selector);
            browser.session().attempt("POST", &format!("/element/{found}/click"), &json!({}))
        };
        let is_final = |done: &Result<Value, Value>| {
            done.as_ref()
                .map_or_else(|error| !PASSING.iter().any(|one| error["error"] == *one), |_| true)
        };
        let (Ok(done) | Err(done)) = self.until(click, is_final);
        if let Err(error) = done {
            self.fail(&format!("{selector} cannot be clicked"), &error);
        }
    }

    /// Writes into the first element of a selector.
    pub(crate) fn write(&self, selector: &str, text: &str) {
        let found = self.element(selector);
        self.command(&format!("/element/{found}/clear"), &json!({}));
        self.command(&format!("/element/{found}/value"), &json!({"text": text}));
    }

    fn element(&self, selector: &str) -> String {
        let found = self.command("/element", &json!({"using": "css selector", "value": selector}));
        found.as_object().unwrap().values().next().unwrap().as_str().unwrap().to_owned()
    }

    /// Presses keys, whatever has the focus.
    pub(crate) fn press(&self, keys: &str) {
        let downs = keys.chars().flat_map(|key| {
            [json!({"type": "keyDown", "value": key}), json!({"type": "keyUp", "value": key})]
        });
        let actions = json!([{"type": "key", "id": "keys", "actions": downs.collect::<Vec<_>>()}]);
        self.command("/actions", &json!({"actions": actions}));
    }

    /// A command of the browser's own protocol.
    pub(crate) fn protocol(&self, command: &str, params: &Value) -> Value {
        self.command("/goog/cdp/execute", &json!({"cmd": command, "params": params}))
    }

    /// Cuts the network off, or connects it.
    pub(crate) fn offline(&self, offline: bool) {
        self.protocol("Network.enable", &json!({}));
        let conditions = json!({"offline": offline, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1});
        self.protocol("Network.emulateNetworkConditions", &conditions);
    }

    /// The size of the window, and whether it is dark.
    pub(crate) fn look(&self, width: u32, height: u32, dark: bool) {
        let size =
            json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.protocol("Emulation.setDeviceMetricsOverride", &size);
        let scheme = if dark { "dark" } else { "light" };
        let media = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.protocol("Emulation.setEmulatedMedia", &media);
    }

    /// What the window shows, as a PNG.
    pub(crate) fn screenshot(&self) -> Vec<u8> {
        use base64::{Engine as _, engine::general_purpose::STANDARD};
        let shot = self.protocol("Page.captureScreenshot", &json!({"format": "png"}));
        STANDARD.decode(shot["data"].as_str().unwrap()).unwrap()
    }

    /// The log of this kind since it was asked for last.
    pub(crate) fn logged(&self, kind: &str) -> Vec<Value> {
        let log = self.command("/se/log", &json!({"type": kind}));
        log.as_array().cloned().unwrap_or_default()
    }

    /// The errors on the console since they were asked for last.
    pub(crate) fn errors(&self) -> Vec<String> {
        let severe = |entry: &Value| entry["level"] == "SEVERE";
        let entries = self.logged("browser").into_iter().filter(severe);
        entries.map(|entry| entry["message"].to_string()).collect()
    }

    /// What was requested since it was asked for last, but for data in the page itself.
    pub(crate) fn requested(&self) -> Vec<String> {
        let mut urls = Vec::new();
        for entry in self.logged("performance") {
            let text = entry["message"].as_str().unwrap_or_default();
            let message: Value = serde_json::from_str(text).unwrap();
            let message = &message["message"];
            let is_request = message["method"] == "Network.requestWillBeSent";
            let url = message["params"]["request"]["url"].as_str().filter(|_| is_request);
            urls.extend(url.filter(|url| !url.starts_with("data:")).map(str::to_owned));
        }
        urls
    }
}

fn installed(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).map(|folder| folder.join(program)).find(|file| file.is_file())
}

impl Session {
    fn start() -> Self {
        let mut driver = Command::new("sh");
        driver.args(["-c", DRIVER]).process_group(0);
        driver.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut driver = driver.spawn().unwrap();
        let mut said = BufReader::new(driver.stdout.take().unwrap());
        let port = loop {
            let mut line = String::new();
            assert_ne!(said.read_line(&mut line).unwrap(), 0, "chromedriver ended");
            let port = line.rsplit_once("successfully on port ").map(|(_, port)| port.trim());
            if let Some(port) = port.and_then(|port| port.trim_end_matches('.').parse().ok()) {
                break port;
            }
        };
        thread::spawn(move || std::io::copy(&mut said, &mut std::io::sink()));
        let mut session = Self { driver, port, id: String::new() };
        let mut options = json!({"args": ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
            "--disable-background-networking", "--disable-component-update", "--window-size=1280,900"]});
        // Without windows of its own it takes three quarters of the time.
        if let Some(shell) = installed("chromium-headless-shell") {
            options["binary"] = json!(shell);
        }
        let logs = json!({"browser": "ALL", "performance": "ALL"});
        let wanted = json!({"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": logs});
        let body = json!({"capabilities": {"alwaysMatch": wanted}});
        let made = session.attempt("POST", "", &body);
        let made = made.unwrap_or_else(|error| panic!("no session: {error}"));
        session.id = format!("/{}", made["sessionId"].as_str().unwrap());
        session
    }

    /// Opens a new window in place of all others, and forgets what pages kept.
    fn clear(&self) -> Result<(), Value> {
        let get = |path: &str| self.attempt("GET", path, &json!({}));
        let post = |path: &str, body: Value| self.attempt("POST", path, &body);
        let cdp = |command, params: Value| {
            post("/goog/cdp/execute", json!({"cmd": command, "params": params}))
        };
        let origin =
            post("/execute/sync", json!({"script": "return location.origin", "args": []}))?;
        if origin.as_str().is_some_and(|origin| origin.starts_with("http")) {
            cdp("Storage.clearDataForOrigin", json!({"origin": origin, "storageTypes": "all"}))?;
        }
        cdp("Network.clearBrowserCookies", json!({}))?;
        let old = get("/window/handles")?;
        let new = post("/window/new", json!({"type": "tab"}))?["handle"].take();
        for handle in old.as_array().into_iter().flatten() {
            post("/window", json!({"handle": handle}))?;
            self.attempt("DELETE", "/window", &json!({}))?;
        }
        post("/window", json!({"handle": new}))?;
        for kind in ["browser", "performance"] {
            post("/se/log", json!({"type": kind}))?;
        }
        Ok(())
    }

    /// One request of the protocol: its value, or its error.
    fn attempt(&self, method: &str, path: &str, body: &Value) -> Result<Value, Value> {
        let lost = |error: io::Error| json!({"error": "no driver", "message": error.to_string()});
        let mut reply = self.exchange(method, path, body).map_err(lost)?;
        match reply["value"].take() {
            error if error.get("error").is_some_and(Value::is_string) => Err(error),
            value => Ok(value),
        }
    }

    fn exchange(&self, method: &str, path: &str, body: &Value) -> io::Result<Value> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_read_timeout(Some(Duration::from_secs(120)))?;
        let body = if method == "POST" { body.to_string() } else { String::new() };
        let head = format!(
            "{method} /session{}{path} HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nContent-Type: application/json\r\n\
             Connection: close\r\nContent-Length: {}\r\n\r\n",
            self.id,
            self.port,
            body.len()
        );
        stream.write_all(head.as_bytes())?;
        stream.write_all(body.as_bytes())?;
        let mut reply = BufReader::new(stream);
        let (mut line, mut length) = (String::new(), 0);
        while reply.read_line(&mut line)? > 2 {
            let lower = line.to_ascii_lowercase();
            if let Some(value) = lower.strip_prefix("content-length:") {
                length = value.trim().parse().map_err(io::Error::other)?;
            }
            line.clear();
        }
        let mut text = vec![0; length];
        reply.read_exact(&mut text)?;
        Ok(serde_json::from_slice(&text)?)
    }
}

/// The expression for the text of the first element of a selector.
fn inner_text(selector: &str) -> String {
    format!("document.querySelector({})?.innerText", json!(selector))
}

/// The source of axe-core; none unless `cargo xtask browser`, which installs it, runs the tests.
#[expect(clippy::disallowed_methods, reason = "the variable is that of the tests")]
pub(crate) fn axe() -> Option<String> {
    match env::var("MYNAH_AXE") {
        Ok(path) => Some(std::fs::read_to_string(path).unwrap()),
        Err(_) => {
            eprintln!("skipped: `cargo xtask browser` installs axe-core");
            None
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // Its end ends the driver's shell.
        drop(self.driver.stdin.take());
        let _ = self.driver.wait();
    }
}
