struct Crm;

#[mynah::tools]
impl Crm {
    #[tool]
    fn count(&self) -> u32;
}

fn main() {}
