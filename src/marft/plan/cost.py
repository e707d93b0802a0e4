"""What one iteration costs: bytes in play and while learning, FLOPs of every phase, seconds of decoding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from marft.config import Config
from marft.game import FlexMG
from marft.plan import shapes, speeches
from marft.plan.crews import Crew
from marft.plan.machine import GIB, Assumptions
from marft.plan.shapes import FLOAT, Reading
from marft.plan.speeches import Speech

RESERVE = 1 * GIB  # of the process itself: the CUDA context and libraries, or Python with torch and transformers
AFTER = 0.25  # share of an agent's rows that are scored once more after its update, to be looked at
DECODE = {"vllm": 0.5, "torch": 0.1}  # share of the bandwidth that a step of decoding reaches, unless one is given


@dataclass(frozen=True)
class Work:
    """One iteration: its episode at mean lengths (`played`) and at the longest ones (`widest`)."""

    config: Config
    game: FlexMG
    crews: Sequence[Crew]
    played: Sequence[Speech]
    widest: Sequence[Speech]
    given: Assumptions
    cpu: bool = False

    @property
    def size(self) -> tuple[int, int]:
        """Tasks and samples."""
        return self.config.rollout.tasks, self.config.rollout.samples

    @property
    def gpus(self) -> int:
        """Devices that play; one of them learns."""
        play = self.config.rollout
        return play.vllm.tensor_parallel_size if play.engine == "vllm" else 1

    @property
    def learners(self) -> list[str]:
        """The agents that learn."""
        return [agent.name for agent in self.game.agents if agent.trainable]

    def of(self, agents: Sequence[str], widest: bool = False) -> list[Speech]:
        """The replies of some agents."""
        return [each for each in (self.widest if widest else self.played) if each.agent in agents]

    def longest(self, crew: Crew) -> float:
        """The longest row of a crew, prompt and reply."""
        return max((each.end for each in self.of(crew.agents, widest=True)), default=1.0)

    def rows(self, agent: str) -> Reading:
        """One learner's pass over an agent's rows."""
        return speeches.rows_read(self.of([agent]), *self.size, self.config.update.micro_tokens)

    def masked(self, crew: Crew) -> float:
        """Queries times keys under a mask in one pack: rows that share a prefix, or the views of one episode."""
        budget, samples = self.config.update.micro_tokens, self.size[1]
        learners = [name for name in self.learners if name in crew.agents]
        found = [speeches.masked_pairs(self.of([name]), samples, budget) for name in learners]
        if crew.critics and self.config.critic.kind == "shared" and len(self.played) > 1:
            found.append(min(float(budget), self.played[-1].view) ** 2)
        return max(found, default=0.0)

    def views(self, crew: Crew) -> Reading:
        """The critics' pass over what they read."""
        if not crew.critics:
            return Reading(0.0, 0.0, 0.0)
        if self.config.critic.kind == "own":
            return speeches.together([self.rows(name) for name in self.learners if name in crew.agents])
        tokens = self.config.update.level == "token"
        return speeches.views_read(self.played, *self.size, self.config.update.micro_tokens, tokens)


def held_bytes(work: Work) -> dict[str, float]:
    """What stays in memory throughout. Gradients stay until their adapter's next update.

    On a CPU in bfloat16 the torch engine keeps a second copy of the adapted layers, in another order.
    """
    crews = work.crews
    found = {
        "base": sum(crew.weights for crew in crews),
        "adapters": sum(crew.adapters for crew in crews),
        "moments of AdamW": sum(crew.moments for crew in crews),
        "gradients": sum(FLOAT * crew.trained for crew in crews),
        "the process itself": float(RESERVE),
    }
    if work.cpu and work.config.rollout.engine == "torch":
        mine = [crew.shape for crew in crews if crew.element == 2 and not crew.whole and crew.model.quantise == "none"]
        if mine:
            found["reordered layers"] = sum(2.0 * shape.linear_parameters for shape in mine)
    return found


def play_bytes(work: Work) -> dict[str, float]:
    """What play needs besides: the torch engine's caches, factors and a pass; or what vLLM is given."""
    if work.config.rollout.engine == "vllm":
        return {"vLLM": sum(vllm_bytes(work, crew) for crew in work.crews)}
    play, lora = work.config.rollout, work.config.lora
    found = dict.fromkeys(("slots", "known prefixes", "factors side by side", "a pass", "logits"), 0.0)
    for crew in work.crews:
        cached = shapes.cached_bytes(crew.shape, crew.element)
        found["slots"] += play.slots * shapes.slot_room(ceil(work.longest(crew))) * cached
        found["known prefixes"] += play.prefix_tokens * cached
        if not crew.whole:
            stack = shapes.stack_bytes(crew.shape, lora.r, lora.targets, crew.element)
            found["factors side by side"] += shapes.stacked(crew.playing) * stack
        found["a pass"] += shapes.pass_bytes(crew.shape, shapes.PASS + play.slots, crew.element)
        found["logits"] += shapes.playing_logits(crew.shape, lanes(work), crew.element)
    return found


def learn_bytes(work: Work) -> dict[str, float]:
    """What learning needs besides: the largest pack's activations, a chunk of logits; vLLM where it does not sleep.

    A pack has `update.micro_tokens` tokens, or those of the longest row that stands alone.
    """
    update = work.config.update
    found = {"activations": 0.0, "scores under a mask": 0.0, "gradients in flight": 0.0, "logits": 0.0}
    for crew in work.crews:
        mine = [work.rows(name) for name in work.learners if name in crew.agents]
        copies = speeches.together([*mine, work.views(crew)]).copies
        tokens, longest = update.micro_tokens, min(work.longest(crew), crew.context)
        shape, element = crew.shape, crew.element
        packed = shapes.activation_bytes(shape, tokens, element, crew.low, copies)
        alone = shapes.activation_bytes(shape, longest, element, crew.low) if longest > tokens else 0.0
        if not work.cpu:  # there attention takes its mask in a fused kernel
            scores = shapes.score_bytes(shape, work.masked(crew))
            found["scores under a mask"] = max(found["scores under a mask"], scores)
        rounded = element * crew.adapter if element < FLOAT else 0.0  # the factors in the base's dtype
        found["activations"] = max(found["activations"], max(packed, alone) + rounded)
        flight = shapes.pass_bytes(shape, max(tokens, longest if longest > tokens else 0.0), element)
        found["gradients in flight"] = max(found["gradients in flight"], flight)
        trained = crew.whole or update.entropy > 0
        found["logits"] = max(found["logits"], float(shapes.learning_logits(shape, trained)))
    if work.config.rollout.engine == "vllm" and not work.config.rollout.vllm.sleep:
        found["vLLM"] = play_bytes(work)["vLLM"]
    return found


def vllm_bytes(work: Work, crew: Crew) -> float:
    """On each of its GPUs: the share of the memory that it is given, or its part of the weights and the cache asked."""
    given = work.config.rollout.vllm
    if given.cache_gib is None:
        return given.gpu_memory_utilization * work.given.machine.memory
    return crew.weights / given.tensor_parallel_size + given.cache_gib * GIB


def vllm_tokens(work: Work, crew: Crew) -> float:
    """How many tokens' keys and values vLLM can hold: what is left beside weights and a tenth for its passes."""
    given = work.config.rollout.vllm
    each = shapes.cached_bytes(crew.shape, crew.element) / given.tensor_parallel_size
    if given.cache_gib is not None:
        return given.cache_gib * GIB / each
    return max(0.0, 0.9 * vllm_bytes(work, crew) - crew.weights / given.tensor_parallel_size) / each


def lanes(work: Work) -> float:
    """Replies that grow at a time: all that need not wait for each other, within slots, and within vLLM's cache."""
    lines, depth = speeches.turn_of(work.game)
    tasks, samples = work.size
    found = min(float(work.config.rollout.slots), tasks * samples * len(lines) / depth)
    if work.config.rollout.engine != "vllm":
        return found
    for crew in work.crews:
        mine = work.of(crew.agents)
        if mine:
            found = min(found, vllm_tokens(work, crew) / (sum(each.end for each in mine) / len(mine)))
    return max(1.0, found)


def play_flops(work: Work) -> dict[str, float]:
    """FLOPs of play, over prompts and over replies."""
    found = {"play: prompts": 0.0, "play: replies": 0.0}
    for crew in work.crews:
        mine, lora = work.of(crew.agents), 0 if crew.whole else crew.adapter
        prompts, drawn = speeches.prompts_read(mine, *work.size), speeches.replies_drawn(mine, *work.size)
        found["play: prompts"] += shapes.forward_flops(crew.shape, prompts, lora)
        found["play: replies"] += shapes.forward_flops(crew.shape, drawn, lora)
    return found


def learn_flops(work: Work) -> dict[str, float]:
    """FLOPs of learning: F a forward pass over all rows of the agents that learn (or over the critics' views).

    Score: F, and F again for a reference. Critic: F. Update: epochs (F + B), a quarter of F to look at the result, and
    F where HAPPO carries a ratio on; one agent in n with `alternate`. Fit: epochs (F + B). B, the backward pass, is F
    for a frozen base (no gradients of weights but the adapters'), 2 F for whole weights.
    """
    update, critic = work.config.update, work.config.critic
    found = dict.fromkeys(("score", "critic", "update", "fit critic"), 0.0)
    again = 1 + work.config.rollout.reuse
    for crew in work.crews:
        lora, backward = (0, 2) if crew.whole else (crew.adapter, 1)
        learners = [name for name in work.learners if name in crew.agents]
        rows = sum(shapes.forward_flops(crew.shape, work.rows(name), lora) for name in learners)
        views = shapes.forward_flops(crew.shape, work.views(crew), lora)
        passes = update.epochs * (1 + backward) + AFTER + (update.carry == "happo")
        turns = len(work.learners) if update.schedule == "alternate" else 1
        found["score"] += again * rows * (1 + (update.kl_reference > 0))
        found["critic"] += again * views
        found["update"] += again * rows * passes / turns
        found["fit critic"] += again * views * critic.epochs * (1 + backward)
    return found


def decode_seconds(work: Work, crew: Crew) -> float:
    """Seconds in which replies grow: steps x the longer of moving bytes and multiplying.

    Steps: tokens drawn / `lanes`. A step moves the linear layers, the projection, the factors of all adapters, and the
    keys and values of every row, at `decode` of the bandwidth; and multiplies at `mfu` of the peak.
    """
    given, mine = work.given, work.of(crew.agents)
    if not mine:
        return 0.0
    drawn, rows, shape = speeches.replies_drawn(mine, *work.size), lanes(work), crew.shape
    lora = work.config.lora
    factors = 0 if crew.whole else crew.playing * shapes.stack_bytes(shape, lora.r, lora.targets, crew.element)
    read = crew.weights - (0 if shape.tied else shape.head_parameters * crew.element)  # of the embedding, a few rows
    moved = read + factors + rows * drawn.pairs / drawn.tokens * shapes.cached_bytes(shape, crew.element)
    flops = shapes.forward_flops(shape, drawn, 0 if crew.whole else crew.adapter) / drawn.tokens * rows
    share = given.decode or DECODE[work.config.rollout.engine]
    moving = moved / (given.machine.bandwidth * share * work.gpus)
    multiplying = flops / (given.machine.flops * given.mfu * work.gpus)
    return drawn.tokens / rows * max(moving, multiplying)
