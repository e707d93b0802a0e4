"""The untrusted side: load a program and call what the other side asks for. Runs inside a sandbox.

Nothing here is secret and nothing here decides: the program may change all of it, and still can only send values.
"""

from __future__ import annotations

import os
import sys
import types

TYPE_CHECKING = False  # loading `typing` takes a while
if TYPE_CHECKING:
    from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

from marft.grading import program_start, wire  # noqa: E402

MOST = 1 << 30


class Program:
    """A loaded program and the objects of its that the other side has numbers of."""

    def __init__(self) -> None:
        self.module = types.ModuleType("solution")
        self.objects: list[Any] = []

    def load(self, request: dict[str, Any]) -> None:
        """Run the program's own lines; as a module, so that `if __name__ == "__main__"` is passed over."""
        path = os.path.join(HERE, "program.py")
        with open(path, encoding="utf8", errors="surrogatepass") as file:
            source = file.read()
        sys.modules["solution"] = self.module
        exec(compile(source, path, "exec"), self.module.__dict__)

    def call(self, request: dict[str, Any]) -> Any:
        """Call a function of the program (also a method of its class `Solution`), or an object of its."""
        called = self._find(request["name"]) if "name" in request else self.objects[request["object"]]
        named = {key: wire.decode(value, self.fetch) for key, value in request["named"].items()}
        return called(*wire.decode(request["arguments"], self.fetch), **named)

    def get(self, request: dict[str, Any]) -> Any:
        """An attribute of an object."""
        return getattr(self.objects[request["object"]], request["name"])

    def set(self, request: dict[str, Any]) -> None:
        """Set an attribute of an object."""
        setattr(self.objects[request["object"]], request["name"], wire.decode(request["value"], self.fetch))

    def items(self, request: dict[str, Any]) -> list[Any]:
        """All that an object yields."""
        return list(self.objects[request["object"]])

    def keep(self, value: Any) -> Any:
        """Plain values of a numpy array or scalar, else a number for the object."""
        if type(value).__module__ == "numpy":
            return wire.encode(value.tolist(), self.keep)
        self.objects.append(value)
        return {"object": [len(self.objects) - 1, type(value).__name__]}

    def fetch(self, number: Any) -> Any:
        """The object that the other side has this number of."""
        return self.objects[number]

    def _find(self, name: str) -> Any:
        if not hasattr(self.module, name) and hasattr(getattr(self.module, "Solution", None), name):
            return getattr(self.module.Solution(), name)
        try:
            return getattr(self.module, name)
        except AttributeError:
            raise NameError(f"name {name!r} is not defined") from None


def serve() -> None:
    """Answer requests until the other side is gone."""
    program_start.quitters()
    program = Program()
    while True:
        try:
            request = wire.receive(MOST)
        except wire.Ended:
            return
        try:
            reply = {"value": wire.encode(getattr(program, request["do"])(request), program.keep)}
        except BaseException as error:  # a program that calls exit() while it is loaded has not ended its tests
            reply = {"error": [type(error).__name__, str(error)[:2000]]}
        wire.send(reply)


if __name__ == "__main__":
    serve()
