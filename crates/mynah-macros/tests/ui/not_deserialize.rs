struct Secret;

#[mynah::tool]
async fn open(secret: Secret) -> u32 {
    drop(secret);
    1
}

fn main() {}
