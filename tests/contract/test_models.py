"""Strict models say what the Protocols say, and the fast path agrees with them on every planted fault."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import pytest
import torch
from pydantic import ValidationError

from mla_contract.contract.schema.batch import CommonBatch
from mla_contract.contract.schema.tiers import TIERS, members
from mla_contract.contract.schema.workspace import WorkspaceManager
from mla_contract.contract.structure.axes import parse_shape
from mla_contract.contract.structure.fast import structure_is_fine
from mla_contract.contract.structure.models import check_structure, model_of
from mla_contract.contract.structure.specs import TensorSpec, specs_of
from mla_contract.errors import InvalidContract
from mla_contract.runtime.check import protocol_of
from tests.contract.clauses.cases import PLAIN, subject

if TYPE_CHECKING:
    from jaxtyping import Int32
    from torch import Tensor

    from mla_contract.contract.schema.residence import Device, Host


class Small(Protocol):
    """A Protocol of the test's own."""

    @property
    def num_rows(self) -> int:
        """Rows."""
        ...

    @property
    def lens(self) -> Int32[Tensor, "num_rows+1"]:
        """Lengths."""
        ...


class Larger(Small, Protocol):
    """The same with one member more."""

    @property
    def extra(self) -> list[int] | None:
        """More."""
        ...


class SmallRecord:
    """Satisfies ``Small`` by properties, without being a dataclass."""

    @property
    def num_rows(self) -> int:
        """Rows."""
        return 2

    @property
    def lens(self) -> torch.Tensor:
        """Lengths."""
        return torch.zeros(3, dtype=torch.int32)


@pytest.mark.parametrize("protocol", TIERS.values(), ids=list(TIERS))
def test_model_fields_are_the_members(protocol: type) -> None:
    """A model has one required field for each member, in order, and the same object each time."""
    model = model_of(protocol)
    assert list(model.model_fields) == list(members(protocol))
    assert all(field.is_required() for field in model.model_fields.values())
    assert model_of(protocol) is model


def test_model_of_extended_protocol_gains_the_member() -> None:
    """A member added to a Protocol is a field of its model, and is demanded."""
    assert set(model_of(Larger).model_fields) - set(model_of(Small).model_fields) == {"extra"}
    assert check_structure(SmallRecord(), Small) == ()
    assert [found.code for found in check_structure(SmallRecord(), Larger)] == ["MLA101"]


def test_model_validates_attributes_strictly() -> None:
    """The model reads attributes of any object, and coerces nothing."""
    made = model_of(CommonBatch).model_validate(subject().batch)
    assert made.model_dump()["num_reqs"] == 5
    with pytest.raises(ValidationError):
        model_of(CommonBatch).model_validate(replace(subject().batch, num_reqs="5"))


FAULTS: dict[str, tuple[str, Callable[[Any], object]]] = {
    "MLA101 num_reqs": ("MLA101", lambda of: SmallRecord()),
    "MLA102 int is a tensor": ("MLA102", lambda of: replace(of, num_reqs=torch.tensor(5))),
    "MLA102 int is a bool": ("MLA102", lambda of: replace(of, num_reqs=True)),
    "MLA102 tensor is a list": ("MLA102", lambda of: replace(of, seq_lens=[1, 2])),
    "MLA102 tensor is an ndarray": ("MLA102", lambda of: replace(of, seq_lens=of.seq_lens.numpy())),
    "MLA103 None": ("MLA103", lambda of: replace(of, slot_mapping=None)),
    "MLA104 negative": ("MLA104", lambda of: replace(of, max_query_len=-1)),
    "MLA105 dtype": ("MLA105", lambda of: replace(of, slot_mapping=of.slot_mapping.int())),
    "MLA106 rank": ("MLA106", lambda of: replace(of, seq_lens=of.seq_lens[None])),
    "MLA107 off by one": ("MLA107", lambda of: replace(of, query_start_loc=of.query_start_loc[1:])),
    "MLA107 count": ("MLA107", lambda of: replace(of, num_reqs=4)),
    "MLA108 host": ("MLA108", lambda of: replace(of, query_start_loc_cpu=of.query_start_loc_cpu.to("meta"))),
    "MLA108 device": ("MLA108", lambda of: replace(of, seq_lens=of.seq_lens.to("meta"))),
    "MLA109 strided": ("MLA109", lambda of: replace(of, seq_lens=torch.stack([of.seq_lens] * 2, 1)[:, 0])),
}


@pytest.mark.parametrize(("code", "fault"), FAULTS.values(), ids=list(FAULTS))
def test_check_structure_of_fault_reports_its_code(code: str, fault: Callable[[Any], object]) -> None:
    """Each kind of fault has a code of its own; the same batch without it is accepted."""
    batch = subject().batch
    assert check_structure(batch, CommonBatch) == ()
    found = check_structure(fault(batch), CommonBatch)
    assert code in {violation.code for violation in found}
    assert not structure_is_fine(fault(batch), CommonBatch)


def test_violation_of_shape_shows_the_axes() -> None:
    """The text names expected and found size, the derivation, and the binding of the axis."""
    batch = subject().batch
    (found,) = check_structure(replace(batch, query_start_loc=batch.query_start_loc[1:]), CommonBatch)
    assert found.render() == (
        "MLA107 PlainBatch.query_start_loc: axis has the wrong size: num_reqs+1 at dim 0\n"
        "  expected  6   (num_reqs=5 + 1)\n"
        "  got       5   int32[5] on cpu\n"
        "  axes      num_reqs=5\n"
        "  help      slice every array by the same counts; mla-contract explain MLA107"
    )
    assert found.one_line() == "MLA107 PlainBatch.query_start_loc: axis has the wrong size: num_reqs+1 at dim 0"
    assert found.as_json()["axes"] == {"num_reqs": 5}


def test_check_structure_descends_into_records() -> None:
    """Faults of nested records and of list items carry their path."""
    metadata = subject("indexer", cuts=(4,)).metadata
    metadata.prefill.chunks[1].num_reqs = None
    metadata.decode.block_table = metadata.decode.block_table[:, 0]
    paths = {(found.code, found.path) for found in check_structure(metadata, TIERS["indexer"])}
    assert paths == {
        ("MLA103", "PlainIndexer.prefill.chunks[1].num_reqs"),
        ("MLA106", "PlainIndexer.decode.block_table"),
    }


def test_check_structure_of_raising_property_reports_unreadable() -> None:
    """A property that raises is a finding; the other fields are still checked."""

    class Raising(SmallRecord):
        @property
        def lens(self) -> torch.Tensor:
            raise RuntimeError("freed")

    assert [found.code for found in check_structure(Raising(), Small)] == ["MLA110"]


def test_check_structure_of_methods_demands_callables() -> None:
    """A member that is called must be there and be callable."""

    class Manager:
        is_locked = False

        def get_simultaneous(self) -> list[Any]:
            return []

    assert [found.path for found in check_structure(Manager(), WorkspaceManager)] == ["Manager.is_locked"]


def _planted(record: Any, protocol: type) -> Iterator[tuple[str, Any]]:
    """Yield copies of a dataclass record, each with one member changed."""
    for name, field in specs_of(protocol).items():
        value = getattr(record, name)
        changes: list[Any] = [None, -1, True, "text", 1.5, [], [None], object()]
        if isinstance(value, torch.Tensor):
            changes += [
                value.long(),
                value.int(),
                value.to("meta"),
                value[:-1],
                value[None],
                torch.stack([value] * 2, -1),
            ]
            changes += [torch.stack([value] * 2, -1)[..., 0], torch.cat([value, value])]
        if type(value) is int:
            changes += [value + 1, max(value - 1, 0), torch.tensor(value)]
        for index, change in enumerate(changes):
            yield f"{field.name}[{index}]", replace(record, **{name: change})


@pytest.mark.parametrize("kind", ["dense", "sparse", "aiter", "indexer", "batch"])
def test_fast_path_agrees_with_models_on_every_planted_fault(kind: str) -> None:
    """The fast path says yes only where the models find nothing, and on every valid record."""
    made = subject("dense" if kind == "batch" else kind, PLAIN)
    record = made.batch if kind == "batch" else made.metadata
    protocol = CommonBatch if kind == "batch" else protocol_of(record)
    assert structure_is_fine(record, protocol) and check_structure(record, protocol) == ()
    planted = 0
    for name, copy in _planted(record, protocol):
        slow = check_structure(copy, protocol)
        assert structure_is_fine(copy, protocol) == (slow == ()), (name, slow)
        planted += slow != ()
    assert planted > 60


def test_specs_tell_host_from_device() -> None:
    """Residence follows from the declared type."""
    residence = {name: field.residence for name, field in specs_of(CommonBatch).items()}
    assert residence["query_start_loc"] == residence["seq_lens"] == "device"
    assert residence["query_start_loc_cpu"] == residence["seq_lens_cpu_upper_bound"] == "host"
    assert residence["num_reqs"] is None


def test_specs_residence_follows_the_type_not_the_words() -> None:
    """A docstring that speaks of the host, and a name that ends in _cpu, say nothing; the type alone does."""

    class Misleading(Protocol):
        @property
        def lens_cpu(self) -> Device[Int32[Tensor, "num_reqs"]]:
            """Host copy of the lengths."""
            ...

        @property
        def lens(self) -> Host[Int32[Tensor, "num_reqs"]]:
            """Lengths; the copy on the device is elsewhere."""
            ...

        @property
        def either(self) -> Int32[Tensor, "num_reqs"]:
            """A host copy on the host."""
            ...

    assert [field.residence for field in specs_of(Misleading).values()] == ["device", "host", None]


@pytest.mark.parametrize(
    ("text", "bindings", "size"), [("a+1", {"a": 3}, 4), ("a*b", {"a": 3, "b": 2}, 6), ("7", {}, 7)]
)
def test_axis_size_follows_its_expression(text: str, bindings: dict[str, int], size: int) -> None:
    """Sums and products of bound names have a size; an unbound name has none."""
    axes = parse_shape(text).axes
    assert axes is not None and axes[0].size(bindings) == size
    assert parse_shape("a+1").axes is not None and axes[0].size({}) == (7 if text == "7" else None)


@pytest.mark.parametrize("text", ["a/2", "f(a)", "a+"])
def test_axis_of_another_form_is_refused(text: str) -> None:
    """What cannot be evaluated is an error of the contract, not of the record."""
    with pytest.raises(InvalidContract):
        parse_shape(text)
    assert parse_shape("*rows").axes is None


def test_specs_of_unknown_annotation_name_the_member() -> None:
    """An annotation outside the known forms names Protocol and member."""

    class Odd(Protocol):
        @property
        def strange(self) -> dict[str, int]:
            """Not a form of the contract."""
            ...

    with pytest.raises(InvalidContract, match=r"Odd\.strange"):
        specs_of(Odd)
    assert isinstance(specs_of(Small)["lens"].options[0], TensorSpec)
