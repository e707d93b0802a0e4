"""Experiment trackers: the numbers of `metrics.jsonl` and of the evaluations, where a person already looks at runs.

`metrics.jsonl` is the truth; a tracker is a copy of it. What each does when a run is resumed at iteration `start`,
where the rows from `start` on, and the evaluations after it, are played again:

tensorboard  hides what was logged from `start` on (`purge_step`).
trackio      on this machine: the tracked run is deleted and written anew from the run directory, which gives it new
             times; in a Space or on a server: goes on under the same name, and old rows stay beside the new.
wandb        goes on in the run of the same id; old rows stay beside the new, which come later in its history.
mlflow       the same; the value that MLflow calls latest is the new one.

NaN and infinities are logged as they are: all four show them. No tracker is imported before it is used. A run that the
user has open in wandb or trackio stays the user's: ours is another beside it.
"""

from __future__ import annotations

import contextlib
import contextvars
import importlib.util
import io
import json
import os
import re
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import httpx
import yaml

from marft.config.learning import RunConfig
from marft.run.directory import RunDirectory, to_json, write_text
from marft.types import MarftError

Note = Callable[[str], None]
History = Sequence[tuple[int, Mapping[str, float]]]  # (iteration, scalars) of what a resumed run keeps
# Training waits for a tracker: by default mlflow would try for minutes before it gives a lost server up
PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "20"}
PACKAGES = {"tensorboard": "tensorboard", "wandb": "wandb", "mlflow": "mlflow", "trackio": "trackio"}


class Tracker(Protocol):
    """Where scalars go; `known` is what it needs to go on after a resume. An error ends it, and nothing else."""

    known: dict[str, str]

    def log(self, iteration: int, scalars: Mapping[str, float]) -> None:
        """The scalars of a row, or of an evaluation after `iteration` iterations (names under `evaluation/`)."""
        ...

    def close(self, failed: bool) -> None:
        """All that was logged is where it belongs, or in the tracker's own queue on the disk.

        `failed`: an error ended the run, which is said where the tracker has a place for it.
        """
        ...


@dataclass(frozen=True)
class Opening:
    """What a tracker is opened with; `known` is what it kept in the run directory when it was opened before."""

    run: RunDirectory
    project: str
    start: int
    config: Mapping[str, Any]
    history: History
    known: Mapping[str, str]

    @property
    def name(self) -> str:
        """The run's name."""
        return self.run.path.resolve().name


class TensorBoard:
    """Event files in the run directory."""

    def __init__(self, opening: Opening) -> None:
        from torch.utils.tensorboard import SummaryWriter  # over a second, and only wanted here

        self.known: dict[str, str] = {}
        self._board = SummaryWriter(str(opening.run.tensorboard), purge_step=opening.start)
        if opening.start == 0:
            text = yaml.safe_dump(dict(opening.config), sort_keys=False, allow_unicode=True)
            self._board.add_text("config", f"```yaml\n{text}```", 0)
        for iteration, scalars in opening.history:
            if iteration >= opening.start:  # the evaluation at the checkpoint is kept, but hidden with the rows
                self.log(iteration, scalars)

    def log(self, iteration: int, scalars: Mapping[str, float]) -> None:
        """Scalars at the step of that number, on the disk when it returns."""
        for key, value in scalars.items():
            self._board.add_scalar(key, value, iteration)
        self._board.flush()

    def close(self, failed: bool) -> None:
        """Close the file; it has no place for how the run ended."""
        self._board.close()


class Wandb:
    """Weights & Biases. Files go to `wandb/` in the run directory, or to WANDB_DIR."""

    def __init__(self, opening: Opening) -> None:
        import wandb

        self.known = dict(opening.known) or {"id": uuid.uuid4().hex[:12]}
        folder = None if "WANDB_DIR" in os.environ else str(opening.run.path.resolve())
        self._run = wandb.init(
            project=opening.project,
            name=opening.name,
            id=self.known["id"],
            resume="allow",
            config=dict(opening.config),
            dir=folder,
            reinit="create_new",  # else a run that the user has open would be gone on with, and ended
            settings=wandb.Settings(console="off", quiet=True),
        )
        # W&B's own steps only grow, but an evaluation is logged before the row of the iteration it belongs to
        self._run.define_metric("*", step_metric="iteration")

    def log(self, iteration: int, scalars: Mapping[str, float]) -> None:
        """Scalars with their iteration, which is the x axis of all charts."""
        self._run.log({"iteration": iteration, **scalars})

    def close(self, failed: bool) -> None:
        """Wait until all is sent, or on the disk in offline mode."""
        self._run.finish(exit_code=int(failed))


class Mlflow:
    """MLflow, at MLFLOW_TRACKING_URI."""

    def __init__(self, opening: Opening) -> None:
        from mlflow import MlflowClient
        from mlflow.entities import Param

        for key, value in PATIENCE.items():
            os.environ.setdefault(key, value)
        self._client = MlflowClient()
        if opening.known:
            self.known = dict(opening.known)
            self._client.update_run(self.known["id"], status="RUNNING")
            return
        found = self._client.get_experiment_by_name(opening.project)
        experiment = found.experiment_id if found else self._client.create_experiment(opening.project)
        self.known = {"id": self._client.create_run(experiment, run_name=opening.name).info.run_id}
        params = [Param(key, text[:6000]) for key, text in _texts(opening.config)]  # 6000: MLflow's own limit
        for first in range(0, len(params), 100):  # at most 100 in one request
            self._client.log_batch(self.known["id"], params=params[first : first + 100])

    def log(self, iteration: int, scalars: Mapping[str, float]) -> None:
        """Scalars at the step of that number; characters that MLflow forbids in names become `_`."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [Metric(re.sub(r"[^/\w.\- :]", "_", key), value, now, iteration) for key, value in scalars.items()]
        for first in range(0, len(metrics), 1000):  # at most 1000 in one request
            self._client.log_batch(self.known["id"], metrics=metrics[first : first + 1000])

    def close(self, failed: bool) -> None:
        """Say that the run is over; resuming opens it again."""
        self._client.set_terminated(self.known["id"], "FAILED" if failed else "FINISHED")


class Trackio:
    """Trackio: in TRACKIO_DIR, in the Space TRACKIO_SPACE_ID or at TRACKIO_SERVER_URL."""

    def __init__(self, opening: Opening) -> None:
        import trackio

        remote = any(os.environ.get(key) for key in ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL"))
        with _unheard():
            if opening.known and not remote:
                for each in trackio.Api().runs(opening.project):
                    if each.id == opening.known["id"]:
                        each.delete()
            theirs = trackio.config
            # In a context of its own `init` finds no run of the user's, which it would end, and leaves none behind
            self._run: Any = contextvars.Context().run(
                trackio.init,
                project=opening.project,
                name=opening.name,
                config=dict(opening.config),
                resume="allow" if opening.known and remote else "never",
                embed=False,
            )
            trackio.config = theirs
        self.known = {"id": str(self._run.id)}
        if opening.known and not remote:
            for iteration, scalars in opening.history:
                self.log(iteration, scalars)

    def log(self, iteration: int, scalars: Mapping[str, float]) -> None:
        """Scalars at the step of that number."""
        self._run.log(dict(scalars), step=iteration)

    def close(self, failed: bool) -> None:
        """Wait until all is stored; trackio has no place for how the run ended."""
        with _unheard():
            self._run.finish()


OPENERS: Mapping[str, Callable[[Opening], Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": Wandb,
    "mlflow": Mlflow,
    "trackio": Trackio,
}


class Trackers:
    """All trackers of a run. One that fails is named once, through `note`, and left out from then on."""

    def __init__(self, run: RunDirectory, start: int, settings: RunConfig, history: History, note: Note) -> None:
        self._note = note
        self._open: dict[str, Tracker] = {}
        kept = run.path / "trackers.json"
        known = json.loads(kept.read_text(encoding="utf8")) if kept.is_file() else {}
        config = yaml.safe_load(run.config_file.read_text(encoding="utf8"))
        for name in settings.trackers:
            opening = Opening(run, settings.project, start, config, history, known.get(name, {}))
            with self._surviving(name):
                tracker = OPENERS[name](opening)
                self._open[name] = tracker
                if tracker.known != known.get(name, {}):
                    known[name] = tracker.known
                    write_text(kept, to_json(known) + "\n")

    def log(self, iteration: int, scalars: Mapping[str, float]) -> None:
        """Pass scalars on to all."""
        for name, tracker in list(self._open.items()):
            with self._surviving(name):
                tracker.log(iteration, scalars)

    def close(self, failed: bool = False) -> None:
        """Close all; closing twice does no harm."""
        for name, tracker in list(self._open.items()):
            with self._surviving(name):
                tracker.close(failed)
            self._open.pop(name, None)

    @contextlib.contextmanager
    def _surviving(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # whatever a tracker and its network come to, training goes on
            self._open.pop(name, None)
            reason = (" ".join(str(error).split()) or type(error).__name__)[:300]
            self._note(f"run.trackers: {name} is left out from here on ({reason}); metrics.jsonl has every number")


def check_trackers(settings: RunConfig, source: str) -> None:
    """Raise `MarftError` when a tracker of the config is not installed, or has nowhere to log to."""
    for name in settings.trackers:
        found = importlib.util.find_spec(PACKAGES[name])
        if found is None or found.origin is None:  # a folder `wandb/` in the current one is found too, and is no module
            raise MarftError(f"{source}: run.trackers: {name} is not installed; run: pip install 'marft[{name}]'")
        fault = {"wandb": _wandb_fault, "mlflow": _mlflow_fault}.get(name, lambda: "")()
        if fault:
            raise MarftError(f"{source}: run.trackers: {fault}")


def _wandb_fault() -> str:
    import wandb

    online = wandb.setup().settings.mode in ("online", "shared")
    if not online or wandb.run is not None or wandb.login(prompt=False, verify=False):
        return ""
    return "wandb knows no API key; run `wandb login`, or set the environment variable WANDB_MODE=offline"


def _mlflow_fault() -> str:
    import mlflow

    place = str(mlflow.get_tracking_uri())
    scheme = place.split(":", 1)[0] if ":" in place else "file"
    if scheme.split("+")[0] in ("sqlite", "postgresql", "mysql", "mssql"):
        if importlib.util.find_spec("sqlalchemy") is None:
            return (
                f"mlflow would log to {place}, for which mlflow-skinny has no code; set MLFLOW_TRACKING_URI to the "
                "address of a server, or run: pip install mlflow"
            )
    elif scheme == "file" and os.environ.get("MLFLOW_ALLOW_FILE_STORE", "").lower() not in ("true", "1"):
        return (
            f"mlflow logs to the folder {place} only with the environment variable MLFLOW_ALLOW_FILE_STORE=true; set "
            "it, or set MLFLOW_TRACKING_URI to the address of a server"
        )
    elif scheme in ("http", "https"):
        try:
            httpx.get(place, timeout=10)
        except httpx.HTTPError as error:
            return f"mlflow's server at {place} cannot be reached ({error}); start it, or set MLFLOW_TRACKING_URI"
    return ""


def _texts(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """A config's values as ("update.lr", "0.001"); lists as JSON."""
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from _texts(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value if isinstance(value, str) else to_json(value)


@contextlib.contextmanager
def _unheard() -> Iterator[None]:
    """Trackio tells its news on stdout, where the progress of the run is shown."""
    with contextlib.redirect_stdout(io.StringIO()):
        yield
