"""Other people's code that does what marft does, set up as well as its documentation allows.

`LockStep` is what the authors' released code does to play: transformers' `generate`, agent by agent, over all episodes
at once, prompts padded on the left, each agent a peft adapter. A batch runs until its longest reply is done.
`train_with_trl` is TRL's GRPOTrainer on one agent.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from benchmarks.workload import Size, checksum, question, torch_dtype
from marft.config import LoraConfig, ModelConfig
from marft.models.base import BUILT_IN, quiet


def missing(package: str) -> str | None:
    """Why a peer cannot be measured here, or None."""
    return None if find_spec(package) else f"{package} is not installed (pip install -e '.[bench]')"


def plain_model(name: str, dtype: str) -> tuple[Any, Any]:
    """A model as transformers itself runs it, and its tokenizer."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with quiet():
        if name in BUILT_IN:
            model, tokenizer = BUILT_IN[name].load(ModelConfig(name=name), torch.device("cpu"))
        else:
            model, tokenizer = AutoModelForCausalLM.from_pretrained(name), AutoTokenizer.from_pretrained(name)
    for each in model.parameters():
        each.data = each.data.to(torch_dtype(dtype))
    return model.eval().requires_grad_(False), tokenizer


class LockStep:
    """transformers' `generate` with one adapter per agent; `merged`: with the adapters added into copies of the base.

    `cache` is generate's `cache_implementation` (None: its default, which grows).
    """

    def __init__(
        self, model: Any, tokenizer: Any, agents: Sequence[str], merged: bool = False, cache: str | None = None
    ) -> None:
        from peft import LoraConfig as PeftConfig
        from peft import get_peft_model

        ours = LoraConfig()
        settings = PeftConfig(r=ours.r, lora_alpha=ours.alpha, target_modules=ours.targets, task_type="CAUSAL_LM")
        self._pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
        self._cache = cache
        self._merged = {}
        self._peft = None
        if merged:
            for agent in agents:
                adapted = get_peft_model(copy.deepcopy(model), settings, autocast_adapter_dtype=False)
                self._merged[agent] = adapted.merge_and_unload()
        else:
            # In the base's dtype, which is faster than peft's default of float32 adapters on any base
            self._peft = get_peft_model(
                copy.deepcopy(model), settings, adapter_name=agents[0], autocast_adapter_dtype=False
            )
            for agent in agents[1:]:
                self._peft.add_adapter(agent, settings, autocast_adapter_dtype=False)
        for each in self._merged.values() if merged else [self._peft]:
            each.eval()
            each.generation_config.eos_token_id = None  # `generate` fills in what its own config leaves out

    def replies(
        self, agent: str, prompts: Sequence[Sequence[int]], lengths: Sequence[int]
    ) -> tuple[list[list[int]], int]:
        """One reply per prompt, row i of `lengths[i]` tokens, drawn at temperature 1; and the steps it took."""
        from transformers import GenerationConfig

        if self._peft is not None:
            self._peft.set_adapter(agent)
        model = self._peft if self._peft is not None else self._merged[agent]
        width = max(map(len, prompts))
        ids = torch.tensor([[self._pad] * (width - len(prompt)) + list(prompt) for prompt in prompts])
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        wanted = torch.tensor(lengths)

        def done(sequences: Tensor, scores: Tensor, **_: Any) -> Tensor:
            return sequences.shape[1] - width >= wanted

        settings = GenerationConfig(
            do_sample=True, temperature=1.0, top_k=0, top_p=1.0, max_new_tokens=max(lengths),
            pad_token_id=self._pad, eos_token_id=None, cache_implementation=self._cache,
        )  # fmt: skip
        found = model.generate(
            input_ids=ids, attention_mask=mask, generation_config=settings, stopping_criteria=[done]
        )  # fmt: skip
        rows = [row[width : width + length].tolist() for row, length in zip(found, lengths, strict=True)]
        assert [len(row) for row in rows] == list(lengths), "the peer ended a reply early"
        return rows, found.shape[1] - width


@dataclass(frozen=True)
class TrlSetting:
    """What TRL leaves to its user: rows per forward and backward pass, and whether activations are computed twice."""

    micro: int
    checkpointing: bool = True  # TRL's own default


def train_with_trl(
    size: Size, model: str, dtype: str, setting: TrlSetting, wait: Callable[[], None], report: Callable[..., None]
) -> None:
    """Run GRPOTrainer until `wait` raises: `wait()` before and `report(...)` after every optimiser step.

    One agent, the same questions, adapters, temperature and learning rate as `experiment`, replies of exactly
    `size.tokens` tokens.
    """
    import datasets
    import transformers
    from peft import LoraConfig as PeftConfig
    from trl import GRPOConfig, GRPOTrainer

    ours = LoraConfig()
    tokens: list[int] = []

    def reward(completions: Sequence[Any], completion_ids: Sequence[Sequence[int]], **_: Any) -> list[float]:
        tokens[:] = [len(ids) for ids in completion_ids]
        return [checksum(each[-1]["content"]) for each in completions]

    class Turns(transformers.TrainerCallback):  # the only way in that Trainer offers
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            wait()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            report(reply_tokens=sum(tokens), replies=len(tokens))

    prompts = [[{"role": "user", "content": question(number)}] for number in range(64 * size.tasks)]
    loaded, tokenizer = plain_model(model, dtype)
    with tempfile.TemporaryDirectory() as folder:
        settings = GRPOConfig(
            output_dir=folder, use_cpu=True, report_to="none", save_strategy="no", disable_tqdm=True,
            logging_steps=1000, max_steps=1000, seed=0, shuffle_dataset=False, dataloader_pin_memory=False,
            per_device_train_batch_size=setting.micro, gradient_accumulation_steps=size.replies // setting.micro,
            num_generations=size.samples, max_completion_length=size.tokens,
            generation_kwargs={"min_new_tokens": size.tokens}, temperature=1.0,
            learning_rate=1e-5, lr_scheduler_type="constant", bf16=dtype == "bfloat16",
            gradient_checkpointing=setting.checkpointing,
        )  # fmt: skip
        trainer = GRPOTrainer(
            model=loaded,
            reward_funcs=reward,
            args=settings,
            train_dataset=datasets.Dataset.from_list([{"prompt": prompt} for prompt in prompts]),
            processing_class=tokenizer,
            peft_config=PeftConfig(r=ours.r, lora_alpha=ours.alpha, target_modules=ours.targets, task_type="CAUSAL_LM"),
            callbacks=[Turns()],
        )
        trainer.train()
