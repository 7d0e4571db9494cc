"""``@validated``: a builder whose results are checked, or the very same builder when the mode is unset."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from mla_contract.contract.step.facts import NO_FACTS, Facts
from mla_contract.runtime.check import check_metadata
from mla_contract.runtime.hook import respond
from mla_contract.runtime.settings import Mode, current_settings

if TYPE_CHECKING:
    from mla_contract.contract.schema.declaration import BackendDeclaration

P = ParamSpec("P")
R = TypeVar("R")

_BATCH_MEMBERS = ("query_start_loc", "query_start_loc_cpu", "block_table_tensor")


def validated(
    protocol: Any,
    *,
    declaration: BackendDeclaration | None = None,
    facts: Facts | Callable[[Any], Facts] = NO_FACTS,
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Check what a builder returns against ``protocol`` and the clauses.

    The batch is found among the arguments by its looks. With the mode unset at decoration, the function is returned as
    it is; otherwise the mode is read at each call, so that ``validating`` can change it.

    Args:
        protocol: The Protocol of the result, such as ``SparseMLAMetadata``.
        declaration: What the backend says of itself.
        facts: Numbers of the configuration, or a function from the first argument (the builder) to them.

    Returns:
        The decorator.

    Sync: none in the structural level; reads device memory in the values level
    """

    def decorate(build: Callable[P, R]) -> Callable[P, R]:
        if current_settings().mode is Mode.OFF:
            return build

        @wraps(build)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            result = build(*args, **kwargs)
            settings = current_settings()
            if settings.mode is not Mode.OFF:
                known = facts if isinstance(facts, Facts) else _facts_of(facts, args)
                found = check_metadata(
                    result,
                    protocol,
                    batch=_batch_in(args, kwargs),
                    declaration=declaration,
                    facts=known,
                    level=settings.level,
                )
                respond(settings, found)
            return result

        return checked

    return decorate


def _batch_in(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the argument that looks like a common batch, or None."""
    for value in (*args, *kwargs.values()):
        try:
            if all(hasattr(value, name) for name in _BATCH_MEMBERS):
                return value
        except Exception:  # noqa: BLE001 - a foreign argument that cannot be looked at is not a batch
            continue
    return None


def _facts_of(facts: Callable[[Any], Facts], args: tuple[Any, ...]) -> Facts:
    """Return the facts of a builder; nothing is known when the function raises."""
    try:
        return facts(args[0] if args else None)
    except Exception:  # noqa: BLE001 - a check must not break the build it looks at
        return NO_FACTS
