//! The signature of a webhook: Standard Webhooks 1.0, the symmetric kind (`v1`).

use aws_lc_rs::hmac;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use nevertwice_config::checked::Secret;
use secrecy::ExposeSecret;

/// Signs.
pub(super) struct Signer(hmac::Key);

impl Signer {
    pub(super) fn new(secret: &Secret) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, secret.expose_secret()))
    }

    /// The value of `webhook-signature`.
    pub(super) fn sign(&self, id: &str, timestamp: i64, body: &[u8]) -> String {
        let mut context = hmac::Context::with_key(&self.0);
        context.update(format!("{id}.{timestamp}.").as_bytes());
        context.update(body);
        format!("v1,{}", STANDARD.encode(context.sign()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the specification's own libraries.
    #[test]
    fn the_signature_is_the_one_that_receivers_compute() {
        let secret = |bytes: &[u8]| Secret::new(bytes.into());
        let decoded = STANDARD.decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw");
        let signer = Signer::new(&secret(&decoded.unwrap_or_else(|e| unreachable!("{e}"))));
        let signature =
            signer.sign("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, br#"{"test": 2432232314}"#);
        assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
        assert_ne!(Signer::new(&secret(b"another")).sign("a", 1, b""), signer.sign("a", 1, b""));
    }
}
