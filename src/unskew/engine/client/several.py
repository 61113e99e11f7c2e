"""Several GPUs of one machine: a cohort's chunks are trained on all of them in turn.

Which chunks there are follows from the cohort and `lanes` alone, and GPUs of one kind compute the same bits, so how many
there are changes none. Every GPU has a copy of the samples and recordings of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import wait
from dataclasses import replace
from functools import partial

import torch

from unskew.core.replies import Reply
from unskew.core.trees import Tree, Weights, tree_map
from unskew.engine.client.schedule import Chunk
from unskew.engine.client.trainer import Trainer
from unskew.engine.client.values import Samples, Start
from unskew.engine.inputs import Streamed
from unskew.engine.precision import computing


class Several:
    """An `Elsewhere` of threads, one a GPU. first: the trainer whose device is the run's. others: further GPUs."""

    def __init__(self, first: Trainer, others: Sequence[torch.device]):
        self.first = first
        self.twins = [
            Trainer(first.method, first.fed, samples_on(first.samples, device), first.training, first.lanes)
            for device in others
        ]

    def train(self, plan: Sequence[Chunk], start: Start, private: Mapping[int, Tree]) -> list[list[Reply]]:
        """The replies of every chunk, in the order of the plan, on the first GPU. What fails raises when all have ended, so
        that nothing trains on while somebody tries again."""
        first, trainers = self.first, [self.first, *self.twins]
        for twin in self.twins:
            twin.chance = first.chance
            if twin.lanes != first.lanes:
                twin.resize(first.lanes)
        starts = [start, *(start_on(start, twin.device) for twin in self.twins)]
        turns = [number % len(trainers) for number in range(len(plan))]
        with computing(first.device, first.training.precision):
            begun = [
                trainers[turn].begin(chunk, starts[turn], private_on(private, chunk, trainers[turn].device))
                for turn, chunk in zip(turns, plan)
            ]
            wait(begun)
            replies = [[reply_on(reply, first.device) for reply in future.result()] for future in begun]
        for twin in self.twins:  # one thread waits for the GPU where another does, and the run says so once
            if first.replays and twin.replays and not first.replays.refused:
                first.replays.refused = twin.replays.refused
        return replies

    def close(self) -> None:
        for twin in self.twins:
            twin.close()


def samples_on(samples: Samples, device: torch.device) -> Samples:
    """The same samples on another GPU; those that are read when they are wanted are read for it."""
    x = samples.x
    there = Streamed(x.rows, device) if isinstance(x, Streamed) else x.to(device)
    return replace(samples, x=there, y=samples.y.to(device))


def start_on(start: Start, device: torch.device) -> Start:
    """What a round sends, on another GPU; what single clients are sent is brought there when they ask."""
    move, own = partial(tree_map, lambda t: t.to(device)), start.own

    def brought(k: int) -> tuple[Weights, dict[str, Tree]]:
        assert own is not None
        weights, down = own(k)
        return move(weights), move(down)

    return replace(start, weights=move(start.weights), down=move(start.down), own=brought if own else None)


def private_on(private: Mapping[int, Tree], chunk: Chunk, device: torch.device) -> dict[int, Tree]:
    """The private state of a chunk's clients on this GPU."""
    return {w.client: tree_map(lambda t: t.to(device), private[w.client]) for w in chunk.work if w.client in private}


def reply_on(reply: Reply, device: torch.device) -> Reply:
    """A reply with everything in it on this GPU."""
    move = partial(tree_map, lambda t: t.to(device))
    loss = reply.loss.to(device) if isinstance(reply.loss, torch.Tensor) else reply.loss
    return replace(
        reply, weights=move(reply.weights), shares=move(reply.shares), private=move(reply.private), loss=loss
    )
