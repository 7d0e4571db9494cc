"""The double itself: signatures, poison, aborts, and a clean way out."""

from __future__ import annotations

import inspect
import sys
from importlib import import_module
from typing import Any

import pytest
import torch

from mla_contract.backends.kernels.aiter.kernel_table import TABLE
from mla_contract.testing.aiter_double import RELEASES, AiterAbort, Chip, install
from tests.backends.rocm_sparse.aiter_cases import UNITS, inputs

FUNCTIONS = {
    "aiter.mla": "mla_decode_fwd",
    "aiter": "get_mla_metadata_v1",
    "aiter.ops.topk": "top_k_per_row_prefill",
    "aiter.ops.triton.attention.fp8_mqa_logits": "fp8_mqa_logits",
    "aiter.ops.cache": "indexer_k_quant_and_cache",
}


def parameters(module: str, name: str) -> list[str]:
    """Return the parameter names of a function of the installed double."""
    return list(inspect.signature(getattr(import_module(module), name)).parameters)


def decode(work: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """Return arguments of ``mla_decode_fwd`` for 7 rows of 16 heads, 2 of them empty."""
    case = inputs(16)
    arguments: dict[str, Any] = {
        "q": case.q,
        "kv_buffer": case.kv_cache.view(-1, 1, 1, 576),
        "o": case.out,
        "qo_indptr": torch.arange(8, dtype=torch.int32),
        "kv_indptr": case.kv_indptr,
        "kv_indices": case.kv_indices,
        "kv_last_page_lens": torch.ones(7, dtype=torch.int32),
        "max_seqlen_q": 1,
    }
    return arguments | (work or {}) | changes


def test_install_leaves_nothing_behind() -> None:
    """The modules exist inside the block only, nested blocks restore each other, and errors do not leak."""
    assert "aiter" not in sys.modules
    with install("0.1.20", "gfx950") as outer:
        with pytest.raises(ZeroDivisionError), install("0.1.12", "gfx942"):
            assert parameters("aiter.mla", "mla_decode_fwd")[-1] == "return_lse"
            raise ZeroDivisionError
        assert sys.modules["aiter"] is outer.module
        assert import_module("aiter.dtypes").fp8 is torch.float8_e4m3fn
    assert not [name for name in sys.modules if name.partition(".")[0] == "aiter"]


def test_install_unknown_release_is_refused() -> None:
    """A release that the table does not have is refused."""
    with pytest.raises(ValueError, match="0.1.20"), install("0.1.21", "gfx950"):
        pass


def test_signatures_differ_by_release_as_they_did() -> None:
    """The parameters that came with each release are there since, and not before."""
    since = {
        ("aiter", "get_mla_metadata_v1", "kv_last_page_lens"): "0.1.12",
        ("aiter.ops.cache", "indexer_k_quant_and_cache", "preshuffle"): "0.1.13",
        ("aiter.ops.topk", "top_k_per_row_prefill", "k"): "0.1.14",
        ("aiter", "get_mla_metadata_info_v1", "max_split_per_batch"): "0.1.16",
        ("aiter", "mla_reduce_v1", "num_kv_splits"): "0.1.16",
        ("aiter.mla", "mla_decode_fwd", "causal"): "0.1.20",
    }
    for index, release in enumerate(RELEASES):
        with install(release, "gfx942"):
            for (module, name, parameter), first in since.items():
                assert (parameter in parameters(module, name)) == (index >= RELEASES.index(first)), (release, name)
            assert hasattr(import_module("aiter.mla"), "mla_decode_fwd")
            assert ("aiter.ops.flydsl" in sys.modules) == (index >= RELEASES.index("0.1.18"))


def test_call_with_an_unknown_keyword_is_a_type_error() -> None:
    """A keyword that the release lacks fails as a real function would; the control binds."""
    with install("0.1.17", "gfx942"):
        fwd = import_module("aiter.mla").mla_decode_fwd
        fwd(**decode())
        with pytest.raises(TypeError, match="causal"):
            fwd(**decode(causal=True))


def test_decode_empty_rows_are_poisoned() -> None:
    """Without work an empty row is NaN with an LSE of -inf; the other rows are finite."""
    with install("0.1.20", "gfx942"):
        arguments = decode()
        _, lse = import_module("aiter.mla").mla_decode_fwd(**arguments, return_lse=True)
        empty = arguments["kv_indptr"].diff() == 0
        assert arguments["o"][empty].isnan().all() and torch.isneginf(lse[empty]).all()
        assert arguments["o"][~empty].isfinite().all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kv_indices": torch.full((400,), -1, dtype=torch.int32)}, "page that does not exist"),
        ({"qo_indptr": torch.arange(8)}, "index tables"),
        ({"q": torch.zeros(7, 16, 576, dtype=torch.float16)}, "no kernel"),
        ({"o": torch.zeros(7, 16, 512)}, "output"),
        ({"q": torch.zeros(7, 48, 576).bfloat16(), "o": torch.zeros(7, 48, 512).bfloat16()}, "48 heads"),
    ],
)
def test_decode_aborts_where_aiter_would(change: dict[str, Any], message: str) -> None:
    """What ends the process is an AiterAbort; the control runs."""
    with install("0.1.20", "gfx942"):
        fwd = import_module("aiter.mla").mla_decode_fwd
        fwd(**decode())
        with pytest.raises(AiterAbort, match=message):
            fwd(**decode(**change))


def test_reduce_by_keyword_means_the_same_in_both_orders() -> None:
    """``num_kv_splits`` came in before the output: by position calls break, by keyword they do not."""
    partial, partial_lse = torch.randn(2, 16, 512), torch.randn(2, 16)
    by_keyword = {
        "partial_output": partial,
        "partial_lse": partial_lse,
        "reduce_indptr": torch.tensor([0, 2]).int(),
        "reduce_final_map": torch.tensor([[0, 1]]).int(),
        "reduce_partial_map": torch.tensor([0, 1]).int(),
        "max_seqlen_q": 1,
    }
    found = []
    for release, extra in (("0.1.12", {}), ("0.1.16", {"num_kv_splits": 0})):
        with install(release, "gfx942"):
            reduce, out = import_module("aiter").mla_reduce_v1, torch.empty(1, 16, 512)
            reduce(**by_keyword, **extra, final_output=out)
            found.append(out)
            if extra:
                with pytest.raises(TypeError):
                    reduce(*by_keyword.values(), out)
    weights = torch.softmax(partial_lse, 0)[:, :, None]
    torch.testing.assert_close(found[0], (weights * partial).sum(0, keepdim=True))
    assert torch.equal(*found)


def test_topk_is_absolute_unsorted_and_careless() -> None:
    """Long rows come back as absolute columns out of order; short rows in order; rows are k apart in memory."""
    with install("0.1.20", "gfx950"):
        logits = torch.arange(64.0).repeat(2, 1)
        wide = torch.zeros(2, 8, dtype=torch.int32)
        import_module("aiter.ops.topk").top_k_per_row_prefill(
            logits, torch.tensor([10, 10]).int(), torch.tensor([30, 12]).int(), wide[:, :4], None, 2, 64, 1, k=4
        )
    assert sorted(wide.flatten()[:4].tolist()) == [26, 27, 28, 29] != wide.flatten()[:4].tolist()
    assert wide.flatten()[4:8].tolist() == [10, 11, -1, -1]


def test_sparse_triton_kernel_masks_and_leaves_heads() -> None:
    """-1 is masked, a row without slots is NaN, and heads behind a multiple of 16 stay unwritten."""
    with install("0.1.20", "gfx950"):
        kv = torch.randn(2, 16, 1, 24)
        q, out = torch.randn(2, 24, 24), torch.zeros(2, 24, 16)
        slots = torch.tensor([[3, -1, -1], [-1, -1, -1]]).int()
        none = torch.zeros(3, dtype=torch.int32)
        run = import_module("aiter.ops.triton.attention.unified_attention_sparse_mla").unified_attention_sparse_mla
        run(q, kv, out, none, 1, none, 1, 0.1, slots, none, 16)
    assert torch.allclose(out[0, :16], kv.view(32, 24)[3, :16].expand(16, 16))
    assert out[0, 16:].isnan().all() and out[1].isnan().all()


def test_table_agrees_with_the_rules_of_the_double() -> None:
    """The provider's table and the double's rules, written apart from each other, say the same of every cell."""
    for (arch, q, kv, heads), cell in TABLE.items():
        chip, pair = Chip("0.1.20", arch, UNITS[arch]), tuple("bf16" if one == "bfloat16" else one for one in (q, kv))
        assert cell.plain == chip.has_plain(pair[0], pair[1], heads), (arch, q, kv, heads)
        assert cell.persistent_lse == chip.has_work_lse(pair[0], pair[1], heads), (arch, q, kv, heads)
        differs = chip.fold(pair[0], pair[1], heads) != chip.fold("bf16", "bf16", heads)
        assert cell.needs_dtypes == differs, (arch, q, kv, heads)
