"""Times Gloo's collectives through torch.distributed the way `shoal bench` times Shoal's: float32, one call at a time, inputs
written before each call outside the time, the median over iterations on the slowest rank.

    RANK=… WORLD_SIZE=… collectives.py <meeting file> <collective> <bytes>:<iterations>:<warmup>,… <buckets> <checked buckets>

With several buckets a sample is that many operations on tensors of their own, all started before the first is waited for, as
DistributedDataParallel does, and the time is that of the sample divided by their number.

Rank 0 prints one JSON object per size, or {"unsupported": reason}. All-reduce and broadcast are in place, the others are not,
as in Shoal. Sizes, parts and their rounding are those of nccl-tests (src/tools/timing/collective.ts).
"""

import json
import os
import sys
import time

import torch
import torch.distributed as dist

RANK = int(os.environ["RANK"])
RANKS = int(os.environ["WORLD_SIZE"])


def layout_of(kind, size):
    """Elements (sent, received, per part)."""
    count = 0 if kind == "barrier" else size // 4
    part = count // RANKS // 4 * 4
    whole = part * RANKS
    if kind == "all-gather":
        return part, whole, part
    if kind == "all-to-all":
        return whole, whole, part
    return count, count, count


def starter_of(kind, source, target, part):
    """A function of no arguments that starts the collective and gives what to wait for."""
    if kind == "all-reduce":
        return lambda: [dist.all_reduce(target, async_op=True)]
    if kind == "broadcast":
        return lambda: [dist.broadcast(target, 0, async_op=True)]
    if kind == "all-gather":
        parts = list(target.split(part)) if part else [target] * RANKS
        return lambda: [dist.all_gather(parts, source, async_op=True)]
    if kind == "all-to-all":
        return lambda: [dist.all_to_all_single(target, source, async_op=True)]
    if kind == "send-recv":
        return lambda: [dist.irecv(target, (RANK - 1) % RANKS), dist.isend(source, (RANK + 1) % RANKS)]
    return lambda: [dist.barrier(async_op=True)]


def run_all(starters):
    works = [work for start in starters for work in start()]
    for work in works:
        work.wait()


def element(positions, sender, receiver=0):
    """Small integers, so that every sum is exact."""
    return (positions % 7 + 3 * (sender % 5) + 2 * (receiver % 3)).float()


def expected_of(kind, received, part):
    positions = torch.arange(received)
    if kind == "all-reduce":
        return sum(element(positions, sender) for sender in range(RANKS))
    if kind == "broadcast":
        return element(positions, 0)
    if kind == "send-recv":
        return element(positions, (RANK - 1) % RANKS)
    receiver = RANK if kind == "all-to-all" else 0
    within = torch.arange(part)
    return torch.cat([element(within, sender, receiver) for sender in range(RANKS)])


def wrong_elements(kind, source, target, part, start):
    if source is not target:
        target.fill_(-1)
    if kind == "all-to-all":
        within = torch.arange(part)
        source.copy_(torch.cat([element(within, RANK, receiver) for receiver in range(RANKS)]))
    else:
        source.copy_(element(torch.arange(source.numel()), RANK))
    run_all([start])
    return int((target != expected_of(kind, target.numel(), part)).sum())


def measure(kind, size, iterations, warmup, buckets, checked):
    sent, received, part = layout_of(kind, size)
    in_place = kind in ("all-reduce", "broadcast")
    sources = [torch.zeros(sent) for _ in range(buckets)]
    targets = sources if in_place else [torch.zeros(received) for _ in range(buckets)]
    value = float(RANK + 1) if kind == "all-reduce" else 1.0
    starters = [starter_of(kind, source, target, part) for source, target in zip(sources, targets)]
    samples = []
    for iteration in range(-warmup, iterations):
        if iteration == 0:
            dist.barrier()
        for source in sources:
            source.fill_(value)
        start = time.perf_counter_ns()
        run_all(starters)
        if iteration >= 0:
            samples.append((time.perf_counter_ns() - start) / 1000 / buckets)
    samples.sort()
    own = [samples[iterations // 2], samples[0], samples[(iterations * 99 + 99) // 100 - 1]]
    slowest = torch.tensor(own, dtype=torch.float64)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    wrong = torch.tensor([0])
    if kind != "barrier":
        for source, target, starter in list(zip(sources, targets, starters))[:checked]:
            wrong += wrong_elements(kind, source, target, part, starter)
    dist.all_reduce(wrong)
    if RANK == 0:
        median, least, p99 = slowest.tolist()
        row = {"bytes": size, "iterations": iterations, "medianUs": median, "minUs": least, "p99Us": p99, "wrong": int(wrong)}
        print(json.dumps(row), flush=True)


def main():
    meeting, kind, sizes, buckets, checked = sys.argv[1:]
    if kind == "reduce-scatter":
        if RANK == 0:
            print(json.dumps({"unsupported": "torch.distributed has no reduce-scatter on Gloo"}))
        return
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=RANK, world_size=RANKS)
    for item in sizes.split(","):
        size, iterations, warmup = item.split(":")
        measure(kind, int(size), int(iterations), int(warmup), int(buckets), int(checked))
    # Nobody closes its connections while others still use them.
    dist.barrier()


main()
