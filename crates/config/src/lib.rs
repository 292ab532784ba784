//! From the text of a configuration file to values that cannot be wrong.
//!
//! [`load`] turns text into [`raw`] (what people write), [`check`] turns that into [`checked`] (what the program uses) and
//! collects every problem with its place, [`secret`] resolves references to secrets. Nothing later in the program sees an
//! unset value or a text that still has to be parsed.

pub mod checked;
