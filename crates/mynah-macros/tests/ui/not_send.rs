use std::rc::Rc;

#[mynah::tool]
async fn weather(city: String) -> String {
    let shared = Rc::new(city);
    std::future::ready(()).await;
    shared.to_string()
}

fn main() {}
