//! The admin API over real connections, in front of a real gateway whose store was filled by hand.

mod access;
mod forget;
mod jobs;
mod life;
mod read;
mod world;
