//! The configuration: no text makes it panic, and no message about one shows a secret.

#![no_main]

use libfuzzer_sys::fuzz_target;
use nevertwice_config::secret::Given;

const SECRET: &str = "correct-horse-battery-staple";

fuzz_target!(|text: &str| {
    let secrets = Given::default().with_env("S", SECRET);
    match nevertwice_config::from_text(text, "fuzz.yaml", &secrets) {
        Ok(loaded) => assert!(!format!("{:?}", loaded.checked).contains(SECRET)),
        Err(problems) => assert!(!problems.to_string().contains(SECRET)),
    }
});
