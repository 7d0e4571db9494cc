"""Mutated sources: whatever a tree holds, the audit neither fails nor hangs, and what it reports stands in the tree."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mla_contract.audit.project import open_project
from mla_contract.audit.rules import RULES
from mla_contract.audit.source.tree import open_tree
from tests.audit.test_traps import NAMES, TRAPS, memory_tree, trap_files

TOKENS = st.sampled_from(
    [
        *("def", "class", "return", "if", "else:", "for", "in", "lambda", "yield", "await", "match", "case", "with"),
        *("(", ")", "[", "]", "{", "}", ":", ",", "=", ":=", "*", "**", "@", "->", "...", '"""', "'", "\\", "#"),
        *(
            "self",
            "attn_metadata",
            "super()",
            "None",
            "getattr(",
            "isinstance(",
            "import *",
            "from . import",
            "lambda:0",
        ),
        *("\t", "\x00", "\x0c", "\ufeff", "\u2028", "é", "𝔪", "\ud800".encode("utf-16", "surrogatepass").hex()),
        "# -*- coding: latin-1 -*-",
        "# -*- coding: no-such-encoding -*-",
    ]
)
DEEP = st.sampled_from(
    [
        "x = " + "(" * 150 + ")" * 150,
        "x = " + "[" * 60 + "]" * 60,
        "x = " + "a." * 400 + "b",
        "x = " + "-" * 300 + "1",
        "x = " + "not " * 300 + "1",
        "x: " + "list[" * 90 + "int" + "]" * 90,
        "x = " + " or ".join(["a"] * 500),
        "x = " + " + ".join(["a"] * 900),
        "".join(f"{' ' * depth}if x:\n" for depth in range(90)) + " " * 90 + "pass",
        "class A(B): pass\nclass B(A): pass\nclass A(A, B, A): pass",
        "from .trap import *\nfrom vllm.v1.attention.backends.mla.plain import *",
    ]
)
ENCODINGS = st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "latin-1", "utf-32"])


@st.composite
def mutated_files(draw: st.DrawFn) -> dict[str, bytes]:
    """Draw a trap with one to three of its files damaged."""
    files = trap_files(draw(st.sampled_from(NAMES)))
    damaged = draw(st.lists(st.sampled_from(sorted(files)), min_size=1, max_size=3, unique=True))
    result = {path: text.encode() for path, text in files.items()}
    for path in damaged:
        lines = files[path].splitlines()
        for _ in range(draw(st.integers(1, 6))):
            _damage(draw, lines)
        text = "\n".join(lines)
        if draw(st.booleans()):
            text = text[: draw(st.integers(0, len(text)))]
        result[path] = text.encode(draw(ENCODINGS), "backslashreplace")
        if draw(st.integers(0, 9)) == 0:
            result[path] += draw(st.binary(max_size=12))
    return result


def _damage(draw: st.DrawFn, lines: list[str]) -> None:
    kind = draw(st.sampled_from(["delete", "double", "swap", "insert", "token", "cut", "deep", "indent", "unicode"]))
    at = draw(st.integers(0, max(len(lines) - 1, 0)))
    if not lines or kind == "insert":
        lines.insert(at, " " * draw(st.integers(0, 12)) + " ".join(draw(st.lists(TOKENS, max_size=6))))
    elif kind == "delete":
        del lines[at : at + draw(st.integers(1, 4))]
    elif kind == "double":
        lines.insert(at, lines[at])
    elif kind == "swap":
        other = draw(st.integers(0, len(lines) - 1))
        lines[at], lines[other] = lines[other], lines[at]
    elif kind == "indent":
        lines[at] = " " * draw(st.integers(0, 12)) + lines[at].lstrip()
    elif kind == "deep":
        indent = lines[at][: len(lines[at]) - len(lines[at].lstrip())]
        lines[at:at] = [indent + line for line in draw(DEEP).splitlines()]
    else:
        column = draw(st.integers(0, len(lines[at])))
        piece = {"token": draw(TOKENS), "cut": "", "unicode": draw(st.text(max_size=3))}[kind]
        lines[at] = lines[at][:column] + piece + ("" if kind == "cut" else lines[at][column:])


def audit(files: dict[str, bytes]) -> None:
    """Run every rule over a tree and check that each finding names a place of it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        project = open_project(memory_tree(files))
        for rule in RULES:
            for finding in rule.check(project):
                assert finding.path in files
                assert 1 <= finding.line <= files[finding.path].count(b"\n") + files[finding.path].count(b"\r") + 1
                assert finding.code == rule.code


@settings(
    max_examples=200,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(mutated_files())
def test_rules_mutated_sources_never_fail(files: dict[str, bytes]) -> None:
    """Deleted, doubled, swapped and garbled lines, foreign encodings, NUL and deep nesting are all survived."""
    audit(files)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00",
        b"\xff\xfe\x00",
        b"# -*- coding: no-such-encoding -*-\n",
        b"\xef\xbb\xbfx = 1\n",
        b"x = " + b"(" * 10_000,
        b"x = " + b"-" * 5_000 + b"1\n",
        b"x = " + b"a." * 5_000 + b"b\n",
        b"def f(:\n",
        "class Ü(AttentionBackend):\n    pass\n".encode("latin-1"),
        b"if 1:\n\tx\n        y\n",
    ],
    ids=range(11),
)
def test_rules_unparsable_file_leaves_the_rest_audited(data: bytes) -> None:
    """Beside a file that cannot be read, the findings of the other files are the same."""
    files: dict[str, bytes] = {path: text.encode() for path, text in trap_files("fn01_tuple_unpacking").items()}
    files["vllm/v1/attention/backends/mla/broken.py"] = data + b"\n# AttentionBackend MLA get_attention_context Indexer"
    project = open_project(memory_tree(files))
    assert sorted(f.field or "" for rule in RULES for f in rule.check(project) if f.code == "REQ001") == [
        "num_decode_tokens",
        "num_decodes",
    ]


PLAIN = "vllm/v1/attention/backends/mla/plain.py"
HEAVY = {
    "tuples that double": "        t = attn_metadata\n" + "        t = (t, t)\n" * 60,
    "objects that double": "        t = attn_metadata\n" + "        t = PlainMetadata(t, t)\n" * 60,
    "nested loops": "".join(f"{' ' * (8 + i)}for x{i} in q:\n" for i in range(19)) + " " * 40 + "y = attn_metadata\n",
    "branches in a row": "".join(f"        if q{i}:\n            a{i} = attn_metadata\n" for i in range(200)),
    "calls of calls": "        q" + "()" * 2000 + "\n",
    "a long sum": "        q = " + " + ".join(["q"] * 2500) + "\n",
    "a deep condition": "        if " + "not " * 2500 + "q:\n            q = 1\n",
    "nested lambdas": "        q = " + "lambda: " * 2500 + "q\n",
    "deep conditional expressions": "        q = " + "q if q else " * 2500 + "q\n",
    "methods that call the next one three times": "        q = self.f0(attn_metadata, 1)\n",
}
METHODS = "".join(
    f"    def f{i}(self, m, k):\n        if k.is_{i}:\n            self.f{i + 1}(m, k)\n"
    f"        self.f{i + 1}((m, m, {i}), k)\n        self.f{i + 1}([m], k)\n"
    for i in range(8)
)


@pytest.mark.parametrize("name", HEAVY)
def test_rules_sources_that_grow_are_audited_all_the_same(name: str) -> None:
    """What doubles at each line, or is nested deeper than Python recurses, costs no time and hides nothing after it."""
    files = dict(trap_files("skeleton"))
    body = f"{HEAVY[name]}        return attn_metadata.nothing\n"
    files[PLAIN] = files[PLAIN].replace("        return q\n", body) + METHODS
    assert files[PLAIN] != trap_files("skeleton")[PLAIN]
    project = open_project(memory_tree(files))
    assert "nothing" in [f.field for rule in RULES for f in rule.check(project) if f.code == "REQ001"]


def test_rules_lattice_of_backends_is_audited() -> None:
    """Thirty layers of backend classes with two bases each are found at once."""
    lattice = "from vllm.v1.attention.backends.mla.plain import *\n"
    lattice += "class A0(PlainBackend): pass\nclass B0(PlainBackend): pass\n"
    for i in range(1, 30):
        lattice += f"class A{i}(A{i - 1}, B{i - 1}): pass\nclass B{i}(A{i - 1}, B{i - 1}): pass\n"
    files = {**trap_files("skeleton"), "vllm/v1/attention/backends/mla/lattice.py": lattice + "# MLA\n"}
    project = open_project(memory_tree(files))
    assert len(project.mla_backends) == 1 + 2 * 30
    assert [f for rule in RULES for f in rule.check(project) if f.code == "REQ001"] == []


@pytest.mark.parametrize("path", ["vllm/v1/attention/backend.py", "vllm/forward_context.py"])
def test_rules_missing_extension_point_finds_nothing(path: str) -> None:
    """A tree without one of vLLM's own files is audited as far as it goes."""
    files = {name: text.encode() for name, text in trap_files("fn01_tuple_unpacking").items() if name != path}
    audit(files)


def test_open_tree_traps_on_disk_equal_those_in_memory(tmp_path: Path) -> None:
    """The trees that these tests build in memory are what the audit reads from a disk."""
    for path, text in trap_files("fn01_tuple_unpacking").items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    assert dict(open_tree(tmp_path).files) == dict(memory_tree(trap_files("fn01_tuple_unpacking")).files)
    assert (TRAPS / "skeleton" / "vllm" / "__init__.py").is_file()
