"""Block verification and the rules for sampled trees leave the target's law unchanged: by enumeration of all drafts and
all decisions, and by whole runs. Deliberately wrong variants are caught."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import partial

import pytest
import torch

from playground.decoding import lossy, tree_rules
from playground.decoding.chain_rules import block_of, kept_by_tokens
from playground.decoding.drafters.assistant import AssistantDrafter
from playground.decoding.drafters.base import Draft
from playground.decoding.drafters.tree import WIDTH, SampledTreeDrafter, chance, shape
from playground.decoding.lookahead import Lookahead
from playground.decoding.loop import decode
from playground.decoding.sampling import Sampler
from playground.decoding.verify import RULES, accepted_by_other_rule, decide, on_device, verdict_of
from playground.lane import Request
from tests.decoding.fakes import FakeModel, random_law
from tests.decoding.law import NoText, cases, follows_the_law
from tests.decoding.test_tree import LawBranches
from tests.selection import selected

V = 3
CPU = torch.device("cpu")
SAMPLED = Request("x", temperature=1.0)


def tables(seed: int):
    """Text -> distribution, random."""
    generator = torch.Generator().manual_seed(seed)
    known = {}

    def after(text):
        if tuple(text) not in known:
            known[tuple(text)] = torch.randn(V, generator=generator).mul(1.5).softmax(-1)
        return known[tuple(text)]

    return after


def drafts(q, tree):
    """Every draft of this shape with its probability. Siblings are drawn without replacement."""

    def grow(ids, chance):
        i = len(ids)
        if i == len(tree):
            rows = [q(_text(ids, tree, parent)) for parent in tree]
            whole = None if tree == list(range(-1, len(tree) - 1)) else list(tree)
            yield Draft(list(ids), [1.0] * i, torch.stack(rows), tree=whole), chance
            return
        before = [ids[j] for j in range(i) if tree[j] == tree[i]]
        row = q(_text(ids, tree, tree[i])).clone()
        row[before] = 0
        row = row / row.sum()
        for x in range(V):
            if row[x] > 0:
                yield from grow((*ids, x), chance * float(row[x]))

    return grow((), 1.0)


def _text(ids, tree, i):
    text = []
    while i >= 0:
        text.append(ids[i])
        i = tree[i]
    return tuple(text[::-1])


def decided(rule, draft, p):
    """Every outcome of a rule with its probability: the tokens that are kept, and what the next one is drawn from."""
    seen, judged = set(), rule(draft, p)
    for u in itertools.product((0.0, 1.0), repeat=len(draft.ids)):
        path, left, bounds = judged(u)
        tried = tuple((i, u[i]) for i, bound in enumerate(bounds) if bound is not None)
        if tried in seen:
            continue
        seen.add(tried)
        weight = 1.0
        for i, number in tried:
            weight *= bounds[i] if number == 0 else 1 - bounds[i]
        yield path, left / left.sum(), weight


def law_of(rule, p, q, tree, length):
    """Text of `length` tokens -> its probability: a round, then the target alone."""
    found = dict.fromkeys(itertools.product(range(V), repeat=length), 0.0)
    for draft, drawn in drafts(q, tree):
        rows = torch.stack([p(_text(draft.ids, tree, i)) for i in range(-1, len(tree))])
        for path, left, weight in decided(rule, draft, rows):
            kept = [draft.ids[i] for i in path]
            for text in found:
                if list(text[: len(kept)]) == kept:
                    rest = drawn * weight * float(left[text[len(kept)]])
                    for at in range(len(kept) + 1, length):
                        rest *= float(p(text[:at])[text[at]])
                    found[text] += rest
    return found


def off(rule, p, q, tree) -> float:
    """The total variation distance between a round's law and the target's."""
    length = max(len(_text(range(9), tree, i)) for i in range(len(tree))) + 1
    found = law_of(rule, p, q, tree, length)
    wanted = {}
    for text in found:
        wanted[text] = 1.0
        for at in range(length):
            wanted[text] *= float(p(text[:at])[text[at]])
    return sum(abs(found[text] - wanted[text]) for text in found) / 2


class Left(Sampler):
    """Remembers what the target's own token is chosen from."""

    def choose(self, of, positions=None):
        self.left = of.p[0]
        return super().choose(of, positions)


def given(name, rescale=tree_rules.rescaled):
    """A rule with the numbers given, and what its own token is sampled from."""

    def chain_rule(draft, p):
        def judged(u):
            sampler = Left(SAMPLED, CPU)
            sampler.uniform = lambda n: torch.tensor(u)
            kept = verdict_of(RULES[name](on_device(draft, name, CPU), p, sampler), draft, name)
            ratios = [min(1.0, float(p[i, x] / draft.probabilities[i, x])) for i, x in enumerate(draft.ids)]
            bounds = kept.bounds or [ratio if i <= len(kept.path) else None for i, ratio in enumerate(ratios)]
            return kept.path, sampler.left, bounds

        return judged

    def tree_rule(draft, p):
        tree = on_device(replace(draft, tree=draft.parents), name, CPU)
        bounds, left = tree_rules.tested(tree, p, rescale if name == "traversal" else None)

        def judged(u):
            row = int(tree.accepted(torch.tensor(u) < bounds))
            path = draft.path(row - 1)
            tried = tree_rules.tried(draft, path, name)
            return path, left[row], [bound if i in tried else None for i, bound in enumerate(bounds.tolist())]

        return judged

    return tree_rule if name in tree_rules.RULES else chain_rule


CHAINS = [list(range(-1, n - 1)) for n in (1, 2, 3)]
TREES = [[-1, -1], [-1, -1, -1], [-1, 0, 0, -1], [-1, 0, -1, 2, 2], [-1, 0, 1, -1, 3]]


@pytest.mark.parametrize("chain", CHAINS, ids=len)
@pytest.mark.parametrize("rule", ["token", "block"])
def test_a_chain_leaves_the_law_over_all_continuations(rule, chain):
    for seed in range(3):
        assert off(given(rule), tables(seed), tables(seed + 100), chain) < 1e-5


@pytest.mark.parametrize("tree", TREES, ids=str)
@pytest.mark.parametrize("rule", ["recursive", "traversal"])
def test_a_sampled_tree_leaves_the_law_over_all_continuations(rule, tree):
    for seed in range(1 if len(tree) > 4 else 2):
        assert off(given(rule), tables(seed), tables(seed + 100), tree) < 1e-5


def test_the_wrong_rescaling_of_a_parent_is_off():
    wrong = given("traversal", rescale=lambda mass, alpha, left: (mass / left).nan_to_num(1.0).clamp(max=1))
    assert max(off(wrong, tables(seed), tables(seed + 100), TREES[2]) for seed in range(3)) > 0.01


@pytest.mark.parametrize("chain", CHAINS, ids=len)
def test_traversal_of_one_branch_is_block_verification(chain):
    p, q = tables(0), tables(100)
    for draft, _ in drafts(q, chain):
        rows = torch.stack([p(_text(draft.ids, chain, i)) for i in range(-1, len(chain))])
        rules = [given(name)(draft, rows) for name in ("traversal", "block")]
        for u in itertools.product((0.1, 0.5, 0.9), repeat=len(chain)):
            (path, left, bounds), (other, rest, others) = (judged(u) for judged in rules)
            assert path == other
            assert torch.allclose(left / left.sum(), rest / rest.sum(), atol=1e-5)
            tried = [(bound, beside) for bound, beside in zip(bounds, others, strict=True) if beside is not None]
            assert all(bound == pytest.approx(beside, abs=1e-5) for bound, beside in tried)


def expected(kept, q, p, tree) -> float:
    """The mean number of kept tokens."""
    total = 0.0
    for draft, drawn in drafts(q, tree):
        rows = torch.stack([p(_text(draft.ids, tree, i)) for i in range(-1, len(tree))])
        total += drawn * sum(weight * len(path) for path, _, weight in decided(kept, draft, rows))
    return total


def test_the_joint_rules_keep_more_on_average_where_drafts_are_longer_than_one():
    block, tokens, traversal, recursive = map(given, ("block", "token", "traversal", "recursive"))
    p, q = tables(0), tables(100)
    assert expected(block, q, p, CHAINS[0]) == pytest.approx(expected(tokens, q, p, CHAINS[0]), abs=1e-5)
    assert expected(block, q, p, CHAINS[2]) > expected(tokens, q, p, CHAINS[2]) + 0.01
    assert expected(traversal, q, p, TREES[4]) > expected(recursive, q, p, TREES[4]) + 0.01


DRAFTS = random_law(2, V)


def drafter(way, law=DRAFTS, size=V):
    """What makes the drafter of a law over `size` tokens."""
    return {
        "chain": lambda target: AssistantDrafter(FakeModel(law, size), size, ()),
        "tree": lambda target: SampledTreeDrafter(LawBranches(law, size), 5, (), 2, vocab_size=size),
    }[way]


WAYS = [("chain", "block"), ("tree", "recursive"), ("tree", "traversal")]


@pytest.mark.parametrize(("way", "verification"), WAYS)
@pytest.mark.parametrize(
    ("sampling", "draws"),
    cases(
        [
            dict(temperature=1),
            dict(temperature=0.7, top_p=0.8),
            dict(temperature=1.5, top_k=2, repetition_penalty=1.5, presence_penalty=0.6),
        ]
    ),
)
def test_whole_runs_follow_the_targets_law(way, verification, sampling, draws):
    rule = partial(decide, verification=verification)
    assert follows_the_law(random_law(1, V), V, drafter(way), draws=draws, rule=rule, **sampling)


@pytest.mark.parametrize(("way", "verification"), selected(WAYS, [("chain", "block"), ("tree", "traversal")]))
def test_drafts_that_end_by_what_was_drawn_follow_the_law_too(way, verification):
    """As the policy confidence ends them: after a token of low q."""

    def unsure(target):
        drafting = drafter(way)(target)
        propose = drafting.propose
        drafting.propose = lambda ids, k, stop_below, sampler: propose(ids, k, 0.6, sampler)
        return drafting

    rule = partial(decide, verification=verification)
    assert follows_the_law(random_law(1, V), V, unsure, rule=rule, temperature=1.0)


@pytest.mark.parametrize(
    ("way", "rule", "draws"),
    [
        ("tree", lossy.traversal_alpha, 300),
        pytest.param("chain", lossy.block_residual, 1_500, marks=pytest.mark.slow),
    ],
)
def test_whole_runs_of_the_wrong_variants_do_not(way, rule, draws):
    wild = drafter(way, random_law(3, V, spread=2.5))
    assert not follows_the_law(random_law(1, V), V, wild, draws=draws, rule=rule, temperature=1.0)


@pytest.mark.parametrize(("way", "verification"), [("chain", "token"), *WAYS])
def test_a_round_says_what_the_other_rule_would_have_kept_and_what_decided(way, verification):
    sampler = Sampler(SAMPLED, CPU)
    target = FakeModel(random_law(1, V), V)
    rule = partial(decide, verification=verification)
    rounds = list(decode(target, drafter(way)(target), Lookahead(4), sampler, NoText(), [0, 1], 300, (), rule))
    drafted = [round_ for round_ in rounds if round_.drafted]
    assert {len(r.accepted) == r.other_rule for r in drafted} == {True, False}
    ahead = sum(r.other_rule - len(r.accepted) for r in drafted)
    assert ahead > 0 if verification in ("token", "recursive") else ahead < 0
    for token in itertools.chain.from_iterable(r.drafted for r in drafted):
        if token.draw is not None:
            bound = token.p / token.q if token.bound is None else token.bound
            assert (token.draw < bound) == (token.decision == "accepted")


def test_what_is_counted_is_what_the_other_rule_keeps():
    sampler, p, q = Sampler(SAMPLED, CPU), torch.rand(5, 6).softmax(-1), torch.rand(4, 6).mul(3).softmax(-1)
    for _ in range(50):
        draft = Draft([sampler.draw(row) for row in q], [1.0] * 4, q)
        for rule, other in (("token", "block"), ("block", "token")):
            verdict = decide(draft, p.log(), sampler, 1, rule)
            u = torch.tensor(verdict.draws)
            chain = on_device(draft, "token", CPU)
            kept = {"token": kept_by_tokens(chain, p, u), "block": block_of(chain, p).kept(u)}
            assert len(verdict.path) == int(kept[rule])
            assert accepted_by_other_rule(draft, verdict, p) == int(kept[other])


def test_a_chosen_draft_is_judged_by_the_targets_choice_under_every_rule():
    scores, draft = torch.randn(3, V), Draft([0, 1], [1.0, 1.0])
    verdicts = [decide(draft, scores, Sampler(SAMPLED, CPU), 5, rule) for rule in ("token", "block", "traversal")]
    assert len({(tuple(verdict.path), verdict.token) for verdict in verdicts}) == 1
    assert {verdict.rule for verdict in verdicts} == {""}


@pytest.mark.parametrize(("size", "depth"), [(1, 4), (6, 3), (40, 2), (60, 5)])
def test_a_shape_has_the_likeliest_places_each_after_its_parent_and_its_elder(size, depth):
    places = shape(size, depth)
    assert len(places) == len(set(places)) == size
    assert [chance(place) for place in places] == sorted(map(chance, places), reverse=True)
    for i, place in enumerate(places):
        assert len(place) <= depth
        assert len(place) == 1 or place[:-1] in places[:i]
        assert place[-1] == 0 or (*place[:-1], place[-1] - 1) in places[:i]
    for level in range(depth):
        assert len({place[:-1] for place in places if len(place) == level + 1}) <= WIDTH


def test_a_sampled_tree_draws_siblings_without_replacement_from_one_q():
    law, sampler = random_law(2, 6), Sampler(Request("x", temperature=1.0, top_k=3), CPU)
    draft = SampledTreeDrafter(LawBranches(law, 6), 12, {5}, 3, vocab_size=6).propose([0, 1], 3, 0.0, sampler)
    families = {parent: [i for i, at in enumerate(draft.tree) if at == parent] for parent in draft.tree}
    for parent, children in families.items():
        assert parent < 0 or draft.ids[parent] != 5
        assert len({draft.ids[i] for i in children}) == len(children) <= 3
        wanted = sampler.probabilities(law([0, 1, *(draft.ids[i] for i in draft.path(parent))])[None])
        assert all(torch.allclose(draft.probabilities[i], wanted[0]) for i in children)
