"""Kinds of change between two calls of a captured step: a table of small steps, each with what changes.

A row makes a step of one tensor and a function that changes something the step sees. It is called twice: one
step is captured, the other is not.
"""

# The steps are functions of their own, whatever they call.
# ruff: noqa: PLW0108

from __future__ import annotations

import enum
import functools
import math
import operator
import types
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

Step = Callable[[torch.Tensor], Any]
Change = Callable[[], Any]
Made = tuple[Step, Change]
Make = Callable[[], Made]

ROWS: dict[str, Make] = {}
# What is found at the next check of the whole step only, as docs/captured-steps.md says.
DOCUMENTED: dict[str, Make] = {}


def row(name: str) -> Callable[[Make], Make]:
    return lambda make: ROWS.setdefault(name, make)


def documented(name: str) -> Callable[[Make], Make]:
    return lambda make: DOCUMENTED.setdefault(name, make)


class Thing:
    """An object with attributes, some of its class."""

    scale: Any
    shared = 2.0

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)

    def scaled(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale


class Slotted:
    __slots__ = ("scale",)

    def __init__(self, scale: float) -> None:
        self.scale = scale


@dataclass
class Config:
    scale: float = 2.0
    inner: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Frozen:
    scale: float


class Mode(enum.Enum):
    DOUBLE = 2
    TRIPLE = 3


@row("what a closure holds")
def closure() -> Made:
    scale = 2.0

    def change() -> None:
        nonlocal scale
        scale = 3.0

    return lambda x: x * scale, change


@row("the loss function of the closure")
def loss_of_closure() -> Made:
    loss_fn = F.mse_loss

    def change() -> None:
        nonlocal loss_fn
        loss_fn = F.l1_loss

    return lambda x: loss_fn(x, x * 2), change


@row("the loss module of the closure, by an attribute")
def loss_module() -> Made:
    loss_fn = nn.SmoothL1Loss()
    return lambda x: loss_fn(x, x * 2 + 0.3), lambda: setattr(loss_fn, "beta", 0.1)


@row("a function in a closure of another function")
def nested_closure() -> Made:
    scale = 2.0

    def inner(x: torch.Tensor) -> torch.Tensor:
        return x * scale

    def change() -> None:
        nonlocal scale
        scale = 3.0

    return lambda x: inner(x) + 1, change


def _in_namespace(source: str, **values: Any) -> dict[str, Any]:
    names: dict[str, Any] = {"torch": torch, "F": F, "math": math, **values}
    exec(source, names)
    return names


@row("a global")
def global_value() -> Made:
    names = _in_namespace("def step(x): return x * scale", scale=2.0)
    return names["step"], lambda: names.update(scale=3.0)


@row("a global that was not there")
def global_that_appears() -> Made:
    names = _in_namespace("def step(x): return x * round(2)")
    return names["step"], lambda: names.update(round=lambda x: 5)


@row("a global function")
def global_function() -> Made:
    names = _in_namespace("def f(x): return x * 2\ndef step(x): return f(x)")
    return names["step"], lambda: names.update(f=lambda x: x * 3)


@row("a global of a function that the step calls")
def global_of_function() -> Made:
    names = _in_namespace("def f(x): return x * scale\ndef step(x): return f(x)", scale=2.0)
    return names["step"], lambda: names.update(scale=3.0)


@row("a global, where a function deep inside names it")
def global_deep() -> Made:
    source = "def g(x): return x * scale\ndef f(x): return g(x)\ndef step(x): return f(x)"
    names = _in_namespace(source, scale=2.0)
    return names["step"], lambda: names.update(scale=3.0)


@row("a function's code")
def code() -> Made:
    names = _in_namespace(
        "def f(x): return x * 2\ndef g(x): return x * 3\ndef step(x): return f(x)"
    )
    return names["step"], lambda: setattr(names["f"], "__code__", names["g"].__code__)


@row("a function's defaults")
def defaults() -> Made:
    names = _in_namespace("def f(x, s=2.0): return x * s\ndef step(x): return f(x)")
    return names["step"], lambda: setattr(names["f"], "__defaults__", (3.0,))


@row("a function's default that is written to")
def default_container() -> Made:
    names = _in_namespace("def step(x, s=[2.0]): return x * s[0]")
    return names["step"], lambda: names["step"].__defaults__[0].__setitem__(0, 3.0)


@row("a function's keyword default")
def keyword_default() -> Made:
    names = _in_namespace("def step(x, *, s=2.0): return x * s")
    return names["step"], lambda: names["step"].__kwdefaults__.update(s=3.0)


@row("a function's attribute")
def function_attribute() -> Made:
    def step(x: torch.Tensor) -> torch.Tensor:
        return x * step.scale  # type: ignore[attr-defined]

    step.scale = 2.0  # type: ignore[attr-defined]
    return step, lambda: setattr(step, "scale", 3.0)


@row("a name in a module")
def name_in_module() -> Made:
    settings = types.ModuleType("settings")
    settings.scale = 2.0  # type: ignore[attr-defined]
    return lambda x: x * settings.scale, lambda: setattr(settings, "scale", 3.0)


@row("a function in a module")
def function_in_module() -> Made:
    tools = types.ModuleType("tools")
    exec("scale = 2.0\ndef f(x): return x * scale", vars(tools))
    return lambda x: tools.f(x), lambda: setattr(tools, "scale", 3.0)


@row("an object's attribute")
def attribute() -> Made:
    thing: Any = Thing(scale=2.0)
    return lambda x: x * thing.scale, lambda: setattr(thing, "scale", 3.0)


@row("an attribute of an object's object")
def deep_attribute() -> Made:
    thing: Any = Thing(a=Thing(b=Thing(scale=2.0)))
    return lambda x: x * thing.a.b.scale, lambda: setattr(thing.a.b, "scale", 3.0)


@row("an attribute by its name in a text")
def named_attribute() -> Made:
    thing: Any = Thing(scale_1=2.0)
    return lambda x: x * getattr(thing, f"scale_{1}"), lambda: setattr(thing, "scale_1", 3.0)


@row("an attribute that a method names")
def method_attribute() -> Made:
    thing: Any = Thing(scale=2.0)
    return lambda x: thing.scaled(x), lambda: setattr(thing, "scale", 3.0)


@row("the bound object's attribute")
def bound_object() -> Made:
    thing: Any = Thing(scale=2.0)
    return thing.scaled, lambda: setattr(thing, "scale", 3.0)


@row("a method of one object")
def method() -> Made:
    thing: Any = Thing(scale=2.0)
    return lambda x: thing.scaled(x), lambda: setattr(thing, "scaled", lambda x: x * 3)


@row("an attribute of a class")
def class_attribute() -> Made:
    kind = type("Kind", (Thing,), {"shared": 2.0})
    thing: Any = kind()
    return lambda x: x * thing.shared, lambda: setattr(kind, "shared", 3.0)


@row("an attribute of a base class")
def base_attribute() -> Made:
    base = type("Base", (), {"shared": 2.0})
    thing: Any = type("Kind", (base,), {})()
    return lambda x: x * thing.shared, lambda: setattr(base, "shared", 3.0)


@row("a method of a class")
def class_method() -> Made:
    kind = type("Kind", (), {"f": lambda self, x: x * 2})
    thing: Any = kind()
    return lambda x: thing.f(x), lambda: setattr(kind, "f", lambda self, x: x * 3)


@row("an object's class")
def objects_class() -> Made:
    two, three = (type("Kind", (), {"scale": float(n)}) for n in (2, 3))
    thing: Any = two()
    return lambda x: x * thing.scale, lambda: setattr(thing, "__class__", three)


@row("what a property reads")
def a_property() -> Made:
    kind = type("Kind", (Thing,), {"twice": property(lambda self: self.scale * 2)})
    thing: Any = kind(scale=2.0)
    return lambda x: x * thing.twice, lambda: setattr(thing, "scale", 3.0)


@row("a slot")
def slot() -> Made:
    thing = Slotted(2.0)
    return lambda x: x * thing.scale, lambda: setattr(thing, "scale", 3.0)


@row("a namespace")
def namespace() -> Made:
    thing = types.SimpleNamespace(scale=2.0)
    return lambda x: x * thing.scale, lambda: setattr(thing, "scale", 3.0)


@row("a dataclass's field")
def dataclass_field() -> Made:
    config = Config()
    return lambda x: x * config.scale, lambda: setattr(config, "scale", 3.0)


@row("a dataclass's container")
def dataclass_container() -> Made:
    config = Config(inner={"scale": [2.0]})
    return lambda x: x * config.inner["scale"][0], lambda: config.inner["scale"].__setitem__(0, 3.0)


@row("a frozen dataclass")
def frozen_dataclass() -> Made:
    thing: Any = Thing(config=Frozen(2.0))
    return lambda x: x * thing.config.scale, lambda: setattr(thing, "config", Frozen(3.0))


@row("an enum's member")
def member() -> Made:
    thing: Any = Thing(mode=Mode.DOUBLE)
    return lambda x: x * thing.mode.value, lambda: setattr(thing, "mode", Mode.TRIPLE)


@row("a flag that is a number now")
def kind_of_number() -> Made:
    thing: Any = Thing(scale=1)
    return lambda x: (x > 9).int() * thing.scale, lambda: setattr(thing, "scale", 1.0)


@row("the sign of a zero")
def sign_of_zero() -> Made:
    thing: Any = Thing(scale=0.0)
    return lambda x: 1 / (x.abs() * thing.scale), lambda: setattr(thing, "scale", -0.0)


@row("a partial function's argument")
def partial() -> Made:
    options = {"scale": 2.0}
    step = functools.partial(lambda options, x: x * options["scale"], options)
    return step, lambda: options.update(scale=3.0)


@row("a wrapped function")
def wrapped() -> Made:
    names = _in_namespace("def f(x): return x * scale", scale=2.0)

    @functools.wraps(names["f"])
    def step(x: torch.Tensor) -> Any:
        return names["f"](x)

    return step, lambda: names.update(scale=3.0)


@row("what an object that is called sees")
def callable_object() -> Made:
    kind = type("Kind", (Thing,), {"__call__": lambda self, x: x * self.scale})
    step: Any = kind(scale=2.0)
    return step, lambda: setattr(step, "scale", 3.0)


@row("what a weak reference points to")
def weak_reference() -> Made:
    thing: Any = Thing(scale=2.0)
    reference = weakref.ref(thing)
    return lambda x: x * reference().scale, lambda: setattr(thing, "scale", 3.0)  # type: ignore[union-attr]


@row("a dictionary behind a bound method")
def behind_bound_method() -> Made:
    items = {"scale": 2.0}
    get: Any = items.get
    return lambda x: x * get("scale"), lambda: items.update(scale=3.0)


@row("an autograd function's class")
def autograd_function() -> Made:
    class Scaled(torch.autograd.Function):
        factor = 2.0

        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * Scaled.factor

    return lambda x: Scaled.apply(x), lambda: setattr(Scaled, "factor", 3.0)


@documented("attributes of which the code has neither the name nor a `getattr`")
def unnamed_attribute() -> Made:
    thing: Any = type("Bare", (), {})()
    thing.scale = 2.0
    get = operator.attrgetter("scale")
    return lambda x: x * get(thing), lambda: setattr(thing, "scale", 3.0)


@documented("iterators, generators, files, clocks and environment that the step reads itself")
def iterator() -> Made:
    values = [2.0, 2.0, 2.0, 2.0, 3.0]
    numbers = iter(tuple(values))
    return lambda x: x * next(numbers, 4.0), lambda: None
