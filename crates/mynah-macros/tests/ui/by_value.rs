struct Crm;

#[mynah::tools]
impl Crm {
    #[tool]
    async fn close(self) {}

    #[tool]
    async fn change(&mut self) {}
}

struct Empty;

#[mynah::tools]
impl Empty {}

fn main() {}
