"""The data that flows: tasks, actions, episodes, batches and credit.

Shape letters, used everywhere in the library: `B` episodes, `K` decisions on one chain, `N` rows (one action each),
`S` padded prompt + action length, `P` prompt tokens, `A` action tokens, `J` padded joint-view length, `n` agents.

Alignment, stated once: index `t` of every `[N, S]` tensor speaks of token `t`. `logprobs[:, t]` is the log-probability
*of* token `t`; `values[:, t]` is the value of the state just *before* token `t`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:  # `import marft` must stay fast, and torch takes more than a second
    from torch import Tensor

Split = Literal["train", "heldout"]


class MarftError(Exception):
    """A mistake of the user's that one sentence explains: it names the file, key or agent, and the fix."""


@dataclass(frozen=True)
class Task:
    """One problem. `prompt` is what agents that see the task read; `data` is private to the environment's grader."""

    id: str
    prompt: str
    kind: str = "task"
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Action:
    """One reply of one agent.

    `prompt_ids` [P] and `token_ids` [A] are exactly the ids the sampler read and drew (the end-of-turn token, when
    drawn, is one of them); `logprobs` [A] are the sampler's own, at the sampling temperature. `joint_ids` is what the
    centralised critic reads before this action. `parents` are indices into `Episode.actions`: the dependency function
    D as it was played. `reward` sits on the action's last decision. `stop` says why the reply ended, and
    `policy_version` is the version of the adapter at the moment the request was sent. `truncated_tokens` counts prompt
    tokens that were left out to fit the context. `step` counts, from 0, what the agent said before within the same
    turn (calls of tools, rounds of a debate, calls by an orchestrator). `tool_results` is what tools answered to the
    calls in the reply; where there are any, the agent speaks again and nobody else reads this reply. `side` names whom
    it played for: credit never flows from one side to another (in a game of one team all have the same side). `shared`
    is the part of `reward` that was paid to the team as a whole, and stands on this action because it was the last.
    """

    agent: str
    turn: int
    parents: tuple[int, ...]
    prompt_ids: tuple[int, ...]
    joint_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    text: str
    stop: Literal["stop", "length"]
    policy_version: int
    reward: float = 0.0
    truncated_tokens: int = 0
    step: int = 0
    tool_results: tuple[str, ...] = ()
    side: str = ""
    shared: float = 0.0


@dataclass(frozen=True)
class Spelt:
    """An action for people to read: its prompt, and the text that each of its tokens adds (special tokens visible)."""

    prompt: str
    pieces: tuple[str, ...]


@dataclass(frozen=True)
class Failure:
    """Why an episode could not be played: the agent (or `environment`) that failed, and the reason in words."""

    who: str
    reason: str


@dataclass(frozen=True)
class Episode:
    """One finished game: its actions in execution order.

    `group` names the set of episodes that share a task (the baseline of group-relative credit); `sample` is the number
    within that group. `terminated` (the game ended) and `truncated` (the horizon cut it off) are never both true.
    `final_joint_ids` is, for each agent that acted, the joint view after the last action in its model's tokens: the
    critic bootstraps a truncated episode from it.
    An episode with an `error` is recorded and counted, and never trained on. `answer` is the team's answer as the
    environment read it: samples of one task whose answers are equal texts vote for the same thing.
    """

    task: Task
    group: str
    sample: int
    actions: tuple[Action, ...]
    terminated: bool
    truncated: bool
    final_joint_ids: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    error: Failure | None = None
    answer: str = ""

    @property
    def reward(self) -> float:
        """The undiscounted sum of all rewards in the episode."""
        return sum(action.reward for action in self.actions)

    @property
    def success(self) -> float:
        """The environment's own verdict in [0, 1]: its `success` metric, else whether any reward was won."""
        return self.metrics.get("success", float(self.reward > 0))


@dataclass(frozen=True)
class Batch:
    """N rows, one per action, in episode order and within an episode in execution order.

    What counts as an episode here is a chain of credit, and B counts those: each side's actions are one, or each
    agent's (`credit.chain`).

    `tokens, attention_mask, action_mask, logprobs` are [N, S] (prompt, action, right padding); masks come from lengths
    the sampler reported, never from a token's value. `joint, joint_mask` are [N, J]: what the critic reads before the
    action. `decision_mask` [N, S] marks one
    position per decision: the action's first token at action level, every action token at token level.
    `rewards, agent, turn, episode, words` are [N]; `agent` indexes `agents`, `episode` counts from 0 within the batch.
    `final_joint, final_joint_mask` are [B, J'] and `terminated` is [B]. `groups` [N] numbers the (task, agent, turn,
    step) group of each row; `version` [N] is that of the policy that acted.
    """

    agents: tuple[str, ...]
    tokens: Tensor
    attention_mask: Tensor
    action_mask: Tensor
    decision_mask: Tensor
    logprobs: Tensor
    joint: Tensor
    joint_mask: Tensor
    rewards: Tensor
    agent: Tensor
    turn: Tensor
    episode: Tensor
    words: Tensor
    groups: Tensor
    final_joint: Tensor
    final_joint_mask: Tensor
    terminated: Tensor
    version: Tensor

    @property
    def rows(self) -> int:
        """N."""
        return int(self.tokens.shape[0])


@dataclass(frozen=True)
class Trace:
    """What learning made of one action, for people to look at.

    `group`, `sample` name the episode (as in `Episode`), `action` its place there; it was played in iteration `played`
    (from 0). `advantage` is normalised, as the
    update used it: one number where the action is one decision, else one per token [A]. `ratio` [A] is the new over the
    old probability of each token after the update; None where it was not measured.
    """

    group: str
    sample: int
    action: int
    played: int
    advantage: float | tuple[float, ...]
    ratio: tuple[float, ...] | None


@dataclass(frozen=True)
class Credit:
    """`advantages` and `returns`, both [N, S] and zero off `action_mask`.

    At action level an action's advantage stands on each of its tokens, and its return on its first (decision) token.
    """

    advantages: Tensor
    returns: Tensor
