"""Programming problems out of the rows of a benchmark or of one's own data: the question, and how it is tested.

The columns are those of the published sets (names below), or one's own with `tests` in one of three forms: a list of
`{input, output}`; the same with an `entry_point`, then inputs and outputs are JSON; test code, as one text with
`def check(candidate)` or as a list of `assert` statements.
"""

from __future__ import annotations

import ast
import base64
import builtins
import io
import json
import pickle
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from marft.environments.evalplus import with_asserts
from marft.grading.code_runner import CallTests, CodeTests, StdioTests, Tests
from marft.types import MarftError

Format = Literal["humaneval", "humanevalplus", "mbpp", "livecodebench", "deepcoder", "codeforces", "own"]

STDIO = "Write a Python program that reads standard input and prints the answer."
STARTER = "Complete this code:"
FINISH = "Answer with the whole program in one ```python block."


@dataclass(frozen=True)
class Source:
    """Where a benchmark stands on the hub.

    Without a split to train on it is for evaluation only; without a held-out one, a share of the other is held out.
    """

    hub: str
    subset: str | None
    train: str | None
    heldout: str | None


SOURCES: Mapping[str, Source] = {
    "humaneval": Source("openai/openai_humaneval", None, None, "test"),
    "humanevalplus": Source("evalplus/humanevalplus", None, None, "test"),
    "mbpp": Source("google-research-datasets/mbpp", "full", "train", "test"),
    "livecodebench": Source("lighteval/code_generation_lite", "release_v6", None, "test"),
    "deepcoder": Source("agentica-org/DeepCoder-Preview-Dataset", "primeintellect", "train", None),
    "codeforces": Source("open-r1/codeforces", "verifiable", "train", "test"),
}


@dataclass(frozen=True)
class Columns:
    """What the columns of one's own data are called; `entry_point` and `start` may be missing from a row."""

    question: str = "question"
    tests: str = "tests"
    entry_point: str = "entry_point"
    start: str = "start"


@dataclass(frozen=True)
class Problem:
    """One problem: what a team reads, its tests, and code that every program is put behind.

    `start`: the beginning of a program, up to the header of the function `entry` (HumanEval); a reply may be only its
    body, and what stands before the header belongs to every program.
    """

    question: str
    tests: Tests
    start: str = ""
    entry: str = ""


class Unusable(Exception):
    """A row that cannot become a problem: the reason."""


class Ungradable(Unusable):
    """A sound row whose answers no comparison can grade (a checker, interaction, files)."""


def read_problem(form: Format, row: Mapping[str, Any], place: str, columns: Columns) -> Problem | None:
    """The problem in a row, None when only a checker could grade it; raises `MarftError` naming the row and column."""
    try:
        return _READERS[form](row) if form != "own" else _own(row, columns)
    except Ungradable:
        return None
    except Unusable as error:
        raise MarftError(f"{place}: {error}") from None


def _humaneval(row: Mapping[str, Any]) -> Problem:
    prompt, test, entry = (_text(row, column) for column in ("prompt", "test", "entry_point"))
    _parsed(test, "test")
    question = f"Complete this function. {FINISH}\n\n```python\n{prompt.rstrip()}\n```"
    return Problem(question, CodeTests((entry,), test, _parsed(prompt, "prompt"), check=True), prompt, entry)


def _humanevalplus(row: Mapping[str, Any]) -> Problem:
    """HumanEval's columns, with many more tests."""
    return _humaneval({**row, "test": with_asserts(_parsed(_text(row, "test"), "test"))})


def _mbpp(row: Mapping[str, Any]) -> Problem:
    asked = _text(row, "text" if "text" in row else "prompt")
    asserts = _parsed("\n".join(_list(row, "test_list", str)), "test_list")
    setup = _parsed("\n".join(row.get("test_imports") or ()) or row.get("test_setup_code") or "", "test_setup_code")
    reference = _parsed(_text(row, "code"), "code")
    names = _wanted(asserts, setup, reference)
    if not names:
        raise Unusable("no test in 'test_list' calls a function of 'code'")
    headers = ", ".join(f"`{header}`" for header in _headers(reference, names))
    return Problem(f"{asked.strip()}\n\nDefine {headers}. {FINISH}", CodeTests(names, asserts, setup))


def _livecodebench(row: Mapping[str, Any]) -> Problem:
    tests = [*_json(row, "public_test_cases"), *_hidden(_text(row, "private_test_cases"))]
    entry = (_json(row, "metadata") if row.get("metadata") else {}).get("func_name")
    return _cases(_text(row, "question_content"), tests, entry, row.get("starter_code") or "")


def _deepcoder(row: Mapping[str, Any]) -> Problem:
    """Its parts are written in three ways; where a function is called, the result stands in a list of one."""
    tests = _json(row, "tests")
    entry = None
    if isinstance(tests, Mapping):
        entry = tests.get("fn_name")
        pairs = zip(tests.get("inputs", ()), tests.get("outputs", ()), strict=False)
        tests = [{"input": given, "output": expected} for given, expected in pairs]
    if tests and isinstance(tests[0], Mapping):
        metadata = tests[0].get("metadata") or {}
        entry = entry or tests[0].get("fn_name") or metadata.get("func_name")
    if entry and isinstance(tests, list):
        tests = [{**each, "output": _only(each.get("output"))} for each in tests if isinstance(each, Mapping)]
    return _cases(_text(row, "problem"), tests, entry, row.get("starter_code") or "")


def _codeforces(row: Mapping[str, Any]) -> Problem:
    if row.get("generated_checker") or row.get("interaction_format") or row.get("input_mode", "stdio") != "stdio":
        raise Ungradable("needs a checker, interaction or files")
    parts = [_text(row, "description")]
    for title, column in (("Input", "input_format"), ("Output", "output_format"), ("Note", "note")):
        parts += [f"{title}: {row[column]}"] if row.get(column) else []
    examples = list(row.get("examples") or ())
    parts += [f"Example input:\n{each['input']}\nExample output:\n{each['output']}" for each in examples]
    tests = [*examples, *(each for each in row.get("official_tests") or () if each not in examples)]
    if not tests:
        raise Ungradable("has no tests")
    return _cases("\n\n".join(parts), tests, None, "")


def _own(row: Mapping[str, Any], columns: Columns) -> Problem:
    asked, entry, start = _text(row, columns.question), row.get(columns.entry_point), row.get(columns.start) or ""
    tests = row.get(columns.tests)
    if isinstance(tests, str) and entry:
        setup = _parsed(start, columns.start) if start else ""
        return Problem(asked, CodeTests((entry,), _parsed(tests, columns.tests), setup, check=True), start, entry)
    if isinstance(tests, list) and tests and all(isinstance(each, str) for each in tests):
        code = CodeTests((), _parsed("\n".join(tests), columns.tests))
        if not code.texts:
            raise Unusable(f"the column '{columns.tests}' holds no `assert`")
        names = (entry,) if entry else _wanted(code.test, "", "")
        return Problem(asked, replace(code, names=names), start, entry or "")
    if columns.tests not in row:
        raise Unusable(f"has no column '{columns.tests}'; its columns are: {', '.join(map(str, row))}")
    return _cases(asked, tests, entry, start, told=False)


_READERS: Mapping[str, Callable[[Mapping[str, Any]], Problem]] = {
    "humaneval": _humaneval,
    "humanevalplus": _humanevalplus,
    "mbpp": _mbpp,
    "livecodebench": _livecodebench,
    "deepcoder": _deepcoder,
    "codeforces": _codeforces,
}


def _cases(asked: str, tests: Any, entry: str | None, starter: str, told: bool = True) -> Problem:
    """A problem tested by pairs of input and output: text, or JSON where there is a function to call."""
    sound = isinstance(tests, list) and all(
        isinstance(each, Mapping) and {"input", "output"} <= {*each} for each in tests
    )
    if not sound or not tests:
        raise Unusable("the tests must be one or more mappings with 'input' and 'output'")
    how = (f"{STARTER}\n\n```python\n{starter.rstrip()}\n```" if starter else f"Define `{entry}`.") if entry else STDIO
    question = f"{asked.strip()}\n\n{how} {FINISH}" if told else asked
    if entry:
        calls = tuple((_arguments(each["input"]), _result(each["output"])) for each in tests)
        return Problem(question, CallTests(entry, calls))
    return Problem(question, StdioTests(tuple((_lines(each["input"]), _lines(each["output"])) for each in tests)))


def _arguments(given: Any) -> list[Any]:
    """A list, or JSON texts one a line (LiveCodeBench)."""
    if isinstance(given, str):
        try:
            return [json.loads(line) for line in given.split("\n") if line.strip()]
        except json.JSONDecodeError as error:
            raise Unusable(f"an input is no line of JSON for each argument: {error}") from None
    if not isinstance(given, list):
        raise Unusable(f"an input must be a list of arguments or JSON text; one is {given!r:.60}")
    return given


def _only(output: Any) -> Any:
    return output[0] if isinstance(output, list) and len(output) == 1 else output


def _result(expected: Any) -> Any:
    """JSON as text, or the value itself."""
    if isinstance(expected, str):
        try:
            return json.loads(expected)
        except json.JSONDecodeError as error:
            raise Unusable(f"an output is not JSON: {error}") from None
    return expected


def _lines(text: Any) -> str:
    return "\n".join(map(str, text)) if isinstance(text, list) else str(text)


def _hidden(content: str) -> list[Any]:
    """LiveCodeBench's private tests: JSON, or JSON in a pickled text, compressed, in base64."""
    try:
        if not content.lstrip().startswith("["):
            content = _OnlyText(io.BytesIO(zlib.decompress(base64.b64decode(content)))).load()
        found = json.loads(content)
    except (ValueError, TypeError, EOFError, zlib.error, pickle.UnpicklingError) as error:
        raise Unusable(f"the column 'private_test_cases' cannot be read: {error}") from None
    return found if isinstance(found, list) else []


class _OnlyText(pickle.Unpickler):
    """Data must not run code: a pickle that names any class is refused."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it is more than a text: {module}.{name}")


def _wanted(asserts: str, setup: str, reference: str) -> tuple[str, ...]:
    """The names that tests need of a program: all that nobody else defines, or that the reference program does."""
    tree = ast.parse(f"{setup}\n{asserts}")
    defined = {node.name for node in ast.walk(ast.parse(reference)) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    bound = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    bound |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            bound.add(node.name)
        if isinstance(node, ast.Import | ast.ImportFrom):
            bound |= {(each.asname or each.name).partition(".")[0] for each in node.names}
    used = dict.fromkeys(node.id for node in ast.walk(tree) if isinstance(node, ast.Name))
    return tuple(
        name for name in used if name not in bound and (name in defined or (not defined and name not in vars(builtins)))
    )


def _headers(reference: str, names: Sequence[str]) -> list[str]:
    """`name(arguments)` of the functions, `class name` of the classes, as the reference program defines them."""
    found = {}
    for node in ast.walk(ast.parse(reference)):
        if isinstance(node, ast.FunctionDef):
            found[node.name] = f"{node.name}({ast.unparse(node.args)})"
        elif isinstance(node, ast.ClassDef):
            found[node.name] = f"class {node.name}"
    return [found[name] for name in names]


def _text(row: Mapping[str, Any], column: str) -> str:
    if column not in row:
        raise Unusable(f"has no column '{column}'; its columns are: {', '.join(map(str, row))}")
    if not isinstance(row[column], str) or not row[column].strip():
        raise Unusable(f"the column '{column}' must hold a text; it holds {row[column]!r:.60}")
    return str(row[column])


def _list(row: Mapping[str, Any], column: str, kind: type) -> list[Any]:
    found = row.get(column)
    if not isinstance(found, list) or not found or not all(isinstance(each, kind) for each in found):
        raise Unusable(f"the column '{column}' must hold a list of {kind.__name__}; it holds {found!r:.60}")
    return found


def _json(row: Mapping[str, Any], column: str) -> Any:
    """A value that may stand there as JSON text."""
    if column not in row:
        raise Unusable(f"has no column '{column}'; its columns are: {', '.join(map(str, row))}")
    if not isinstance(row[column], str):
        return row[column]
    try:
        return json.loads(row[column])
    except json.JSONDecodeError as error:
        raise Unusable(f"the column '{column}' is not JSON: {error}") from None


def _parsed(source: str, column: str) -> str:
    """The source, once it is known to be Python."""
    try:
        ast.parse(source)
    except SyntaxError as error:
        raise Unusable(f"the column '{column}' is not Python: {error}") from None
    return source


_FENCE = re.compile(r"^[ \t]*```[ \t]*(\w*)[^\n]*\n(.*?)(?:^[ \t]*```[ \t]*$|\Z)", re.DOTALL | re.MULTILINE)
_PYTHON = ("python", "py", "python3")


def read_program(reply: str, problem: Problem) -> str:
    """The program in a reply, joined to the problem's start; empty when the reply holds none.

    The last block fenced as Python counts, else the last fenced block, else all of the reply. With a `start`: a program
    that defines the function is put behind what stands before its header, anything else is taken for its body.
    """
    blocks: list[tuple[str, str]] = _FENCE.findall(reply)
    python = [text for language, text in blocks if language.lower() in _PYTHON]
    found = python[-1] if python else blocks[-1][1] if blocks else reply
    if not found.strip():
        return ""
    if not problem.entry or not problem.start:
        return found
    header = re.compile(rf"^[ \t]*(?:async[ \t]+)?def[ \t]+{re.escape(problem.entry)}\b", re.MULTILINE)
    if header.search(found):
        own = list(header.finditer(problem.start))
        return problem.start[: own[-1].start()] + found if own else f"{problem.start}\n{found}"
    lines = found.strip("\n").split("\n")
    body = lines if lines[0][:1] in (" ", "\t") else [f"    {line}" for line in lines]
    return problem.start.rstrip("\n") + "\n" + "\n".join(body) + "\n"
