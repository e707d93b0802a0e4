"""HumanEval+'s test code in the form that the grader reads: every comparison is one `assert` statement.

EvalPlus (arXiv 2305.01210) compares through a function `assertion(out, exp, atol)`, which holds one `assert` for floats
and one for all else, so that no run reaches both. Here that function says whether they agree, and its calls are
asserted; with it goes what needs numpy.
"""

from __future__ import annotations

import ast
from textwrap import dedent

COMPARE = "assertion"
HELPERS = (COMPARE, "is_floats")
# As theirs: floats agree within 1e-6, or the tolerance of the task, and a ten-millionth of what is expected
AGREES = dedent(
    """
    def assertion(out, exp, atol):
        def floats(value):
            each = value if isinstance(value, (list, tuple)) else [value]
            return all(isinstance(item, float) for item in each)
        def close(one, other, within):
            if isinstance(other, (list, tuple)):
                same = isinstance(one, (list, tuple)) and len(one) == len(other)
                return same and all(close(*pair, within) for pair in zip(one, other))
            return isinstance(one, (int, float)) and abs(one - other) <= within + 1e-7 * abs(other)
        within = atol or (1e-6 if floats(exp) else 0)
        return out == exp or bool(within and close(out, exp, within))
    """
)


class _Asserted(ast.NodeTransformer):
    def visit_Expr(self, node: ast.Expr) -> ast.stmt:
        call = node.value
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == COMPARE:
            return ast.Assert(test=call, msg=None)
        return node


def with_asserts(test: str) -> str:
    """Test code whose comparisons are `assert` statements; code without the function `assertion` stays as it is."""
    tree = ast.parse(test)
    if not any(isinstance(node, ast.FunctionDef) and node.name == COMPARE for node in tree.body):
        return test
    rest = [node for node in tree.body if not (isinstance(node, ast.FunctionDef) and node.name in HELPERS)]
    names = {node.id for each in rest for node in ast.walk(each) if isinstance(node, ast.Name)}
    kept = [node for node in rest if not (isinstance(node, ast.Import) and _unused_numpy(node, names))]
    tree.body = [*ast.parse(AGREES).body, *(_Asserted().visit(node) for node in kept)]
    return ast.unparse(ast.fix_missing_locations(tree))


def _unused_numpy(node: ast.Import, names: set[str]) -> bool:
    return all(each.name == "numpy" and (each.asname or each.name) not in names for each in node.names)
