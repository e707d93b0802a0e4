"""Signals: the first is a request, the second ends the process, and handlers come back as they were."""

import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from marft.run.interrupt import GracefulStop


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have started pytest with SIGINT ignored
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_first_signal_is_a_request(number, code):
    said = []
    with GracefulStop(said.append) as stop:
        assert (stop.requested, stop.exit_code) == (False, 0)
        os.kill(os.getpid(), number)
        assert (stop.requested, stop.exit_code) == (True, code)
    assert len(said) == 1
    assert "again" in said[0]
    assert (stop.requested, stop.exit_code) == (True, code)  # still known after leaving


@pytest.mark.parametrize(("number", "raised"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)])
def test_a_second_signal_stops_at_once(number, raised):
    with GracefulStop(lambda text: None) as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.35)
        with pytest.raises(raised) as caught:
            os.kill(os.getpid(), number)
        assert stop.exit_code == 143  # the first signal decides
    if raised is SystemExit:
        assert caught.value.code == 143


def test_the_same_signal_sent_to_process_and_group_counts_once():
    said = []
    with GracefulStop(said.append) as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.requested
    assert len(said) == 1


def test_previous_handlers_come_back_even_after_an_error():
    def mine(number, frame):
        raise AssertionError

    signal.signal(signal.SIGTERM, mine)

    def work():
        with GracefulStop():
            assert signal.getsignal(signal.SIGTERM) is not mine
            raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"):
        work()
    assert signal.getsignal(signal.SIGTERM) is mine
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_ignored_interrupt_is_heard_too():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with GracefulStop(lambda text: None) as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.requested
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_another_thread_leaves_the_handlers_alone():
    seen = {}

    def work():
        with GracefulStop() as stop:
            seen["handler"] = signal.getsignal(signal.SIGINT)
            seen["requested"] = stop.requested

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == {"handler": signal.default_int_handler, "requested": False}


def test_the_default_announcement_goes_to_stderr(capfd):
    with GracefulStop():
        os.kill(os.getpid(), signal.SIGINT)
    assert "Stopping after the current update" in capfd.readouterr().err
