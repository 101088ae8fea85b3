"""The terminal, on a tiny model in a folder."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from playground.commands import main
from playground.commands import progress_bar as bars
from playground.commands.arguments import write
from playground.commands.progress_bar import progress_bar
from playground.drafting_methods import METHODS
from playground.errors import PlaygroundError
from playground.experiments.events import LaneFinished, PromptDone
from playground.experiments.history import open_history
from playground.experiments.race import Race
from playground.models import fit
from playground.models.device import resolve_dtype
from playground.presets import BESIDE, load_pairs
from tests.models.test_adapter import write_adapter
from tests.packages import registered


def test_compare_prints_a_table_and_writes_the_trace(tiny_folder, tmp_path, capsys):
    out, page = tmp_path / "out.json", tmp_path / "out.html"
    main(["compare", "--target", str(tiny_folder), "--drafter", "ngram", "--prompt", "waves and waves and",
          "--max-new-tokens", "12", "--lookahead", "3", "--dtype", "float32", "--json", str(out),
          "--html", str(page)])  # fmt: skip
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    printed = capsys.readouterr().out
    assert "Standard" in printed and "tok/s" in printed
    data = json.loads(out.read_text())
    assert data["schema_version"] == 3
    assert [lane["lane"]["drafter"] for lane in data["lanes"]] == ["none", "ngram"]
    assert data["lanes"][1]["lane"]["lookahead"] == 3
    assert data["differences"][0]["identical"] is True
    assert data["lanes"][0]["environment"]["dtype"] == "float32"


def test_compare_holds_all_lanes_to_a_grammar_and_says_what_it_cost(tiny_folder, tmp_path, capsys):
    schema, out = tmp_path / "schema.json", tmp_path / "out.json"
    schema.write_text('{"enum": ["up", "down"]}')
    main(["compare", "--target", str(tiny_folder), "--drafter", "grammar", "--prompt", "x", "--json-schema",
          str(schema), "--max-new-tokens", "20", "--dtype", "float32", "--json", str(out)])  # fmt: skip
    printed = capsys.readouterr().out
    assert "Masks" in printed and "Forced" in printed and "Identical output" in printed
    standard, drafted = json.loads(out.read_text())["lanes"]
    assert json.loads(drafted["text"]) in ("up", "down") and drafted["text"] == standard["text"]
    assert drafted["finish"] == "eos" and drafted["metrics"]["forced"] > 0
    assert drafted["request"]["json_schema"] == schema.read_text()


def test_compare_adds_a_lane_on_the_target_with_an_adapter(tiny_folder, tmp_path, capsys):
    folder, out = write_adapter(tmp_path / "lora"), tmp_path / "out.json"
    main(["compare", "--target", str(tiny_folder), "--drafter", "ngram", "--prompt", "waves and waves and",
          "--adapter", str(folder), "--max-new-tokens", "20", "--dtype", "float32", "--json", str(out)])  # fmt: skip
    lanes = json.loads(out.read_text())["lanes"]
    assert [lane["lane"]["name"] for lane in lanes] == ["Standard", "Prompt lookup", "Prompt lookup, adapter lora"]
    assert "lora merged" in lanes[2]["environment"]["weights"][0]
    assert lanes[1]["token_ids"] == lanes[0]["token_ids"] != lanes[2]["token_ids"]
    assert "target has" in capsys.readouterr().out


def test_compare_adds_a_synthetic_lane(tiny_folder, capsys):
    common = ["compare", "--target", str(tiny_folder), "--drafter", "ngram", "--dtype", "float32", "--prompt", "waves",
              "--max-new-tokens", "16", "--lookahead", "3", "--json", "-"]  # fmt: skip
    main([*common, "--force-acceptance=0.8,0.5"])
    lanes = json.loads(capsys.readouterr().out)["lanes"]
    assert [lane["lane"]["forced_rates"] for lane in lanes] == [[], [], [0.8, 0.5]]
    assert "synthetic" in lanes[2]["lane"]["name"] and lanes[2]["token_ids"] == lanes[0]["token_ids"]


def test_compare_runs_all_drafters_leaves_one_out_and_repeats(tiny_folder, tmp_path, capsys):
    out = tmp_path / "out.json"
    main(["compare", "--target", str(tiny_folder), "--early-exit", "9", "--all-drafters", "--repeat", "1", "--prompt",
          "waves", "--max-new-tokens", "6", "--dtype", "float32", "--json", str(out)])  # fmt: skip
    printed = capsys.readouterr()
    assert "3 runs" in printed.out and "Suffix lookup" in printed.out
    assert "left out" in printed.err and "Early exit" in printed.err
    data = json.loads(out.read_text())
    drafters = [name for name, method in METHODS.items() if not method.drafts_with and name not in BESIDE]
    assert [lane["lane"]["drafter"] for lane in data["lanes"]] == ["none", *drafters]
    assert [len(lanes) for lanes in data["repeats"]] == [1 + len(drafters)] * 2


@contextmanager
def interrupted_by(event: type):
    """Progress bars that Ctrl-C ends when this event comes."""

    @contextmanager
    def interrupted(total):
        with progress_bar(total) as draw:

            def emit(it):
                draw(it)
                if isinstance(it, event):
                    raise KeyboardInterrupt

            yield emit

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bars, "progress_bar", interrupted)
        yield


def test_compare_that_is_stopped_prints_what_was_decoded_and_ends_with_130(tiny_folder, capsys, monkeypatch):
    decode = Race.by_turns

    def waiting(race, lanes):
        if lanes[0].drafter != "none":
            race.watch.wait(60)
        return decode(race, lanes)

    monkeypatch.setattr(Race, "by_turns", waiting)
    with pytest.raises(SystemExit) as exit_, interrupted_by(LaneFinished):
        main(["compare", "--target", str(tiny_folder), "--drafter", "ngram", "--prompt", "waves", "--dtype", "float32",
              "--max-new-tokens", "8", "--one-after-the-other", "--json", "-"])  # fmt: skip
    assert exit_.value.code == 130
    assert [lane["finish"] for lane in json.loads(capsys.readouterr().out)["lanes"]] == ["length", "stopped"]
    assert open_history().entries() == []


def test_compare_names_the_checkpoints_own_sampling_settings(tiny_folder, tmp_path, capsys):
    folder = shutil.copytree(tiny_folder, tmp_path / "sampling")
    (folder / "generation_config.json").write_text('{"do_sample": true, "temperature": 0.6, "top_k": 20}')
    main(["compare", "--target", str(folder), "--drafter", "ngram", "--prompt", "waves", "--max-new-tokens", "4",
          "--top-k", "20", "--dtype", "float32"])  # fmt: skip
    assert capsys.readouterr().out.endswith(" settings: --temperature 0.6\n")


def test_two_folders_make_a_pair_and_json_goes_to_standard_output(tiny_folder, tmp_path, capsys):
    prompt = tmp_path / "prompt.txt"
    prompt.write_text("கடல் 🙂", encoding="utf-8")
    main(["compare", "--target", str(tiny_folder), "--assistant", str(tiny_folder), "--prompt-file", str(prompt),
          "--max-new-tokens", "8", "--dtype", "float32", "--json", "-"])  # fmt: skip
    data = json.loads(capsys.readouterr().out)
    assert data["lanes"][1]["lane"]["drafter"] == "assistant"
    assert data["lanes"][1]["metrics"]["acceptance_rate"] == 1.0, "a model that drafts for itself is always right"


@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_compare_with_quantised_weights_says_so_in_the_trace(dtype, tiny_folder, capsys):
    main(["compare", "--target", str(tiny_folder), "--drafter", "ngram", "--prompt", "waves and waves and",
          "--max-new-tokens", "8", "--dtype", dtype, "--device", "cpu", "--json", "-"])  # fmt: skip
    data = json.loads(capsys.readouterr().out)
    computed_in = str(resolve_dtype(dtype, torch.device("cpu"))).removeprefix("torch.")
    assert [lane["environment"]["dtype"] for lane in data["lanes"]] == 2 * [f"{dtype} weights, {computed_in}"]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--prompt", ""], "is empty"),
        (["--prompt", "x", "--pair", "nobody"], "'nobody'"),
        (["--prompt", "x", "--pair", "starter", "--target", "y"], "a pair, or"),
        (["--prompt", "x", "--pair", "starter", "--drafter", "psychic"], "'psychic'"),
        (
            ["--prompt", "x", "--pair", "starter", "--policy", "bold"],
            "policy must",
        ),
        (["--prompt", "x", "--pair", "starter", "--lookahead", "0"], "Lookahead must"),
        (["--prompt", "x", "--drafter", "ngram", "--all-drafters"], "either --drafter or --all-drafters"),
        (["--prompt-file", "no/such/file"], "no/such/file cannot"),
        (["--prompt", "x", "--json-schema", "no/such/file"], "no/such/file cannot"),
        (["--prompt", "x", "--regex", "a", "--json-schema", "README.md"], "and Regular expression"),
        (["--prompt", "x", "--pair", "starter", "--device", "abacus"], "not a device"),
        (["--prompt", "x", "--pair", "starter", "--json", "no/such/folder/f.json"], "no folder"),
        (["--prompt", "x", "--pair", "starter", "--html", "no/such/folder/f.html"], "no folder"),
    ],
)
def test_what_cannot_be_run_is_a_sentence_and_exit_code_2(arguments, named, capsys):
    with pytest.raises(SystemExit) as exit_:
        main(["compare", *arguments])
    assert exit_.value.code == 2
    assert named in capsys.readouterr().err


def test_a_large_download_is_not_begun_unasked(monkeypatch, capsys):
    far = fit.Fit("download", 3e9, 2.1e10, 2.4e9, "")
    monkeypatch.setattr(fit, "fits", lambda pair, device: far)
    with pytest.raises(SystemExit):
        main(["compare", "--prompt", "x", "--pair", "starter"])
    said = capsys.readouterr().err
    assert "2.4 GB has" in said and "with --yes" in said


def test_texts_that_are_not_there_are_named_before_the_target_is_loaded(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["distil", "mtp", "--target", "no/such/folder", "--work", str(tmp_path), "--texts", "no/such/file"])
    assert "no/such/file cannot" in capsys.readouterr().err


GREET = """
def greet(options):
    print("Hello", options.name)

def IT(commands):
    parser = commands.add_parser("greet", help="say hello")
    parser.set_defaults(command=greet)
    parser.add_argument("name")
"""


def test_a_package_adds_a_command_and_one_that_cannot_be_added_ends_in_a_warning(tmp_path, monkeypatch, capsys, caplog):
    registered(tmp_path, "playground.commands", {"greeter": GREET, "no_function": "IT = 3"})
    monkeypatch.syspath_prepend(tmp_path)
    main(["greet", "you"])
    assert capsys.readouterr().out == "Hello you\n"
    assert "the package no_function adds to playground.commands" in caplog.text


def test_pairs_lists_every_preset_with_a_reason(capsys):
    main(["pairs"])
    printed = capsys.readouterr().out
    assert "starter" in printed and "llama-3.1-8b" in printed


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_a_help_page_that_leads_to_the_table_of_targets(name, capsys):
    main(["drafters", name])
    printed = capsys.readouterr().out
    assert printed.startswith("# ")
    assert "`drafters targets`" in printed


@pytest.mark.starter
def test_drafters_lists_every_way_with_the_presets_that_have_it(capsys):
    main(["drafters"])
    text = capsys.readouterr().out
    assert all(f"\n{name} " in f"\n{text}" for name in METHODS)
    main(["drafters", "--json"])
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert "starter" in rows["tree"]["presets"]
    assert rows["assistant"]["presets"] == [n for n, pair in load_pairs()[0].items() if "assistant" in pair.drafters]


@pytest.mark.parametrize("listing", ["pairs", "drafters"])
def test_listings_fit_the_terminal(listing, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    main([listing])
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


def test_output_that_nobody_reads_to_its_end_is_no_error():
    listing = subprocess.Popen(
        [sys.executable, "-m", "playground", "drafters"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    listing.stdout.close()
    assert listing.stderr.read() == b""
    assert listing.wait() == 141


def own_suite(tmp_path, *prompts):
    path = tmp_path / "mine.txt"
    path.write_text("\n".join(prompts))
    return str(path)


def test_suite_prints_its_tables_and_writes_its_result(tiny_folder, tmp_path, capsys):
    out, prompts, traces = tmp_path / "out.json", own_suite(tmp_path, "waves", "winters"), tmp_path / "traces.jsonl"
    main(["suite", "--target", str(tiny_folder), "--drafters", "ngram", "--lookaheads", "2", "3", "--dtype", "float32",
          "--max-new-tokens", "4", "--runs", "1", "--suite", prompts, "--json", str(out), "--all-tables",
          "--traces", str(traces)])  # fmt: skip
    printed = capsys.readouterr()
    assert len(traces.read_text().splitlines()) == 2 * 3
    lines = [line.split() for line in printed.out.splitlines()]
    assert [words[:6] for words in lines].count(["Prompt", "lookup", "(3", "ahead)", "all", "2"]) == 1
    assert ["2", "winters", "mine", "Prompt", "lookup", "(3"] in [words[:6] for words in lines]
    assert "2 of 2, mine: Prompt lookup (2 ahead)" in printed.err
    rows = json.loads(out.read_text())["rows"]
    assert [row["lane"] for row in rows] == 2 * ["standard", "ngram 2", "ngram 3"]
    assert all(row["identical"] for row in rows) and "are identical" in printed.out


def test_sweep_prints_the_best_value_and_json_goes_to_standard_output(tiny_folder, tmp_path, capsys):
    sweep = ["sweep", "--target", str(tiny_folder), "--drafter", "ngram", "--dtype", "float32", "--max-new-tokens", "4",
             "--runs", "1", "--suite", own_suite(tmp_path, "waves"), "--values", "0", "3"]  # fmt: skip
    main(sweep)
    assert re.search("(The fastest|No) lookahead was", capsys.readouterr().out), "of one prompt and run"
    main([*sweep, "--json", "-"])
    assert [point["value"] for point in json.loads(capsys.readouterr().out)["points"]] == [0, 3]


def test_a_suite_with_a_prompt_that_fails_ends_with_1_and_one_that_cannot_run_with_2(tiny_folder, tmp_path, capsys):
    common = ["suite", "--target", str(tiny_folder), "--drafters", "ngram", "--dtype", "float32", "--runs", "1",
              "--max-new-tokens", "4", "--suite"]  # fmt: skip
    for prompts, code, words in [
        (own_suite(tmp_path, "waves", "a" * 600), 1, "could not"),
        (str(tmp_path / "none.jsonl"), 2, "none.jsonl is"),
    ]:
        with pytest.raises(SystemExit) as exit_:
            main([*common, prompts])
        assert exit_.value.code == code
        assert words in "".join(capsys.readouterr())


def test_a_suite_that_is_stopped_ends_with_130_and_the_same_command_goes_on(tiny_folder, tmp_path, capsys, monkeypatch):
    command = ["suite", "--target", str(tiny_folder), "--drafters", "ngram", "--dtype", "float32", "--runs", "1",
               "--max-new-tokens", "4", "--suite", own_suite(tmp_path, "waves", "winters", "words")]  # fmt: skip
    decode = Race.run

    def waiting(race, lanes):
        if race.request.prompt != "waves":
            race.watch.wait(60)
        return decode(race, lanes)

    monkeypatch.setattr(Race, "run", waiting)
    with pytest.raises(SystemExit) as exit_, interrupted_by(PromptDone):
        main(command)
    assert exit_.value.code == 130
    assert "same command" in capsys.readouterr().err
    monkeypatch.setattr(Race, "run", decode)
    main(command)
    printed = capsys.readouterr()
    assert "going on" in printed.err and "1 of 3" not in printed.err and "3 of 3" in printed.err


@pytest.fixture
def kept(tiny_folder, tmp_path, capsys):
    """The history after a comparison, a suite and a sweep: the ids by kind."""
    common = ["--target", str(tiny_folder), "--dtype", "float32", "--max-new-tokens", "4"]
    prompts = ["--runs", "1", "--suite", own_suite(tmp_path, "waves", "<b>winters</b>")]
    main(["compare", *common, "--drafter", "ngram", "--prompt", "waves"])
    main(["suite", *common, *prompts, "--drafters", "ngram", "--json", str(tmp_path / "suite.json")])
    main(["sweep", *common, *prompts, "--drafter", "ngram", "--values", "0", "2"])
    capsys.readouterr()
    main(["history", "list", "--json"])
    return {entry["kind"]: entry["id"] for entry in json.loads(capsys.readouterr().out)}


def test_what_was_run_is_listed_shown_compared_exported_and_cleared(kept, tmp_path, capsys):
    def printed(*arguments):
        main(["history", *arguments])
        return capsys.readouterr().out

    assert set(kept) == {"compare", "suite", "sweep"}
    assert [line.split()[3] for line in printed().splitlines()[1:]] == ["sweep", "suite", "compare"]
    assert len(printed("list", "finished", "lookup", "lookahead").splitlines()) == 2
    assert "Prompt lookup (5 ahead)" in printed("show", kept["suite"])
    assert "lookahead was" in printed("show", kept["sweep"])
    assert "Identical output" in printed("show", kept["compare"])
    assert json.loads(printed("show", kept["compare"], "--json"))["lanes"]
    same = printed("compare", kept["suite"], str(tmp_path / "suite.json"))
    assert "Prompt lookup (5 ahead)  all" in same and "prompts differ" not in same
    assert "Standard: tokens/s " in printed("compare", kept["compare"], kept["compare"])
    with pytest.raises(SystemExit):
        main(["history", "compare", kept["compare"], kept["suite"]])
    assert "be compared" in capsys.readouterr().err
    for kind, name in kept.items():
        for form in ("json", "csv", "html", "md"):
            main(["history", "export", name, str(tmp_path / f"{kind}.{form}")])
    assert (tmp_path / "suite.csv").read_text().startswith("question,category,lane,")
    assert (tmp_path / "compare.csv").read_text().count("\n") == 3
    assert "| 2 \\<b\\>winters\\</b\\> | mine | Prompt lookup (5 ahead) |" in (tmp_path / "suite.md").read_text()
    main(["history", "delete", kept["sweep"]])
    assert printed("clear") == "2 deleted.\n"
    assert "Nothing was" in printed()


def test_a_report_is_one_page_of_text_that_stays_text(kept, tmp_path, capsys):
    source = Path(os.environ["PLAYGROUND_HISTORY"]) / "records" / f"{kept['suite']}.jsonl"
    for file in (tmp_path / "suite.json", source):
        main(["report", str(file), "-o", str(tmp_path / "page.html")])
        page = (tmp_path / "page.html").read_text(encoding="utf-8")
        assert page.startswith("<!doctype html>") and "&lt;b&gt;winters" in page
        assert "<b>winters" not in page and "Content-Security-Policy" in page


def test_a_report_is_the_same_from_a_run_the_history_and_a_file(tiny_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    main(["compare", "--target", str(tiny_folder), "--dtype", "float32", "--max-new-tokens", "4", "--prompt", "waves",
          "--html", "a.html", "--json", "a.json"])  # fmt: skip
    main(["history", "export", open_history().entries()[0].id, "b.html"])
    main(["report", "a.json", "-o", "c.html"])
    pages = [(tmp_path / f"{name}.html").read_text(encoding="utf-8").rstrip() for name in "abc"]
    assert pages[0] == pages[1] == pages[2] and "Memory at" in pages[0]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["history", "show", "nothing"], "experiment nothing"),
        (["history", "export", "x", "x.pdf"], "should end"),
        (["report", "README.md", "-o", "x.html"], "not JSON"),
        (["report", "assets/recorded.json", "-o", "no/such/x.html"], "no folder"),
    ],
)
def test_what_the_history_cannot_do_is_a_sentence(arguments, named, capsys):
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    assert exit_.value.code == 2
    assert named in capsys.readouterr().err


def test_a_file_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "page.html"
    write(path, "first")
    monkeypatch.setattr(os, "replace", lambda *paths: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(PlaygroundError, match="No space"):
        write(path, "second")
    assert path.read_text() == "first\n" and [*tmp_path.iterdir()] == [path]


def test_a_conversation_is_compared_from_its_files(tiny_folder, tmp_path, capsys):
    chat = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}]
    (tmp_path / "chat.json").write_text(json.dumps([*chat, {"role": "user", "content": "The waves?"}]))
    (tmp_path / "tools.json").write_text('[{"name": "count"}]')
    words = ["compare", "--target", str(tiny_folder), "--drafter", "ngram", "--dtype", "float32", "--max-new-tokens=4"]
    words += ["--messages", str(tmp_path / "chat.json"), "--tools", str(tmp_path / "tools.json")]
    main([*words, "--json", str(tmp_path / "out.json")])
    asked = json.loads((tmp_path / "out.json").read_text())["lanes"][0]["request"]
    assert (asked["prompt"], [turn["content"] for turn in asked["history"]]) == ("The waves?", ["Hi", "Hello."])
    assert json.loads(asked["tools"]) == [{"name": "count"}]
    with pytest.raises(SystemExit):
        main([*words, "--template", "enable_thinking=true"])
    assert "read enable_thinking." in capsys.readouterr().err
    (tmp_path / "chat.json").write_text(json.dumps(chat))
    with pytest.raises(SystemExit):
        main(words)
    assert "role assistant" in capsys.readouterr().err


def test_a_log_s_verdict_is_printed_and_its_broken_line_named(tiny_folder, tmp_path, capsys):
    chat = {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}]}
    (tmp_path / "log.jsonl").write_text(f"{json.dumps(chat)}\n{{\n")
    words = ["traffic", str(tmp_path / "log.jsonl"), "--target", str(tiny_folder), "--dtype", "float32"]
    with pytest.raises(SystemExit) as ended:
        main([*words, "--drafters", "ngram", "--max-new-tokens", "4", "--json", str(tmp_path / "out.json")])
    said = capsys.readouterr()
    assert ended.value.code == 1 and "log.jsonl, line 2: " in said.err
    assert "Too few" in said.out
    assert json.loads((tmp_path / "out.json").read_text())["kind"] == "traffic"
