"""One engine run of its own process, with the aiter double in place of aiter when asked.

``python -m mla_contract.testing.engine.run MODEL TRAFFIC DOUBLE`` prints one JSON line. DOUBLE is empty, or a release
of aiter and a GPU, such as ``0.1.20:gfx950``.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from contextlib import ExitStack
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar

from mla_contract.plugin.arming import checked_builds
from mla_contract.testing.engine.traffic import run_traffic, traffic_from

if TYPE_CHECKING:
    from mla_contract.contract.schema.provider import KernelProvider, Operation
    from mla_contract.testing.aiter_double import Double

R = TypeVar("R")


class OnlyMapSlots:
    """The reference for the one operation that aiter has no kernel for; it refuses all others."""

    name = "reference"

    def __init__(self, inner: KernelProvider) -> None:
        self._inner = inner

    def reason(self, inputs: Operation[Any]) -> str | None:
        """Return why this one is not taken."""
        from mla_contract.contract.schema.provider import MapSlots

        return None if isinstance(inputs, MapSlots) else "here only slots are mapped: all else is aiter's"

    def run(self, inputs: Operation[R]) -> R:
        """Map slots."""
        return self._inner.run(inputs)


def install_double(stack: ExitStack, words: str) -> Double:
    """Install the double until the stack closes, and make the backend use it for whatever aiter can do."""
    from mla_contract.backends.kernels.aiter import AiterProvider
    from mla_contract.backends.kernels.aiter.device import AiterDevice
    from mla_contract.backends.kernels.reference import ReferenceProvider
    from mla_contract.backends.vllm import providers
    from mla_contract.testing.aiter_double import install

    release, _, arch = words.partition(":")
    double = stack.enter_context(install(release, arch))
    device = AiterDevice(arch, "cpu")
    providers.give([AiterProvider(device), OnlyMapSlots(ReferenceProvider())])
    stack.callback(providers.give, None)
    return double


def main(model: str, options: str, double: str = "") -> None:
    """Run the traffic, and print what came back which builds were checked, and aiter's calls."""
    with ExitStack() as stack:
        installed = install_double(stack, double) if double else None
        outcome = run_traffic(model, traffic_from(json.loads(options)))
        calls = Counter(installed.names()) if installed else {}
        print("OUTCOME " + json.dumps(asdict(outcome) | {"calls": calls, "checked": checked_builds()}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
