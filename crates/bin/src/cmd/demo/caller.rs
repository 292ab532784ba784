//! A plain HTTP caller: what an engine would do.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::Context;
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::Request;
use hyper_util::rt::TokioIo;
use nevertwice_document_checker::Sample;
use tokio::net::TcpStream;

/// How long one document may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// One tenant.
pub struct Caller {
    pub address: SocketAddr,
    pub key: &'static str,
}

/// What it got.
pub struct Answer {
    pub status: u16,
    pub hit: bool,
    pub body: Bytes,
    pub took: Duration,
    pub trace_id: String,
}

impl Caller {
    /// Sends a document to `/classify`.
    pub async fn classify(&self, sample: &Sample, began: Instant) -> anyhow::Result<Answer> {
        tokio::time::timeout(PATIENCE, self.call(sample, began))
            .await
            .context("the gateway did not answer")?
    }

    async fn call(&self, sample: &Sample, began: Instant) -> anyhow::Result<Answer> {
        let stream = TcpStream::connect(self.address).await?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        let trace_id = format!("{:016x}{:016x}", fastrand::u64(1..), fastrand::u64(1..));
        let request = Request::post("/classify")
            .header("host", self.address.to_string())
            .header("authorization", format!("Bearer {}", self.key))
            .header("content-type", "application/octet-stream")
            .header("traceparent", format!("00-{trace_id}-0000000000000001-00"))
            .body(Full::new(Bytes::from_static(sample.bytes)))?;
        let exchange = async {
            let response = sender.send_request(request).await?;
            let (head, body) = response.into_parts();
            let body =
                Limited::new(body, 1 << 20).collect().await.map_err(anyhow::Error::from_boxed)?.to_bytes();
            drop(sender);
            anyhow::Ok((head, body))
        };
        let (exchange, _) = tokio::join!(exchange, connection);
        let (head, body) = exchange?;
        let hit = head.headers.get("x-negative-cache").is_some_and(|v| v == "HIT");
        Ok(Answer { status: head.status.as_u16(), hit, body, took: began.elapsed(), trace_id })
    }
}
