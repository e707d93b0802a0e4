"""The small things tests are made of: tiny models, teams and games, and the same model without marft and peft."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from torch.func import functional_call
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from marft.config import Config, LoraConfig, SamplingConfig, parse_config
from marft.environments.base import Outcome
from marft.game.flexmg import Agent, FlexMG
from marft.generate.base import Reply, Request
from marft.models import attention
from marft.models.base import Base
from marft.models.chat import Chat
from marft.models.policy import Policy
from marft.models.tiny import build_tiny
from marft.rollout import Seat, Stage
from marft.team import Team, build_team
from marft.types import Action, Episode, Task

LORA = LoraConfig(r=4, alpha=8.0)
SCALING = 2.0  # alpha / r
LETTERS = "abcdefgh"


def base_of(model: Any, tokenizer: Any, context: int = 256, dtype: torch.dtype = torch.float32) -> Base:
    """A base made of a model and a tokenizer at hand."""
    model.eval().requires_grad_(False)
    attention.use(model)
    return Base("tiny", model.to(dtype), Chat(tokenizer, (tokenizer.eos_token_id,)), context)


def tiny_base(characters: str = LETTERS, hidden: int = 32, seed: int = 0, **settings: Any) -> Base:
    """A random Llama that speaks a few letters."""
    return base_of(*build_tiny(seed, characters, hidden), **settings)


def letters_base(letters: str = "ab", hidden: int = 16, seed: int = 0, spread: float = 0.4) -> Base:
    """A one-layer random Llama that knows letters and `<|end|>` (number 0: it pads, and stands for the unknown)."""
    words = {word: number for number, word in enumerate(["<|end|>", *letters])}
    core = Tokenizer(models.WordLevel(words, unk_token="<|end|>"))
    core.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    core.decoder = decoders.Fuse()
    template = "{% for m in messages %}{{ m['content'] }}<|end|>{% endfor %}"
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token="<|end|>", pad_token="<|end|>", chat_template=template
    )
    shape = LlamaConfig(
        vocab_size=len(words), hidden_size=hidden, intermediate_size=hidden, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1, tie_word_embeddings=False, bos_token_id=None, eos_token_id=0,
        pad_token_id=0, initializer_range=spread,
    )  # fmt: skip
    torch.manual_seed(seed)
    return base_of(LlamaForCausalLM(shape), tokenizer)


def stirred(policy: Policy, seed: int = 0, size: float = 0.2) -> Policy:
    """The policy with every adapter moved away from its start, where it adds nothing."""
    generator = torch.Generator().manual_seed(seed)
    for adapter in policy.adapters:
        for name, parameter in policy.parameters(adapter).items():
            if "lora_B" in name:
                parameter.data = size * torch.randn(parameter.shape, generator=generator)
            elif "lora_" not in name:
                parameter.data = parameter.data + 0.1 * size * torch.randn(parameter.shape, generator=generator)
    return policy


def policy_of(base: Base, *adapters: str, stir: bool = True) -> Policy:
    """A policy with small adapters, by default with something in them."""
    policy = Policy(base, LORA, adapters)
    return stirred(policy) if stir else policy


def snapshot(policy: Policy, adapter: str) -> dict[str, Tensor]:
    """A copy of an adapter's tensors."""
    return {name: each.detach().clone() for name, each in policy.parameters(adapter).items()}


def same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    """Whether two sets of tensors are equal bit for bit."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


class Plain:
    """A transformers model as it is: own copy, eager attention, one row at a time, adapters folded in as W + s B A."""

    def __init__(self, model: Any) -> None:
        self.model = type(model)(copy.deepcopy(model.config))  # a config remembers its attention
        # peft renames the layers it wraps; the frozen weights keep their order and shapes
        own = [name for name, _ in self.model.named_parameters()]
        frozen = [each for name, each in model.named_parameters() if "lora_" not in name]
        self.model.load_state_dict(dict(zip(own, frozen, strict=True)))
        self.model.float().eval().requires_grad_(False)
        self.model.set_attn_implementation("eager")

    def weights(self, adapter: Mapping[str, Tensor] | None) -> dict[str, Tensor]:
        """The effective weights, differentiable in the adapter's tensors: LoRA's, or a whole set under the model's."""
        weights = dict(self.model.named_parameters())
        weights |= {name: each for name, each in (adapter or {}).items() if name in weights}
        for name, down in (adapter or {}).items():
            if ".lora_A." in name:
                up = adapter[name.replace(".lora_A.", ".lora_B.")]
                place = name.removeprefix("base_model.model.").replace(".lora_A.", ".")
                weights[place] = weights[place] + SCALING * up @ down
        return weights

    def logits(self, ids: Sequence[int], adapter: Mapping[str, Tensor] | None = None) -> Tensor:
        """[len(ids), V]."""
        inputs = {"input_ids": torch.tensor([list(ids)]), "use_cache": False}
        return functional_call(self.model, self.weights(adapter), kwargs=inputs).logits[0]

    def hidden(self, ids: Sequence[int], adapter: Mapping[str, Tensor] | None = None) -> Tensor:
        """Last hidden states [len(ids), H]."""
        inputs = {"input_ids": torch.tensor([list(ids)]), "use_cache": False, "output_hidden_states": True}
        return functional_call(self.model, self.weights(adapter), kwargs=inputs).hidden_states[-1][0]

    def logprobs(
        self,
        prompt: Sequence[int],
        reply: Sequence[int],
        adapter: Mapping[str, Tensor] | None = None,
        heat: float = 1.0,
    ) -> Tensor:
        """Of each token of the reply, [A]."""
        logits = self.logits([*prompt, *reply], adapter)[len(prompt) - 1 : -1] / heat
        return torch.log_softmax(logits, -1).gather(1, torch.tensor([list(reply)]).T)[:, 0]

    def folded(self, adapter: Mapping[str, Tensor] | None) -> Any:
        """A plain model with the adapter merged, for `generate`."""
        merged = type(self.model)(self.model.config).eval()
        merged.load_state_dict({name: each.detach() for name, each in self.weights(adapter).items()})
        return merged


def config_of(*agents: str | Mapping[str, Any], environment: Any = None, **sections: Any) -> Config:
    """A config of a small quiet run; `sections` replace whole sections."""
    team = sections.pop("team", {})
    raw = {
        "model": {"name": "tiny"},
        "lora": {"r": 4, "alpha": 8},
        "rollout": {"tasks": 2, "samples": 2, "sampling": {"max_tokens": 3}},
        "evaluation": {"tasks": 0},
        "run": {"trackers": []},
        **sections,
        "team": {"agents": [{"name": each} if isinstance(each, str) else dict(each) for each in agents], **team},
        "environment": environment or {"name": "relay", "symbols": ["a", "b"], "prompt": "c", "hint": "{symbol}"},
    }
    return parse_config(raw)


def team_of(*agents: str | Mapping[str, Any], base: Base | None = None, world: Any = None, **settings: Any) -> Team:
    """A team of `config_of`, on a tiny base and in `world` if one is given."""
    team = build_team(config_of(*agents, **settings), base=base or tiny_base())
    return replace(team, game=replace(team.game, environment=world)) if world is not None else team


def agent(name: str, **settings: Any) -> Agent:
    """An agent of a game built by hand."""
    tokens = settings.pop("max_tokens", 8)
    sampling = settings.pop("sampling", SamplingConfig(max_tokens=tokens))
    defaults = {"profile": "", "sees_task": True, "trainable": True, "adapter": name}
    return Agent(name=name, sampling=sampling, **{**defaults, **settings})


def stage_of(game: FlexMG, chat: Chat, generator: Any, context: int = 1000, **rules: Any) -> Stage:
    """A stage on which all agents sit at one generator."""
    longest = max(each.sampling.max_tokens for each in game.agents)
    return Stage(game, dict.fromkeys(game.names, Seat(chat, generator, context, context - longest)), **rules)


class World:
    """An environment made of functions; its state is the list of turns played, each a mapping of messages."""

    name = "world"

    def __init__(
        self,
        pay: Callable[[list[dict[str, str]]], Any] = lambda said: 0.0,
        turns: int = 1,
        observe: Callable[[list[dict[str, str]], str], str] = lambda said, agent: "",
        over: Callable[[list[dict[str, str]]], bool] | None = None,
    ) -> None:
        self.pay = pay
        self.over = over or (lambda said: len(said) >= turns)
        self.look = observe
        self.seeds: list[int] = []

    def size(self, split: str) -> int | None:
        return None

    def task(self, split: str, index: int) -> Task:
        return Task(f"{split}-{index}", "c", data={"index": index})

    def reset(self, task: Task, agents: tuple[str, ...], seed: int) -> Any:
        self.seeds.append(seed)
        return []

    def observe(self, state: Any, agent: str) -> str:
        return self.look(state, agent)

    def step(self, state: Any, messages: Mapping[str, str]) -> Any:
        said = [*state, dict(messages)]
        return Outcome(said, self.pay(said), terminated=self.over(said))


def request(prompt: Sequence[int], adapter: str | None = None, seed: int = 0, **settings: Any) -> Request:
    """A request with sampling settings given by name."""
    greedy = settings.pop("greedy", False)
    order = settings.pop("order", (seed,))
    return Request(tuple(prompt), adapter, SamplingConfig(**settings), (seed,), order, greedy)


def ask(engine: Any, requests: Sequence[Request]) -> list[Reply]:
    """Put all requests to an engine at once."""

    async def together() -> list[Reply]:
        return await asyncio.gather(*(engine.generate(each) for each in requests))

    return asyncio.run(together())


def action(
    name: str = "ann", prompt: Sequence[int] = (5, 6, 7), tokens: Sequence[int] = (8, 9), turn: int = 0, **settings: Any
) -> Action:
    """An action as it would have been played."""
    defaults = {
        "parents": (), "joint_ids": (1, 2), "logprobs": tuple(-0.1 * (i + 1) for i in range(len(tokens))),
        "text": "two words", "stop": "stop", "policy_version": 0,
    }  # fmt: skip
    return Action(agent=name, turn=turn, prompt_ids=tuple(prompt), token_ids=tuple(tokens), **{**defaults, **settings})


def episode(*actions: Action, group: str = "t", **settings: Any) -> Episode:
    """A terminated episode of these actions."""
    defaults = {"terminated": True, "truncated": False, "sample": 0, "task": Task(group, "?")}
    return Episode(group=group, actions=actions, **{**defaults, **settings})
