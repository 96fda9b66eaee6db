struct Secret;

#[mynah::tool]
async fn make() -> Secret {
    Secret
}

fn main() {
    let _ = mynah::Tool::new("make", "", serde_json::json!({})).handler(async |_, _| Secret);
}
