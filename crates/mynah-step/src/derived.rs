//! Typed tools: the schema of a tool derived from the type of its arguments.

use std::future::ready;

use mynah_data::ToolOutcome;
use schemars::{JsonSchema, generate::SchemaSettings};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use serde_path_to_error::{Path, Segment};

use crate::{BoxFuture, IntoOutcome, Tool, ToolContext, ToolFn};

/// What the attributes expand to. Not for use by hand.
#[doc(hidden)]
pub mod private {
    use std::marker::PhantomData;
    pub use std::time::Duration;

    use mynah_data::ToolOutcome;
    pub use {schemars, serde};

    pub use super::typed as tool;
    use crate::{
        IntoOutcome,
        typed::{Fallible, Plain},
    };

    /// The type that a function returned, whose marker is looked for: first that of a `Result` with an error, then any other.
    #[derive(Debug)]
    pub struct Returned<R>(PhantomData<R>);

    impl<R> Returned<R> {
        pub fn of(_: &R) -> Self {
            Self(PhantomData)
        }
    }

    pub trait AsFallible {
        fn marker(&self) -> PhantomData<Fallible<Plain>> {
            PhantomData
        }
    }

    impl<T: IntoOutcome<Plain>, E: std::error::Error> AsFallible for Returned<Result<T, E>> {}

    pub trait AsAny<R> {
        fn marker<M>(&self) -> PhantomData<M>
        where
            R: IntoOutcome<M>,
        {
            PhantomData
        }
    }

    impl<R> AsAny<R> for &Returned<R> {}

    pub fn outcome<R: IntoOutcome<M>, M>(returned: R, _: PhantomData<M>) -> ToolOutcome {
        returned.into_outcome()
    }
}

impl Tool {
    /// A tool whose arguments are a Rust type.
    ///
    /// The schema that the model reads, and that its arguments are checked against, is derived from `A`. Doc comments become
    /// descriptions, an `Option` may be left out. The handler may return anything that is [`IntoOutcome`].
    ///
    /// ```
    /// # use mynah_step as mynah;
    /// use mynah::Tool;
    /// use mynah::schemars::JsonSchema;
    /// use serde::{Deserialize, Serialize};
    ///
    /// #[derive(Deserialize, JsonSchema)]
    /// #[schemars(crate = "mynah::schemars")]
    /// struct Origin {
    ///     /// Name of the city, in English.
    ///     city: String,
    ///     days: Option<u32>,
    /// }
    ///
    /// #[derive(Serialize)]
    /// struct Weather { city: String, celsius: f64 }
    ///
    /// let weather = Tool::typed::<Origin, _>("get_weather", "The weather in a city", async |place, _context| {
    ///     Weather { city: place.city, celsius: 21.0 }
    /// });
    /// assert_eq!(weather.spec().schema["required"], serde_json::json!(["city"]));
    /// ```
    ///
    /// A crate that depends on `schemars` itself derives without `#[schemars(crate = "mynah::schemars")]`.
    pub fn typed<A, M>(
        name: impl Into<String>,
        description: impl Into<String>,
        run: impl ToolFn<A, M>,
    ) -> Self
    where
        A: DeserializeOwned + JsonSchema + 'static,
        M: 'static,
    {
        typed(name, description, move |arguments: A, context| run.run(arguments, context))
    }

    /// A typed tool whose handler gets a clone of some state with each call, as an `Arc` or a connection pool.
    ///
    /// ```
    /// # use mynah_step as mynah;
    /// use std::sync::Arc;
    /// use mynah::Tool;
    /// use mynah::schemars::JsonSchema;
    ///
    /// #[derive(serde::Deserialize, JsonSchema)]
    /// #[schemars(crate = "mynah::schemars")]
    /// struct Dish { name: String }
    ///
    /// struct Db;
    ///
    /// impl Db {
    ///     async fn price(&self, _dish: &str) -> u32 { 2 }
    /// }
    ///
    /// let db = Arc::new(Db);
    /// let price = Tool::typed_with_state("price", "The price of a dish", db, async |db, dish: Dish, _context| {
    ///     db.price(&dish.name).await
    /// });
    /// ```
    pub fn typed_with_state<S, A, Fut, R, M>(
        name: impl Into<String>,
        description: impl Into<String>,
        state: S,
        run: impl Fn(S, A, ToolContext) -> Fut + Send + Sync + 'static,
    ) -> Self
    where
        S: Clone + Send + Sync + 'static,
        A: DeserializeOwned + JsonSchema + 'static,
        Fut: Future<Output = R> + Send + 'static,
        R: IntoOutcome<M> + 'static,
        M: 'static,
    {
        typed(name, description, move |arguments, context| run(state.clone(), arguments, context))
    }

    /// A typed tool that is run as [`Tool::blocking`] runs one: on a thread, for what computes or blocks.
    pub fn typed_blocking<A, R, M>(
        name: impl Into<String>,
        description: impl Into<String>,
        run: impl Fn(A, ToolContext) -> R + Send + Sync + 'static,
    ) -> Self
    where
        A: DeserializeOwned + JsonSchema + 'static,
        R: IntoOutcome<M>,
        M: 'static,
    {
        Self::new(name, description, arguments_schema::<A>()).blocking(move |arguments, context| {
            match read::<A>(arguments) {
                Ok(arguments) => run(arguments, context).into_outcome(),
                Err(misfit) => misfit,
            }
        })
    }
}

#[doc(hidden)]
pub fn typed<A, Fut, R, M>(
    name: impl Into<String>,
    description: impl Into<String>,
    run: impl Fn(A, ToolContext) -> Fut + Send + Sync + 'static,
) -> Tool
where
    A: DeserializeOwned + JsonSchema + 'static,
    Fut: Future<Output = R> + Send + 'static,
    R: IntoOutcome<M> + 'static,
    M: 'static,
{
    Tool::new(name, description, arguments_schema::<A>()).with_handler(std::sync::Arc::new(
        move |arguments, context| -> BoxFuture<ToolOutcome> {
            match read::<A>(arguments) {
                Ok(arguments) => {
                    let returned = run(arguments, context);
                    Box::pin(async move { returned.await.into_outcome() })
                }
                Err(misfit) => Box::pin(ready(misfit)),
            }
        },
    ))
}

/// The arguments as their type. What fits the schema may still not fit the type: a check of its own, or a number that it cannot hold.
fn read<A: DeserializeOwned>(mut arguments: Value) -> Result<A, ToolOutcome> {
    A::deserialize(&arguments).or_else(|error| {
        // JSON Schema takes 2.0 for an integer, serde does not.
        make_whole(&mut arguments);
        A::deserialize(&arguments).map_err(|_| misfit::<A>(&arguments, &error))
    })
}

/// Makes integers of numbers like 2.0.
fn make_whole(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(make_whole),
        Value::Object(members) => members.values_mut().for_each(make_whole),
        Value::Number(number) if number.is_f64() => {
            // Up to 2^53 each integer has a number of its own.
            let whole = number.as_f64().filter(|n| n.fract() == 0.0 && n.abs() <= 2_f64.powi(53));
            *value = whole.map_or(value.take(), |n| Value::from(n as i64));
        }
        _ => {}
    }
}

fn misfit<A: DeserializeOwned>(arguments: &Value, error: &serde_json::Error) -> ToolOutcome {
    // An error of `serde` has no place, so the arguments are read again.
    let found = serde_path_to_error::deserialize::<_, A>(arguments).err();
    let place = found.map_or_else(String::new, |error| pointer(error.path()));
    let colon = if place.is_empty() { "" } else { ": " };
    ToolOutcome::error(format!("invalid_arguments: {place}{colon}{error}"))
}

/// A place as a JSON Pointer.
fn pointer(path: &Path) -> String {
    let step = |segment: &Segment| match segment {
        Segment::Seq { index } => format!("/{index}"),
        Segment::Map { key } => format!("/{}", key.replace('~', "~0").replace('/', "~1")),
        Segment::Enum { variant } => format!("/{variant}"),
        Segment::Unknown => String::new(),
    };
    path.iter().map(step).collect()
}

/// The JSON Schema of a type as it is read from JSON: draft 2020-12, without `$schema` and the type's name. Types that it consists of
/// are written where they are used; only recursive ones are in `$defs`.
pub fn schema_of<T: JsonSchema>() -> Value {
    let settings = SchemaSettings::draft2020_12().for_deserialize().with(|settings| {
        settings.meta_schema = None;
        settings.inline_subschemas = true;
    });
    let mut schema = settings.into_generator().into_root_schema_for::<T>().to_value();
    if let Some(schema) = schema.as_object_mut() {
        schema.shift_remove("title");
    }
    schema
}

/// The schema of a tool's arguments: an object, whose description is that of the tool.
fn arguments_schema<A: JsonSchema>() -> Value {
    let mut schema = schema_of::<A>();
    if let Some(schema) = schema.as_object_mut() {
        schema.shift_remove("description");
        schema.entry("type").or_insert_with(|| json!("object"));
    }
    schema
}
