"""Renders chat templates in a process of its own, which `template.py` starts and may kill.

Reads a JSON object a line, the arguments of transformers' own function, and writes one for each: `text` or `error`. For
an object with a template's source under `names_of`, it writes the `names` of the variables that the template reads. Run
as a script; imports nothing of this package.
"""

from __future__ import annotations

import json
import sys
from typing import Any

MEMORY = 2**31  # bytes
GIVEN = {"messages", "tools", "add_generation_prompt", "documents", "bos_token", "eos_token", "unk_token", "pad_token"}


def main() -> None:
    from transformers.utils.chat_template_utils import _compile_jinja_template, render_jinja_template

    try:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    except ImportError:
        pass  # Windows has no limits of this kind
    print("ready", flush=True)
    for line in sys.stdin:
        try:
            answer: dict[str, Any]
            question = json.loads(line)
            if "names_of" in question:
                source = question["names_of"]
                answer = {"names": names(source, _compile_jinja_template(source).environment)}
            else:
                answer = {"text": render_jinja_template(**question)[0][0]}
        except BaseException as error:  # a template is a program, and can raise anything
            answer = {"error": str(error)[:500] or type(error).__name__}
        print(json.dumps(answer), flush=True)


def names(source: str, environment: Any) -> list[str]:
    """Returns the variables that the template reads from outside: those that it never sets, and those that it sets only
    where they are missing."""
    from jinja2 import meta, nodes

    tree = environment.parse(source)
    read = meta.find_undeclared_variables(tree) - set(environment.globals) - GIVEN
    set_here = {name.name for name in tree.find_all(nodes.Name) if name.ctx == "store"}
    read -= {name.name for name in tree.find_all(nodes.Name) if name.ctx == "param"}
    tests = [each for each in tree.find_all(nodes.Test) if each.name in ("defined", "undefined")]
    optional = {each.node.name for each in tests if isinstance(each.node, nodes.Name)}
    return sorted(name for name in read if name not in set_here or name in optional)


if __name__ == "__main__":
    main()
