//! The integration tests, as one program: it is compiled and linked once.

mod calculator;
mod common;
mod fetch;
mod files;
mod hostile;
mod shell;
mod small;
