"""What an adapter is: LoRA tensors on top of the frozen base model, or a whole set of weights in the base's place.

Only what differs between the two lives here; a `Policy` scores and decodes through either.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.func import functional_call
from torch.nn import Parameter

from marft.config import LoraConfig
from marft.models.base import Base, quiet
from marft.models.bundles import Bundle, Stack, find_bundles
from marft.models.low_rank import PEFT_PREFIX, Pair, Shape, Switch, insert, with_one
from marft.types import MarftError

Backbone = Callable[..., Any]  # what transformers' decoder takes -> its output, with `last_hidden_state`
Head = Callable[[Tensor], Tensor]  # states [..., H] -> logits [..., V]

MOST_STACKS = 8  # mixtures of adapters whose factors are kept side by side
LORA_FILE = "adapter_model.safetensors"
FULL_FILE = "model.safetensors"


class Routes(Protocol):
    """The decoder for batches whose rows belong to different adapters, without gradients.

    It holds while weights stay as they are; when they have changed, a new one must be made.
    """

    def shares(self, adapters: Sequence[str | None]) -> list[list[int]]:
        """Which rows of a batch can go through one forward pass together: all, or those of one adapter."""
        ...

    def hidden(self, adapters: Sequence[str | None], **inputs: Any) -> Tensor:
        """Last hidden states [b, q, H] of rows of one share: token i of the flattened batch is `adapters[i]`'s."""
        ...


class Weights(Protocol):
    """The weights of all adapters of one base model. The name None stands for the base as it was loaded."""

    base: Base  # what runs: of the base that was given, or a module tree of its own over the same frozen tensors

    def parameters(self, name: str) -> dict[str, Parameter]:
        """An adapter's own tensors, always float32: never another's, and the same objects for as long as this lives."""
        ...

    def acting_as(self, name: str | None) -> AbstractContextManager[Backbone]:
        """The decoder as `name` computes it. A backward pass may follow later, after others have acted."""
        ...

    def routes(self) -> Routes:
        """The decoder for batches of many adapters, with the weights as they are now."""
        ...

    def head(self, name: str | None) -> Head:
        """The vocabulary projection of `name`, bound to its tensors: it may be called at any time."""
        ...

    def save(self, name: str, folder: Path) -> None:
        """Write one adapter as a folder that plain peft (LoRA) or plain transformers (full) loads."""
        ...

    def load(self, name: str, folder: Path) -> None:
        """Overwrite an adapter with what `save` wrote. Raises `MarftError` when it is missing, damaged or unfitting."""
        ...

    def merged(self, name: str) -> Any:
        """The base as `name` makes it: a plain transformers model with memory of its own."""
        ...


class LoraAdapters:
    """LoRA adapters by name on one frozen base.

    The layers are put into a module tree of its own over the same frozen tensors, so that other policies on this base,
    and the base itself, stay as they are.
    """

    def __init__(self, base: Base, lora: LoraConfig, names: Sequence[str], seed: int = 0) -> None:
        with quiet():
            from peft import LoraConfig as PeftConfig

        self._plain = base.model
        self.base = replace(base, model=_tree_over(base.model))
        self._switch = Switch()
        self._settings: Any = None
        self._shapes: dict[str, Shape] = {}
        self._bundles: list[Bundle] | None = None  # found when somebody plays
        self._pairs: dict[str, dict[str, Pair]] = {}
        wanted = PeftConfig(r=lora.r, lora_alpha=lora.alpha, target_modules=lora.targets, task_type="CAUSAL_LM")
        with torch.random.fork_rng(devices=[]), quiet():
            if names:
                self._settings, self._shapes = insert(self.base.model, wanted, self._switch, base.name)
            for name in names:
                torch.manual_seed(_seed_of(seed, name))
                self._pairs[name] = {place: Pair.fresh(shape) for place, shape in self._shapes.items()}

    def parameters(self, name: str) -> dict[str, Parameter]:
        """The tensors A and B of one adapter, by peft's names."""
        tensors = {}
        for place, pair in self._pairs[name].items():
            tensors[f"{place}.lora_A.weight"] = pair.down
            tensors[f"{place}.lora_B.weight"] = pair.up
        return tensors

    @contextmanager
    def acting_as(self, name: str | None) -> Iterator[Backbone]:
        """Route the decoder through one adapter, or through none."""
        with self._switch.computing(None if name is None else with_one(self._pairs[name], self._shapes)):
            yield self.base.backbone

    def routes(self) -> Routes:
        """All rows of a batch in one pass, each through its own adapter."""
        if self._bundles is None:
            self._bundles = find_bundles(self.base.backbone, self._switch, self._shapes)
        return LoraRoutes(self.base, self._switch, self._pairs, self._shapes, self._bundles)

    def head(self, name: str | None) -> Head:
        """The base's own projection: no adapter reaches it."""
        head: Head = self.base.head
        return head

    def save(self, name: str, folder: Path) -> None:
        """Write peft's own two files; nothing else of the base model."""
        with _writing(folder):
            self._settings.save_pretrained(folder)
            save_file({key: each.detach() for key, each in self.parameters(name).items()}, folder / LORA_FILE)

    def load(self, name: str, folder: Path) -> None:
        """Read the tensors that `save` or peft wrote."""
        _overwrite(name, self.parameters(name), folder / LORA_FILE)

    @torch.no_grad()
    def merged(self, name: str) -> Any:
        """W + s B A in every layer. Raises `MarftError` on a quantised base: rounding would eat the sum."""
        if self.base.quantised:
            raise MarftError(
                f"model.quantise: an adapter cannot be merged into the rounded weights of {self.base.name}; "
                "export the adapter itself, or load the model with quantise: none"
            )
        model = copy.deepcopy(self._plain)
        model.set_attn_implementation("eager")
        for place, pair in self._pairs[name].items():
            weight = model.get_submodule(place.removeprefix(PEFT_PREFIX)).weight
            weight.add_(pair.delta(self._shapes[place]).to(weight.dtype))
        return model


class LoraRoutes:
    """`Routes` over LoRA adapters: one pass for everybody."""

    def __init__(
        self, base: Base, switch: Switch, pairs: Mapping[str, Mapping[str, Pair]], shapes: Mapping[str, Shape],
        bundles: Sequence[Bundle],
    ) -> None:  # fmt: skip
        self._base, self._switch, self._pairs, self._shapes, self._bundles = base, switch, pairs, shapes, bundles
        self._stacks: dict[tuple[str, ...], Stack] = {}

    def shares(self, adapters: Sequence[str | None]) -> list[list[int]]:
        """All rows together."""
        return [list(range(len(adapters)))]

    def hidden(self, adapters: Sequence[str | None], **inputs: Any) -> Tensor:
        """Last hidden states [b, q, H]: only the adapters that are present cost anything."""
        present = tuple(sorted({name for name in adapters if name is not None}))
        with self._switch.computing(self._stack(present).compute(adapters)):
            states: Tensor = self._base.backbone(**inputs, use_cache=False).last_hidden_state
        return states

    def _stack(self, names: tuple[str, ...]) -> Stack:
        stack = self._stacks.pop(names, None) or Stack(
            names, self._pairs, self._shapes, self._bundles, self._base.model.dtype
        )
        self._stacks[names] = stack  # the latest comes last, and the first is the one that was not used for longest
        if len(self._stacks) > MOST_STACKS:
            del self._stacks[next(iter(self._stacks))]
        return stack


class FullWeights:
    """Under every name a whole float32 set of the base's parameters, which starts as a copy of them.

    A set takes the base's place for the length of a call (`torch.func.functional_call`), never in the module itself:
    the base cannot change, and a graph keeps the very tensors it was made with. Tensors that the base uses twice, as
    input embedding and as head, are one tensor of the set.
    """

    def __init__(self, base: Base, names: Sequence[str]) -> None:
        if base.quantised:
            raise MarftError(f"model.quantise: the rounded weights of {base.name} cannot be trained; use tuning: lora")
        own = dict(base.model.named_parameters())
        odd = next((each.dtype for each in own.values() if each.dtype != torch.float32), None)
        if odd is not None:
            raise MarftError(
                f"model.dtype: {base.name} is loaded as {str(odd).removeprefix('torch.')}, and tuning: full needs "
                "float32 weights (small steps are lost in others); set dtype: float32"
            )
        self.base = base
        self._sets = {name: {key: Parameter(each.detach().clone()) for key, each in own.items()} for name in names}
        self._in_backbone = _names_within(base.model, base.backbone)
        self._in_head = _names_within(base.model, base.head)

    def parameters(self, name: str) -> dict[str, Parameter]:
        """Every parameter of the model, by transformers' name."""
        return self._sets[name]

    @contextmanager
    def acting_as(self, name: str | None) -> Iterator[Backbone]:
        """The decoder on one set, or on the base's own tensors."""
        if name is None:
            yield self.base.backbone
            return
        backbone, chosen = self.base.backbone, self._chosen(name, self._in_backbone)
        yield lambda **inputs: functional_call(backbone, chosen, kwargs=inputs)

    def routes(self) -> Routes:
        """A pass per adapter."""
        return FullRoutes(self)

    def head(self, name: str | None) -> Head:
        """The projection of one set, or of the base."""
        head = self.base.head
        if name is None:
            return lambda states: head(states)
        chosen = self._chosen(name, self._in_head)
        return lambda states: functional_call(head, chosen, (states,))

    def save(self, name: str, folder: Path) -> None:
        """Write what transformers' `from_pretrained` loads: config and weights, without the tokenizer."""
        with _writing(folder), quiet():
            state = {key: each.detach() for key, each in self.parameters(name).items()}
            self.base.model.save_pretrained(folder, state_dict=state)

    def load(self, name: str, folder: Path) -> None:
        """Read the weights that `save` wrote."""
        _overwrite(name, self.parameters(name), folder / FULL_FILE)

    @torch.no_grad()
    def merged(self, name: str) -> Any:
        """A copy of the model that holds the set."""
        model = copy.deepcopy(self.base.model)
        model.set_attn_implementation("eager")
        for key, each in model.named_parameters():
            each.copy_(self._sets[name][key])
        return model

    def _chosen(self, name: str, places: Mapping[str, str]) -> dict[str, Tensor]:
        return {place: self._sets[name][key] for place, key in places.items()}


class FullRoutes:
    """`Routes` over whole sets of weights, which are read where they are: every adapter takes a pass of its own."""

    def __init__(self, weights: FullWeights) -> None:
        self._weights = weights

    def shares(self, adapters: Sequence[str | None]) -> list[list[int]]:
        """The rows of each adapter."""
        return [[row for row, other in enumerate(adapters) if other == adapter] for adapter in dict.fromkeys(adapters)]

    def hidden(self, adapters: Sequence[str | None], **inputs: Any) -> Tensor:
        """Last hidden states [b, q, H] of one adapter's rows."""
        (adapter,) = set(adapters)
        with self._weights.acting_as(adapter) as backbone:
            states: Tensor = backbone(**inputs, use_cache=False).last_hidden_state
        return states


def overwrite(name: str, own: Mapping[str, Parameter], tensors: Mapping[str, Tensor]) -> None:
    """Copy `tensors` into an adapter's own, in place. Raises `MarftError` when names or shapes do not fit."""
    if set(own) != set(tensors) or any(own[key].shape != tensors[key].shape for key in own):
        raise MarftError(
            f"adapter '{name}': its tensors do not fit this model and its tuning (another base model, or lora section?)"
        )
    with torch.no_grad():
        for key, parameter in own.items():
            parameter.copy_(tensors[key])


def _overwrite(name: str, own: Mapping[str, Parameter], file: Path) -> None:
    if not file.is_file():
        raise MarftError(f"{file.parent}: holds no {file.name} of adapter '{name}'; was the config changed?")
    try:
        tensors = load_file(file)
    except (OSError, SafetensorError) as error:
        raise MarftError(f"{file}: cannot be loaded: {error}") from None
    try:
        overwrite(name, own, tensors)
    except MarftError as error:
        raise MarftError(f"{file}: {error}") from None


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except (OSError, SafetensorError) as error:
        raise MarftError(f"{folder}: cannot be written: {error}") from None


def _tree_over(model: Any) -> Any:
    """A module tree of its own whose parameters and buffers are the very tensors of `model`."""
    shared = [*model.parameters(), *model.buffers()]
    return copy.deepcopy(model, {id(each): each for each in shared})


def _names_within(model: Any, part: Any) -> dict[str, str]:
    """For every parameter name inside `part` of a model, the name the model has for that tensor."""
    names = {id(each): name for name, each in model.named_parameters()}
    return {place: names[id(each)] for place, each in part.named_parameters(remove_duplicate=False)}


def _seed_of(seed: int, name: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}:{name}".encode()).digest()[:7], "big")
