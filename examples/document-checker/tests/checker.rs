//! The checker over a real socket: every sample, both ways of sending it, limits, and garbage.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use http::header::{ALLOW, CONTENT_TYPE, HOST};
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use nevertwice_document_checker::{BODY_LIMIT, Checker, samples};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// Far more than any step takes; only keeps a broken test from hanging.
const PATIENCE: Duration = Duration::from_secs(60);

const RAW: &str = "application/octet-stream";

struct Service {
    checker: Arc<Checker>,
    cancel: CancellationToken,
    serving: JoinSet<()>,
}

impl Service {
    async fn start() -> Result<Self> {
        Self::start_slowed(Duration::ZERO).await
    }

    async fn start_slowed(delay: Duration) -> Result<Self> {
        let checker = Arc::new(Checker::bind("127.0.0.1:0").await?.with_delay(delay));
        let cancel = CancellationToken::new();
        let mut serving = JoinSet::new();
        serving.spawn(Arc::clone(&checker).run(cancel.clone()));
        Ok(Self { checker, cancel, serving })
    }

    async fn classify(&self, content_type: &str, body: impl Into<Bytes>) -> Result<Answer> {
        send(self.checker.addr(), Method::POST, "/classify", Some(content_type), body.into()).await
    }

    async fn stop(mut self) -> Result<()> {
        self.cancel.cancel();
        timeout(PATIENCE, self.serving.join_next()).await?.context("it did not run")??;
        ensure!(TcpStream::connect(self.checker.addr()).await.is_err(), "the port is still open");
        Ok(())
    }
}

#[derive(Debug, PartialEq)]
struct Answer {
    status: StatusCode,
    allow: Option<String>,
    body: Value,
}

impl Answer {
    fn code(&self) -> Option<&str> {
        self.body["error"]["code"].as_str()
    }
}

async fn send(
    addr: SocketAddr,
    method: Method,
    path: &str,
    content_type: Option<&str>,
    body: Bytes,
) -> Result<Answer> {
    let mut request = Request::builder().method(method).uri(path).header(HOST, "checker");
    if let Some(content_type) = content_type {
        request = request.header(CONTENT_TYPE, content_type);
    }
    let request = request.body(Full::new(body))?;

    let exchange = async {
        let stream = TcpStream::connect(addr).await?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        let received = async move {
            let (head, body) = sender.send_request(request).await?.into_parts();
            Ok((head, body.collect().await?.to_bytes()))
        };
        let ((head, body), ()) = tokio::try_join!(received, connection)?;
        anyhow::Ok((head, body))
    };
    let (head, body) = timeout(PATIENCE, exchange).await??;
    let allow = head.headers.get(ALLOW).map(|value| value.to_str().map(str::to_owned)).transpose()?;
    let body = serde_json::from_slice(&body).with_context(|| format!("{} bytes", body.len()))?;
    Ok(Answer { status: head.status, allow, body })
}

fn form(file_name: &str, document: &[u8]) -> (String, Vec<u8>) {
    let mut body = Vec::new();
    body.extend_from_slice(b"--edge\r\ncontent-disposition: form-data; name=\"note\"\r\n\r\nnot a file\r\n");
    let head =
        format!("--edge\r\ncontent-disposition: form-data; name=\"file\"; filename=\"{file_name}\"\r\n\r\n");
    body.extend_from_slice(head.as_bytes());
    body.extend_from_slice(document);
    body.extend_from_slice(b"\r\n--edge--\r\n");
    ("multipart/form-data; boundary=edge".to_owned(), body)
}

/// The status and the word (kind or code) that each sample must get.
fn expected(name: &str) -> Option<(u16, &'static str)> {
    Some(match name {
        "qpdf-minimal.pdf" | "pypdf-crazyones.pdf" => (200, "pdf"),
        "pillow-hopper.jpg" => (200, "jpeg"),
        "qpdf-bad-data.pdf" | "qpdf-content-stream-errors.pdf" | "qpdf-issue-100.pdf" => {
            (400, "corrupt_document")
        }
        "pillow-truncated_image.png" | "pillow-truncated_jpeg.jpg" => (400, "corrupt_document"),
        "poi-invalid.xlsx" => (415, "unsupported_media_type"),
        "pypdf-encrypted-file.pdf" => (422, "unprocessable_document"),
        _ => return None,
    })
}

#[tokio::test]
async fn every_sample_gets_its_verdict_raw_and_as_a_form() -> Result<()> {
    let service = Service::start().await?;
    for sample in samples() {
        let (status, word) = expected(sample.name).context(sample.name)?;
        let raw = service.classify(RAW, sample.bytes).await?;
        assert_eq!(raw.status, status, "{}: {raw:?}", sample.name);
        assert_eq!(raw.status.is_success(), sample.good, "{}", sample.name);
        let found = if sample.good { raw.body["kind"].as_str() } else { raw.code() };
        assert_eq!(found, Some(word), "{}: {raw:?}", sample.name);

        let (content_type, body) = form(sample.name, sample.bytes);
        assert_eq!(service.classify(&content_type, body).await?, raw, "{}", sample.name);
    }
    assert_eq!(service.checker.calls(), 2 * samples().len() as u64);
    service.stop().await
}

#[tokio::test]
async fn the_answer_says_what_the_document_is() -> Result<()> {
    let service = Service::start().await?;
    for sample in samples().iter().filter(|sample| sample.good) {
        let answer = service.classify("application/pdf", sample.bytes).await?;
        assert_eq!(answer.body["bytes"], sample.bytes.len());
        if answer.body["kind"] == "pdf" {
            assert_eq!(answer.body["pages"], 1);
        } else {
            assert_eq!((&answer.body["width"], &answer.body["height"]), (&128.into(), &128.into()));
        }
    }
    service.stop().await
}

#[tokio::test]
async fn only_requests_to_classify_are_counted() -> Result<()> {
    let service = Service::start().await?;
    let addr = service.checker.addr();
    let health = send(addr, Method::GET, "/healthz", None, Bytes::new()).await?;
    assert_eq!(health.status, 200);
    assert_eq!(send(addr, Method::GET, "/nowhere", None, Bytes::new()).await?.status, 404);
    assert_eq!(service.checker.calls(), 0);

    let wrong = send(addr, Method::GET, "/classify", None, Bytes::new()).await?;
    assert_eq!((wrong.status.as_u16(), wrong.allow.as_deref()), (405, Some("POST")));
    let empty = send(addr, Method::POST, "/classify?lang=en", None, Bytes::new()).await?;
    assert_eq!((empty.status.as_u16(), empty.code()), (400, Some("corrupt_document")));
    assert_eq!(service.checker.calls(), 2);
    service.stop().await
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused_and_one_at_the_limit_is_read() -> Result<()> {
    let service = Service::start().await?;
    let over = service.classify(RAW, vec![b'x'; BODY_LIMIT + 1]).await?;
    assert_eq!((over.status.as_u16(), over.code()), (413, Some("document_too_large")));
    let at = service.classify(RAW, vec![b'x'; BODY_LIMIT]).await?;
    assert_eq!((at.status.as_u16(), at.code()), (415, Some("unsupported_media_type")));
    service.stop().await
}

#[tokio::test]
async fn broken_forms_and_foreign_types_are_refused() -> Result<()> {
    let service = Service::start().await?;
    let minimal = samples().iter().find(|sample| sample.good).context("no good sample")?;
    let (content_type, whole) = form("a.pdf", minimal.bytes);

    let cut = service.classify(&content_type, whole[..whole.len() - 20].to_vec()).await?;
    assert_eq!((cut.status.as_u16(), cut.code()), (400, Some("malformed_request")));
    let unbounded = service.classify("multipart/form-data", whole).await?;
    assert_eq!((unbounded.status.as_u16(), unbounded.code()), (400, Some("malformed_request")));
    let no_file = "--edge\r\ncontent-disposition: form-data; name=\"a\"\r\n\r\nb\r\n--edge--\r\n";
    let no_file = service.classify(&content_type, no_file).await?;
    assert_eq!((no_file.status.as_u16(), no_file.code()), (400, Some("malformed_request")));
    let foreign = service.classify("application/json", minimal.bytes).await?;
    assert_eq!((foreign.status.as_u16(), foreign.code()), (415, Some("unsupported_media_type")));
    service.stop().await
}

#[tokio::test]
async fn garbage_gets_an_answer_and_the_service_lives_on() -> Result<()> {
    let service = Service::start().await?;
    // A fixed xorshift: the same damage in every run.
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for sample in samples() {
        for round in 0..12 {
            let mut bytes = sample.bytes.to_vec();
            let length = bytes.len() as u64;
            for _ in 0..=round {
                let at = usize::try_from(next() % length)?;
                bytes[at] = next().to_le_bytes()[0];
            }
            if round % 3 == 0 {
                bytes.truncate(usize::try_from(next() % length)?);
            }
            let answer = service.classify(RAW, bytes.clone()).await?;
            assert!(matches!(answer.status.as_u16(), 200 | 400 | 415 | 422), "{}: {answer:?}", sample.name);
            assert_eq!(service.classify(RAW, bytes).await?, answer, "{} round {round}", sample.name);
        }
    }
    let health = send(service.checker.addr(), Method::GET, "/healthz", None, Bytes::new()).await?;
    assert_eq!(health.status, 200);
    service.stop().await
}

#[tokio::test]
async fn the_delay_is_added_to_every_document() -> Result<()> {
    let delay = Duration::from_millis(150);
    let service = Service::start_slowed(delay).await?;
    let began = std::time::Instant::now();
    assert_eq!(service.classify(RAW, "P6 x").await?.status, 400);
    assert!(began.elapsed() >= delay);
    service.stop().await
}
