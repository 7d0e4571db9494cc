"""Small changes of a subject, given as data: set a field, shift a number, write an element, swap rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from mla_contract.contract.step.context import StepContext
from tests.lab.faults import Change


def read_path(subject: StepContext, path: str) -> Any:
    """Return the value at a path of attribute names and list indexes, such as ``metadata.prefill.chunks.0``."""
    target: Any = subject
    for part in path.split("."):
        target = target[int(part)] if part.isdigit() else getattr(target, part)
    return target


def put(path: str, value: Any) -> Change:
    """Return the change that sets the field at a path; a callable gets the old value."""
    parents, _, name = path.rpartition(".")

    def change(subject: StepContext) -> None:
        target = read_path(subject, parents)
        setattr(target, name, value(getattr(target, name)) if callable(value) else value)

    return change


def shift(path: str, by: int) -> Change:
    """Return the change that adds to a number."""
    return put(path, lambda old: old + by)


def poke(path: str, index: Any, value: int | Callable[[Any], Any]) -> Change:
    """Return the change that sets one element of a copy of an array; a callable gets the old element."""

    def written(old: Any) -> Any:
        new = old.clone()
        new[index] = value(old[index]) if callable(value) else value
        return new

    return put(path, written)


def flip(path: str) -> Change:
    """Return the change that reverses the rows of an array."""
    return put(path, lambda old: old.flip(0))


def cut(path: str, rows: int = 1) -> Change:
    """Return the change that drops the last rows of an array."""
    return put(path, lambda old: old[:-rows].clone())


def grow(path: str) -> Change:
    """Return the change that repeats the last row of an array."""

    def grown(old: Any) -> Any:
        import torch

        return torch.cat([old, old[-1:]])

    return put(path, grown)


def both(*changes: Change) -> Change:
    """Return the changes one after the other."""

    def change(subject: StepContext) -> StepContext:
        for one in changes:
            subject = one(subject) or subject
        return subject

    return change


def fact(**changes: Any) -> Change:
    """Return the change of some facts."""
    return lambda subject: replace(subject, facts=replace(subject.facts, **changes))


def proof(**changes: Any) -> Change:
    """Return the change of some trace."""
    return lambda subject: replace(subject, trace=replace(subject.trace, **changes))
