"""What a backend declares of itself: the strategy choices that the contract must not guess.

"All tokens are decodes" is a legal strategy; so is a sentinel other than -1. A check reads the declaration first.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from mla_contract.errors import InvalidContract


class Routing(StrEnum):
    """How a backend divides a batch between decode and prefill."""

    SHARED_SPLIT = "shared_split"
    """Exactly the shared split: leading short requests are decodes."""
    ALL_DECODES = "all_decodes"
    """Every token goes through decode: no prefills, ``num_decode_tokens == num_actual_tokens``."""


class MultiTokenDecode(StrEnum):
    """Which query lengths the decode path takes.

    Source: vLLM 0.33.0 model_executor/layers/attention/mla_attention.py
    """

    SINGLE = "single"
    """One token for each request."""
    UNIFORM = "uniform"
    """The same number of tokens for every request."""
    VARLEN = "varlen"
    """Any number of tokens for each request."""


class LseBase(StrEnum):
    """Base of the logarithm in a returned log-sum-exp."""

    E = "e"
    """Natural: aiter, FlashMLA, FlashAttention, Triton."""
    TWO = "2"
    """Binary: FlashInfer."""


@dataclass(frozen=True, slots=True)
class MultipleOf:
    """Every positive multiple of ``base`` tokens is a block size the kernel takes."""

    base: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendDeclaration:
    """What one backend says of itself.

    Attributes:
        name: The backend's name in the engine's registry.
        routing: How tokens are routed.
        dense_prefill: Whether the impl has a dense multi-head path for prefills.
        decode_lse: Whether decode can return the log-sum-exp of its softmax.
        lse_base: Base of that logarithm; required with ``decode_lse``, None without.
        decode_context_parallel: Whether ranks may each hold a part of a request's cache; needs ``decode_lse``.
        prefill_context_parallel: Whether ranks may each hold a part of a prompt's queries.
        multi_token_decode: Query lengths that the decode path takes.
        index_sentinel: Value that marks "no position" in top-k indices.
        kernel_block_sizes: Block sizes that the kernel takes, in tokens: exact sizes or ``MultipleOf``.
    """

    name: str
    routing: Routing
    dense_prefill: bool
    decode_lse: bool
    lse_base: LseBase | None = None
    decode_context_parallel: bool = False
    prefill_context_parallel: bool = False
    multi_token_decode: MultiTokenDecode = MultiTokenDecode.SINGLE
    index_sentinel: int = -1
    kernel_block_sizes: tuple[int | MultipleOf, ...] = (MultipleOf(1),)

    def __post_init__(self) -> None:
        faults = self._faults()
        if faults:
            raise InvalidContract(f"declaration of {self.name}: " + "; ".join(faults))

    def _faults(self) -> list[str]:
        """Return every contradiction in the declaration."""
        sizes = [size.base if isinstance(size, MultipleOf) else size for size in self.kernel_block_sizes]
        checks = {
            "decode_lse needs lse_base: name the base of the logarithm": self.decode_lse and self.lse_base is None,
            "lse_base is given, but decode_lse is False": not self.decode_lse and self.lse_base is not None,
            "decode_context_parallel needs decode_lse: ranks are merged by it": (
                self.decode_context_parallel and not self.decode_lse
            ),
            "index_sentinel must be negative: 0 and above are positions": self.index_sentinel >= 0,
            "kernel_block_sizes is empty": not sizes,
            f"kernel_block_sizes must be positive, got {sizes}": any(size <= 0 for size in sizes),
        }
        return [text for text, broken in checks.items() if broken]

    def takes_block_size(self, block_size: int) -> bool:
        """Return whether the kernel takes blocks of ``block_size`` tokens."""
        return block_size > 0 and any(
            block_size % size.base == 0 if isinstance(size, MultipleOf) else block_size == size
            for size in self.kernel_block_sizes
        )
