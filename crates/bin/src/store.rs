//! From the configuration of the store to the store.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use nevertwice_config::checked::{
    Checked, ClientTls, Facade, Redis, RedisHost, RedisTopology, StoreConfig, TlsFiles,
};
use nevertwice_config::secret::{PEM_MAX_BYTES, regular_file};
use nevertwice_domain::clock::Clock;
use nevertwice_store::redis::{RedisOptions, RedisStore, Topology};
use nevertwice_store::sqlite::{SqliteOptions, SqliteStore};
use nevertwice_store::work::sqlite::SqliteWork;
use nevertwice_store::work::{JobStore, OperationStore};
use nevertwice_store::{RefusalStore, StoreError};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use secrecy::SecretString;

use crate::exit::Failure;

/// How much of a shared store is kept at hand; as much as the embedded one keeps.
const NEAR_BYTES: u64 = 64 * 1024 * 1024;

/// What of the configured store is needed.
pub struct Stores {
    /// Entries; `None` with the memory off.
    pub refusals: Option<Arc<dyn RefusalStore>>,
    /// Operations; `None` where no upstream has any.
    pub operations: Option<Arc<dyn OperationStore>>,
    /// Jobs; `None` where they are not served.
    pub jobs: Option<Arc<dyn JobStore>>,
}

/// What a configuration needs a store for.
#[derive(Clone, Copy)]
pub struct Needs {
    memory: bool,
    operations: bool,
    jobs: bool,
}

impl Needs {
    /// What this configuration needs.
    pub fn of(config: &Checked) -> Self {
        Self {
            memory: config.memory.is_some(),
            operations: config.upstreams.iter().any(|u| u.adapter.facade() == Facade::AzureDi),
            jobs: config.jobs.is_some(),
        }
    }

    /// Whether there is a store at all.
    pub fn any(self) -> bool {
        self.memory || self.has_work()
    }

    fn has_work(self) -> bool {
        self.operations || self.jobs
    }
}

/// Opens what is needed. What is on Redis opens whether or not the server is there, and is one store for all.
pub async fn open(config: &Checked, clock: Arc<dyn Clock>) -> Result<Stores, Failure> {
    let needs = Needs::of(config);
    match &config.store {
        _ if !needs.any() => Ok(Stores { refusals: None, operations: None, jobs: None }),
        StoreConfig::Redis(redis) => {
            let options = redis_options(redis)?;
            tracing::info!(url = %redis.address, prefix = redis.prefix, "the refusal store is on Redis");
            let store = Arc::new(RedisStore::start(options, clock).await);
            Ok(Stores {
                refusals: needs.memory.then(|| Arc::clone(&store) as Arc<dyn RefusalStore>),
                operations: needs.operations.then(|| Arc::clone(&store) as Arc<dyn OperationStore>),
                jobs: needs.jobs.then_some(store as Arc<dyn JobStore>),
            })
        }
        StoreConfig::Embedded { path } => {
            tracing::info!(path = %path.display(), "the refusal store is embedded");
            let mut stores = Stores { refusals: None, operations: None, jobs: None };
            if needs.memory {
                let (path, clock) = (path.clone(), Arc::clone(&clock));
                let open = move || SqliteStore::open(&path, clock, SqliteOptions::default());
                stores.refusals = Some(Arc::new(blocking(open).await?));
            }
            if needs.has_work() {
                let path = path.clone();
                let work = Arc::new(blocking(move || SqliteWork::open(&path, clock)).await?);
                stores.operations = needs.operations.then(|| Arc::clone(&work) as Arc<dyn OperationStore>);
                stores.jobs = needs.jobs.then_some(work as Arc<dyn JobStore>);
            }
            Ok(stores)
        }
    }
}

async fn blocking<T: Send + 'static>(
    open: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, Failure> {
    let opening = tokio::task::spawn_blocking(open);
    Ok(opening.await.context("opening the store failed")?.map_err(anyhow::Error::new)?)
}

/// What the store has to know. Reads the files that are named, and tries whether they are of any use.
pub fn redis_options(redis: &Redis) -> Result<RedisOptions, Failure> {
    let pair = |host: &RedisHost| (host.host.clone(), host.port);
    let topology = match &redis.address.topology {
        RedisTopology::One(host) => Topology::One { host: host.host.clone(), port: host.port },
        RedisTopology::Sentinel { sentinels, primary } => {
            Topology::Sentinel { sentinels: sentinels.iter().map(pair).collect(), primary: primary.clone() }
        }
        RedisTopology::Cluster(nodes) => Topology::Cluster { nodes: nodes.iter().map(pair).collect() },
    };
    let files = match &redis.address.tls {
        Some(tls) => Files::read(tls)?,
        None => Files::default(),
    };
    let credential = redis.credential.as_ref();
    Ok(RedisOptions {
        topology,
        tls: redis.address.tls.is_some(),
        ca: files.ca,
        client_cert: files.client,
        username: credential.and_then(|credential| credential.username.clone()),
        password: credential.map(|credential| credential.password.clone()),
        db: i64::from(redis.address.db),
        prefix: redis.prefix.clone(),
        read: redis.read,
        write: redis.write,
        near_bytes: NEAR_BYTES,
    })
}

/// PEM files of the store.
#[derive(Default)]
struct Files {
    ca: Option<Vec<u8>>,
    client: Option<(Vec<u8>, SecretString)>,
}

impl Files {
    fn read(tls: &ClientTls) -> Result<Self, Failure> {
        let mut files = Self::default();
        if let Some(path) = &tls.ca {
            let pem = read("ca", path)?;
            let mut roots = RootCertStore::empty();
            for certificate in certificates("ca", path, &pem)? {
                roots.add(certificate).map_err(|error| unfit("ca", path, &error))?;
            }
            files.ca = Some(pem);
        }
        if let Some(TlsFiles { cert, key }) = &tls.client {
            let (cert_pem, key_pem) = (read("client_cert", cert)?, read("client_key", key)?);
            let chain = certificates("client_cert", cert, &cert_pem)?;
            let private =
                PrivateKeyDer::from_pem_slice(&key_pem).map_err(|error| unfit("client_key", key, &error))?;
            let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
            ClientConfig::builder_with_provider(provider)
                .with_safe_default_protocol_versions()
                .map_err(anyhow::Error::new)?
                .with_root_certificates(RootCertStore::empty())
                .with_client_auth_cert(chain, private)
                .map_err(|error| unfit("client_key", key, &error))?;
            let key_pem = String::from_utf8(key_pem).map_err(|_| unfit("client_key", key, &"not a text"))?;
            files.client = Some((cert_pem, key_pem.into()));
        }
        Ok(files)
    }
}

fn read(name: &str, path: &Path) -> Result<Vec<u8>, Failure> {
    match regular_file(path, PEM_MAX_BYTES + 1) {
        Ok(bytes) if bytes.len() > PEM_MAX_BYTES => {
            Err(unfit(name, path, &format!("has more than {PEM_MAX_BYTES} bytes")))
        }
        Ok(bytes) => Ok(bytes),
        Err(error) if error.kind() == std::io::ErrorKind::Unsupported => {
            Err(unfit(name, path, &"is not a regular file"))
        }
        Err(error) => Err(unfit(name, path, &format!("cannot be read: {}", error.kind()))),
    }
}

fn certificates(name: &str, path: &Path, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, Failure> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match found {
        Ok(found) if found.is_empty() => Err(unfit(name, path, &"holds no certificate in PEM")),
        Ok(found) => Ok(found),
        Err(error) => Err(unfit(name, path, &error)),
    }
}

/// A file that was named wrongly is wrong input, as the rest of the configuration is.
fn unfit(name: &str, path: &Path, why: &dyn std::fmt::Display) -> Failure {
    Failure::input(&format!("store.redis.tls.{name}: {}: {why}", path.display()))
}
