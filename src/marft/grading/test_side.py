"""The trusted side: run a benchmark's test code against a program in another sandbox, and say how each test went.

Runs inside a sandbox of its own: test code comes with the data, may be wrong and may loop, but it is not the program's.
The function under test is a stand-in that sends its arguments away and gets plain values back, so that the program can
change no comparison, see no test and reach no verdict. Every `assert` statement is one test: it is rewritten to note
its outcome and go on.
"""

from __future__ import annotations

import ast
import builtins
import json
import math
import os
import reprlib
import sys

TYPE_CHECKING = False  # loading `typing` takes a while
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

from marft.grading import wire  # noqa: E402

NOTE = "__marft_test__"
TOLERANCE = 1e-6  # relative and absolute, where an expected number is a float
# What a program's exceptions may become here. Never one that ends a loop (StopIteration) or a process
RAISED: dict[str, type[Exception]] = {
    name: error
    for name, error in vars(builtins).items()
    if isinstance(error, type)
    and issubclass(error, Exception)
    and not issubclass(error, StopIteration | StopAsyncIteration | UnicodeError | Warning | BaseExceptionGroup)
}


class Object:
    """An object that lives in the program. Its comparisons and its truth are Python's own, never the program's."""

    __slots__ = ("_link", "_number", "_type")

    def __init__(self, link: Link, number: int, kind: str) -> None:
        object.__setattr__(self, "_link", link)
        object.__setattr__(self, "_number", number)
        object.__setattr__(self, "_type", kind)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._link.call({"object": self._number}, self._type, arguments, named)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._link.ask({"do": "get", "object": self._number, "name": name})

    def __setattr__(self, name: str, value: Any) -> None:
        self._link.ask({"do": "set", "object": self._number, "name": name, "value": wire.encode(value, keep)})

    def __iter__(self) -> Iterator[Any]:
        return iter(self._link.ask({"do": "items", "object": self._number}))

    def __repr__(self) -> str:
        return f"<{self._type}>"


class Link:
    """The way to the program; `calls` counts calls, and `last` describes the latest."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.calls = 0
        self.last = ""
        self.ended = ""  # why nothing can be asked any more

    def function(self, name: str) -> Any:
        """A stand-in for the program's function `name`."""

        def stand_in(*arguments: Any, **named: Any) -> Any:
            return self.call({"name": name}, name, arguments, named)

        stand_in.__name__ = name
        return stand_in

    def call(self, target: dict[str, Any], name: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Call it there; an exception there is raised here, as the nearest built-in one."""
        written = [wire.encode(each, keep) for each in arguments]
        request = {"do": "call", **target, "arguments": written}
        request["named"] = {key: wire.encode(value, keep) for key, value in named.items()}
        self.calls += 1
        shown = ", ".join([*map(short, arguments), *(f"{key}={short(value)}" for key, value in named.items())])
        self.last = f"{name}({shown}) did not return"
        try:
            value = self.ask(request)
        except Exception as error:
            self.last = f"{name}({shown}) raised {type(error).__name__}: {short(str(error))}"
            raise
        self.last = f"{name}({shown}) returned {short(value)}"
        return value

    def ask(self, request: dict[str, Any]) -> Any:
        """One question and its answer; after the first that fails to come, there is none."""
        if self.ended:
            raise wire.Ended(self.ended)
        try:
            wire.send(request)
            reply = wire.receive(self.most)
            if not isinstance(reply, dict):
                raise wire.Ended("a result that cannot be read")
            if "error" not in reply:
                return wire.decode(reply.get("value"), self._object)
            name, text = wire.decode(reply["error"], self._object)
        except (wire.Ended, MemoryError) as error:
            self.ended = str(error) or "a result that is too large"
            raise wire.Ended(self.ended) from None
        except (TypeError, ValueError):
            name, text = "Exception", "an error that cannot be read"
        raise RAISED.get(str(name), RuntimeError)(str(text))

    def _object(self, inner: Any) -> Object:
        return Object(self, int(inner[0]), str(inner[1])[:80])


def keep(value: Any) -> Any:
    """Objects of the program's go back as their number; a test's own objects cannot travel."""
    if isinstance(value, Object):
        return {"object": value._number}
    raise wire.Unsupported(f"a test hands the program a {type(value).__name__}, which cannot be sent to it")


class Notes:
    """What became of each test, told to whoever reads as soon as it is known: a test may be the last to end."""

    def __init__(self, out: int) -> None:
        self.out = out
        self.told: dict[int, str] = {}
        self.link: Link | None = None

    def tell(self, **content: Any) -> None:
        """One line of JSON."""
        rest = json.dumps(content).encode() + b"\n"
        while rest:
            rest = rest[os.write(self.out, rest) :]

    def note(self, site: int, outcome: str, got: str = "") -> None:
        """The outcome of a test that may run many times: what is worse than before is told."""
        if self.told.get(site) in (None, "begun", "passed") and self.told.get(site) != outcome:
            self.told[site] = outcome
            self.tell(site=site, outcome=outcome, got=got)


class Noted:
    """`with Noted(notes, site):` around one `assert`."""

    def __init__(self, notes: Notes, site: int) -> None:
        self.notes, self.site = notes, site

    def __enter__(self) -> None:
        if self.notes.link is not None:
            self.notes.link.last = ""
        if self.site not in self.notes.told:
            self.notes.note(self.site, "begun")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        got = self.notes.link.last if self.notes.link is not None else ""
        if error is None:
            self.notes.note(self.site, "passed")
        elif isinstance(error, Exception):
            failed = isinstance(error, AssertionError)
            self.notes.note(self.site, "failed" if failed else "error", got or f"{type(error).__name__}: {error}"[:500])
        return isinstance(error, Exception)


class Rewrite(ast.NodeTransformer):
    """Put every `assert` under `Noted`, numbered in the order of the text; `sources` are their texts."""

    def __init__(self) -> None:
        self.sources: list[str] = []

    def visit_Assert(self, node: ast.Assert) -> ast.With:
        self.sources.append(ast.unparse(node))
        noted = ast.Call(ast.Name(NOTE, ast.Load()), [ast.Constant(len(self.sources) - 1)], [])
        return ast.copy_location(ast.With([ast.withitem(noted)], [node]), node)


def main() -> None:
    """Read what to do, do it, and say how it went; the last line says whether the tests ran to their end."""
    out = os.dup(1)  # test code may print
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    notes = Notes(out)
    with open(os.path.join(HERE, "tests.json"), encoding="utf8") as file:
        given = json.load(file)
    link = notes.link = Link(given["most"])
    try:
        run(given, link, notes)
    except wire.Ended as error:
        notes.tell(done=False, why=str(error))
    except Exception as error:
        if not link.calls:
            notes.tell(broken=f"{type(error).__name__}: {error}")
        notes.tell(done=False, why=f"{type(error).__name__}: {error}"[:500])
    except wire.Unsupported as error:
        notes.tell(broken=str(error))
    else:
        notes.tell(done=not link.ended, why=link.ended)


def run(given: dict[str, Any], link: Link, notes: Notes) -> None:
    """Load the program, then run test code, or compare the results of calls."""
    if "cases" in given:
        notes.tell(tests=[f"{given['entry']}({', '.join(map(short, case[0]))})" for case in given["cases"]])
        load(link)
        for site, (arguments, expected) in enumerate(given["cases"]):
            with Noted(notes, site):
                assert same(link.function(given["entry"])(*arguments), expected)
        return
    rewrite = Rewrite()
    code = compile(ast.fix_missing_locations(rewrite.visit(ast.parse(given["test"]))), "<tests>", "exec")
    setup = compile(given["setup"], "<setup>", "exec")
    notes.tell(tests=rewrite.sources or ["check(candidate)"])
    stand_ins = {name: link.function(name) for name in given["names"]}
    space: dict[str, Any] = {"__name__": "tests", NOTE: lambda site: Noted(notes, site), **stand_ins}
    load(link)
    exec(setup, space)
    space.update(stand_ins)  # the prompt of HumanEval defines the function too, without a body
    exec(code, space)
    if given["check"]:
        with Noted(notes, 0) if not rewrite.sources else _Nothing():
            space["check"](stand_ins[given["names"][0]])


class _Nothing:
    def __enter__(self) -> None: ...

    def __exit__(self, *exception: object) -> None: ...


def load(link: Link) -> None:
    """Have the program loaded; what goes wrong there is the program's fault."""
    try:
        link.ask({"do": "load"})
    except Exception as error:
        raise wire.Ended(f"loading the program: {type(error).__name__}: {error}"[:500]) from None


def same(got: Any, expected: Any) -> bool:
    """Equal as JSON values: a tuple is a list, and where a float is expected, `TOLERANCE` holds."""
    if isinstance(expected, list):
        both = isinstance(got, list | tuple) and len(got) == len(expected)
        return both and all(same(*pair) for pair in zip(got, expected, strict=True))
    if isinstance(expected, dict):
        both = isinstance(got, dict) and {str(key) for key in got} == set(expected) and len(got) == len(expected)
        return both and all(same(value, expected[str(key)]) for key, value in got.items())
    if isinstance(expected, float) and isinstance(got, int | float):
        return math.isclose(got, expected, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    return bool(got == expected)


def short(value: Any) -> str:
    """A short text of a plain value."""
    try:
        return _SHORT.repr(value)
    except ValueError:  # a number of more digits than Python writes out
        return f"<{type(value).__name__}>"


_SHORT = reprlib.Repr()
_SHORT.maxlist = _SHORT.maxtuple = _SHORT.maxset = _SHORT.maxdict = 20
_SHORT.maxstring = _SHORT.maxother = 200
_SHORT.maxlong = 60


if __name__ == "__main__":
    main()
