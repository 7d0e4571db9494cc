"""Real signatures by release, from a table in this package: a function's row holds the release that introduced it."""

from __future__ import annotations

import json
from collections.abc import Collection
from functools import cache
from importlib.resources import files
from inspect import Parameter, Signature
from typing import Any

from mla_contract.testing.aiter_double.chip import Chip, version


@cache
def table() -> dict[str, Any]:
    """Return the table: the releases, and each function's parameters as text by first release.

    A parameter is ``name`` or ``name=default``; ``ARCH_CUS`` stands for a count that depends on the arch.
    """
    text = files("mla_contract.testing.aiter_double").joinpath("signatures.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


RELEASES: tuple[str, ...] = tuple(table()["releases"])
"""Releases that can be installed; the first is made from aiter's history rather than from a tag."""


def signatures_of(chip: Chip) -> dict[str, Signature]:
    """Return the signature of every function that the release has, by ``module:name``."""
    found = {}
    for name, rows in table()["functions"].items():
        fitting = [text for release, text in rows if version(release) <= version(chip.release)]
        if fitting:
            found[name] = Signature([_parameter(part, chip) for part in fitting[-1].split()])
    return found


def without(signature: Signature, names: Collection[str]) -> Signature:
    """Return a signature that lacks some parameters: a release that never was, for tests of refusal."""
    return Signature([one for name, one in signature.parameters.items() if name not in names])


def _parameter(text: str, chip: Chip) -> Parameter:
    """Return one parameter."""
    name, has_default, default = text.partition("=")
    if not has_default:
        return Parameter(name, Parameter.POSITIONAL_OR_KEYWORD)
    known = {"None": None, "True": True, "False": False, "ARCH_CUS": 80 if chip.arch == "gfx942" else 256}
    value = known[default] if default in known else float(default) if "." in default else int(default)
    return Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, default=value)
