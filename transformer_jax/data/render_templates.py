"""Renders chat templates in a process of its own, as a template is a program from elsewhere.

data/tokenizers/chat_template.py starts it and stops it: python -I render_templates.py. It imports
nothing of the package, reads a JSON object per line of stdin, and writes one per line of stdout.
The first line is {"template": ..., "variables": {...}}. Each other line holds the variables of a
conversation, "messages" and others, and the reply is {"text": ..., "spans": [[start, stop], ...]},
the characters that stand inside {% generation %}, or {"error": ...}. The process ends where a
conversation takes more than SECONDS of processor time.
"""

import datetime
import json
import secrets
import signal
import sys

from jinja2 import TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

MOST_CHARACTERS = 1_000_000  # of a rendered conversation
SECONDS = 10  # of processor time, which a busy machine does not shorten
_MEMORY = 2**30  # bytes of this process


class TemplateNamespace(Namespace):
    """Jinja's namespace without names such as __class__, through which a template could escape."""

    def __setitem__(self, name, value):
        if name.startswith("_"):
            raise SecurityError(f"access to the attribute {name!r} of a namespace is unsafe")
        super().__setitem__(name, value)


class Generation(Extension):
    """{% generation %}...{% endgeneration %}, which surrounds what the assistant writes."""

    tags = {"generation"}
    # No text contains them, because they are drawn anew in each process.
    begin, end = secrets.token_hex(16), secrets.token_hex(16)

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.CallBlock(self.call_method("marked"), [], [], body).set_lineno(line)

    def marked(self, caller) -> str:
        return f"{self.begin}{caller()}{self.end}"


def refuse(message):
    """What templates call raise_exception."""
    raise TemplateError(str(message))


def environment() -> ImmutableSandboxedEnvironment:
    """Returns Jinja's sandbox with the settings for which chat templates are written."""
    jinja = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    # Jinja's own tojson escapes what HTML reserves.
    jinja.filters["tojson"] = lambda value, indent=None, ensure_ascii=False, **options: json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, **options
    )
    jinja.globals |= {
        "raise_exception": refuse,
        "strftime_now": lambda form: datetime.datetime.now().strftime(form),
        "namespace": TemplateNamespace,
    }
    return jinja


def rendered(template, variables: dict) -> dict:
    """Returns the reply to the variables of a conversation."""
    parts, size = [], 0
    for part in template.generate(**variables):
        parts.append(part)
        size += len(part)
        if size > MOST_CHARACTERS:
            return {"error": f"writes more than {MOST_CHARACTERS:,} characters"}
    # Now the text between the marks of generation is at the odd places.
    text, spans = "", []
    marked = "".join(parts).replace(Generation.end, Generation.begin)
    for number, part in enumerate(marked.split(Generation.begin)):
        if number % 2:
            spans.append([len(text), len(text) + len(part)])
        text += part
    return {"text": text, "spans": spans}


def main() -> None:
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    except (ImportError, ValueError, OSError):
        pass  # a system without these limits; the sandbox does not depend on them
    first = json.loads(sys.stdin.readline())
    template, error = None, None
    # Jinja computes constants when it compiles. Without a handler, the signal ends the process even
    # within a long operation on texts or numbers.
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        template = environment().from_string(first["template"])
    except Exception as mistake:
        error = _line(mistake)
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        variables = first["variables"] | json.loads(line)
        reply = {"error": error} if error else answered(template, variables)
        print(json.dumps(reply), flush=True)


def answered(template, variables: dict) -> dict:
    """Returns the reply to the variables of a conversation, also where the template fails."""
    # A template may divide by zero, or call a text: all of its errors are the template's.
    try:
        return rendered(template, variables)
    except MemoryError:
        return {"error": "needs too much memory"}
    except Exception as error:
        return {"error": _line(error)}


def _line(error: Exception) -> str:
    return str(error).partition("\n")[0] or type(error).__name__


if __name__ == "__main__":
    main()
