//! One call of a webhook. It follows no redirect, and connects to nothing but the addresses that were looked at.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderValue, Request, StatusCode, Uri, header};
use http_body_util::Full;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::{Failure, Webhooks, is_public};

/// The longest head of an answer, in fields.
const ANSWER_FIELDS: usize = 100;
/// How much of an answer is read at once.
const BUFFER_BYTES: usize = 16 << 10;

fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::Failed(error.to_string())
}

impl Webhooks {
    /// Ends well with an answer of 2xx.
    pub(super) async fn call(&self, to: &Uri, id: &str, body: &Bytes) -> Result<(), Failure> {
        let authority = to.authority().ok_or(Failure::Refused("it names no host"))?;
        let is_tls = to.scheme_str() == Some("https");
        let host = authority.host().trim_start_matches('[').trim_end_matches(']');
        let port = authority.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        let stream = self.connect(host, port).await?;
        let request = self.request(to, authority.as_str(), id, body)?;
        let status = match is_tls {
            false => exchange(stream, request).await?,
            true => {
                let name = ServerName::try_from(host.to_owned()).map_err(failed)?;
                let connector = TlsConnector::from(Arc::clone(&self.tls));
                exchange(connector.connect(name, stream).await.map_err(failed)?, request).await?
            }
        };
        if status.is_success() { Ok(()) } else { Err(Failure::Failed(format!("answered {status}"))) }
    }

    /// Connects to the first address that may be called and answers.
    async fn connect(&self, host: &str, port: u16) -> Result<TcpStream, Failure> {
        let found = tokio::net::lookup_host((host, port)).await.map_err(failed)?;
        let allowed: Vec<SocketAddr> =
            found.filter(|at| self.allow_private || is_public(at.ip().to_canonical())).collect();
        if allowed.is_empty() {
            return Err(Failure::Refused("its host has no address that is public"));
        }
        let stream = TcpStream::connect(&*allowed).await.map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        Ok(stream)
    }

    fn request(&self, to: &Uri, host: &str, id: &str, body: &Bytes) -> Result<Request<Full<Bytes>>, Failure> {
        // each call has its own time, and so its own signature: receivers refuse old ones
        let timestamp = self.clock.now().0.div_euclid(1000);
        let path = to.path_and_query().map_or("/", |path| path.as_str());
        Request::post(path)
            .header(header::HOST, host)
            .header(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))
            .header(
                header::USER_AGENT,
                HeaderValue::from_static(concat!("nevertwice/", env!("CARGO_PKG_VERSION"))),
            )
            .header(header::CONNECTION, HeaderValue::from_static("close"))
            .header("webhook-id", id)
            .header("webhook-timestamp", timestamp)
            .header("webhook-signature", self.signer.sign(id, timestamp, body))
            .body(Full::new(body.clone()))
            .map_err(failed)
    }
}

/// Sends the request and reads the head of the answer; the rest of it is nobody's business.
async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send,
    request: Request<Full<Bytes>>,
) -> Result<StatusCode, Failure> {
    let mut builder = http1::Builder::new();
    builder.max_headers(ANSWER_FIELDS).max_buf_size(BUFFER_BYTES);
    let (mut sender, connection) = builder.handshake(TokioIo::new(stream)).await.map_err(failed)?;
    let answer = sender.send_request(request);
    tokio::pin!(connection, answer);
    tokio::select! {
        biased;
        answer = &mut answer => Ok(answer.map_err(failed)?.status()),
        ended = &mut connection => {
            ended.map_err(failed)?;
            // the answer may have come with the connection's end
            let answer = answer.await;
            Ok(answer.map_err(failed)?.status())
        }
    }
}
