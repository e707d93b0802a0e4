"""What is called from Python: `open_run`, `train` and what they give back. Nothing heavy is loaded before its use."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from marft.config import Given, Overrides
from marft.run.history import Run, open_run
from marft.types import MarftError

if TYPE_CHECKING:  # `import marft` must stay fast
    from marft.run.callbacks import OnEpisode, OnIteration
    from marft.run.progress import Watcher

__all__ = ["Run", "open_run", "train"]


def train(
    config: Given | None = None,
    overrides: Overrides = (),
    *,
    run: str | Path | None = None,
    resume: bool = False,
    on_iteration: OnIteration | None = None,
    on_episode: OnEpisode | None = None,
    watcher: Watcher | None = None,
) -> Run:
    """Train a team as `marft train` does, also in a notebook or a thread; returns the run when it ends.

    `config` is the path of a YAML file, a mapping like such a file, or a `Config`; `overrides` are
    `["update.lr=0.001"]` or `{"update.lr": 0.001}`. `run` names the folder (default: a new one in `run.folder`); with
    `resume` that run goes on, and `config` may be left out.

    `on_iteration` is called after each iteration with its numbers, named as in `Run.metrics`; `on_episode` with each
    `Episode` as it ends, in training and in evaluations, perhaps from the thread that plays. `watcher` follows the run
    (default: one printed line per iteration) and has all methods of `marft.run.progress.Watcher`. None of them changes
    what is learnt; what they raise ends the run.

    Ctrl-C, or interrupting the notebook's kernel, finishes the iteration under way, saves it and returns; a second one
    stops at once. Raises `MarftError` for whatever is wrong with the config, before the folder is made, when too many
    episodes fail, and when a callback fails: the last checkpoint then stays.
    """
    for key, function in (("on_iteration", on_iteration), ("on_episode", on_episode)):
        if function is not None and not callable(function):
            raise MarftError(f"{key}: must be a function, not {function!r}")
    if isinstance(watcher, type):
        raise MarftError(f"watcher: give a {watcher.__name__}(), not the class")
    if resume and run is None:
        raise MarftError("resume: name the run to go on with, as in marft.train(run='runs/mine', resume=True)")

    from marft.run import launch
    from marft.run.callbacks import Callbacks
    from marft.run.progress import Progress, check_watcher

    watcher = Progress() if watcher is None else watcher
    check_watcher(watcher)
    told = Callbacks(watcher, on_iteration, on_episode)
    try:
        if resume and run is not None:
            outcome = launch.resume(config, overrides, run, told)
        elif config is not None:
            outcome = launch.start(config, overrides, run, told)
        else:
            raise MarftError("config: give a config to train, or resume=True to go on with a run")
    finally:
        told.finish()
    if outcome.done < outcome.iterations or outcome.exit_code:
        told.note(
            f"Stopped after {outcome.done} of {outcome.iterations} iterations; go on with "
            f"marft.train(run={str(outcome.run.path)!r}, resume=True)"
        )
    return Run(outcome.run.path)
