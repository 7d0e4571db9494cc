"""A tree that is full of things which leave a trace when they run is audited, and leaves none.

The audit runs in a process of its own under an audit hook (``watch.py``), and so does each syntax worker it starts.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import mla_contract
from mla_contract.audit.source import syntax
from tests.audit.rules.drift_trees import FIXTURES, case_files

WORD = "hostile_q7x"
"""Stands in every file of the tree, and nowhere else."""

MODULES = ("vllm", "conftest", "setup", "build_hook", "usercustomize", "plugin_of_the_tree")
RUNNER = Path(__file__).with_name("watched_audit.py")
TIMEOUT = 120


@dataclass(frozen=True)
class Place:
    """The directories of one test.

    Attributes:
        tree: The hostile tree.
        traces: Where it leaves its traces.
        scratch: Where the process may write: caches and temporary files.
        reports: Where the watch writes what it saw.
    """

    tree: Path
    traces: Path
    scratch: Path
    reports: Path

    def run(self, *arguments: str) -> list[dict[str, Any]]:
        """Run a watched process in the tree; return its report and those of its workers."""
        settings = {
            "root": str(Path(mla_contract.__file__).parent.parent),
            "tree": str(self.tree),
            "word": WORD,
            "modules": MODULES,
            "writable": [str(self.scratch)],
            "reports": str(self.reports),
            "worker": str(syntax._WORKER),
        }
        path = self.reports / "settings.json"
        path.write_text(json.dumps(settings))
        environment = {"MLA_CONTRACT_CACHE": str(self.scratch / "cache"), "TMPDIR": str(self.scratch), "PATH": "/bin"}
        command = [sys.executable, str(RUNNER), str(path), *arguments]
        done = subprocess.run(
            command, cwd=self.tree, env=environment, capture_output=True, text=True, timeout=TIMEOUT, check=False
        )
        reports = [json.loads(file.read_text()) for file in sorted(self.reports.glob("*-*.json"))]
        assert reports, done.stderr
        return reports

    def seen(self) -> list[str]:
        """Return the traces that the tree left."""
        return sorted(path.name for path in self.traces.iterdir())


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """Return a hostile tree on disk, with the directories around it."""
    found = Place(*(tmp_path / name for name in ("tree", "traces", "scratch", "reports")))
    for directory in (found.tree, found.traces, found.scratch, found.reports):
        directory.mkdir()
    for name, text in hostile_files(found.traces).items():
        path = found.tree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return found


def hostile_files(traces: Path) -> dict[str, str]:
    """Return a tree with backends and a private copy; whatever of it runs, or is imported, leaves a file behind."""

    def leave(name: str) -> str:
        return f"open({str(traces / name)!r}, 'w').write('{WORD}')"

    files = {
        path: f"{text}\n{WORD} = {leave(path.replace('/', '_'))}\n"
        for path, text in case_files(FIXTURES / "drift" / "private_copy").items()
    }
    files["vllm/v1/attention/backends/mla/copies.py"] = f"""
import torch
import numpy as np
from vllm.v1.attention.backend import CommonAttentionMetadata

# coding is fixed above; what follows tempts whoever runs an extracted function
STEP = {leave("constant")}


def decorate_{WORD}(function):
    {leave("decorator")}
    return function


def helper(value):
    return {leave("helper")}


@decorate_{WORD}
def split_decodes_and_prefills(common_attn_metadata, decode_threshold=1, require_uniform={leave("default")}):
    lens = common_attn_metadata.query_start_loc_cpu
    text = f"{{lens:{{decode_threshold}}{{{{lens.__class__.__mro__[1].__subclasses__()}}}}}}"
    view = np.zeros((2,), dtype=object)
    view.strides = (0,)
    helper(text)
    {leave("body")}
    ().__class__.__base__.__subclasses__()
    number = {hex(16**5000)}
    return number, lens


def reader(metadata: "CommonAttentionMetadata | __import__('os').system('echo {WORD}')"):
    return metadata.no_such_field_{WORD}
"""
    for name in (
        "conftest",
        "setup",
        "sitecustomize",
        "usercustomize",
        "build_hook",
        "plugin_of_the_tree",
        "vllm/__main__",
    ):
        files[f"{name}.py"] = f"{WORD} = {leave(name.replace('/', '_'))}\n"
    for shadowed in ("json", "ast", "rich", "typer", "numpy", "torch", "pydantic", "typing", "mla_contract/__init__"):
        files[f"{shadowed}.py"] = f"{WORD} = {leave('shadow_' + shadowed.replace('/', '_'))}\n"
    files["encodings/hostile.py"] = f"def getregentry():\n    {WORD} = {leave('codec')}\n"
    files["vllm/coded.py"] = f"# coding: hostile\n{WORD} = {leave('coded')}\n"
    files["vllm/_version.py"] = f"__version__ = '0.33.0'\n{WORD} = {leave('version')}\n"
    files["vllm/broken.py"] = f"{WORD} = {leave('broken')}\ndef f(:\n"
    files["vllm/null.py"] = f"{WORD} = {leave('null')}\n\0\n"
    files[f"{WORD}.pth"] = f"import os; {leave('pth')}\n"
    files["pyproject.toml"] = (
        f'[build-system]\nrequires = []\nbuild-backend = "build_hook"\nbackend-path = ["."]  # {WORD}\n'
        '[project]\nname = "vllm"\nversion = "0.33.0"\n'
        '[project.entry-points."mla_contract.backends"]\nhostile = "plugin_of_the_tree:target"\n'
    )
    files["vllm-0.33.0.dist-info/METADATA"] = f"Metadata-Version: 2.1\nName: vllm\nVersion: 0.33.0\n# {WORD}\n"
    files["vllm-0.33.0.dist-info/entry_points.txt"] = (
        f"# {WORD}\n[mla_contract.backends]\nhostile = plugin_of_the_tree:target\n"
        "[vllm.general_plugins]\nhostile = plugin_of_the_tree:register\n"
    )
    files["setup.cfg"] = f"[options.entry_points]\nconsole_scripts = mla-contract = plugin_of_the_tree:main  # {WORD}\n"
    return files


def test_audit_hostile_tree_runs_nothing_of_it(place: Place) -> None:
    """All rules run, and neither the audit nor its workers compile, run, import, start, write or connect anything."""
    output = place.scratch / "report.json"
    reports = place.run("cli", "audit", str(place.tree), "--format", "json", "--output", str(output), "--jobs", "2")
    assert [report["seen"] for report in reports] == [[]] * len(reports)
    assert place.seen() == []
    workers = [report for report in reports if report["arguments"] == []]
    assert workers, "the syntax workers were watched too"
    codes = {finding["code"] for finding in json.loads(output.read_text())["findings"]}
    assert {"DRF001", "TOOL001"} <= codes and "TOOL005" not in codes


def test_audit_hostile_plugin_and_aiter_run_nothing_of_them(place: Place) -> None:
    """A foreign package that is laid over a tree, and a foreign aiter, are read like the tree."""
    aiter = place.tree / "aiter"
    aiter.mkdir()
    for name in ("__init__", "mla", "ops"):
        (aiter / f"{name}.py").write_text(f"def {WORD}(a): ...\n{(place.tree / 'setup.py').read_text()}")
    plugin = place.tree / "plugin_package"
    plugin.mkdir()
    (plugin / "__init__.py").write_text((place.tree / "vllm/v1/attention/backends/mla/copies.py").read_text())
    output = place.scratch / "report.json"
    options = [
        "--plugin",
        str(plugin),
        "--aiter",
        str(aiter),
        "--format",
        "json",
        "--output",
        str(output),
        "--no-cache",
    ]
    reports = place.run("cli", "audit", str(place.tree / "vllm"), *options)
    assert [report["seen"] for report in reports] == [[]] * len(reports)
    assert place.seen() == []
    findings = json.loads(output.read_text())["findings"]
    assert any(f["code"] == "DRF001" and f["path"].startswith("plugin_package/") for f in findings)


def test_profile_and_diff_hostile_tree_run_nothing_of_it(place: Place) -> None:
    """The other commands that read a foreign tree leave no trace of it either."""
    reports = place.run("cli", "diff", "0.33", str(place.tree), "--output", str(place.scratch / "changes"))
    assert [report["seen"] for report in reports] == [[]] * len(reports)
    assert place.seen() == [] and (place.scratch / "changes").read_text()


CONTROLS = {
    "import of a module": ("imported", "import sys\nsys.path.insert(0, TREE)\nimport conftest"),
    "import that finds nothing": ("imported", "try:\n    import plugin_of_the_tree\nexcept ImportError: pass\n"),
    "run of a file": ("executed", "exec(compile(open(TREE + '/conftest.py').read(), '<string>', 'exec'))"),
    "compile alone": ("compiled", "compile(WORD + ' = 1', '<string>', 'exec')"),
    "compile of a syntax tree": ("compiled", "import ast\ncompile(ast.parse(WORD + ' = 1'), '<string>', 'exec')"),
    "compile after a parse": ("compiled", "import ast\nast.parse(WORD)\ncompile(WORD, '<string>', 'eval')"),
    "eval of a text": ("compiled", "eval(WORD, {WORD: 1})"),
    "exec of a text": ("executed", "exec(WORD + ' = 1')"),
    "runpy": ("executed", "import runpy\nrunpy.run_path(TREE + '/conftest.py')"),
    "function from code": (
        "executed",
        "import types\ncode = compile(WORD + ' = 1', '<string>', 'exec')\ntypes.FunctionType(code, {})()",
    ),
    "process with the text": ("process", "import subprocess\nsubprocess.run(['/bin/echo', WORD])"),
    "process with other arguments": ("process", "import subprocess, sys\nsubprocess.run([sys.executable, '-c', ''])"),
    "shell": ("process", "import os\nos.system('true')"),
    "fork": ("process", "import os\npid = os.fork()\nif not pid: os._exit(0)\nos.waitpid(pid, 0)"),
    "file in the tree": ("written", "open(TREE + '/new', 'w')"),
    "file appended to": ("written", "open(TREE + '/setup.py', 'a')"),
    "file opened to write by number": ("written", "import os\nos.open(TREE + '/new', os.O_WRONLY | os.O_CREAT)"),
    "directory": ("written", "import os\nos.mkdir(TREE + '/new')"),
    "rename out of the scratch": (
        "written",
        "import os\nopen(SCRATCH + '/a', 'w')\nos.rename(SCRATCH + '/a', TREE + '/a')",
    ),
    "removal": ("written", "import os\nos.remove(TREE + '/setup.cfg')"),
    "link": ("written", "import os\nos.symlink('/', TREE + '/link')"),
    "socket": ("connected", "import socket\nsocket.socket().close()"),
    "pickle": ("unpickled", "import pickle\npickle.loads(pickle.dumps(print))"),
}
INNOCENT = {
    "parse": "import ast\nast.parse(WORD + ' = 1', TREE + '/setup.py')\nast.parse(WORD, mode='eval')",
    "symbol table": "import symtable\nsymtable.symtable(WORD + ' = 1', TREE + '/setup.py', 'exec')",
    "read": "open(TREE + '/setup.py').read()",
    "own code": "exec(compile('x = 1', '<string>', 'exec'))",
    "scratch": "import os\nos.mkdir(SCRATCH + '/new')\nopen(SCRATCH + '/new/a', 'w')\nos.remove(SCRATCH + '/new/a')",
    "standard library": "import colorsys, this",
    "plain pickle": "import pickle\npickle.loads(pickle.dumps([(1, b'x')]))",
}


@pytest.mark.parametrize("name", CONTROLS)
def test_watch_misdeed_is_seen(place: Place, name: str) -> None:
    """A process that really does one of these is reported for it: the watch is not blind."""
    kind, source = CONTROLS[name]
    script = place.scratch / "script.py"
    script.write_text(source)
    (report,) = place.run("run", str(script))
    assert kind in {entry.partition(":")[0] for entry in report["seen"]}, report["seen"]


@pytest.mark.parametrize("name", INNOCENT)
def test_watch_innocent_deed_is_not_seen(place: Place, name: str) -> None:
    """What the audit may do is not reported."""
    script = place.scratch / "script.py"
    script.write_text(INNOCENT[name])
    (report,) = place.run("run", str(script))
    assert report["seen"] == []


@pytest.mark.parametrize("name", ["conftest", "vllm/_version", "json", "vllm/v1/attention/backends/mla/copies"])
def test_hostile_file_that_runs_leaves_a_trace(place: Place, name: str) -> None:
    """The files of the tree would be seen: running one leaves its trace."""
    script = place.scratch / "script.py"
    lines = [
        line if not line.startswith(("import ", "from ")) else ""
        for line in (place.tree / f"{name}.py").read_text().splitlines()
    ]
    script.write_text("\n".join(lines))
    subprocess.run([sys.executable, str(script)], capture_output=True, timeout=TIMEOUT, check=False)
    assert place.seen() != []
