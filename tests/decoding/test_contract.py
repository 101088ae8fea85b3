"""What the target's generation_config.json asks for: every lane writes what `generate()` writes under it."""

from __future__ import annotations

import itertools
import json
import shutil
from dataclasses import replace
from functools import cache, partial

import pytest
import torch
from transformers import GenerationConfig

from playground.backends.local import LocalBackend
from playground.conversation import Message
from playground.decoding.contract import Contract
from playground.decoding.drafters.base import NoDrafter
from playground.decoding.drafters.hidden import DraftChoice
from playground.decoding.lookahead import Lookahead
from playground.decoding.loop import decode
from playground.decoding.runners.eager import EagerRunner
from playground.decoding.sampling import Sampler
from playground.decoding.verify import decide
from playground.errors import PlaygroundError
from playground.experiments.events import Watch
from playground.experiments.race import decode as run_lane
from playground.export import from_json, to_json
from playground.lane import Request, assisted_lane, standard_lane
from playground.models.store import ModelStore
from playground.presets import custom_pair
from playground.trace import Comparison
from playground.views import facts, report
from tests.decoding.fakes import random_law
from tests.decoding.law import NoText, follows_the_law
from tests.decoding.real import V, ids_of, prompts
from tests.decoding.test_grammar import END as END_OF_TEXT
from tests.decoding.test_grammar import A, B, C, language
from tests.decoding.test_prefix_cache import MODEL, drafting
from tests.decoding.test_rules import WAYS, drafter
from tests.selection import selected

TOKENS, END = 16, 31  # which ends texts here: plain greedy texts hold it
TEXTS = prompts(5)[2:]  # two of one token, one of twelve
DRAFTING = ["none", "ngram", "assistant", "mtp tree"]
KINDS = [
    dict(suppress_tokens=[22, 15]),
    dict(begin_suppress_tokens=[21, 12, 22, 17, 10]),
    dict(bad_words_ids=[[15], [22], [END]]),
    dict(bad_words_ids=[[22, 22], [15, 15], [36, 24, 14]]),
    dict(no_repeat_ngram_size=2),
    dict(sequence_bias=[[[22], -8.0], [[5], 3.0]]),
    dict(sequence_bias=[[[15, 15], -20.0], [[22], -8.0]]),
    dict(min_new_tokens=12),
    dict(min_length=14),
    dict(forced_bos_token_id=3),
    dict(forced_eos_token_id=9),
    dict(exponential_decay_length_penalty=[3, 1.6]),
    dict(encoder_repetition_penalty=1.4),
    dict(encoder_no_repeat_ngram_size=1),
    dict(
        sequence_bias=[[[22], -2.0], [[8], 2.0]],
        repetition_penalty=1.3,
        bad_words_ids=[[36, 24]],
        min_new_tokens=9,
        remove_invalid_values=True,
        suppress_tokens=[15],
        begin_suppress_tokens=[21, 12],
    ),
]


@cache
def plain() -> list[list[int]]:
    return [theirs(prompt) for prompt in TEXTS]


def theirs(prompt: list[int], **asks: object) -> list[int]:
    ids = torch.tensor([prompt])
    options = dict(attention_mask=torch.ones_like(ids), do_sample=False, eos_token_id=END, max_new_tokens=TOKENS)
    return MODEL.generate(ids, **options, **asks)[0, len(prompt) :].tolist()


def ours(way: str, prompt: list[int], repetition_penalty: float = 1.0, **asks: object) -> list[int]:
    request = Request("x", max_new_tokens=TOKENS, repetition_penalty=repetition_penalty)
    contract = Contract(GenerationConfig(**asks), [END], V)
    target, sampler = EagerRunner(MODEL), Sampler(request, MODEL.device, prompt, contract)
    drafts = drafting(way)(target)
    return ids_of([*decode(target, drafts, Lookahead(4), sampler, NoText(), prompt, TOKENS, {END})])


@pytest.mark.parametrize(
    ("way", "asks"),
    selected(
        itertools.product(DRAFTING, KINDS),  # a tree has rows after branches of every length
        [*(("mtp tree", asks) for asks in KINDS), *((way, KINDS[-1]) for way in DRAFTING)],
    ),
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_every_lane_writes_what_generate_writes(way, asks):
    wanted = [theirs(prompt, **asks) for prompt in TEXTS]
    assert wanted != plain(), "it asks for something"
    assert [ours(way, prompt, **asks) for prompt in TEXTS] == wanted


@pytest.mark.parametrize(("way", "verification"), selected([("chain", "token"), *WAYS], [("chain", "token")]))
def test_sampled_drafts_leave_the_law_of_both_turns_of_a_conversation(way, verification):
    """Under a rule that depends on the text, and one that does not."""
    contract = Contract(GenerationConfig(suppress_tokens=[1], bad_words_ids=[[0, 2], [2, 3, 0]]), [], 4)
    rule, drafts = partial(decide, verification=verification), drafter(way, random_law(2, 4), 4)
    turns = dict(temperature=1.0, top_k=2, then=[dict(temperature=1.0, top_k=2)])
    assert follows_the_law(random_law(1, 4), 4, drafts, rule=rule, contract=contract, **turns)


@pytest.mark.parametrize(("way", "verification"), selected([("none", "token"), *WAYS], [("tree", "traversal")]))
def test_with_a_grammar_both_hold_and_where_they_leave_nothing_the_grammar_does(way, verification):
    """In the language a is followed by b, which is refused, and b alone is too short."""
    asks = GenerationConfig(bad_words_ids=[[A, B]], begin_suppress_tokens=[C], min_new_tokens=3)
    both = dict(language=language(), contract=Contract(asks, [END_OF_TEXT], 4))
    drafts = drafter(way, random_law(2, 4), 4) if way != "none" else lambda target: NoDrafter()
    rule = partial(decide, verification=verification)
    assert follows_the_law(random_law(1, 4), 4, drafts, rule=rule, temperature=1.0, **both)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_refused_token_is_drafted_only_where_a_reduced_vocabulary_has_no_other(temperature):
    contract = Contract(GenerationConfig(suppress_tokens=[1, 2]), [], 6)
    choose = DraftChoice(6, Sampler(Request("x", temperature=temperature), torch.device("cpu"), [0], contract))
    assert choose([0], torch.tensor([[9.0, 9.0, 0.0]]), torch.tensor([1, 2, 3])).ids == 3
    forced = choose([0], torch.tensor([[9.0, 8.0]]), torch.tensor([1, 2]))
    assert forced.ids in (1, 2) and 0 < forced.read[0, 1] <= 1


@pytest.fixture
def pair(tiny_folder):
    """Its drafter's file has rules that count for nothing."""
    drafts = shutil.copytree(tiny_folder, tiny_folder.with_name("drafts"))
    asking(drafts, suppress_tokens=list(range(20, 200)), num_beams=7)
    return custom_pair(str(tiny_folder), str(drafts), "assistant")


def asking(folder, **asks) -> None:
    file = folder / "generation_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | asks))


def test_a_conversation_keeps_to_it_and_its_trace_and_report_name_it(pair, tiny_folder):
    """With the caches that its first turn has left."""
    request = Request("The waves count", max_new_tokens=12, temperature=0.0)
    plain = run_lane(LocalBackend(ModelStore(), pair, "float32", "cpu"), standard_lane(pair), request, Watch())
    first, again = plain.token_ids[0], plain.token_ids[4]
    asks = dict(suppress_tokens=[first], begin_suppress_tokens=[again], no_repeat_ngram_size=2, min_new_tokens=12)
    asking(tiny_folder, **asks, num_beams=4, typical_p=0.9)
    store = ModelStore()
    backend = LocalBackend(store, pair, "float32", "cpu")
    model = backend.models(standard_lane(pair)).target.model
    turns = []
    for lane in (standard_lane(pair), *(assisted_lane(pair, way, 3) for way in ("assistant", "ngram"))):
        opened = run_lane(backend, lane, request, Watch())
        later = replace(request, prompt="And then?", history=(*request.turns, Message("assistant", opened.text)))
        turns.append([opened, run_lane(backend, lane, later, Watch())])
        assert turns[-1][1].reused.tokens > 0
        assert lane.drafter != "assistant" or any(round_.accepted for trace in turns[-1] for round_ in trace.rounds)
    for traces in zip(*turns, strict=True):
        prompt = torch.tensor([traces[0].prompt_ids])
        wanted = model.generate(prompt, do_sample=False, num_beams=1, max_new_tokens=12)[0, prompt.shape[1] :].tolist()
        assert [list(trace.token_ids) for trace in traces] == [wanted] * 3

    comparison = Comparison(tuple(lane[0] for lane in turns))
    assert from_json(json.loads(json.dumps(to_json(comparison)))) == comparison
    assert comparison.standard.environment.obeyed == asks
    sentence = (
        "Not obeyed of the model's generation_config.json: num_beams 4."  # typical_p has no part in greedy decoding
    )
    assert facts.notes(*comparison.lanes[:2])[-1:] == [sentence] and report.of(comparison).findings.count(sentence) == 1


def test_its_stop_strings_end_an_answer_as_those_of_the_request_do(pair, tiny_folder):
    request = Request("The waves count", max_new_tokens=12)
    backends = [LocalBackend(ModelStore(), pair, "float32", "cpu")]
    plain = run_lane(backends[0], standard_lane(pair), request, Watch())
    at = next(i for i in range(4, len(plain.tokens)) if plain.tokens[i].text.strip())
    stop = plain.tokens[at].text
    asking(tiny_folder, stop_strings=["", stop])
    backends.append(LocalBackend(ModelStore(), pair, "float32", "cpu"))
    for lane in (standard_lane(pair), assisted_lane(pair, "assistant", 3)):
        wanted, found = (
            run_lane(backend, lane, asked, Watch())
            for backend, asked in zip(backends, (replace(request, stop_strings=stop), request), strict=True)
        )
        assert (found.text, found.token_ids, found.finish) == (wanted.text, wanted.token_ids, "stop string")


def test_one_that_cannot_be_followed_is_a_sentence(pair, tiny_folder):
    asking(tiny_folder, bad_words_ids=[[10**6]])
    backend = LocalBackend(ModelStore(), pair, "float32", "cpu")
    with pytest.raises(PlaygroundError, match=r"generation_config\.json of tiny"):
        backend.run(standard_lane(pair), Request("The waves count"))
