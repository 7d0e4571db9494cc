"""The tiers, what each demands, and what a class lacks."""

from __future__ import annotations

import ast
import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import mla_contract.contract.schema as contract_package
from mla_contract import TIERS, CountsMetadata, InvalidContract, Member, claims, members, missing_members
from mla_contract.contract.schema.tiers import tier_protocol

COUNTS = ["num_reqs", "num_actual_tokens", "num_decodes", "num_prefills", "num_decode_tokens"]
ALL_MEMBERS = [(tier, member) for tier, protocol in TIERS.items() for member in members(protocol).values()]


def test_partscounts_tier_is_in_the_order_of_its_statement() -> None:
    """The counts tier demands five ints, in the order in which the class states them."""
    found = members(CountsMetadata)
    assert list(found) == COUNTS
    assert {member.annotation for member in found.values()} == {"int"}
    assert found["num_decodes"].owner == "HasNumDecodes"


def test_partsannotation_is_the_text_of_the_source() -> None:
    """An annotation is the string in the source, with dtype and named axes, and is never evaluated."""
    assert members(TIERS["core"])["query_start_loc"].annotation == "Device[Int32[Tensor, 'num_reqs+1']]"
    method = members(TIERS["workspace"])["get_simultaneous"]
    assert method.is_method
    assert method.annotation == "(self, *shapes_and_dtypes: tuple[tuple[int, ...], dtype]) -> list[Tensor]"


@pytest.mark.parametrize(("tier", "member"), ALL_MEMBERS, ids=lambda value: getattr(value, "name", value))
def test_member_docstring_says_meaning_padding_and_source(tier: str, member: Member) -> None:
    """Every member of every tier documents its meaning, its padding rule and the file where it was learnt."""
    first, *rest = member.doc.splitlines()
    assert first.endswith((".", ";"))
    labels = [line.split(":")[0] for line in rest if line.startswith(("Padding: ", "Source: "))]
    assert labels == ["Padding", "Source"]
    source = member.doc.rpartition("Source: ")[2]
    assert source.startswith("vLLM 0.")
    assert source.endswith(".py")


def test_partsare_read_only_properties_or_methods() -> None:
    """No Protocol states a settable attribute, which would reject frozen dataclasses."""
    for protocol in TIERS.values():
        for base in protocol.__mro__[:-1]:
            if base.__module__.startswith("mla_contract"):
                assert not inspect.get_annotations(base), base


def test_tiers_composed_are_the_sum_of_their_parts() -> None:
    """The consumer's views add nothing of their own."""
    parts = {"mla": ["counts", "core"], "sparse-mla": ["mla", "sparse"], "aiter-sparse": ["sparse-mla", "aiter"]}
    for whole, names in parts.items():
        assert list(members(TIERS[whole])) == [field for name in names for field in members(TIERS[name])]


def test_tiers_hold_every_protocol_of_the_package() -> None:
    """Each Protocol that is only read is a tier, or states members of one; one with methods is not metadata."""
    used = {base for protocol in TIERS.values() for base in protocol.__mro__}
    stated = set()
    for path in Path(contract_package.__file__).parent.glob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and any(ast.unparse(base) == "Protocol" for base in node.bases):
                parts = [one for one in node.body if isinstance(one, ast.FunctionDef)]
                if all(any(ast.unparse(mark) == "property" for mark in one.decorator_list) for one in parts):
                    stated.add(node.name)
    assert len(stated) > 20
    assert stated - {base.__name__ for base in used} == set()


def test_tier_protocol_unknown_name_lists_the_tiers() -> None:
    """An unknown tier is refused with the list of names; a known one is returned."""
    with pytest.raises(InvalidContract, match="unknown tier 'coutns'; tiers are batch, counts, core"):
        tier_protocol("coutns")
    assert tier_protocol("counts") is CountsMetadata


@pytest.mark.parametrize("name", ["counts", "core", "sparse", "aiter"])
def test_claims_have_one_parameter_for_each_part_of_their_tier(name: str) -> None:
    """A claim's parameters are the tier's Protocols, in order, so no member can be forgotten."""
    signature = inspect.signature(getattr(claims, name))
    annotations = [str(parameter.annotation) for parameter in signature.parameters.values()]
    parts = [base.__name__ for base in TIERS[name].__bases__ if base.__module__ != "typing"]
    assert annotations == parts


def test_claims_at_run_time_do_nothing() -> None:
    """A claim costs nothing at import time, even for a class that breaks it."""
    for name in ("counts", "core", "sparse", "aiter"):
        assert getattr(claims, name)(*claims.of(object)) is None


@dataclass
class Base:
    """Declares two of the counts."""

    num_reqs: int
    num_actual_tokens: int


@dataclass
class Child(Base):
    """Adds one by a default, and one by a property."""

    num_decodes: int = 0

    @property
    def num_prefills(self) -> int:
        """Derived."""
        return 0


class Slotted:
    """Declares by slots."""

    __slots__ = ("num_reqs", "num_actual_tokens")


class OneSlot:
    """Declares by a slot that is not a tuple."""

    __slots__ = "num_reqs"


class Row(NamedTuple):
    """Declares every count as a tuple field."""

    num_reqs: int
    num_actual_tokens: int
    num_decodes: int
    num_prefills: int
    num_decode_tokens: int


class AssignedLate:
    """Assigns in `__init__` only, which no reader of the class can rely on."""

    def __init__(self) -> None:
        self.num_reqs = 1


@pytest.mark.parametrize(
    ("cls", "expected"),
    [
        (Row, []),
        (Child, COUNTS[4:]),
        (Base, COUNTS[2:]),
        (Slotted, COUNTS[2:]),
        (OneSlot, COUNTS[1:]),
        (AssignedLate, COUNTS),
        (object, COUNTS),
    ],
)
def test_missing_partslists_all_that_the_class_does_not_declare(cls: type[Any], expected: list[str]) -> None:
    """Fields, defaults, properties, slots and inherited ones count as declared; everything else is listed."""
    assert missing_members(cls, "counts") == expected
    assert missing_members(cls, CountsMetadata) == expected
