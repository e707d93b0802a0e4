"""The prefix tree: every prefix once, keys where they belong, and what is forgotten is what nobody used."""

import numpy as np
import pytest
import torch

from marft.generate.prefixes import Prefixes


def keys_of(nodes, token=1.0):
    """Keys [2 heads, n, 3] that say which node they are."""
    return torch.tensor([float(node) for node in nodes])[None, :, None].expand(2, -1, 3) * token


def grown(budget=100):
    """A tree of three paths for "one", one for "two", its keys written; and the claims."""
    prefixes = Prefixes(budget)
    claims = [
        prefixes.claim("one", [5, 6, 7]),
        prefixes.claim("one", [5, 6, 8, 9]),
        prefixes.claim("one", [5]),
        prefixes.claim("two", [5, 6, 7]),
    ]
    fresh = [node for claim in claims for node in claim.fresh]
    prefixes.write(0, torch.tensor(fresh), keys_of(fresh), -keys_of(fresh))
    return prefixes, claims


def test_every_prefix_stands_once_and_never_for_another_adapter():
    prefixes, claims = grown()
    assert [claim.path.tolist() for claim in claims] == [[0, 1, 2], [0, 1, 3, 4], [0], [5, 6, 7]]
    assert [claim.fresh for claim in claims] == [(0, 1, 2), (3, 4), (), (5, 6, 7)]
    assert len(prefixes) == 8
    assert prefixes.tokens([0, 4, 7]) == [5, 9, 7]
    assert prefixes.depths([0, 4, 7]) == [0, 3, 2]
    assert prefixes.claim("one", [5, 6, 8]).fresh == ()
    assert prefixes.claim(None, [5]).fresh == (8,)


def test_keys_are_found_where_they_were_written():
    prefixes, claims = grown()
    for claim in claims:
        assert prefixes.keys[0][0, torch.from_numpy(claim.path), 0].tolist() == claim.path.tolist()
        assert prefixes.values[0][1, torch.from_numpy(claim.path), 2].tolist() == (-claim.path).tolist()


def test_what_was_used_last_is_kept():
    prefixes, _ = grown(budget=6)
    prefixes.note(4, torch.ones(3))
    prefixes.note(2, torch.zeros(3))
    prefixes.claim("one", [5, 6, 7])
    prefixes.trim()
    assert len(prefixes) == 3
    again = prefixes.claim("one", [5, 6, 7])
    assert again.fresh == ()
    assert prefixes.state(int(again.path[-1])).tolist() == [0, 0, 0]
    assert prefixes.keys[0][0, torch.from_numpy(again.path), 0].tolist() == [0, 1, 2]
    assert len(prefixes.claim("one", [5, 6, 8, 9]).fresh) == 2
    assert len(prefixes.claim("two", [5, 6, 7]).fresh) == 3


def test_within_its_budget_nothing_is_forgotten():
    prefixes, _ = grown(budget=8)
    prefixes.trim()
    assert len(prefixes) == 8


@pytest.mark.parametrize("budget", [0, 1, 5, 40])
def test_a_trimmed_tree_is_a_tree(budget):
    random = np.random.default_rng(0)
    prefixes = Prefixes(budget)
    for _ in range(200):
        prefixes.trim()
        assert len(prefixes) <= budget
        ids = random.integers(0, 3, size=random.integers(1, 9)).tolist()
        claim = prefixes.claim("one", ids)
        # The token of every node on its path tells its keys: they must follow the node through every trim
        fresh = torch.tensor(claim.fresh, dtype=torch.long)
        tokens = torch.tensor(prefixes.tokens(claim.fresh))[None, :, None].float().expand(2, -1, 3)
        prefixes.write(0, fresh, tokens, tokens)
        assert prefixes.tokens(claim.path.tolist()) == ids
        assert prefixes.depths(claim.path.tolist()) == list(range(len(ids)))
        assert prefixes.keys[0][1, torch.from_numpy(claim.path), 0].tolist() == ids
