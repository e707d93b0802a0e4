"""marft: multi-agent reinforcement fine-tuning of language-model teams (after MARFT, arXiv 2504.16129)."""

from marft.config import Config, load_config
from marft.types import Action, Batch, Credit, Episode, Failure, MarftError, Task

__version__ = "0.1.0"
__all__ = ["Action", "Batch", "Config", "Credit", "Episode", "Failure", "MarftError", "Task", "load_config"]
