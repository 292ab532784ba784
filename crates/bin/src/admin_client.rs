//! Talks to the admin API of a running gateway. Plain HTTP: the admin listener speaks nothing else, and is on this machine
//! or at the end of a tunnel.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use clap::Args;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use http::{HeaderValue, Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use nevertwice_config::secret::{Process, SecretSource};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::exit::Failure;
use crate::table::on_one_line;

/// How long any answer may take.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The longest answer, in bytes.
const ANSWER_MAX_BYTES: usize = 256 * 1024 * 1024;
/// Where the token is when nothing is said.
const TOKEN_VARIABLE: &str = "NEVERTWICE_ADMIN_TOKEN";

/// Which gateway is meant.
#[derive(Args, Debug)]
pub struct AdminArgs {
    /// The admin API of the gateway
    #[arg(long, value_name = "URL", env = "NEVERTWICE_ADMIN", default_value = "http://127.0.0.1:9090")]
    admin: String,
    #[command(flatten)]
    token: TokenArgs,
}

/// The token of the admin API.
#[derive(Args, Debug)]
pub struct TokenArgs {
    /// Where the admin token is [default: the environment variable NEVERTWICE_ADMIN_TOKEN, if it is set]
    #[arg(long, value_name = "env:NAME|file:PATH")]
    token: Option<String>,
}

impl AdminArgs {
    /// A client for that gateway.
    ///
    /// # Errors
    /// When the URL or the reference to the token is wrong.
    pub fn client(&self) -> Result<Client, Failure> {
        Client::new(&self.admin, &self.token)
    }
}

impl TokenArgs {
    /// The value of the header. No message shows what was given: it may be the token itself.
    fn bearer(&self, secrets: &dyn SecretSource) -> Result<Option<HeaderValue>, Failure> {
        let token = match &self.token {
            None => secrets.env(TOKEN_VARIABLE).filter(|token| !token.trim().is_empty()),
            Some(reference) => Some(if let Some(name) = reference.strip_prefix("env:") {
                let unset =
                    || Failure::input(&format!("--token: the environment variable {name} is not set"));
                secrets.env(name).ok_or_else(unset)?
            } else if let Some(path) = reference.strip_prefix("file:") {
                let unread = |why: String| Failure::input(&format!("--token: cannot read {path}: {why}"));
                let bytes = secrets.file(Path::new(path)).map_err(|e| unread(e.to_string()))?;
                String::from_utf8(bytes).map_err(|_| unread("it is not text".into()))?
            } else {
                return Err(Failure::input(
                    "--token takes env:NAME or file:PATH: a token on the command line shows in the list of processes",
                ));
            }),
        };
        let Some(token) = token else { return Ok(None) };
        let token = token.trim();
        if token.is_empty() || !token.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(Failure::input("the admin token is empty or not made of visible ASCII characters"));
        }
        let mut value = HeaderValue::try_from(format!("Bearer {token}"))
            .map_err(|_| Failure::input("the admin token does not fit into a header"))?;
        value.set_sensitive(true);
        Ok(Some(value))
    }
}

/// A client of one gateway's admin API.
#[derive(Debug)]
pub struct Client {
    url: String,
    host: String,
    port: u16,
    authority: HeaderValue,
    prefix: String,
    bearer: Option<HeaderValue>,
}

impl Client {
    /// A client for the API at `url`.
    ///
    /// # Errors
    /// When the URL or the reference to the token is wrong.
    pub fn new(url: &str, token: &TokenArgs) -> Result<Self, Failure> {
        Self::with_secrets(url, token, &Process)
    }

    fn with_secrets(url: &str, token: &TokenArgs, secrets: &dyn SecretSource) -> Result<Self, Failure> {
        let wrong = |why: &str| Failure::input(&format!("--admin: {why}; write it as http://127.0.0.1:9090"));
        let uri: Uri = url.trim().parse().map_err(|_| wrong("this is no URL"))?;
        match uri.scheme_str() {
            None | Some("http") => {}
            Some("https") => {
                return Err(wrong(
                    "the admin API speaks plain HTTP: make a tunnel to another machine (ssh -L)",
                ));
            }
            Some(_) => return Err(wrong("only http is spoken")),
        }
        let authority = uri.authority().ok_or_else(|| wrong("the URL has no host"))?;
        if authority.as_str().contains('@') {
            return Err(wrong("a URL with a password shows in the list of processes: use --token"));
        }
        if uri.query().is_some() {
            return Err(wrong("the URL has a query"));
        }
        let host = authority.host();
        Ok(Self {
            url: format!("http://{authority}"),
            host: host.trim_start_matches('[').trim_end_matches(']').to_owned(),
            port: authority.port_u16().unwrap_or(80),
            authority: HeaderValue::from_str(authority.as_str()).map_err(|_| wrong("this is no host"))?,
            prefix: uri.path().trim_end_matches('/').to_owned(),
            bearer: token.bearer(secrets)?,
        })
    }

    /// Reads.
    ///
    /// # Errors
    /// When the gateway cannot be reached or refuses.
    pub async fn get(&self, path: &str) -> Result<Value, Failure> {
        self.call(Method::GET, path, Bytes::new()).await
    }

    /// Reads what need not be there: `None` where the refusal has the code `not_there`.
    ///
    /// # Errors
    /// When the gateway cannot be reached or refuses for another reason.
    pub async fn find(&self, path: &str, not_there: &str) -> Result<Option<Value>, Failure> {
        self.if_there(Method::GET, path, not_there).await
    }

    /// Does something to what need not be there: `None` where the refusal has the code `not_there`.
    ///
    /// # Errors
    /// When the gateway cannot be reached or refuses for another reason.
    pub async fn post_if_there(&self, path: &str, not_there: &str) -> Result<Option<Value>, Failure> {
        self.if_there(Method::POST, path, not_there).await
    }

    /// Does something.
    ///
    /// # Errors
    /// When the gateway cannot be reached or refuses.
    pub async fn post(&self, path: &str, body: Option<&Value>) -> Result<Value, Failure> {
        let body = body.map_or_else(Bytes::new, |body| body.to_string().into());
        self.call(Method::POST, path, body).await
    }

    /// Does something, with a body that is JSON already.
    ///
    /// # Errors
    /// When the gateway cannot be reached or refuses.
    pub async fn post_text(&self, path: &str, body: String) -> Result<Value, Failure> {
        self.call(Method::POST, path, body.into()).await
    }

    /// Which gateway it is.
    #[must_use]
    pub fn url(&self) -> String {
        format!("{}{}", self.url, self.prefix)
    }

    async fn call(&self, method: Method, path: &str, body: Bytes) -> Result<Value, Failure> {
        match self.ask(method, path, body).await? {
            (status, json) if status.is_success() => Ok(json),
            (status, json) => Err(refusal(status, &json)),
        }
    }

    async fn if_there(&self, method: Method, path: &str, not_there: &str) -> Result<Option<Value>, Failure> {
        match self.ask(method, path, Bytes::new()).await? {
            (status, json) if status.is_success() => Ok(Some(json)),
            (_, json) if json["code"] == not_there => Ok(None),
            (status, json) => Err(refusal(status, &json)),
        }
    }

    /// What the API says: what was asked for, or a refusal with its code.
    async fn ask(&self, method: Method, path: &str, body: Bytes) -> Result<(StatusCode, Value), Failure> {
        let failed = |what: String| Failure::failed(&format!("the admin API at {} {what}", self.url));
        let exchange = tokio::time::timeout(TIMEOUT, self.exchange(method, path, body)).await;
        let (status, bytes) = exchange
            .map_err(|_| failed(format!("did not answer within {} seconds", TIMEOUT.as_secs())))?
            .map_err(failed)?;
        let json: Option<Value> = serde_json::from_slice(&bytes).ok();
        if status == StatusCode::UNAUTHORIZED {
            return Err(failed(match &self.bearer {
                None => format!("asks for a token: set {TOKEN_VARIABLE}, or say where it is with --token"),
                Some(_) => "does not accept this token".into(),
            }));
        }
        match json {
            Some(json) if status.is_success() || json["code"].is_string() => Ok((status, json)),
            _ => {
                Err(failed(format!("answered {status} in a way that no nevertwice does: is the URL right?")))
            }
        }
    }

    /// One request on a connection of its own. The error completes the sentence `the admin API ...`.
    async fn exchange(&self, method: Method, path: &str, body: Bytes) -> Result<(StatusCode, Bytes), String> {
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await.map_err(|e| {
            format!("cannot be reached ({e}): is the gateway running, and is `admin` in its configuration?")
        })?;
        let broken = |e: &dyn std::fmt::Display| format!("broke off ({e})");
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|e| broken(&e))?;
        // ends with this call
        let mut driver = JoinSet::new();
        driver.spawn(connection);
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.prefix))
            .header(HOST, &self.authority)
            .header(CONTENT_TYPE, "application/json");
        if let Some(bearer) = &self.bearer {
            request = request.header(AUTHORIZATION, bearer);
        }
        let request = request.body(Full::new(body)).map_err(|e| broken(&e))?;
        let response = sender.send_request(request).await.map_err(|e| broken(&e))?;
        let status = response.status();
        let body =
            Limited::new(response.into_body(), ANSWER_MAX_BYTES).collect().await.map_err(|e| broken(&e))?;
        Ok((status, body.to_bytes()))
    }
}

/// The gateway's own words.
fn refusal(status: StatusCode, problem: &Value) -> Failure {
    let part = |name: &str| on_one_line(problem[name].as_str().unwrap_or("?"));
    let mut message = format!("{}: {} ({})", part("title"), part("detail"), part("code"));
    for problem in problem["problems"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        message.push_str("\n  ");
        message.push_str(&on_one_line(problem));
    }
    if status == StatusCode::BAD_REQUEST || status == StatusCode::UNPROCESSABLE_ENTITY {
        Failure::input(&message)
    } else {
        Failure::failed(&message)
    }
}

#[cfg(test)]
pub mod tests;
