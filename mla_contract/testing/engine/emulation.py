"""Changes to transformers' sparse models while a question is answered: stable ties, no sparsity, or narrow numbers.

Nothing here shares code with the kernels that it is compared with.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import torch
from torch import Tensor

if TYPE_CHECKING:
    from mla_contract.testing.engine.question import Question

FP8_MAX = 448.0
"""Largest e4m3 value."""
SMALLEST_AMAX = 1e-4
"""Least magnitude that a scale is made of; written here again, because nothing is shared with what is compared."""


@contextmanager
def emulating(model: Any, question: Question) -> Iterator[None]:
    """Change a model's classes while a question is answered; ties of scores always go to the smaller position."""
    module = sys.modules[type(model).__module__]
    layers = [layer.self_attn for layer in model.model.layers]
    indexers = [one.indexer for one in layers if one.indexer is not None]
    with ExitStack() as stack:
        stack.enter_context(patch.object(torch.Tensor, "topk", stable_topk))
        if question.dense:
            for one in indexers:
                stack.enter_context(patch.object(one, "index_topk", sys.maxsize))
        if question.index_fp8:
            interleaved = not _halves(module)
            rotate = module.apply_rotary_pos_emb_interleave if interleaved else module.apply_rotary_pos_emb
            forward = _indexer_forward(rotate)
            stack.enter_context(patch.object(type(indexers[0]), "forward", forward))
        if question.attention_bf16:
            stack.enter_context(patch.object(type(layers[0]), "expand_kv", _latents))
            stack.enter_context(patch.object(module, "eager_attention_forward", _latent_attention))
        yield


def stable_topk(values: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    """Return the best entries; among equal ones those that come first."""
    ordered = values.sort(dim=dim, descending=largest, stable=True)
    return torch.return_types.topk((ordered.values.narrow(dim, 0, k), ordered.indices.narrow(dim, 0, k)))


def fp8_rounded(values: Tensor) -> Tensor:
    """Return the last axis as one group of e4m3 values with a power-of-two scale stores it."""
    amax = values.abs().amax(-1, keepdim=True).clamp_min(SMALLEST_AMAX)
    scale = torch.exp2(torch.ceil(torch.log2(amax / FP8_MAX)))
    return (values / scale).clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn).float() * scale


def bf16_rounded(values: Tensor) -> Tensor:
    """Return what bfloat16 keeps."""
    return values.to(torch.bfloat16).float()


def _halves(module: Any) -> bool:
    """Return whether a model's indexer rotates halves rather than pairs."""
    return hasattr(module, "apply_rotary_pos_emb")


def _indexer_forward(rotate: Any) -> Any:
    """Return an indexer's forward that scores rounded queries against rounded keys."""

    @torch.no_grad()
    def forward(
        self: Any,
        hidden_states: Tensor,
        q_resid: Tensor,
        position_embeddings: tuple[Tensor, Tensor],
        attention_mask: Tensor,
        position_ids: Any = None,
        past_key_values: Any = None,
    ) -> Tensor:
        width = self.qk_rope_head_dim
        queries = self.wq_b(q_resid).unflatten(-1, (self.n_heads, self.head_dim))
        keys = self.k_norm(self.wk(hidden_states)).unsqueeze(2)
        turned = rotate(queries[..., :width], keys[..., :width], *position_embeddings, unsqueeze_dim=2)
        queries = fp8_rounded(torch.cat((turned[0], queries[..., width:]), -1))
        keys = fp8_rounded(torch.cat((turned[1], keys[..., width:]), -1)).squeeze(2)
        if past_key_values is not None:
            keys = past_key_values.update_indexer(keys, self.layer_idx)
        weights = self.weights_proj(hidden_states) * self.softmax_scale * self.n_heads**-0.5
        dots = torch.einsum("bshd,btd->bsht", queries, keys).relu()
        scores = torch.einsum("bsht,bsh->bst", dots, weights)
        scores = scores.masked_fill(attention_mask < 0, -torch.inf)
        return scores.topk(min(self.index_topk, scores.shape[-1])).indices.int()

    return forward


def _latents(self: Any, kv_nope: Tensor, k_rot: Tensor) -> tuple[Tensor, Tensor]:
    """Return the cached rows themselves as keys, and their latent part as values."""
    rows = bf16_rounded(torch.cat((kv_nope, k_rot), -1))
    return rows, rows[..., : self.kv_lora_rank]


def _latent_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor, scaling: float, **_: Any
) -> tuple[Tensor, None]:
    """Attend in latent space, with queries and results rounded to bfloat16."""
    nope, rope = query[..., : module.qk_nope_head_dim], query[..., module.qk_nope_head_dim :]
    weight = module.kv_b_proj.weight.view(module.num_heads, -1, module.kv_lora_rank)
    to_key, to_value = weight[:, : module.qk_nope_head_dim], weight[:, module.qk_nope_head_dim :]
    absorbed = bf16_rounded(torch.cat((torch.einsum("bhsp,hpl->bhsl", nope, to_key), rope), -1))
    scores = torch.einsum("bhsl,btl->bhst", absorbed, key[:, 0]) * scaling + attention_mask
    mixed = bf16_rounded(torch.einsum("bhst,btl->bhsl", scores.softmax(-1), value[:, 0]))
    return torch.einsum("bhsl,hvl->bshv", mixed, to_value), None
