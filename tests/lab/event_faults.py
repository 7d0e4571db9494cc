"""Faults made by hand in what happens around a build: sharing, replay, reuse, calls, workspaces, slices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from mla_contract.contract.step.context import StepContext
from mla_contract.contract.step.trace import Call, DeviceRead, Reuse, Workspace
from mla_contract.testing import records
from tests.lab import subjects as legal
from tests.lab.changes import proof, put, shift
from tests.lab.faults import Change, PlantedFault


def event_faults() -> Iterator[PlantedFault]:
    """Yield the faults that trace shows."""
    yield from _layers()
    yield from _sharing()
    yield from _replay()
    yield from _schedules()
    yield from _workspace()
    yield from _slices()


def _fault(
    kind: str, base: str, path: str, codes: str, make: Callable[[], StepContext], change: Change
) -> PlantedFault:
    return PlantedFault(kind, base, base, path, tuple(codes.split()), make, change)


def _layers() -> Iterator[PlantedFault]:
    for name in ("num_decodes", "num_decode_tokens", "num_prefills"):
        yield _fault(
            "unequal counts",
            "two layers",
            f"PlainSparse.{name}",
            "MLA245",
            legal.two_layers,
            shift(f"trace.indexer.{name}", 1),
        )
    yield _fault("stale metadata", "two layers", "PlainSparse", "MLA393", legal.two_layers, proof(generation=(6, 7)))
    read = proof(device_reads=(DeviceRead("item()", ("builder.py:7 in build",)),))
    yield _fault(
        "hidden device read", "two layers", "PlainSparse: builder.py:7 in build", "MLA394", legal.two_layers, read
    )
    wanted = proof(metadata_class=records.PlainAiter)
    yield _fault("another class", "two layers", "PlainSparse", "MLA248", legal.two_layers, wanted)
    yield _fault(
        "wrong axes",
        "two layers",
        "PlainSparse.topk_indices",
        "MLA254",
        legal.two_layers,
        _facts(topk_rank=3, topk_shape=(4, 8)),
    )


def _facts(**changes: Any) -> Change:
    return lambda subject: replace(subject, facts=replace(subject.facts, **changes))


def _sharing() -> Iterator[PlantedFault]:
    for path in ("prefill", "decode", "prefill.chunked_context"):

        def share(subject: StepContext, path: str = path) -> None:
            other: Any = (subject.trace.alive or ())[0]
            for name in path.split("."):
                other = getattr(other, name)
            put(f"metadata.{path}", other)(subject)

        yield _fault("shared record", "two steps", f"PlainDense.{path}", "MLA246", legal.two_steps, share)


def _replay() -> Iterator[PlantedFault]:
    for name in ("block_table", "req_id_per_token", "seq_lens", "query_start_loc", "slot_mapping"):
        moved = put(f"metadata.{name}", lambda old: old.clone())
        yield _fault("moved buffer", "captured", f"PlainSparse.{name}", "MLA247", legal.captured, moved)
        shorter = put(f"metadata.{name}", lambda old: old[:-1])
        yield _fault("shorter view", "captured", f"PlainSparse.{name}", "MLA247", legal.captured, shorter)


def _schedules() -> Iterator[PlantedFault]:
    for name in legal.INPUTS:
        changed = Reuse("work", legal.INPUTS, {**legal.INPUTS, name: "changed"})
        yield _fault(
            "reuse with changed input", "reuse", f"work.{name}", "MLA392", legal.reuse, proof(reuse=(changed,))
        )
        left_out = {key: value for key, value in legal.INPUTS.items() if key != name}
        partial = Reuse("work", left_out, legal.INPUTS)
        yield _fault("input not in the key", "reuse", f"work.{name}", "MLA392", legal.reuse, proof(reuse=(partial,)))
    for name in legal.ARGUMENTS:
        calls = (Call("size", legal.ARGUMENTS), Call("kernel", {**legal.ARGUMENTS, name: "other"}))
        yield _fault("calls disagree", "calls", f"kernel.{name}", "MLA391", legal.calls, proof(calls=calls))


def _workspace() -> Iterator[PlantedFault]:
    first, second = "workspace[ubatch 0, decode]", "workspace[ubatch 1, decode]"
    table: tuple[tuple[str, str, str, dict[str, Any]], ...] = (
        ("too small", first, "MLA401", {"reserved_bytes": {legal.FIRST: 999, legal.SECOND: 1024}}),
        ("nothing reserved", first, "MLA401", {"reserved_bytes": {legal.FIRST: 0, legal.SECOND: 1024}}),
        ("too large", first, "MLA402", {"reserved_bytes": {legal.FIRST: 2001, legal.SECOND: 1024}}),
        ("wrong unit", first, "MLA402", {"reserved_bytes": {legal.FIRST: 4096, legal.SECOND: 1024}}),
        ("not aligned", "workspace.rows", "MLA403", {"rows": 100}),
        ("one too few", "workspace.rows", "MLA403", {"rows": 127}),
        ("forgotten slot", second, "MLA404", {"reserved_bytes": {legal.FIRST: 1024}}),
        ("shared slot", first, "MLA404", {"eager_slots": frozenset({legal.FIRST})}),
        ("late request", "workspace site fp8 scratch", "MLA405", {"sites": frozenset({"fp8 scratch"})}),
        ("forgotten site", "workspace site gather", "MLA405", {"planned_sites": frozenset({"logits"})}),
    )
    for kind, path, code, changes in table:
        bad: Workspace = replace(legal.SPACE, **changes)
        yield _fault(kind, "workspace", path, code, legal.space, proof(workspace=bad))


def _slices() -> Iterator[PlantedFault]:
    def in_child(name: str, value: Any) -> Change:
        def change(subject: StepContext) -> None:
            slices = subject.trace.slices
            if slices is not None:
                batch = slices.children[1].batch
                setattr(batch, name, value(getattr(batch, name)) if callable(value) else value)

        return change

    def fault(kind: str, name: str, code: str, value: Any, path: str = "") -> PlantedFault:
        place = path or f"PlainBatch[1].{name}"
        return _fault(kind, "micro-batches", place, code, legal.micro_batches, in_child(name, value))

    for name in ("positions", "is_prefilling", "seq_lens_cpu_upper_bound"):
        yield fault("slice forgets field", name, "MLA411", None)
    for name in (
        "query_start_loc",
        "query_start_loc_cpu",
        "seq_lens",
        "block_table_tensor",
        "slot_mapping",
        "positions",
        "is_prefilling",
        "seq_lens_cpu_upper_bound",
    ):
        yield fault("slice by another axis", name, "MLA412", lambda old: old[:-1])
    yield fault("starts above 0", "query_start_loc_cpu", "MLA413", lambda old: old + 9)
    yield fault("one too few", "num_actual_tokens", "MLA413", lambda old: old - 1, "PlainBatch.num_actual_tokens")
    yield fault("swapped rows", "slot_mapping", "MLA414", lambda old: old.flip(0))
    yield fault("swapped rows", "positions", "MLA414", lambda old: old.flip(0))
