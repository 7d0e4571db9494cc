"""One call that plans a batch: what every backend lowers, and none computes by itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from mla_contract.adapters.arrays import Int32Array, Int64Array
from mla_contract.adapters.batch import BatchShape
from mla_contract.adapters.context_chunks import plan_context_chunks
from mla_contract.adapters.context_fields import FieldContextPlan
from mla_contract.adapters.context_packed import PackedContextPlan
from mla_contract.adapters.context_parallel import ContextParallel
from mla_contract.adapters.context_rule import ContextRule
from mla_contract.adapters.decode import DecodePlan, DecodeRule, expand_decodes
from mla_contract.adapters.equality import compared_by_value
from mla_contract.adapters.fault import SettingFault, int_faults, type_faults, validate_settings
from mla_contract.adapters.indexer_chunks import LOGIT_BYTES, IndexerPlan, IndexerRule
from mla_contract.adapters.indexer_plan import plan_indexer_chunks
from mla_contract.adapters.release import NEWEST
from mla_contract.adapters.split import Split, SplitRule, split_batch
from mla_contract.adapters.tokens import TokenMap, map_tokens, sparse_start_loc, token_slots


@dataclass(frozen=True, kw_only=True)
class PlanConfig:
    """What does not change between batches; parts that are None are not planned.

    Attributes:
        block_size: Tokens of a cache block, as the kernel counts blocks.
        decode_threshold: Longest query that is still a decode, in tokens.
        require_uniform: All decodes have one query length.
        treat_short_extends_as_decodes: A short query decodes even while its prompt is being computed.
        workspace_rows: Rows of the context workspace, in tokens; None plans no context chunks.
        indexer_states: Rows of the indexer's key buffer, in states; None plans no indexer chunks.
        logits_bytes: Budget of the indexer's logits.
        topk_tokens: Keys that a token reads under sparse attention; None plans no sparse offsets.
        plan_decodes: Whether decode rows are planned, which the indexer reads.
        flatten_decodes: Decode rows are tokens; else they are requests.
        next_n: Longest decode query, in tokens; None takes ``decode_threshold``.
        compress_ratio: Tokens of an indexer state; also of decode lengths.
        parallel: The sharing of the cache between ranks.
        release: The vLLM release whose behaviour is wanted; for one that is not known, that of the nearest.

    Raises:
        InvalidConfig: With every setting that nothing could be planned with.

    Source: vLLM 0.32.0 config/vllm.py, where the interleave divides the block size.
    """

    block_size: int
    decode_threshold: int = 1
    require_uniform: bool = False
    treat_short_extends_as_decodes: bool = True
    workspace_rows: int | None = None
    indexer_states: int | None = None
    logits_bytes: int = 512 << 20
    topk_tokens: int | None = None
    plan_decodes: bool = True
    flatten_decodes: bool = False
    next_n: int | None = None
    compress_ratio: int = 1
    parallel: ContextParallel = field(default_factory=ContextParallel)
    release: str | None = NEWEST

    def __post_init__(self) -> None:
        least = {"block_size": 1, "decode_threshold": 1, "logits_bytes": LOGIT_BYTES, "compress_ratio": 1}
        optional = dict.fromkeys(("workspace_rows", "indexer_states", "topk_tokens", "next_n"), 1)
        faults = int_faults(self, least, optional)
        faults += type_faults(self, {"parallel": ContextParallel, "release": (str, type(None))})
        validate_settings(faults)
        if self.parallel.size > 1 and self.block_size % self.parallel.interleave:
            expected = f"a divisor of block_size={self.block_size}"
            advice = "a run of tokens that a rank stores must lie in one of its blocks"
            validate_settings(
                [SettingFault("PlanConfig.parallel.interleave", expected, self.parallel.interleave, advice)]
            )
        # The parts check how settings go together; made now, they fail at start-up and not in the first step that
        # has prefills.
        _ = self.split_rule, self.context_rule, self.indexer_rule, self.decode_rule

    @cached_property
    def split_rule(self) -> SplitRule:
        """The part that the split reads."""
        return SplitRule(self.decode_threshold, self.require_uniform, self.treat_short_extends_as_decodes, self.release)

    @cached_property
    def context_rule(self) -> ContextRule | None:
        """The part that the context planner reads; None without a workspace."""
        if self.workspace_rows is None:
            return None
        return ContextRule(self.workspace_rows, self.block_size, self.parallel, self.release)

    @cached_property
    def indexer_rule(self) -> IndexerRule | None:
        """The part that the indexer planner reads; None without an indexer."""
        if self.indexer_states is None:
            return None
        return IndexerRule(self.indexer_states, self.logits_bytes, self.compress_ratio, self.parallel)

    @cached_property
    def decode_rule(self) -> DecodeRule:
        """The part that the decode expansion reads."""
        next_n = self.decode_threshold if self.next_n is None else self.next_n
        return DecodeRule(self.flatten_decodes, next_n, self.compress_ratio, self.parallel)


@compared_by_value
class BatchPlan(NamedTuple):
    """Everything that is decided on the host for one batch.

    Attributes:
        shape: The batch: lengths, prefix sums, flags.
        split: Decodes and prefills, in requests and tokens.
        tokens: For each of ``num_actual_tokens`` its request, its position and the keys up to its own.
        slot_mapping: [num_actual_tokens] int64, cache slot, -1 where not stored here; None without a block table.
        sparse_start_loc: [num_actual_tokens+1] int32, prefix sum of the keys that each token reads; None without top-k.
        decode: The decode rows; None without decodes, or where none are planned.
        context: Context chunks of the prefills; None without context or workspace.
        indexer: Indexer chunks of the prefills; None without prefills or indexer.
    """

    shape: BatchShape
    split: Split
    tokens: TokenMap
    slot_mapping: Int64Array | None
    sparse_start_loc: Int32Array | None
    decode: DecodePlan | None
    context: PackedContextPlan | FieldContextPlan | None
    indexer: IndexerPlan | None


def plan_batch(shape: BatchShape, config: PlanConfig) -> BatchPlan:
    """Plan one batch.

    Args:
        shape: The batch's lengths.
        config: What the backend and the engine are set to.

    Returns:
        The plan; no array of it can be written.

    Raises:
        InvalidBatch: A part cannot be planned within its bounds; names the row.

    Sync: none.
    Source: vLLM 0.32.0; each part names its function.
    """
    split = split_batch(shape, config.split_rule)
    tokens = map_tokens(shape)
    topk, table, indexer = config.topk_tokens, shape.block_table, config.indexer_rule
    return BatchPlan(
        shape=shape,
        split=split,
        tokens=tokens,
        slot_mapping=None if table is None else token_slots(table, tokens, config.block_size, config.parallel),
        sparse_start_loc=None if topk is None else sparse_start_loc(tokens, topk),
        decode=expand_decodes(shape, tokens, split, config.decode_rule) if config.plan_decodes else None,
        context=_context(shape, split, config),
        indexer=None if indexer is None else plan_indexer_chunks(shape, tokens, split, indexer),
    )


def _context(shape: BatchShape, split: Split, config: PlanConfig) -> PackedContextPlan | FieldContextPlan | None:
    """Return the context chunks of the prefills; rows without query tokens need no context."""
    if config.context_rule is None or split.num_prefills == 0:
        return None
    start_loc, lens = shape.query_start_loc[split.num_decodes :], shape.context_lens[split.num_decodes :]
    # Padding stands last. Where it has a sequence length, its context must not be gathered: the blocks are not its own.
    if shape.query_lens[-1] == 0:
        lens = lens * (shape.query_lens[split.num_decodes :] > 0)
    return plan_context_chunks(lens, start_loc - start_loc[0], config.context_rule)
