//! Who may make which request.

use mynah::log::MemoryLog;
use mynah_server::{Agent, Server};
use reqwest::{Method, StatusCode};
use serde_json::json;

use crate::common::{Running, engine, json_of, problem_of, says};

const TOKEN: &str = "correct-horse-battery";

fn server() -> Server {
    Server::new(MemoryLog::new()).agent(Agent::new("a", engine([says("hi")])))
}

#[tokio::test]
async fn a_name_that_is_not_the_servers_is_refused() {
    let running = Running::start(server().host("runs.example.org")).await;
    let port = running.address.port();
    for (host, status) in [
        (format!("evil.example:{port}"), 403),
        ("evil.example".to_owned(), 403),
        ("localhost.evil.example".to_owned(), 403),
        ("127.0.0.1.evil.example".to_owned(), 403),
        (format!("localhost:{port}"), 200),
        ("LOCALHOST".to_owned(), 200),
        (format!("127.0.0.1:{port}"), 200),
        ("[::1]:80".to_owned(), 200),
        ("runs.example.org".to_owned(), 200),
        ("Runs.Example.Org:443".to_owned(), 200),
    ] {
        for path in ["/v1/runs", "/", "/healthz"] {
            let request = running.request(Method::GET, path).header("host", &host);
            let response = request.send().await.unwrap();
            assert_eq!(response.status(), status, "{host} {path}");
            if status == 403 {
                assert_eq!(problem_of(response).await.1, "http_error/host_refused");
            }
        }
    }
}

#[tokio::test]
async fn a_page_of_another_site_is_refused() {
    let running = Running::start(server()).await;
    let own = format!("http://{}", running.address);
    let secure = format!("https://{}", running.address);
    let port = format!("http://127.0.0.1:{}", running.address.port() ^ 1);
    for method in [Method::GET, Method::POST] {
        for (origin, allowed) in [
            (own.as_str(), true),
            (&secure, true),
            (&port, false),
            ("http://evil.example", false),
            ("null", false),
            ("", false),
            ("http://localhost", false),
        ] {
            let request = running.request(method.clone(), "/v1/runs").header("origin", origin);
            let request = request.header("mynah-request", "1");
            let request = request.header("content-type", "application/json");
            let request = request.body(json!({"input": "hi", "key": "one"}).to_string());
            let response = request.send().await.unwrap();
            assert_eq!(response.status().is_success(), allowed, "{method} {origin}");
            if !allowed {
                assert_eq!(
                    problem_of(response).await,
                    (403, "http_error/origin_refused".to_owned())
                );
            }
        }
    }
    let fetched = |mode: &str| {
        let request =
            running.request(Method::GET, "/v1/runs").header("sec-fetch-site", "cross-site");
        request.header("sec-fetch-mode", mode).send()
    };
    assert_eq!(fetched("no-cors").await.unwrap().status(), 403);
    assert_eq!(fetched("navigate").await.unwrap().status(), 200);
}

#[tokio::test]
async fn a_request_that_changes_something_needs_a_header_that_other_pages_cannot_send() {
    let running = Running::start(server()).await;
    let post = |headers: &[(&str, &str)]| {
        let request = running.request(Method::POST, "/v1/runs?wait=30");
        let request = request.body(json!({"input": "hi"}).to_string());
        let request = request.header("content-type", "application/json");
        headers.iter().fold(request, |request, (name, value)| request.header(*name, *value)).send()
    };
    let refused = post(&[]).await.unwrap();
    assert_eq!(problem_of(refused).await, (403, "http_error/request_header_required".to_owned()));
    assert_eq!(post(&[("mynah-request", "1")]).await.unwrap().status(), 200);
    assert_eq!(post(&[("authorization", "Bearer anything")]).await.unwrap().status(), 200);
    // A form of another page can send neither, and no preflight allows it.
    let preflight =
        running.request(Method::OPTIONS, "/v1/runs").header("origin", "http://evil.example");
    let answer = preflight.header("access-control-request-method", "POST").send().await.unwrap();
    assert_eq!(answer.status(), 403);
    assert!(answer.headers().keys().all(|name| !name.as_str().starts_with("access-control")));
}

#[tokio::test]
async fn a_token_is_demanded_for_data() {
    let running = Running::start(server().token(TOKEN)).await;
    for path in [
        "/v1/runs",
        "/v1/log",
        "/v1/agents",
        "/v1/openapi.json",
        "/metrics",
        "/v1/none",
        "/v1/changes",
    ] {
        let refused = running.get(path).await;
        assert_eq!(refused.headers()["www-authenticate"], "Bearer");
        assert_eq!(
            problem_of(refused).await,
            (401, "http_error/token_required".to_owned()),
            "{path}"
        );
    }
    for path in ["/healthz", "/readyz", "/"] {
        assert_eq!(running.get(path).await.status(), StatusCode::OK, "{path}");
    }
    let with = async |given: &str| {
        let request = running.request(Method::GET, "/v1/runs").header("authorization", given);
        request.send().await.unwrap().status().as_u16()
    };
    assert_eq!(with(&format!("Bearer {TOKEN}")).await, 200);
    assert_eq!(with(&format!("bearer {TOKEN}")).await, 200);
    for wrong in [
        "Bearer wrong",
        "Bearer ",
        "Bearer",
        TOKEN,
        "Basic eDp5",
        &format!("Bearer {TOKEN}x"),
        &format!("bearer{TOKEN}"),
    ] {
        assert_eq!(with(wrong).await, 401, "{wrong}");
    }
}

#[tokio::test]
async fn a_page_keeps_the_token_in_a_cookie_that_scripts_cannot_read() {
    let running = Running::start(server().token(TOKEN)).await;
    let wrong = running.post("/v1/login", &json!({"token": "wrong"})).await;
    assert_eq!(problem_of(wrong).await, (401, "http_error/token_wrong".to_owned()));
    let right = running.post("/v1/login", &json!({"token": TOKEN})).await;
    assert_eq!(right.status(), StatusCode::NO_CONTENT);
    let cookie = right.headers()["set-cookie"].to_str().unwrap().to_owned();
    assert!(cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict"), "{cookie}");
    let cookie = cookie.split(';').next().unwrap();
    let request =
        running.request(Method::GET, "/v1/runs").header("cookie", format!("other=1; {cookie}"));
    assert_eq!(request.send().await.unwrap().status(), 200);
    let request = running.request(Method::GET, "/v1/runs").header("cookie", "mynah_token=wrong");
    assert_eq!(request.send().await.unwrap().status(), 401);
    // A cookie alone changes nothing.
    let post = running.request(Method::POST, "/v1/runs").header("cookie", cookie);
    let post = post.header("content-type", "application/json").body(r#"{"input": "hi"}"#);
    assert_eq!(
        problem_of(post.send().await.unwrap()).await.1,
        "http_error/request_header_required"
    );
    let post = running.request(Method::POST, "/v1/runs?wait=30").header("cookie", cookie);
    let post = post.header("mynah-request", "1").header("content-type", "application/json");
    let run = json_of(post.body(r#"{"input": "hi"}"#).send().await.unwrap()).await;
    assert_eq!(run["status"], "completed");
}
