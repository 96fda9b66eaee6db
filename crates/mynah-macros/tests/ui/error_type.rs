#[mynah::tool]
async fn weather(city: String) -> Result<String, Box<dyn std::error::Error>> {
    Ok(city)
}

fn main() {}
