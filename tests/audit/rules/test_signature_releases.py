"""SIG001 on real releases of vLLM, against the few signatures of aiter that their sparse MLA backend calls."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path

import pytest

from mla_contract.audit.finding import Finding
from mla_contract.audit.project import open_project
from mla_contract.audit.rules import aiter_signature
from mla_contract.audit.source.tree import open_tree

pytestmark = pytest.mark.slow

WORK = "work_metadata_ptrs, work_info_set, work_indptr, reduce_indptr, reduce_final_map, reduce_partial_map"
FLAGS = "max_seqlen_qo=-1, uni_seqlen_qo=-1, fast_mode=True, topk=-1, max_split_per_batch=-1, intra_batch_mode=False"
DECODE = (
    "sm_scale=None, logit_cap=0.0, num_kv_splits=None, num_kv_splits_indptr=None, work_meta_data=None, "
    "work_indptr=None, work_info_set=None, reduce_indptr=None, reduce_final_map=None, reduce_partial_map=None, "
    "q_scale=None, kv_scale=None, intra_batch_mode=False, return_logits=False, return_lse=False"
)
PAGES = "q, kv_buffer, o, qo_indptr, kv_indptr, kv_indices, kv_last_page_lens, max_seqlen_q"
INFO = "batch_size, max_seqlen_qo, num_head_qo, q_dtype, kv_dtype, is_sparse, fast_mode=True, max_split_per_batch=-1"
PARTIAL = "partial_output, partial_lse, reduce_indptr, reduce_final_map, reduce_partial_map, max_seqlen_q: int"
NEW = {
    "get_mla_metadata_v1": (
        "seqlens_qo_indptr, seqlens_kv_indptr, kv_last_page_lens, num_heads_per_head_k: int, num_heads_k: int, "
        f"is_causal, {WORK}, page_size=1, kv_granularity=16, {FLAGS}, is_cp_round_robin=False, "
        "dtype_q=None, dtype_kv=None"
    ),
    "mla_reduce_v1": f"{PARTIAL}, num_kv_splits: int, final_output, final_lse=None",
    "mla_decode_fwd": (
        f"{PAGES}, page_size=1, nhead_kv=1, {DECODE}, g_kv_indptr=None, cp_world_size=1, cp_rank=0, causal=True"
    ),
}
OLD = {
    "get_mla_metadata_v1": (
        "seqlens_qo_indptr, seqlens_kv_indptr, num_heads_per_head_k: int, num_heads_k: int, is_causal, "
        f"{WORK}, kv_granularity=16, {FLAGS}, dtype_q=None, dtype_kv=None"
    ),
    "mla_reduce_v1": f"{PARTIAL}, final_output, final_lse=None",
    "mla_decode_fwd": f"{PAGES}, {DECODE}",
}
SPARSE = "vllm/v1/attention/backends/mla/rocm_aiter_mla_sparse.py"
METADATA_LINES = {"0.26.0": 570, "0.27.0": 583, "0.33.0": 704}


def checkout(root: Path, signatures: dict[str, str]) -> Path:
    """Write a checkout of aiter with a few signatures."""
    (root / "aiter" / "ops").mkdir(parents=True)
    ops = [f"def {name}({parameters}): ..." for name, parameters in signatures.items() if name != "mla_decode_fwd"]
    ops.append(f"def get_mla_metadata_info_v1({INFO}): ...")
    (root / "aiter" / "__init__.py").write_text("from .ops.attention import *\n")
    (root / "aiter" / "ops" / "__init__.py").write_text("")
    (root / "aiter" / "ops" / "attention.py").write_text("\n".join(ops) + "\n")
    (root / "aiter" / "mla.py").write_text(
        f"def mla_decode_fwd({signatures['mla_decode_fwd']}): ...\n"
        "def get_meta_param(num_kv_splits, bs, total_kv, nhead, max_seqlen_q, dtype): ...\n"
    )
    return root


def findings(tree: Path, aiter: Path) -> list[Finding]:
    """Return the findings about calls of functions that the checkout holds, and about modules it lacks."""
    gc.disable()
    try:
        return list(aiter_signature.RULE.check(open_project(open_tree(tree), aiter=aiter)))
    finally:
        gc.enable()


@pytest.mark.parametrize("version", METADATA_LINES)
def test_signature_release_binds_to_the_new_signatures(
    version: str, release_tree: Callable[[str], Path], tmp_path: Path
) -> None:
    """Every call of these functions binds: by position, through spread mappings, behind probes."""
    found = findings(release_tree(version), checkout(tmp_path, NEW))
    assert [(f.path, f.line, f.message) for f in found if f.field in NEW and "has no module" not in f.message] == []
    absent = [f.field for f in found if f.path == "vllm/_aiter_ops.py" and f.field == "sparse_mla_fwd"]
    assert absent == (["sparse_mla_fwd"] if version == "0.33.0" else [])


@pytest.mark.parametrize("version", METADATA_LINES)
def test_signature_release_does_not_bind_to_the_old_signatures(
    version: str, release_tree: Callable[[str], Path], tmp_path: Path
) -> None:
    """Without kv_last_page_lens and page_size the metadata call is wrong in both MLA backends, and the reduce too."""
    found = findings(release_tree(version), checkout(tmp_path, OLD))
    (sparse,) = [f for f in found if f.path == SPARSE and f.field == "get_mla_metadata_v1" and f.condition is None]
    assert sparse.line == METADATA_LINES[version]
    assert "has no parameter 'page_size'" in sparse.message
    assert "gets 'kv_granularity' twice" in sparse.message
    assert [f.path for f in found if f.field == "mla_reduce_v1"] == [SPARSE.replace("_sparse", "")]
    causal = [f for f in found if f.field == "mla_decode_fwd" and "'causal'" in f.message]
    assert bool(causal) is (version == "0.33.0")
