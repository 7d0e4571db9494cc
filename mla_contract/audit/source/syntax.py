"""Telling which files Python cannot parse, in processes beside the engine, because a parser can die of a file."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any, Self

from mla_contract.audit.source import AuditError, SourceProblem
from mla_contract.audit.source.cache import Verdict, VerdictCache
from mla_contract.audit.source.tree import SourceFile

BATCH_TIMEOUT = 120.0
"""Seconds after which the file that a worker is at counts as unparsable."""

BATCH_BYTES = 4 * 2**20
"""How much source a worker process is given at a time."""

_WORKER = Path(__file__).with_name("syntax_worker.py")
_POLL_SECONDS = 0.1
_DIED = "the parser process ended while it read this file"
_SLOW = f"the parser took more than {BATCH_TIMEOUT:.0f} s"


@dataclass(slots=True)
class SyntaxCheck:
    """A check under way.

    Attributes:
        known: Verdicts by digest that a cache had.
        pending: Files that are being checked.
        futures: One per run of a worker process.
        files: All files.
        pool: The threads that wait for the processes.
        cache: Where new verdicts go, or None.
        jobs: How many processes there are at most.
        batches: The files of each future.
        stop: Set once the result is not wanted any more.
    """

    files: Sequence[SourceFile]
    known: dict[str, Verdict]
    pending: Sequence[SourceFile]
    futures: list[Future[dict[str, Verdict]]]
    pool: ThreadPoolExecutor | None
    cache: VerdictCache | None
    jobs: int = 1
    batches: dict[Future[dict[str, Verdict]], Sequence[SourceFile]] = field(default_factory=dict)
    stop: Event = field(default_factory=Event)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """End what still runs; after ``result`` nothing does."""
        self.stop.set()
        if self.pool is not None:
            self.pool.shutdown(cancel_futures=True)

    def result(self, parsed: Collection[str] = frozenset()) -> tuple[SourceProblem, ...]:
        """Wait, and return the files that Python cannot parse, in the order of their paths.

        Args:
            parsed: Paths of files that someone else has parsed well; those are not waited for and have no problem.
        """
        spared = {file.digest for file in self.files if file.path in parsed}
        self._drop(spared)
        for future in self.futures:
            self.known.update(future.result())
        if self.cache is not None and self.pending:
            self.cache.save({file.digest: self.known[file.digest] for file in self.files if file.digest in self.known})
        problems = []
        for file in self.files:
            if file.digest not in spared and (verdict := self.known[file.digest]):
                line, reason = verdict
                problems.append(SourceProblem(file.path, line, f"cannot be parsed: {reason}"))
        return tuple(sorted(problems))

    def _drop(self, spared: Collection[str]) -> None:
        """Take files that need no check any more out of the batches that have not begun."""
        if self.pool is None or not spared:
            return
        begun = [future for future in self.futures if not future.cancel()]
        checked = {file.digest for future in begun for file in self.batches[future]}
        rest = [file for file in self.pending if file.digest not in checked and file.digest not in spared]
        self.futures = begun
        self.submit(rest, self.jobs)

    def submit(self, files: Sequence[SourceFile], number: int) -> None:
        """Give files to the pool in batches of about the same size."""
        if self.pool is None:
            return
        for batch in _batches(files, number):
            future = self.pool.submit(_check_batch, batch, self.stop)
            self.futures.append(future)
            self.batches[future] = batch


def start_syntax_check(files: Iterable[SourceFile], *, jobs: int = 2, cache: VerdictCache | None = None) -> SyntaxCheck:
    """Start to check files in worker processes, and return at once.

    Args:
        files: Files to check.
        jobs: How many processes to use at most.
        cache: Verdicts of earlier runs; only files of unknown content are checked.
    """
    everything = tuple(files)
    known = cache.load() if cache is not None else {}
    unknown = {file.digest: file for file in everything if file.digest not in known}
    # What the engine is likely to parse comes last, for by then it may have.
    pending = sorted(unknown.values(), key=lambda file: (b"etadata" in file.data, file.path))
    if not pending:
        return SyntaxCheck(everything, known, (), [], None, cache)
    pool = ThreadPoolExecutor(jobs, thread_name_prefix="syntax")
    check = SyntaxCheck(everything, known, pending, [], pool, cache, jobs)
    size = sum(len(file.data) for file in pending)
    check.submit(pending, max(jobs, round(size / BATCH_BYTES)))
    return check


def _batches(files: Sequence[SourceFile], number: int) -> Iterator[Sequence[SourceFile]]:
    """Yield runs of files in their order, about ``number`` of them, each with about as many bytes."""
    share = sum(len(file.data) + 1 for file in files) / max(number, 1)
    batch: list[SourceFile] = []
    filled = 0
    for file in files:
        batch.append(file)
        filled += len(file.data) + 1
        if filled >= share:
            yield batch
            batch, filled = [], 0
    if batch:
        yield batch


def _check_batch(batch: Sequence[SourceFile], stop: Event) -> dict[str, Verdict]:
    verdicts: dict[str, Verdict] = {}
    rest = list(batch)
    while rest and not stop.is_set():
        done, suspect, reason = _run_worker(rest, stop)
        if stop.is_set():
            break
        if not done and suspect is None:
            raise AuditError(
                f"the parser process did not start: {reason}",
                f"check that {sys.executable} can be started and can read {_WORKER}",
            )
        verdicts.update({rest[index].digest: verdict for index, verdict in done.items()})
        if suspect is not None:
            verdicts[rest[suspect].digest] = (1, reason)
        rest = [file for index, file in enumerate(rest) if index not in done and index != suspect]
    return verdicts


def _run_worker(batch: Sequence[SourceFile], stop: Event) -> tuple[dict[int, Verdict], int | None, str]:
    """Run one process over a batch; return its verdicts, the file that ended it, and why."""
    command = [sys.executable, "-I", "-S", str(_WORKER)]
    reason = _DIED
    # The sources go through a file: a pipe would have to be fed while the process is watched.
    with tempfile.TemporaryFile() as payload:
        pickle.dump([(index, file.data) for index, file in enumerate(batch)], payload)
        payload.seek(0)
        with subprocess.Popen(command, stdin=payload, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            deadline = time.monotonic() + BATCH_TIMEOUT
            while True:
                try:
                    output, errors = process.communicate(timeout=_POLL_SECONDS)
                    break
                except subprocess.TimeoutExpired:
                    if stop.is_set() or time.monotonic() > deadline:
                        process.kill()
                        reason = _SLOW
    done: dict[int, Verdict] = {}
    begun: int | None = None
    for record in _records(output):
        if len(record) == 1:
            begun = record[0]
        else:
            done[record[0]] = None if record[1] is None else (record[1], record[2])
    if process.returncode == 0 and len(done) == len(batch):
        return done, None, ""
    suspect = begun if begun is not None and begun not in done else None
    if suspect is None and not done:
        lines = errors.decode("utf-8", "replace").strip().splitlines()
        return done, None, lines[-1] if lines else f"exit code {process.returncode}"
    return done, suspect, reason


def _records(output: bytes) -> Iterable[list[Any]]:
    """Yield the records that arrived whole."""
    for line in output.splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            return
