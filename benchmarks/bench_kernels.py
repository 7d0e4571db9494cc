"""Time the Triton kernels beside their floors on one GPU, after checking them against the reference.

Run from the root: ``python -m benchmarks.bench_kernels [--out FILE] [--flashmla LIBRARY]``. A floor is the larger of
two times: bytes over the copy bandwidth, and operations over the matrix rate, both measured in the same run. Bytes are
those of each input read once (of a gathered row: once for each time that it is selected) and each output written once.
Times are medians of replayed graphs, in which inputs rotate so that no cache still holds them. FlashMLA and DeepGEMM
run beside them where they are installed.
"""

from __future__ import annotations

import argparse
import platform
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import triton

from benchmarks import gpu_cases as cases
from benchmarks.gpu_timing import Ceilings, measure_ceilings, median_us, rotations
from benchmarks.peers import HEADS, DeepGemm, FlashMla, find_deep_gemm, find_flash_mla, load_flash_mla
from mla_contract.backends.kernels.reference import ReferenceProvider
from mla_contract.backends.kernels.triton import TritonProvider
from mla_contract.contract.schema.provider import KeyLayout

KERNELS, REFERENCE = TritonProvider(), ReferenceProvider()
ROWS = (1, 2, 4, 8, 16, 64, 128, 256, 512, 1024, 4096)
TOPK_SHAPES = (
    (1, 131072, False),
    (8, 131072, False),
    (64, 16384, False),
    (128, 131072, False),
    (256, 8192, False),
    (1024, 65536, True),
)
"""Rows, columns, and whether the rows are a prefill's with windows."""

HEAD = "| case | median us | spread us | floor us | floor is | ratio |\n|---|---|---|---|---|---|"


def line(name: str, made: list[cases.Case], ceilings: Ceilings, run: Callable[[Any], object] = KERNELS.run) -> str:
    """Return one row of a table."""
    calls: list[Callable[[], Any]] = [lambda case=case: run(case.inputs) for case in made]  # type: ignore[misc]
    time, spread = median_us(calls)
    case = made[0]
    floor = ceilings.floor_us(case.num_bytes, case.flops, fp8=case.fp8)
    bound = ceilings.bound(case.num_bytes, case.flops, fp8=case.fp8)
    return f"| {name} | {time:.1f} | {spread:.1f} | {floor:.1f} | {bound} | {time / floor:.2f} |"


def check_attention(kv: torch.Tensor, heads: int, rows: int, dead: bool, peer: FlashMla | None) -> float:
    """Return the relative error of an attention with poisoned outputs; a peer's must be small as well."""
    inputs: Any = cases.attention(kv, rows, heads, 99, lse=True, dead=dead).inputs
    out, lse = torch.empty_like(inputs.out, dtype=torch.float32), torch.empty_like(inputs.lse)
    REFERENCE.run(replace(inputs, out=out, lse=lse))
    KERNELS.run(inputs)
    error = float((inputs.out.float() - out).norm() / out.norm())
    if not error < 5e-3 or not float((inputs.lse - lse).abs().max()) < 1e-2:
        raise SystemExit(f"attention of {rows} rows and {heads} heads: relative error {error}")
    if peer is not None and heads % HEADS == 0:
        theirs = peer(replace(inputs, out=torch.full_like(inputs.out, torch.nan))).float()
        if not float((theirs - out).norm() / out.norm()) < 5e-3:
            raise SystemExit(f"the peer's attention of {rows} rows and {heads} heads differs")
    return error


def attention_lines(ceilings: Ceilings, peer: FlashMla | None) -> Iterator[str]:
    """Yield the attention's table, with a peer's rows where it takes the heads."""
    kv = cases.pool()
    yield HEAD
    for heads in (16, 32, 64, 128):
        errors = [check_attention(kv, heads, rows, dead, peer) for rows in (1, 8, 64, 300) for dead in (False, True)]
        for rows in ROWS if heads in (16, 128) else (8, 256, 1024):
            first = cases.attention(kv, rows, heads)
            more = min(rotations(first.num_bytes), 64 if rows < 1024 else 2)
            made = [first, *(cases.attention(kv, rows, heads, seed) for seed in range(1, more))]
            yield line(f"{heads} heads, {rows} rows", made, ceilings)
            if peer is not None and heads % HEADS == 0:
                yield line("the same, FlashMLA", made, ceilings, peer)
            del made
        made = [cases.attention(kv, 256, heads, dead=True)] * 2
        yield line(f"{heads} heads, 256 rows, every sixteenth entry -1", made, ceilings)
        if peer is not None and heads % HEADS == 0:
            yield line("the same, FlashMLA", made, ceilings, peer)
        yield f"| {heads} heads: largest relative error {max(errors):.1e} | | | | | |"


def check_indexer() -> Iterator[str]:
    """Check logits, gather and top-k at real widths."""
    for make in (lambda: cases.chunk(130, 20_000), lambda: cases.chunk(33, 5000, cases.BF16)):
        inputs: Any = make().inputs
        wanted, got = REFERENCE.run(inputs), KERNELS.run(inputs)
        column = torch.arange(len(inputs.k), device="cuda")
        inside = column < inputs.ends[:, None]
        error = float((got - wanted)[inside].abs().max() / wanted[inside].abs().max())
        if not error < 1e-3:
            raise SystemExit(f"chunk logits: error {error} of the largest")
        yield f"| chunk logits {inputs.q.dtype}: largest error, of the largest logit: {error:.1e} | | | | | |"
    for layout in KeyLayout:
        paged: Any = cases.paged(3, 5000, 2, layout).inputs
        truth = torch.empty_like(paged.out)
        REFERENCE.run(replace(paged, out=truth))
        KERNELS.run(paged)
        seen = torch.isfinite(truth)
        error = float((paged.out - truth)[seen].abs().max() / truth[seen].abs().max())
        if not error < 1e-3:
            raise SystemExit(f"paged logits: error {error} of the largest")
        gather: Any = cases.gather(3, 5000, layout).inputs
        k_out, scale_out = torch.zeros_like(gather.k_out), torch.zeros_like(gather.scale_out)
        REFERENCE.run(replace(gather, k_out=k_out, scale_out=scale_out))
        KERNELS.run(gather)
        if not (torch.equal(k_out, gather.k_out) and torch.equal(scale_out, gather.scale_out)):
            raise SystemExit(f"gather differs, {layout}")
    topk: Any = cases.topk(5, 30_000, stable=True).inputs
    wanted = torch.empty_like(topk.out)
    REFERENCE.run(replace(topk, out=wanted))
    KERNELS.run(topk)
    if not torch.equal(wanted, topk.out):
        raise SystemExit("top-k differs")


def check_peer(theirs: torch.Tensor, ours: torch.Tensor, ends: torch.Tensor) -> None:
    """Compare logits up to each row's end."""
    inside = torch.arange(ours.shape[1], device="cuda") < ends[:, None]
    error = float((theirs[:, : ours.shape[1]] - ours)[inside].abs().max() / ours[inside].abs().max())
    if not error < 1e-3:
        raise SystemExit(f"the peer's logits differ by {error} of the largest")


def indexer_lines(ceilings: Ceilings, peer: DeepGemm | None) -> Iterator[str]:
    """Yield the indexer's table, with a peer's rows where it has them."""
    yield HEAD
    yield from check_indexer()
    for requests, length in ((8, 8192), (8, 65536), (1, 131072)):
        for layout in KeyLayout:
            yield line(
                f"gather {requests} x {length} keys, {layout}", [cases.gather(requests, length, layout)] * 2, ceilings
            )
    for rows, keys in ((256, 8192), (1024, 32768), (1024, 131072), (4096, 65536)):
        case = cases.chunk(rows, keys)
        yield line(f"chunk logits fp8, {rows} tokens, {keys} keys", [case] * 2, ceilings)
        if peer is not None:
            check_peer(peer.chunk(case.inputs), KERNELS.run(case.inputs), case.inputs.ends)
            yield line("the same, DeepGEMM", [case] * 2, ceilings, peer.chunk)
    yield line("chunk logits bf16, 1024 tokens, 65536 keys", [cases.chunk(1024, 65536, cases.BF16)] * 2, ceilings)
    for requests, length, next_n in ((1, 131072, 1), (8, 131072, 1), (64, 16384, 1), (256, 8192, 1), (64, 16384, 2)):
        case = cases.paged(requests, length, next_n)
        yield line(f"paged logits {requests} x {next_n} rows, {length} keys", [case] * 2, ceilings)
        if peer is not None:
            call, ends = peer.paged(case.inputs), case.inputs.context_lens.repeat_interleave(next_n) - next_n + 1
            check_peer(call(), case.inputs.out, ends)
            yield line("the same, DeepGEMM", [case] * 2, ceilings, lambda _, call=call: call())  # type: ignore[misc]
    for rows, columns, windows in TOPK_SHAPES:
        case = cases.topk(rows, columns, windows=windows)
        yield line(f"top-k 2048, {rows} rows of {columns}{', windows' if windows else ''}", [case] * 2, ceilings)
        theirs, _ = median_us([lambda of=case.inputs: torch.topk(of.logits, cases.TOPK, sorted=False)] * 2, 7)
        yield f"| torch.topk alone, without windows | {theirs:.1f} | | | | |"


def skip_lines() -> Iterator[str]:
    """Yield what the flag that keeps gathered keys saves, for a prompt's last tokens in sub-chunks."""
    yield "| prompt, sub-chunks | gather each time us | gather once us | saved |\n|---|---|---|---|"
    for keys, pieces, rows in ((65536, 4, 512), (65536, 16, 128), (131072, 16, 128)):
        gather, chunk = cases.gather(1, keys).inputs, cases.chunk(rows, keys).inputs
        once, _ = median_us([lambda of=gather: KERNELS.run(of), *[lambda of=chunk: KERNELS.run(of)] * pieces], 9)
        each, _ = median_us([lambda of=gather: KERNELS.run(of), lambda of=chunk: KERNELS.run(of)] * pieces, 9)
        once, each = once * (pieces + 1), each * 2 * pieces
        yield f"| {keys} keys, {pieces} of {rows} tokens | {each:.0f} | {once:.0f} | {1 - once / each:.0%} |"


def main() -> None:
    """Print the report, and write it to a file if one is named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--flashmla", type=Path, help="FlashMLA's operator library, if not that of an installed vLLM")
    chosen = parser.parse_args()
    library = find_flash_mla(chosen.flashmla)
    peer = None if library is None else load_flash_mla(library)
    ceilings = measure_ceilings()
    versions = (
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}, triton {triton.__version__}, "
        f"Python {platform.python_version()}."
    )
    measured = (
        f"Copy {ceilings.copy_bytes / 1e12:.2f} TB/s, bfloat16 product {ceilings.matrix_flops / 1e12:.0f} TFLOP/s, "
        f"fp8 product {ceilings.fp8_flops / 1e12:.0f} TFLOP/s."
    )
    lines = [versions, measured]
    print("\n".join(lines), flush=True)
    for part in (attention_lines(ceilings, peer), indexer_lines(ceilings, find_deep_gemm()), skip_lines()):
        lines.append("")
        for text in part:
            print(text, flush=True)
            lines.append(text)
            if chosen.out:
                chosen.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
