"""Builds of records that layers of their own read, on batches of vLLM's runners."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tests.runners.interpreter import KernelSchedule, prepare

DRAFTS = ((0, None), (2, "mtp"))


def main(steps: int) -> dict[str, Any]:
    """Return for each builder its kind, the builds, the alarms, the failures, and which planted faults were told."""
    prepare()
    import numpy as np
    from vllm.v1.attention.backends.mla import sparse_swa

    sparse_swa.get_mla_metadata = lambda: (KernelSchedule(), None)
    from vllm.config.compilation import CUDAGraphMode

    from tests.runners import layer_builders
    from tests.runners.collector import arm
    from tests.runners.configuration import Setting
    from tests.runners.traffic import draw_step
    from tests.runners.v1 import V1Runner
    from tests.runners.v2 import V2Runner

    collector, rng = arm().collector, np.random.default_rng(0)
    runners: dict[str, Any] = {"v1": V1Runner, "v2": V2Runner}
    result: dict[str, Any] = {}
    for name, kind in layer_builders.KINDS.items():
        alarms, failed, builds = Counter[str](), Counter[str](), Counter[str]()
        told: dict[str, bool] = {}
        for runner, made in runners.items():
            for drafts, method in DRAFTS:
                setting = kind.setting(Setting(drafts, method))
                config = layer_builders.engine_config(setting)
                driven = made(setting, config, [kind.group(setting, config)], CUDAGraphMode.FULL_AND_PIECEWISE)
                for index in range(steps):
                    requests = draw_step(rng, setting, decodes_only=index % 3 == 0)
                    needs = [kind.blocks(one.computed + one.new + drafts) for one in requests]
                    blocks = iter((rng.permutation(sum(needs)) + 1).tolist())
                    try:
                        driven.step(requests, [[next(blocks) for _ in range(need)] for need in needs])
                    except Exception as error:  # noqa: BLE001 - vLLM's own failure is no alarm; it is shown
                        failed[f"{runner}: {type(error).__name__}: {error}"[:200]] += 1
                        collector.take()
                        continue
                    for build in collector.take():
                        builds[runner] += 1
                        alarms.update(f"{one.code} {one.path}: got {one.got}" for one in build.violations)
                        known = {one.code for one in build.violations}
                        for fault, record in faults(build.record):
                            said = {one.code for one in collector.say(build.builder, build.batch, record)}
                            told[fault] = told.get(fault, False) or bool(said - known)
        kinds = sorted({row[0] for row in collector.counts()})
        result[name] = {"builds": builds, "alarms": alarms, "failed": failed, "told": told, "kinds": kinds}
        collector._seen.clear()
    return result


def faults(record: Any) -> Iterator[tuple[str, Any]]:
    """Yield a record with one fault at a time; where a step gives the fault nothing to change, it is not planted."""
    for name in (
        "decode_swa_lens",
        "decode_swa_indices",
        "prefill_swa_lens",
        "prefill_swa_indices",
        "prefill_gather_lens",
        "c128a_decode_topk_lens",
        "c128a_global_decode_topk_indices",
        "c128a_prefill_topk_indices",
        "token_to_req_indices",
        "req_id_per_token",
        "slot_mapping",
    ):
        array = getattr(record, name, None)
        if array is not None and array.numel():
            yield f"{name} one more", replace(record, **{name: array + 1})
            yield f"{name} of another type", replace(record, **{name: array.double()})
    flags = getattr(record, "is_valid_token", None)
    if flags is not None and flags.numel():
        yield "is_valid_token inverted", replace(record, is_valid_token=~flags)
    if hasattr(record, "num_decodes"):
        yield "num_decodes one more", replace(record, num_decodes=record.num_decodes + 1)
    yield "block_size missing", Without(record, "block_size")


class Without:
    """A record of another class, which lacks a member."""

    def __init__(self, record: Any, member: str) -> None:
        self.__dict__.update({name: value for name, value in vars(record).items() if name != member})


if __name__ == "__main__":
    print(json.dumps(main(int(sys.argv[1]) if len(sys.argv) > 1 else 6)))
