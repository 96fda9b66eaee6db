struct Weather;

#[mynah::tool]
async fn weather(city: String) -> Weather {
    drop(city);
    Weather
}

fn main() {}
