"""The errors of the planners: what is at fault, what was expected and found, as text and as data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import TypeGuard

from mla_contract.errors import InvalidContract


class InvalidBatch(InvalidContract):
    """A batch that no planner may pass on.

    Attributes:
        what: The object and the field at fault.
        row: Index of the request at fault; None where no single request is.
        facts: What was expected and found, by name.
        help: What to do.
    """

    def __init__(self, what: str, facts: Mapping[str, object], *, row: int | None = None, help: str = "") -> None:
        self.what = what
        self.row = row
        self.facts = dict(facts)
        self.help = help
        super().__init__(_block(what if row is None else f"{what}, row {row}", facts, help))


@dataclass(frozen=True, slots=True)
class SettingFault:
    """One setting that a configuration cannot have.

    Attributes:
        what: The configuration and the setting, such as ``PlanConfig.block_size``.
        expected: What it may be.
        got: What it is.
        help: What to do.
    """

    what: str
    expected: str
    got: object
    help: str = ""

    def __str__(self) -> str:
        return _block(self.what, {"expected": self.expected, "got": f"{self.got!r}"}, self.help)


class InvalidConfig(InvalidContract):
    """A configuration with which nothing could be planned; ``faults`` holds every setting at fault."""

    def __init__(self, faults: Sequence[SettingFault]) -> None:
        self.faults = tuple(faults)
        super().__init__("\n".join(str(fault) for fault in self.faults))


def is_int(value: object) -> TypeGuard[int]:
    """Return whether a value is an int of Python or NumPy; True and False are not."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def int_faults(
    config: object, least: Mapping[str, int], optional: Mapping[str, int] | None = None
) -> list[SettingFault]:
    """Return a fault for each setting that is not an int, or is less than it may be.

    Args:
        config: The configuration.
        least: The least value of each setting, by name.
        optional: The same of settings that may be None.
    """
    bounds = [(name, bound, False) for name, bound in least.items()]
    bounds += [(name, bound, True) for name, bound in (optional or {}).items()]
    faults = []
    for name, bound, may_be_none in bounds:
        value = getattr(config, name)
        if (value is None and may_be_none) or (is_int(value) and value >= bound):
            continue
        expected = f"an int of at least {bound}" + (", or None" if may_be_none else "")
        faults.append(SettingFault(f"{type(config).__name__}.{name}", expected, value))
    return faults


def type_faults(config: object, types: Mapping[str, type | tuple[type, ...]]) -> list[SettingFault]:
    """Return a fault for each setting that is of none of the types that it may have."""
    faults = []
    for name, wanted in types.items():
        value = getattr(config, name)
        if not isinstance(value, wanted):
            names = wanted if isinstance(wanted, tuple) else (wanted,)
            expected = " or ".join("None" if each is type(None) else each.__name__ for each in names)
            faults.append(SettingFault(f"{type(config).__name__}.{name}", expected, value))
    return faults


def validate_settings(faults: Sequence[SettingFault]) -> None:
    """Raise if there is a fault.

    Raises:
        InvalidConfig: With every fault.
    """
    if faults:
        raise InvalidConfig(faults)


def _block(place: str, facts: Mapping[str, object], help: str) -> str:
    """Return the lines of one fault: where, then what was expected and found, then what to do."""
    lines = [place, *(f"  {name:<8}  {value}" for name, value in facts.items())]
    if help:
        lines.append(f"  help      {help}")
    return "\n".join(lines)
