"""Late calls: found by name, bound by keyword to the signature that is there, refused with the parameter's name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import import_module
from types import MappingProxyType
from typing import Any

_NOTHING: Mapping[str, object] = MappingProxyType({})

Function = Callable[..., Any]


def find_function(name: str, modules: tuple[str, ...]) -> Function | str:
    """Return a function from the first module that has it, or why there is none."""
    try:
        import_module("aiter")
    except ImportError as error:
        return f"aiter cannot be imported: {error}"
    for module in modules:
        try:
            found: Function | None = getattr(import_module(module), name, None)
        except ImportError:
            continue
        if found is not None:
            return found
    return f"this aiter has no {name} in {' or '.join(modules)}"


# Asked for every call of every layer, and always the same; a dozen functions, and doubles bring new ones.
@lru_cache(maxsize=128)
def parameters_of(function: Function) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of a function, through decorators that keep ``__wrapped__``."""
    return inspect.signature(function).parameters


@dataclass(frozen=True, slots=True, eq=False)
class AiterCall:
    """One call, made of keywords only.

    Attributes:
        name: Name of the function.
        modules: Where it is looked for, in this order.
        required: Arguments that the call cannot do without.
        optional: Arguments that are left out when the signature does not have them, without changing the result.
    """

    name: str
    modules: tuple[str, ...]
    required: Mapping[str, object]
    optional: Mapping[str, object] = field(default_factory=lambda: _NOTHING)

    def reason(self) -> str | None:
        """Return why the call does not bind, or None. Sync: none."""
        function = find_function(self.name, self.modules)
        return function if isinstance(function, str) else self.binding_reason(function)

    def binding_reason(self, function: Function) -> str | None:
        """Return why the call does not bind to this function, naming the parameter."""
        parameters = parameters_of(function)
        if any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
            return None
        for name in self.required:
            if name not in parameters or parameters[name].kind is inspect.Parameter.POSITIONAL_ONLY:
                return f"this aiter's {self.name} has no parameter {name!r}"
        for name, one in parameters.items():
            passed = name in self.required or name in self.optional or one.default is not one.empty
            if not passed and one.kind is not one.VAR_POSITIONAL:
                return f"this aiter's {self.name} demands parameter {name!r}, which is not known"
        return None

    def __call__(self) -> Any:
        """Make the call.

        Raises:
            TypeError: If it does not bind.
        """
        function = find_function(self.name, self.modules)
        if isinstance(function, str):
            raise TypeError(function)
        reason = self.binding_reason(function)
        if reason is not None:
            raise TypeError(reason)
        parameters = parameters_of(function)
        extra = {name: value for name, value in self.optional.items() if name in parameters}
        return function(**self.required, **extra)


def has_parameter(function: str, modules: tuple[str, ...], parameter: str) -> bool:
    """Return whether a function exists and has a parameter: how a feature is recognised."""
    found = find_function(function, modules)
    return not isinstance(found, str) and parameter in parameters_of(found)
