"""The tasks of a source that has an end, in two splits that share no prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from marft.types import MarftError, Split, Task


@dataclass(frozen=True)
class Splits:
    """Training and held-out tasks; `dropped` counts training tasks left out because they are also held out."""

    source: str
    tasks: Mapping[str, tuple[Task, ...]]
    dropped: int

    @classmethod
    def of(cls, source: str, train: Sequence[Task] | None, heldout: Sequence[Task], note: str = "") -> Splits:
        """The splits of a source; `train` None: it is for evaluation only. `note` says what else was left out.

        Raises `MarftError` when a split that should hold tasks holds none.
        """
        unseen = {task.prompt for task in heldout}
        fresh = tuple(task for task in train or () if task.prompt not in unseen)
        if not heldout or not (fresh or train is None):
            raise MarftError(
                f"{source}: leaves {len(fresh)} training tasks and {len(heldout)} held-out ones{note}; both need at "
                "least one, so add rows or a held-out source"
            )
        return cls(source, {"train": fresh, "heldout": tuple(heldout)}, len(train or ()) - len(fresh))

    def size(self, split: Split) -> int:
        """How many tasks the split has; raises `MarftError` for the training split of a source that has none."""
        if not self.tasks[split]:
            raise MarftError(
                f"{self.source} is for evaluation only: it has no tasks to train on; name a `path` or another source "
                "that has"
            )
        return len(self.tasks[split])

    def task(self, split: Split, index: int) -> Task:
        """The index-th task; raises as `size` does."""
        self.size(split)
        return self.tasks[split][index]
