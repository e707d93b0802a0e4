"""Runs on the Hugging Face hub: `marft push`, and `hf://user/name` wherever a run to play is named."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from marft.run.directory import RunDirectory
from marft.types import MarftError

SCHEME = "hf://"
WANTED = ("config.yaml", "metrics.jsonl", "README.md", "evaluations/*", "checkpoints/*")
_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)
_NAME_RULE = "is no name for a repository; write user/name, of letters, digits, '-', '_' and '.'"
_TARGET = re.compile(r"hf://(?P<repository>[^/@\s]+/[^/@\s]+)(@(?P<revision>\S+))?")


@dataclass(frozen=True)
class Pushed:
    """Where a run went, and the config's keys of which only a file's name went."""

    url: str
    cut: tuple[str, ...]


def is_remote(target: str | Path) -> bool:
    """Whether a command names a run on the hub."""
    return str(target).startswith((SCHEME, "hf:/"))  # a Path has lost one slash


def local(target: str | Path) -> Path:
    """The folder of a run: the one named, or for `hf://user/name[@revision]` its copy in the hub's cache.

    Only what has changed is downloaded; without a network the copy that is there is used. Raises `MarftError` when
    there is no such run, it cannot be reached, or its config reaches outside of marft or cannot be read
    (`check_trusted`).
    """
    if not is_remote(target):
        return Path(target)
    text = re.sub(r"^hf:/+", SCHEME, str(target))
    found = _TARGET.fullmatch(text)
    if not found:
        raise MarftError(f"{text}: write it as hf://user/name, or hf://user/name@revision")

    from huggingface_hub import snapshot_download

    from marft.models.base import quiet
    from marft.run.parcel import check_trusted

    with _explained(text, found["repository"]), quiet():
        folder = snapshot_download(found["repository"], revision=found["revision"], allow_patterns=list(WANTED))
    run = RunDirectory(Path(folder))
    if not run.config_file.is_file() or not run.checkpoints.is_dir():
        raise MarftError(f"{text}: is no run; one is made by `marft push`")
    check_trusted(run, text)
    return run.path


def push(run: RunDirectory, repository: str, which: str = "latest", private: bool = False) -> Pushed:
    """Upload checkpoint `which` with config, evaluations, metrics and a model card, as one commit.

    The repository is made if there is none; checkpoints and evaluations of an earlier push are taken out of it. Raises
    `MarftError` for a run that others could not load or whose config may hold a secret, a wrong name, a missing token,
    and a hub that cannot be reached.
    """
    import huggingface_hub
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    from marft.run.parcel import pack

    _check_name(repository)
    with tempfile.TemporaryDirectory() as folder:
        at = Path(folder)
        cut = pack(run, which, repository, at)
        if huggingface_hub.get_token() is None:
            raise MarftError(f"{repository}: you are not logged in to the hub; run `hf auth login`, or set HF_TOKEN")
        paths = {path.relative_to(at).as_posix(): path for path in sorted(at.rglob("*")) if path.is_file()}
        with _explained(repository, repository):
            api = huggingface_hub.HfApi()
            api.create_repo(repository, private=private or None, exist_ok=True)
            old = [
                name for name in api.list_repo_files(repository) if name.startswith(("checkpoints/", "evaluations/"))
            ]
            (number,) = (each.name for each in (at / "checkpoints").iterdir() if each.is_dir())
            commit = api.create_commit(
                repository,
                [
                    *(CommitOperationDelete(name) for name in old if name not in paths),
                    *(CommitOperationAdd(name, path) for name, path in paths.items()),
                ],
                commit_message=f"Checkpoint {number} of {run.path.resolve().name}",
            )
    return Pushed(str(commit.repo_url), tuple(cut))


def _check_name(repository: str) -> None:
    if not _REPOSITORY.fullmatch(repository):  # the hub allows a name alone too, for its own models
        raise MarftError(f"{repository}: {_NAME_RULE}")


@contextmanager
def _explained(target: str, repository: str) -> Iterator[None]:
    """Turn what the hub's client raises into one sentence."""
    from huggingface_hub import constants
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    hub = constants.ENDPOINT
    try:
        yield
    except HFValidationError:
        raise MarftError(f"{target}: {_NAME_RULE}") from None
    except GatedRepoError:
        raise MarftError(f"{target}: ask for access at {hub}/{repository}, then log in with `hf auth login`") from None
    except RevisionNotFoundError:
        raise MarftError(f"{target}: the repository has no such revision") from None
    except RepositoryNotFoundError:
        raise MarftError(
            f"{target}: {hub} has no such repository, or it is private and your token may not read it; "
            "run `hf auth login`"
        ) from None
    except (OfflineModeIsEnabled, LocalEntryNotFoundError) as error:
        offline = constants.is_offline_mode()
        why = "HF_HUB_OFFLINE is set" if offline else _reason(error.__cause__ or error)
        raise MarftError(f"{target}: {hub} cannot be reached ({why}), and no copy is in the cache") from None
    except HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else 0
        if status in (401, 403):
            raise MarftError(
                f"{target}: {hub} refuses your token ({status}); one that may write there is needed: `hf auth login`"
            ) from None
        raise MarftError(f"{target}: {hub} answers with an error ({_reason(error)})") from None
    except MarftError:
        raise
    except Exception as error:  # whatever the client's HTTP library raises where there is no network
        raise MarftError(f"{target}: {hub} cannot be reached ({_reason(error)})") from None


def _reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:200]
