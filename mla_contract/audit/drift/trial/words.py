"""What an extracted function may name: builtins, modules, and attributes that can do no harm."""

from __future__ import annotations

_BUILTINS = """
abs all any bool dict divmod enumerate filter float int isinstance len list map max min range reversed round set slice
sorted sum tuple zip AssertionError IndexError KeyError ValueError
"""
_BATCH_FIELDS = """
query_start_loc query_start_loc_cpu seq_lens seq_lens_cpu _seq_lens_cpu seq_lens_cpu_upper_bound num_reqs
num_actual_tokens max_query_len max_seq_len is_prefilling num_computed_tokens_cpu _num_computed_tokens_cpu
naive_query_lens causal req_ids num_scheduled_tokens num_prompt_tokens swap_states
"""
_ATTRIBUTES = """
T all any append arange argmax argmin argsort array asarray astype bisect_left bisect_right bool bool_ cat ceil clamp
clip clone concatenate contiguous copy count count_nonzero cpu cumsum device diff dim dtype empty extend flatnonzero
flatten float32 floor full gcd get index insert int int32 int64 is_cuda item items keys lcm long max maximum min minimum
ndarray ndim nonzero numel numpy ones pop prod repeat repeat_interleave reshape searchsorted setdefault shape size sort
squeeze stack start step stop sum t Tensor tensor to tolist unique unsqueeze update values view where zeros
"""

BUILTINS = frozenset(_BUILTINS.split())
MODULES = frozenset({"torch", "np", "numpy", "math", "bisect"})
ATTRIBUTES = frozenset(_BATCH_FIELDS.split()) | frozenset(_ATTRIBUTES.split())
