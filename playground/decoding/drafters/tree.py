"""Draft trees: several candidates per position, verified in one pass; the target accepts at most one of them.

EAGLE-2 (Li et al. 2024): the likeliest branches grow first, and the likeliest tokens of all make the tree. The
probability that a token is accepted is estimated by the product of the drafter's probabilities along its branch. With
positions drafted in parallel this gives Medusa's tree (Cai et al. 2024), built anew for each draft, and that of DDTree
(Ringel and Romano 2026, arXiv 2604.12989), limited to WIDTH branches per position. How many tokens are worth verifying
depends on the machine, as in Sequoia (Chen et al. 2024), and here on the draft as well.

`SampledTreeDrafter` samples instead: after each token, several are drawn from the drafter's q without replacement, and
decoding/tree_rules.py accepts them. That is exact only if the shape of the tree does not depend on the tokens in it, so
none may be dropped for being unlikely. The shape is chosen first, as in Sequoia: of all trees the one with the most
expected tokens, where the first, second, … child of a token has a fixed chance.

The logits come from `Branches`: mtp.py, parallel.py and others.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import accumulate, chain, islice
from typing import Any, NamedTuple

import torch

from playground.decoding.drafters.base import NOTHING, Branches, Captured, Draft, Grow
from playground.decoding.drafters.branches import BranchesDrafter, branches_of
from playground.decoding.drafters.build import Setup, refuse_recurrent
from playground.decoding.drafters.hidden import DraftChoice, Several, without
from playground.decoding.drafters.parallel import ParallelBranches
from playground.decoding.lookahead import worthwhile
from playground.decoding.runners.native import Wanted
from playground.decoding.sampling import Sampler, Tensors
from playground.decoding.transfer import to_device
from playground.errors import PlaygroundError
from playground.lane import samples_drafts
from playground.models.load import LoadedDrafter
from playground.models.networks.mtp import NativeLayers

WIDTH = 8  # branches that grow per position, and candidates after each


@dataclass(frozen=True)
class Node:
    """A token of a tree. `parent`: the index of its parent, -1 at the root. `chance`: the product of the q along its
    branch. `candidates`: the logits that it was chosen from. `probabilities`: the distribution that it was sampled
    from, if it was."""

    id: int
    parent: int
    q: float
    chance: float
    candidates: torch.Tensor
    probabilities: torch.Tensor | None = None


class TreeDrafter(BranchesDrafter):
    """Drafts the tree of the likeliest tokens.

    Args:
        nodes: the largest number of tokens in a tree; its depth is the lookahead.
        lookahead: the depth of a tree with that many tokens, limited to what the branches can draft. A shallower tree
            has proportionally fewer.
        cost: returns the cost of a target pass over a number of tokens, in passes over one token.
    """

    def __init__(
        self,
        branches: Branches,
        nodes: int,
        eos_ids: Collection[int],
        lookahead: int = 1,
        cost: Callable[[int], float] = lambda tokens: 1.0,
    ) -> None:
        super().__init__(branches, eos_ids)
        self._nodes, self._lookahead, self._cost = nodes, min(lookahead, branches.deepest), cost
        self._costs: dict[int, torch.Tensor] = {}  # of a target pass over 0, 1, 2, … tokens, by the size of the tree
        self._ends: torch.Tensor | None = None  # (n,), the tokens after which nothing is drafted, on the device

    def _wanted(self, ids: Sequence[int], k: int, stop_below: float, sampler: Sampler) -> Wanted | None:
        size = self._size(k)
        if size not in self._costs:
            self._costs[size] = torch.tensor([self._cost(tokens) for tokens in range(size + 2)])
        return Wanted(k, WIDTH, size, stop_below, False, self._costs[size], sampler.refused, self._ends_at)

    def _size(self, k: int) -> int:
        """Returns the most tokens of a tree of this depth."""
        return math.ceil(self._nodes * min(1, k / self._lookahead))

    def _wants_all(self, ids: Sequence[int], k: int, stop_below: float, sampler: Sampler) -> bool:
        return not stop_below

    def _grown(
        self, ids: Sequence[int], k: int, stop_below: float, logits: torch.Tensor | None, sampler: Sampler
    ) -> Draft:
        """Drafts a tree. It grows no deeper once the path probabilities of all branches sum to less than
        `stop_below`."""
        size = self._size(k)
        grown = self._all_levels(k, sampler) if logits is None else None
        # Positions that are drafted in parallel are read at once, others one after the other.
        parallel = self._branches if isinstance(self._branches, ParallelBranches) else None
        known = self._likeliest(parallel.positions, sampler) if parallel else []
        nodes: list[Node] = []
        tips = [-1]  # the nodes that the rows of the logits follow
        for depth in range(1, k + 1):
            start = len(nodes)
            if logits is None:
                assert grown, "logits, or all levels"
                rows, likely = grown.level(depth, tips)
            else:
                likely = known[depth - 1 : depth] * len(tips) or self._likeliest(logits, sampler)
                rows = list(logits.unbind())
            nodes += _continued(nodes, tips, rows, likely)
            best = self._worth(nodes, sorted(range(len(nodes)), key=lambda i: -nodes[i].chance)[:size])
            growing = [i for i in best if i >= start and nodes[i].id not in self._eos_ids][:WIDTH]
            growing = grown.among(depth, growing, start) if grown else growing
            if depth == k or not growing or sum(nodes[i].chance for i in growing) < stop_below:
                break
            if logits is not None:
                parents = [tips.index(nodes[i].parent) for i in growing]
                logits = self._branches.grow([nodes[i].id for i in growing], parents)
            tips = growing
        return draft_of(nodes, best, self._branches.draft_ids) if best else NOTHING

    def _all_levels(self, k: int, sampler: Sampler) -> Grown:
        """Grows all levels without the host between them, and reads them at once."""
        captured, refused = self._branches.captured, [] if sampler.refused is None else [sampler.refused]
        assert captured, "drafts are captured"
        draft_ids = self._branches.draft_ids
        if self._ends is None:
            self._ends = torch.tensor([*self._eos_ids] or [-1], device=draft_ids.device)
        columns = min(WIDTH, len(draft_ids))
        widths = [min(WIDTH, columns**depth) for depth in range(1, k)]
        work = partial(_levels, columns, widths)
        no_numbers = torch.zeros(0, dtype=torch.int64)
        read, rows = captured(("tree", k, len(refused)), work, widths, no_numbers, self._ends, *refused)
        return Grown(read.tolist(), rows.unbind(), columns, widths)

    def _worth(self, nodes: Sequence[Node], best: Sequence[int]) -> Sequence[int]:
        """Returns the first of the nodes `best`, which are sorted with the likeliest first: so many that the expected
        tokens exceed the cost of the pass by most. Expected is each node with its path probability."""
        return best[: worthwhile((nodes[i].chance for i in best), self._cost)]

    def _likeliest(self, logits: torch.Tensor, sampler: Sampler) -> list[list[tuple[float, float]]]:
        """Returns the likeliest ids of each row, with their q. Refused tokens come last."""
        refused = [] if sampler.refused is None else [sampler.refused]
        (found,) = sampler.run("likeliest", likeliest, logits, self._branches.draft_ids, *refused)
        return found.tolist()  # one transfer


def likeliest(
    logits: torch.Tensor, draft_ids: torch.Tensor, refused: torch.Tensor | None = None
) -> tuple[torch.Tensor]:
    """Returns the WIDTH likeliest ids of each row with their q, (rows, WIDTH, 2), in float32, which holds every id
    below 2^24."""
    top = without(logits, refused, draft_ids).float().softmax(dim=-1).topk(min(WIDTH, logits.shape[-1]))
    return (torch.stack([draft_ids[top.indices].float(), top.values], dim=-1),)


def _levels(
    columns: int,
    widths: Sequence[int],
    grow: Grow,
    logits: torch.Tensor,
    draft_ids: torch.Tensor,
    numbers: torch.Tensor,
    ends: torch.Tensor,
    *refused: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Grows the likeliest branches at each depth, `widths` of them. Returns what `Grown` reads, as one row: what
    `likeliest` finds for all rows, then the grown tokens; and the logits of all rows."""
    found, grown, rows = [], [], []
    chances = torch.ones(1, 1, dtype=torch.float64, device=logits.device)
    for width in (*widths, 0):
        best = likeliest(logits, draft_ids, *refused)[0]
        found.append(best.flatten())
        rows.append(logits)
        if width:
            ids = best[:, :, 0].flatten().long()
            # As in Python, of equal chances the first wins.
            every = (chances * best[:, :, 1]).flatten().masked_fill(torch.isin(ids, ends), -1.0)
            values, order = every.sort(descending=True, stable=True)
            chances, at = values[:width, None], order[:width]
            grown.append(at.float())
            logits = grow(ids.index_select(0, at), at // columns)
    return torch.cat([*found, *grown]), torch.cat(rows)


class Grown:
    """A tree whose levels were all grown before any was read.

    Args:
        read: for each row of each level `columns` ids, each with its q; then for each level but the last the tokens
            after which the rows of the next one are, as places among the level's tokens.
        logits: (draft vocabulary,) each, of all rows.
        widths: the rows of each level but the first, which has one.
    """

    def __init__(self, read: list[float], logits: Sequence[torch.Tensor], columns: int, widths: Sequence[int]) -> None:
        self._read, self._logits, self._columns = read, logits, columns
        self._first = [0, *accumulate(widths, initial=1)]  # row of each level
        places = iter(map(int, read[2 * columns * len(logits) :]))
        self._grown = [list(islice(places, width)) for width in widths]
        self._rows = {-1: 0}  # node -> its row in the next level
        self._tips: Sequence[int] = ()

    def level(self, depth: int, tips: Sequence[int]) -> tuple[list[torch.Tensor], list[list[tuple[float, float]]]]:
        """Returns the logits after these nodes, and the likeliest tokens with their q."""
        self._tips = [self._rows[tip] for tip in tips]
        rows, size = [self._first[depth - 1] + row for row in self._tips], 2 * self._columns
        found = [self._read[row * size : (row + 1) * size] for row in rows]
        return [self._logits[row] for row in rows], [list(zip(each[::2], each[1::2], strict=True)) for each in found]

    def among(self, depth: int, nodes: Sequence[int], start: int) -> list[int]:
        """Returns those of the nodes that were grown further. `start`: the first node of their level."""
        if depth > len(self._grown):
            return list(nodes)
        places = {node: self._tips[(node - start) // self._columns] * self._columns for node in nodes}
        places = {node: place + (node - start) % self._columns for node, place in places.items()}
        grown = {place: row for row, place in enumerate(self._grown[depth - 1])}
        self._rows = {node: grown[place] for node, place in places.items() if place in grown}
        return [*self._rows]


def _continued(
    nodes: Sequence[Node],
    tips: Sequence[int],
    logits: Sequence[torch.Tensor],
    likeliest: Sequence[Sequence[tuple[float, float]]],
) -> list[Node]:
    """Returns the likeliest tokens after each of the tips as nodes."""
    return [
        Node(int(id_), tip, q, q * (nodes[tip].chance if tip >= 0 else 1.0), row)
        for tip, pairs, row in zip(tips, likeliest, logits, strict=True)
        for id_, q in pairs
    ]


def draft_of(nodes: Sequence[Node], best: Sequence[int], draft_ids: torch.Tensor) -> Draft:
    """Makes a draft of the nodes `best`, given with the likeliest first, in depth-first order: a node's likeliest
    branch directly follows it, so that the tree's likeliest branch lies in the cache in the order of a chain."""
    children: dict[int, list[int]] = {}
    for i in best:
        children.setdefault(nodes[i].parent, []).append(i)
    order: list[int] = []
    waiting = children.get(-1, [])[::-1]
    while waiting:
        i = waiting.pop()
        order.append(i)
        waiting += children.get(i, [])[::-1]
    index = {i: at for at, i in enumerate(order)} | {-1: -1}
    sampled_from = [probabilities for i in order if (probabilities := nodes[i].probabilities) is not None]
    return Draft(
        [nodes[i].id for i in order],
        [nodes[i].q for i in order],
        torch.stack(sampled_from) if sampled_from else None,
        tree=[index[nodes[i].parent] for i in order],
        candidates=[nodes[i].candidates for i in order],
        draft_ids=draft_ids,
    )


def build(setup: Setup) -> TreeDrafter:
    model, drafting = setup.models.target, setup.models.drafting
    if isinstance(drafting, LoadedDrafter) and type(drafting.network) is NativeLayers:
        raise PlaygroundError(
            f"{model.name} has several MTP layers, each of which drafts one position. They grow no trees. Choose the "
            "drafter mtp, which drafts a chain."
        )
    refuse_recurrent(setup.target, model.name)
    if not setup.target.takes_trees:
        raise PlaygroundError(
            f"In {model.name}, the branches of a draft tree cannot be masked from each other: it has chunked "
            "attention, as Llama 4 has, or attention to selected tokens, or takes no positions. Choose a drafter that "
            "drafts a chain, such as mtp or ngram."
        )
    shape = branches_of(setup), setup.lane.nodes, setup.eos_ids, setup.lane.lookahead, setup.cost
    if samples_drafts(setup.lane):
        return SampledTreeDrafter(*shape, vocab_size=setup.target.vocab_size)
    return TreeDrafter(*shape)


FIRST, NEXT = 0.6, 0.25  # the chance of a first child, and of each further one relative to the one before
Place = tuple[int, ...]  # which child is taken at each step from the root: (0, 1) is the first child's second


class SampledTreeDrafter(TreeDrafter):
    """Drafts a tree of sampled tokens; for greedy requests the tree of `TreeDrafter`.

    Args:
        shape: the arguments of `TreeDrafter`.
        vocab_size: the target's.
    """

    def __init__(self, *shape: Any, vocab_size: int) -> None:
        super().__init__(*shape)
        self._vocab_size = vocab_size

    def _wanted(self, ids: Sequence[int], k: int, stop_below: float, sampler: Sampler) -> Wanted | None:
        return super()._wanted(ids, k, stop_below, sampler) if sampler.greedy else None

    def _wants_all(self, ids: Sequence[int], k: int, stop_below: float, sampler: Sampler) -> bool:
        return not stop_below and (sampler.greedy or sampler.only_refuses(range(len(ids), len(ids) + k)))

    def _grown(
        self, ids: Sequence[int], k: int, stop_below: float, logits: torch.Tensor | None, sampler: Sampler
    ) -> Draft:
        if sampler.greedy:
            return super()._grown(ids, k, stop_below, logits, sampler)
        wanted = shape(self._size(k), k)
        plan = planned(wanted[: worthwhile(map(chance, wanted), self._cost)])
        choose = DraftChoice(self._vocab_size, sampler)
        numbers, first = sampler.numbers(sum(map(len, plan.parents))), 0
        drawn = None
        if plan.parents and sampler.only_refuses(range(len(ids), len(ids) + k)):
            drawn = self._at_once(ids, plan, choose, numbers, captured=logits is None)
        whole = Level(drawn) if drawn else None
        nodes: list[Node] = []
        at: dict[Place, int] = {(): -1}
        before: list[Place] = []
        for depth, parents in enumerate(plan.parents):
            there = (place for place in parents if place in at)
            tips = [place for place in there if not place or nodes[at[place]].id not in self._eos_ids]
            chances = [nodes[at[place]].chance if place else 1.0 for place in tips]
            if not tips or sum(chances) < stop_below:
                break
            places = [first + parents.index(place) for place in tips]
            level, rows = whole, places
            if not level:
                assert logits is not None, "what is captured was drawn"
                if depth:
                    parent_rows = [before.index(place[:-1]) for place in tips]
                    logits = self._branches.grow([nodes[at[place]].id for place in tips], parent_rows)
                texts = [[*ids, *_branch(nodes, at[place])] for place in tips]
                sent = torch.cat([numbers, torch.tensor(places)])
                drawn = choose.several(texts, logits, self._branches.draft_ids, plan.most, sent, depth)
                level, rows = Level(drawn), [*range(len(tips))]
            for place, row, so_far in zip(tips, rows, chances, strict=True):
                for i, (id_, q) in enumerate(level.read[row][: plan.children[place]]):
                    if q:
                        child = (*place, i)
                        at[child] = len(nodes)
                        nodes.append(Node(int(id_), at[place], q, q * so_far, level.candidates[row], level.q[row]))
            before, first = tips, first + len(parents)
        return draft_of(nodes, range(len(nodes)), self._branches.draft_ids) if nodes else NOTHING

    def _at_once(
        self, ids: Sequence[int], plan: Plan, choose: DraftChoice, numbers: torch.Tensor, *, captured: bool
    ) -> Several | None:
        """Draws all levels at once where the network can; else None. `captured`: by captured work."""
        if isinstance(self._branches, ParallelBranches):
            depths = [depth for depth, parents in enumerate(plan.parents) for _ in parents]
            logits = self._branches.positions
            logits = logits.index_select(0, to_device(depths, logits.device))
            numbers = torch.cat([numbers, torch.arange(len(depths))])
            return choose.several([ids], logits, self._branches.draft_ids, plan.most, numbers, 0)
        work = self._branches.captured if captured else None
        return _drawn(plan, choose, work, numbers) if work else None


def _drawn(plan: Plan, choose: DraftChoice, captured: Captured, numbers: torch.Tensor) -> Several:
    """Draws all levels without the host between them, by captured work. `numbers`: those of `Sampler.numbers`, for as
    many samples as there are parents; what is drawn after a parent that is not drawn, or ends the text, is
    not used."""
    widths = [*map(len, plan.parents)]
    picks = [plan.picks(depth) for depth in range(1, len(widths))]
    sent = torch.cat([numbers, torch.tensor([*chain.from_iterable(picks)], dtype=torch.int64)])

    def work(
        grow: Grow, logits: torch.Tensor, draft_ids: torch.Tensor, sent: torch.Tensor, *refused: torch.Tensor
    ) -> Tensors:
        drawn: list[Tensors] = []
        picks = iter(sent[2:].split(widths[1:]))
        for places in torch.arange(sum(widths), device=sent.device).split(widths):
            if drawn:
                picked, ids = next(picks), drawn[-1][0][:, :, 0].flatten()
                logits = grow(ids.index_select(0, picked).long(), picked // plan.most)
            drawn.append(
                choose.several_of_logits(plan.most, logits, draft_ids, torch.cat([sent[:2], places]), *refused)
            )
        return tuple(map(torch.cat, zip(*drawn, strict=True)))

    key = "sampled tree", plan.parents, plan.most, *choose.key
    return Several(*captured(key, work, widths[1:], sent, *choose.refused))


class Level:
    """The tokens that were drawn, read: for each row ids with their q, candidates and distribution."""

    def __init__(self, drawn: Several) -> None:
        self.read: list[list[list[float]]] = drawn.read.tolist()
        self.candidates, self.q = drawn.candidates.unbind(), drawn.probabilities.unbind()


def chance(place: Place) -> float:
    """Returns the assumed chance that the token at this place is accepted."""
    return math.prod(FIRST * NEXT**child for child in place)


@cache
def shape(size: int, depth: int) -> tuple[Place, ...]:
    """Returns the `size` likeliest places of all trees of this depth, likeliest first. Each follows its parent. At each
    depth at most WIDTH places have children."""
    places: list[Place] = []
    growing: dict[int, set[Place]] = {}
    waiting: list[tuple[float, Place]] = [(-chance((0,)), (0,))]
    while waiting and len(places) < size:
        _, place = heapq.heappop(waiting)
        parent = place[:-1]
        parents = growing.setdefault(len(place), set())
        if parent not in parents and len(parents) == WIDTH:
            continue
        parents.add(parent)
        places.append(place)
        following: list[Place] = [(*parent, place[-1] + 1)] if place[-1] + 1 < WIDTH else []
        if len(place) < depth:
            following.append((*place, 0))
        for each in following:
            heapq.heappush(waiting, (-chance(each), each))
    return tuple(places)


class Plan(NamedTuple):
    """The shape of a sampled tree.

    Attributes:
        parents: for each depth the places that have children, in order.
        children: how many each of them has.
    """

    parents: tuple[tuple[Place, ...], ...]
    children: Mapping[Place, int]

    @property
    def most(self) -> int:
        """The most children of a place."""
        return max(self.children.values(), default=0)

    def picks(self, depth: int) -> list[int]:
        """Returns the parents at a depth, from 1 on, as indices of the tokens drawn at the depth before, `most` for
        each parent there."""
        return [self.parents[depth - 1].index(place[:-1]) * self.most + place[-1] for place in self.parents[depth]]


@cache
def planned(wanted: tuple[Place, ...]) -> Plan:
    """Returns the plan of a tree of these places."""
    children: dict[Place, int] = {}
    for place in wanted:
        children[place[:-1]] = children.get(place[:-1], 0) + 1
    depths = range(max(map(len, wanted), default=0))
    return Plan(tuple(tuple(sorted(place for place in children if len(place) == depth)) for depth in depths), children)


def _branch(nodes: Sequence[Node], tip: int) -> list[int]:
    """Returns the tokens of the branch that ends at a node."""
    ids: list[int] = []
    while tip >= 0:
        ids.append(nodes[tip].id)
        tip = nodes[tip].parent
    return ids[::-1]
