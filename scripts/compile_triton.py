"""Compile every Triton kernel, as the provider launches it, without a GPU, and hold its shared memory to the limit.

Run from the root: ``python -m scripts.compile_triton [--arch NAME ...] [--case TEXT]``. Prints a row for each launch
of each case; the exit status says whether all compile and fit. Triton's wheel has the compilers for NVIDIA and AMD.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver

from mla_contract.backends.kernels.triton import TritonProvider, checks
from mla_contract.backends.kernels.triton.device import INTERPRETED, device_of
from mla_contract.contract.schema.provider import Operation
from scripts.compile_cases import cases

KIB = 1024

LIMITS = {
    "sm80": 163 * KIB,
    "sm89": 99 * KIB,
    "sm90": 227 * KIB,
    "sm100": 227 * KIB,
    "gfx942": 64 * KIB,
    "gfx950": 160 * KIB,
}
"""Most shared memory of a program, in bytes, by architecture."""


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch of a kernel.

    Attributes:
        kernel: Name.
        warps: Warps of a program.
        shared: Bytes of shared memory of a program.
    """

    kernel: str
    warps: int
    shared: int


class PaperDriver:
    """What Triton asks of a driver, for a GPU that is not there: kernels are compiled, and their launches noted."""

    def __init__(self, arch: str) -> None:
        self.arch = arch
        self.launches: list[Launch] = []
        self.utils = self

    def get_current_target(self) -> GPUTarget:
        """Return what is compiled for."""
        if self.arch.startswith("sm"):
            return GPUTarget("cuda", int(self.arch.removeprefix("sm")), 32)
        return GPUTarget("hip", self.arch, 64)

    def get_current_device(self) -> str:
        """Return the key of Triton's caches of kernels."""
        return self.arch

    def get_current_stream(self, device: str) -> int:
        """Return the default stream."""
        return 0

    def get_device_properties(self, device: str) -> dict[str, int]:
        """Return no limit: this module compares by itself, so that a figure is printed whatever it is."""
        return {"max_shared_mem": sys.maxsize}

    def load_binary(self, *binary: object) -> tuple[None, None, int, int, int]:
        """Return no module, no function, and the most threads of a program."""
        return None, None, 0, 0, 1024

    def launcher_cls(self, source: object, metadata: Any) -> Any:
        """Return what is called instead of a compiled kernel."""
        launch = Launch(metadata.name, metadata.num_warps, metadata.shared)
        return lambda *arguments: self.launches.append(launch)


def compile_case(arch: str, inputs: Operation[Any]) -> list[Launch]:
    """Return the launches of an operation on an architecture.

    Raises:
        NoProvider: If the provider refuses it.
    """
    paper = PaperDriver(arch)
    driver.set_active(paper)
    with patch.object(checks, "find_device", lambda kind, index: device_of(arch)):
        TritonProvider().run(inputs)
    return paper.launches


def check_arch(arch: str, part: str) -> Iterator[tuple[str, bool]]:
    """Yield a row of text for each launch of each case with ``part`` in its name, and whether it compiles and fits."""
    for name, inputs in cases(device_of(arch)).items():
        if part not in name:
            continue
        try:
            launches = compile_case(arch, inputs)
        except Exception as error:  # noqa: BLE001 - whatever the compiler raises is the finding
            yield f"{arch:7} {name:70} does not compile: {type(error).__name__} {error}", False
            continue
        for launch in launches:
            fits = launch.shared <= LIMITS[arch]
            size = f"{launch.shared:7} of {LIMITS[arch]} bytes{'' if fits else ': does not fit'}"
            yield f"{arch:7} {name:70} {launch.kernel:13} {launch.warps:2} warps {size}", fits


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the rows and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arch", nargs="*", default=list(LIMITS), choices=list(LIMITS))
    parser.add_argument("--case", default="", help="only cases with this text in their name")
    chosen = parser.parse_args(arguments)
    if INTERPRETED:
        parser.error("TRITON_INTERPRET is set: kernels are not compiled")
    found: list[bool] = []
    for arch in chosen.arch:
        for row, good in check_arch(arch, chosen.case):
            print(row, flush=True)
            found.append(good)
    print(f"{len(found)} rows, {found.count(False)} failures")
    return int(not found or not all(found))


if __name__ == "__main__":
    sys.exit(main())
