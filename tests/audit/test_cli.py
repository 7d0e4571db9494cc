"""The command line over a stub engine: options, exit codes, and that no traceback reaches people."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import mla_contract
from mla_contract.audit import docs, run
from mla_contract.audit.finding import Finding, Severity
from mla_contract.audit.rule import Page, Rule
from mla_contract.audit.run import AuditOptions, run_audit
from mla_contract.audit.select import Catalogue
from mla_contract.audit.source.tree import SourceTree
from mla_contract.audit.tool_rules import check_nothing
from mla_contract.cli.main import app
from mla_contract.profiles import load_profile

PAGE = Page("What it reports.", "Why it matters.", "The incident.", "bad = 1", "good = 1")
PACKAGE = Path(mla_contract.__path__[0])


def check_marks(project: Any) -> Iterable[Finding]:
    """Report every line that says MISSING; a stub of the engine's rules."""
    tree: SourceTree = project
    for file in tree.files.values():
        for number, line in enumerate(file.data.splitlines(), 1):
            if b"MISSING" in line:
                node = ast.Pass(lineno=number, col_offset=0)
                yield MISSING.finding(file.path, node, "no num_decodes", cls="m.A", field="num_decodes")
            if b"NOTE" in line:
                yield NOTED.finding(file.path, ast.Pass(lineno=number, col_offset=0), "worth knowing")


def check_badly(project: Any) -> Iterable[Finding]:
    """Fail, as a rule with a fault does."""
    raise KeyError("num_decodes")


MISSING = Rule("REQ001", "missing-field", "required", Severity.ERROR, PAGE, check_marks)
NOTED = Rule("INF001", "worth-knowing", "drift", Severity.INFO, PAGE, check_nothing)
FAULTY = Rule("BAD001", "faulty-rule", "policy", Severity.ERROR, PAGE, check_badly)


@pytest.fixture(autouse=True)
def stub_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the engine by one that reports marks in the sources, and the caches by empty ones."""
    monkeypatch.setattr(run, "RULES", (MISSING, NOTED))
    monkeypatch.setattr(run, "open_project", lambda tree, *, release, aiter: tree)
    monkeypatch.setattr(run, "parsed_files", lambda project: frozenset())
    monkeypatch.setenv("MLA_CONTRACT_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a small tree with one finding."""
    root = tmp_path / "tree"
    for name, text in {"__init__.py": "", "v1/__init__.py": "", "v1/a.py": "x = 1\ny = 2  # MISSING\n"}.items():
        path = root / "vllm" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def source_of(tree: Path) -> Path:
    """Return the file that holds the finding."""
    return tree / "vllm" / "v1" / "a.py"


def invoke(*arguments: object) -> Result:
    """Run the command line in this process."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert "Traceback" not in result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result


def test_audit_finding_is_printed_and_exit_code_is_one(tree: Path) -> None:
    """The line goes to standard output, the summary to the other stream."""
    result = invoke("audit", tree)
    assert result.exit_code == 1
    assert result.stdout == "vllm/v1/a.py:2: error: no num_decodes [REQ001]\n"
    assert "REQ001" in result.stderr
    assert "1 error" in result.stderr


def test_audit_clean_tree_exits_zero(tree: Path) -> None:
    """Nothing is printed where nothing is found."""
    source_of(tree).write_text("x = 1\n")
    result = invoke("audit", tree)
    assert (result.exit_code, result.stdout) == (0, "")


def test_audit_notes_alone_exit_zero(tree: Path) -> None:
    """A note is printed and fails nothing."""
    source_of(tree).write_text("x = 1  # NOTE\n")
    result = invoke("audit", tree)
    assert result.exit_code == 0
    assert ": note: worth knowing [INF001]" in result.stdout


@pytest.mark.parametrize("format", ["json", "sarif"])
def test_audit_machine_formats_print_nothing_else(tree: Path, format: str) -> None:
    """The whole of standard output is the document, and the other stream is empty."""
    result = invoke("audit", tree, "--format", format)
    assert result.exit_code == 1
    assert json.loads(result.stdout)
    assert result.stderr == ""


def test_audit_output_goes_to_the_file(tree: Path, tmp_path: Path) -> None:
    """With --output standard output stays empty."""
    result = invoke("audit", tree, "--format", "json", "--output", tmp_path / "r.json")
    assert result.stdout == ""
    assert len(json.loads((tmp_path / "r.json").read_text())["findings"]) == 1


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["audit"], "name one tree"),
        (["audit", "{tree}", "--release", "0.33.0"], "name one tree"),
        (["audit", "{tree}/nowhere"], "no such file"),
        (["audit", "{tree}/vllm/v1"], "holds no vLLM"),
        (["audit", "--release", "--x"], "not a version"),
        (["audit", "{tree}", "--select", "NOPE"], "no such rule"),
        (["audit", "{tree}", "--ignore", "NOPE"], "no such rule"),
        (["audit", "{tree}", "--write-baseline"], "needs a file"),
        (["audit", "{tree}", "--baseline", "{tree}/none.json"], "no such file"),
        (["audit", "{tree}", "--plugin", "{tree}/none"], "no such directory"),
        (["audit", "{tree}", "--aiter", "{tree}/none"], "holds no aiter"),
        (["audit", "{tree}", "--output", "{tree}/none/x"], "cannot be written"),
        (["audit", "{tree}", "--format", "xml"], "xml"),
        (["explain", "NOPE001"], "no rule"),
        (["seam", "a.b:C", "--tier", "nope"], "tier"),
        (["diff", "{tree}/none.json", "{tree}/none.json"], "none.json"),
    ],
)
def test_commands_that_cannot_do_their_work_exit_two(tree: Path, arguments: list[str], expected: str) -> None:
    """The message says what is wrong; standard output stays empty."""
    result = invoke(*(argument.replace("{tree}", str(tree)) for argument in arguments))
    assert result.exit_code == 2
    assert expected in result.stderr
    assert result.stdout == ""


def test_audit_select_and_ignore_choose(tree: Path) -> None:
    """Rules that are not chosen are not reported."""
    assert invoke("audit", tree, "--select", "required").exit_code == 1
    assert invoke("audit", tree, "--ignore", "missing-field").exit_code == 0


def test_audit_allow_comment_and_its_absence(tree: Path) -> None:
    """An allowed finding is not reported; the comment without the finding is."""
    source_of(tree).write_text("y = 2  # MISSING  # mla: allow REQ001 -- set elsewhere\n")
    assert invoke("audit", tree).exit_code == 0
    source_of(tree).write_text("y = 2  # mla: allow REQ001 -- set elsewhere\n")
    result = invoke("audit", tree)
    assert result.exit_code == 1
    assert "[TOOL003]" in result.stdout
    assert invoke("audit", tree, "--ignore", "TOOL").exit_code == 0


def test_audit_baseline_life(tree: Path, tmp_path: Path) -> None:
    """It is written, holds while the code moves, refuses to grow, goes stale, and shrinks."""
    path = tmp_path / "baseline.json"
    assert invoke("audit", tree, "--baseline", path, "--write-baseline").exit_code == 0
    source_of(tree).write_text("\n\ny = 2  # MISSING\n")
    assert invoke("audit", tree, "--baseline", path).exit_code == 0
    source_of(tree).write_text("y = 2  # MISSING\nz = 3  # MISSING\n")
    assert invoke("audit", tree, "--baseline", path).exit_code == 1
    refused = invoke("audit", tree, "--baseline", path, "--write-baseline")
    assert (refused.exit_code, "would grow" in refused.stderr) == (2, True)
    source_of(tree).write_text("y = 2\n")
    stale = invoke("audit", tree, "--baseline", path)
    assert (stale.exit_code, "[TOOL004]" in stale.stdout) == (1, True)
    assert invoke("audit", tree, "--baseline", path, "--write-baseline").exit_code == 0
    assert json.loads(path.read_text())["entries"] == []


def test_audit_baseline_is_not_written_when_the_tool_failed(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an unfinished audit found cannot be compared with."""
    monkeypatch.setattr(run, "RULES", (FAULTY, MISSING))
    path = tmp_path / "baseline.json"
    assert invoke("audit", tree, "--baseline", path, "--write-baseline").exit_code == 2
    assert not path.exists()


def test_audit_aiter_content_is_part_of_the_cache_key(tree: Path, tmp_path: Path) -> None:
    """A changed aiter is audited again."""
    aiter = tmp_path / "aiter"
    aiter.mkdir()
    (aiter / "__init__.py").write_text("")
    (aiter / "ops.py").write_text("x = 1\n")
    assert not run_audit(AuditOptions(path=tree, aiter=aiter)).from_cache
    assert run_audit(AuditOptions(path=tree, aiter=aiter)).from_cache
    (aiter / "ops.py").write_text("x = 2\n")
    assert not run_audit(AuditOptions(path=tree, aiter=aiter)).from_cache


def test_audit_unparsable_file_is_reported_and_the_rest_is_audited(tree: Path) -> None:
    """Broken files are findings at their line, beside those of the rules."""
    (tree / "vllm" / "broken.py").write_text("x = 1\ndef f(:\n")
    (tree / "vllm" / "latin.py").write_bytes(b"# \xe9\n")
    result = invoke("audit", tree)
    assert result.exit_code == 1
    assert "vllm/broken.py:2: error: cannot be parsed" in result.stdout
    assert "vllm/latin.py:1: error: cannot be parsed: not utf-8" in result.stdout
    assert "vllm/v1/a.py:2: error: no num_decodes [REQ001]" in result.stdout


def test_audit_plugin_is_audited_with_the_tree(tree: Path, tmp_path: Path) -> None:
    """A finding in an out-of-tree package is reported with its path there."""
    package = tmp_path / "plugin" / "my_backend"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("x = 1  # MISSING\n")
    result = invoke("audit", tree, "--plugin", package)
    assert "my_backend/__init__.py:1: error" in result.stdout


def test_audit_rule_that_fails_exits_two_and_the_others_report(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The report names the rule, the exception and the place; nothing of it is cached or hidden by --select."""
    monkeypatch.setattr(run, "RULES", (FAULTY, MISSING))
    for _ in range(2):
        result = invoke("audit", tree, "--select", "REQ001")
        assert result.exit_code == 2
        assert "BAD001 faulty-rule failed with KeyError" in result.stdout
        assert "test_cli.py:" in result.stdout
        assert "[REQ001]" in result.stdout


def test_audit_engine_that_fails_exits_two(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The parser's findings are still there."""

    def open_badly(tree: SourceTree, *, release: str | None, aiter: Path | None) -> SourceTree:
        raise RecursionError("too deep")

    monkeypatch.setattr(run, "open_project", open_badly)
    (tree / "vllm" / "broken.py").write_text("def f(:\n")
    result = invoke("audit", tree)
    assert result.exit_code == 2
    assert "the engine failed with RecursionError" in result.stdout
    assert "[TOOL001]" in result.stdout


def test_audit_interrupt_exits_130(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt ends the run with the shell's code for it."""

    def interrupt(tree: SourceTree, *, release: str | None, aiter: Path | None) -> SourceTree:
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "open_project", interrupt)
    assert invoke("audit", tree).exit_code == 130


def test_audit_unexpected_fault_is_a_sentence(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever goes wrong in the shell itself, people get a sentence."""

    def fail() -> Catalogue:
        raise ImportError("no rules")

    monkeypatch.setattr(run, "catalogue", fail)
    result = invoke("audit", tree)
    assert result.exit_code == 2
    assert "ImportError: no rules" in result.stderr


def test_run_audit_second_run_is_from_the_cache_and_equal(tree: Path) -> None:
    """Warm and cold agree; a changed byte is seen; --no-cache does not look."""
    cold = run_audit(AuditOptions(path=tree))
    warm = run_audit(AuditOptions(path=tree))
    assert (cold.from_cache, warm.from_cache) == (False, True)
    assert warm.findings == cold.findings
    assert not run_audit(AuditOptions(path=tree, use_cache=False)).from_cache
    source_of(tree).write_text("x = 1\n")
    changed = run_audit(AuditOptions(path=tree))
    assert (changed.from_cache, changed.findings) == (False, ())


def test_run_audit_damaged_cache_entry_is_no_result(tree: Path, tmp_path: Path) -> None:
    """An entry that was cut is computed again."""
    cold = run_audit(AuditOptions(path=tree))
    (entry,) = (tmp_path / "cache" / "results").iterdir()
    entry.write_text(entry.read_text()[:-20])
    again = run_audit(AuditOptions(path=tree))
    assert (again.from_cache, again.findings) == (False, cold.findings)


def test_run_audit_order_is_by_place(tree: Path) -> None:
    """Findings come in the order of their places whatever order rules give."""
    source_of(tree).write_text("# MISSING\n# NOTE\n# MISSING\n")
    assert [each.line for each in run_audit(AuditOptions(path=tree)).findings] == [1, 2, 3]


def test_explain_prints_the_page_or_the_list() -> None:
    """Codes and names lead to the page; without either all rules are listed."""
    for word in ("REQ001", "missing-field"):
        page = invoke("explain", word)
        assert page.exit_code == 0
        for part in ("What it reports.", "Why it matters.", "The incident.", "bad = 1", "good = 1"):
            assert part in page.stdout
    listed = invoke("explain").stdout
    assert "REQ001  missing-field" in listed
    assert "TOOL005  internal-error" in listed


def test_seam_writes_a_file_for_the_classes(tmp_path: Path) -> None:
    """The seam names the class and can be compiled."""
    result = invoke("seam", "pkg.mod:Metadata", "--output", tmp_path / "seam.py")
    assert result.exit_code == 0
    text = (tmp_path / "seam.py").read_text()
    assert "Metadata" in text
    compile(text, "seam.py", "exec")


@pytest.mark.parametrize("form", ["shipped", "file"])
def test_diff_of_a_profile_with_itself_is_empty(tmp_path: Path, form: str) -> None:
    """Nothing changed, nothing printed, exit 0; between releases that broke backends the code is 1."""
    written = tmp_path / "profile.json"
    written.write_text(json.dumps(load_profile("0.27")))
    name = "0.27" if form == "shipped" else str(written)
    same = invoke("diff", name, name)
    assert (same.exit_code, same.stdout) == (0, "")
    other = invoke("diff", "0.24", name, "--json")
    assert other.exit_code == 1
    assert any(change["breaking"] for change in json.loads(other.stdout))


def test_diff_file_that_is_no_profile_is_refused(tmp_path: Path) -> None:
    """A JSON file of another kind is not compared."""
    path = tmp_path / "other.json"
    path.write_text("{}")
    result = invoke("diff", path, path)
    assert (result.exit_code, "not a profile" in result.stderr) == (2, True)


def test_docs_main_writes_then_agrees(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--check fails before the pages are written and passes afterwards."""
    arguments = ["--directory", str(tmp_path / "rules")]
    assert docs.main([*arguments, "--check"]) == 1
    assert docs.main(arguments) == 0
    assert docs.main([*arguments, "--check"]) == 0
    assert "REQ001.md: not up to date" in capsys.readouterr().out


def _python(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=environment, check=False)


def test_version_is_printed() -> None:
    """--version needs no command."""
    result = _python("-m", "mla_contract.cli.main", "--version")
    assert (result.returncode, result.stdout) == (0, f"mla-contract {mla_contract.__version__}\n")


def test_help_imports_no_heavy_module() -> None:
    """Start-up pays for typer alone."""
    program = (
        "import sys\nfrom mla_contract.cli.main import app\nsys.argv = ['mla-contract', '--version']\n"
        "try:\n    app()\nexcept SystemExit:\n    pass\n"
        "heavy = {'pydantic', 'numpy', 'torch', 'jaxtyping', 'mla_contract.audit.run', 'mla_contract.audit.project'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    assert _python("-c", program).stdout.splitlines()[-1] == "[]"


def test_audit_closed_pipe_is_no_traceback(tree: Path) -> None:
    """A reader that goes away, as head does, is not an error to print."""
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "mla_contract.cli.main", "explain"]
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, env=environment, check=False)
    os.close(write)
    assert "Traceback" not in done.stderr


def test_pre_commit_hook_audits_the_whole_tree() -> None:
    """The hook runs the audit once over the checkout, whatever was staged."""
    text = (PACKAGE.parent / ".pre-commit-hooks.yaml").read_text(encoding="utf-8")
    for line in ("- id: check-mla-contract", "  entry: mla-contract audit", "  pass_filenames: false", '  args: ["."]'):
        assert line in text.splitlines()
