"""Which of several servers is asked, and what becomes of a request whose server fails."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from typing import Literal

import pytest
from support.eventually import eventually

from gourmet.client.balancing import BalancedTransport
from gourmet.client.deadline import Deadline
from gourmet.client.errors import NoAnswerInTime, NotTriton, TritonError, TritonRefused, TritonUnreachable
from gourmet.client.transport import Call, Operation, Reply

PIECES = [Reply("a"), None, Reply("b")]


@dataclass
class ScriptedServer:
    """A double of a way to a server, at a boundary of ours: it answers, slowly, not at all, or half."""

    address: str
    seconds: float = 0.0
    fails: Callable[[Call], TritonError | None] = lambda call: None
    breaks_off: bool = False
    asked: Counter[str] = field(default_factory=Counter)
    protocol: Literal["http", "grpc"] = "http"

    def send(self, call: Call, deadline: Deadline) -> Iterator[Reply | None]:
        self.asked[call.operation] += 1
        if error := self.fails(call):
            raise error
        if call.operation == "stream":
            yield from PIECES[:1] if self.breaks_off else PIECES
            if self.breaks_off:
                raise TritonUnreachable("it hung up")
            return
        time.sleep(self.seconds)
        yield Reply({"model_version": self.address})

    def close(self) -> None:
        pass


def unreachable(_: Call) -> TritonError:
    return TritonUnreachable.at("a:1", "connection refused")


def ask(balanced: BalancedTransport, operation: Operation = "infer", model: str = "food") -> str:
    (reply,) = balanced.send(Call(operation, model), Deadline(5.0))
    assert reply is not None
    return str(reply.fields["model_version"])


def test_as_many_go_to_each_where_all_are_alike_and_few_to_a_slow_one() -> None:
    servers = [ScriptedServer(name, 0.03) for name in ("a", "b", "c")]
    with closing(BalancedTransport(servers)) as balanced, ThreadPoolExecutor(12) as pool:
        alike = Counter(pool.map(lambda _: ask(balanced), range(120)))
        assert min(alike.values()) > 24
        servers[1].seconds = 0.6
        begun = time.monotonic()
        found = Counter(pool.map(lambda _: ask(balanced), range(240)))
        fades = (time.monotonic() - begun) / 5  # a busy machine takes longer, and what is known of it fades
    assert found["b"] <= 12 * (1 + fades)


def test_what_requests_wait_for_is_not_asked_of_a_slow_one_and_statistics_of_the_first_always() -> None:
    servers = [ScriptedServer("a", 0.2), ScriptedServer("b", 0.01), ScriptedServer("c", 0.01)]
    with closing(BalancedTransport(servers)) as balanced, ThreadPoolExecutor(12) as pool:
        list(pool.map(lambda _: ask(balanced), range(200)))
        assert "a" not in {ask(balanced, operation) for operation in ("metadata", "config")}
        assert ask(balanced, "statistics") == "a"


def test_names_that_strangers_make_up_leave_nothing() -> None:
    servers = [ScriptedServer("a"), ScriptedServer("b")]
    with closing(BalancedTransport(servers)) as balanced:
        for number in range(100):
            ask(balanced, "metadata", f"made-up-{number}")
        ask(balanced)
        assert {name for each in balanced._replicas for name in each.paces} == {"food"}


def test_one_that_stands_still_gets_no_more_than_a_few_before_any_deadline_passes() -> None:
    servers = [ScriptedServer(name, 0.01) for name in ("a", "b", "c")]
    servers[0].seconds = 2.0
    with closing(BalancedTransport(servers)) as balanced, ThreadPoolExecutor(12) as pool:
        list(pool.map(lambda _: ask(balanced), range(300)))
    assert servers[0].asked["infer"] <= 8


@pytest.mark.parametrize(
    "error",
    [
        TritonUnreachable.at("a:1", "connection refused"),
        NotTriton.at("a:1", "it ended too early"),
        TritonRefused("Request for unknown model: 'food' is not found", 404),
        TritonRefused("Request for unknown model: 'food' has no available versions", 503),
        TritonRefused("Stub process is not healthy", 500),
    ],
    ids=["away", "cut off", "without the model", "loading", "its process died"],
)
def test_who_had_nothing_of_an_answer_is_asked_once_elsewhere_and_the_server_left_out(
    error: TritonError,
) -> None:
    broken, well = ScriptedServer("a", fails=lambda call: error), ScriptedServer("b")
    with closing(BalancedTransport([broken, well])) as balanced:
        assert {ask(balanced) for _ in range(40)} == {"b"}
        assert broken.asked["infer"] <= 1
        broken.fails = lambda call: None
        eventually(lambda: all(balanced.answering().values()))
        eventually(lambda: ask(balanced) == "a")


def test_a_model_that_one_server_lacks_keeps_it_from_no_other_model() -> None:
    lacks = TritonRefused("Request for unknown model: 'food' is not found", 404)
    without = ScriptedServer("a", fails=lambda call: lacks if call.target.startswith("food") else None)
    with closing(BalancedTransport([without, ScriptedServer("b", 0.005)])) as balanced:
        assert {ask(balanced, model="food/2") for _ in range(20)} == {"b"}
        assert "a" in {ask(balanced, model="digits") for _ in range(20)}


@pytest.mark.parametrize("status", [400, 503])
def test_what_is_wrong_with_the_request_or_waits_in_a_full_queue_is_said_by_the_first(status: int) -> None:
    refused = TritonRefused("bad", status)
    servers = [ScriptedServer(name, fails=lambda call: refused) for name in ("a", "b")]
    with closing(BalancedTransport(servers)) as balanced:
        with pytest.raises(TritonRefused, match="bad"):
            ask(balanced)
        assert sum(each.asked["infer"] for each in servers) == 1
        assert all(balanced.answering().values())


def test_a_request_is_asked_at_two_servers_at_most_and_not_after_its_deadline() -> None:
    servers = [ScriptedServer(name, fails=unreachable) for name in ("a", "b", "c")]
    with closing(BalancedTransport(servers)) as balanced:
        with pytest.raises(TritonUnreachable):
            ask(balanced)
        assert sum(each.asked["infer"] for each in servers) == 2
    late = [ScriptedServer(name, fails=lambda call: NoAnswerInTime(0.1)) for name in ("a", "b")]
    with closing(BalancedTransport(late)) as balanced:
        with pytest.raises(NoAnswerInTime):
            list(balanced.send(Call("infer", "food"), Deadline(0.0)))
        assert sum(each.asked["infer"] for each in late) == 1


def test_a_stream_with_pieces_is_never_told_in_two_halves() -> None:
    servers = [ScriptedServer(name, breaks_off=True) for name in ("a", "b")]
    with closing(BalancedTransport(servers)) as balanced:
        replies = balanced.send(Call("stream", "food"), Deadline(5.0))
        assert next(replies) == PIECES[0]
        with pytest.raises(TritonUnreachable):
            next(replies)
        assert sum(each.asked["stream"] for each in servers) == 1
    whole = [ScriptedServer("a", fails=unreachable), ScriptedServer("b")]
    with closing(BalancedTransport(whole)) as balanced:
        assert list(balanced.send(Call("stream", "food"), Deadline(5.0))) == PIECES


def test_what_is_no_request_to_a_model_goes_to_the_first_that_answers() -> None:
    servers = [ScriptedServer(name) for name in ("a", "b", "c")]
    with closing(BalancedTransport(servers)) as balanced:
        assert {ask(balanced, "config") for _ in range(10)} == {"a"}
        servers[0].fails = servers[1].fails = unreachable
        assert ask(balanced, "config") == "c"
        assert balanced.answering() == {"a": False, "b": False, "c": True}


def test_where_all_are_left_out_all_are_asked() -> None:
    servers = [ScriptedServer(name, fails=unreachable) for name in ("a", "b")]
    with closing(BalancedTransport(servers)) as balanced:
        with pytest.raises(TritonUnreachable):
            ask(balanced)
        for each in servers:
            each.fails = lambda call: None
        assert ask(balanced) in ("a", "b")


def test_what_takes_long_of_one_model_makes_no_server_dear_for_another() -> None:
    servers = [ScriptedServer(name, 0.002) for name in ("a", "b")]
    with closing(BalancedTransport(servers)) as balanced, ThreadPoolExecutor(9) as pool:
        servers[0].seconds = servers[1].seconds = 1.0
        slow = pool.submit(ask, balanced, model="captions")
        eventually(lambda: sum(each.asked["infer"] for each in servers) == 1)
        servers[0].seconds = servers[1].seconds = 0.002
        found = Counter(pool.map(lambda _: ask(balanced), range(200)))
        slow.result()
    assert min(found["a"], found["b"]) > 10  # of the one that was dear none would be asked
