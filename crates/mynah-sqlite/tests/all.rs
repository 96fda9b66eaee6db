//! The integration tests, as one program: it is compiled and linked once.

mod columns;
mod conformance;
mod hostile;
mod removal;
mod sqlite;
mod tables;
mod tamper;
mod targets;
