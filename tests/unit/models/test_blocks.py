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


def both(rows, heads=(4, 2), window=None, dtype=torch.float32, size=8, values=8):
    """Output and gradients of queries, keys and values: by blocks, and by one mask; and the pack."""
    (packed,) = pack(rows, 10_000)
    count = len(packed.tokens)
    torch.manual_seed(count)
    shapes = ((heads[0], size), (heads[1], size), (heads[1], values))
    states = [torch.randn(1, count, *shape).to(dtype).transpose(1, 2) for shape in shapes]
    weight = torch.randn(1, count, heads[0], values).to(dtype)
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


def test_values_may_have_a_size_of_their_own():
    ours, dense, _ = both(SHAPES["shared"], size=8, values=12)
    for mine, theirs in zip(ours, dense, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-5)


def test_padding_beyond_a_window_sees_something():
    rows = [[1] * 80, [1] * 50 + [2] * 20, [1] * 80 + [3] * 15]
    ours, dense, packed = both(rows, window=4)
    for mine, theirs in zip(ours, dense, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-5)
    for block in cut(packed.paths, torch.device("cpu"), torch.float32, 4).blocks:
        assert block.windowed is None or (block.windowed == 0).any(-1).all()


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
    uneven = [[1] * 910, [1] * 910 + [2] * 90, *([3 + place] * 100 for place in range(20))]
    for rows in ([[place] * (10 + place) for place in range(40)], uneven):
        (packed,) = pack(rows, 10_000)
        found = cut(packed.paths, torch.device("cpu"), torch.float32).blocks
        products = sum(each.rows * each.queries * each.keys for each in found)
        alone = sum(len(row) ** 2 for row in rows)
        if rows is uneven:
            alone += 90 * 1000 - 1000**2  # its second row brings only 90 tokens
        assert alone <= products <= alone / module.ALIKE
        assert products < 0.5 * len(packed.tokens) ** 2


def test_rows_of_one_length_that_share_nothing_need_neither_mask_nor_gather():
    (packed,) = pack(SHAPES["alike"], 10_000)
    found = cut(packed.paths, torch.device("cpu"), torch.float32)
    assert [each.mask for each in found.blocks] == [None]
    assert found.queries.trivial
    assert found.keys.trivial
    assert additive(torch.tensor([True, False]), torch.float32).tolist() == [0.0, -torch.inf]
