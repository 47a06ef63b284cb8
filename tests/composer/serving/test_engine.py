"""The engine admits jobs in order and within its bounds, serves them in turn, and survives faults and clients that leave."""

from __future__ import annotations

import inspect
import queue
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

import composer
from composer.serving import engine as engines
from composer.serving.engine import Engine, Job, WrittenPiece
from composer.serving.requests import CompletionRequest, RequestError
from tests.composer.serving.conftest import TEACHER

PATIENCE = 60


class Client:
    """Waits for what the engine delivers. began: when it delivered the first piece."""

    def __init__(self, prompt: list[int], most: int = 4, prompts: int = 1, **fields: Any) -> None:
        self.delivered: queue.Queue[WrittenPiece | RequestError] = queue.Queue()
        self.began: float | None = None
        request = CompletionRequest(model="m", prompt=["a"], logprobs=0, **{"temperature": 0, **fields})
        self.job = Job(request, [list(prompt) for _ in range(prompts)], most, frozenset(), True, self.deliver)

    def deliver(self, piece: WrittenPiece | RequestError) -> None:
        self.began = self.began or time.monotonic()
        self.delivered.put(piece)

    def next(self) -> Any:
        return self.delivered.get(timeout=PATIENCE)

    def tokens(self) -> list[list[int]]:
        """Return the tokens of all texts, when the last one ends."""
        texts: list[list[int]] = [[] for _ in range(self.job.rows)]
        running = self.job.rows
        while running:
            piece = self.next()
            assert isinstance(piece, WrittenPiece), piece
            texts[piece.index] += [entry.token for entry in piece.logprobs]
            running -= piece.finish is not None
        return texts


@pytest.fixture(scope="module")
def model() -> Any:
    return composer.build("lolcats", TEACHER)


@pytest.fixture
def engine(model: Any) -> Iterator[Engine]:
    running = Engine(model, AutoTokenizer.from_pretrained(TEACHER))
    yield running
    running.close(PATIENCE)
    assert not running.thread.is_alive()


class Gate:
    """Holds every call of a model until it is opened. calls: the shapes of all inputs."""

    def __init__(self, model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened, self.entered, self.calls = threading.Event(), threading.Event(), []
        forward = model.forward

        def held(*arguments: Any, **options: Any) -> Any:
            self.calls.append(tuple(options["input_ids"].shape))
            self.entered.set()
            assert self.opened.wait(PATIENCE)
            return forward(*arguments, **options)

        held.__signature__ = inspect.signature(forward)  # type: ignore[attr-defined]
        monkeypatch.setattr(model, "forward", held)


@pytest.fixture
def gate(model: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    made = Gate(model, monkeypatch)
    yield made
    made.opened.set()


def test_late_requests_do_not_wait_for_the_ones_before(engine: Engine, gate: Gate) -> None:
    gate.opened.set()
    long, short = Client([5] * 30, most=150), Client([7] * 3, most=3)
    engine.submit(long.job)
    long.next()
    engine.submit(short.job)
    assert len(short.tokens()[0]) == 3
    assert engine.groups
    assert len(long.tokens()[0]) == 149


def test_requests_that_wait_together_are_one_batch(engine: Engine, gate: Gate) -> None:
    first = Client([9], most=1)
    engine.submit(first.job)
    gate.entered.wait(PATIENCE)
    together = [Client([5] * length, most=2) for length in (20, 18, 31, 3)]
    for client in together:
        engine.submit(client.job)
    gate.opened.set()
    for client in (first, *together):
        client.tokens()
    assert gate.calls == [(1, 1), (3, 31), (3, 1), (1, 3), (1, 1)]


def test_rows_and_reserved_tokens_are_bounded_and_nobody_overtakes(
    engine: Engine, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "MOST_ROWS", 4)
    running = Client([5], most=2, n=3)
    engine.submit(running.job)
    gate.entered.wait(PATIENCE)
    large, small = Client([6], most=1, n=2), Client([7], most=1)
    engine.submit(large.job)
    engine.submit(small.job)
    gate.opened.set()
    for client in (running, large, small):
        client.tokens()
    assert max(rows for rows, _ in gate.calls) == 3
    assert running.began is not None
    assert large.began is not None
    assert small.began is not None
    assert running.began < large.began < small.began


def test_one_request_may_have_more_tokens_than_the_engine_reserves(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "MOST_RESERVED", 8)
    clients = [Client([5] * 12, most=3) for _ in range(3)]
    for client in clients:
        engine.submit(client.job)
    assert len({str(client.tokens()) for client in clients}) == 1


def test_a_full_queue_refuses(engine: Engine, gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "MOST_WAITING", 2)
    running = Client([5])
    engine.submit(running.job)
    gate.entered.wait(PATIENCE)
    waiting = [Client([5]) for _ in range(2)]
    for client in waiting:
        engine.submit(client.job)
    with pytest.raises(RequestError) as refused:
        engine.submit(Client([5]).job)
    assert (refused.value.status, refused.value.message) == (503, "The server is busy: try again later.")
    gate.opened.set()
    for client in (running, *waiting):
        client.tokens()


def test_a_request_that_waits_too_long_is_refused(engine: Engine, gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "MOST_ROWS", 1)
    running, waiting = Client([5], most=100), Client([5])
    engine.submit(running.job)
    gate.entered.wait(PATIENCE)
    engine.submit(waiting.job)
    monkeypatch.setattr(engines, "LONGEST_WAIT", 0.0)
    gate.opened.set()
    assert waiting.next().status == 503
    running.tokens()


def test_a_client_that_left_frees_its_rows(engine: Engine) -> None:
    client = Client([5], most=10**9)
    engine.submit(client.job)
    client.next()
    client.job.is_abandoned.set()
    other = Client([5], most=2)
    engine.submit(other.job)
    other.tokens()
    deadline = time.monotonic() + PATIENCE
    while engine.groups:
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ValueError("/a/path"), 500),
        (torch.OutOfMemoryError("out of memory"), 503),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), 503),
    ],
)
def test_a_fault_ends_its_group_alone(
    engine: Engine, model: Any, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    running = Client([5] * 9, most=100)
    engine.submit(running.job)
    running.next()
    forward = type(model).forward

    def fail_on_sevens(self: Any, *arguments: Any, **options: Any) -> Any:
        if bool((options["input_ids"] == 7).all()):
            raise error
        return forward(self, *arguments, **options)

    fail_on_sevens.__signature__ = inspect.signature(forward)  # type: ignore[attr-defined]
    monkeypatch.setattr(type(model), "forward", fail_on_sevens)
    faulty = Client([7, 7], n=2)
    engine.submit(faulty.job)
    refusal = faulty.next()
    assert (refusal.status, "/a/path" in refusal.message) == (status, False)
    assert len(running.tokens()[0]) == 99
    assert ("/a/path" in caplog.text) is (status == 500)
    assert not faulty.delivered.qsize()


def test_a_stop_text_ends_the_answer(engine: Engine, model: Any) -> None:
    client = Client([5, 9, 30], most=30)
    engine.submit(client.job)
    (tokens,) = client.tokens()
    words = [engine.tokenizer.decode([token]) for token in tokens]
    stopped = Client([5, 9, 30], most=30, stop=[words[3]])
    engine.submit(stopped.job)
    text, pieces = "", []
    while not pieces or pieces[-1].finish is None:
        pieces.append(stopped.next())
        text += pieces[-1].text
    first = words.index(words[3])
    assert pieces[-1].finish == "stop"
    assert sum(piece.tokens for piece in pieces) == first + 1
    assert words[3] not in text


def test_closing_ends_jobs_that_run(model: Any) -> None:
    running = Engine(model, AutoTokenizer.from_pretrained(TEACHER))
    client = Client([5], most=10**9)
    running.submit(client.job)
    client.next()
    began = time.monotonic()
    running.close(PATIENCE)
    assert time.monotonic() - began < 5
    assert client.job.is_abandoned.is_set()
    while isinstance(piece := client.next(), WrittenPiece):
        pass
    assert piece.status == 503
    with pytest.raises(RequestError):
        running.submit(Client([5]).job)


def test_a_fault_of_the_engine_itself_leaves_nobody_waiting(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = Engine(model, AutoTokenizer.from_pretrained(TEACHER))
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    monkeypatch.setattr(broken, "_begin", lambda _: 1 / 0)
    client = Client([5])
    broken.submit(client.job)
    assert client.next().status == 503
    broken.thread.join(PATIENCE)
    assert not broken.thread.is_alive()
    with pytest.raises(RequestError):
        broken.submit(Client([5]).job)
