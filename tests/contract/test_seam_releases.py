"""Seam files against the real sources of vLLM releases, which are on the path and are never imported."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from mla_contract import write_seam
from tests.contract.mypy_runs import ROOT, run_mypy

pytestmark = pytest.mark.slow

MLA = "vllm.v1.attention.backends.mla"
LAYER = "vllm.model_executor.layers.attention.mla_attention"
ROCM = f"{MLA}.rocm_aiter_mla_sparse:ROCMAiterMLASparseMetadata"
XPU = f"{MLA}.xpu_mla_sparse:XPUMLASparseMetadata"
CUDA = (
    f"{MLA}.flashmla_sparse:FlashMLASparseMetadata",
    f"{MLA}.flashinfer_mla_sparse:FlashInferMLASparseMetadata",
    f"{MLA}.flashattn_mla_sparse:FlashAttnMLASparseMetadata",
)
COUNTS_THAT_ARE_NEW = {"num_decodes", "num_prefills", "num_decode_tokens"}

Checker = Callable[[str, Sequence[str], Sequence[str]], set[tuple[str, str]]]


@pytest.fixture(scope="module")
def check(release_tree: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Checker:
    """Return a function from a release, classes and tiers to the set of (class, missing member).

    Only the seam is reported on; torch stays unknown, as in the environment in which vLLM's own hook runs. The runs for
    one release share a cache.
    """
    folder = tmp_path_factory.mktemp("seams")

    def missing(version: str, classes: Sequence[str], tiers: Sequence[str]) -> set[tuple[str, str]]:
        seam = folder / "seam.py"
        seam.write_text(write_seam(classes, tiers))
        options = ("--follow-imports", "silent", "--ignore-missing-imports", "--no-site-packages")
        tree = release_tree(version)
        found, output = run_mypy([seam], *options, cwd=folder, sources=(tree, ROOT), cache=folder / version)
        errors = [report.text for report in found if report.kind == "error"]
        absent = {(text.split('"')[1], text.split('"')[3]) for text in errors if "[attr-defined]" in text}
        others = [text for text in errors if "[attr-defined]" not in text]
        rejected = {text.split('type "')[1].split('"')[0] for text in others if "incompatible type" in text}
        assert rejected == {name for name, _ in absent}, output
        assert all("incompatible type" in text for text in others), output
        return absent

    return missing


def lacking(*names: str) -> set[tuple[str, str]]:
    """Return the classes ``names``, each without the counts that the layer began to read in 0.26.0."""
    return {(name, field) for name in names for field in COUNTS_THAT_ARE_NEW}


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("0.26.0", lacking("ROCMAiterMLASparseMetadata", "XPUMLASparseMetadata")),
        ("0.27.0", lacking("XPUMLASparseMetadata")),
        ("0.33.0", set()),
    ],
)
def test_counts_sparse_backends_fail_until_their_fix(
    check: Checker, version: str, expected: set[tuple[str, str]]
) -> None:
    """ROCm fails on 0.26.0 only, XPU on 0.26.0 and 0.27.0; a CUDA class beside them passes throughout."""
    assert check(version, [ROCM, XPU, CUDA[0]], ["counts"]) == expected


def test_sparse_mla_cuda_and_rocm_pass_on_0_33(check: Checker) -> None:
    """The classes that share the sparse base provide every sparse tier of the contract."""
    assert check("0.33.0", [*CUDA, ROCM], ["core", "sparse", "sparse-mla"]) == set()


def test_sparse_mla_xpu_on_0_33_lacks_what_only_dense_prefill_and_context_parallel_read(check: Checker) -> None:
    """XPU, which routes every token through decode, still lacks the conditional fields."""
    fields = {"prefill", "decode", "prefill_max_seq_len", "seq_lens", "decode_max_query_len"}
    assert check("0.33.0", [XPU], ["sparse-mla"]) == {("XPUMLASparseMetadata", field) for field in fields}


@pytest.mark.parametrize(
    ("target", "tiers"),
    [
        ("vllm.v1.attention.backend:CommonAttentionMetadata", ["batch"]),
        ("vllm.v1.worker.workspace:WorkspaceManager", ["workspace"]),
        (f"{LAYER}:MLACommonMetadata", ["counts", "core", "mla"]),
        (f"{LAYER}:MLACommonDecodeMetadata", ["decode"]),
        (f"{LAYER}:MLACommonPrefillMetadata", ["prefill", "prefill-dense"]),
        (f"{LAYER}:MLACommonPrefillMetadata.ChunkedContextMetadata", ["context-chunks"]),
        (f"{LAYER}:MLACommonPrefillMetadata.ContextChunk", ["context-chunk"]),
        (ROCM, ["aiter", "aiter-work", "aiter-sparse"]),
        (f"{MLA}.indexer:DeepseekV32IndexerMetadata", ["indexer"]),
        (f"{MLA}.indexer:DeepseekV32IndexerPrefillMetadata", ["indexer-prefill"]),
        (f"{MLA}.indexer:DeepseekV32IndexerPrefillChunkMetadata", ["indexer-chunk"]),
        (f"{MLA}.indexer:DeepSeekV32IndexerDecodeMetadata", ["indexer-decode"]),
    ],
)
def test_tier_class_of_0_33_provides_it(check: Checker, target: str, tiers: list[str]) -> None:
    """Each tier is provided by the class of 0.33.0 that it describes."""
    assert check("0.33.0", [target], tiers) == set()


@pytest.mark.parametrize(
    ("version", "tier", "passes"),
    [
        ("0.26.0", "context-fields", True),
        ("0.26.0", "context-fields-lens", False),
        ("0.26.0", "context-chunks", False),
        ("0.27.0", "context-fields-lens", True),
        ("0.33.0", "context-fields", False),
        ("0.33.0", "context-chunks", True),
    ],
)
def test_chunked_context_shape_follows_the_release(check: Checker, version: str, tier: str, passes: bool) -> None:
    """Each release has one shape of chunked context, and lacks members of the other."""
    absent = check(version, [f"{LAYER}:MLACommonPrefillMetadata.ChunkedContextMetadata"], [tier])
    assert (absent == set()) is passes
