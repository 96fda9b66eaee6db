struct City(String);

#[derive(serde::Deserialize)]
struct Street(String);

/// A type that cannot be read from JSON.
#[mynah::tool]
async fn weather(city: City) -> String {
    city.0
}

/// A type without a schema.
#[mynah::tool]
async fn houses(street: Street) -> String {
    street.0
}

fn main() {}
