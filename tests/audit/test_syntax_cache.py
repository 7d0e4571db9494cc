"""The parser's verdicts and the caches: right answers cold and warm, and damage counts as absence."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from mla_contract.audit.source import AuditError, SourceProblem, syntax
from mla_contract.audit.source.cache import KEPT_RESULTS, ResultCache, VerdictCache, cache_root, digest_of
from mla_contract.audit.source.syntax import start_syntax_check
from mla_contract.audit.source.syntax_worker import syntax_reason
from mla_contract.audit.source.tree import SourceFile
from mla_contract.audit.source.walk import source_digest

GOOD = {
    "plain": b"x = 1\n",
    "empty": b"",
    "byte order mark": b"\xef\xbb\xbfx = 1\n",
    "cookie": b"# coding: latin-1\n# \xe9\n",
    "warning": b"x = '\\d'\n",
    "carriage returns": b"if x:\r\n    y = 1\r\n",
}
BAD = {
    "syntax": (b"x = 1\ndef f(:\n", 2),
    "null byte": (b"x = 1\n\0\n", 2),
    "not utf-8": (b"x = 1\n# \xe9\n", 2),
    "unknown encoding": (b"# coding: nope\n", 1),
    "parentheses": (b"(" * 5000 + b")" * 5000, 1),
    "attributes": (b"x = a" + b".a" * 100_000, 1),
    "minuses": (b"x = " + b"-" * 100_000 + b"1", 1),
    "conflict": (b"<<<<<<< ours\nx = 1\n=======\n", 1),
}

WORKER_THAT_DIES = """
import json, os, pickle, sys
for index, data in pickle.loads(sys.stdin.buffer.read()):
    print(json.dumps([index]), flush=True)
    if b"deadly" in data:
        os._exit(9)
    if b"slow" in data:
        import time
        time.sleep(60)
    print(json.dumps([index, None, None]), flush=True)
"""


def source(path: str, data: bytes) -> SourceFile:
    """Return a source file."""
    return SourceFile(path, data, source_digest(data))


def check_syntax(files: Iterable[SourceFile], *, jobs: int = 2) -> tuple[SourceProblem, ...]:
    """Return the files that Python cannot parse."""
    with start_syntax_check(files, jobs=jobs) as check:
        return check.result()


@pytest.mark.filterwarnings("ignore:invalid escape")
@pytest.mark.parametrize("name", GOOD)
def test_syntax_reason_good_source_has_none(name: str) -> None:
    """What Python reads has no reason, warnings or not."""
    assert syntax_reason(GOOD[name]) is None


@pytest.mark.parametrize("name", BAD)
def test_check_syntax_bad_source_is_reported_with_its_line(name: str) -> None:
    """Every kind of unreadable file is one problem at its line, and the file beside it has none."""
    data, line = BAD[name]
    problems = check_syntax([source("bad.py", data), source("good.py", b"x = 1\n")])
    assert [(problem.path, problem.line) for problem in problems] == [("bad.py", line)]
    assert problems[0].reason.startswith("cannot be parsed: ")
    if name not in ("parentheses", "attributes", "minuses"):
        assert syntax_reason(data) is not None


@pytest.mark.parametrize("jobs", [1, 2, 5])
def test_check_syntax_any_number_of_jobs_gives_the_same(jobs: int) -> None:
    """The verdict does not depend on how the files are spread."""
    files = [source(f"{index}.py", b"x = (\n" * (index % 3)) for index in range(12)]
    expected = [f"{index}.py" for index in sorted(range(12), key=str) if index % 3]
    assert [problem.path for problem in check_syntax(files, jobs=jobs)] == expected


def test_check_syntax_same_content_twice_is_two_problems() -> None:
    """Files of one content are parsed once and reported each."""
    problems = check_syntax([source("a.py", b"x = (\n"), source("b.py", b"x = (\n")])
    assert [problem.path for problem in problems] == ["a.py", "b.py"]


def test_check_syntax_file_that_ends_the_parser_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that kills its process is named, and every other file is still checked."""
    worker = tmp_path / "worker.py"
    worker.write_text(WORKER_THAT_DIES)
    monkeypatch.setattr(syntax, "_WORKER", worker)
    files = [source(f"{index}.py", b"deadly %d" % index if index in (2, 5) else b"%d" % index) for index in range(8)]
    problems = check_syntax(files)
    assert [problem.path for problem in problems] == ["2.py", "5.py"]
    assert "ended" in problems[0].reason


def test_check_syntax_file_that_takes_for_ever_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A parser that does not come back is stopped."""
    worker = tmp_path / "worker.py"
    worker.write_text(WORKER_THAT_DIES)
    monkeypatch.setattr(syntax, "_WORKER", worker)
    monkeypatch.setattr(syntax, "BATCH_TIMEOUT", 1.0)
    problems = check_syntax([source("a.py", b"slow"), source("b.py", b"x = 1")], jobs=1)
    assert [problem.path for problem in problems] == ["a.py"]


def test_check_syntax_worker_that_cannot_start_stops_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a parser nothing may look clean."""
    monkeypatch.setattr(syntax, "_WORKER", tmp_path / "nowhere.py")
    with pytest.raises(AuditError, match="did not start"):
        check_syntax([source("a.py", b"")])


def test_start_syntax_check_left_early_ends_its_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaving without the result does not wait for slow files."""
    worker = tmp_path / "worker.py"
    worker.write_text(WORKER_THAT_DIES)
    monkeypatch.setattr(syntax, "_WORKER", worker)
    with start_syntax_check([source("a.py", b"slow")]) as check:
        pass
    assert all(future.done() for future in check.futures)


def test_start_syntax_check_warm_checks_changed_files_only(tmp_path: Path) -> None:
    """Known content is not parsed again, and verdicts about it stay."""
    first = [source("a.py", b"x = 1\n"), source("b.py", b"x = (\n")]
    with start_syntax_check(first, cache=VerdictCache(tmp_path)) as check:
        cold = check.result()
    second = [*first, source("c.py", b"y = (\n")]
    with start_syntax_check(second, cache=VerdictCache(tmp_path)) as check:
        assert [file.path for file in check.pending] == ["c.py"]
        warm = check.result()
    assert [problem.path for problem in cold] == ["b.py"]
    assert [problem.path for problem in warm] == ["b.py", "c.py"]
    assert warm[0] == cold[0]


def test_result_of_files_parsed_elsewhere_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What someone else has parsed well has no problem, begun or not, and every other file is still checked."""
    monkeypatch.setattr(syntax, "BATCH_BYTES", 8)
    files = [source(f"{index}.py", b"x%d = (\n" % index) for index in range(20)]
    parsed = {file.path for file in files[::2]}
    with start_syntax_check(files, jobs=1) as check:
        problems = check.result(parsed)
    assert {problem.path for problem in problems} == {file.path for file in files} - parsed


@pytest.mark.parametrize("text", ["", "{", "[]", '{"good": 1, "bad": {}}', '{"good": "", "bad": {"a": 1}}'])
def test_verdict_cache_damaged_file_counts_as_absent(tmp_path: Path, text: str) -> None:
    """Whatever stands in the file, nothing is taken from a damaged one."""
    cache = VerdictCache(tmp_path)
    cache.save({"a": None, "b": (3, "why")})
    assert VerdictCache(tmp_path).load() == {"a": None, "b": (3, "why")}
    next(tmp_path.glob("syntax-*.json")).write_text(text)
    assert VerdictCache(tmp_path).load() == {}


def test_result_cache_gives_back_what_was_put(tmp_path: Path) -> None:
    """A payload comes back under its key and under no other."""
    cache = ResultCache(tmp_path)
    cache.put("a", [{"x": None}])
    assert cache.get("a") == [{"x": None}]
    assert cache.get("b") is None


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"payload": [1], "digest": "no"}', "[" * 100_000])
def test_result_cache_damaged_entry_counts_as_absent(tmp_path: Path, text: str) -> None:
    """An entry that is cut or changed counts as absent."""
    cache = ResultCache(tmp_path)
    cache.put("a", [1])
    (tmp_path / "results" / "a.json").write_text(text)
    assert cache.get("a") is None


def test_result_cache_keeps_the_newest_entries(tmp_path: Path) -> None:
    """The number of entries is bounded, and a used entry counts as new."""
    cache = ResultCache(tmp_path)
    for index in range(KEPT_RESULTS):
        cache.put(f"k{index}", index)
        os.utime(tmp_path / "results" / f"k{index}.json", (index, index))
    assert cache.get("k0") == 0
    cache.put("new", 1)
    assert cache.get("k0") == 0
    assert cache.get("k1") is None
    assert len(list((tmp_path / "results").iterdir())) == KEPT_RESULTS


def test_result_cache_that_cannot_be_written_stays_silent(tmp_path: Path) -> None:
    """A read-only home costs speed, not the audit."""
    (tmp_path / "file").write_text("")
    cache = ResultCache(tmp_path / "file")
    cache.put("a", 1)
    assert cache.get("a") is None


def test_cache_root_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The argument wins over the own variable, that over the XDG one, that over the home."""
    monkeypatch.delenv("MLA_CONTRACT_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_root() == tmp_path / ".cache" / "mla-contract"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_root() == tmp_path / "xdg" / "mla-contract"
    monkeypatch.setenv("MLA_CONTRACT_CACHE", str(tmp_path / "own"))
    assert cache_root() == tmp_path / "own"
    assert cache_root(tmp_path / "given") == tmp_path / "given"


def test_digest_of_keeps_words_apart() -> None:
    """Where one word ends and the next begins is part of the digest."""
    assert digest_of(["ab", "c"]) != digest_of(["a", "bc"])
    assert digest_of(["ab", "c"]) == digest_of(iter(["ab", "c"]))


def test_result_cache_entry_is_plain_json(tmp_path: Path) -> None:
    """What is stored can be read by people."""
    ResultCache(tmp_path).put("a", [1])
    assert json.loads((tmp_path / "results" / "a.json").read_text())["payload"] == [1]
