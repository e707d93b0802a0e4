"""Credit: every episode is one chain of decisions, and one `gae` serves both levels and every topology.

The rule and its equations are in docs/algorithm.md, section "The chain". Everything is computed in float64, because
the spread of nearly equal advantages is smaller than float32's rounding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from marft.types import Batch, Credit

if TYPE_CHECKING:
    from marft.config import CreditConfig

# A spread this small, relative to the size of the numbers it came from, is rounding and not information
ROUNDING = 1e-6


@dataclass(frozen=True)
class Links:
    """Discount and lambda of each kind of link between two decisions on a chain, all in [0, 1].

    `gamma`: last agent of a turn -> first of the next, and the end of a truncated episode; `gamma_agent`: agent ->
    next agent in the same turn; `gamma_token`: token -> token inside an action; `lam`: between actions; `lam_token`:
    inside an action.
    """

    gamma: float = 0.99
    gamma_agent: float = 1.0
    gamma_token: float = 1.0
    lam: float = 0.95
    lam_token: float = 1.0

    @classmethod
    def of(cls, config: CreditConfig) -> Links:
        """The links a config asks for."""
        return cls(config.gamma, config.gamma_agent, config.gamma_token, config.lam, config.lam_token)


def gae(rewards: Tensor, values: Tensor, discounts: Tensor, lambdas: Tensor) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation on chains of K decisions: (advantages, returns), both [..., K].

    `rewards`, `discounts` and `lambdas` are [..., K]; index k of the last two is the link from decision k to k + 1.
    `values` is [..., K + 1]: its last entry is the state after the last decision (anything where that link's discount
    is 0). What lies beyond a link of discount 0 is never read, so padding to the right may hold anything.

    delta_k = r_k + gamma_k V_{k+1} - V_k;  A_k = delta_k + gamma_k lambda_k A_{k+1};  R_k = V_k + A_k
    (Schulman et al., arXiv 1506.02438, with a discount per link as POAD's, arXiv 2405.15821).
    """
    if values.shape[-1] != rewards.shape[-1] + 1:
        raise ValueError(f"values must be one longer than rewards: {tuple(values.shape)} and {tuple(rewards.shape)}")
    # torch.where and not a product: 0 * NaN is NaN
    ahead = torch.where(discounts > 0, discounts * values[..., 1:], 0.0)
    deltas = rewards + ahead - values[..., :-1]
    decays = discounts * lambdas
    advantages = torch.empty_like(deltas)
    later = torch.zeros_like(values[..., 0])
    for k in reversed(range(rewards.shape[-1])):
        later = deltas[..., k] + torch.where(decays[..., k] > 0, decays[..., k] * later, 0.0)
        advantages[..., k] = later
    return advantages, values[..., :-1] + advantages


def assign_credit(
    batch: Batch,
    values: Tensor | None,
    final_values: Tensor | None,
    config: CreditConfig,
    running: Mapping[str, float] | None = None,
) -> Credit:
    """The credit of every decision of a batch, by the config's baseline.

    `values` [N, S] are read at decision positions only; `final_values` [B] bootstrap truncated episodes and are ignored
    where `batch.terminated`. Both may be None unless the baseline is `critic`; `running` are the agents' mean returns
    so far. Whether this is action or token level is what `batch.decision_mask` says.
    """
    links = Links.of(config)
    if config.baseline == "group":
        return group_credit(batch, links, config.group_mean, config.group_scale)
    if config.baseline == "running":
        return running_credit(batch, links, running or {})
    if config.baseline == "none":
        return return_credit(batch, links)
    if values is None:
        raise ValueError("the critic baseline needs values")
    return critic_credit(batch, values, final_values, links)


def critic_credit(batch: Batch, values: Tensor, final_values: Tensor | None, links: Links) -> Credit:
    """GAE along each episode's chain; the returns V + A are what the critic is fitted to."""
    chain = _lay_chain(batch)
    advantages, returns = _chain_gae(batch, chain, links, values.detach(), final_values)
    dtype = torch.promote_types(values.dtype, torch.float32)
    return Credit(_spread(batch, chain, advantages, dtype), _place(batch, chain, returns, dtype))


def return_credit(batch: Batch, links: Links) -> Credit:
    """No baseline: the advantage of a decision is its discounted return-to-go (lambda = 1, V = 0, no bootstrap)."""
    chain = _lay_chain(batch)
    returns = _returns_to_go(batch, chain, links)
    dtype = torch.promote_types(batch.rewards.dtype, torch.float32)
    return Credit(_spread(batch, chain, returns, dtype), _place(batch, chain, returns, dtype))


def group_credit(
    batch: Batch,
    links: Links,
    mean: Literal["all", "others"] = "all",
    scale: Literal["none", "std"] = "none",
) -> Credit:
    """An action's discounted return-to-go compared with those of its (task, agent, turn) group `batch.groups`.

    The return-to-go is taken at the action's first decision and stands on all its tokens, at token level too: within
    an action there is nothing to compare a later token with.
    """
    chain = _lay_chain(batch)
    returns = _returns_to_go(batch, chain, links)
    compared = group_advantages(returns[chain.first], batch.groups, mean, scale)
    dtype = torch.promote_types(batch.rewards.dtype, torch.float32)
    return Credit(_spread(batch, chain, compared[chain.row], dtype), _place(batch, chain, returns, dtype))


def group_advantages(
    returns: Tensor,
    groups: Tensor,
    mean: Literal["all", "others"] = "all",
    scale: Literal["none", "std"] = "none",
) -> Tensor:
    """Group-relative advantages [N] of `returns` [N], each in its group of `groups` [N].

    G - mean over its group of n (`all`), or over the n - 1 others (`others`, which is n / (n - 1) times as much);
    with `std` divided by the group's population standard deviation. A group of one has no baseline and gets 0; so does,
    exactly, a group whose returns are equal up to rounding, whose tiny std would make rounding look like information.

    (GRPO, arXiv 2402.03300: all, std. Dr. GRPO, arXiv 2503.20783: all, none. RLOO, arXiv 2402.14740: others, none.)
    """
    index = torch.unique(groups, return_inverse=True)[1]
    centred = returns - _group_means(returns, index)
    sizes = torch.bincount(index).to(returns.dtype)
    if mean == "others":
        centred = centred * (sizes / (sizes - 1).clamp(min=1))[index]
    if scale == "none":
        return centred
    blank = torch.zeros(sizes.shape, dtype=returns.dtype, device=returns.device)
    spread = (blank.index_add(0, index, (returns - _group_means(returns, index)).square()) / sizes).sqrt()[index]
    return torch.where(spread > 0, centred / torch.where(spread > 0, spread, 1.0), 0.0)


def running_credit(batch: Batch, links: Links, means: Mapping[str, float]) -> Credit:
    """An action's discounted return-to-go minus its agent's mean return in earlier iterations, `means` by name.

    An agent without one yet is compared with its mean in this batch. For play in which what one side wins the other
    loses: a group's mean is then 0 whatever anyone does, while each role has a return to beat.
    """
    chain = _lay_chain(batch)
    returns = _returns_to_go(batch, chain, links)
    now = _agent_means(returns[chain.first], batch)
    known = torch.tensor([means.get(name, now.get(name, 0.0)) for name in batch.agents], dtype=returns.dtype)
    compared = returns[chain.first] - known.to(returns.device)[batch.agent]
    dtype = torch.promote_types(batch.rewards.dtype, torch.float32)
    return Credit(_spread(batch, chain, compared[chain.row], dtype), _place(batch, chain, returns, dtype))


def running_means(batch: Batch, links: Links, means: Mapping[str, float], decay: float) -> dict[str, float]:
    """`means` after a batch: decay * before + (1 - decay) * the batch's mean return-to-go per agent that acted."""
    chain = _lay_chain(batch)
    now = _agent_means(_returns_to_go(batch, chain, links)[chain.first], batch)
    return {**means, **{name: decay * means.get(name, mean) + (1.0 - decay) * mean for name, mean in now.items()}}


def lone_groups(groups: Tensor) -> int:
    """How many groups of `groups` [N] hold a single row and so have no group baseline."""
    return int((torch.unique(groups, return_counts=True)[1] == 1).sum())


def normalise_advantages(
    credit: Credit, batch: Batch, how: Literal["batch", "agent", "none"], learning: Tensor | None = None
) -> Credit:
    """The same credit with advantages of mean 0 and (population) std 1 over all decisions, or over each agent's.

    Only the rows `learning` [N] count (None: all): what a partner that is never trained did says nothing of those who
    are. At action level an action counts once, however long it is; at token level each token counts. An advantage of
    exactly 0 is data like any other. Where all advantages are equal up to rounding (a single decision is such a set)
    there is nothing to learn from their differences, and they become exactly 0. Returns are left as they are.
    """
    if how == "none":
        return credit
    decisions = batch.decision_mask if learning is None else batch.decision_mask & learning[:, None]
    row, column = decisions.nonzero(as_tuple=True)
    agent = batch.agent if how == "agent" else torch.zeros_like(batch.agent)
    advantages = credit.advantages.double()
    # Advantages are differences of returns and values, so their rounding is as large as the returns' and not theirs
    sizes = torch.maximum(credit.returns.double().abs(), advantages.abs())[row, column]
    chosen = advantages[row, column]
    result = torch.zeros_like(advantages)
    for each in torch.unique(agent).tolist():
        mine = agent[row] == each
        if not bool(mine.any()):
            continue
        mean, std = chosen[mine].mean(), chosen[mine].std(correction=0)
        # Not a number is not "no difference": it must reach the update, which refuses it, and never become 0
        if not bool(std.isfinite()) or float(std) > ROUNDING * float(sizes[mine].max()):
            here = batch.action_mask.bool() & (agent == each)[:, None]
            result = torch.where(here, (advantages - mean) / std, result)
    return replace(credit, advantages=result.to(credit.advantages.dtype))


@dataclass(frozen=True)
class _Chain:
    """Where each of the batch's D decisions sits: `row`, `column` in [N, S] and `episode`, `step` in [B, K].

    `first` [N] is the decision each row starts with, `last` [D] marks the last decision of a row, and `length` [B]
    counts an episode's decisions.
    """

    row: Tensor
    column: Tensor
    episode: Tensor
    step: Tensor
    first: Tensor
    last: Tensor
    length: Tensor


def _lay_chain(batch: Batch) -> _Chain:
    mask = batch.decision_mask.bool()
    per_row = mask.sum(dim=1)
    if bool((per_row == 0).any()):  # its reward would vanish in silence
        raise ValueError(f"row {int((per_row == 0).nonzero()[0, 0])} has no decision: empty actions cannot be credited")
    if bool((mask & ~batch.action_mask.bool()).any()):
        raise ValueError("a decision lies outside action_mask")
    if bool((batch.action_mask.bool() & (mask.cumsum(dim=1) == 0)).any()):
        raise ValueError("an action's first token must be a decision")
    if bool((batch.episode.diff() < 0).any()):  # rows of one episode must be neighbours, or its chain is cut
        raise ValueError("rows must be in episode order")
    row, column = mask.nonzero(as_tuple=True)  # row by row, left to right: the order of execution
    episode = batch.episode[row]
    length = torch.bincount(episode, minlength=batch.terminated.shape[0])
    starts = length.cumsum(0) - length
    step = torch.arange(row.shape[0], device=row.device) - starts[episode]
    ends = per_row.cumsum(0)
    last = torch.zeros_like(row, dtype=torch.bool)
    last[ends - 1] = True
    return _Chain(row, column, episode, step, ends - per_row, last, length)


def _chain_gae(
    batch: Batch, chain: _Chain, links: Links, values: Tensor, final_values: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Advantages and returns [D] of the batch's decisions, in float64."""
    episodes, steps = chain.length.shape[0], int(chain.length.max()) if chain.length.numel() else 0
    blank = torch.zeros(episodes, steps + 1, dtype=torch.float64, device=chain.row.device)
    place = (chain.episode, chain.step)
    chain_values = blank.clone()
    if final_values is not None:
        # A terminated episode's entry lies beyond a link of discount 0, so gae does not read it
        chain_values[torch.arange(episodes, device=blank.device), chain.length] = final_values.detach().double()
    elif not bool(batch.terminated.all()):
        raise ValueError("truncated episodes need final_values to bootstrap from")
    chain_values = chain_values.index_put(place, values[chain.row, chain.column].double())
    rewards = torch.where(chain.last, batch.rewards[chain.row].double(), 0.0)
    discounts, lambdas = _link_numbers(batch, chain, links)
    on_chain = [blank[:, :-1].index_put(place, each) for each in (rewards, discounts, lambdas)]
    advantages, returns = gae(on_chain[0], chain_values, on_chain[1], on_chain[2])
    return advantages[place], returns[place]


def _link_numbers(batch: Batch, chain: _Chain, links: Links) -> tuple[Tensor, Tensor]:
    """Discount and lambda [D] of the link that leaves each decision."""
    turn = batch.turn[chain.row]
    same_turn = torch.zeros_like(chain.last)
    same_turn[:-1] = turn[:-1] == turn[1:]
    discounts = torch.full_like(chain.row, links.gamma, dtype=torch.float64)
    discounts = torch.where(same_turn, links.gamma_agent, discounts)
    discounts = torch.where(chain.last, discounts, links.gamma_token)
    ends = chain.step == chain.length[chain.episode] - 1
    at_end = links.gamma * (~batch.terminated.bool()).double()
    discounts = torch.where(ends, at_end[chain.episode], discounts)
    lambdas = torch.where(chain.last, torch.full_like(discounts, links.lam), links.lam_token)
    return discounts, torch.where(ends, 0.0, lambdas)


def _returns_to_go(batch: Batch, chain: _Chain, links: Links) -> Tensor:
    """Discounted return-to-go [D]: GAE with lambda = 1 and V = 0."""
    unvalued = torch.zeros_like(batch.decision_mask, dtype=torch.float64)
    final = torch.zeros_like(batch.terminated, dtype=torch.float64)
    return _chain_gae(batch, chain, replace(links, lam=1.0, lam_token=1.0), unvalued, final)[1]


def _agent_means(action_returns: Tensor, batch: Batch) -> dict[str, float]:
    """The mean return [of N] of each agent that acted."""
    return {
        name: float(action_returns[batch.agent == place].mean())
        for place, name in enumerate(batch.agents)
        if bool((batch.agent == place).any())
    }


def _group_means(numbers: Tensor, index: Tensor) -> Tensor:
    """The mean [N] of each entry's group `index` [N]; the entry itself where the group is constant up to rounding."""
    size = int(index.max()) + 1 if index.numel() else 0
    blank = torch.zeros(size, dtype=numbers.dtype, device=numbers.device)
    counts = blank.index_add(0, index, torch.ones_like(numbers))
    means = blank.index_add(0, index, numbers) / counts
    highest = blank.scatter_reduce(0, index, numbers, "amax", include_self=False)
    lowest = blank.scatter_reduce(0, index, numbers, "amin", include_self=False)
    constant = highest - lowest <= ROUNDING * torch.maximum(highest.abs(), lowest.abs())
    return torch.where(constant[index], numbers, means[index])


def _place(batch: Batch, chain: _Chain, numbers: Tensor, dtype: torch.dtype) -> Tensor:
    """Decisions' numbers [D] at their own positions of [N, S], zero elsewhere."""
    blank = torch.zeros_like(batch.decision_mask, dtype=torch.float64)
    return blank.index_put((chain.row, chain.column), numbers).to(dtype)


def _spread(batch: Batch, chain: _Chain, numbers: Tensor, dtype: torch.dtype) -> Tensor:
    """Decisions' numbers [D] on every action token from the decision to the next, zero off `action_mask`."""
    ordinal = batch.decision_mask.long().flatten().cumsum(0).view_as(batch.decision_mask) - 1
    return torch.where(batch.action_mask.bool(), numbers[ordinal.clamp(min=0)], 0.0).to(dtype)
