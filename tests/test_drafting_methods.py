"""Each registration is whole: what it refers to is there, and it can be told from the others."""

from __future__ import annotations

import subprocess
import sys
from pkgutil import resolve_name

import pytest

from playground import drafting_methods
from playground.drafting_methods import METHODS, help_for, recognised
from playground.errors import PlaygroundError
from playground.presets import SHIPPED, kind_of
from tests.packages import registered


@pytest.mark.parametrize("name", METHODS)
def test_what_a_registration_refers_to_is_there(name):
    method = METHODS[name]
    assert help_for(name).startswith("# ")
    assert method.label and method.does and method.needs and method.paper
    references = [method.builder, method.loader, method.check, method.branches]
    assert all(callable(resolve_name(reference)) for reference in references if reference)


@pytest.mark.parametrize("name", METHODS)
def test_a_method_with_weights_says_how_they_are_loaded(name):
    method = METHODS[name]
    assert bool(method.loader) == (method.weights in ("network", "layers"))
    assert method.branches or method.weights != "network"
    assert method.weights == "model" or not method.check


def test_trees_grow_with_every_network_and_with_models_that_draft_in_parallel():
    networks = {name for name, method in METHODS.items() if method.weights == "network"}
    for name in ("tree", "composite", "adaptive"):
        assert set(METHODS[name].drafts_with) == networks | {"pard"}
    assert METHODS["eagle3"].drafts_with == ("eagle3",)
    assert METHODS["ngram"].drafts_with == ()


@pytest.mark.parametrize(
    ("config", "name"),
    [
        ({"kind": "mtp", "target": "starter"}, "mtp"),
        ({"kind": "heads", "target": "starter"}, "heads"),
        ({"architectures": ["LlamaForCausalLMEagle3"]}, "eagle3"),
        ({"speculators_model_type": "eagle3"}, "eagle3"),
        ({"architectures": ["DFlashDraftModel"], "model_type": "qwen3"}, "dflash"),
        ({"architectures": ["MuseGlimmerAssistantModel"]}, "dflash"),
        ({"model_type": "gemma4_assistant"}, "gemma4"),
        ({"model_type": "gemma4_unified_assistant"}, "gemma4"),
        ({"medusa_num_heads": 3}, "medusa"),
        ({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "pard_token": 128256}, "pard"),
        ({"architectures": ["LlamaForCausalLM"], "model_type": "llama"}, None),
        ({"speculators_model_type": "other"}, None),
    ],
)
def test_a_published_folder_is_recognised(config, name):
    assert recognised(config) == name


@pytest.mark.parametrize(
    ("config", "tensors", "name"),
    [
        ({"architectures": ["Qwen3DSparkModel"]}, ["markov_head.markov_w1.weight", "fc.weight"], "dspark"),
        ({"architectures": ["Qwen3DSparkModel"], "markov_rank": 256}, ["fc.weight"], "dflash"),
        ({"speculators_model_type": "dspark"}, ["confidence_head.proj.bias"], "dspark"),
        ({"speculators_model_type": "dflash"}, ["markov_head.markov_w1.weight"], "dspark"),
        ({"architectures": ["LlamaForCausalLM"]}, ["markov_head.markov_w1.weight"], None),
    ],
)
def test_of_several_methods_with_one_config_the_tensors_decide(config, tensors, name):
    assert recognised(config, tensors) == name


def test_the_shipped_drafters_are_recognised():
    kinds = {folder.name: kind_of(folder.name) for folder in SHIPPED.iterdir()}
    assert kinds == {
        "starter-mtp": "mtp",
        "starter-heads": "heads",
        "starter-eagle3": "eagle3",
        "starter-dflash": "dflash",
        "starter-dspark": "dspark",
        "starter-assistant": None,
    }


@pytest.mark.parametrize("content", ["[]", "3", "nonsense"])
def test_a_folder_with_an_odd_config_holds_no_drafter(tmp_path, content):
    (tmp_path / "config.json").write_text(content)
    assert kind_of(str(tmp_path)) is None


FOREIGN = """
from playground.drafting_methods import METHODS, DraftingMethod

def method(name, **more):
    given = dict(label="Foreign", needs="nothing", paper="an example", builder="missing_api:build", help="# Foreign")
    return DraftingMethod(name, **given | more)

"""
OF_PACKAGES = {
    "broken": "import no_such_module",
    "helpless": "IT = method('helpless', help='')",
    "late": "IT = [method('ngram'), method('late', weights='network', published={'kind': '^late$'})]",
    "later": "IT = method('late')",
    "newer": "IT = method('newer', of_a_newer_api=True)",
    "other": "IT = 3",
}


def test_a_package_adds_its_methods_and_what_is_wrong_with_one_ends_in_a_warning(tmp_path, monkeypatch, caplog):
    registered(tmp_path, "playground.drafters", {name: FOREIGN + text for name, text in OF_PACKAGES.items()})
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(drafting_methods, "_METHODS", {})
    methods = drafting_methods.METHODS
    assert [*methods] == [*METHODS, "late"]
    assert recognised({"kind": "late"}) == "late" and help_for("late") == "# Foreign"
    for package, reason in (
        ("broken", "ModuleNotFoundError: "),
        ("helpless", "no help"),
        ("late", "drafter ngram"),
        ("later", "drafter late"),
        ("newer", "of_a_newer_api"),
        ("other", "no DraftingMethod"),
    ):
        (warning,) = (line for line in caplog.messages if f"the package {package} adds" in line)
        assert reason in warning
    with pytest.raises(PlaygroundError, match=r"package late, .*missing_api:build"):
        methods["late"].resolve(methods["late"].builder)


def test_presets_are_read_without_torch():
    code = (
        "import sys; import playground.drafting_methods, playground.presets; playground.presets.load_pairs(); "
        "print('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"
