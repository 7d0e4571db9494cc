"""The hooks of both release lines, with classes of vLLM's shapes."""

from __future__ import annotations

import copy
import gc
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from mla_contract.errors import ContractError
from mla_contract.plugin import hooks
from mla_contract.plugin.arming import decided_clauses
from mla_contract.plugin.monitor import Monitor, Origin
from mla_contract.runtime import check as runtime_check
from mla_contract.runtime import tally, validating
from mla_contract.testing.lowering import LoweredKind
from tests.lab import subjects as legal
from tests.lab.subjects import make_subject
from tests.plugin.engine_double import (
    DenseBackend,
    Engine,
    MLAAttentionSpec,
    OtherSpec,
    PlainBackend,
    SparseBackend,
    new_engine,
    old_engine,
)

LINES = {"old": old_engine, "new": new_engine}
CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "build": lambda group, batch: group.build_metadata(batch),
    "capture": lambda group, batch: group.build_metadata_for_cudagraph_capture(batch),
    "drafting": lambda group, batch: group.build_metadata_for_drafting(batch, 0),
}
OLD_CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "build": lambda group, batch: group.get_metadata_builder().build(0, batch),
    "capture": lambda group, batch: group.get_metadata_builder().build_for_cudagraph_capture(batch),
    "drafting": lambda group, batch: group.get_metadata_builder().build_for_drafting(batch, 0),
}


@pytest.fixture(autouse=True)
def fresh_tally() -> Iterator[None]:
    """Forget what other tests reported."""
    tally().clear()
    yield
    tally().clear()


@pytest.fixture(params=LINES)
def line(request: pytest.FixtureRequest) -> str:
    """Return a release line."""
    return str(request.param)


class Bench:
    """One engine, wrapped, with one group whose builder returns what the test says."""

    def __init__(
        self, line: str, monkeypatch: pytest.MonkeyPatch, backend: Any, spec: Any, builder: Any = None
    ) -> None:
        self.engine: Engine = LINES[line]()
        monkeypatch.setattr(hooks, "group_class", lambda: self.engine.group)
        monkeypatch.setattr(hooks, "builder_class", lambda: self.engine.builder)
        self.monitor = Monitor("0.32")
        self.names = hooks.install_hooks(self.monitor)
        made = {} if builder is None else {"builder_cls": builder}
        self.group = self.engine.group(backend, spec, **made)
        self.group.create_metadata_builders(None)
        self.calls = CALLS if line == "new" else OLD_CALLS

    def build(self, result: Any, batch: Any, how: str = "build") -> Any:
        """Build as the engine of this line does."""
        self.group.get_metadata_builder().result = result
        return self.calls[how](self.group, batch)


def made(kind: LoweredKind, broken: bool) -> Any:
    """Return a legal subject, or one whose field is missing a part of its name's promise."""
    subject = make_subject(kind)
    if broken:
        subject.metadata.num_prefills += 1
    return subject


@pytest.mark.parametrize("how", CALLS)
@pytest.mark.parametrize("broken", [False, True])
def test_choke_point_of_each_line_checks_every_way_to_build(
    line: str, how: str, broken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Building, capture and drafting are checked on both lines; legal metadata passes through as it is."""
    bench = Bench(line, monkeypatch, DenseBackend, MLAAttentionSpec())
    subject = made(LoweredKind.DENSE, broken)
    with validating("error"):
        if broken:
            with pytest.raises(ContractError, match="num_prefills"):
                bench.build(subject.metadata, subject.batch, how)
        else:
            assert bench.build(subject.metadata, subject.batch, how) is subject.metadata
    assert bench.monitor.table().split()[0] == "1"


@pytest.mark.parametrize("kind", [LoweredKind.DENSE, LoweredKind.SPARSE, LoweredKind.AITER, LoweredKind.INDEXER])
@pytest.mark.parametrize("wrap", [lambda one: {"layer": one}, lambda one: [{"a": one, "b": one}, {"a": None}]])
def test_choke_point_of_containers_checks_each_record_once(
    line: str, kind: LoweredKind, wrap: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dict by layer and a list of dicts are looked into; each record counts once."""
    backend = {LoweredKind.DENSE: DenseBackend, LoweredKind.INDEXER: PlainBackend}.get(kind, SparseBackend)
    bench = Bench(line, monkeypatch, backend, MLAAttentionSpec())
    subject = made(kind, broken=True)
    with validating("warn"):
        bench.build(wrap(subject.metadata), subject.batch)
    assert bench.monitor.table().split()[0] == "1"
    assert tally().counts()


def test_choke_point_of_none_says_nothing(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A profiling run without metadata passes."""
    bench = Bench(line, monkeypatch, DenseBackend, MLAAttentionSpec())
    with validating("error"):
        assert bench.build(None, None) is None
    assert bench.monitor.table() == ""


@pytest.mark.parametrize(("backend", "spec"), [(PlainBackend, OtherSpec()), (PlainBackend, None)])
def test_choke_point_of_other_attention_is_left_alone(
    line: str, backend: Any, spec: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Metadata that is not MLA's is not checked, whatever fields it has."""
    bench = Bench(line, monkeypatch, backend, spec)
    subject = made(LoweredKind.INDEXER, broken=True)
    with validating("error"):
        assert bench.build(subject.metadata, subject.batch) is subject.metadata
        bench.build(subject.metadata, subject.batch)
    assert bench.monitor.table() == "left alone: PlainIndexer, because no reader of this contract reads it"


def test_choke_point_says_once_who_is_left_alone_and_never_of_who_is_checked(
    line: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The class of another attention is named once, at its first build; that of MLA is not."""
    caplog.set_level("INFO", "mla_contract")
    subject = made(LoweredKind.DENSE, broken=False)
    for backend, spec, said in ((PlainBackend, OtherSpec(), 1), (DenseBackend, MLAAttentionSpec(), 0)):
        caplog.clear()
        bench = Bench(line, monkeypatch, backend, spec)
        with validating("error"):
            for _ in range(2):
                bench.build(subject.metadata, subject.batch)
        assert [text for text in caplog.messages if "left alone" in text] == [
            "mla-contract: left alone: PlainDense, because no reader of this contract reads it"
        ] * said
        assert ("left alone" in bench.monitor.table()) == bool(said)


def test_choke_point_notes_what_is_harmless_and_raises_nothing(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Flags of live requests alone are listed beside the builds; a batch with all flags deserves no note."""
    bench = Bench(line, monkeypatch, DenseBackend, MLAAttentionSpec())
    padded = legal.padded()
    with validating("error", "values"):
        for flags in (padded.batch.num_reqs, padded.batch.num_reqs - 1):
            batch = replace(padded.batch, is_prefilling=torch.zeros(flags, dtype=torch.bool))
            bench.build(padded.metadata, batch)
    assert bench.monitor.notes() == {("flags of live requests only", "PlainDense"): 1}
    assert "note        PlainDense: flags of live requests only" in bench.monitor.table()
    assert tally().counts() == {}


def test_choke_point_wrapped_twice_checks_once(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plugins load several times; the second time changes nothing."""
    bench = Bench(line, monkeypatch, DenseBackend, MLAAttentionSpec())
    assert hooks.install_hooks(bench.monitor) == bench.names
    subject = made(LoweredKind.DENSE, broken=False)
    with validating("error"):
        bench.build(subject.metadata, subject.batch)
    assert bench.monitor.table().split()[0] == "1"


def test_choke_point_of_later_and_foreign_builders_is_wrapped(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fork's builder, defined after arming and without vLLM's base class, is checked as well."""

    class ForeignBuilder:
        """Has the methods of a builder, and nothing else of vLLM's."""

        def __init__(self, spec: Any) -> None:
            self.kv_cache_spec = spec
            self.result: Any = None

        def build(self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False) -> Any:
            """Return the result."""
            return self.result

    bench = Bench(line, monkeypatch, DenseBackend, MLAAttentionSpec(), ForeignBuilder)
    subject = made(LoweredKind.DENSE, broken=True)
    with validating("error"), pytest.raises(ContractError):
        bench.build(subject.metadata, subject.batch)

    class Later(bench.engine.builder):  # type: ignore[misc, name-defined]
        """Overrides ``build`` and calls ``super()``: one build, one check."""

        def build(self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False) -> Any:
            """Build as the base does."""
            return super().build(common_prefix_len, common_attn_metadata, fast_build)

    group = bench.engine.group(DenseBackend, MLAAttentionSpec(), Later)
    group.create_metadata_builders(None)
    bench.group = group
    with validating("error"), pytest.raises(ContractError):
        bench.build(subject.metadata, subject.batch)
    assert bench.monitor.table().split()[0] == "2"


def test_choke_point_in_warn_mode_never_raises(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An object that raises when it is looked at is reported, and the build goes on."""

    class Hostile:
        """Raises on every field."""

        def __getattr__(self, name: str) -> Any:
            raise RuntimeError(name)

    bench = Bench(line, monkeypatch, DenseBackend, MLAAttentionSpec())
    hostile = Hostile()
    with validating("warn"):
        assert bench.build(hostile, make_subject(LoweredKind.DENSE).batch) is hostile
    assert tally().counts()


class Refusal:
    """An attribute that raises when it is asked for, and counts how often it was."""

    def __init__(self) -> None:
        self.asked = 0

    def __get__(self, instance: Any, owner: type) -> Any:
        self.asked += 1
        raise RuntimeError("not now")


@pytest.mark.parametrize("attribute", ["metadata_builders", "kernel_block_size"])
@pytest.mark.parametrize("mode", ["warn", "error"])
def test_choke_point_of_a_group_that_raises_goes_on(
    attribute: str, mode: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever a check asks of the engine's objects, it asks inside the guard: the engine gets its result."""
    bench = Bench("new", monkeypatch, DenseBackend, MLAAttentionSpec())
    refusal, subject = Refusal(), made(LoweredKind.DENSE, broken=False)

    class Group(bench.engine.group):  # type: ignore[misc, name-defined]
        """Raises for us; its own look-up works."""

        def get_metadata_builder(self, ubatch_id: int = 0) -> Any:
            """Return a builder that is kept elsewhere."""
            return kept

    kept = bench.engine.builder(MLAAttentionSpec(), subject.metadata)
    setattr(Group, attribute, refusal)
    group = Group.__new__(Group)
    group.__dict__ |= {
        "backend": DenseBackend,
        "kv_cache_spec": MLAAttentionSpec(),
        "builder_cls": bench.engine.builder,
    }
    with validating(mode), caplog.at_level(logging.ERROR, "mla_contract"):
        if attribute == "kernel_block_size":
            group.create_metadata_builders(None)
        assert group.build_metadata(subject.batch) is subject.metadata
    assert refusal.asked
    assert "mla-contract: the check itself failed" in caplog.text and "not now" in caplog.text


def test_choke_point_of_a_batch_that_raises_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the older line the batch is looked for among the arguments, inside the guard as well."""
    bench = Bench("old", monkeypatch, DenseBackend, MLAAttentionSpec())
    refusal, subject = Refusal(), made(LoweredKind.DENSE, broken=False)
    hostile = type("Batch", (), {"query_start_loc_cpu": refusal})()
    with validating("error"):
        assert bench.build(subject.metadata, hostile) is subject.metadata
    assert refusal.asked


@pytest.mark.parametrize("broken", [False, True])
def test_choke_point_checks_the_batch_that_the_builder_was_given(broken: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A group that converts the block table does so once for a build, and the check sees what it made."""
    conversions: list[Any] = []

    def convert(self: Any, batch: Any, index: int = 0) -> Any:
        conversions.append(batch)
        return batch.replaced

    def build(self: Any, batch: Any, ubatch_idx: int = 0) -> Any:
        return self.get_metadata_builder(ubatch_idx).build(0, self._with_kernel_block_table(batch, ubatch_idx))

    engine = new_engine()
    engine.group._with_kernel_block_table, engine.group.build_metadata = convert, build
    monkeypatch.setitem(LINES, "new", lambda: engine)
    bench = Bench("new", monkeypatch, DenseBackend, MLAAttentionSpec())
    subject = made(LoweredKind.DENSE, broken)
    manager = type("ManagerBatch", (), {"replaced": subject.batch})()
    with validating("error"):
        if broken:
            with pytest.raises(ContractError, match="num_prefills"):
                bench.build(subject.metadata, manager)
        else:
            assert bench.build(subject.metadata, manager) is subject.metadata
    assert conversions == [manager]


def test_monitor_of_a_builder_that_cannot_be_hashed_remembers_it() -> None:
    """VLLM has builders that are dataclasses; they are told apart by identity, and forgotten when they are gone."""

    @dataclass
    class Builder:
        """A builder that compares by its fields, and so has no hash."""

        size: int

    monitor, one, two = Monitor("0.32"), Builder(1), Builder(1)
    origin = Origin(config="configuration")
    monitor.remember(one, origin)
    assert monitor.origin_of(one) is origin
    assert monitor.origin_of(two).config is None
    del one
    gc.collect()
    assert not monitor._origins._values


@pytest.mark.parametrize("kept", [True, False])
def test_choke_point_of_a_nested_record_of_the_last_build_reports_it_while_that_is_alive(
    kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two live records share no nested record; a record that is gone shares nothing, and nothing is kept alive."""
    bench = Bench("new", monkeypatch, DenseBackend, MLAAttentionSpec())
    first = made(LoweredKind.DENSE, broken=False)
    second = copy.copy(first.metadata)
    with validating("error"):
        bench.build(first.metadata, first.batch)
        if kept:
            with pytest.raises(ContractError, match="MLA246"):
                bench.build(second, first.batch)
        else:
            first.metadata = bench.group.get_metadata_builder().result = None
            gc.collect()
            assert bench.build(second, first.batch) is second


def test_decided_steps_of_checked_builds_count_what_was_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clause is decided on the builds that have what it needs, not on all; without the batch on none."""
    monkeypatch.setattr(runtime_check, "_checks", {})
    bench = Bench("new", monkeypatch, DenseBackend, MLAAttentionSpec())
    subject = made(LoweredKind.DENSE, broken=False)
    with validating("error"):
        for batch in (subject.batch, None, subject.batch):
            bench.build(subject.metadata, batch)
    ((protocol, decided, steps),) = runtime_check.decided_steps()
    assert (protocol, steps) == ("MLAMetadata", 3)
    assert decided["MLA233"] == 2
    assert "MLA246" not in decided and "MLA412" not in decided
    assert decided_clauses()["MLA233"] == (2, 3)


def test_choke_point_passes_what_the_builder_declares(monkeypatch: pytest.MonkeyPatch) -> None:
    """A split that leaves a decode to the prefills breaks a declared shared split, and nothing else."""
    declared = make_subject(LoweredKind.SPARSE).declaration
    assert declared is not None
    for said, codes in ((None, set()), ("shared", set()), (declared, {"MLA237"})):
        bench = Bench("new", monkeypatch, SparseBackend, MLAAttentionSpec())
        builder = bench.group.get_metadata_builder()
        builder.reorder_batch_threshold, builder.declaration = 100, said
        subject = make_subject(LoweredKind.SPARSE)
        tally().clear()
        with validating("warn"):
            bench.build(subject.metadata, subject.batch)
        assert {code for code, _ in tally().counts()} & {"MLA237"} == codes
