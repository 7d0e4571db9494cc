"""Fetching a release: real pip over a directory of fake wheels, no network."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mla_contract.audit.source import AuditError
from mla_contract.audit.source.acquire import fetch_release, installed_tree, unpack_sources
from mla_contract.audit.source.tree import open_tree

INFO = "vllm-9.9.9.dist-info"
SOURCES = {"vllm/__init__.py": b"", "vllm/v1/__init__.py": b"", "vllm/v1/backend.py": b"x = 1\n", "vllm/k.so": b"\x7f"}


def record_line(name: str, data: bytes) -> str:
    """Return the line of a file in RECORD."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(data)}"


def make_wheel(directory: Path, *, sources: dict[str, bytes] = SOURCES, record: dict[str, bytes] | None = None) -> Path:
    """Write vllm-9.9.9 as a wheel; ``record`` replaces what its RECORD says of the sources."""
    metadata = {
        f"{INFO}/METADATA": b"Metadata-Version: 2.1\nName: vllm\nVersion: 9.9.9\n",
        f"{INFO}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    recorded = {**(sources if record is None else record), **metadata}
    lines = [record_line(name, data) for name, data in recorded.items()] + [f"{INFO}/RECORD,,"]
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "vllm-9.9.9-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in {**sources, **metadata, f"{INFO}/RECORD": "\n".join(lines).encode()}.items():
            archive.writestr(name, data)
    return path


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a directory that pip takes wheels from, and nothing else."""
    directory = tmp_path / "index"
    directory.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(directory))
    return directory


def test_fetch_release_keeps_python_sources_only(tmp_path: Path, index: Path) -> None:
    """The sources and the metadata are kept, binaries and the wheel are not."""
    make_wheel(index)
    told: list[tuple[int, float]] = []
    path = fetch_release("9.9.9", cache=tmp_path / "cache", progress=lambda size, seconds: told.append((size, seconds)))
    assert set(open_tree(path).files) == {name for name in SOURCES if name.endswith(".py")}
    assert not (path / "vllm" / "k.so").exists()
    assert not list((tmp_path / "cache").rglob("*.whl"))
    assert told
    assert told[-1][0] > 0


def test_fetch_release_second_time_needs_no_pip(tmp_path: Path, index: Path) -> None:
    """A whole entry of the cache is used as it is."""
    wheel = make_wheel(index)
    first = fetch_release("9.9.9", cache=tmp_path / "cache")
    wheel.unlink()
    assert fetch_release("v9.9.9", cache=tmp_path / "cache") == first


@pytest.mark.parametrize("damage", ["file lost", "file cut", "marker lost", "marker broken"])
def test_fetch_release_damaged_cache_is_fetched_again(tmp_path: Path, index: Path, damage: str) -> None:
    """An interrupted or damaged entry counts as absent."""
    make_wheel(index)
    path = fetch_release("9.9.9", cache=tmp_path / "cache")
    marker = path / ".complete"
    if damage == "file lost":
        (path / "vllm/v1/backend.py").unlink()
    elif damage == "file cut":
        (path / "vllm/v1/backend.py").write_bytes(b"x")
    elif damage == "marker lost":
        marker.unlink()
    else:
        marker.write_text(marker.read_text()[:5])
    again = fetch_release("9.9.9", cache=tmp_path / "cache")
    assert again == path
    assert (again / "vllm/v1/backend.py").read_bytes() == SOURCES["vllm/v1/backend.py"]
    assert json.loads(marker.read_text())["files"] == 5
    assert sorted(entry.name for entry in path.parent.iterdir()) == ["9.9.9"]


def test_fetch_release_two_at_once_both_succeed(tmp_path: Path, index: Path) -> None:
    """Whoever is second uses what the first has put in place."""
    make_wheel(index)
    with ThreadPoolExecutor(2) as pool:
        paths = list(pool.map(lambda _: fetch_release("9.9.9", cache=tmp_path / "cache"), range(2)))
    assert paths[0] == paths[1]
    assert len(open_tree(paths[0]).files) == 3


def test_fetch_release_unknown_version_says_what_pip_said(tmp_path: Path, index: Path) -> None:
    """The message names the version, what pip said in one line, and what to do."""
    make_wheel(index)
    with pytest.raises(AuditError) as caught:
        fetch_release("9.9.8", cache=tmp_path / "cache")
    assert "vllm==9.9.8" in caught.value.message
    assert "from versions: 9.9.9" in str(caught.value.got)
    assert "\n" not in str(caught.value.got)
    assert list((tmp_path / "cache" / "releases").iterdir()) == []


def test_fetch_release_without_network_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An index that cannot be reached is told apart from a version that does not exist."""
    monkeypatch.delenv("PIP_NO_INDEX", raising=False)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    monkeypatch.setenv("PIP_TIMEOUT", "1")
    with pytest.raises(AuditError) as caught:
        fetch_release("9.9.9", cache=tmp_path / "cache")
    assert "no package index was reached" in caught.value.help


def test_fetch_release_removes_what_a_killed_run_left(tmp_path: Path, index: Path) -> None:
    """Work directories of a day ago go, younger ones may belong to a run under way."""
    make_wheel(index)
    releases = tmp_path / "cache" / "releases"
    for name in (".work-old", ".work-new"):
        (releases / name).mkdir(parents=True)
    os.utime(releases / ".work-old", (0, 0))
    fetch_release("9.9.9", cache=tmp_path / "cache")
    assert {entry.name for entry in releases.iterdir()} == {".work-new", "9.9.9"}


@pytest.mark.parametrize("version", ["--help", "../9.9.9", "9.9.9; x", "", "latest", "9.9.9 --index-url=x"])
def test_fetch_release_word_that_is_no_version_never_reaches_pip(tmp_path: Path, version: str) -> None:
    """Only versions are given to pip and used as directory names."""
    with pytest.raises(AuditError, match="not a version"):
        fetch_release(version, cache=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_fetch_release_cache_that_cannot_be_written_is_said(tmp_path: Path, index: Path) -> None:
    """A cache below a file is refused with the variable that moves it."""
    make_wheel(index)
    (tmp_path / "file").write_text("")
    with pytest.raises(AuditError) as caught:
        fetch_release("9.9.9", cache=tmp_path / "file")
    assert "MLA_CONTRACT_CACHE" in caught.value.help


def test_fetch_release_wrong_hash_is_refused(tmp_path: Path, index: Path) -> None:
    """A source that is not what RECORD says is not kept."""
    make_wheel(index, record={**SOURCES, "vllm/v1/backend.py": b"another"})
    with pytest.raises(AuditError, match=r"vllm/v1/backend\.py is not what its RECORD says"):
        fetch_release("9.9.9", cache=tmp_path / "cache")
    assert list((tmp_path / "cache" / "releases").iterdir()) == []


def test_unpack_sources_sound_wheel_is_unpacked(tmp_path: Path) -> None:
    """The control of the rejections below."""
    unpack_sources(make_wheel(tmp_path), tmp_path / "out")
    assert (tmp_path / "out/vllm/v1/backend.py").is_file()


@pytest.mark.parametrize(
    ("sources", "record", "expected"),
    [
        (SOURCES, {**SOURCES, "vllm/lost.py": b""}, "missing"),
        ({**SOURCES, "../evil.py": b""}, {**SOURCES, "../evil.py": b""}, "outside"),
        ({**SOURCES, "/evil.py": b""}, {**SOURCES, "/evil.py": b""}, "outside"),
        ({"other/__init__.py": b""}, {"other/__init__.py": b""}, "no vllm package"),
    ],
    ids=["missing", "climbs", "absolute", "another package"],
)
def test_unpack_sources_unsound_wheel_is_refused(
    tmp_path: Path, sources: dict[str, bytes], record: dict[str, bytes], expected: str
) -> None:
    """A wheel that is incomplete, leads out of its place or is of another project is refused."""
    with pytest.raises(AuditError, match=expected):
        unpack_sources(make_wheel(tmp_path / "w", sources=sources, record=record), tmp_path / "out")
    assert not list(tmp_path.rglob("evil.py"))


def test_unpack_sources_cut_wheel_is_refused(tmp_path: Path) -> None:
    """Half a wheel did not arrive whole."""
    wheel = make_wheel(tmp_path)
    wheel.write_bytes(wheel.read_bytes()[:200])
    with pytest.raises(AuditError, match="did not arrive whole"):
        unpack_sources(wheel, tmp_path / "out")


def test_installed_tree_is_found_without_being_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The installed package is opened, and its code is not executed."""
    package = tmp_path / "vllm"
    (package / "v1").mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "vllm", raising=False)
    assert list(installed_tree().files) == ["vllm/__init__.py"]


def test_installed_tree_absent_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without vLLM there is nothing installed to audit."""
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "vllm", raising=False)
    with pytest.raises(AuditError, match="no vLLM in this environment"):
        installed_tree()
