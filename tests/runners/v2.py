"""The V2 runner: vLLM's own methods order, prepare and pad the batch, and build its metadata.

Only ``__init__`` is replaced, by one that allocates what these methods read; no model runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from vllm.config.compilation import CUDAGraphMode
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec
from vllm.v1.worker.gpu import cp_utils, cudagraph_utils
from vllm.v1.worker.gpu.block_table import BlockTables
from vllm.v1.worker.gpu.cudagraph_utils import CudaGraphManager, prepare_inputs_to_capture
from vllm.v1.worker.gpu.input_batch import InputBatch, InputBuffers
from vllm.v1.worker.gpu.model_runner import GPUModelRunner
from vllm.v1.worker.gpu.model_states.default import DefaultModelState
from vllm.v1.worker.gpu.spec_decode.speculator import DraftModelSpeculator
from vllm.v1.worker.gpu.states import RequestState

from tests.runners.configuration import EngineConfig, Setting, num_blocks
from tests.runners.releases import assign, call, find
from tests.runners.traffic import PLACEHOLDER, Request

CPU = torch.device("cpu")
_localise = getattr(cp_utils, "prepare_dcp_local_seq_lens", None) or cp_utils.maybe_prepare_dcp_local_seq_lens
"""It had another name up to 0.30."""


class ModelState(DefaultModelState):  # type: ignore[misc]
    """vLLM's state of a text model, without the model."""

    def __init__(self, config: EngineConfig) -> None:
        self.vllm_config, self.model_config = config, config.model_config
        self.supports_mm_inputs, self.encoder_cache = False, None
        assign(self, max_model_len=config.model_config.max_model_len)

    @property
    def num_new_sampled_tokens_per_step(self) -> int:
        """Return the tokens that a decode samples without drafts."""
        return 1


class GraphManager(CudaGraphManager):  # type: ignore[misc]
    """vLLM's choice of a graph, as if every graph were captured."""

    def __init__(self, config: EngineConfig, mode: Any, width: int) -> None:
        self.vllm_config, self.compilation_config = config, config.compilation_config
        self.max_num_reqs, self.cudagraph_mode = config.scheduler_config.max_num_seqs, mode
        self.decode_query_len, self.varlen_decode, self.ubatch_runner = width, False, None
        self.use_breakable_cg = False
        self.lora_capture_cases, self._max_lora_case = [0], 0
        self._lora_dispatch_map: dict[int, int] = {}
        self._candidates: dict[Any, Any] = {}
        self._capture_descs: dict[Any, Any] = {}
        self._graphs_captured = True
        self._init_candidates()


class Speculator(DraftModelSpeculator):  # type: ignore[misc]
    """vLLM's building of a drafter's metadata, without the drafter."""

    def __init__(self, setting: Setting, config: EngineConfig, tables: Any, groups: Any, cache: Any) -> None:
        self.input_buffers = InputBuffers(setting.max_num_seqs, setting.max_num_batched_tokens, CPU)
        self.block_tables, self.attn_groups, self.kv_cache_config = tables, groups, cache
        self.vllm_config, self.draft_max_seq_len = config, setting.max_model_len
        assign(self, max_model_len=setting.max_model_len)
        self.dcp_size = setting.dcp_size
        self.draft_is_prefilling = torch.zeros(setting.max_num_seqs, dtype=torch.bool)
        self.arange_np = np.arange(setting.max_num_seqs + 1, dtype=np.int32)

    def load_draft_model(self, *args: Any) -> None:
        """Load nothing."""

    def init_cudagraph_manager(self, *args: Any) -> None:
        """Make nothing."""

    def capture(self) -> None:
        """Capture nothing."""

    def propose(self, *args: Any, **kwargs: Any) -> Any:
        """Propose nothing."""


class V2Runner(GPUModelRunner):  # type: ignore[misc]
    """vLLM's runner with its buffers, and without model, sampler, connectors and streams."""

    def __init__(self, setting: Setting, config: EngineConfig, groups: list[Any], graphs: Any) -> None:
        self.vllm_config, self.setting, self.device = config, setting, CPU
        self.model_config, self.cache_config = config.model_config, config.cache_config
        self.max_num_reqs, self.max_num_tokens = setting.max_num_seqs, setting.max_num_batched_tokens
        self.decode_query_len = 1 + setting.drafts
        self.pcp_manager = self.adaptive_verification = self.fast_prefill = None
        self.use_pp = False
        self.use_dcp, self.dcp_size, self.dcp_rank = setting.dcp_size > 1, setting.dcp_size, setting.dcp_rank
        self.cp_interleave = setting.interleave
        self.input_buffers = InputBuffers(self.max_num_reqs, self.max_num_tokens, CPU)
        columns = -(-setting.max_model_len // (setting.block_size * setting.dcp_size))
        widen = find("vllm.v1.worker.block_table", "get_block_table_width")
        width = columns if widen is None else widen(columns, setting.block_size)
        self.block_tables = call(
            BlockTables,
            block_sizes=[setting.block_size],
            max_num_reqs=self.max_num_reqs,
            max_num_batched_tokens=self.max_num_tokens,
            max_num_blocks_per_group=[width],
            device=CPU,
            kernel_block_sizes=[setting.block_size],
            cp_size=setting.dcp_size,
            cp_rank=setting.dcp_rank,
            cp_interleave=setting.interleave,
        )
        self.attn_groups = [groups]
        names = [name for group in groups for name in group.layer_names]
        self.kv_cache_config = KVCacheConfig(
            num_blocks(setting), [], [KVCacheGroupSpec(names, groups[0].kv_cache_spec)]
        )
        self.model_state = ModelState(config)
        self.graphs = GraphManager(config, graphs, self.decode_query_len)
        self.speculator = Speculator(setting, config, self.block_tables, self.attn_groups, self.kv_cache_config)
        self._forget()

    def _forget(self) -> None:
        """Take every request away."""
        self.req_states = call(
            RequestState,
            max_num_reqs=self.max_num_reqs,
            max_model_len=self.setting.max_model_len,
            max_num_batched_tokens=self.max_num_tokens,
            num_speculative_steps=self.setting.drafts,
            vocab_size=PLACEHOLDER + 1,
            device=CPU,
            use_dense_all_token_ids=True,
        )

    def step(self, requests: Sequence[Request], tables: Sequence[list[int]]) -> Any:
        """Prepare a batch as ``execute_model`` does, and build its metadata.

        Args:
            requests: The requests in the order of their arrival.
            tables: The blocks of each.

        Returns:
            The graph's descriptor, and the input batch.
        """
        output = self._schedule(requests, tables)
        tokens, longest = output.total_num_scheduled_tokens, max(output.num_scheduled_tokens.values())
        gather = getattr(self, "gather_batch_req_state", None)
        if gather is not None:
            state, uniform = gather(output, dummy_run=False)
            tokens = state.num_tokens
        else:
            state, uniform = None, cudagraph_utils.get_uniform_token_count(len(requests), tokens, longest)
        # Which batches a graph of decodes takes was asked of the batch later on, and of nothing before.
        eligible = getattr(state, "decode_graph_eligible", True)
        descriptor = call(
            self.graphs.dispatch,
            num_reqs=len(requests),
            num_tokens=tokens,
            uniform_token_count=uniform,
            num_active_loras=0,
            max_query_len=longest if eligible else None,
        )
        batch = call(
            self.prepare_inputs,
            scheduler_output=output,
            batch_req_state=state,
            batch_desc=descriptor,
            num_active_loras=0,
        )
        block_tables, slots = self.prepare_attn(batch)
        self._build(batch, descriptor.cg_mode, block_tables, slots)
        return descriptor, batch

    def draft(self, batch: Any, descriptor: Any, step: int) -> None:
        """Build the metadata of a drafter's step after the first, as the autoregressive speculators do."""
        speculator, rows = self.speculator, batch.num_reqs
        longest = int(batch.seq_lens_cpu_upper_bound[:rows].max())
        speculator.draft_max_seq_len = min(longest + self.setting.drafts, self.setting.max_model_len)
        buffers = speculator.input_buffers
        buffers.seq_lens.zero_()
        buffers.seq_lens[:rows] = (batch.seq_lens[:rows] + step).clamp(max=self.setting.max_model_len)
        buffers.query_start_loc.fill_(rows)
        buffers.query_start_loc[: rows + 1] = torch.arange(rows + 1)
        buffers.positions[:rows] = buffers.seq_lens[:rows].long() - 1
        self.block_tables.compute_slot_mappings(
            batch.idx_mapping, buffers.query_start_loc[: rows + 1], buffers.positions[:rows], descriptor.num_tokens
        )
        call(
            speculator._build_uniform_attn_metadata,
            num_reqs=rows,
            batch_desc=descriptor,
            num_query_per_req=1,
            seq_lens_cpu_upper_bound=batch.seq_lens_cpu_upper_bound,
            step=step,
        )

    def can_draft(self) -> bool:
        """Return whether this release builds a drafter's metadata in a function of its own."""
        return hasattr(self.speculator, "_build_uniform_attn_metadata")

    def draft_descriptor(self, rows: int, full: bool) -> Any:
        """Return the descriptor of a drafter's step."""
        descriptor = GraphManager(self.vllm_config, self.graphs.cudagraph_mode, 1).dispatch(rows, rows, 1, 0, 1)
        return descriptor if full else replace(descriptor, cg_mode=CUDAGraphMode.NONE, num_reqs=None, num_tokens=rows)

    def capture(self, descriptor: Any) -> None:
        """Build the metadata of a graph's capture."""
        full = descriptor.cg_mode == CUDAGraphMode.FULL
        call(
            prepare_inputs_to_capture,
            num_reqs=descriptor.num_reqs or min(descriptor.num_tokens, self.max_num_reqs),
            num_tokens=descriptor.num_tokens,
            model_state=self.model_state,
            input_buffers=self.input_buffers,
            block_tables=self.block_tables,
            attn_groups=self.attn_groups,
            kv_cache_config=self.kv_cache_config,
            full_cudagraph=full,
            skip_attn=not full,
            max_query_len=descriptor.uniform_token_count or getattr(descriptor, "max_query_len", None),
        )

    def dummy(self, rows: int, tokens: int) -> None:
        """Build the metadata of an idle step without a graph."""
        batch = InputBatch.make_dummy(rows, tokens, self.input_buffers)
        self._build(batch, CUDAGraphMode.NONE, *self.prepare_dummy_attn(batch))

    def _build(self, batch: Any, mode: Any, block_tables: Any, slots: Any) -> None:
        """Build the metadata of a prepared batch."""
        if self.setting.dcp_size > 1:
            rows, buffer = batch.num_reqs_after_padding, self.input_buffers.dcp_local_seq_lens
            call(
                _localise,
                dcp_local_seq_lens=buffer,
                seq_lens=batch.seq_lens,
                num_reqs=batch.num_reqs,
                dcp_size=self.setting.dcp_size,
                dcp_rank=self.setting.dcp_rank,
                cp_interleave=self.setting.interleave,
                num_reqs_padded=rows,
            )
            batch.dcp_local_seq_lens = buffer[:rows]
        self.model_state.prepare_attn(batch, mode, block_tables, slots, self.attn_groups, self.kv_cache_config)

    def _schedule(self, requests: Sequence[Request], tables: Sequence[list[int]]) -> Any:
        """Take the requests up, and return what a scheduler says of this step."""
        self._forget()
        output, states = SchedulerOutput.make_empty(), self.req_states
        for index, (request, blocks) in enumerate(zip(requests, tables, strict=True)):
            name = str(index)
            known = max(request.prompt, request.computed + request.new) if request.resumed else request.prompt
            states.add_request(name, request.prompt, [PLACEHOLDER] * known, request.computed, 64)
            row = states.req_id_to_index[name]
            states.num_computed_prefill_tokens[row] = min(request.computed, known)
            self.block_tables.append_block_ids(row, (blocks,), overwrite=True)
            output.num_scheduled_tokens[name] = request.new
            if request.drafts:
                output.scheduled_spec_decode_tokens[name] = [PLACEHOLDER] * request.drafts
        states.apply_staged_writes()
        for index, request in enumerate(requests):
            states.num_computed_tokens.gpu[states.req_id_to_index[str(index)]] -= request.rejected
        self.block_tables.apply_staged_writes()
        output.total_num_scheduled_tokens = sum(output.num_scheduled_tokens.values())
        return output
