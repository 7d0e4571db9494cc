"""Inputs of an operation as short texts, for errors."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from mla_contract.contract.schema.provider import Operation
from mla_contract.contract.structure.arrays import describe


def describe_inputs(inputs: Operation[Any]) -> dict[str, object]:
    """Return the operation's name and the short text of each of its fields. Sync: none."""
    record: Any = inputs
    found: dict[str, object] = {"operation": type(record).__name__}
    return found | {one.name: _text(getattr(record, one.name)) for one in fields(record)}


def _text(value: Any) -> str:
    """Return the short text of a field; records are opened."""
    if type(value).__name__ == "dtype":
        return str(value)
    if hasattr(value, "__dataclass_fields__"):
        parts = (f"{one.name}={_text(getattr(value, one.name))}" for one in fields(value))
        return f"{type(value).__name__}({', '.join(parts)})"
    return describe(value)
