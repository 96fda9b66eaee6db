//! A real Chromium, driven over the WebDriver protocol.

#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::panic,
    reason = "each test file uses a part of this, and a helper may fail the test that calls it"
)]

use std::{
    env,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    process::{Child, Command, Stdio},
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use serde_json::{Value, json};

/// A browser with one window, which ends with this value.
pub(crate) struct Browser {
    _alone: MutexGuard<'static, ()>,
    driver: Child,
    port: u16,
    session: String,
}

impl Browser {
    /// Starts a browser. None where there is none, which a machine of the CI may not say.
    pub(crate) fn start() -> Option<Self> {
        // Several at once take longer than one after the other.
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let started = Command::new("chromedriver")
            .arg("--port=0")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        let mut driver = match started {
            Ok(driver) => driver,
            Err(error) if env::var_os("CI").is_some() => panic!("chromedriver: {error}"),
            Err(error) => {
                eprintln!("skipped: chromedriver: {error}; Debian has it in `chromium-driver`");
                return None;
            }
        };
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
        let mut browser = Self { _alone: alone, driver, port, session: String::new() };
        let options = json!({"args": ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
            "--disable-background-networking", "--disable-component-update", "--window-size=1280,900"]});
        let logs = json!({"browser": "ALL", "performance": "ALL"});
        let wanted = json!({"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": logs});
        let body = json!({"capabilities": {"alwaysMatch": wanted}});
        let made = browser.request("POST", "/session", &body);
        browser.session = made["sessionId"].as_str().unwrap().to_owned();
        Some(browser)
    }

    fn request(&self, method: &str, path: &str, body: &Value) -> Value {
        self.attempt(method, path, body).unwrap_or_else(|error| panic!("{method} {path}: {error}"))
    }

    /// One request of the protocol: its value, or its error.
    fn attempt(&self, method: &str, path: &str, body: &Value) -> Result<Value, Value> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
        let body = if method == "POST" { body.to_string() } else { String::new() };
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nContent-Type: application/json\r\n\
             Connection: close\r\nContent-Length: {}\r\n\r\n",
            self.port,
            body.len()
        );
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(body.as_bytes()).unwrap();
        let mut reply = BufReader::new(stream);
        let (mut line, mut length) = (String::new(), 0);
        while reply.read_line(&mut line).unwrap() > 2 {
            let lower = line.to_ascii_lowercase();
            if let Some(value) = lower.strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
            line.clear();
        }
        let mut text = vec![0; length];
        reply.read_exact(&mut text).unwrap();
        let mut value: Value = serde_json::from_slice(&text).unwrap();
        match value["value"].take() {
            error if error.get("error").is_some_and(Value::is_string) => Err(error),
            value => Ok(value),
        }
    }

    fn command(&self, path: &str, body: &Value) -> Value {
        self.request("POST", &format!("/session/{}{path}", self.session), body)
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
        for _ in 0..300 {
            let answer = ask(self);
            if fits(&answer) {
                return Ok(answer);
            }
            thread::sleep(Duration::from_millis(100));
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
            let path = format!("/session/{}/element/{found}/click", browser.session);
            browser.attempt("POST", &path, &json!({}))
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

impl Drop for Browser {
    fn drop(&mut self) {
        if !self.session.is_empty() {
            let _ = self.attempt("DELETE", &format!("/session/{}", self.session), &json!({}));
        }
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}
