"""Structured output: the answer follows the masked target's distribution, whatever drafts; and what broke elsewhere."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from functools import cache, partial

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from playground import child, constraint
from playground.backends.local import LocalRun
from playground.constraint import Effort
from playground.decoding.drafters.assistant import AssistantDrafter
from playground.decoding.drafters.base import Draft, Drafter
from playground.decoding.drafters.composite import AdaptiveDrafter, GrammarDrafter, after_forced
from playground.decoding.drafters.tree import SampledTreeDrafter
from playground.decoding.grammar import Constraint, grammar_for
from playground.decoding.lookahead import Lookahead
from playground.decoding.loop import decode
from playground.decoding.runners.eager import EagerRunner
from playground.decoding.runners.factory import Runners
from playground.decoding.sampling import Sampler
from playground.decoding.scoring import placed
from playground.decoding.verify import decide
from playground.errors import PlaygroundError
from playground.experiments import questions
from playground.lane import Lane, Request
from playground.models.load import LoadedModel
from playground.models.store import LoadedPair
from playground.settings import SETTINGS
from playground.trace import Round
from tests.decoding.fakes import FakeModel, ScriptedDrafter, random_law
from tests.decoding.law import PROMPT, Language, NoText, cases, follows_the_law, law_of
from tests.decoding.test_law import METHODS, V, llama
from tests.decoding.test_tree import LawBranches
from tests.selection import selected

A, B, C, END = range(V)
TEXTS = ((A, B), (A, B, C), (B,), (C, A), (C, C, A), (B, A, A))
CPU = torch.device("cpu")


@cache
def letters() -> LoadedModel:
    """A model of four tokens: a, b, c and the end of text."""
    tokenizer = Tokenizer(models.BPE({"a": A, "b": B, "c": C, "<end>": END}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<end>"])
    config = LlamaConfig(
        vocab_size=V,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        bos_token_id=None,
        eos_token_id=END,
    )
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>")
    return LoadedModel(LlamaForCausalLM(config).eval(), fast, "letters", "made here")


def start(regex: str) -> Constraint:
    found = grammar_for(Request("x", regex=regex), letters())
    assert isinstance(found, Constraint)
    return found


def language() -> Language:
    regex = "|".join("".join("abc"[id_] for id_ in text) for text in TEXTS)
    return Language(TEXTS, END, lambda: start(regex))


def a_or_b() -> Language:
    return Language(tuple(itertools.product((A, B), repeat=3)), END, lambda: start("[ab]{3}"))


@pytest.mark.parametrize(("sampling", "draws"), cases())  # which catch what masks do wrong, below
@pytest.mark.parametrize("way", selected(METHODS, ["mtp", "tree", "adaptive"]))
def test_runs_follow_the_masked_targets_law(way, sampling, draws, tmp_path):
    new_drafter = METHODS[way](tmp_path)
    assert follows_the_law(law_of(llama()), V, new_drafter, draws=draws, language=language(), **sampling)


@pytest.mark.parametrize(
    ("shape", "verification"),
    selected(
        [("chain", "token"), ("chain", "block"), ("tree", "recursive"), ("tree", "traversal")],
        [("chain", "block"), ("tree", "traversal")],
    ),
)
def test_a_sampled_draft_of_each_shape_follows_the_masked_law_under_each_rule(shape, verification):
    """Of a tree, tokens in its middle are left out: those after a token that is refused."""
    drafts = random_law(5, V, spread=2.5)

    def new_drafter(target: FakeModel) -> Drafter:
        if shape == "chain":
            return AssistantDrafter(FakeModel(drafts, V), V, {END})
        return SampledTreeDrafter(LawBranches(drafts, V), 7, {END}, 2, vocab_size=V)

    rule = partial(decide, verification=verification)
    assert follows_the_law(random_law(1, V), V, new_drafter, language=a_or_b(), rule=rule, temperature=1.0)


def test_a_cut_draft_keeps_the_numbers_of_the_tokens_that_it_keeps():
    rows = torch.rand(4, V)
    draft = Draft([A, B, C, A], [0.1, 0.2, 0.3, 0.4], rows, [-1, 0, -1, 2], list(rows), None, [0.5, 0.6, 0.7, 0.8], 2)
    cut = draft.only([0, 2, 3])
    assert (cut.ids, cut.q, cut.tree, cut.forced) == ([A, C, A], [0.1, 0.3, 0.4], [-1, -1, 1], 1)
    assert cut.confidences == [0.5, 0.7, 0.8] and torch.equal(cut.probabilities, rows[[0, 2, 3]])
    assert torch.equal(torch.stack(cut.candidates), cut.probabilities)


@pytest.mark.parametrize("rule", ["the last token stays", "it is cut"])
def test_cutting_a_sampled_token_that_is_refused_is_caught(rule, monkeypatch):
    """Engines cut every draft before it, which is right for chosen tokens alone. Here the drafter likes c, which the
    grammar refuses, and next to nothing drafts b, which is as likely as a."""
    limited = Constraint.limited

    def cut(self, draft):
        return draft.only(range(len(limited(self, replace(draft, probabilities=None)).ids)))

    if rule == "it is cut":
        monkeypatch.setattr(Constraint, "limited", cut)
    p, q = torch.tensor([0.0, 0.0, 1.0, -3.0]), torch.tensor([0.39, 0.01, 0.59, 0.01]).log()
    drafter = lambda target: AssistantDrafter(FakeModel(lambda ids: q, V), V, ())  # noqa: E731
    exact = follows_the_law(lambda ids: p, V, drafter, language=a_or_b(), temperature=1.0)
    assert exact == (rule == "the last token stays")


def rounds_of(
    regex: str, drafter: Drafter, *, tokens: int = 12, lookahead: int = 4, grammar: Constraint | None = None
) -> list[Round]:
    target, sampler = FakeModel(random_law(5, V), V), Sampler(Request("x"), CPU)
    grammar = grammar or start(regex)
    return list(
        decode(target, drafter, Lookahead(lookahead), sampler, NoText(), PROMPT, tokens, (END,), grammar=grammar)
    )


def ids_of(rounds: list[Round]) -> list[int]:
    return [token.id for round_ in rounds for token in round_.tokens]


def test_the_bonus_row_is_masked():
    """vLLM 44006: the row after the last draft token was left unmasked."""
    right = ScriptedDrafter(lambda ids, k: ([A] * 4)[: max(0, len(PROMPT) + 4 - len(ids))])
    rounds = rounds_of("a{4}c", right, lookahead=4)
    assert ids_of(rounds) == [A, A, A, A, C, END]
    assert rounds[0].target.reason == "bonus" and rounds[0].target.p == 1 and rounds[0].target.margin is None


@pytest.mark.parametrize("drafted", [[END], [A, END, A], [A, A, END, END]])
def test_a_special_token_in_a_draft_does_not_break_the_matcher(drafted):
    """vLLM 46118. An end of text is special, and refused until the grammar ends."""
    rounds = rounds_of("a{4}", ScriptedDrafter(lambda ids, k: drafted[:k]))
    assert ids_of(rounds) == [A, A, A, A, END]


def test_after_a_rejection_the_grammar_goes_on_from_the_accepted_tokens():
    """A matcher that has read a rejected token allows what follows it: here it would be `bb`, after `a`."""
    other = ScriptedDrafter(lambda ids, k: [A, B, B][:k])
    standard = ids_of(rounds_of("(ab?c?){3}", ScriptedDrafter(lambda ids, k: [])))
    rounds = rounds_of("(ab?c?){3}", other)
    assert any(token.decision == "rejected" for round_ in rounds for token in round_.drafted)
    assert ids_of(rounds) == standard


def test_a_chosen_draft_ends_before_the_first_refused_token():
    rounds = rounds_of("ab.*", ScriptedDrafter(lambda ids, k: [A, C, A, A][:k]))
    assert [token.id for token in rounds[0].drafted] == [A]


def test_of_a_tree_the_refused_branches_are_left_out():
    draft = Draft([A, B, C, B, C, A], [0.5] * 6, tree=[-1, 0, 1, -1, 3, -1])  # a-b-c, b-c, a
    limited = start("ab+|b").limited(draft)
    assert (limited.ids, limited.tree) == ([A, B, B, A], [-1, 0, -1, -1])


def test_each_row_of_a_tree_is_masked_after_its_own_branch():
    """The branches are not in depth-first order, so the matcher has to go back and forth."""
    constraint = start("ab|bc|c")
    constraint.limited(Draft([A, B, B, C], [0.5] * 4, tree=[-1, -1, 0, 1]))
    scores = torch.zeros(5, V)
    allowed = constraint.masked(scores, scores).isfinite()
    assert [row.nonzero()[:, 0].tolist() for row in allowed] == [[A, B, C], [B], [C], [END], [END]]
    constraint.commit([B, C])
    constraint.limited(Draft([], []))
    assert constraint.masked(scores[:1], scores[:1]).isfinite()[0].tolist() == [False, False, False, True]


@pytest.mark.parametrize(
    ("request_", "sentence"),
    [
        (dict(regex="(a"), "Regular expression cannot be used: .*unclosed group"),
        (dict(regex="[^\\s\\S]"), "Regular expression cannot be used: No text satisfies it"),
        (dict(grammar="start: foo"), "Lark grammar cannot be used: .*unknown name"),
        (dict(json_schema='{"type": "foo"}'), "JSON schema cannot be used: Invalid type: foo"),
        (dict(json_schema='{"type": "integer", "minimum": 5, "maximum": 3}'), "JSON schema cannot be used: Unsat"),
        (dict(json_schema="false"), "JSON schema cannot be used: Unsat"),
    ],
)
def test_a_grammar_that_is_broken_or_that_no_text_satisfies_is_a_sentence(request_, sentence):
    with pytest.raises(PlaygroundError, match=sentence):
        grammar_for(Request("x", **request_), letters())


SMALL = Effort(1.0, 300_000_000)
ENDLESS = '{"type": "integer", "multipleOf": 9999991}'


@pytest.mark.parametrize(
    ("request_", "endless"),
    [
        (dict(json_schema=ENDLESS), True),
        (dict(grammar=f"start: <|im_end|> a\na: %json {ENDLESS}"), True),  # also where it names a model's tokens
        (dict(json_schema='{"type": "string", "pattern": "^((a{1,1000}){1,1000}){1,1000}$"}'), False),
        (dict(json_schema='{"type": "array", "minItems": 1000000, "items": {"type": "null"}}'), False),
        (dict(json_schema='{"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}'), False),
        (dict(json_schema='{"anyOf": [' * 300 + "{}" + "]}" * 300), False),
        (dict(json_schema=json.dumps({"enum": [f"value {i}" for i in range(20_000)]})), False),
        (dict(regex="(a{1,1000}){1,1000}"), False),
        (dict(grammar="start: a\na: a a | /.*[a-m].{40}[a-z]/"), False),
    ],
)
def test_a_hostile_grammar_ends_within_its_limits(request_, endless):
    """It is refused, or is one that can be followed."""
    for _ in range(2):
        try:
            constraint.try_out(Request("x", **request_), SMALL)
        except PlaygroundError as refusal:
            assert str(refusal).startswith(SETTINGS[Request("x", **request_).constraint].label)
            assert not endless or "1 s" in str(refusal)
        else:
            assert not endless
    constraint.try_out(Request("x", regex="ab+"))


def test_what_ended_at_a_limit_is_tried_again_with_a_larger_one_alone(monkeypatch):
    asked = []
    ask = child.Child.ask
    monkeypatch.setattr(child.Child, "ask", lambda it, text, **limits: asked.append(text) or ask(it, text, **limits))
    request = Request("x", json_schema='{"type": "integer", "multipleOf": 20011}')
    for limits in (Effort(0.001, 2**30), Effort(0.001, 2**30)):
        with pytest.raises(PlaygroundError, match=r"more than 0\.001 s"):
            constraint.try_out(request, limits)
    assert len(asked) == 1
    constraint.try_out(request)
    constraint.try_out(request, SMALL)
    assert len(asked) == 2


def test_memory_is_bounded_as_time_is():
    with pytest.raises(PlaygroundError, match="60 s,"):
        constraint.try_out(Request("x", json_schema=ENDLESS.replace("1}", "7}")), Effort(60, 80_000_000))


def test_a_pass_whose_masks_take_too_long_ends_the_run(monkeypatch):
    monkeypatch.setattr("playground.decoding.grammar.PASS_S", 0)
    with pytest.raises(PlaygroundError, match=r"masks .* 0 s"):
        rounds_of("a{4}", ScriptedDrafter(lambda ids, k: []))


@pytest.mark.parametrize(
    ("request_", "sentence"),
    [
        (dict(json_schema='{"type"'), "not JSON"),
        (dict(json_schema="[1]"), "an object"),
        (dict(json_schema="{}", regex="a"), "Regular expression"),
    ],
)
def test_a_request_refuses_what_is_no_schema_and_more_than_one_grammar(request_, sentence):
    with pytest.raises(PlaygroundError, match=sentence):
        Request("x", **request_)


def test_the_masks_take_a_part_of_the_rounds_time_that_the_trace_has():
    rounds = rounds_of("a{4}c", ScriptedDrafter(lambda ids, k: [A] * k))
    assert all(0 < round_.mask_s <= round_.verify_s for round_ in rounds)
    assert rounds_of("a", ScriptedDrafter(lambda ids, k: []))[0].mask_s > 0


def test_what_the_grammar_forces_is_drafted_for_nothing_and_marked():
    shared = start("aab(c|a)")
    rounds = rounds_of("", GrammarDrafter(shared), grammar=shared, lookahead=2)
    assert [[token.id for token in round_.drafted] for round_ in rounds] == [[A, A], [], [END]]
    assert all(token.forced and token.decision == "accepted" for round_ in rounds for token in round_.drafted)


@pytest.mark.parametrize("drafts", [True, False])
def test_under_another_drafter_forced_tokens_come_first_and_it_drafts_where_there_is_a_choice(drafts):
    shared = start("aab(c|a)(c|a)")
    other = ScriptedDrafter(lambda ids, k: [C] if drafts else [])
    rounds = rounds_of("", after_forced(shared, other), grammar=shared, lookahead=3)
    forced = [[token.forced for token in round_.drafted] for round_ in rounds]
    assert forced[0] == [True] * 3 and other.committed, "it rolls back with every round"
    assert any(marks == [False] for marks in forced) == drafts


def test_an_adaptive_drafter_does_not_count_rounds_that_the_grammar_drafted():
    shared, arm = start("a{6}(b|c){6}"), ScriptedDrafter(lambda ids, k: [B])
    adaptive = AdaptiveDrafter(arm)
    rounds = rounds_of("", after_forced(shared, adaptive), grammar=shared, lookahead=2, tokens=20)
    drafted = sum(bool(round_.drafted) and not round_.drafted[0].forced for round_ in rounds)
    assert 0 < drafted == adaptive._arms[1].tries


def test_the_lossless_check_reads_the_masked_distribution():
    """Of an answer that is the grammar's alone, each token has rank 1 and probability 1."""
    model, sampler = letters().model, Sampler(Request("x", temperature=1.0), CPU)
    found = placed(EagerRunner(model), sampler, PROMPT, [C, A, B, END], [()] * 4, start("cab"))
    assert [(at.rank, at.chances[0]) for at in found] == [(0, 1.0)] * 4


def test_every_schema_of_the_json_suite_can_be_followed(tiny_llama, tiny_tokenizer):
    target = LoadedModel(tiny_llama, tiny_tokenizer, "tiny", "made here")
    asked = [question.request for question in questions.load("json", None, {})[0]]
    assert len(asked) == 12 and all(isinstance(grammar_for(it, target), Constraint) for it in asked)


def test_a_constrained_answer_is_the_same_on_every_runner_and_satisfies_its_schema(tiny_llama, tiny_tokenizer):
    target = LoadedModel(tiny_llama, tiny_tokenizer, "tiny", "made here")
    schema = {"type": "object", "properties": {"a": {"enum": ["x", "yy"]}, "b": {"type": "boolean"}}}
    schema |= {"required": ["a", "b"], "additionalProperties": False, "x-guidance": {"whitespace_flexible": False}}
    request = Request("x", json_schema=json.dumps(schema))
    texts = []
    for compiled, drafter in itertools.product((False, True), ("none", "grammar", "ngram")):
        lane = Lane("l", "t", drafter, lookahead=3)
        rounds = list(LocalRun(LoadedPair(None, target), lane, request, Runners(compiled)).rounds)
        assert any(round_.drafted for round_ in rounds) == (drafter != "none"), "standard decoding stays as it is"
        texts.append("".join(token.text for round_ in rounds for token in round_.tokens if not token.special))
    answer = json.loads(texts[0])
    assert answer["a"] in ("x", "yy") and isinstance(answer["b"], bool) and set(texts) == {texts[0]}
