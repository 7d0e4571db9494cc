"""The aiter tier: the paged CSR tables and the persistent work plan that aiter's sparse decode kernels read.

In this path a row is a *token*, not a request; ``qo_indptr`` therefore counts single tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from mla_contract.contract.schema.sparse import SparseMLAMetadata

if TYPE_CHECKING:
    from jaxtyping import Int32, Shaped
    from torch import Tensor, dtype

    from mla_contract.contract.schema.residence import Device


class HasQoIndptr(Protocol):
    """Has ``qo_indptr``."""

    @property
    def qo_indptr(self) -> Device[Int32[Tensor, "num_kernel_rows+1"]] | None:
        """Prefix sum of the query length of each row; a row is one token, so entry i is i.

        Padding: one entry more than the rows that are launched, padding tokens included.
        Source: vLLM 0.33.0 v1/attention/backends/mla/rocm_aiter_mla_sparse.py
        """
        ...


class HasPagedKvIndptr(Protocol):
    """Has ``paged_kv_indptr``."""

    @property
    def paged_kv_indptr(self) -> Device[Int32[Tensor, "num_kernel_rows+1"]] | None:
        """Prefix sum of the selected cache rows of each token: row i owns entries ``[i]`` to ``[i+1]``.

        Padding: padding tokens repeat the last offset.
        Source: vLLM 0.33.0 v1/attention/backends/mla/rocm_aiter_mla_sparse.py
        """
        ...


class HasPagedKvIndices(Protocol):
    """Has ``paged_kv_indices``."""

    @property
    def paged_kv_indices(self) -> Device[Int32[Tensor, "num_kernel_rows*topk_tokens"]] | None:
        """Physical slots of the selected positions, row after row, with a page size of one token.

        Padding: capacity is rows times ``topk_tokens``; entries behind the last offset are never read.
        Source: vLLM 0.33.0 v1/attention/backends/mla/rocm_aiter_mla_sparse.py
        """
        ...


class HasPagedKvLastPageLen(Protocol):
    """Has ``paged_kv_last_page_len``."""

    @property
    def paged_kv_last_page_len(self) -> Device[Int32[Tensor, "num_kernel_rows"]] | None:
        """Tokens in the last page of each row; 1 throughout, because a page is one token.

        Padding: 1 for padding tokens, whose row is empty by ``paged_kv_indptr``.
        Source: vLLM 0.33.0 v1/attention/backends/mla/rocm_aiter_mla_sparse.py
        """
        ...


class HasAttnOutDtype(Protocol):
    """Has ``attn_out_dtype``."""

    @property
    def attn_out_dtype(self) -> dtype | None:
        """Element type of the kernel's output: the model's dtype, not the cache's.

        Padding: none.
        Source: vLLM 0.33.0 v1/attention/backends/mla/rocm_aiter_mla_sparse.py
        """
        ...


class AiterWork(Protocol):
    """The persistent kernel's work plan: all six are None, or all six are set.

    Their sizes come from aiter for a padded batch; the size call, the fill call and the kernel call must agree on
    heads, query length, dtypes and page size.
    """

    @property
    def work_meta_data(self) -> Device[Shaped[Tensor, "..."]] | None:
        """Addresses of the other work buffers, as the kernel reads them.

        Padding: built for the padded batch.
        Source: vLLM 0.33.0 v1/attention/backends/mla/rocm_aiter_mla_sparse.py
        """
        ...

    @property
    def work_indptr(self) -> Device[Int32[Tensor, "..."]] | None:
        """Prefix sum of the work items of each compute unit.

        Padding: built for the padded batch.
        Source: vLLM 0.33.0 v1/attention/backends/mla/rocm_aiter_mla_sparse.py
        """
        ...

    @property
    def work_info_set(self) -> Device[Int32[Tensor, "..."]] | None:
        """Work items: which rows and which range of cache entries each item covers.

        Padding: items behind the last entry of ``work_indptr`` are stale.
        Source: vLLM 0.33.0 v1/attention/backends/mla/rocm_aiter_mla_sparse.py
        """
        ...

    @property
    def reduce_indptr(self) -> Device[Int32[Tensor, "..."]] | None:
        """Prefix sum of the partial results of each output tile.

        Padding: built for the padded batch.
        Source: vLLM 0.33.0 v1/attention/backends/mla/rocm_aiter_mla_sparse.py
        """
        ...

    @property
    def reduce_final_map(self) -> Device[Int32[Tensor, "..."]] | None:
        """Output rows that each reduction writes.

        Padding: entries behind the last offset of ``reduce_indptr`` are stale.
        Source: vLLM 0.33.0 v1/attention/backends/mla/rocm_aiter_mla_sparse.py
        """
        ...

    @property
    def reduce_partial_map(self) -> Device[Int32[Tensor, "..."]] | None:
        """Partial results that each reduction reads.

        Padding: entries behind the last offset of ``reduce_indptr`` are stale.
        Source: vLLM 0.33.0 v1/attention/backends/mla/rocm_aiter_mla_sparse.py
        """
        ...


class AiterMetadata(
    HasQoIndptr,
    HasPagedKvIndptr,
    HasPagedKvIndices,
    HasPagedKvLastPageLen,
    HasAttnOutDtype,
    AiterWork,
    Protocol,
):
    """The aiter tier by itself."""


class AiterSparseMetadata(SparseMLAMetadata, AiterMetadata, Protocol):
    """What the aiter sparse path reads: the shared layer's fields and the kernel tables."""
