//! TLS around the plain stub and the plain client: certificates of every kind, a front that ends TLS before a stub,
//! and a dialer that speaks TLS for a client. What is inside stays as raw as it is without TLS.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, date_time_ymd};
use tokio::io::{AsyncRead, AsyncWrite, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio_rustls::rustls::crypto::{CryptoProvider, aws_lc_rs};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// A certificate with its key.
#[derive(Debug)]
pub struct Identity {
    certificate: CertificateDer<'static>,
    key: KeyPair,
    pem: String,
}

impl Identity {
    /// One that nobody vouches for but itself.
    pub fn self_signed(names: &[&str]) -> Self {
        let key = key();
        let certificate = made(params(names).self_signed(&key));
        Self { pem: certificate.pem(), certificate: certificate.der().clone(), key }
    }

    /// Writes `NAME.crt` and `NAME.key` in PEM and tells where.
    pub fn write(&self, dir: &Path, name: &str) -> (PathBuf, PathBuf) {
        let (certificate, key) = (dir.join(format!("{name}.crt")), dir.join(format!("{name}.key")));
        write(&certificate, &self.pem);
        write(&key, &self.key.serialize_pem());
        (certificate, key)
    }

    fn key_der(&self) -> PrivateKeyDer<'static> {
        made(PrivateKeyDer::try_from(self.key.serialize_der()))
    }
}

/// An authority that signs certificates.
#[derive(Debug)]
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
    pem: String,
}

impl Authority {
    /// A new one.
    #[expect(clippy::new_without_default, reason = "each is another one")]
    pub fn new() -> Self {
        let (mut params, key) = (params(&[]), key());
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // OpenSSL takes a certificate for its own issuer when both have the same name
        params.distinguished_name.push(DnType::CommonName, "authority of a test");
        let certificate = made(params.self_signed(&key));
        let (pem, certificate) = (certificate.pem(), certificate.der().clone());
        Self { issuer: Issuer::new(params, key), certificate, pem }
    }

    /// A certificate for these names or addresses.
    pub fn issue(&self, names: &[&str]) -> Identity {
        self.sign(params(names))
    }

    /// A certificate whose time is over.
    pub fn issue_expired(&self, names: &[&str]) -> Identity {
        let mut params = params(names);
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(2021, 1, 1);
        self.sign(params)
    }

    /// Writes its certificate in PEM and tells where.
    pub fn write(&self, dir: &Path, name: &str) -> PathBuf {
        let path = dir.join(format!("{name}.pem"));
        write(&path, &self.pem);
        path
    }

    fn sign(&self, params: CertificateParams) -> Identity {
        let key = key();
        let certificate = made(params.signed_by(&key, &self.issuer));
        Identity { pem: certificate.pem(), certificate: certificate.der().clone(), key }
    }

    fn roots(&self) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        made(roots.add(self.certificate.clone()));
        roots
    }
}

/// Ends TLS in front of a plain listener. Gone, with its connections, when dropped.
#[derive(Debug)]
pub struct Front(Relay);

impl Front {
    /// One that anybody may connect to.
    pub fn start(behind: SocketAddr, identity: &Identity) -> Self {
        let config = server().with_no_client_auth();
        Self::with(
            behind,
            made(config.with_single_cert(vec![identity.certificate.clone()], identity.key_der())),
        )
    }

    /// One that asks for a client certificate of this authority.
    pub fn start_asking(behind: SocketAddr, identity: &Identity, clients: &Authority) -> Self {
        let verifier = WebPkiClientVerifier::builder_with_provider(clients.roots().into(), provider());
        let config = server().with_client_cert_verifier(made(verifier.build()));
        Self::with(
            behind,
            made(config.with_single_cert(vec![identity.certificate.clone()], identity.key_der())),
        )
    }

    fn with(behind: SocketAddr, config: ServerConfig) -> Self {
        let acceptor = TlsAcceptor::from(Arc::new(config));
        Self(Relay::start(move |client, seen| {
            let acceptor = acceptor.clone();
            async move {
                let client = acceptor.accept(client).await?;
                seen.done(client.get_ref().1.alpn_protocol());
                join(client, TcpStream::connect(behind).await?).await
            }
        }))
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.0.addr
    }

    /// How many handshakes were completed.
    pub fn handshakes(&self) -> u64 {
        self.0.seen.handshakes.load(Ordering::SeqCst)
    }

    /// How many connections came.
    pub fn connections(&self) -> u64 {
        self.0.seen.connections.load(Ordering::SeqCst)
    }
}

/// Takes plain connections and passes them on over TLS. Gone, with its connections, when dropped.
#[derive(Debug)]
pub struct Dialer(Relay);

impl Dialer {
    /// One that trusts this authority, connects to `localhost` and offers these protocols (ALPN).
    pub fn start(to: SocketAddr, trust: &Authority, protocols: &[&str]) -> Self {
        let config = ClientConfig::builder_with_provider(provider());
        let config = made(config.with_safe_default_protocol_versions());
        let mut config = config.with_root_certificates(trust.roots()).with_no_client_auth();
        config.alpn_protocols = protocols.iter().map(|p| p.as_bytes().to_vec()).collect();
        let connector = TlsConnector::from(Arc::new(config));
        Self(Relay::start(move |client, seen| {
            let connector = connector.clone();
            async move {
                let name = made(ServerName::try_from("localhost"));
                let server = connector.connect(name, TcpStream::connect(to).await?).await?;
                seen.done(server.get_ref().1.alpn_protocol());
                join(client, server).await
            }
        }))
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.0.addr
    }

    /// The protocol that the server chose last; empty if none.
    pub fn protocol(&self) -> String {
        self.0.seen.protocol.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// A listener whose connections are handled on a thread of its own, so that a test that blocks does not stop it.
struct Relay {
    addr: SocketAddr,
    seen: Arc<Seen>,
    runtime: Option<Runtime>,
}

impl std::fmt::Debug for Relay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Relay").field("addr", &self.addr).finish_non_exhaustive()
    }
}

#[derive(Default)]
struct Seen {
    connections: AtomicU64,
    handshakes: AtomicU64,
    protocol: Mutex<String>,
}

impl Seen {
    fn done(&self, protocol: Option<&[u8]>) {
        let name = String::from_utf8_lossy(protocol.unwrap_or_default()).into_owned();
        *self.protocol.lock().unwrap_or_else(PoisonError::into_inner) = name;
        self.handshakes.fetch_add(1, Ordering::SeqCst);
    }
}

impl Relay {
    fn start<F>(handle: impl Fn(TcpStream, Arc<Seen>) -> F + Send + 'static) -> Self
    where
        F: Future<Output = io::Result<()>> + Send + 'static,
    {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("tls-relay")
            .enable_all()
            .build();
        let runtime = made(runtime);
        let socket = made(std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)));
        made(socket.set_nonblocking(true));
        let addr = made(socket.local_addr());
        let seen = Arc::<Seen>::default();
        let counts = Arc::clone(&seen);
        let handle_of_runtime = runtime.handle().clone();
        runtime.spawn(async move {
            let listener = made(TcpListener::from_std(socket));
            while let Ok((client, _)) = listener.accept().await {
                counts.connections.fetch_add(1, Ordering::SeqCst);
                let conversation = handle(client, Arc::clone(&counts));
                handle_of_runtime.spawn(async move {
                    // A peer that does not like the other's certificate ends the connection; that is the test.
                    let _ = conversation.await;
                });
            }
        });
        Self { addr, seen, runtime: Some(runtime) }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // A runtime must not wait for its tasks inside another runtime.
            runtime.shutdown_background();
        }
    }
}

async fn join(
    mut one: impl AsyncRead + AsyncWrite + Unpin,
    mut other: impl AsyncRead + AsyncWrite + Unpin,
) -> io::Result<()> {
    copy_bidirectional(&mut one, &mut other).await.map(|_| ())
}

fn params(names: &[&str]) -> CertificateParams {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    made(CertificateParams::new(names))
}

fn key() -> KeyPair {
    made(KeyPair::generate())
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}

fn server() -> tokio_rustls::rustls::ConfigBuilder<ServerConfig, tokio_rustls::rustls::WantsVerifier> {
    made(ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions())
}

fn write(path: &Path, text: &str) {
    if let Err(error) = std::fs::write(path, text) {
        panic!("tls: cannot write {}: {error}", path.display());
    }
}

fn made<T, E: std::fmt::Debug>(result: Result<T, E>) -> T {
    result.unwrap_or_else(|error| panic!("tls: {error:?}"))
}
