"""The POLICY rules on real releases of vLLM: what the shipped ROCm indexer ignores, over-reserves and allocates."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mla_contract.audit.finding import Finding, Severity
from mla_contract.audit.project import open_project
from mla_contract.audit.rules import ignored_flag, loop_allocation, workspace_reservation
from mla_contract.audit.source.tree import open_tree

pytestmark = pytest.mark.slow

ROCM_OPS = "vllm/v1/attention/ops/rocm_aiter_mla_sparse.py"
CHUNK = "vllm.v1.attention.backends.mla.indexer.DeepseekV32IndexerPrefillChunkMetadata"
RULES = (ignored_flag.RULE, loop_allocation.RULE, workspace_reservation.RULE)
GATHER_LINES = {"0.26.0": 762, "0.27.0": 730, "0.33.0": 1283}
OVER_RESERVED_LINES = {"0.26.0": [687, 691], "0.27.0": [656, 660], "0.33.0": []}


@pytest.fixture(scope="module")
def findings_of(release_tree: Callable[[str], Path]) -> Iterator[Callable[[str], list[Finding]]]:
    """Return a function from a version to the findings of the POLICY rules in that release, each computed once."""
    known: dict[str, list[Finding]] = {}

    def findings(version: str) -> list[Finding]:
        if version not in known:
            gc.disable()
            try:
                project = open_project(open_tree(release_tree(version)), release=version)
                known[version] = [finding for rule in RULES for finding in rule.check(project)]
            finally:
                gc.enable()
        return known[version]

    yield findings


@pytest.mark.parametrize("version", GATHER_LINES)
def test_ignored_flag_release_reports_the_rocm_gather_alone(
    version: str, findings_of: Callable[[str], list[Finding]]
) -> None:
    """The gather loop of the ROCm indexer ignores the flag; no other consumer, one chunk a step included, is named."""
    found = [f for f in findings_of(version) if f.code == "POL001" and f.severity is Severity.WARNING]
    assert [(f.path, f.line, f.cls, f.field) for f in found] == [
        (ROCM_OPS, GATHER_LINES[version], CHUNK, "skip_kv_gather")
    ]
    assert "sparse_attn_indexer.py:" in found[0].message


def test_ignored_flag_release_reports_work_that_the_twin_saves(findings_of: Callable[[str], list[Finding]]) -> None:
    """0.33.0: CUDA returns by use_dense_mha before it scores, ROCm scores whatever it says."""
    found = [f for f in findings_of("0.33.0") if f.code == "POL001" and f.severity is Severity.INFO]
    assert [(f.path, f.field) for f in found] == [(ROCM_OPS, "use_dense_mha")]


@pytest.mark.parametrize("version", OVER_RESERVED_LINES)
def test_workspace_reservation_release_reports_decode_logits_of_prefill_rows(
    version: str, findings_of: Callable[[str], list[Finding]]
) -> None:
    """Decode logits have a row for each prefill token in 0.26.0 and 0.27.0, and are bounded in 0.33.0."""
    found = [f for f in findings_of(version) if f.code == "POL002" and f.field == "hidden_states.shape[0]"]
    assert [(f.path, f.line) for f in found] == [(ROCM_OPS, line) for line in OVER_RESERVED_LINES[version]]
    assert all("max_model_len) of 4 bytes" in f.message for f in found)


def test_workspace_reservation_release_reports_nothing_of_the_cuda_indexer(
    findings_of: Callable[[str], list[Finding]],
) -> None:
    """The CUDA indexer reserves what it uses: specs from a function, a platform's own workspace, optional pairs."""
    for version in OVER_RESERVED_LINES:
        assert [
            f for f in findings_of(version) if f.code == "POL002" and f.path.endswith("/sparse_attn_indexer.py")
        ] == []


def test_loop_allocation_release_reports_pool_buffers_alone(findings_of: Callable[[str], list[Finding]]) -> None:
    """0.26.0 allocates nothing in a chunk loop; in 0.33.0 one model's two indexers do."""
    assert [f for f in findings_of("0.26.0") if f.code == "POL003"] == []
    found = [f for f in findings_of("0.33.0") if f.code == "POL003"]
    assert {f.path.rpartition("/")[2] for f in found} == {"sparse_indexer.py"}
    assert len(found) == 2
