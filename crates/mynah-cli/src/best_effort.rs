//! Writing that does not stop the work.

use std::io::{self, ErrorKind, Write};

/// A writer for work that continues without a reader: a run costs money, and its end matters more
/// than its output. The first failure is kept for the end, and nothing is written after it.
pub(crate) struct BestEffortWriter<W> {
    out: W,
    failed: Option<io::Error>,
}

impl<W: Write> BestEffortWriter<W> {
    pub(crate) const fn new(out: W) -> Self {
        Self { out, failed: None }
    }

    /// The result of writing.
    pub(crate) fn end(&mut self) -> io::Result<()> {
        self.failed.take().map_or(Ok(()), Err)
    }

    fn attempt<T>(
        &mut self,
        given_up: T,
        act: impl FnOnce(&mut W) -> io::Result<T>,
    ) -> io::Result<T> {
        if self.failed.is_none() {
            match act(&mut self.out) {
                Err(error) if error.kind() != ErrorKind::Interrupted => self.failed = Some(error),
                done => return done,
            }
        }
        Ok(given_up)
    }
}

impl<W: Write> Write for BestEffortWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.attempt(bytes.len(), |out| out.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.attempt((), W::flush)
    }
}
