"""The parent's parts on their own: wire, poller, registry, control socket, lock, preload, signals, notify."""

from __future__ import annotations

import fcntl
import os
import resource
import signal
import socket
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pfsup.config.errors import AlreadyRunning, ConfigError
from pfsup.shared.frames import MAX_REPLY_BYTES, encode
from pfsup.supervisor.parent import lock
from pfsup.supervisor.parent.control import IDLE_S, MAX_CLIENTS, TURN_BYTES, Control
from pfsup.supervisor.parent.notify import Notify
from pfsup.supervisor.parent.poller import Poller, Priority
from pfsup.supervisor.parent.preload import preload
from pfsup.supervisor.parent.registry import Registry
from pfsup.supervisor.parent.signals import Signals, lost_terminal
from pfsup.supervisor.parent.wire import TURN_BYTES as TURN_BYTES_OF_A_CHILD
from pfsup.supervisor.parent.wire import Outbox, Wire


@pytest.fixture
def pair() -> Generator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


@pytest.fixture
def poller() -> Generator[Poller]:
    poller = Poller(Registry.begin(log_fd=2))
    yield poller
    poller.close()


def test_an_outbox_holds_one_message_a_kind_and_sends_the_newest(pair: tuple[socket.socket, socket.socket]):
    outbox = Outbox()
    assert outbox.put("drain", {"deadline_s": 25})
    assert outbox.put("wake", {})
    assert not outbox.put("drain", {"deadline_s": 2})
    outbox.flush(pair[0])
    assert pair[1].recv(1000) == b'{"deadline_s":2}\n{}\n'
    assert outbox.is_empty


def test_a_peer_that_does_not_read_costs_one_message_a_kind_and_no_wait(pair: tuple[socket.socket, socket.socket]):
    wire, reader = Wire(pair[0]), Wire(pair[1])
    for number in range(5000):
        wire.outbox.put("beat", {"number": number, "text": "x" * 1000})
        wire.flush()
    assert not wire.outbox.is_empty
    numbers: list[int] = []
    while not wire.outbox.is_empty or numbers[-1:] != [4999]:
        numbers += [message["number"] for message in reader.read()]
        wire.flush()
    assert numbers == sorted(set(numbers))
    assert reader.bad == 0


def test_a_peer_that_is_gone_takes_everything(pair: tuple[socket.socket, socket.socket]):
    wire = Wire(pair[0])
    pair[1].close()
    wire.outbox.put("wake", {})
    wire.flush()
    assert wire.outbox.is_empty
    assert wire.read() == []
    assert wire.ended


def test_one_read_takes_a_bounded_share_of_a_flood(pair: tuple[socket.socket, socket.socket]):
    pair[1].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    pair[1].setblocking(False)
    line = encode({"type": "beat", "text": "x" * 900})
    sent = 0
    while sent < 150:
        pair[1].send(line)
        sent += 1
    assert 1 <= len(Wire(pair[0]).read()) <= TURN_BYTES_OF_A_CHILD // len(line) + 1


def test_a_line_over_the_limit_ends_the_wire(pair: tuple[socket.socket, socket.socket]):
    wire = Wire(pair[0])
    pair[1].setblocking(False)
    for _ in range(5):
        pair[1].send(b"x" * TURN_BYTES_OF_A_CHILD)
        wire.read()
    assert wire.ended
    assert wire.bad == 1


def test_a_source_is_written_to_only_while_it_is_wanted(poller: Poller, pair: tuple[socket.socket, socket.socket]):
    acted: list[int] = []
    source = poller.add(pair[0].fileno(), "a", Priority.CHILD, lambda: acted.append(1), pair[0].close)
    assert poller.wait(0) == []
    poller.write_too(source, True)
    assert poller.wait(0) == [source]
    poller.write_too(source, False)
    assert poller.wait(0) == []
    poller.remove(source)
    poller.remove(source)


def test_ends_come_before_messages_and_messages_before_people(poller: Poller):
    pairs = [socket.socketpair() for _ in Priority]
    for priority, (ours, theirs) in zip(reversed(Priority), pairs, strict=True):
        poller.add(ours.fileno(), "a", priority, lambda: None, ours.close)
        theirs.send(b"x")
    assert [source.priority for source in poller.wait(0)] == list(Priority)
    for ours, theirs in pairs:
        ours.close()
        theirs.close()


def test_what_nobody_declared_is_strange():
    registry = Registry.begin(log_fd=2)
    reader, writer = os.pipe()
    registry.own(reader, "declared", close=None)
    registry.check()
    assert registry.strange_fds == 1
    registry.own(writer, "declared too", close=None)
    registry.check()
    assert registry.strange_fds == 0
    os.close(reader)
    os.close(writer)


def test_the_second_taker_of_the_lock_is_told_the_firsts_pid(tmp_path: Path):
    path = tmp_path / "run" / "pfsup.lock"
    fd = lock.acquire(path)
    with pytest.raises(AlreadyRunning, match=f"pid {os.getpid()} holds"):
        lock.acquire(path)
    os.close(fd)
    os.close(lock.acquire(path))
    assert lock.holder(path) is None
    assert lock.holder(tmp_path / "nothing") is None


def test_a_runtime_dir_that_cannot_be_used_is_a_configuration_error(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"supervisor\.runtime_dir: cannot use"):
        lock.acquire(tmp_path / "file" / "pfsup.lock")


def test_a_pid_file_that_cannot_be_written_is_no_fault(tmp_path: Path):
    lock.write_pid(tmp_path / "nowhere" / "pfsup.pid")


def test_signals_are_counted_and_wake_the_wait():
    before = signal.getsignal(signal.SIGUSR1)
    with Signals() as signals:
        os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGUSR1)
        assert os.read(signals.reader, 1) == bytes([signal.SIGUSR1])
        taken = signals.take()
        assert taken[signal.SIGUSR1] >= 1
        assert taken[signal.SIGTERM] == 0
        assert signals.take().total() == 0
    assert signal.getsignal(signal.SIGUSR1) == before


def test_ten_thousand_signals_fill_the_pipe_and_lose_nothing():
    with Signals() as signals:
        for _ in range(70_000):
            signal.raise_signal(signal.SIGHUP)
        assert signals.take()[signal.SIGHUP] == 70_000


def test_no_terminal_was_lost_by_a_process_that_had_none():
    assert not lost_terminal(had_one=False)


@pytest.mark.parametrize("usec", ["", "0", "soon"])
def test_without_a_watchdog_period_nothing_is_ever_due(usec: str):
    assert Notify({"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": usec}).watchdog_s == float("inf")


def test_a_watchdog_meant_for_another_process_is_not_fed():
    assert Notify({"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "1000", "WATCHDOG_PID": "1"}).watchdog_s == float("inf")


def test_a_manager_that_does_not_listen_is_no_fault():
    Notify({"NOTIFY_SOCKET": "@nobody listens"}).send("READY=1")


def test_a_preload_of_what_is_not_there_names_it():
    with pytest.raises(ConfigError, match="cannot import no_such_module_at_all: ModuleNotFoundError"):
        preload((), ["no_such_module_at_all", "json"])


class Desk:
    """A control socket with one thing to say, and a loop that a test turns by hand."""

    def __init__(self, path: Path, poller: Poller) -> None:
        self.poller = poller
        self.now = 1000.0
        self.control = Control(path, poller, self.answer)
        self.control.open()
        self.path = path

    def answer(self, request: dict[str, Any]) -> dict[str, Any] | None:
        match request.get("verb"):
            case "wait":
                return None
            case "raise":
                raise RuntimeError("a fault")
            case "much":
                return {"ok": True, "text": "x" * (MAX_REPLY_BYTES // 2)}
            case "too much":
                return {"ok": True, "text": "x" * MAX_REPLY_BYTES}
            case _:
                return {"ok": True}

    def turn(self) -> None:
        self.control.tick(self.now)
        for source in self.poller.wait(0):
            if source.is_open:
                source.act()

    def client(self) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(os.fspath(self.path))
        sock.setblocking(False)
        self.turn()
        return sock


@pytest.fixture
def desk(tmp_path: Path, poller: Poller) -> Generator[Desk]:
    desk = Desk(tmp_path / "s.sock", poller)
    yield desk
    desk.control.say_goodbye({"ok": True})
    desk.control.close()


def test_a_client_that_is_idle_for_30_seconds_is_let_go(desk: Desk):
    with desk.client():
        assert desk.control.next_due() == desk.now + IDLE_S
        desk.now += IDLE_S
        desk.turn()
        assert desk.control.clients == 0
        assert desk.control.counts.evicted == 1


def test_a_client_that_waits_for_the_end_may_wait_and_is_told(desk: Desk):
    with desk.client() as sock:
        sock.send(encode({"verb": "wait"}))
        desk.turn()
        desk.now += 10 * IDLE_S
        desk.turn()
        assert desk.control.next_due() == float("inf")
        desk.control.say_goodbye({"ok": True, "forced": []})
        assert sock.recv(1000) == b'{"v":1,"ok":true,"forced":[]}\n'


def test_the_longest_silent_client_makes_room_and_one_that_waits_does_not(desk: Desk):
    with _many(desk, MAX_CLIENTS) as socks:
        socks[0].send(encode({"verb": "wait"}))
        desk.turn()
        desk.now += 1
        with desk.client():
            assert desk.control.clients == MAX_CLIENTS
            assert socks[1].recv(10) == b""
            with pytest.raises(BlockingIOError):
                socks[0].recv(10)


def test_a_fault_in_an_answer_costs_one_request(desk: Desk):
    with desk.client() as sock:
        sock.send(encode({"verb": "raise"}))
        desk.turn()
        assert b"a fault of pfsup" in sock.recv(1000)
        sock.send(encode({"verb": "status"}))
        desk.turn()
        assert sock.recv(1000) == b'{"v":1,"ok":true}\n'


def test_an_answer_that_is_too_long_is_an_error_that_says_so(desk: Desk):
    with desk.client() as sock:
        sock.send(encode({"verb": "too much"}))
        desk.turn()
        assert b"the limit is 1048576" in sock.recv(1000)


def test_a_client_that_asks_and_does_not_read_is_cut_off_at_two_megabytes(desk: Desk):
    with desk.client() as sock:
        for _ in range(6):
            if desk.control.clients:
                sock.send(encode({"verb": "much"}))
                desk.turn()
        assert desk.control.clients == 0


def test_a_slow_reader_gets_all_of_its_answer(desk: Desk):
    with desk.client() as sock:
        for _ in range(3):
            sock.send(encode({"verb": "much"}))
            desk.turn()
        got = b""
        while got.count(b"\n") < 3:
            got += sock.recv(10_000)
            desk.turn()
        assert desk.control.clients == 1


def test_a_socket_file_that_someone_removed_comes_back(desk: Desk):
    desk.path.unlink()
    desk.control.check_path()
    with desk.client():
        assert desk.control.clients == 1


def test_a_client_that_floods_is_answered_a_little_in_each_turn(desk: Desk):
    request = encode({"verb": "x"})
    with desk.client() as sock:
        sock.send(request * 500)
        desk.turn()
        assert 1 <= sock.recv(1 << 16).count(b"\n") <= TURN_BYTES // len(request) + 1


def test_without_a_free_descriptor_a_caller_is_let_in_and_out_instead_of_waking_the_loop_for_ever(desk: Desk):
    callers = [socket.socket(socket.AF_UNIX) for _ in range(2)]
    with callers[0], callers[1], _no_descriptor_left():
        for sock in callers:
            sock.connect(os.fspath(desk.path))
            desk.turn()
        assert desk.poller.wait(0) == []
        assert [sock.recv(10) for sock in callers] == [b"", b""]
    assert desk.control.counts.evicted == 2
    with desk.client():
        assert desk.control.clients == 1


def test_without_a_free_descriptor_the_comparison_with_the_kernel_waits(caplog: pytest.LogCaptureFixture):
    with _no_descriptor_left():
        Registry(frozenset()).check()
    assert "cannot compare" in caplog.text


def test_a_socket_that_cannot_come_back_ends_nothing(desk: Desk, caplog: pytest.LogCaptureFixture):
    desk.path.unlink()
    aside = desk.path.parent.rename(desk.path.parent.with_name("aside"))
    desk.path.parent.touch()
    desk.control.check_path()
    assert "cannot create the control socket anew" in caplog.text
    desk.path.parent.unlink()
    aside.rename(desk.path.parent)
    desk.control.check_path()
    with desk.client():
        assert desk.control.clients == 1


def test_a_socket_in_a_directory_that_cannot_be_is_a_configuration_error(tmp_path: Path, poller: Poller):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"supervisor\.runtime_dir: cannot create"):
        Control(tmp_path / "file" / "s.sock", poller, lambda _: {}).open()


def test_a_lock_of_a_childs_name_is_seen_by_its_holder(tmp_path: Path):
    with (tmp_path / "a.child").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert lock.holder(tmp_path / "a.child") == os.getpid()


@contextmanager
def _no_descriptor_left() -> Generator[None]:
    """The limit is what is open now: the lowest free number is the first that is refused."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    first_free = os.open(os.devnull, os.O_RDONLY)
    os.close(first_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (first_free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextmanager
def _many(desk: Desk, count: int) -> Generator[list[socket.socket]]:
    socks = [desk.client() for _ in range(count)]
    yield socks
    for sock in socks:
        sock.close()
