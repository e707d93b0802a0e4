"""Import paths in a config: `package.module:name` becomes the object it names."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from marft.types import MarftError
from marft.validation import suggestion


def import_object(path: str, what: str) -> Any:
    """The object at `module:name` (`name` may be dotted); modules in the current folder count, as in `python -m`.

    `what` says in errors what was looked for, for example "environment". Raises `MarftError` when the path is not of
    that form, the module is missing or fails while it is imported, or it holds no such name.
    """
    module_name, colon, name = path.partition(":")
    if not (colon and module_name and name):
        raise MarftError(f"{what} '{path}': write it as module:name, for example my_team:build")
    found: Any = _import_module(module_name, path, what)
    for part in name.split("."):
        if not hasattr(found, part):
            public = sorted(each for each in vars(found) if not each.startswith("_"))
            raise MarftError(f"{what} '{path}': {module_name} holds no '{name}'{suggestion(part, public)}")
        found = getattr(found, part)
    return found


def _import_module(module_name: str, path: str, what: str) -> Any:
    if os.getcwd() not in sys.path:  # a console script, unlike `python -m`, does not look in the current folder
        sys.path.append(os.getcwd())
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and (module_name == error.name or module_name.startswith(error.name + ".")):
            raise MarftError(f"{what} '{path}': there is no module '{error.name}'") from None
        raise MarftError(f"{what} '{path}': {module_name} needs the missing module '{error.name}'") from error
    except Exception as error:  # the user's module may fail in any way; the cause stays attached
        raise MarftError(f"{what} '{path}': importing {module_name} failed: {error!r}") from error
