#[mynah::tool]
async fn echo<T: serde::de::DeserializeOwned>(value: T) {
    drop(value);
}

fn main() {}
