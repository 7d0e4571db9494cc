"""Times on a GPU: replays of a captured graph over rotating inputs, and the ceilings that floors are made of."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

REPLAYS = 15
REST_SECONDS = 0.5
"""Pause before each measurement, so that none starts with the clocks that a hot GPU was left with."""

BYTES_OF_CACHE = 192 << 20
"""Inputs rotate until they exceed any cache by far."""


@dataclass(frozen=True)
class Ceilings:
    """What the device was measured to do.

    Attributes:
        copy_bytes: Bytes per second of a large copy on the device, read and written ones counted.
        matrix_flops: Operations per second of a large bfloat16 product of random matrices.
        fp8_flops: The same for e4m3.
    """

    copy_bytes: float
    matrix_flops: float
    fp8_flops: float

    def floor_us(self, num_bytes: float, flops: float, *, fp8: bool = False) -> float:
        """Return the time that neither bytes nor operations can beat."""
        return 1e6 * max(num_bytes / self.copy_bytes, flops / (self.fp8_flops if fp8 else self.matrix_flops))

    def bound(self, num_bytes: float, flops: float, *, fp8: bool = False) -> str:
        """Return which of the two is the floor."""
        rate = self.fp8_flops if fp8 else self.matrix_flops
        return "bytes" if num_bytes / self.copy_bytes >= flops / rate else "matrix"


def median_us(calls: Sequence[Callable[[], object]], replays: int = REPLAYS) -> tuple[float, float]:
    """Return the median time of one call, and half of the range from the first to the ninth tenth.

    All calls are captured into one graph, one after the other; each replay is timed by events.
    """
    for call in calls[:2]:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    time.sleep(REST_SECONDS)
    graph.replay()
    times = []
    for _ in range(replays):
        before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        before.record()
        graph.replay()
        after.record()
        torch.cuda.synchronize()
        times.append(before.elapsed_time(after) * 1000 / len(calls))
    times.sort()
    return statistics.median(times), (times[-1 - len(times) // 10] - times[len(times) // 10]) / 2


def rotations(num_bytes: float, most: int = 64) -> int:
    """Return how many inputs must rotate so that none is still in a cache."""
    return max(2, min(most, int(BYTES_OF_CACHE // max(num_bytes, 1)) + 1))


def eager_us(call: Callable[[], object], repeats: int) -> float:
    """Return the median time of a long call that is not captured."""
    times = []
    time.sleep(REST_SECONDS)
    for _ in range(repeats + 2):
        before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        before.record()
        call()
        after.record()
        torch.cuda.synchronize()
        times.append(before.elapsed_time(after) * 1000)
    return statistics.median(times[2:])


def measure_ceilings() -> Ceilings:
    """Measure the copy and both products."""
    source = torch.randint(0, 255, (4 << 30,), dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    copied = eager_us(lambda: target.copy_(source), 10)
    del target, source
    size = 8192
    a, b = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    product = eager_us(lambda: a @ b, 20)
    narrow, one = (a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn)), torch.ones((), device="cuda")
    fp8 = eager_us(
        lambda: torch._scaled_mm(narrow[0], narrow[1].t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16), 20
    )
    operations = 2.0 * size**3
    return Ceilings(2 * (4 << 30) / copied * 1e6, operations / product * 1e6, operations / fp8 * 1e6)
