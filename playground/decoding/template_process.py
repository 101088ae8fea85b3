"""Renders chat templates in a process of its own, which `template.py` starts and may kill.

Reads a JSON object a line, the arguments of transformers' own function, and writes one for each: `text` or `error`. Run
as a script; imports nothing of this package.
"""

from __future__ import annotations

import json
import sys

MEMORY = 2**31  # bytes


def main() -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    try:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    except ImportError:
        pass  # Windows has no limits of this kind
    print("ready", flush=True)
    for line in sys.stdin:
        try:
            answer = {"text": render_jinja_template(**json.loads(line))[0][0]}
        except BaseException as error:  # a template is a program, and can raise anything
            answer = {"error": str(error)[:500] or type(error).__name__}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
