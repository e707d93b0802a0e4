"""Teach the small model its corpus, once, and keep it in the user's cache as an ordinary local model folder."""

from __future__ import annotations

import hashlib
import json
import math
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence

from benchmarks.nano.corpus import Lesson, Noise, lessons
from benchmarks.nano.model import SPECIAL, TEMPLATE, WORDS, Shape, build_model
from marft.models.base import quiet
from marft.models.chat import Chat, Exchange
from marft.models.packaged import cache_folder, is_whole

POOL = 16  # batches are cut from so many batches' lessons sorted by length, so that little is padding
LOOP = 1  # to be counted up whenever `train` or `batches` changes what it computes: models made before are then stale
SHOWN = 1000  # lessons from which a changed corpus is recognised


@dataclass(frozen=True)
class Recipe:
    """Everything that decides the weights; `threads` too, because sums are taken in another order with another count.

    Processors that compute bfloat16 differently give slightly different weights.
    """

    seed: int = 0
    steps: int = 1200
    rows: int = 64
    lr: float = 2e-3
    warmup: int = 50
    threads: int = 2
    noise: Noise = field(default_factory=Noise)
    shape: Shape = field(default_factory=Shape)

    @property
    def name(self) -> str:
        """`nano-` and a hash of all that decides the weights: the recipe, the words and the lessons they make up."""
        corpus = [asdict(each) for each in islice(lessons(random.Random(f"nano/{self.seed}"), self.noise), SHOWN)]
        decides = (LOOP, POOL, asdict(self), SPECIAL, WORDS, TEMPLATE, corpus)
        return f"nano-{hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()[:12]}"


Progress = Callable[[int, float], None]
"""Called after each step with its number, from 0, and its loss."""


def nano_model(seed: int = 0, recipe: Recipe | None = None, progress: Progress = lambda step, loss: None) -> Path:
    """The folder of the small model, for `model: {name: FOLDER}`; it is trained now (minutes) if there is none.

    `recipe` replaces the usual one, and `seed` with it.
    """
    recipe = recipe or Recipe(seed=seed)
    folder = cache_folder() / recipe.name
    if not is_whole(folder):
        write(recipe, folder, progress)
    return folder


def write(recipe: Recipe, folder: Path, progress: Progress = lambda step, loss: None) -> None:
    """Train and write a model folder, which appears whole or not at all."""
    model, tokenizer = train(recipe, progress)
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        with quiet():
            model.save_pretrained(unfinished)
            tokenizer.save_pretrained(unfinished)
        (unfinished / "recipe.json").write_text(json.dumps(asdict(recipe), indent=1), encoding="utf8")
        sums = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(unfinished.iterdir())}
        (unfinished / "SHA256.json").write_text(json.dumps(sums, indent=1), encoding="utf8")
        if not is_whole(folder):  # another process may have been faster
            if folder.exists():
                shutil.rmtree(folder)
            os.rename(unfinished, folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def train(recipe: Recipe, progress: Progress = lambda step, loss: None) -> tuple[Any, Any]:
    """The trained model (float32) and its tokenizer. The same recipe gives the same weights."""
    before = torch.get_num_threads()
    torch.set_num_threads(recipe.threads)
    try:
        model, tokenizer = build_model(recipe.shape, recipe.seed)
        optimiser = torch.optim.AdamW(model.parameters(), recipe.lr, betas=(0.9, 0.98), weight_decay=0.01)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: _rate(step, recipe))
        found = batches(recipe, Chat(tokenizer, (tokenizer.eos_token_id,)))
        for step, (ids, wanted) in enumerate(islice(found, recipe.steps)):
            # Padding stands to the right, where causal attention never looks
            with torch.autocast("cpu", torch.bfloat16):
                logits = model(input_ids=ids, use_cache=False).logits
            loss = cross_entropy(logits[:, :-1].flatten(0, 1).float(), wanted[:, 1:].flatten())
            optimiser.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            schedule.step()
            progress(step, loss.item())
    finally:
        torch.set_num_threads(before)
    return model.eval(), tokenizer


def batches(recipe: Recipe, chat: Chat) -> Iterator[tuple[Tensor, Tensor]]:
    """Ids [rows, S] and targets [rows, S], -100 everywhere but on the replies."""
    draw = random.Random(f"nano/{recipe.seed}")
    taught = lessons(draw, recipe.noise)
    while True:
        pool = sorted((tokens(lesson, chat) for lesson in islice(taught, POOL * recipe.rows)), key=_length)
        cuts = [pool[start : start + recipe.rows] for start in range(0, len(pool), recipe.rows)]
        draw.shuffle(cuts)
        for rows in cuts:
            ids = [torch.tensor([*prompt, *reply]) for prompt, reply in rows]
            wanted = [torch.tensor([*[-100] * len(prompt), *reply]) for prompt, reply in rows]
            yield pad_sequence(ids, batch_first=True), pad_sequence(wanted, batch_first=True, padding_value=-100)


def tokens(lesson: Lesson, chat: Chat) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """A lesson's prompt, exactly as an agent would read it in play, and its reply with the end of turn."""
    prompt = chat.prompt(lesson.profile, [Exchange(lesson.heard)])
    return prompt, (*chat.encode(lesson.reply), *chat.stop_ids)


def _length(row: tuple[tuple[int, ...], tuple[int, ...]]) -> int:
    return len(row[0]) + len(row[1])


def _rate(step: int, recipe: Recipe) -> float:
    """Linear warm-up, then half a cosine down to a twentieth."""
    if step < recipe.warmup:
        return (step + 1) / recipe.warmup
    done = (step - recipe.warmup) / max(1, recipe.steps - recipe.warmup)
    return 0.05 + 0.475 * (1 + math.cos(math.pi * done))
