"""code: formats of rows, the program in a reply, rewards, public tests and feedback, and every mistake in one sentence.

The rows are our own, in the columns of the published sets; the pickle of LiveCodeBench is made by Python's pickle.
"""

import asyncio
import base64
import gzip
import json
import pickle
import zlib

import pytest

from marft.environments.check import check_environment
from marft.environments.code import Code
from marft.environments.code_problems import Columns, Problem, read_problem, read_program
from marft.grading.bounded import GraderFailed
from marft.grading.code_runner import CallTests, CodeTests, StdioTests
from marft.grading.isolation import isolation
from marft.types import MarftError

SANDBOX = "limits-only" if isolation().missing else "auto"
PROMPT = 'import math\n\n\ndef helper(x):\n    return 2 * x\n\n\ndef add(a, b):\n    """Add a and b."""\n'
TEST = "def check(candidate):\n    assert candidate(1, 2) == 3\n    assert candidate(2, 2) == helper(2)\n"
HUMANEVAL = {"task_id": "Test/0", "prompt": PROMPT, "test": TEST, "entry_point": "add", "canonical_solution": ""}
MBPP = {
    "task_id": 2,
    "text": "Write a function to add two numbers.",
    "code": "def sum(a, b):\n  return a + b",
    "test_list": ["assert sum(1, 2) == 3", "assert sum(0, len('ab')) == 2"],
    "test_setup_code": "",
    "challenge_test_list": [],
}
CASES = [{"input": "1 2\n", "output": "3\n"}, {"input": "2 2\n", "output": "4\n"}]
OWN = [{"question": f"Add {n} to the sum of two numbers.", "tests": CASES} for n in range(4)]
SUM = "```python\nprint(sum(map(int, input().split())))\n```"
HALF = "```python\nprint(3)\n```"


def write(path, rows):
    text = "".join(json.dumps(row) + "\n" for row in rows)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text, encoding="utf8")
    return str(path)


def world(tmp_path, rows=OWN, **keys):
    return Code(path=write(tmp_path / "rows.jsonl", rows), sandbox=SANDBOX, heldout_share=0.5, **keys)


def play(environment, replies, task=None):
    async def turns():
        state = environment.reset(task or environment.task("train", 0), ("planner", "coder"), seed=0)
        outcomes = []
        for reply in replies:
            outcomes.append(await environment.step(state, {"planner": "a plan", "coder": reply}))
            state = outcomes[-1].state
        return outcomes

    return asyncio.run(turns())


def read(form, row, **columns):
    return read_problem(form, row, "here", Columns(**columns))


def test_humaneval_rows():
    problem = read("humaneval", HUMANEVAL)
    assert problem.tests == CodeTests(("add",), TEST, PROMPT, check=True)
    assert (problem.start, problem.entry) == (PROMPT, "add")
    assert PROMPT.strip() in problem.question


# As the set has it: one `assert` for exact equality, and numpy's for floats, so that no run reaches both
PLUS = """
import numpy as np


def is_floats(x) -> bool:
    if isinstance(x, (list, tuple)):
        return all(isinstance(i, float) for i in x)
    return isinstance(x, float) or (isinstance(x, np.ndarray) and x.dtype == np.float64)


def assertion(out, exp, atol):
    if atol == 0 and is_floats(exp):
        atol = 1e-6
    if out != exp and atol != 0:
        assert np.allclose(out, exp, rtol=1e-07, atol=atol)
    else:
        assert out == exp


def check(candidate):
    inputs = [[1, 2], [2, 2], [0.1, 0.2], [[0.1], [0.2]]]
    results = [3, 4, 0.3, [0.1, 0.2]]
    for i, (inp, exp) in enumerate(zip(inputs, results)):
        assertion(candidate(*inp), exp, 0)
"""


@pytest.mark.parametrize(
    ("body", "right"),
    [
        ("return a + b", True),
        ("return (a + b) if isinstance(a, list) else a + b + 1e-7 * isinstance(a, float)", True),  # within 1e-6
        ("return a + b if isinstance(a, list) else a + b + 1e-7", False),  # integers are compared exactly
        ("return a + b + (1e-5 if isinstance(a, float) else type(a)())", False),
        ("return 3", False),
        ("return tuple(a + b) if isinstance(a, list) else a + b", True),  # numpy's comparison knows no lists either
        ("return [0.1] if isinstance(a, list) else a + b", False),
    ],
)
def test_humaneval_plus_counts_every_comparison(tmp_path, body, right):
    row = {**HUMANEVAL, "test": PLUS}
    environment = world(tmp_path, [row, {**row, "prompt": "# 2\n" + PROMPT}], benchmark="humanevalplus")
    (outcome,) = play(environment, [f"```python\ndef add(a, b):\n    {body}\n```"])
    assert outcome.metrics["success"] == right


def test_humaneval_plus_leaves_tests_of_another_form_alone():
    assert read("humanevalplus", HUMANEVAL) == read("humaneval", HUMANEVAL)
    own = PLUS.replace("assertion(candidate(*inp), exp, 0)", "assert np.isclose(candidate(*inp), exp)")
    assert "import numpy as np" in read("humanevalplus", {**HUMANEVAL, "test": own}).tests.test


def test_mbpp_rows_take_the_names_that_tests_need_of_the_program():
    problem = read("mbpp", MBPP)
    assert problem.tests == CodeTests(("sum",), "\n".join(MBPP["test_list"]))  # `sum` is redefined, `len` is not
    assert problem.question.startswith("Write a function to add two numbers.\n\nDefine `sum(a, b)`.")
    sanitized = {**MBPP, "prompt": MBPP["text"], "test_imports": ["import math"]}
    del sanitized["text"]
    assert read("mbpp", sanitized).tests.setup == "import math"
    with_class = {
        **MBPP,
        "code": "class Pair:\n  def __init__(self, a): self.a = a\ndef f(pairs): return len(pairs)",
        "test_list": ["assert f([Pair(5), Pair(6)]) == 2"],
    }
    assert read("mbpp", with_class).tests.names == ("f", "Pair")
    assert "Define `f(pairs)`, `class Pair`." in read("mbpp", with_class).question


@pytest.mark.parametrize("packed", [True, False])
def test_livecodebench_rows(packed):
    hidden = json.dumps([{"input": "5 5\n", "output": "10\n", "testtype": "stdin"}])
    if packed:
        hidden = base64.b64encode(zlib.compress(pickle.dumps(hidden))).decode()
    row = {
        "question_content": "Add.",
        "starter_code": "",
        "public_test_cases": json.dumps([{"input": "1 2\n", "output": "3\n", "testtype": "stdin"}]),
        "private_test_cases": hidden,
        "metadata": "{}",
    }
    assert read("livecodebench", row).tests == StdioTests((("1 2\n", "3\n"), ("5 5\n", "10\n")))
    starter = "class Solution:\n    def add(self, a: int, b: int) -> int:\n"
    call = {"input": '1\n"x"', "output": "[3]", "testtype": "functional"}
    row.update(starter_code=starter, metadata='{"func_name": "add"}', public_test_cases=[call], private_test_cases="[]")
    problem = read("livecodebench", row)
    assert problem.tests == CallTests("add", (([1, "x"], [3]),))
    assert starter.strip() in problem.question


def test_a_pickle_that_is_more_than_a_text_is_refused():
    class Evil:
        def __reduce__(self):
            return print, ("gotcha",)

    packed = base64.b64encode(zlib.compress(pickle.dumps(Evil()))).decode()
    row = {"question_content": "x", "public_test_cases": "[]", "private_test_cases": packed}
    with pytest.raises(
        MarftError, match="here: the column 'private_test_cases' cannot be read: it is more than a text"
    ):
        read("livecodebench", row)


@pytest.mark.parametrize(
    ("tests", "expected"),
    [
        ([{"type": "stdin_stdout", "input": "1", "output": "2"}], StdioTests((("1", "2"),))),
        ({"inputs": ["1", "2"], "outputs": ["2", "3"]}, StdioTests((("1", "2"), ("2", "3")))),
        ({"inputs": [["1", "2"]], "outputs": [["3"]]}, StdioTests((("1\n2", "3"),))),
        (
            [{"type": "function_call", "fn_name": "f", "input": [1, [2]], "output": [3]}],
            CallTests("f", (([1, [2]], 3),)),
        ),
        ({"fn_name": "f", "inputs": [[1]], "outputs": [[[3]]]}, CallTests("f", (([1], [3]),))),
        (
            [{"testtype": "functional", "input": "1\n2", "output": "3", "metadata": {"func_name": "f"}}],
            CallTests("f", (([1, 2], 3),)),
        ),
    ],
)
def test_deepcoder_rows(tests, expected):
    assert read("deepcoder", {"problem": "x", "tests": json.dumps(tests)}).tests == expected


def test_codeforces_rows_and_what_only_a_checker_can_grade():
    row = {
        "description": "Add.",
        "input_format": "Two numbers.",
        "examples": CASES[:1],
        "official_tests": CASES,
        "input_mode": "stdio",
    }
    problem = read("codeforces", row)
    assert problem.tests == StdioTests((("1 2\n", "3\n"), ("2 2\n", "4\n")))  # an example is no test of its own
    assert "Example input:\n1 2" in problem.question
    for changed in ({"generated_checker": "print(1)"}, {"interaction_format": "x"}, {"input_mode": "file"}):
        assert read("codeforces", {**row, **changed}) is None
    assert read("codeforces", {**row, "examples": [], "official_tests": []}) is None


def test_one_s_own_rows_in_one_s_own_columns():
    assert read("own", {"q": "?", "t": CASES}, question="q", tests="t").tests == StdioTests(
        (("1 2\n", "3\n"), ("2 2\n", "4\n"))
    )
    calls = {"question": "?", "tests": [{"input": [1], "output": [2]}], "entry_point": "f"}
    assert read("own", calls).tests == CallTests("f", (([1], [2]),))
    asserts = {"question": "?", "tests": ["import math", "assert f(math.pi) == 3"]}
    assert read("own", asserts).tests == CodeTests(("f",), "import math\nassert f(math.pi) == 3")
    checked = {"question": "?", "tests": TEST, "entry_point": "add", "start": PROMPT}
    assert read("own", checked).tests == CodeTests(("add",), TEST, PROMPT, check=True)


FUNCTION = Problem("?", CodeTests(("add",), TEST, PROMPT, check=True), PROMPT, "add")
PLAIN = Problem("?", StdioTests((("", ""),)))
BEFORE = PROMPT[: PROMPT.index("def add")]


@pytest.mark.parametrize(
    ("problem", "reply", "program"),
    [
        (PLAIN, "print(1)", "print(1)"),
        (PLAIN, "A\n```python\nprint(1)\n```\nB\n```py\nprint(2)\n```\nC", "print(2)\n"),
        (PLAIN, "```python\nprint(1)\n```\nIt prints\n```\n1\n```", "print(1)\n"),
        (PLAIN, "```\nprint(1)\n```", "print(1)\n"),
        (PLAIN, "```python\nprint(1)", "print(1)"),  # cut off
        (PLAIN, "```python\nx = '''\n  ```inside\n'''\n```", "x = '''\n  ```inside\n'''\n"),
        (PLAIN, " \n", ""),
        (PLAIN, "```python\n\n```", ""),
        (FUNCTION, "    return a + b\n", PROMPT + "    return a + b\n"),
        (FUNCTION, "return a + b", PROMPT + "    return a + b\n"),
        (FUNCTION, "```python\nc = a + b\nreturn c\n```", PROMPT + "    c = a + b\n    return c\n"),
        (FUNCTION, "def add(a, b):\n    return a + b", BEFORE + "def add(a, b):\n    return a + b"),
        (FUNCTION, "def added(a, b):\n    return a", PROMPT + "    def added(a, b):\n        return a\n"),
        (FUNCTION, "", ""),
    ],
)
def test_the_program_in_a_reply(problem, reply, program):
    assert read_program(reply, problem) == program


def test_a_whole_program_and_a_body_pass_and_the_share_is_paid(tmp_path):
    environment = world(tmp_path, [HUMANEVAL, {**HUMANEVAL, "prompt": "# 2\n" + PROMPT}], benchmark="humaneval")
    for reply in ("    return a + b", "```python\n" + PROMPT + "    return a + b\n```"):
        [outcome] = play(environment, [reply])
        assert (outcome.rewards, outcome.terminated) == (1.0, True)
        assert outcome.metrics == {"success": 1.0, "share": 1.0, "answered": 1.0, "first_attempt": 1.0}
    [half] = play(environment, ["    return 3"])
    assert (half.rewards, half.metrics) == (0.5, {"success": 0.0, "share": 0.5, "answered": 1.0, "first_attempt": 0.0})
    [none] = play(environment, ["  "])
    assert (none.rewards, none.metrics["share"], none.metrics["answered"], none.answer) == (0.0, 0.0, 0.0, "")


def test_all_or_nothing_and_the_answer_that_votes(tmp_path):
    environment = world(tmp_path, reward="all")
    assert [play(environment, [reply])[0].rewards for reply in (SUM, HALF)] == [1.0, 0.0]
    [one], [two] = play(environment, ["```python\nprint(3) \n\n\n```"]), play(environment, ["print(3)"])
    assert one.answer == two.answer == "print(3)"


def test_public_tests_are_told_and_hidden_ones_never(tmp_path):
    environment = world(tmp_path, public_tests=1, show_public_tests=True, feedback="public-tests", attempts=3)
    task = environment.task("train", 0)
    assert task.prompt.endswith("Input:\n1 2\n\nOutput:\n3\n")
    wrong, right = play(environment, ["print(99)", HALF])
    news = environment.observe(wrong.state, "planner")
    assert news == ("The program passed 0 of 1 public tests.\n\nTest: 1 2\nExpected: 3\nGot: 99\nResult: failed")
    assert "2 2" not in news + task.prompt
    assert (wrong.rewards, wrong.terminated, wrong.metrics["public"]) == (0.0, False, 0.0)
    assert (right.rewards, right.terminated) == (0.5, True)  # passing the public ones ends it, the last attempt pays
    assert (right.metrics["public"], right.metrics["success"]) == (1.0, 0.0)
    assert environment.observe(play(environment, ["", HALF])[0].state, "coder") == "Your answer held no program."


def test_verdicts_and_the_world_without_them(tmp_path):
    environment = world(tmp_path, feedback="verdict", attempts=3)
    outcomes = play(environment, [HALF, HALF, SUM])
    assert [each.rewards for each in outcomes] == [0.5, 0.0, 0.5]
    assert [each.terminated for each in outcomes] == [False, False, True]
    assert environment.observe(outcomes[0].state, "coder") == "The last answer was wrong. Try again."
    blind = environment.without_verdict()
    assert blind.task("heldout", 0) is environment.task("heldout", 0)
    outcomes = play(blind, [SUM, HALF, SUM])
    assert [each.rewards for each in outcomes] == [0.0, 0.0, 1.0]
    assert [blind.observe(each.state, "coder") for each in outcomes] == ["", "", ""]
    assert environment.parameters.feedback == "verdict"
    silent = world(tmp_path)
    assert silent.without_verdict() is silent


def test_public_tests_of_functions_are_shown_as_python(tmp_path):
    rows = [{**MBPP, "text": f"{n}"} for n in range(2)]
    environment = world(tmp_path, rows, benchmark="mbpp", public_tests=1, show_public_tests=True)
    prompt = environment.task("train", 0).prompt
    assert prompt.endswith("It must pass:\n\n```python\nassert sum(1, 2) == 3\n```")
    calls = [{"question": f"{n}", "tests": [{"input": [1], "output": 2}], "entry_point": "f"} for n in range(2)]
    prompt = world(tmp_path, calls, public_tests=1, show_public_tests=True).task("train", 0).prompt
    assert prompt.endswith("```python\nassert f(1) == 2\n```")


def test_a_turn_in_which_the_answerer_does_not_act_is_no_attempt(tmp_path):
    environment = world(tmp_path, answerer="coder")
    state = environment.reset(environment.task("train", 0), ("planner", "coder"), seed=0)
    outcome = asyncio.run(environment.step(state, {"planner": SUM}))
    assert (outcome.state, outcome.terminated, outcome.rewards) == (state, False, 0.0)
    with pytest.raises(MarftError, match="answerer: no agent 'coder'"):
        environment.reset(environment.task("train", 0), ("a", "b"), seed=0)


def test_tests_that_do_not_run_fail_the_grader_and_score_nothing(tmp_path):
    broken = {**HUMANEVAL, "test": "import no_such_module\n" + TEST}
    environment = world(tmp_path, [broken, {**broken, "prompt": "# 2\n" + PROMPT}], benchmark="humaneval")
    with pytest.raises(GraderFailed, match="no_such_module"):
        play(environment, ["    return a + b"])


def test_held_out_problems_are_not_trained_on(tmp_path):
    train = write(tmp_path / "train.jsonl.gz", OWN)
    heldout = write(tmp_path / "heldout.jsonl", OWN[:1])
    environment = Code(path=train, heldout_path=heldout, sandbox=SANDBOX)
    assert (environment.size("train"), environment.size("heldout"), environment.dropped) == (3, 1, 1)
    assert environment.task("train", 0).id == "train-2"
    shared = Code(path=train, heldout_share=0.5, sandbox=SANDBOX)
    assert (shared.size("train"), shared.size("heldout")) == (2, 2)


def test_a_held_out_source_alone_is_for_evaluation(tmp_path):
    environment = Code(heldout_path=write(tmp_path / "rows.jsonl", OWN), sandbox=SANDBOX)
    assert environment.size("heldout") == 4
    with pytest.raises(MarftError, match=r"rows.jsonl is for evaluation only"):
        environment.task("train", 0)


def test_a_local_folder_of_datasets(tmp_path):
    datasets = pytest.importorskip("datasets")
    folder = tmp_path / "saved"
    datasets.DatasetDict({"train": datasets.Dataset.from_list([MBPP, {**MBPP, "text": "2"}])}).save_to_disk(folder)
    environment = Code(benchmark="mbpp", hub=str(folder), sandbox=SANDBOX, heldout_share=0.5)
    assert play(environment, ["def sum(a, b): return a + b"])[0].rewards == 1.0


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({}, "environment.benchmark: give a `benchmark`, a `path` or a `hub`"),
        ({"path": "x", "hub": "y"}, "environment.path: give either"),
        ({"hub": "y", "heldout_path": "x"}, "environment.path: give either"),
        ({"path": "x", "subset": "y"}, "go with `hub`"),
        ({"path": "x", "feedback": "public-tests"}, "environment.public_tests: must be above 0"),
        ({"path": "no_such.jsonl"}, "no_such.jsonl: there is no such file"),
        ({"benchmark": "humanevil"}, "benchmark"),
    ],
)
def test_mistakes_in_the_config(keys, says):
    with pytest.raises(MarftError, match=says):
        Code(**keys, sandbox=SANDBOX)


@pytest.mark.parametrize(
    ("form", "row", "says"),
    [
        ("humaneval", {**HUMANEVAL, "test": "def check(:"}, "the column 'test' is not Python"),
        ("humanevalplus", {**HUMANEVAL, "test": "def check(:"}, "the column 'test' is not Python"),
        ("humaneval", {"prompt": PROMPT}, "has no column 'test'; its columns are: prompt"),
        ("mbpp", {**MBPP, "test_list": []}, "the column 'test_list' must hold a list of str"),
        ("mbpp", {**MBPP, "test_list": ["assert 1"]}, "no test in 'test_list' calls a function of 'code'"),
        ("livecodebench", {"question_content": "x", "public_test_cases": "["}, "'public_test_cases' is not JSON"),
        ("deepcoder", {"problem": "x", "tests": "[]"}, "the tests must be one or more mappings"),
        ("own", {"question": "x"}, "has no column 'tests'"),
        ("own", {"question": "x", "tests": [{"input": 1}]}, "the tests must be one or more mappings"),
        ("own", {"question": "x", "tests": ["f(1) == 2"]}, "the column 'tests' holds no `assert`"),
        ("own", {"question": " ", "tests": CASES}, "the column 'question' must hold a text"),
        ("own", {"question": "x", "tests": [{"input": "1 2", "output": "3"}], "entry_point": "f"}, "no line of JSON"),
    ],
)
def test_a_bad_row_is_named(form, row, says):
    with pytest.raises(MarftError, match=f"here: .*{says}"):
        read(form, row)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"question": "x"}\n{"question":', r"rows.jsonl, line 2: is not JSON"),
        ("[1]", r"rows.jsonl, line 1: is not a mapping"),
        ("\n\n", r"rows.jsonl: leaves 0 training tasks and 0 held-out"),
        (json.dumps(OWN[0]), r"rows.jsonl: leaves 0 training tasks and 1 held-out"),
    ],
)
def test_a_bad_file_is_named_with_its_line(tmp_path, text, says):
    path = tmp_path / "rows.jsonl"
    path.write_text(text.replace('{"question": "x"}', json.dumps(OWN[0])))
    with pytest.raises(MarftError, match=says):
        Code(path=str(path), sandbox=SANDBOX)
    (tmp_path / "rows.jsonl.gz").write_bytes(b"no gzip")
    with pytest.raises(MarftError, match=r"rows.jsonl.gz: cannot be read"):
        Code(path=str(tmp_path / "rows.jsonl.gz"), sandbox=SANDBOX)


def test_the_config_must_accept_weaker_walls_where_the_system_lacks_some(tmp_path, monkeypatch):
    def lacking(walls):
        if walls == "auto":
            raise MarftError("sandbox: this system lacks no network")

    monkeypatch.setattr("marft.grading.code_runner.check_walls", lacking)
    path = write(tmp_path / "rows.jsonl", OWN)
    with pytest.raises(MarftError, match="sandbox: this system lacks no network"):
        Code(path=path)
    assert Code(path=path, sandbox="limits-only").size("train") == 4 - 1


def test_it_keeps_the_rules_of_environments(tmp_path, monkeypatch):
    environment = world(tmp_path, OWN[:2])
    check_environment(environment, messages=[SUM])


def test_teams_read_the_function_by_its_own_name(tmp_path):
    row = {
        "question": "Write h(x), which adds one.", "entry_point": "h",
        "tests": "def check(candidate):\n    assert candidate(1) == 2\n    assert candidate(2) == 3\n",
    }  # fmt: skip
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({**row, "question": f"{row['question']} ({n})"}) + "\n" for n in range(2)))
    world = Code(path=str(rows), public_tests=1, show_public_tests=True, feedback="public-tests", attempts=2)
    task = world.task("train", 0)
    assert "assert h(1) == 2" in task.prompt
    assert "candidate" not in task.prompt
    state = world.reset(task, ("ann",), 0)
    told = asyncio.run(world.step(state, {"ann": "def h(x):\n    return x"})).state.attempts.news
    assert "Test: assert h(1) == 2" in told
    assert "candidate" not in told
