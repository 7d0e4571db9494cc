"""Checking whatever an engine passes around: shapes of containers, hostile objects, and leaving them alone."""

from __future__ import annotations

import copy
import gc
import logging
import sys
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, make_dataclass
from typing import Any

import pytest
import torch

from mla_contract import SparseMLAMetadata
from mla_contract.contract.clauses.clause import Level
from mla_contract.contract.step.facts import Facts
from mla_contract.contract.step.host import capturing
from mla_contract.contract.step.views import context_view, subjects_of
from mla_contract.contract.violation import Violation
from mla_contract.errors import ContractError
from mla_contract.runtime import (
    Tally,
    check_metadata,
    report_metadata,
    tally,
    validate_metadata,
    validated,
    validating,
)
from mla_contract.runtime.tally import MOST_KINDS
from mla_contract.testing.records import PlainIndexerPrefill, PlainSparse
from tests.contract.clauses import records
from tests.contract.clauses.cases import DECODES, PLAIN, subject

KINDS = ["dense", "sparse", "aiter", "indexer"]


@pytest.fixture(autouse=True)
def fresh_tally() -> Iterator[None]:
    """Forget what other tests reported."""
    tally().clear()
    yield
    tally().clear()


@pytest.mark.parametrize("level", list(Level))
@pytest.mark.parametrize("kind", KINDS)
def test_check_metadata_of_valid_record_finds_nothing(kind: str, level: Level) -> None:
    """A consistent record of each kind is accepted in both levels, with its batch."""
    made = subject(kind)
    assert check_metadata(made.metadata, batch=made.batch, facts=PLAIN, level=level) == ()
    validate_metadata(made.metadata, batch=made.batch, facts=PLAIN, level=level)


@pytest.mark.parametrize("kind", KINDS)
def test_validate_metadata_raises_once_with_all(kind: str) -> None:
    """Two faults in two fields come in one error."""
    made = subject(kind)
    made.metadata.num_prefills += 1
    made.metadata.slot_mapping = made.metadata.slot_mapping.int()
    with pytest.raises(ContractError) as caught:
        validate_metadata(made.metadata, batch=made.batch, facts=PLAIN)
    assert {"MLA105", "MLA232"} <= {found.code for found in caught.value.violations}


def test_subjects_of_containers_flatten() -> None:
    """None, a dict by layer and a list of dicts yield each record once, with its place."""
    one, two = subject().metadata, subject("indexer").metadata
    assert list(subjects_of(None)) == []
    assert [record for _, record in subjects_of({"a": one, "b": one, "c": two})] == [one, two]
    assert [path for path, _ in subjects_of([{"a": one}, {"a": two}, None])] == [
        "PlainSparse[0][a]",
        "PlainIndexer[1][a]",
    ]
    loop: list[Any] = [one]
    loop.append(loop)
    assert len(list(subjects_of(loop))) == 1


def test_check_metadata_of_containers_names_the_layer() -> None:
    """A fault in one layer of one micro-batch is reported with its place."""
    good, bad = subject().metadata, subject().metadata
    bad.num_decode_tokens = None
    assert check_metadata(None) == ()
    assert check_metadata([{"x": good}, {"x": good}]) == ()
    assert {found.path for found in check_metadata([{"x": good}, {"x": bad}])} == {
        "PlainSparse[1][x].num_decode_tokens"
    }


def test_check_metadata_of_frozen_subclass_and_properties() -> None:
    """A frozen dataclass, a subclass and an object with properties are all records."""
    made = subject().metadata
    frozen = make_dataclass("Frozen", [field.name for field in fields(made)], frozen=True)
    values = {field.name: getattr(made, field.name) for field in fields(made)}
    assert check_metadata(frozen(**values), SparseMLAMetadata) == ()

    class Derived(PlainSparse):
        @property
        def label(self) -> str:
            return "derived"

    assert check_metadata(Derived(**values), SparseMLAMetadata) == ()

    class Proxy:
        def __getattr__(self, name: str) -> Any:
            return getattr(made, name)

    assert check_metadata(Proxy(), SparseMLAMetadata) == ()


def test_report_names_what_was_not_decided() -> None:
    """Without a batch most clauses are skipped, each with its reason; silence is not a pass."""
    made = subject()
    alone = report_metadata(made.metadata)
    full = report_metadata(made.metadata, batch=made.batch, facts=PLAIN, level=Level.VALUES)
    assert "batch" in alone.skipped["PlainSparse"]["MLA209"]
    assert set(full.held["PlainSparse"]) > set(alone.held["PlainSparse"])
    assert alone.device_reads == 0 < full.device_reads


def test_report_during_capture_reads_nothing() -> None:
    """The values level is refused while a stream is captured."""
    made = subject()
    with capturing():
        report = report_metadata(made.metadata, batch=made.batch, facts=PLAIN, level=Level.VALUES)
        assert check_metadata(made.metadata, batch=made.batch, facts=PLAIN, level=Level.VALUES) == ()
    assert report.device_reads == 0 and "stream capture" in report.skipped["PlainSparse"].values()


def test_context_view_reads_both_shapes_alike() -> None:
    """Parallel lists and chunk records of one batch give the same cells."""
    batch = subject("dense").batch
    old = context_view(records.field_context(batch, DECODES, 4))
    new = context_view(records.chunked_context(batch, DECODES, 32, Facts(), split=4))
    assert old is not None and new is not None and context_view(None) is None
    cells = {(chunk.first + row, length) for chunk in new.chunks for row, length in enumerate(chunk.lens)}
    assert cells == {(row, length) for chunk in old.chunks for row, length in enumerate(chunk.lens) if length}


class Bomb:
    """Raises on every read."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)


class Endless:
    """Every attribute is another one, without end."""

    def __getattr__(self, name: str) -> Any:
        return Endless()


class Recursive:
    """Reading any attribute recurses for ever."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self, name)


@dataclass
class Lying:
    """Says that it is a tensor and is none."""

    dtype: str = "int32"
    shape: str = "no shape"
    device: int = 3
    stride: int = 0
    data_ptr: int = 0


class Unequal:
    """Cannot be compared, hashed or shown."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("eq")

    def __repr__(self) -> str:
        raise RuntimeError("repr")

    def __bool__(self) -> bool:
        raise RuntimeError("bool")


def _freed() -> Any:
    metadata = subject().metadata
    metadata.block_table.untyped_storage().resize_(0)
    return metadata


def _lying() -> Any:
    metadata = subject().metadata
    metadata.block_table = Lying()
    return metadata


HOSTILE: dict[str, Callable[[], Any]] = {
    "bomb": Bomb,
    "endless": Endless,
    "recursive": Recursive,
    "unequal": Unequal,
    "freed": _freed,
    "lying": _lying,
    "class": lambda: PlainSparse,
    "int": lambda: 7,
    "text": lambda: "metadata",
    "nested bombs": lambda: [{"a": Bomb()}, Bomb(), None],
    "bomb inside": lambda: PlainIndexerPrefill([Bomb()]),  # type: ignore[list-item]
}


@pytest.mark.parametrize("make", HOSTILE.values(), ids=list(HOSTILE))
@pytest.mark.parametrize("level", list(Level))
def test_warn_never_raises_whatever_the_object(make: Callable[[], Any], level: Level) -> None:
    """In ``warn`` the result of a build is returned, even when looking at it raises."""
    with validating("warn", level.value):

        @validated(SparseMLAMetadata)
        def build(batch: object) -> Any:
            return made

        made = make()
        assert build(subject().batch) is made
        assert build(Bomb()) is made


@pytest.mark.parametrize("kind", KINDS)
def test_check_metadata_changes_and_keeps_nothing(kind: str) -> None:
    """After a check, good or bad, the object is as before, and is freed when its owner lets go."""
    for spoil in (False, True):
        made = subject(kind)
        if spoil:
            made.metadata.num_prefills += 1
        before, count = copy.deepcopy(made.metadata), sys.getrefcount(made.metadata)
        found = check_metadata(made.metadata, batch=made.batch, facts=PLAIN, level=Level.VALUES)
        assert bool(found) == spoil
        tally().add(found)
        after = sys.getrefcount(made.metadata)
        assert after == count
        assert repr(before) == repr(made.metadata)
        watch = [weakref.ref(made.metadata), weakref.ref(made.batch), weakref.ref(made.metadata.slot_mapping)]
        gc.disable()
        try:
            del made
            assert [ref() for ref in watch] == [None, None, None]
        finally:
            gc.enable()


def test_warn_reports_each_violation_once_and_counts(caplog: pytest.LogCaptureFixture) -> None:
    """Ten broken steps give one log entry, and a table with a count of ten."""
    with validating("warn"), caplog.at_level(logging.WARNING, "mla_contract"):

        @validated(SparseMLAMetadata)
        def build(batch: object) -> Any:
            made = subject().metadata
            made.num_decode_tokens = None
            return made

        for _ in range(10):
            build(subject().batch)
        assert len(caplog.records) == len(tally().counts()) == 1
        tally().log_table()
    assert tally().counts() == {("MLA103", "PlainSparse.num_decode_tokens"): 10}
    assert "10  MLA103  PlainSparse.num_decode_tokens" in caplog.text


def test_tally_of_nothing_is_silent(caplog: pytest.LogCaptureFixture) -> None:
    """Without violations there is no table."""
    Tally().log_table()
    assert Tally().table() == "" and not caplog.records


def test_tally_of_names_that_never_repeat_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    """Classes made at every step and layer names with brackets are counted together at some point, and none is lost."""
    counted = Tally()
    for number in range(MOST_KINDS + 500):
        counted.add([Violation("MLA101", f"Record{number}[a].b]", "field is missing")])
    assert len(counted.counts()) == MOST_KINDS + 1
    assert sum(counted.counts().values()) == MOST_KINDS + 500
    assert len(caplog.records) == MOST_KINDS + 1
    counted.clear()


def test_validated_finds_the_batch_and_the_facts_of_the_builder() -> None:
    """The wrapper sees the common batch among the arguments, and asks the builder for its facts."""
    with validating("error"):

        class Builder:
            threshold = 1

            @validated(SparseMLAMetadata, facts=lambda builder: Facts(decode_threshold=builder.threshold))
            def build(self, common_prefix_len: int, common_attn_metadata: object, fast_build: bool = False) -> Any:
                """Build."""
                return made.metadata

        made = subject()
        assert Builder.build.__doc__ == "Build."
        with pytest.raises(ContractError) as caught:
            Builder().build(0, common_attn_metadata=made.batch)
        assert [found.code for found in caught.value.violations] == ["MLA234"]
        Builder.threshold = 2
        assert Builder().build(0, made.batch) is made.metadata


def test_check_metadata_of_meta_tensors_reads_nothing() -> None:
    """Arrays without storage pass the structural level, and do not crash the values level."""
    made = subject()
    for name in ("block_table", "req_id_per_token", "query_start_loc", "slot_mapping", "seq_lens"):
        setattr(made.metadata, name, getattr(made.metadata, name).to("meta"))
    made.metadata.prefill = None
    assert check_metadata(made.metadata, SparseMLAMetadata) == ()
    report_metadata(made.metadata, SparseMLAMetadata, level=Level.VALUES)
    assert made.metadata.block_table.device == torch.device("meta")
