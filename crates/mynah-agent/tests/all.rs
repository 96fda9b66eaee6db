//! The integration tests, as one program: it is compiled and linked once.

mod agents;
mod checks;
mod examples;
mod files;
mod goldens;
mod servers;
