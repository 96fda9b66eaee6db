//! The calculator, in normal use.

use serde_json::json;

use crate::common::call;

async fn calculated(expression: &str) -> (String, bool) {
    let value = call(&mynah_tools::calculator(), json!({"expression": expression})).await;
    let value = value.unwrap_or_else(|error| panic!("{expression}: {error}"));
    (value["result"].as_str().unwrap().to_owned(), value["exact"].as_bool().unwrap())
}

#[tokio::test]
async fn sums_products_quotients_and_powers_are_exact() {
    for (expression, expected) in [
        ("0.1 + 0.2", "0.3"),
        ("(19.99 * 3 + 4.50) * 1.19", "76.7193"),
        ("1 - 2 - 3", "-4"),
        ("2 + 3 * 4 ^ 2 / 8", "8"),
        ("-2 ^ 2", "-4"),
        ("2 ^ -2", "0.25"),
        ("2 ** 3 ^ 2", "512"),
        ("2 ^ 200", "1606938044258990275541962092341162602522202993782792835301376"),
        (
            "123456789012345678901234567890 * 987654321098765432109876543210",
            "121932631137021795226185032733622923332237463801111263526900",
        ),
        ("7 % 3 - -7 % 3", "2"),
        ("1e-40 * 5", "0.0000000000000000000000000000000000000005"),
        ("max(1, 5/2, 2) + min(3, 4)", "5.5"),
        ("round(2.345, 2)", "2.35"),
        ("floor(-1.5) + ceil(1.2) + abs(-3) + round(0.5)", "4"),
        (".5+1.", "1.5"),
    ] {
        assert_eq!(calculated(expression).await, (expected.to_owned(), true), "{expression}");
    }
}

#[tokio::test]
async fn what_is_rounded_says_so() {
    for (expression, expected) in [
        ("1/3", "0.333333333333333333333333333333"),
        ("-2/3", "-0.666666666666666666666666666667"),
        ("sqrt(2)", "1.4142135623730951"),
        ("round(pi, 4)", "3.1416"),
        ("2 ^ 0.5", "1.4142135623730951"),
        ("ln(e) + log10(1000) + log2(8)", "7"),
        ("round(1.0000001 ^ 10000000, 5)", "2.71828"),
    ] {
        assert_eq!(calculated(expression).await, (expected.to_owned(), false), "{expression}");
    }
}

proptest::proptest! {
    #[test]
    fn any_expression_is_calculated_or_refused_without_a_panic(
        expression in r"([0-9.e+*/%^(), -]|(sqrt|ln|round|max|min|abs|exp|pi|e|tan)\(?|\PC){0,60}",
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let found = runtime.block_on(call(&mynah_tools::calculator(), json!({"expression": expression})));
        if let Err(error) = found {
            assert!(!error.contains("handler_raised"), "{expression:?}: {error}");
        }
    }
}
