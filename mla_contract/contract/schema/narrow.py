"""The consumer's side: a typed view of what an untyped context getter returned."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

ProtocolT = TypeVar("ProtocolT")

validator: Callable[[object, object], None] | None = None
"""Hook of the runtime layer: called with the object and the Protocol on every ``narrow``; None means off."""


def narrow(obj: object, protocol: Callable[..., ProtocolT]) -> ProtocolT:
    """Return ``obj`` itself, typed as ``protocol``, so that reading a field outside the contract is a type error.

    Without a validator this is a plain cast. The parameter is a callable because type checkers refuse a Protocol where
    ``type[...]`` is expected.

    Args:
        obj: What the getter returned.
        protocol: The Protocol that the consumer relies on, such as ``SparseMLAMetadata``.

    Returns:
        The same object.

    Raises:
        ContractError: If a validator is armed and the object breaks the contract.
    """
    if validator is not None:
        validator(obj, protocol)
    return cast("ProtocolT", obj)
