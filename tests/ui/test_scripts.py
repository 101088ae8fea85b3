"""The page's modules are joined into one expression. What the result does, the browser tests say."""

from __future__ import annotations

import re
from graphlib import CycleError

import pytest

from playground.views import scripts


@pytest.fixture
def assets(tmp_path, monkeypatch):
    """Modules of this test alone: a function that writes them."""

    def write(**modules: str) -> None:
        for name, text in modules.items():
            (tmp_path / f"{name}.js").write_text(text)

    monkeypatch.setattr(scripts, "ASSETS", tmp_path)
    scripts.bundle.cache_clear()
    yield write
    scripts.bundle.cache_clear()


def test_a_module_stands_after_those_that_it_imports_and_only_once(assets):
    assets(
        a='import { b } from "./b.js";\nimport {\n  c,\n  d,\n} from "./c.js";\nexport const a = b + c + d;\n',
        b='import { c } from "./c.js";\nexport const b = 2 * c;\n',
        c="export const c = 1;\nexport const d = 10;\n",
    )
    text = scripts.bundle("a.js")
    assert re.findall(r'^modules\["(\w)\.js"\] = ', text, re.M) == ["c", "b", "a"]
    assert "return { c, d };" in text
    assert text.endswith('return modules["a.js"];\n})()')


def test_comments_on_types_stay_here_and_casts_are_kept(assets):
    types = '/** @import { A } from "./types.d.ts" */\n\n/**\n * @param {A} b\n */\n'
    assets(a=f"{types}export const a = (b) =>\n  /** @type {{A}} */ (b);\n")
    text = scripts.bundle("a.js")
    assert "@import" not in text
    assert "@param" not in text
    assert "const a = (b) =>\n  /** @type {A} */ (b);\n" in text


def test_modules_that_import_each_other_are_refused(assets):
    assets(
        a='import { b } from "./b.js";\nexport function a() {}\n',
        b='import { a } from "./a.js";\nexport function b() {}\n',
    )
    with pytest.raises(CycleError):
        scripts.bundle("a.js")
