"""What differs between the releases whose runners are driven: asked of the release's own functions and classes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib import import_module
from typing import Any


def call(function: Callable[..., Any], **known: Any) -> Any:
    """Call a function with those of the named values that it takes: later releases take more, or others."""
    taken = inspect.signature(function).parameters
    return function(**{name: value for name, value in known.items() if name in taken})


def assign(owner: object, **known: Any) -> None:
    """Set attributes, but those that a release computes itself."""
    for name, value in known.items():
        if not isinstance(getattr(type(owner), name, None), property):
            setattr(owner, name, value)


def find(module: str, name: str, absent: Any = None) -> Any:
    """Return a name of a module, or ``absent`` where a release has none."""
    try:
        return getattr(import_module(module), name, absent)
    except ModuleNotFoundError:
        return absent
