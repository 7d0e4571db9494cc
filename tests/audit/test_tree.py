"""Trees of sources: what is read, what is left out and said so, and what is refused."""

from __future__ import annotations

import io
import os
import tarfile
import zipfile
from pathlib import Path

import pytest

from mla_contract.audit.finding import Severity
from mla_contract.audit.source import AuditError, UnreadableSource
from mla_contract.audit.source.acquire import release_of
from mla_contract.audit.source.tree import SourceFile, open_plugin, open_tree, overlay
from mla_contract.audit.source.walk import MAX_DEPTH

VLLM = {"vllm/__init__.py": "", "vllm/v1/__init__.py": "", "vllm/v1/backend.py": "x = 1\n"}


def make_tree(root: Path, files: dict[str, str]) -> Path:
    """Write files below a directory and return it."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


def make_wheel(path: Path, files: dict[str, str]) -> Path:
    """Write a zip file and return its path."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return path


def make_sdist(path: Path, files: dict[str, str]) -> Path:
    """Write a gzipped tar file and return its path."""
    with tarfile.open(path, "w:gz") as archive:
        for name, text in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(text.encode())
            archive.addfile(info, io.BytesIO(text.encode()))
    return path


def test_open_tree_checkout_reads_only_the_package(tmp_path: Path) -> None:
    """Tests and tools of a checkout are not part of the audit."""
    tree = open_tree(make_tree(tmp_path, {**VLLM, "tests/test_x.py": "", "tools/x.py": "", "vllm/data.json": "{}"}))
    assert list(tree.files) == sorted(VLLM)
    assert tree.files["vllm/v1/backend.py"].text() == "x = 1\n"
    assert tree.problems == ()


def test_open_tree_every_form_gives_the_same_files(tmp_path: Path) -> None:
    """A package directory, a wheel, a zip with a leading directory and an sdist hold what the checkout holds."""
    checkout = open_tree(make_tree(tmp_path / "checkout", VLLM))
    nested = {f"vllm-1.0/{name}": text for name, text in VLLM.items()}
    forms = [
        tmp_path / "checkout" / "vllm",
        make_tree(tmp_path / "layout" / "src", VLLM).parent,
        make_wheel(tmp_path / "vllm-1.0-py3-none-any.whl", VLLM),
        make_wheel(tmp_path / "main.zip", nested),
        make_sdist(tmp_path / "vllm-1.0.tar.gz", nested),
    ]
    for form in forms:
        assert dict(open_tree(form).files) == dict(checkout.files), form


def test_open_tree_digest_depends_on_content_only(tmp_path: Path) -> None:
    """Two files of the same bytes share a digest, and a changed byte changes it."""
    tree = open_tree(make_tree(tmp_path, {**VLLM, "vllm/same.py": "x = 1\n", "vllm/other.py": "x = 2\n"}))
    digest = tree.files["vllm/v1/backend.py"].digest
    assert tree.files["vllm/same.py"].digest == digest
    assert tree.files["vllm/other.py"].digest != digest


@pytest.mark.parametrize(
    ("files", "expected"),
    [({}, "an empty directory"), ({"README.md": ""}, "without"), ({"vllm/v1/x.py": ""}, "without")],
    ids=["empty", "no package", "no init"],
)
def test_open_tree_without_vllm_is_refused(tmp_path: Path, files: dict[str, str], expected: str) -> None:
    """A directory that holds no vLLM says what it is instead and what to do."""
    with pytest.raises(AuditError) as caught:
        open_tree(make_tree(tmp_path, files))
    assert expected in str(caught.value.got)
    assert "--release" in caught.value.help
    assert str(tmp_path) in caught.value.message


def test_open_tree_missing_path_is_refused(tmp_path: Path) -> None:
    """A path at which nothing is cannot be audited."""
    with pytest.raises(AuditError, match="no such file"):
        open_tree(tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["broken.whl", "broken.tar.gz", "notes.txt"])
def test_open_tree_broken_archive_is_refused(tmp_path: Path, name: str) -> None:
    """A file that is not an archive is refused with its name."""
    (tmp_path / name).write_bytes(b"PK\x03\x04 not really")
    with pytest.raises(AuditError, match=name):
        open_tree(tmp_path / name)


def test_open_tree_truncated_wheel_is_refused(tmp_path: Path) -> None:
    """Half of a wheel is refused, while the whole of it opens."""
    whole = make_wheel(tmp_path / "whole.whl", VLLM)
    (tmp_path / "half.whl").write_bytes(whole.read_bytes()[:100])
    assert len(open_tree(whole).files) == len(VLLM)
    with pytest.raises(AuditError, match="cannot be read as an archive"):
        open_tree(tmp_path / "half.whl")


def test_open_tree_archive_without_vllm_is_refused(tmp_path: Path) -> None:
    """An archive of another project is refused."""
    with pytest.raises(AuditError, match="holds no vLLM"):
        open_tree(make_wheel(tmp_path / "other.whl", {"other/__init__.py": ""}))


def test_open_tree_damaged_member_is_a_problem_and_the_rest_is_read(tmp_path: Path) -> None:
    """One member with a wrong checksum does not cost the others."""
    path = make_wheel(tmp_path / "x.whl", {**VLLM, "vllm/damaged.py": "unique = 1234567\n"})
    path.write_bytes(path.read_bytes().replace(b"unique = 1234567", b"unique = 7654321"))
    tree = open_tree(path)
    assert list(tree.files) == sorted(VLLM)
    assert [problem.path for problem in tree.problems] == ["vllm/damaged.py"]


def test_open_tree_archive_member_that_leads_out_is_not_read(tmp_path: Path) -> None:
    """Names that climb out of the archive are reported, and the rest is read."""
    tree = open_tree(make_sdist(tmp_path / "x.tar.gz", {**VLLM, "vllm/../../evil.py": "x = 1\n"}))
    assert list(tree.files) == sorted(VLLM)
    assert "leads out" in tree.problems[0].reason


def test_open_tree_symbolic_link_loop_ends(tmp_path: Path) -> None:
    """A link to a parent is noted and not followed."""
    make_tree(tmp_path, VLLM)
    (tmp_path / "vllm" / "v1" / "loop").symlink_to(tmp_path / "vllm", target_is_directory=True)
    (tmp_path / "vllm" / "self").symlink_to("self")
    tree = open_tree(tmp_path)
    assert list(tree.files) == sorted(VLLM)
    severities = {problem.path: problem.severity for problem in tree.problems}
    assert severities == {"vllm/v1/loop": Severity.INFO, "vllm/self": Severity.INFO}


def test_open_tree_link_inside_the_tree_is_followed_and_outside_is_not(tmp_path: Path) -> None:
    """A linked file is read; a linked directory outside the tree is noted instead."""
    make_tree(tmp_path / "tree", VLLM)
    outside = make_tree(tmp_path / "outside", {"secret.py": "x = 1\n"})
    (tmp_path / "tree" / "vllm" / "link.py").symlink_to(tmp_path / "tree" / "vllm" / "v1" / "backend.py")
    (tmp_path / "tree" / "vllm" / "away").symlink_to(outside, target_is_directory=True)
    tree = open_tree(tmp_path / "tree")
    assert "vllm/link.py" in tree.files
    assert [problem.path for problem in tree.problems] == ["vllm/away"]
    assert not any("secret" in path for path in tree.files)


def test_open_tree_special_and_dangling_files_are_problems(tmp_path: Path) -> None:
    """A pipe is not opened, which would wait for ever, and a dangling link is said."""
    make_tree(tmp_path, VLLM)
    os.mkfifo(tmp_path / "vllm" / "pipe.py")
    (tmp_path / "vllm" / "gone.py").symlink_to("nowhere.py")
    tree = open_tree(tmp_path)
    assert list(tree.files) == sorted(VLLM)
    assert {problem.path for problem in tree.problems} == {"vllm/pipe.py", "vllm/gone.py"}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_open_tree_unreadable_file_is_a_problem(tmp_path: Path) -> None:
    """A file without read permission is named, and the rest is read."""
    make_tree(tmp_path, VLLM)
    (tmp_path / "vllm" / "v1" / "backend.py").chmod(0)
    tree = open_tree(tmp_path)
    assert [problem.path for problem in tree.problems] == ["vllm/v1/backend.py"]


def test_open_tree_very_deep_directories_end(tmp_path: Path) -> None:
    """Directories are followed to a depth that no package has, and no further."""
    make_tree(tmp_path, VLLM)
    deep = tmp_path / "vllm" / Path(*["d"] * (MAX_DEPTH + 4))
    deep.mkdir(parents=True)
    tree = open_tree(tmp_path)
    assert list(tree.files) == sorted(VLLM)
    assert "levels deep" in tree.problems[0].reason


def test_open_tree_odd_file_names_stay_on_one_line(tmp_path: Path) -> None:
    """A newline or an undecodable byte in a name is escaped."""
    make_tree(tmp_path, VLLM)
    (tmp_path / "vllm" / "a\nb.py").write_text("x = 1\n")
    with open(os.fsencode(tmp_path / "vllm") + b"/caf\xe9.py", "wb") as file:
        file.write(b"x = 1\n")
    names = set(open_tree(tmp_path).files) - set(VLLM)
    assert names == {"vllm/a\\nb.py", "vllm/caf\\udce9.py"}


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"x = 1\r\ny = 2\r", "x = 1\ny = 2\n"),
        (b"\xef\xbb\xbfx = 1\n", "x = 1\n"),
        (b"# coding: latin-1\n# \xe9\n", "# coding: latin-1\n# \xe9\n"),
    ],
    ids=["newlines", "byte order mark", "cookie"],
)
def test_text_declared_encodings_are_honoured(data: bytes, expected: str) -> None:
    """The text is what Python reads."""
    assert SourceFile("a.py", data, "").text() == expected


@pytest.mark.parametrize(
    ("data", "line"),
    [(b"x = 1\n# \xe9\n", 2), (b"# coding: nope\n", 1), (b"\xef\xbb\xbf# coding: latin-1\n", 1)],
    ids=["not utf-8", "unknown encoding", "contradiction"],
)
def test_text_wrong_encoding_is_refused_with_its_line(data: bytes, line: int) -> None:
    """The error names the file and the line of the first byte that does not fit."""
    with pytest.raises(UnreadableSource) as caught:
        SourceFile("a.py", data, "").text()
    assert (caught.value.path, caught.value.line) == ("a.py", line)


def test_open_plugin_both_forms_give_the_same_files(tmp_path: Path) -> None:
    """The package directory and the repository around it are one plugin; tests beside it are none."""
    make_tree(
        tmp_path, {"my_backend/__init__.py": "", "my_backend/mla.py": "", "tests/__init__.py": "", "setup.py": ""}
    )
    inside, around = open_plugin(tmp_path / "my_backend"), open_plugin(tmp_path)
    assert list(inside.files) == list(around.files) == ["my_backend/__init__.py", "my_backend/mla.py"]


@pytest.mark.parametrize("name", ["nowhere", "empty"])
def test_open_plugin_without_package_is_refused(tmp_path: Path, name: str) -> None:
    """A plugin must be a package."""
    (tmp_path / "empty").mkdir()
    with pytest.raises(AuditError, match=name):
        open_plugin(tmp_path / name)


def test_overlay_adds_plugins_and_refuses_the_same_file_twice(tmp_path: Path) -> None:
    """Files of plugins join the tree, each path once."""
    base = open_tree(make_tree(tmp_path / "base", VLLM))
    plugin = open_plugin(make_tree(tmp_path / "plugin", {"my_backend/__init__.py": ""}))
    both = overlay(base, plugin)
    assert set(both.files) == {*VLLM, "my_backend/__init__.py"}
    assert both.label == base.label
    with pytest.raises(AuditError, match=r"my_backend/__init__\.py"):
        overlay(both, plugin)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"vllm/_version.py": "__version__ = version = '0.33.0'\n"}, "0.33.0"),
        ({"vllm/_version.py": "version = '0.27.1rc1.dev5+gabc'\n"}, "0.27.1rc1.dev5"),
        ({"vllm-0.26.0.dist-info/METADATA": "Name: vllm\nVersion: 0.26.0\n\ntext"}, "0.26.0"),
        ({"vllm_other-9.dist-info/METADATA": "Name: vllm-other\nVersion: 9\n"}, None),
        ({"vllm/_version.py": "version = 'dev'\n"}, None),
        ({}, None),
    ],
    ids=["generated", "development", "metadata", "another distribution", "no version", "checkout"],
)
def test_release_of_reads_what_the_tree_says(tmp_path: Path, files: dict[str, str], expected: str | None) -> None:
    """The release comes from the generated file, else from the metadata, else it is unknown."""
    assert release_of(open_tree(make_tree(tmp_path, {**VLLM, **files}))) == expected
