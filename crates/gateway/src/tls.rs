//! TLS settings from PEM files, for both sides.

use std::path::Path;
use std::sync::Arc;

use nevertwice_config::checked::TlsFiles;
use nevertwice_config::secret::{PEM_MAX_BYTES, regular_file};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore, ServerConfig};

fn pem(path: &Path) -> Result<Vec<u8>, String> {
    let bytes =
        regular_file(path, PEM_MAX_BYTES + 1).map_err(|error| format!("{}: {error}", path.display()))?;
    if bytes.len() > PEM_MAX_BYTES {
        return Err(format!("{}: more than {PEM_MAX_BYTES} bytes", path.display()));
    }
    Ok(bytes)
}

fn chain(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem(path)?).collect();
    match certificates {
        Ok(certificates) if certificates.is_empty() => {
            Err(format!("{}: holds no certificate", path.display()))
        }
        Ok(certificates) => Ok(certificates),
        Err(error) => Err(format!("{}: {error}", path.display())),
    }
}

fn key(path: &Path) -> Result<PrivateKeyDer<'static>, String> {
    PrivateKeyDer::from_pem_slice(&pem(path)?).map_err(|error| format!("{}: {error}", path.display()))
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

/// The server side: HTTP/2 and HTTP/1.1 by ALPN.
pub(crate) fn server(files: &TlsFiles, h2: bool) -> Result<Arc<ServerConfig>, String> {
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|e| e.to_string())?
        .with_no_client_auth()
        .with_single_cert(chain(&files.cert)?, key(&files.key)?)
        .map_err(|e| format!("{} with {}: {e}", files.cert.display(), files.key.display()))?;
    if h2 {
        config.alpn_protocols.push(b"h2".to_vec());
    }
    config.alpn_protocols.push(b"http/1.1".to_vec());
    Ok(Arc::new(config))
}

/// The client side: the authorities of `ca`, or the system's.
pub(crate) fn client(ca: Option<&Path>, client: Option<&TlsFiles>) -> Result<ClientConfig, String> {
    let mut roots = RootCertStore::empty();
    match ca {
        Some(path) => {
            for certificate in chain(path)? {
                roots.add(certificate).map_err(|e| format!("{}: {e}", path.display()))?;
            }
        }
        None => {
            // a machine without authorities can still call plain http; https then fails with a clear reason
            for certificate in rustls_native_certs::load_native_certs().certs {
                let _ = roots.add(certificate);
            }
        }
    }
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|e| e.to_string())?
        .with_root_certificates(roots);
    match client {
        Some(files) => builder
            .with_client_auth_cert(chain(&files.cert)?, key(&files.key)?)
            .map_err(|e| format!("{} with {}: {e}", files.cert.display(), files.key.display())),
        None => Ok(builder.with_no_client_auth()),
    }
}
