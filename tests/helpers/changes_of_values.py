"""Kinds of change between two calls of a captured step: containers, arrays, tensors."""

# The steps are functions of their own, whatever they call.
# ruff: noqa: PLW0108

from __future__ import annotations

import argparse
import configparser
import logging
import threading
import types
import weakref
from array import array
from collections import (
    ChainMap,
    OrderedDict,
    UserDict,
    UserList,
    UserString,
    defaultdict,
    deque,
    namedtuple,
)
from contextvars import ContextVar
from enum import Enum
from typing import Any

import numpy as np
import torch

from changes_of_steps import Made, Thing, documented, row

Pair = namedtuple("Pair", "first second")


class Options(UserDict[str, float]):
    """A class of the user's."""


@row("a list")
def a_list() -> Made:
    items = [2.0]
    return lambda x: x * items[0], lambda: items.__setitem__(0, 3.0)


@row("the length of a list")
def longer_list() -> Made:
    items = [2.0]
    return lambda x: x * sum(items), lambda: items.append(3.0)


@row("a list of lists")
def nested_lists() -> Made:
    items = [[[2.0]]]
    return lambda x: x * items[0][0][0], lambda: items[0][0].__setitem__(0, 3.0)


@row("a list of functions")
def functions() -> Made:
    items = [torch.sin]
    return lambda x: items[0](x), lambda: items.__setitem__(0, torch.cos)


@row("a dictionary's value")
def dictionary() -> Made:
    items = {"scale": 2.0}
    return lambda x: x * items["scale"], lambda: items.update(scale=3.0)


@row("a dictionary's key")
def dictionary_key() -> Made:
    items = {"scale": 2.0}

    def change() -> None:
        items["other"] = items.pop("scale")

    return lambda x: x * items.get("scale", 5.0), change


@row("a whole dictionary")
def whole_dictionary() -> Made:
    thing: Any = Thing(options={"scale": 2.0})
    return lambda x: x * thing.options["scale"], lambda: setattr(thing, "options", {"scale": 3.0})


@row("a dictionary in a dictionary")
def nested_dictionary() -> Made:
    items = {"a": {"b": {"scale": 2.0}}}
    return lambda x: x * items["a"]["b"]["scale"], lambda: items["a"]["b"].update(scale=3.0)


@row("an ordered dictionary")
def ordered() -> Made:
    items = OrderedDict(a=2.0, b=3.0)
    return lambda x: x * next(iter(items.values())), lambda: items.move_to_end("a")


@row("a dictionary with defaults")
def with_defaults() -> Made:
    items: Any = defaultdict(lambda: 2.0, scale=2.0)
    return lambda x: x * items["scale"], lambda: items.update(scale=3.0)


@row("a set")
def a_set() -> Made:
    items = {"double"}
    return lambda x: x * (2 if "double" in items else 3), lambda: items.discard("double")


@row("a deque")
def a_deque() -> Made:
    items = deque([2.0])
    return lambda x: x * items[0], lambda: items.appendleft(3.0)


@row("a tuple")
def a_tuple() -> Made:
    thing: Any = Thing(pair=(2.0, 1.0))
    return lambda x: x * thing.pair[0], lambda: setattr(thing, "pair", (3.0, 1.0))


@row("a named tuple")
def named_tuple() -> Made:
    thing: Any = Thing(pair=Pair(2.0, 1.0))
    return lambda x: x * thing.pair.first, lambda: setattr(thing, "pair", Pair(3.0, 1.0))


@row("a proxy's dictionary")
def proxy() -> Made:
    items = {"scale": 2.0}
    view = types.MappingProxyType(items)
    return lambda x: x * view["scale"], lambda: items.update(scale=3.0)


@row("a NumPy array")
def numpy_array() -> Made:
    numbers = np.array([2.0])
    return lambda x: x * float(numbers[0]), lambda: numbers.__setitem__(0, 3.0)


@row("another NumPy array")
def other_array() -> Made:
    thing: Any = Thing(array=np.array([2.0]))
    return lambda x: x * float(thing.array[0]), lambda: setattr(thing, "array", np.array([3.0]))


@row("a number of NumPy")
def numpy_number() -> Made:
    thing: Any = Thing(scale=np.float64(2))
    return lambda x: x * float(thing.scale), lambda: setattr(thing, "scale", np.float64(3))


@row("a tensor on the CPU")
def cpu_tensor() -> Made:
    scale = torch.tensor(2.0)
    return lambda x: x * scale.item(), lambda: scale.fill_(3.0)


@row("a tensor on the CPU, by NumPy")
def cpu_tensor_by_numpy() -> Made:
    numbers = np.array([2.0], dtype=np.float32)
    scale = torch.from_numpy(numbers)
    return lambda x: x * scale[0].item(), lambda: numbers.__setitem__(0, 3.0)


@row("another tensor")
def other_tensor() -> Made:
    thing: Any = Thing(scale=torch.full((), 2.0, device="pjrt"))
    kept = [thing.scale]
    return lambda x: x * thing.scale, lambda: kept.append(
        setattr(thing, "scale", torch.full((), 3.0, device="pjrt"))
    )


@row("an equal tensor that is written to later")
def equal_tensor() -> Made:
    thing: Any = Thing(scale=torch.full((), 2.0, device="pjrt"))
    kept = [thing.scale]

    def change() -> None:
        thing.scale = kept[0].clone()
        thing.scale.add_(1)

    return lambda x: x * thing.scale, change


@row("a tensor's shape")
def tensor_shape() -> Made:
    weight = torch.arange(9.0).reshape(3, 3).to("pjrt")
    return lambda x: x[0] * weight[0], lambda: weight.t_()


@row("an attribute of a tensor")
def tensor_attribute() -> Made:
    weight: Any = torch.ones(3, device="pjrt")
    weight.scale = 2.0
    return lambda x: x * weight.scale, lambda: setattr(weight, "scale", 3.0)


@row("arguments of the command line")
def namespace() -> Made:
    arguments = argparse.Namespace(scale=2.0)
    return lambda x: x * arguments.scale, lambda: setattr(arguments, "scale", 3.0)


@row("a dictionary of the command line's arguments")
def namespace_as_dictionary() -> Made:
    arguments = argparse.Namespace(scale=2.0)
    return lambda x: x * vars(arguments)["scale"], lambda: setattr(arguments, "scale", 3.0)


@row("a dictionary written in Python")
def user_dictionary() -> Made:
    items = UserDict(scale=2.0)
    return lambda x: x * items["scale"], lambda: items.__setitem__("scale", 3.0)


@row("a user's dictionary written in Python")
def dictionary_of_a_class() -> Made:
    items = Options(scale=2.0)
    return lambda x: x * items["scale"], lambda: items.__setitem__("scale", 3.0)


@row("what a dictionary written in Python has its items in")
def data_of_user_dictionary() -> Made:
    items = UserDict(scale=2.0)
    return lambda x: x * items["scale"], lambda: setattr(items, "data", {"scale": 3.0})


@row("a list written in Python")
def user_list() -> Made:
    items = UserList([2.0])
    return lambda x: x * items[0], lambda: items.__setitem__(0, 3.0)


@row("the length of a list written in Python")
def longer_user_list() -> Made:
    items = UserList([2.0])
    return lambda x: x * sum(items), lambda: items.append(3.0)


@row("a text written in Python")
def user_string() -> Made:
    text = UserString("2")
    return lambda x: x * float(str(text)), lambda: setattr(text, "data", "3")


@row("a chain of dictionaries")
def chain() -> Made:
    items = ChainMap({}, {"scale": 2.0})
    return lambda x: x * items["scale"], lambda: items.__setitem__("scale", 3.0)


@row("the last of a chain of dictionaries")
def last_of_chain() -> Made:
    last = {"scale": 2.0}
    items = ChainMap({}, last)
    return lambda x: x * items["scale"], lambda: last.update(scale=3.0)


@row("a dictionary of weak references")
def weak_values() -> Made:
    things = [Thing(scale=2.0), Thing(scale=3.0)]
    items = weakref.WeakValueDictionary({"thing": things[0]})

    def change() -> None:
        items["thing"] = things[1]

    return lambda x: x * items["thing"].scale, change


@row("a dictionary with weak keys")
def weak_keys() -> Made:
    thing = Thing()
    items = weakref.WeakKeyDictionary({thing: 2.0})
    return lambda x: x * items[thing], lambda: items.__setitem__(thing, 3.0)


@row("a value of the thread")
def of_thread() -> Made:
    local = threading.local()
    local.scale = 2.0
    return lambda x: x * local.scale, lambda: setattr(local, "scale", 3.0)


@row("a value of the context")
def of_context() -> Made:
    variable = ContextVar("scale", default=2.0)

    def change() -> Any:
        token = variable.set(3.0)
        return lambda: variable.reset(token)

    return lambda x: x * variable.get(), change


@row("a configuration")
def configuration() -> Made:
    parser = configparser.ConfigParser()
    parser["model"] = {"scale": "2"}
    return lambda x: x * parser.getfloat("model", "scale"), lambda: parser.set(
        "model", "scale", "3"
    )


@row("a section of a configuration")
def section() -> Made:
    parser = configparser.ConfigParser()
    parser["model"] = {"scale": "2"}
    part = parser["model"]
    return lambda x: x * float(part["scale"]), lambda: part.__setitem__("scale", "3")


@row("bytes that change")
def changing_bytes() -> Made:
    numbers = bytearray([2])
    return lambda x: x * numbers[0], lambda: numbers.__setitem__(0, 3)


@row("an array of Python's")
def python_array() -> Made:
    numbers = array("d", [2.0])
    return lambda x: x * numbers[0], lambda: numbers.__setitem__(0, 3.0)


@row("an attribute of an enum's member")
def enum_attribute() -> Made:
    class Kind(Enum):
        FIRST = 1

    first: Any = Kind.FIRST
    first.scale = 2.0
    return lambda x: x * first.scale, lambda: setattr(first, "scale", 3.0)


@row("an attribute of a metaclass")
def metaclass_attribute() -> Made:
    class Kind(type):
        scale = 2.0

    class Scaled(metaclass=Kind):
        pass

    return lambda x: x * Scaled.scale, lambda: setattr(Kind, "scale", 3.0)


@row("an attribute of a class that only its metaclass names")
def class_attribute() -> Made:
    class Kind(type):
        hidden: float

        @property
        def scale(cls) -> float:
            return cls.hidden

    class Scaled(metaclass=Kind):
        hidden = 2.0

    return lambda x: x * Scaled.scale, lambda: setattr(Scaled, "hidden", 3.0)


@documented(
    "the inside of objects of Python's, NumPy's and JAX's own classes that are no containers"
)
def closed() -> Made:
    logger = logging.Logger("of a step", level=2)
    return lambda x: x * logger.level, lambda: logger.setLevel(3)


@documented("the content of NumPy arrays and CPU tensors of more than 16 KiB")
def large_array() -> Made:
    numbers = np.full(1 << 12, 2.0)
    return lambda x: x * float(numbers[0]), lambda: numbers.__setitem__(0, 3.0)


@documented("the items of containers of more than 4096")
def large_list() -> Made:
    items = [2.0] * 5000
    return lambda x: x * items[0], lambda: items.__setitem__(0, 3.0)
