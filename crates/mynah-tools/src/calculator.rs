//! Arithmetic.

use mynah_step::Tool;
use num_bigint::BigInt;
use num_rational::BigRational;
use num_traits::{One, Pow, Signed, ToPrimitive, Zero};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::typed::{refused, typed};

/// The longest expression, in bytes.
const MAX_LENGTH: usize = 1_000;
/// How deep parentheses, signs and powers may nest.
const MAX_DEPTH: u32 = 64;
/// The largest numerator or denominator, in bits.
const MAX_BITS: u64 = 4_096;
/// How many digits a result has after the leading zeros of its fraction.
const DIGITS: u32 = 30;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Args {
    /// The expression, such as `(19.99 * 3 + 4.50) * 1.19`.
    expression: String,
}

#[derive(Serialize)]
struct Calculated {
    result: String,
    exact: bool,
}

/// A tool that evaluates an arithmetic expression: `calculator`.
///
/// It knows `+ - * / % ^`, parentheses, `pi`, `e` and the functions `abs ceil cos exp floor ln log10 log2 max min round sin sqrt tan`.
/// Sums, products, quotients and integer powers are exact: `0.1 + 0.2` is `0.3`. Functions such as `sqrt` have the precision of a
/// 64-bit float, and `exact` is false for what they touch.
///
/// Length, nesting and the size of numbers are bounded.
///
/// ```
/// assert_eq!(mynah_tools::calculator().name(), "calculator");
/// ```
pub fn calculator() -> Tool {
    let description = "Evaluates an arithmetic expression. \
        Operators: + - * / % (remainder) ^ (power) and parentheses. Constants: pi, e. \
        Functions: abs, ceil, cos, exp, floor, ln, log10, log2, max(a, b, …), min(a, b, …), round(x) or \
        round(x, decimals), sin, sqrt, tan; angles in radians. Write numbers without thousands separators.";
    let calculate = async |args: Args, _| match evaluate(&args.expression) {
        Ok(value) => Ok(value.show()),
        Err(why) => refused(why),
    };
    typed("calculator", description, calculate).idempotent(1)
}

type Evaluated<T = Value> = Result<T, String>;

fn evaluate(expression: &str) -> Evaluated {
    if expression.len() > MAX_LENGTH {
        let length = expression.len();
        return Err(format!(
            "the expression has {length} bytes; at most {MAX_LENGTH} are allowed, so calculate in steps"
        ));
    }
    let mut parser = Parser { text: expression, at: 0, depth: 0 };
    let value = parser.sum()?;
    match parser.peek() {
        None => Ok(value),
        Some(_) => Err(parser.unexpected("an operator or the end")),
    }
}

/// A number, and whether it is the exact result.
#[derive(Clone)]
struct Value {
    number: BigRational,
    is_exact: bool,
}

impl Value {
    fn exact(number: BigRational) -> Self {
        Self { number, is_exact: true }
    }

    fn approximate(number: f64) -> Evaluated {
        match BigRational::from_float(number) {
            Some(number) => Self { number, is_exact: false }.bounded(),
            None if number.is_nan() => Err("the result is not a real number".to_owned()),
            None => Err(too_large()),
        }
    }

    fn bounded(self) -> Evaluated {
        let bits = self.number.numer().bits().max(self.number.denom().bits());
        if bits > MAX_BITS { Err(too_large()) } else { Ok(self) }
    }

    fn float(&self) -> Evaluated<f64> {
        self.number.to_f64().filter(|float| float.is_finite()).ok_or_else(too_large)
    }

    fn integer(&self) -> Option<i64> {
        if self.number.is_integer() { self.number.to_integer().to_i64() } else { None }
    }

    fn with(
        self,
        other: Self,
        operate: impl FnOnce(BigRational, BigRational) -> BigRational,
    ) -> Evaluated {
        let is_exact = self.is_exact && other.is_exact;
        Self { number: operate(self.number, other.number), is_exact }.bounded()
    }

    fn map(self, operate: impl FnOnce(BigRational) -> BigRational) -> Evaluated {
        Self { number: operate(self.number), is_exact: self.is_exact }.bounded()
    }

    fn power(self, exponent: Self) -> Evaluated {
        if self.number.is_zero() && exponent.number.is_negative() {
            return Err(by_zero());
        }
        let bits = self.number.numer().bits().max(self.number.denom().bits());
        match exponent.integer().and_then(|exponent| i32::try_from(exponent).ok()) {
            Some(power) if bits.saturating_mul(u64::from(power.unsigned_abs())) <= MAX_BITS => {
                let is_exact = self.is_exact && exponent.is_exact;
                Self { number: Pow::pow(self.number, power), is_exact }.bounded()
            }
            _ => match self.float()?.powf(exponent.float()?) {
                0.0 if !self.number.is_zero() => Err(too_large()),
                power => Self::approximate(power),
            },
        }
    }

    fn show(self) -> Calculated {
        let number = self.number;
        if !self.is_exact {
            // As many digits as the float is precise to.
            let result =
                number.to_f64().map_or_else(|| number.to_string(), |float| float.to_string());
            return Calculated { result, exact: false };
        }
        if number.is_integer() {
            return Calculated { result: number.to_integer().to_string(), exact: true };
        }
        let zeros = (number.denom().bits().saturating_sub(number.numer().bits()) * 3) / 10;
        let places = DIGITS + u32::try_from(zeros).unwrap_or_default();
        let scaled = number.clone() * BigRational::from_integer(ten_to(places));
        let exact = scaled.is_integer();
        let digits = scaled.round().to_integer().abs().to_string();
        let places = places as usize;
        let digits = format!("{digits:0>width$}", width = places + 1);
        let (whole, fraction) = digits.split_at(digits.len() - places);
        let sign = if number.is_negative() { "-" } else { "" };
        let fraction = fraction.trim_end_matches('0');
        let point = if fraction.is_empty() { "" } else { "." };
        Calculated { result: format!("{sign}{whole}{point}{fraction}"), exact }
    }
}

fn ten_to(power: u32) -> BigInt {
    BigInt::from(10).pow(power)
}

fn too_large() -> String {
    "the result is too large or too small to calculate with".to_owned()
}

fn by_zero() -> String {
    "division by zero".to_owned()
}

struct Parser<'e> {
    text: &'e str,
    at: usize,
    depth: u32,
}

impl<'e> Parser<'e> {
    fn sum(&mut self) -> Evaluated {
        let mut value = self.product()?;
        loop {
            value = if self.take("+") {
                value.with(self.product()?, |a, b| a + b)?
            } else if self.take("-") {
                value.with(self.product()?, |a, b| a - b)?
            } else {
                return Ok(value);
            };
        }
    }

    fn product(&mut self) -> Evaluated {
        let mut value = self.signed()?;
        loop {
            let operate: fn(BigRational, BigRational) -> BigRational = if self.take("*") {
                value = value.with(self.signed()?, |a, b| a * b)?;
                continue;
            } else if self.take("/") {
                |a, b| a / b
            } else if self.take("%") {
                |a, b| a % b
            } else {
                return Ok(value);
            };
            let divisor = self.signed()?;
            if divisor.number.is_zero() {
                return Err(by_zero());
            }
            value = value.with(divisor, operate)?;
        }
    }

    fn signed(&mut self) -> Evaluated {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(format!(
                "the expression nests deeper than {MAX_DEPTH} levels; calculate in steps"
            ));
        }
        let value = if self.take("-") {
            self.signed()?.map(|number| -number)
        } else if self.take("+") {
            self.signed()
        } else {
            self.power()
        };
        self.depth -= 1;
        value
    }

    fn power(&mut self) -> Evaluated {
        let base = self.operand()?;
        if self.take("^") || self.take("**") { base.power(self.signed()?) } else { Ok(base) }
    }

    fn operand(&mut self) -> Evaluated {
        match self.peek() {
            Some('(') => {
                self.expect("(")?;
                let value = self.sum()?;
                self.expect(")")?;
                Ok(value)
            }
            Some(c) if c.is_ascii_digit() || c == '.' => self.number(),
            Some(c) if c.is_ascii_alphabetic() => self.named(),
            _ => Err(self.unexpected("a number")),
        }
    }

    fn number(&mut self) -> Evaluated {
        let begin = self.at;
        let whole = self.word(|c| c.is_ascii_digit());
        let fraction = if self.rest().starts_with('.') {
            self.at += 1;
            self.word(|c| c.is_ascii_digit())
        } else {
            ""
        };
        let mut exponent = 0_i32;
        // An `e` without following digits is the constant, and has no operator before it.
        if self.rest().starts_with(['e', 'E']) {
            self.at += 1;
            let sign = if self.rest().starts_with(['+', '-']) { 1 } else { 0 };
            let digits_at = self.at;
            self.at += sign;
            self.word(|c| c.is_ascii_digit());
            exponent = self.text[digits_at..self.at].parse().map_err(|_| self.no_number(begin))?;
        }
        let digits = format!("{whole}{fraction}");
        let digits: BigInt = digits.parse().map_err(|_| self.no_number(begin))?;
        let scale = i64::from(exponent) - i64::try_from(fraction.len()).unwrap_or(i64::MAX);
        let power = u32::try_from(scale.unsigned_abs()).ok().filter(|power| *power <= 1_200);
        let factor = ten_to(power.ok_or_else(too_large)?);
        let number = match scale < 0 {
            true => BigRational::new(digits, factor),
            false => BigRational::from_integer(digits * factor),
        };
        Value::exact(number).bounded()
    }

    fn no_number(&self, begin: usize) -> String {
        format!("{:?} is not a number", &self.text[begin..self.at])
    }

    fn named(&mut self) -> Evaluated {
        let name = self.word(|c| c.is_ascii_alphanumeric() || c == '_');
        match name {
            "pi" => return Value::approximate(std::f64::consts::PI),
            "e" => return Value::approximate(std::f64::consts::E),
            _ => {}
        }
        let known = Function::named(name)
            .ok_or_else(|| format!("there is no function or constant {name:?}"))?;
        self.expect("(")?;
        let mut arguments = vec![self.sum()?];
        while self.take(",") {
            arguments.push(self.sum()?);
        }
        self.expect(")")?;
        known.apply(name, arguments)
    }

    fn rest(&self) -> &'e str {
        &self.text[self.at..]
    }

    fn word(&mut self, belongs: impl Fn(char) -> bool) -> &'e str {
        let rest = self.rest();
        let word = &rest[..rest.find(|c| !belongs(c)).unwrap_or(rest.len())];
        self.at += word.len();
        word
    }

    fn peek(&mut self) -> Option<char> {
        self.word(|c| c.is_ascii_whitespace());
        self.rest().chars().next()
    }

    fn take(&mut self, token: &str) -> bool {
        self.peek();
        let rest = self.rest();
        // `**` is a power, not a product.
        let found = rest.starts_with(token) && !(token == "*" && rest.starts_with("**"));
        self.at += if found { token.len() } else { 0 };
        found
    }

    fn expect(&mut self, token: &str) -> Evaluated<()> {
        if self.take(token) { Ok(()) } else { Err(self.unexpected(&format!("{token:?}"))) }
    }

    fn unexpected(&mut self, wanted: &str) -> String {
        match self.peek() {
            Some(found) => format!("expected {wanted} at byte {}, found {found:?}", self.at),
            None => format!("expected {wanted}, found the end"),
        }
    }
}

enum Function {
    Exact(fn(BigRational) -> BigRational),
    Float(fn(f64) -> f64),
    Choice(fn(BigRational, BigRational) -> BigRational),
    Round,
}

impl Function {
    fn named(name: &str) -> Option<Self> {
        Some(match name {
            "abs" => Self::Exact(|x| x.abs()),
            "ceil" => Self::Exact(|x| x.ceil()),
            "floor" => Self::Exact(|x| x.floor()),
            "cos" => Self::Float(f64::cos),
            "exp" => Self::Float(f64::exp),
            "ln" => Self::Float(f64::ln),
            "log10" => Self::Float(f64::log10),
            "log2" => Self::Float(f64::log2),
            "sin" => Self::Float(f64::sin),
            "sqrt" => Self::Float(f64::sqrt),
            "tan" => Self::Float(f64::tan),
            "max" => Self::Choice(|a, b| a.max(b)),
            "min" => Self::Choice(|a, b| a.min(b)),
            "round" => Self::Round,
            _ => return None,
        })
    }

    fn apply(self, name: &str, mut arguments: Vec<Value>) -> Evaluated {
        let count = arguments.len();
        let wrong = || format!("{name} does not take {count} arguments");
        let last = arguments.pop().ok_or_else(wrong)?;
        match self {
            Self::Choice(choose) => {
                arguments.into_iter().try_fold(last, |chosen, other| chosen.with(other, choose))
            }
            Self::Exact(operate) if count == 1 => last.map(operate),
            Self::Float(operate) if count == 1 => Value::approximate(operate(last.float()?)),
            Self::Round if count == 1 => last.map(|x| x.round()),
            Self::Round if count == 2 => {
                let places =
                    last.integer().and_then(|n| u32::try_from(n).ok()).filter(|n| *n <= 100);
                let places = places.ok_or("round takes 0 to 100 decimals")?;
                let value = arguments.pop().ok_or_else(wrong)?;
                let scale = BigRational::new(ten_to(places), BigInt::one());
                value.map(|number| (number * &scale).round() / scale)
            }
            _ => Err(wrong()),
        }
    }
}
