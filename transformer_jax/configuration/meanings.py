"""The meaning of a key: the comment at its field in the source, `name: int = 1  # meaning`."""

import functools
import inspect
import io
import textwrap
import tokenize

from transformer_jax.configuration import variants


@functools.lru_cache
def of(cls: type) -> dict[str, str]:
    """Returns {field: its comment, or ""} of a dataclass and its base classes."""
    comments = {}
    for base in reversed(cls.__mro__):
        if base.__module__.startswith(("transformer_jax.", variants.PREFIX)):
            for name, comment in _comments(textwrap.dedent(inspect.getsource(base))).items():
                comments[name] = comment or comments.get(name, "")
    return comments


def _comments(source: str) -> dict[str, str]:
    """Returns {name: comment} of the annotated names in the body of a class.

    The comment is behind a field, else on the lines right above it.
    """
    comments, depth, statement, above = {}, 0, [], []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in (tokenize.INDENT, tokenize.DEDENT):
            depth += 1 if token.type == tokenize.INDENT else -1
        elif token.type == tokenize.NEWLINE:
            behind = [statement.pop()] if statement and statement[-1].startswith("#") else above
            if depth == 1 and statement[1:2] == [":"] and statement[0].isidentifier():
                comments[statement[0]] = " ".join(line.lstrip("# ").strip() for line in behind)
            statement, above = [], []
        elif token.type == tokenize.COMMENT and not statement:
            above.append(token.string)
        elif token.type == tokenize.NL and not statement:
            above = above if source.splitlines()[token.start[0] - 1].strip() else []
        elif token.type != tokenize.NL:
            statement.append(token.string)
    return comments
