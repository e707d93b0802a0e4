"""Attention in blocks equals one masked attention over the whole pack, in values and in gradients."""

import numpy as np
import pytest
import torch

from marft.models import blocks as module
from marft.models.attention import additive, attend
from marft.models.blocks import cut
from marft.models.pack import pack

PREFIX = [1, 2, 3, 4, 5, 6]
SHAPES = {  # rows of a pack
    "alike": [[place] * 6 for place in range(5)],
    "alone": [[3, 1, 2, 2]],
    "of all lengths": [[place] * (1 + 3 * place) for place in range(8)],
    "shared": [[*PREFIX, task, 9, sample, *[2] * (3 + sample)] for task in (1, 2) for sample in range(4)],
    "prefixes and duplicates": [PREFIX, PREFIX, PREFIX[:3], [*PREFIX[:3], 9], [9], PREFIX],
}


class Layer:
    """What `attend` asks of the layer it serves."""

    layer_idx = 0


def random_rows(seed):
    random = np.random.default_rng(seed)
    return [random.integers(0, 2, size=random.integers(1, 30)).tolist() for _ in range(25)]


def both(rows, heads=(4, 2), window=None, dtype=torch.float32, size=8):
    """Output and gradients of queries, keys and values: by blocks, and by one mask; and the pack."""
    (packed,) = pack(rows, 10_000)
    count = len(packed.tokens)
    torch.manual_seed(count)
    states = [torch.randn(1, count, n, size).to(dtype).transpose(1, 2) for n in (heads[0], heads[1], heads[1])]
    weight = torch.randn(1, count, heads[0], size).to(dtype)
    device = torch.device("cpu")
    found = []
    for inputs in (packed.inputs(device, dtype, window), packed.dense_inputs(device, dtype, window)):
        leaves = [each.clone().requires_grad_() for each in states]
        keywords = {name: each for name, each in inputs.items() if name in ("keys_values", "windowed_mask")}
        out, _ = attend(
            Layer(), *leaves, inputs["attention_mask"], scaling=0.4, sliding_window=window, **keywords
        )  # fmt: skip
        (out * weight).sum().backward()
        found.append([out.detach(), *(each.grad for each in leaves)])
    return *found, packed


@pytest.mark.parametrize("window", [None, 1, 3, 100])
@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (3, 1)])
@pytest.mark.parametrize("kind", SHAPES)
def test_blocks_equal_one_mask(kind, heads, window):
    ours, dense, _ = both(SHAPES[kind], heads, window)
    for mine, theirs in zip(ours, dense, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("seed", range(8))
def test_blocks_equal_one_mask_on_random_trees(seed):
    ours, dense, packed = both(random_rows(seed))
    assert len(packed.tokens) < sum(map(len, random_rows(seed)))  # something is shared
    for mine, theirs in zip(ours, dense, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("short", [0, 10**9])
def test_bfloat16_is_as_near_to_float32_as_the_one_mask_is(short, monkeypatch):
    monkeypatch.setattr(module, "SHORT", short)
    rows = SHAPES["shared"]
    exact, _, _ = both(rows)
    ours, dense, _ = both(rows, dtype=torch.bfloat16)
    for mine, theirs, true in zip(ours, dense, exact, strict=True):
        assert mine.dtype == torch.bfloat16
        assert torch.linalg.norm(mine - true) <= 1.5 * torch.linalg.norm(theirs - true) + 1e-3


def test_every_token_is_a_query_once_and_a_key_of_each_row_below_it():
    rows = SHAPES["shared"]
    (packed,) = pack(rows, 10_000)
    found = cut(packed.paths, torch.device("cpu"), torch.float32)
    queries, keys = found.queries, found.keys
    assert queries.index[queries.copies].tolist() == list(range(len(packed.tokens)))
    assert keys.index[keys.copies].tolist() == sorted(np.concatenate(packed.paths).tolist())


def test_products_are_about_those_of_each_row_alone():
    rows = [[place] * (10 + place) for place in range(40)]
    (packed,) = pack(rows, 10_000)
    found = cut(packed.paths, torch.device("cpu"), torch.float32).blocks
    products = sum(each.rows * each.queries * each.keys for each in found)
    alone = sum(len(row) ** 2 for row in rows)
    assert alone <= products <= alone / module.ALIKE
    assert products < 0.1 * len(packed.tokens) ** 2


def test_rows_of_one_length_that_share_nothing_need_neither_mask_nor_gather():
    (packed,) = pack(SHAPES["alike"], 10_000)
    found = cut(packed.paths, torch.device("cpu"), torch.float32)
    assert [each.mask for each in found.blocks] == [None]
    assert found.queries.trivial
    assert found.keys.trivial
    assert additive(torch.tensor([True, False]), torch.float32).tolist() == [0.0, -torch.inf]
