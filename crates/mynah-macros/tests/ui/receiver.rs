struct Crm;

impl Crm {
    #[mynah::tool]
    async fn count(&self) -> u32 {
        1
    }
}

fn main() {}
