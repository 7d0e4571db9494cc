# A fork that plans: what a checker must say of a keyword or a type that is not there.
import numpy as np

from mla_contract.adapters.batch import BatchOptions, BatchShape
from mla_contract.adapters.plan import BatchPlan, PlanConfig, plan_batch

config = PlanConfig(block_size=16, decode_threshold=2, release=None)
PlanConfig(block_sise=16)  # E: Unexpected keyword argument "block_sise"
PlanConfig(block_size="16")  # E: incompatible type "str"; expected "int"
PlanConfig()  # E: Missing named argument "block_size"

shape = BatchShape.of([1, 4], np.array([9, 20]), num_actual_tokens=8, is_prefilling=[False, True])
BatchShape.of([1], [9], num_actual_token=8)  # E: Unexpected keyword argument "num_actual_token"  # N: "of" defined in
BatchShape.of([1], [9], max_query_len="8")  # E: incompatible type "str"; expected "int | None"
BatchShape.of([1.5], [9])  # E: List item 0 has incompatible type "float"; expected "int"
BatchShape.of("12", [9])  # E: incompatible type "str"
BatchShape.from_start_loc([0, 1], [9], block_tables=None)  # E: Unexpected keyword argument "block_tables"  # N: "from_start_loc" defined in
options: BatchOptions = {"num_actual_tokens": 8, "is_prefiling": None}  # E: Extra key "is_prefiling"

plan: BatchPlan = plan_batch(shape, config)
plan_batch(config, shape)  # E: expected "BatchShape"  # E: expected "PlanConfig"
plan.decode.seq_lens  # E: Item "None" of "DecodePlan | None" has no attribute "seq_lens"
plan.split.num_decode  # E: "Split" has no attribute "num_decode"
