"""Write a seam: a small file in which a type checker meets each metadata class and each tier in one typed call.

Tooling that gets metadata from an untyped getter never compares a class with what is read of it. The seam does, without
importing either at run time, and its controls fail when a class or the contract resolved to ``Any``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from keyword import iskeyword

from mla_contract.contract.schema.tiers import members, tier_protocol
from mla_contract.errors import InvalidContract

_HEAD = '''"""Typed seam between metadata classes and the contract, written by `mla-contract seam`; check it with mypy.

A line that reads a field fails when the class does not declare it. A control fails, as an unused ignore, when a type
resolved to Any, because then every other line passes without having been checked.
"""

# mypy: warn-unused-ignores
from __future__ import annotations

from typing import Protocol

'''

_CONTROL_TYPE = '''
class Impossible(Protocol):
    """What no metadata class provides."""

    @property
    def no_class_has_this_member(self) -> int:
        """Never present."""
        ...


def takes_impossible(metadata: Impossible) -> None:
    """Reject every class whose type is known."""
'''


def write_seam(classes: Sequence[str], tiers: Sequence[str] = ("counts",)) -> str:
    """Return the text of a seam file for ``classes`` against ``tiers``.

    Args:
        classes: Metadata classes as ``module:Class``; a nested class is ``module:Outer.Inner``.
        tiers: Names in ``TIERS``.

    Returns:
        Python source: one typed call for each class and tier, one read for each member, and the controls.

    Raises:
        InvalidContract: If a name is malformed or repeated, a tier is unknown, or either list is empty.
    """
    _require_distinct("class", classes, "write it as package.module:Class")
    _require_distinct("tier", tiers, "the default is counts")
    protocols = {tier: tier_protocol(tier) for tier in tiers}
    targets = [_parse(text) for text in classes]

    imports = [f"from {protocol.__module__} import {protocol.__name__}" for protocol in protocols.values()]
    imports += [
        f"from {module} import {name.split('.')[0]} as Imported{index}" for index, (module, name) in enumerate(targets)
    ]
    blocks = [_HEAD + "\n".join(sorted(imports)) + "\n", _CONTROL_TYPE]
    blocks += [_tier_block(tier, protocol) for tier, protocol in protocols.items()]
    for index, (_, name) in enumerate(targets):
        annotation = ".".join([f"Imported{index}", *name.split(".")[1:]])
        blocks += [_class_block(index, classes[index], annotation, tier, proto) for tier, proto in protocols.items()]
        blocks.append(_control_block(index, classes[index], annotation))
    return "\n".join(blocks)


def _tier_block(tier: str, protocol: type) -> str:
    """Return the function that takes one tier, and the control that its type is known."""
    name = tier.replace("-", "_")
    return f'''
def takes_{name}(metadata: {protocol.__name__}) -> None:
    """Accept the {tier} tier."""


def control_{name}() -> None:
    """Fail when the {tier} tier resolved to Any."""
    takes_{name}(object())  # type: ignore[arg-type]
'''


def _class_block(index: int, label: str, annotation: str, tier: str, protocol: type) -> str:
    """Return one class's typed call into one tier, and a read of each member."""
    name = tier.replace("-", "_")
    reads = "\n".join(f"        metadata.{member}," for member in members(protocol))
    return f'''
def seam_{index}_{name}(metadata: {annotation}) -> None:
    """{label} provides the {tier} tier."""
    takes_{name}(metadata)
    _ = (
{reads}
    )
'''


def _control_block(index: int, label: str, annotation: str) -> str:
    """Return the control that a class's type is known."""
    return f'''
def control_{index}(metadata: {annotation}) -> None:
    """Fail when {label} resolved to Any."""
    takes_impossible(metadata)  # type: ignore[arg-type]
'''


def _require_distinct(what: str, names: Sequence[str], hint: str) -> None:
    """Raise unless ``names`` is a non-empty list without repetition."""
    if isinstance(names, str):
        raise InvalidContract(f"expected a list of {what} names, got the string {names!r}")
    if not names:
        raise InvalidContract(f"a seam needs at least one {what}; {hint}")
    repeated = sorted({name for name in names if list(names).count(name) > 1})
    if repeated:
        raise InvalidContract(f"{what} given twice: {', '.join(repeated)}")


def _parse(text: str) -> tuple[str, str]:
    """Return (module, class) of ``module:Class``."""
    module, colon, name = text.partition(":")
    dotted = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)
    if not (colon and dotted.fullmatch(module) and dotted.fullmatch(name)):
        raise InvalidContract(f"{text!r} is not a class; write it as package.module:Class")
    words = [word for word in f"{module}.{name}".split(".") if iskeyword(word)]
    if words:
        raise InvalidContract(f"{text!r} contains the keyword {words[0]!r}, which cannot be imported")
    return module, name
