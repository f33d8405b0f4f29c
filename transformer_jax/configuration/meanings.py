"""The meaning of a key: the comment at its field, `name: int = 1  # meaning`, from source."""

import functools
import inspect
import io
import textwrap
import tokenize


@functools.lru_cache
def of(cls: type) -> dict[str, str]:
    """{field: the comment at it} of a dataclass and those it inherits from; "" without one."""
    comments = {}
    for base in reversed(cls.__mro__):
        if base.__module__.startswith("transformer_jax."):
            for name, comment in _comments(textwrap.dedent(inspect.getsource(base))).items():
                comments[name] = comment or comments.get(name, "")
    return comments


def _comments(source: str) -> dict[str, str]:
    """{name: comment} of the annotated names directly in the body of the class.

    A comment behind a field counts, else the lines of comment right above it.
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
