//! Adapters: one module for each wire format.
//!
//! Today there is one, [`scripted`]: a model that plays what it is told to, for tests, demonstrations and scenario files.

pub mod scripted;
