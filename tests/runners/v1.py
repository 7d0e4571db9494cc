"""The V1 runner: vLLM's own methods order, prepare and pad the batch, and build its metadata.

Only ``__init__`` is replaced, by one that allocates what these methods read; no model runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from vllm.config.compilation import CUDAGraphMode
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.cudagraph_dispatcher import CudagraphDispatcher
from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec
from vllm.v1.utils import CpuGpuBuffer
from vllm.v1.worker.gpu_input_batch import CachedRequestState, InputBatch
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from tests.runners.configuration import EngineConfig, Setting, num_blocks
from tests.runners.releases import call
from tests.runners.traffic import PLACEHOLDER, Request

CPU = torch.device("cpu")


class ForwardReachedError(Exception):
    """A dummy run came to the model: its metadata is built, and no model is there."""


class V1Runner(GPUModelRunner):  # type: ignore[misc]
    """vLLM's runner with its buffers, and without model, sampler, connectors and streams."""

    def __init__(self, setting: Setting, config: EngineConfig, groups: list[Any], graphs: Any) -> None:
        self.vllm_config = config
        self.device, self.setting = CPU, setting
        self.model_config, self.cache_config = config.model_config, config.cache_config
        self.parallel_config, self.scheduler_config = config.parallel_config, config.scheduler_config
        self.compilation_config, self.speculative_config = config.compilation_config, config.speculative_config
        self.mamba_prev_last_scheduled_idx, self.uses_xdrope_dim = None, 0
        self.lora_config = self.drafter = self.prepare_inputs_event = self.num_accepted_tokens_event = None
        self.max_model_len, self.max_num_reqs = setting.max_model_len, setting.max_num_seqs
        self.max_num_tokens = setting.max_num_batched_tokens
        self.uniform_decode_query_len = 1 + setting.drafts
        self.uses_mrope = self.enable_prompt_embeds = self.is_mm_prefix_lm = False
        self.use_async_scheduling = self.use_async_spec_decode = self.routed_experts_initialized = False
        self.dcp_world_size, self.dcp_rank = setting.dcp_size, setting.dcp_rank
        self.attn_groups = [groups]
        spec = groups[0].kv_cache_spec
        self.kv_cache_config = KVCacheConfig(
            num_blocks(setting), [], [KVCacheGroupSpec([name for group in groups for name in group.layer_names], spec)]
        )
        self._allocate(setting)
        self.calculate_reorder_batch_threshold()
        self.cudagraph_dispatcher = CudagraphDispatcher(config)
        self.cudagraph_dispatcher.initialize_cudagraph_keys(graphs, self.uniform_decode_query_len)

    def _allocate(self, setting: Setting) -> None:
        """Make the buffers that batches are prepared in."""
        rows, tokens = self.max_num_reqs, self.max_num_tokens
        self.arange_np = np.arange(max(rows, tokens) + 1, dtype=np.int64)
        for name, size, dtype in (
            ("query_pos", tokens, torch.int64),
            ("input_ids", tokens, torch.int32),
            ("req_indices", tokens, torch.int64),
            ("query_start_loc", rows + 1, torch.int32),
            ("num_accepted_tokens", rows, torch.int64),
            ("num_decode_draft_tokens", rows, torch.int32),
            ("num_scheduled_tokens", rows, torch.int32),
            ("dcp_local_seq_lens", rows, torch.int32),
            ("prev_positions", rows, torch.int64),
            ("prev_num_draft_tokens", rows, torch.int32),
            ("discard_request_mask", rows, torch.bool),
        ):
            setattr(self, name, CpuGpuBuffer(size, dtype=dtype, device=CPU, pin_memory=False))
        self.optimistic_seq_lens_cpu = torch.zeros(rows, dtype=torch.int32)
        self.seq_lens = torch.zeros(rows, dtype=torch.int32)
        self.num_computed_tokens = torch.zeros(rows, dtype=torch.int32)
        self.positions = torch.zeros(tokens, dtype=torch.int64)
        self.valid_sampled_token_count_gpu: Any = None
        columns = -(-setting.max_model_len // (setting.block_size * setting.dcp_size))
        self.input_batch = call(
            InputBatch,
            max_num_reqs=rows,
            max_model_len=setting.max_model_len,
            max_num_batched_tokens=tokens,
            device=CPU,
            vocab_size=PLACEHOLDER + 1,
            block_sizes=[setting.block_size],
            kernel_block_sizes=[setting.block_size],
            max_num_blocks_per_req=[columns],
            cp_kv_cache_interleave_size=setting.interleave,
            num_spec_tokens=setting.drafts,
        )
        self.requests: dict[str, Any] = {}

    def _prepare_input_ids(self, *args: Any) -> None:
        """Copy no token ids: there is no sampler, and no model."""

    def _calc_spec_decode_metadata(self, num_draft_tokens: Any, cu_num_tokens: Any) -> Any:
        """Return what the caller reads of it: where to sample."""
        return SampledRows(torch.from_numpy(cu_num_tokens) - 1)

    def _get_encoder_seq_lens(self, *args: Any, **kwargs: Any) -> tuple[None, None]:
        """Return nothing: there is no encoder."""
        return None, None

    def maybe_dummy_run_with_lora(self, *args: Any, **kwargs: Any) -> Any:
        """End a dummy run before the model.

        Raises:
            ForwardReachedError: Always.
        """
        raise ForwardReachedError

    def step(self, requests: Sequence[Request], tables: Sequence[list[int]]) -> Any:
        """Prepare a batch as ``execute_model`` does, and build its metadata.

        Args:
            requests: The requests in the order of their arrival.
            tables: The blocks of each.

        Returns:
            Mode of the graph, and the padded batch of a drafter, or None.
        """
        output = self._schedule(requests, tables)
        self._may_reorder_batch(output)
        order = self.input_batch.req_ids
        lens = np.array([output.num_scheduled_tokens[name] for name in order], dtype=np.int32)
        self._reject(requests)
        self._prepare_inputs(output, lens)
        tokens, rows, longest = int(lens.sum()), len(order), int(lens.max())
        mode, descriptor, *_ = call(
            self._determine_batch_execution_and_padding,
            num_tokens=tokens,
            num_reqs=rows,
            num_scheduled_tokens_np=lens,
            max_num_scheduled_tokens=longest,
            use_cascade_attn=False,
        )
        padded_rows = descriptor.num_reqs if descriptor.num_reqs is not None else rows
        full = mode == CUDAGraphMode.FULL
        separate = not all(group.backend.forward_includes_kv_cache_update for group in self.attn_groups[0])
        slots, _ = self._get_slot_mappings(
            num_tokens_padded=descriptor.num_tokens if full or separate else tokens,
            num_reqs_padded=padded_rows if full or separate else rows,
            num_tokens_unpadded=tokens,
        )
        _, drafting = self._build_attention_metadata(
            num_tokens=tokens,
            num_tokens_padded=descriptor.num_tokens if full else None,
            num_reqs=rows,
            num_reqs_padded=padded_rows if full else None,
            max_query_len=longest,
            use_spec_decode=self.speculative_config is not None,
            num_scheduled_tokens=output.num_scheduled_tokens,
            slot_mappings=slots,
        )
        return mode, drafting

    def dummy(self, num_tokens: int, **how: Any) -> None:
        """Build the metadata of a dummy run: a warm-up, or a graph's capture."""
        self._clear()
        try:
            self._dummy_run(num_tokens, **how)
        except ForwardReachedError:
            return

    def _clear(self) -> None:
        """Take every request away."""
        for name in list(self.input_batch.req_id_to_index):
            self.input_batch.remove_request(name)
        self.input_batch._req_ids.clear()
        self.input_batch.req_output_token_ids.clear()
        self.input_batch.spec_token_ids.clear()
        self.input_batch.block_table.clear()
        self.requests.clear()

    def _schedule(self, requests: Sequence[Request], tables: Sequence[list[int]]) -> Any:
        """Take the requests up, and return what a scheduler says of this step."""
        self._clear()
        output = SchedulerOutput.make_empty()
        for index, (request, blocks) in enumerate(zip(requests, tables, strict=True)):
            name = str(index)
            state = CachedRequestState(
                name,
                [PLACEHOLDER] * request.prompt,
                [],
                SamplingParams(),
                None,
                (blocks,),
                request.computed,
                [PLACEHOLDER] * (request.known - request.prompt),
            )
            self.requests[name] = state
            self.input_batch.add_request(state)
            output.num_scheduled_tokens[name] = request.new
            if request.drafts:
                output.scheduled_spec_decode_tokens[name] = [PLACEHOLDER] * request.drafts
        self.input_batch.refresh_metadata()
        output.total_num_scheduled_tokens = sum(output.num_scheduled_tokens.values())
        return output

    def _reject(self, requests: Sequence[Request]) -> None:
        """Have the device know of rejected drafts that the host does not know of, as asynchronous scheduling does."""
        self.use_async_spec_decode = any(request.rejected for request in requests)
        if not self.use_async_spec_decode:
            self.input_batch.prev_req_id_to_index = None
            return
        rows = [requests[int(name)] for name in self.input_batch.req_ids]
        self.input_batch.prev_req_id_to_index = {name: row for row, name in enumerate(self.input_batch.req_ids)}
        for row, request in enumerate(rows):
            self.prev_num_draft_tokens.np[row] = self.setting.drafts if request.rejected else 0
            self.num_computed_tokens[row] = request.computed - request.rejected - 1
        self.valid_sampled_token_count_gpu = torch.ones(self.max_num_reqs, dtype=torch.int64)


class SampledRows:
    """Stands in for the metadata of speculative decoding, of which the preparation reads one array."""

    def __init__(self, logits_indices: torch.Tensor) -> None:
        self.logits_indices = logits_indices
