"""Plain values between two sandboxes: what a test hands to an untrusted program, and what comes back.

Runs inside sandboxes, so it uses the standard library alone. Never pickle: what arrives is built from plain types here,
so no method of the other side's can run. Other objects (an instance, a generator) stay where they are and travel as a
number. Numbers too long for JSON travel as hexadecimal, which takes linear time.
"""

from __future__ import annotations

import json
import numbers
import os

TYPE_CHECKING = False  # loading `typing` takes a while
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

CHANNEL = 3  # the file descriptor of the channel in a sandbox
LONG = 1 << 63


class Ended(BaseException):
    """The other side is gone, or what it sent cannot be read; no `except Exception` of a test may hide it."""


class Unsupported(BaseException):
    """A value that cannot travel."""


def send(message: Any) -> None:
    """Write one message: its length in four bytes, then JSON."""
    content = json.dumps(message).encode()
    rest = memoryview(len(content).to_bytes(4, "big") + content)
    try:
        while rest:
            rest = rest[os.write(CHANNEL, rest) :]
    except OSError as error:
        raise Ended("the program has ended") from error


def receive(most: int) -> Any:
    """The next message; raises `Ended` when there is none, or when it is longer than `most` bytes or broken."""
    length = int.from_bytes(_read(4), "big")
    if length > most:
        raise Ended(f"a result of more than {most} bytes")
    try:
        return json.loads(_read(length))
    except (ValueError, RecursionError) as error:
        raise Ended("a result that cannot be read") from error


def encode(value: Any, keep: Callable[[Any], Any]) -> Any:
    """`value` for JSON; `keep` turns an object that is no plain value into JSON, or raises."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, numbers.Integral):
        whole = int(value)
        return whole if -LONG < whole < LONG else {"int": hex(whole)}
    if isinstance(value, float):
        return float(value)
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if isinstance(value, bytes | bytearray):
        return {type(value).__name__: value.hex()}
    if isinstance(value, list):
        return [encode(each, keep) for each in value]
    if isinstance(value, tuple):
        return {"tuple": [encode(each, keep) for each in value]}
    if isinstance(value, set | frozenset):
        kind = "frozenset" if isinstance(value, frozenset) else "set"
        return {kind: [encode(each, keep) for each in value]}
    if isinstance(value, dict):
        return {"dict": [[encode(key, keep), encode(each, keep)] for key, each in value.items()]}
    return keep(value)


def decode(content: Any, fetch: Callable[[Any], Any]) -> Any:
    """What `encode` was given; `fetch` finds what `keep` kept. Raises `Ended` when it is no such content."""
    try:
        return _decode(content, fetch)
    except (TypeError, ValueError, KeyError, RecursionError, AttributeError) as error:
        raise Ended("a result that cannot be read") from error


def _decode(content: Any, fetch: Callable[[Any], Any]) -> Any:
    if isinstance(content, list):
        return [_decode(each, fetch) for each in content]
    if not isinstance(content, dict):
        return content
    [(kind, inner)] = content.items()
    if kind == "object":
        return fetch(inner)
    if kind == "dict":
        return {_decode(key, fetch): _decode(value, fetch) for key, value in inner}
    if kind == "int":
        return int(inner, 16)
    if kind == "complex":
        return complex(*inner)
    if kind == "bytes":
        return bytes.fromhex(inner)
    if kind == "bytearray":
        return bytearray.fromhex(inner)
    return {"tuple": tuple, "set": set, "frozenset": frozenset}[kind](_decode(each, fetch) for each in inner)


def _read(count: int) -> bytes:
    read = bytearray()
    while len(read) < count:
        try:
            chunk = os.read(CHANNEL, min(count - len(read), 1 << 16))
        except OSError as error:
            raise Ended("the program has ended") from error
        if not chunk:
            raise Ended("the program has ended")
        read += chunk
    return bytes(read)
