//! Options by their JSON names: for values that no setter takes.

#![allow(dead_code, clippy::expect_used, reason = "a helper may fail the test that calls it")]

use mynah::{Chat, Engine, Generate, Options, Replay, Resume, Step, StepTurn, Turn};
use serde_json::{Value, json};

pub(crate) trait Param: Sized {
    fn add(self, options: Options) -> Self;

    fn param(self, name: &str, value: impl Into<Value>) -> Self {
        let value: Value = value.into();
        self.add(Options::from_json(json!({ name: value })).expect("an object"))
    }
}

impl Param for Options {
    fn add(self, options: Options) -> Self {
        self.overlay(options)
    }
}

impl Param for Engine {
    fn add(self, options: Options) -> Self {
        self.defaults(options)
    }
}

macro_rules! params {
    ($($call:ty)*) => {
        $(impl Param for $call {
            fn add(self, options: Options) -> Self {
                self.options(options)
            }
        })*
    };
}

params! { Chat Generate Replay Resume Step StepTurn Turn }
