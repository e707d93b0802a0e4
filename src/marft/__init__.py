"""marft: multi-agent reinforcement fine-tuning of language-model teams (after MARFT, arXiv 2504.16129)."""

from marft.api import Run, open_run, train
from marft.config import Config, load_config
from marft.environments.base import Environment, Outcome
from marft.notebook import LiveFigure
from marft.run.answer import Answer
from marft.types import Action, Batch, Credit, Episode, Failure, MarftError, Task

__version__ = "0.1.0"
__all__ = [
    "Action",
    "Answer",
    "Batch",
    "Config",
    "Credit",
    "Environment",
    "Episode",
    "Failure",
    "LiveFigure",
    "MarftError",
    "Outcome",
    "Run",
    "Task",
    "load_config",
    "open_run",
    "train",
]
