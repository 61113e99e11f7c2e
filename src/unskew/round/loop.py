"""The server's side of a run: in each round it sends the model, checks the replies, merges them and records
everything."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from unskew.core import encoding, gate
from unskew.core.client import Fed
from unskew.core.method import Method, without_losses
from unskew.core.part import Part, Trip, overrides
from unskew.core.replies import Reply, Ups
from unskew.core.trees import Tree, Weights, align, sorted_tree, tree_map
from unskew.core.user_parts import trip_result
from unskew.data.clients.availability import Attendance
from unskew.errors import printable
from unskew.merge.mean import weighted_mean
from unskew.records import client_lists
from unskew.records.checkpoints import State
from unskew.records.private_state import Store
from unskew.records.record import Record
from unskew.records.rows import Row, scope_row
from unskew.round.callback import CallbackList
from unskew.round.clients import Broadcast
from unskew.round.deliveries import Deliveries
from unskew.round.exchange import Exchange, Scoring
from unskew.round.ledger import Ledger
from unskew.round.precision import device_mode, memory_errors
from unskew.round.probes import Measures
from unskew.round.randomness import SeededSource
from unskew.round.run import Run
from unskew.system.machine import one_core


@dataclass(frozen=True)
class RoundSummary:
    """A round in numbers. asked: clients that were sent the model. answered: replies in the merge. dropped:
    replies that were refused. loss: the mean over replies, NaN without any."""

    t: int
    asked: int
    answered: int
    dropped: int
    seconds: float
    loss: float

    def rows(self) -> list[Row]:
        """Rows of metrics.jsonl: the duration of the round and, if known, the training loss."""
        rows = [scope_row(self.t, "train", "seconds", round(self.seconds, 4))]
        if not math.isnan(self.loss):
            rows.append(scope_row(self.t, "train", "loss", float(f"{self.loss:.7g}")))
        return rows


class Loop:
    """The server's side of a run: `begin`, then `round` after `round`.

    A state is a value: equal states, stores and round numbers give the same next state to the bit.
    trainer: sends to the clients and returns their replies. scoring: scores a state. listener: is called with
    the round, code and text of every event that has a text. deliveries: what clients hold of the slices.
    """

    def __init__(
        self,
        run: Run,
        trainer: Exchange,
        scoring: Scoring,
        store: Store,
        record: Record,
        measures: Measures | None = None,
    ):
        self.run, self.method, self.fed, self.settings = run, run.method, run.fed, run.settings
        self.trainer, self.store, self.record = trainer, store, record
        self.availability = run.settings.attendance
        self.evaluation, self.measures = scoring, measures
        self.weighting = run.weighting
        self.ledger = Ledger(record, trainer.sent, run.method, run.secure)
        self.deliveries = Deliveries(run.method, run.fed.clients)
        w = run.fed.net.weights()
        self.declared = run.method.shares(run.fed)
        self.protector = run.method.protector
        self.affordable = self.protector.rounds_within(run.fed) if self.protector else run.settings.rounds
        self.last = self.affordable
        self.ends: int | None = None
        self.remarked: set[str] = set()
        self.callbacks = CallbackList((), run, record)
        guarded = self.protector or run.method.samples_apart
        self.chance = trainer.chance if guarded else SeededSource(run.settings.seed)
        self.spec = encoding.spec_of(run.method, run.fed, trainer.sent, w)
        self.listener: Callable[[int, str, str], None] = lambda t, code, text: None

    def begin(self) -> State:
        """The state before round 1, after the trips that are due before it."""
        for code, text in self.run.remarks:
            self._event(0, code, text)
        if text := self.cut_short():
            self._event(0, "E323", text, last=self.last)
        fed = self.fed
        with self._computing():
            w = tree_map(self._there, fed.net.weights())
            slices = {p.name: self._placed(p.server_init(w, fed)) for p in self.method.parts}
            state = State(0, w, {n: s for n, s in slices.items() if s})
            self.deliveries.begin(state.slices)
            return self._trips(state, self.down(state, 0), list(range(fed.clients)))

    def cut_short(self) -> str:
        """The text of the event E323 if a privacy budget ends the run early; else ""."""
        if self.affordable >= self.settings.rounds:
            return ""
        return (
            f"the privacy budget allows {self.affordable} of {self.settings.rounds} rounds; the run ends"
            " after them."
        )

    def down(self, state: State, t: int) -> Broadcast:
        """The broadcast of round t."""
        return broadcast(self.method, state, t, self.settings.lr_in(t), self.fed, self.trainer.device)

    def round(self, state: State, t: int) -> tuple[State, RoundSummary]:
        """One round: train, check replies, merge, update slices, run trips. Returns (next state, summary).
        Without replies the model does not change."""
        began = time.perf_counter()
        attendance = self.attendance(t)
        asked, answered = attendance.asked.tolist(), attendance.answered.tolist()
        self.callbacks.round_begun(t, asked)
        start = self.down(state, t)
        with memory_errors(t, self.run.lanes):
            replies = self.trainer.train(start, answered, self.store.fetch(answered))
        for code, text in self.trainer.remarks():
            if code not in self.remarked:
                self.remarked.add(code)
                self._event(t, code, text)
        sent = self.deliveries.send(start, asked)
        self.ledger.broadcast(t, asked, start, sent)
        sent.settle({r.client for r in replies}.union(k for k in asked if not self.fed.sizes[k]))
        self.ledger.trained(t, replies, start)
        self.ledger.shared(t, replies, self.declared)
        good = self._decoded(start, self._gate(t, replies, self.spec))
        withheld = self.method.samples_apart and self.chance.secret  # then sites do not report losses
        self.callbacks.replied(replies, good, bool(withheld))
        with one_core(), self._computing():
            state, good = self._merge(state, t, good)
            if self.measures:
                self.measures.remember(start, good)
            used = client_lists.encode_clients([r.client for r in good])
            self._event(
                t, "round", asked=client_lists.encode_clients(asked), answered=used, received=len(replies)
            )
            # the private state of a refused reply is not stored, so that its client does not continue from it
            self.store.put(t, {r.client: r.private for r in good})
            state = self._trips(state, start, [r.client for r in good])
        self.callbacks.merged(state)
        loss = float("nan")
        if good and not withheld:
            loss = float(np.mean(torch.stack([torch.as_tensor(r.loss) for r in good]).tolist()))
        seconds = time.perf_counter() - began
        return state, RoundSummary(t, len(asked), len(good), len(replies) - len(good), seconds, loss)

    def attendance(self, t: int) -> Attendance:
        """The clients that are asked and that answer in round t. Absences that no privacy guarantee relies on
        are drawn from the seed, because those that last several rounds are drawn again in each."""
        chance = SeededSource(self.settings.seed) if self.availability.independent is None else self.chance
        return self.availability.who(t, self.fed.clients, chance.cohort)

    def evaluate(self, state: State, summary: RoundSummary | None) -> list[Row]:
        """Add the metric rows of the state's round to the record, and return them. Early stopping may set the
        last round. summary: of that round; None before round 1."""
        t, last = state.t, state.t == self.last
        due = last or t % self.settings.eval_every == 0
        rows = self.evaluation.rows(t, self.down(state, t), self.store, last) if due else []
        if self.measures and summary and due:
            measured, pictures = self.measures.measure(t, self.down(state, t), last)
            rows += measured
            if last:
                self.record.keep_measures(pictures)
        rows += summary.rows() if summary else []
        if due and self.protector and (spent := self.protector.spent(self.fed, t)) is not None:
            rows.append(scope_row(t, "privacy", "epsilon", spent))
        self.record.add("metrics", rows)
        if (why := self.callbacks.evaluated(state)) and t + 1 < self.last:
            self.end_with(t + 1)
            self._event(t, "E323", f"{why}; round {t + 1} is the last.", last=t + 1)
        return rows

    def end_with(self, t: int) -> None:
        """Make round t the last one, including everything that is done in a last round."""
        self.ends = self.last = t

    def _merge(self, state: State, t: int, good: list[Reply]) -> tuple[State, list[Reply]]:
        """(the state after the merge, the replies that it was made of): no replies if the round is
        skipped."""
        if not good and not self.protector:
            self._event(t, "E309", "no reply was used; round skipped, model unchanged.")
            return State(t, state.weights, state.slices), []
        merged = self._merged(state, t, good)
        if problem := gate.merged_problem(merged.weights, merged.slices):
            self._event(t, "E314", f"round {t}: after the merge {problem} Round skipped, model unchanged.")
            return State(t, state.weights, state.slices), []
        return merged, good

    def _merged(self, state: State, t: int, good: list[Reply]) -> State:
        """The state after the hooks `protect`, `merge`, `server` and `refine`."""
        merger, slices = self.method.merger, dict(state.slices)
        if self.protector:
            good, slices = self._protected(self.protector, state, t, good)
        good = without_losses(good, self.protector or self.method.samples_apart, self.run.secure is not None)
        ups = Ups.of(good, t, self.weighting, self.settings.cap, last=t == self.last)
        if merger:
            if caution := merger.caution(len(good)):
                self._event(t, "E108", f"{merger.name} round {t}: {caution}.")
            w, merged = merger.merge(
                state.weights, slices.get(merger.name, {}), ups.seen_by(merger.name), self.fed
            )
            slices[merger.name] = self._placed(merged)
        else:
            w = weighted_mean(state.weights, ups)
        for p in self.method.parts:
            if overrides(p, "server"):
                slices[p.name] = self._placed(p.server(slices.get(p.name, {}), ups.seen_by(p.name), self.fed))
        for p in self.trainer.hooks["refine"]:
            w, refined = p.refine(w, slices.get(p.name, {}), self.fed, t)
            slices |= {p.name: self._placed(refined)} if refined else {}
        return State(t, w, slices)

    def _protected(
        self, part: Part, state: State, t: int, good: list[Reply]
    ) -> tuple[list[Reply], dict[str, Tree]]:
        """The noisy replies that a Part which protects clients makes of the replies, and the next slices."""
        declared = {name: shares for name, shares in self.declared.items() if shares}
        ups = replace(Ups.of(good, t), declared=declared)
        normal = self.chance.normal(t, part.name)
        replies, slice_ = part.protect(state.weights, state.slices.get(part.name, {}), ups, self.fed, normal)
        return replies, {**state.slices, **({part.name: self._placed(slice_)} if slice_ else {})}

    def _trips(self, state: State, began: Broadcast, cohort: list[int]) -> State:
        """The state after all trips that are due. began: the broadcast at the start of the round."""
        for part, trip in due_trips(self.method, state.t, self.ends or self.settings.rounds):
            ids = list(range(self.fed.clients)) if trip.everyone else cohort
            now = self.down(state, state.t).reading(part.name, trip)
            state = self._trip(state, part, trip, ids, began if trip.early else now)
        return state

    def _trip(self, state: State, part: Part, trip: Trip, ids: list[int], start: Broadcast) -> State:
        """The state after one trip with these clients."""
        t = state.t
        replies = self.trainer.visit(
            trip, part, start, ids, self.store.fetch(ids) if self.trainer.kept else {}
        )
        declared = {part.name: self.method.covered(trip.shares(self.fed))}
        if not trip.early:  # else the weights are the round's own
            asked = [k for k in ids if self.fed.sizes[k]]
            sent = self.deliveries.send(start, asked)
            self.ledger.broadcast(t, asked, start, sent)
            sent.settle([r.client for r in replies])
        self.ledger.shared(t, replies, declared)
        good = without_losses(self._gate(t, replies, gate.Spec({}, declared, {})), None, False, trip=True)
        ups = Ups.of(good, t, self.weighting, self.settings.cap).seen_by(part.name)
        w, slice_ = trip_result(trip, part, state.weights, state.slices.get(part.name, {}), ups, self.fed)
        if problem := gate.merged_problem(w, {part.name: slice_}):
            self._event(
                t, "E314", f"round {t}: after the exchange of '{part.name}' {problem} It is left out."
            )
            return state
        return State(t, w, {**state.slices, part.name: self._placed(slice_)})

    def _decoded(self, start: Broadcast, replies: list[Reply]) -> list[Reply]:
        """The replies that the gate accepted, with decoded weights; events report those that cannot be
        decoded."""
        with one_core(), self._computing():
            good, refused = encoding.decode_replies(self.method, replies, start.received, self.fed, start.t)
        self._report(start.t, refused, len(good), len(replies))
        return good

    def _gate(self, t: int, replies: list[Reply], spec: gate.Spec) -> list[Reply]:
        """The replies that the gate accepts; events report the others."""
        with one_core():
            good, refused = gate.check(replies, spec, self.fed.sizes)
        self._report(t, refused, len(good), len(replies))
        return good

    def _report(self, t: int, refused: list[gate.Refusal], used: int, received: int) -> None:
        """Add an event for every refusal."""
        for refusal in refused:
            dropped = f" Reply dropped ({used} of {received} used)." if refusal.code != "E305" else ""
            who = self.run.federation.name_of(refusal.client)
            self._event(t, refusal.code, f"{who} round {t}: {refusal.text}{dropped}")

    def _computing(self) -> AbstractContextManager[None]:
        """The device and precision of the server's hooks, which are the clients', since they may train."""
        return device_mode(self.trainer.device, self.settings.precision)

    def _placed(self, tree: Tree) -> Tree:
        """A hook's slice on the device of the run, in the order that it would have after a resume."""
        return tree_map(self._there, sorted_tree(tree))

    def _there(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor on the device of the run, aligned as in a resumed run."""
        return align(tensor.to(self.trainer.device))

    def _event(self, t: int, code: str, text: str = "", **facts: Any) -> None:
        text = printable(text)  # it may quote names that a client chose
        self.record.add("events", [{"t": t, "code": code, **({"text": text} if text else {}), **facts}])
        if text:
            self.listener(t, code, text)


def broadcast(
    method: Method, state: State, t: int, lr: float, fed: Fed, device: torch.device | str = "cpu"
) -> Broadcast:
    """The broadcast of round t: the weights, and every Part's slice without the leaves that it keeps at the
    server. If a Part dispatches, its result for a client replaces them, on this device."""
    down = {}
    for p in method.parts:
        if slice_ := state.slices.get(p.name):
            down[p.name] = {leaf: v for leaf, v in slice_.items() if leaf not in p.keeps_at_server}
    part = method.dispatcher
    if part is None:
        return Broadcast(t, lr, state.weights, down)

    placed = partial(tree_map, lambda t: t.to(device))

    def own(k: int) -> tuple[Weights, dict[str, Tree]]:
        w, slice_ = part.dispatch(state.weights, state.slices.get(part.name, {}), k, fed)
        w = state.weights if w is state.weights else {**state.weights, **placed(w)}
        return w, {**down, part.name: placed(sorted_tree(slice_))}

    return Broadcast(t, lr, state.weights, down, own)


def due_trips(method: Method, t: int, rounds: int) -> list[tuple[Part, Trip]]:
    """The trips after round t, in order."""
    return [(part, trip) for part in method.parts for trip in part.trips if trip.when(t, rounds)]


def remaining_rounds(
    loop: Loop, state: State, after: Callable[[State, RoundSummary], None]
) -> Iterator[State]:
    """Run the remaining rounds and yield the state after each; `after` saves it first."""
    while state.t < loop.last:
        state, summary = loop.round(state, state.t + 1)
        loop.evaluate(state, summary)
        after(state, summary)
        yield state
