//! HTTP/2 by prior knowledge (RFC 9113, section 3.3). The frames are a library's: what is tested is that the
//! same document comes through, not the framing.

use std::net::SocketAddr;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::{Answer, PATIENCE};
use crate::wire::Headers;

/// A `POST` over HTTP/2 on a connection of its own; panics if there is no answer.
pub async fn h2_post(
    addr: SocketAddr,
    path: &str,
    headers: &[(&str, &str)],
    body: impl Into<Bytes>,
) -> Answer {
    let exchange = exchange(addr, path, headers, body.into());
    match timeout(PATIENCE, exchange).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(error)) => panic!("client: h2 POST {path}: {error}"),
        Err(_) => panic!("client: h2 POST {path}: timed out"),
    }
}

async fn exchange(
    addr: SocketAddr,
    path: &str,
    headers: &[(&str, &str)],
    body: Bytes,
) -> Result<Answer, Box<dyn std::error::Error + Send + Sync>> {
    let stream = TcpStream::connect(addr).await?;
    let (mut sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
    let mut request = hyper::Request::post(format!("http://{addr}{path}"));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(Full::new(body))?;
    let answer = async {
        let (head, mut body) = sender.send_request(request).await?.into_parts();
        let mut content = Vec::new();
        let mut complete = true;
        while let Some(frame) = body.frame().await {
            match frame.map(hyper::body::Frame::into_data) {
                Ok(Ok(data)) => content.extend_from_slice(&data),
                Ok(Err(_)) => {}
                Err(_) => {
                    complete = false;
                    break;
                }
            }
        }
        let fields = head.headers.iter().map(|(name, value)| (name.to_string(), value.as_bytes().to_vec()));
        let headers: Headers = fields.collect();
        let mut answer = Answer::from_head(head.status.as_u16(), b"", Bytes::new(), headers, Vec::new());
        answer.body = content.into();
        answer.raw_body = answer.body.clone();
        answer.complete = complete;
        Ok(answer)
    };
    tokio::pin!(answer, connection);
    tokio::select! {
        answer = &mut answer => answer,
        ended = &mut connection => match ended {
            // The connection may end in good order with the answer; what has arrived can still be read.
            Ok(()) => answer.await,
            Err(error) => Err(error.into()),
        },
    }
}
