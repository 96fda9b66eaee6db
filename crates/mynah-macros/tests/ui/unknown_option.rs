#[mynah::tool(idempotnet)]
async fn one() -> u32 {
    1
}

#[mynah::tool(retries = 2)]
async fn two() -> u32 {
    2
}

#[mynah::tool(timeout = "10 seconds")]
async fn three() -> u32 {
    3
}

#[mynah::tool(name = "größe")]
async fn four() -> u32 {
    4
}

#[mynah::tool(manual, manual)]
async fn five() -> u32 {
    5
}

#[mynah::tool(replay = "again")]
async fn six() -> u32 {
    6
}

#[mynah::tool(approval = "maybe")]
async fn seven() -> u32 {
    7
}

#[mynah::tool(timeout = 10)]
async fn eight() -> u32 {
    8
}

fn main() {}
