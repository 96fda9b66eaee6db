/// Waits.
#[mynah::tool]
async fn wait() -> u32 {
    1
}

/// Stops.
#[mynah::tool]
async fn stop() -> u32 {
    2
}

fn tools<M: ?Sized>(_: impl mynah::IntoTools<M>) {}

fn main() {
    tools([wait, stop]);
}
