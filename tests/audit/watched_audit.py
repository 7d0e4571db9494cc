"""A process of the hostile tree's test: a command line, a syntax worker or a piece of Python, with a watch on it.

Usage: python watched_audit.py SETTINGS.json (worker | cli ARGUMENT ... | run SOURCE)
"""

from __future__ import annotations

import importlib.util
import json
import os
import runpy
import sys
from pathlib import Path
from typing import Any


def load_watch() -> Any:
    """Return the module of the watch, which stands beside this file."""
    spec = importlib.util.spec_from_file_location("watch", Path(__file__).with_name("watch.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["watch"] = module
    spec.loader.exec_module(module)
    return module


def main(path: str, what: str, *arguments: str) -> None:
    """Do one thing under the watch, and write what was seen to a file of the directory of reports."""
    sys.dont_write_bytecode = True
    settings = json.loads(Path(path).read_text())
    worker = Path(settings["reports"]) / "watched_worker.py"
    watch = load_watch().Watch(
        tree=settings["tree"],
        word=settings["word"],
        modules=frozenset(settings["modules"]),
        writable=tuple(settings["writable"]),
        command=(sys.executable, "-I", "-S", str(worker)),
    )
    if what == "cli":
        sys.path.insert(0, settings["root"])
        _watch_workers(worker, path)
    watch.start()
    code: object = 0
    try:
        if what == "cli":
            code = _command_line(arguments)
        elif what == "worker":
            runpy.run_path(settings["worker"], run_name="__main__")
        else:
            names = {"TREE": settings["tree"], "SCRATCH": settings["writable"][0], "WORD": settings["word"]}
            runpy.run_path(arguments[0], names)
    finally:
        watch.stop()
        report = Path(settings["reports"]) / f"{what}-{os.getpid()}.json"
        report.write_text(json.dumps({"seen": watch.seen, "code": code, "arguments": arguments}))


def _command_line(arguments: tuple[str, ...]) -> object:
    from mla_contract.cli.main import app

    try:
        app(list(arguments))
    except SystemExit as stop:
        return stop.code
    return 0


def _watch_workers(worker: Path, settings: str) -> None:
    """Have the audit start its workers by way of this file: the same worker, in the same isolated mode, watched."""
    from mla_contract.audit.source import syntax

    argv = [__file__, settings, "worker"]
    worker.write_text(f"import runpy, sys\nsys.argv = {argv!r}\nrunpy.run_path({__file__!r}, run_name='__main__')\n")
    syntax._WORKER = worker


if __name__ == "__main__":
    main(*sys.argv[1:])
