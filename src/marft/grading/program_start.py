"""Start a program that reads and prints, inside a sandbox: as `python program.py` would, only faster.

The interpreter starts without the module `site`, whose search for packages takes most of the time; what programs miss
of it, `exit` and `quit`, is added here.
"""

import _sitebuiltins
import builtins
import os
import sys
import types


def quitters() -> None:
    """Give the interpreter back `exit` and `quit`."""
    for name in ("exit", "quit"):
        setattr(builtins, name, _sitebuiltins.Quitter(name, "Ctrl-D"))


def from_the_program(kind: type[BaseException], error: BaseException, trace: types.TracebackType | None) -> None:
    """Print an error whose traceback begins in the program, not here."""
    inner = trace.tb_next if trace is not None else None
    sys.__excepthook__(kind, error.with_traceback(inner), inner)


if __name__ == "__main__":
    quitters()
    sys.excepthook = from_the_program
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "program.py")
    sys.argv = [path]
    __file__ = path
    with open(path, "rb") as file:
        code = compile(file.read(), path, "exec")
    exec(code)
