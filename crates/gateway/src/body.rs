//! Request bodies that are held until it is known what to do with them: in memory up to a bound, then in an unlinked
//! temporary file, and streamed out again from there.

pub(crate) mod budget;
pub(crate) mod held;
pub(crate) mod outbound;
pub(crate) mod spill;
pub(crate) mod turns;
