"""The certification of kernel providers accepts ours on what they say they run, and finds every planted fault."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from mla_contract.backends.kernels.reference import ReferenceProvider
from mla_contract.cli.main import app
from mla_contract.contract.schema.provider import KernelProvider
from mla_contract.testing.aiter_double import install
from mla_contract.testing.provider_cases import provider_cases
from mla_contract.testing.provider_suite import CaseVerdict
from mla_contract.testing.providers import judges
from tests.testing import bad_providers

torch.set_num_threads(1)
ROOT = Path(__file__).resolve().parents[2]


def verdicts_of(provider: KernelProvider, *words: str, device: str = "cpu") -> list[CaseVerdict]:
    """Return the verdicts of all cases whose name has one of these words."""
    chosen = [judge for name, judge in judges() if any(word in name for word in words or ("",))]
    assert chosen
    return [verdict for judge in chosen for verdict in judge(provider, device)]


def test_reference_is_certified_on_every_case() -> None:
    """The reference runs every case but planned work, and neither layout of the outputs misleads it."""
    words = ("MapSlots", "TopkRows", "16 heads", "sinks", "rows", "IndexerK", "ChunkLogits", "1 queries", "work: no")
    verdicts = verdicts_of(bad_providers.good(), *words)
    assert [fault.render() for verdict in verdicts for fault in verdict.faults] == []
    refused = {verdict.operation for verdict in verdicts if verdict.refused}
    assert refused == {"SizeWork"} and len(verdicts) > 150


FAULTS = {
    bad_providers.NonsenseMap: ("MapSlots:", r"differs from the reference", r"out\[\d+, \d+\]"),
    bad_providers.UnwrittenRow: ("MapSlots: block 16", r"is not written", r"out\[8, 0\]"),
    bad_providers.BeyondRows: ("MapSlots: block 16, 9", r"writes outside its output", r"out, row 9, element 0"),
    bad_providers.BetweenRows: ("MapSlots: block 16, 9", r"writes outside its output", r"out, row 0, element 64"),
    bad_providers.BinaryLse: ("SparseAttention: sinks", r"differs from the reference", r"lse\[0, 0\]"),
    bad_providers.ChangedInput: ("SparseAttention: sinks", r"an input is changed", r"kv_indices"),
    bad_providers.GarbageReader: ("SparseAttention: sinks", r"the provider raises", r"SparseAttention"),
    bad_providers.StoredPadding: ("WriteIndexerK:", r"written that no token has|differs from the reference", r"cache"),
    bad_providers.WritesAndRefuses: ("MapSlots: block 16, 9", r"refuses and writes", r"out"),
    bad_providers.NoTextReason: ("MapSlots: block 16, 9", r"a reason is not a text", r"reason\(MapSlots\)"),
}


@pytest.mark.parametrize("made", FAULTS)
def test_planted_fault_is_found_where_it_is(made: type[ReferenceProvider]) -> None:
    """Each fault is named with its place, what was expected and found; the reference is silent on the same cases."""
    word, what, where = FAULTS[made]
    faults = [fault for verdict in verdicts_of(made(), word) for fault in verdict.faults]
    assert any(re.search(what, fault.what) and re.search(where, fault.where) for fault in faults), faults[:3]
    assert all(fault.expected and fault.got for fault in faults)
    assert not any(verdict.faults for verdict in verdicts_of(ReferenceProvider(), word))


@pytest.mark.parametrize(
    "word", ["TopkRows: decode, topk 64", "SparseAttention: padding", "PagedLogits: float8_e4m3fn, normal, power"]
)
def test_unwritten_row_is_found_in_every_operation_that_writes_rows(word: str) -> None:
    """NaN in floats and a poison in integers stay where a kernel does not write."""
    verdicts = [one for one in verdicts_of(bad_providers.UnwrittenRow(), word) if "stable" not in one.case]
    assert verdicts and all(any("is not written" in fault.what for fault in one.faults) for one in verdicts)


def test_cases_cover_every_operation_with_edges() -> None:
    """Each operation has a batch without rows, and every element type that the reference knows is in some case."""
    made = [(case.name, case.make()) for case in provider_cases()]
    operations = {type(one).__name__ for _, one in made}
    assert operations == {
        *("MapSlots", "TopkRows", "SparseAttention", "WriteIndexerK", "GatherIndexerK", "ChunkLogits", "PagedLogits"),
    }
    empty = {type(one).__name__ for name, one in made if re.search(r"\bno (rows|tokens|keys|requests)|, 0 rows", name)}
    assert empty == operations
    types = {one.q.dtype for _, one in made if hasattr(one, "q")}
    assert types == {torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn, torch.float8_e4m3fnuz}


def test_aiter_through_the_double_is_certified_on_what_it_runs() -> None:
    """Each operation that aiter has is run on some case; what it refuses it refuses in words, before it writes."""
    words = (
        *("MapSlots: block 16, 9", "TopkRows: decode, topk 64", "TopkRows: prefill, topk 64", "ChunkLogits"),
        *("shuffle, power of two, block 16", "SparseAttention: bfloat16 over bfloat16, 16", "work: no empty"),
        "work: bfloat16 over bfloat16, 16",
    )
    with install("0.1.20", "gfx950"):
        verdicts = verdicts_of(bad_providers.aiter_double(), *words)
        spoilt = verdicts_of(bad_providers.bad_work(), "work: no empty")
    assert [fault.render() for verdict in verdicts for fault in verdict.faults] == []
    certified = {verdict.operation for verdict in verdicts if verdict.refused is None}
    assert certified == {
        *("TopkRows", "ChunkLogits", "WriteIndexerK", "GatherIndexerK", "PagedLogits", "SparseAttention"),
        *("SizeWork", "FillWork"),
    }
    assert any(verdict.faults for verdict in spoilt if verdict.case.endswith("planned"))


TRITON = """
import sys
from mla_contract.backends.kernels.triton import TritonProvider
from tests.testing.test_provider_suite import verdicts_of
words = ("MapSlots: block 16, 9", "TopkRows: decode, topk 64", "TopkRows: prefill, topk 64", "ChunkLogits: float32")
words += ("SparseAttention: rows of 80", "GatherIndexerK: bfloat16, block 16", "WriteIndexerK: bfloat16, block 16")
words += ("PagedLogits: bfloat16, block 16, 3", "no rows", "no keys", "no tokens")
verdicts = verdicts_of(TritonProvider(interpreted=True), *words)
for verdict in verdicts:
    for fault in verdict.faults:
        print(verdict.operation, verdict.case, fault.render())
print(sorted({one.operation for one in verdicts if one.refused is None and not one.faults}))
sys.exit(any(one.faults for one in verdicts))
"""


def test_triton_in_its_interpreter_is_certified_on_a_few_cases() -> None:
    """The interpreter is slow: one case of each operation, in a process that may turn it on."""
    if not find_spec("triton"):
        pytest.skip("Triton is not installed")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", TRITON]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    for name in ("MapSlots", "TopkRows", "SparseAttention", "GatherIndexerK", "WriteIndexerK", "ChunkLogits"):
        assert f"'{name}'" in done.stdout


def run_pytest(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the plugin in a pytest of its own."""
    command = [sys.executable, "-m", "pytest", "-p", "mla_contract.testing.plugin", "-q", "-p", "no:cacheprovider"]
    return subprocess.run([*command, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)


def test_plugin_certifies_a_provider_case_by_case() -> None:
    """One item a case; a wrong one fails with its fault, a refused one is skipped with the reason."""
    done = run_pytest("--mla-provider", "tests.testing.bad_providers:NonsenseMap", "-k", "MapSlots or work")
    assert done.returncode == 1
    assert "differs from the reference" in done.stdout and "the reference needs no work plan" in done.stdout
    done = run_pytest("--mla-provider", "tests.testing.bad_providers:good", "-k", "MapSlots")
    assert done.returncode == 0 and "10 passed" in done.stdout, done.stdout
    done = run_pytest("--mla-provider", "tests.testing.bad_providers:GarbageReader", "-k", "sinks", "--tb=long")
    assert done.returncode == 1 and "# the author's kernel" in done.stdout


def test_check_certifies_a_provider() -> None:
    """The table counts cases by operation; the exit code says whether any is wrong; a target's mistake exits with 2."""
    done = CliRunner().invoke(app, ["check", "--provider", "tests.testing.bad_providers:NonsenseMap"])
    assert done.exit_code == 1
    assert re.search(r"MapSlots +│ 2 +│ 0 +│ ! 8", done.output), done.output
    assert "out[0, 0]: differs from the reference" in done.output and "expected" in done.output
    assert CliRunner().invoke(app, ["check", "--provider", "no_such"]).exit_code == 2
    wrong = CliRunner().invoke(app, ["check", "--provider", "tests.testing.bad_providers:nameless"])
    assert wrong.exit_code == 2 and "object.reason" in wrong.output and "a method that takes" in wrong.output
