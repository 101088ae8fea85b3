"""An assistant with another tokenizer, on two real tokenizers of different kinds and transformers' real classes."""

from __future__ import annotations

import copy
import json
from types import SimpleNamespace

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import Gemma3ForCausalLM, Gemma3TextConfig, PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

from playground.decoding.drafters import universal
from playground.decoding.drafters.universal import TextEnd, UniversalDrafter
from playground.decoding.lookahead import Lookahead
from playground.decoding.loop import decode
from playground.decoding.runners.eager import EagerRunner
from playground.decoding.sampling import Sampler
from playground.decoding.text import Detokenizer, special_ids
from playground.lane import Request
from playground.models.load import LoadedModel
from tests.decoding.fakes import GREEDY, FakeModel
from tests.decoding.real import ids_of
from tests.fixtures import SENTENCES
from tests.tiny import small_llama

CONSTANTLY_FOUR = dict(
    num_assistant_tokens=4, num_assistant_tokens_schedule="constant", assistant_confidence_threshold=0.0
)
STORY = " ".join(SENTENCES) + "\n\nThe target counts the waves. " + SENTENCES[2] + " 🙂🙂 It keeps a few tokens."


@pytest.fixture(scope="module")
def pieces() -> PreTrainedTokenizerFast:
    """As SentencePiece makes them: ▁ for a space and before the text, bytes for characters that it has not learnt."""
    special = ["<unk>", "<s>", "</s>", "<|user|>"]
    learnt = Tokenizer(models.BPE())
    learnt.pre_tokenizer = pre_tokenizers.Metaspace()
    learnt.train_from_iterator(SENTENCES[:2], trainers.BpeTrainer(vocab_size=200, show_progress=False))
    model = json.loads(learnt.to_str())["model"]
    words = [*special, *(f"<0x{byte:02X}>" for byte in range(256)), *model["vocab"]]
    vocab, merges = {word: i for i, word in enumerate(words)}, [tuple(pair) for pair in model["merges"]]
    tokenizer = Tokenizer(models.BPE(vocab, merges, byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        additional_special_tokens=["<|user|>"],
    )


@pytest.fixture(scope="module", params=["bytes for pieces", "pieces for bytes", "bytes for bytes"])
def tokenizers(request, tiny_tokenizer, pieces):
    """The assistant's and the target's."""
    kinds = {"bytes": tiny_tokenizer, "pieces": pieces}
    assistant, target = request.param.split(" for ")
    return kinds[assistant], kinds[target]


def bytes_of(tokenizer: PreTrainedTokenizerFast, id_: int) -> bytes:
    token = tokenizer.convert_ids_to_tokens(id_)
    if id_ in special_ids(tokenizer):
        return b""
    if token.startswith("<0x"):
        return bytes.fromhex(token[3:5])
    if tokenizer.bos_token:  # the one in pieces
        return token.replace("▁", " ").encode()
    byte_of = {letter: byte for byte, letter in bytes_to_unicode().items()}
    return bytes(byte_of[letter] for letter in token)


def tells(story: str, tokenizer: PreTrainedTokenizerFast):
    """A law that tells the story from wherever the tokens have got to, then ends."""
    told = story.encode()
    words = {id_: bytes_of(tokenizer, id_) for id_ in range(len(tokenizer))}

    def law(ids):
        so_far = b"".join(words[id_] for id_ in ids)
        so_far = so_far.removeprefix(b" ") if tokenizer.bos_token else so_far
        rest = told[len(so_far) :]
        fitting = [id_ for id_, word in words.items() if word and rest.startswith(word)]
        best = max(fitting, key=lambda id_: len(words[id_]), default=tokenizer.eos_token_id)
        return torch.nn.functional.one_hot(torch.tensor(best), len(tokenizer)) * 9.0

    return law


def story_teller(story: str, tokenizer, **options) -> SimpleNamespace:
    """As a LoadedModel; the fixture `fakes` lets the drafter take it."""
    fake = FakeModel(tells(story, tokenizer), len(tokenizer), **options)
    fake.model, fake.discards_old = fake, False
    return SimpleNamespace(model=fake, tokenizer=tokenizer, eos_ids=frozenset([tokenizer.eos_token_id]))


@pytest.fixture
def fakes(monkeypatch):
    monkeypatch.setattr(universal, "Runners", lambda: lambda loaded, use: loaded.model)


def loaded(tokenizer, seed: int = 0, sliding: bool = False) -> LoadedModel:
    torch.manual_seed(seed)
    if not sliding:
        return LoadedModel(small_llama(tokenizer), tokenizer, "small", "")
    config = Gemma3TextConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        sliding_window=6,
        layer_types=["sliding_attention", "full_attention"],
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        pad_token_id=tokenizer.eos_token_id,
        initializer_range=0.4,
    )
    return LoadedModel(Gemma3ForCausalLM(config).eval(), tokenizer, "small", "")


def run(target, tokenizer, drafter, prompt, lookahead=4, max_new_tokens=24, ends=None, **sampling):
    sampler = Sampler(Request("x", **sampling), torch.device("cpu"))
    ends = {tokenizer.eos_token_id} if ends is None else ends
    detokenizer = Detokenizer(tokenizer, prompt)
    return list(decode(target, drafter, Lookahead(lookahead), sampler, detokenizer, prompt, max_new_tokens, ends))


def texts(n: int) -> list[str]:
    """Beginnings of the story and cuts from its middle, with a turn of a chat in every other."""
    return [("<|user|>" if i % 2 else "") + STORY[11 * i : 14 * i + 9] for i in range(n)]


def test_what_both_would_write_is_drafted_and_stands(tokenizers, fakes):
    """The target writes its tokenizer's own tokens of the story, the assistant the longest that fit."""
    own, its = tokenizers
    ids = its(STORY, add_special_tokens=False)["input_ids"]

    def law(text):
        return torch.nn.functional.one_hot(torch.tensor(ids[len(text)]), len(its)) * 9.0

    drafter = UniversalDrafter(story_teller(STORY, own), its)
    n = len(ids) - 5
    rounds = run(FakeModel(law, len(its)), its, drafter, ids[:5], max_new_tokens=n)
    assert ids_of(rounds) == ids[5:]
    assert len(rounds) <= 1.1 * n / 5, "nearly every draft token is accepted"
    assert max(len(round_.drafted) for round_ in rounds) == 4


def test_greedy_equals_plain_decoding(tokenizers):
    own, its = tokenizers
    target, assistant = loaded(its).model, loaded(own, seed=1)
    drafted = 0
    for text in texts(8):
        prompt = its(text)["input_ids"]
        rounds = run(EagerRunner(target), its, UniversalDrafter(assistant, its), prompt, max_new_tokens=12)
        assert ids_of(rounds) == plain(target, prompt)
        drafted += sum(len(round_.drafted) for round_ in rounds)
    assert drafted > 40


def plain(target, prompt: list[int], **options) -> list[int]:
    ids = torch.tensor([prompt])
    out = target.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False, **options)
    return out[0, len(prompt) :].tolist()


@pytest.mark.parametrize("kind", ["bytes for pieces", "pieces for bytes"])
def test_same_tokens_as_transformers(kind, tiny_tokenizer, pieces):
    own, its = (pieces, tiny_tokenizer) if kind == "pieces for bytes" else (tiny_tokenizer, pieces)
    target, assistant = loaded(its).model, loaded(own, seed=1)
    for text in texts(20)[::5]:
        prompt = its(text)["input_ids"]
        theirs = plain(target, prompt, assistant_model=assistant.model, tokenizer=its, assistant_tokenizer=own)
        ours = run(EagerRunner(target), its, UniversalDrafter(assistant, its), prompt, max_new_tokens=12)
        assert ids_of(ours) == theirs


@pytest.fixture(scope="module")
def knows_the_story(tiny_tokenizer) -> LoadedModel:
    """A model that has learnt the story by heart: what it writes is text, in its tokenizer's own tokens."""
    model = small_llama(tiny_tokenizer).train()
    ids = tiny_tokenizer(STORY, return_tensors="pt")["input_ids"]
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(150):
        optimizer.zero_grad()
        model(ids, labels=ids).loss.backward()
        optimizer.step()
    return LoadedModel(model.eval(), tiny_tokenizer, "story", "")


def twin(loaded: LoadedModel) -> LoadedModel:
    """The same model and the same tokenizer, but every token has another id, and there is one more, 0."""
    state = json.loads(loaded.tokenizer.backend_tokenizer.to_str())
    n = len(loaded.tokenizer)
    state["model"]["vocab"] = {word: n - id_ for word, id_ in state["model"]["vocab"].items()} | {"<nothing>": 0}
    for token in state["added_tokens"]:
        token["id"] = n - token["id"]
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(state)), eos_token=loaded.tokenizer.eos_token
    )
    model = copy.deepcopy(loaded.model)
    model.resize_token_embeddings(n + 1)
    with torch.no_grad():
        for new, old in zip(model.parameters(), loaded.model.parameters(), strict=True):
            if new.shape != old.shape:  # embedding and head
                new[1:], new[0] = old.flip(0), 0.0
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    return LoadedModel(model, tokenizer, "twin", "")


def test_what_transformers_writes_in_no_more_rounds(knows_the_story, monkeypatch):
    target, tokenizer, assistant = knows_the_story.model, knows_the_story.tokenizer, twin(knows_the_story)
    for key, value in CONSTANTLY_FOUR.items():
        setattr(assistant.model.generation_config, key, value)
    passes = []
    forward = type(target).forward

    def counted(self, *args, **kwargs):
        passes.append(self is target)
        return forward(self, *args, **kwargs)

    options = dict(assistant_model=assistant.model, tokenizer=tokenizer, assistant_tokenizer=assistant.tokenizer)
    ours = 0
    for end in range(20, 220, 25):
        prompt = tokenizer(STORY[:end])["input_ids"]
        rounds = run(EagerRunner(target), tokenizer, UniversalDrafter(assistant, tokenizer), prompt, max_new_tokens=12)
        ours += len(rounds)
        with monkeypatch.context() as patch:
            patch.setattr(type(target), "forward", counted)
            assert ids_of(rounds) == plain(target, prompt, **options)
    assert ours <= sum(passes)
    assert ours < 8 * 12 / 3, "the twin is nearly always right"


@pytest.mark.parametrize("sliding", [False, True])
def test_what_was_drafted_before_leaves_no_state(tokenizers, sliding):
    """The texts end within words and characters, where the assistant's last tokens are others one token later."""
    own, its = tokenizers
    assistant = loaded(own, seed=1, sliding=sliding)
    ids = its(STORY[50:170])["input_ids"]
    drafter = UniversalDrafter(assistant, its)
    for known in (*range(4, len(ids), 3), len(ids) - 1, len(ids)):
        again = drafter.propose(ids[:known], 3, 0.0, GREEDY)
        first = UniversalDrafter(assistant, its).propose(ids[:known], 3, 0.0, GREEDY)
        assert again.ids == first.ids
        assert again.q == pytest.approx(first.q, rel=1e-3)


def test_a_special_token_is_never_drafted_through_text(tokenizers, fakes):
    own, its = tokenizers
    story = "The waves <|user|> count </s> the <|end|> winters."
    drafter = UniversalDrafter(story_teller(story, own), its)
    ids = its("The", add_special_tokens=False)["input_ids"]
    draft = drafter.propose(ids, 12, 0.0, GREEDY)
    assert draft.ids
    assert not special_ids(its) & {*draft.ids}
    assert its.decode(ids + draft.ids) in story


def test_the_assistant_is_shown_the_special_tokens_that_it_knows(pieces, tiny_tokenizer, fakes):
    assistant = story_teller("x", pieces)
    ids = tiny_tokenizer("<|system|>Count.<|end|><|user|>The waves<|assistant|>")["input_ids"]
    UniversalDrafter(assistant, tiny_tokenizer).propose(ids, 1, 0.0, GREEDY)
    assert pieces.decode(assistant.model.text).startswith("<s> Count.<|user|>The waves")

    assistant = story_teller("x", pieces)
    UniversalDrafter(assistant, pieces).propose(pieces("The waves")["input_ids"], 1, 0.0, GREEDY)
    assert assistant.model.text.count(pieces.bos_token_id) == 1


def test_a_draft_ends_where_the_assistant_would_end_or_is_not_sure(tiny_tokenizer, pieces, fakes):
    ids = tiny_tokenizer("The waves")["input_ids"]
    ending = UniversalDrafter(story_teller("The waves count.", pieces), tiny_tokenizer)
    assert tiny_tokenizer.decode(ending.propose(ids, 9, 0.0, GREEDY).ids) == " count."
    unsure = UniversalDrafter(story_teller("The waves count.", pieces), tiny_tokenizer)
    assert tiny_tokenizer.decode(unsure.propose(ids, 9, 0.99, GREEDY).ids) == " count"


def test_nothing_is_drafted_after_a_token_that_the_assistants_embedding_lacks(tiny_tokenizer, pieces):
    """Tokenizers may know more tokens than their model: Gemma 3 1B has 262,144 rows and 262,145 tokens."""
    assistant = loaded(pieces)
    assistant.model.resize_token_embeddings(len(pieces) - 60)
    drafter = UniversalDrafter(assistant, tiny_tokenizer)
    known, unknown = (
        next(text for text in SENTENCES if (max(pieces(text)["input_ids"]) < len(pieces) - 60) is fits)
        for fits in (True, False)
    )
    assert drafter.propose(tiny_tokenizer(known)["input_ids"], 4, 0.0, GREEDY).ids
    assert not drafter.propose(tiny_tokenizer(known + unknown)["input_ids"], 4, 0.0, GREEDY).ids


def test_nothing_is_drafted_where_the_assistant_has_no_room(tiny_tokenizer, pieces, fakes):
    ids = tiny_tokenizer("The waves")["input_ids"]
    full = UniversalDrafter(story_teller("The waves count.", pieces, context_limit=3), tiny_tokenizer)
    assert full.propose(ids, 4, 0.0, GREEDY).ids == []


@pytest.mark.parametrize("kind", ["bytes", "pieces"])
def test_text_goes_on_from_within_words_and_characters(kind, tiny_tokenizer, pieces):
    tokenizer = {"bytes": tiny_tokenizer, "pieces": pieces}[kind]

    def ids_of_text(text: str) -> list[int]:
        return tokenizer(text, add_special_tokens=False)["input_ids"]

    whole = ids_of_text("The waves count 🙂 and")
    assert TextEnd(tokenizer, ids_of_text("The waves")).tokens(" count") == ids_of_text("The waves count")[-1:]
    within = ids_of_text("The wa")
    assert tokenizer.decode(within + TextEnd(tokenizer, within).tokens("ves count")) == "The waves count"
    at = next(i for i in range(len(whole)) if tokenizer.decode(whole[:i]).endswith("\ufffd"))
    for cut in (at, at + 1):
        end = TextEnd(tokenizer, whole[:cut])
        assert tokenizer.decode(end.whole) == "The waves count "
        assert end.tokens("🙂 and") == whole[cut:]
        assert end.tokens("x") == []
