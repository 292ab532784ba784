#![expect(clippy::unwrap_used, reason = "test")]

use nevertwice_admin::Version;
use nevertwice_config::checked::Admin;
use nevertwice_config::secret::Given;
use nevertwice_domain::clock::Millis;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::watch;

use super::*;

const NO_TOKEN: TokenArgs = TokenArgs { token: None };

fn client(url: &str, token: Option<&str>, secrets: &Given) -> Result<Client, Failure> {
    Client::with_secrets(url, &TokenArgs { token: token.map(ToOwned::to_owned) }, secrets)
}

/// A client of a server that gives these answers, one a connection, and the requests that it saw.
pub async fn canned(answers: Vec<Value>) -> (Client, JoinSet<Vec<String>>) {
    let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", socket.local_addr().unwrap());
    let mut server = JoinSet::new();
    server.spawn(async move {
        let mut seen = Vec::new();
        for answer in answers {
            let (mut stream, _) = socket.accept().await.unwrap();
            let mut request = Vec::new();
            let head = loop {
                stream.read_buf(&mut request).await.unwrap();
                if let Some(at) = request.windows(4).position(|w| w == b"\r\n\r\n") {
                    break at + 4;
                }
            };
            let text = String::from_utf8(request[..head].to_vec()).unwrap();
            let length = text.lines().find_map(|line| line.strip_prefix("content-length: "));
            let length = length.map_or(0, |length| length.parse().unwrap());
            while request.len() < head + length {
                stream.read_buf(&mut request).await.unwrap();
            }
            seen.push(String::from_utf8(request).unwrap());
            let body = answer.to_string();
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
            stream.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
        }
        seen
    });
    (client(&url, None, &Given::default()).unwrap(), server)
}

#[test]
fn urls_are_checked() {
    for url in ["http://127.0.0.1:9090", "http://127.0.0.1:9090/", "127.0.0.1:9090"] {
        let client = client(url, None, &Given::default()).unwrap();
        assert_eq!(
            (client.host.as_str(), client.port, client.prefix.as_str()),
            ("127.0.0.1", 9090, ""),
            "{url}"
        );
    }
    let v6 = client("http://[::1]:9090/gw/", None, &Given::default()).unwrap();
    assert_eq!((v6.host.as_str(), v6.prefix.as_str()), ("::1", "/gw"));
    for (url, part) in [
        ("https://gw", "plain HTTP"),
        ("ftp://gw", "only http"),
        ("http://u:p@gw", "list of processes"),
        ("http://gw/?token=x", "has a query"),
        ("/path", "no host"),
        ("", "no URL"),
    ] {
        let failure = client(url, None, &Given::default()).unwrap_err();
        assert!(failure.code == 2 && failure.message.contains(part), "{url}: {}", failure.message);
    }
}

#[test]
fn tokens_come_by_reference_and_are_never_shown() {
    let secrets = Given::default()
        .with_env("NEVERTWICE_ADMIN_TOKEN", "default-token")
        .with_env("OTHER", "other-token")
        .with_env("BLANK", " ")
        .with_file("/token", "file-token\n");
    let bearer = |reference| {
        let client = client("http://gw", reference, &secrets);
        client.map(|c| c.bearer.unwrap().to_str().unwrap().to_owned()).map_err(|f| (f.code, f.message))
    };
    assert_eq!(bearer(None).unwrap(), "Bearer default-token");
    assert_eq!(bearer(Some("env:OTHER")).unwrap(), "Bearer other-token");
    assert_eq!(bearer(Some("file:/token")).unwrap(), "Bearer file-token");
    for reference in ["s3cret", "env:MISSING", "env:BLANK", "file:/missing"] {
        let (code, message) = bearer(Some(reference)).unwrap_err();
        assert!(code == 2 && !message.contains("s3cret"), "{message}");
    }
    let client = client("http://gw", None, &secrets).unwrap();
    assert!(!format!("{client:?}").contains("default-token"));
}

#[tokio::test]
async fn a_gateway_that_is_not_there_is_told_with_what_to_do() {
    let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", socket.local_addr().unwrap());
    drop(socket);
    let client = Client::with_secrets(&url, &NO_TOKEN, &Given::default()).unwrap();
    let failure = client.get("/admin/v1/version").await.unwrap_err();
    assert_eq!(failure.code, 1);
    assert!(
        failure.message.contains("cannot be reached") && failure.message.contains(&url),
        "{}",
        failure.message
    );
}

#[tokio::test]
async fn the_words_of_a_real_admin_api_are_passed_on() {
    let token: Box<[u8]> = Box::from(&b"right"[..]);
    let admin = Admin { listen: "127.0.0.1:0".parse().unwrap(), token: Some(token.into()) };
    let version = Version {
        version: "1".into(),
        commit: "c".into(),
        built: Millis(0),
        config_digest: "d".into(),
        started_at: Millis(0),
    };
    let (_sender, gateway) = watch::channel(None);
    let server = nevertwice_admin::start(admin, version, gateway, None).await.unwrap();
    let url = format!("http://{}", server.addr());
    let given = |token| Given::default().with_env("NEVERTWICE_ADMIN_TOKEN", token);
    let right = client(&url, None, &given("right")).unwrap();
    assert_eq!(right.get("/admin/v1/version").await.unwrap()["config_digest"], "d");
    for (client, code, part) in [
        (client(&url, None, &Given::default()).unwrap(), 1, "asks for a token"),
        (client(&url, None, &given("wrong")).unwrap(), 1, "does not accept this token"),
    ] {
        let failure = client.get("/admin/v1/version").await.unwrap_err();
        assert!(failure.code == code && failure.message.contains(part), "{}", failure.message);
    }
    let failure = right.get("/admin/v1/refusals").await.unwrap_err();
    assert!(failure.code == 1 && failure.message.contains("STARTING"), "{}", failure.message);
    let failure = right.get("/admin/v1/version?x=1").await.unwrap_err();
    assert!(failure.code == 2 && failure.message.contains("takes no parameters"), "{}", failure.message);
    server.stop().await;
}

#[tokio::test]
async fn another_service_is_recognised() {
    let (client, _server) = canned(vec![Value::from("hello")]).await;
    assert_eq!(client.get("/").await.unwrap(), "hello");
    let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", socket.local_addr().unwrap());
    let mut server = JoinSet::new();
    server.spawn(async move {
        let (mut stream, _) = socket.accept().await.unwrap();
        stream.write_all(b"HTTP/1.1 404 Not Found\r\ncontent-length: 3\r\n\r\nno!").await.unwrap();
        let _ = stream.read(&mut [0; 1024]).await;
        stream
    });
    let client = Client::with_secrets(&url, &NO_TOKEN, &Given::default()).unwrap();
    let failure = client.get("/admin/v1/version").await.unwrap_err();
    assert!(failure.message.contains("is the URL right?"), "{}", failure.message);
}
