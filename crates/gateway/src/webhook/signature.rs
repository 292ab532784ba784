//! The signature of a webhook: Standard Webhooks 1.0, the symmetric kind (`v1`).

use aws_lc_rs::hmac;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use nevertwice_config::checked::Secret;
use secrecy::ExposeSecret;

/// What a secret begins with that is written as the specification has it.
const PREFIX: &[u8] = b"whsec_";

/// Signs.
pub(super) struct Signer(hmac::Key);

impl Signer {
    /// With this secret: `whsec_` and base64, as the specification writes one, or else the bytes as they are.
    pub(super) fn new(secret: &Secret) -> Self {
        let bytes = secret.expose_secret();
        let decoded = bytes.strip_prefix(PREFIX).and_then(|text| STANDARD.decode(text).ok());
        Self(hmac::Key::new(hmac::HMAC_SHA256, decoded.as_deref().unwrap_or(bytes)))
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
        let secret = |text: &str| Secret::new(text.as_bytes().to_vec().into_boxed_slice());
        let signer = Signer::new(&secret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"));
        let signature =
            signer.sign("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, br#"{"test": 2432232314}"#);
        assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
        assert_ne!(Signer::new(&secret("another")).sign("a", 1, b""), signer.sign("a", 1, b""));
    }
}
