//! The integration tests, as one program: it is compiled and linked once.

mod common;
mod hostile;
mod killed;
mod real;
mod serve;
