"""Our sparse backends in the real engine: tokens as transformers', on traffic with every kind of step."""

from __future__ import annotations

import pytest

from mla_contract.testing.engine.processes import EngineRun
from mla_contract.testing.engine.smoke import (
    Smoke,
    check_findings,
    equal_tokens,
    largest_difference,
    traffic_findings,
)
from tests.engine.conftest import AskedModel
from tests.engine.runs import DOUBLED, FP8, GLM, PLAIN, lines_of, run_backend

pytestmark = pytest.mark.slow

CLOSE = 1e-3
"""Log probabilities in float32 differ by the order of sums; a selection that differs moves them by much more."""


def check(run: EngineRun, subject: AskedModel, smoke: Smoke) -> None:
    """Assert that a run finished, met every kind of step, broke no clause, and agrees with the sparse model only."""
    assert run.outcome["error"] == "", run.outcome["message"]
    tokens = run.outcome["tokens"]
    free, dense = subject.free[smoke], subject.dense[smoke]
    total = sum(map(len, free.tokens))
    assert equal_tokens(tokens, free.tokens) == total
    assert equal_tokens(tokens, dense.tokens) < total / 2
    for finding in (*traffic_findings(run), *check_findings(run)):
        assert finding.holds is not False, finding.text


def test_rocm_sparse_on_deepseek_equals_transformers(deepseek: AskedModel) -> None:
    """All greedy tokens of DeepSeek-V3.2 are transformers', to the fifth digit of the log probabilities."""
    run = run_backend(deepseek.model, PLAIN)
    check(run, deepseek, PLAIN)
    assert largest_difference(run, deepseek.free[PLAIN]) < CLOSE
    assert {name for _, name, *_ in run.outcome["checked"]} == {"RocmSparseMetadata", "SparseIndexerMetadata"}


def test_rocm_sparse_on_glm_equals_transformers(glm: AskedModel) -> None:
    """So are those of GLM-MoE-DSA, whose last layer shares a selection."""
    run = run_backend(glm.model, GLM)
    check(run, glm, GLM)
    assert largest_difference(run, glm.free[GLM]) < CLOSE


def test_rocm_sparse_with_fp8_keys_equals_rounding_transformers(calm_deepseek: AskedModel) -> None:
    """With quantised keys they are those of a model that rounds as the cache does."""
    check(run_backend(calm_deepseek.model, FP8), calm_deepseek, FP8)


def test_rocm_sparse_on_aiters_double_equals_rounding_transformers(calm_deepseek: AskedModel) -> None:
    """With aiter's calls they are those of a model that rounds keys, latents, queries and results as the kernels do."""
    run = run_backend(calm_deepseek.model, DOUBLED)
    check(run, calm_deepseek, DOUBLED)
    kernels = {"mla_decode_fwd", "fp8_mqa_logits", "deepgemm_fp8_paged_mqa_logits", "top_k_per_row_decode"}
    planning = {"get_mla_metadata_v1", "indexer_k_quant_and_cache", "cp_gather_indexer_k_quant_cache"}
    assert kernels | planning <= set(run.outcome["calls"])


def test_cuda_sparse_on_two_ranks_equals_transformers(deepseek: AskedModel) -> None:
    """The other backend agrees too, with the engine's core and two ranks in processes of their own, all validated."""
    run = run_backend(deepseek.model, Smoke(backend="cuda_sparse"), '{"num_workers": 2, "max_tokens": 8}')
    assert run.outcome["error"] == "", run.outcome["message"]
    free = [tokens[:8] for tokens in deepseek.free[PLAIN].tokens]
    assert equal_tokens(run.outcome["tokens"], free) == sum(map(len, free))
    # The two ranks build, and say what they check; the engine's core does not, and says nothing.
    for said in (
        "armed: mode error, level values",
        "attention backend in use: cuda_sparse",
        "checks sparse metadata of CudaSparseMetadata",
        "checks indexer metadata of SparseIndexerMetadata",
    ):
        assert len(lines_of(run, f"mla-contract: {said}")) == 2, said
    assert len({line.partition(" INFO ")[0] for line in lines_of(run, "mla-contract: ")}) == 2


def test_selection_one_row_off_is_noticed(deepseek: AskedModel) -> None:
    """A third party's class that reads the selection of another token breaks no clause, and gives other tokens."""
    shifted = Smoke(backend="shifted_selection.backend:ShiftedSparse")
    options = '{"prompt_lens": [200, 15], "arrivals": [0, 0], "shared_prefix": 0, "max_tokens": 4}'
    run = run_backend(deepseek.model, shifted, options)
    assert run.outcome["error"] == "", run.outcome["message"]
    right = [tokens[:4] for tokens in deepseek.free[PLAIN].tokens[:2]]
    assert equal_tokens(run.outcome["tokens"], right) < 8
    assert all(finding.holds for finding in check_findings(run))
