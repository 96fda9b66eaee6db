use mynah::ToolContext;

#[mynah::tool]
async fn weather(first: &ToolContext, second: &ToolContext) -> String {
    format!("{first:?} {second:?}")
}

fn main() {}
