"""Running pip for one wheel, as the user has configured it, and saying in one line what it could not do."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from mla_contract.audit.source import AuditError

_POLL_SECONDS = 0.2
_FOREIGN_PLATFORM = [
    *(
        word
        for tag in ("manylinux_2_35", "manylinux_2_31", "manylinux_2_28", "manylinux2014", "manylinux1")
        for word in ("--platform", f"{tag}_x86_64")
    ),
    *("--python-version", "3.12", "--implementation", "cp", "--abi", "abi3", "--abi", "cp312", "--abi", "none"),
]
"""Sources are the same on every platform; this asks for the one that every release has a wheel for."""

_NETWORK_SIGNS = (
    "NewConnectionError",
    "NameResolutionError",
    "ConnectTimeoutError",
    "ReadTimeoutError",
    "Network is unreachable",
    "Temporary failure in name resolution",
    "Connection refused",
    "ProxyError",
    "SSLError",
)


def download_wheel(version: str, work: Path, progress: Callable[[int, float], None] | None = None) -> Path:
    """Download the wheel of a vLLM release into a directory.

    Args:
        version: A valid version.
        work: Directory for the wheel and for pip's temporary files.
        progress: Called with the bytes so far and the seconds passed.

    Raises:
        AuditError: pip could not deliver it.
    """
    target = work / "wheel"
    first = ""
    for extra in ([], _FOREIGN_PLATFORM):
        code, output = _run_pip([*extra, "-d", str(target), f"vllm=={version}"], work, progress)
        wheels = sorted(target.glob("*.whl")) if target.is_dir() else []
        if code == 0 and wheels:
            return wheels[0]
        first = first or output
        if any(sign in output for sign in _NETWORK_SIGNS):
            break
    raise _pip_error(version, first)


def _run_pip(arguments: list[str], work: Path, progress: Callable[[int, float], None] | None) -> tuple[int, str]:
    # -P keeps the current directory, which may be the audited tree, off the path of this interpreter.
    command = [sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--no-input", "--disable-pip-version-check", "--progress-bar", "off", *arguments]
    environment = {**os.environ, "TMPDIR": str(work), "PYTHONIOENCODING": "utf-8"}
    log = work / "pip.log"
    started = time.monotonic()
    with (
        log.open("wb") as sink,
        subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.STDOUT, env=environment
        ) as process,
    ):
        try:
            while True:
                try:
                    code = process.wait(_POLL_SECONDS)
                    break
                except subprocess.TimeoutExpired:
                    if progress is not None:
                        progress(_size(work), time.monotonic() - started)
        finally:
            if process.poll() is None:
                process.kill()
    if progress is not None:
        progress(_size(work), time.monotonic() - started)
    return code, log.read_text(encoding="utf-8", errors="replace")


def _size(root: Path) -> int:
    total = 0
    for directory, _, names in os.walk(root):
        for name in names:
            try:
                total += os.path.getsize(os.path.join(directory, name))
            except OSError:
                continue  # pip moved or removed it between the two calls
    return total


def _pip_error(version: str, output: str) -> AuditError:
    instead = "or give a path to a tree or a wheel"
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    said = next((line for line in lines if line.startswith("ERROR:")), lines[-1] if lines else "nothing")
    said = said.removeprefix("ERROR:").strip()
    said = said if len(said) <= 240 else f"{said[:100]} ... {said[-130:]}"
    what = f"--release {version}: pip could not download vllm=={version}"
    if "No module named pip" in output:
        return AuditError(what, f"install pip for {sys.executable}, {instead}", got=said)
    if any(sign in output for sign in _NETWORK_SIGNS):
        help_ = f"no package index was reached: check the network and pip's configuration, {instead}"
        return AuditError(what, help_, got=said)
    return AuditError(what, f"check the version against the releases of vLLM, {instead}", got=said)
