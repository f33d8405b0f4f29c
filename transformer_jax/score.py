"""Writes the log-probability of each text: python -m transformer_jax.score --workdir=DIR < texts

The texts are the lines of stdin. For each of them, it prints the sum of the log-probabilities of
its tokens, in nats; with --by_token, it prints a JSON object with the tokens and the
log-probability of each. The first token is predicted from what starts a document.

Runs of all language models have scores of texts. Those of causal models, encoder-decoders, XLNet,
UniLM and ELMo are exact, and the perplexity of all texts is written to stderr. A masked model such
as BERT gives pseudo-log-likelihoods: each token is masked by itself, which takes a row for each
token. ELECTRA gives the log-probability that no token was replaced. These have no perplexity.
"""

import json

from absl import flags

from transformer_jax import cli
from transformer_jax.cli.conversation import answers

_MEANINGS = {
    "exact": "log-probabilities",
    "pseudo": "pseudo-log-likelihoods, from which no perplexity follows",
    "discriminator": "log-probabilities that no token was replaced, without a perplexity",
}


def define_flags() -> None:
    cli.define_workdir()
    cli.define_step()
    flags.DEFINE_multi_string("text", [], "A text instead of stdin; may be repeated.")
    flags.DEFINE_bool("by_token", False, "Print the score of each token, as JSON.")
    flags.DEFINE_bool(
        "within_word",
        False,
        "With a masked model: also mask the tokens that follow in the same word.",
    )


def main() -> None:
    from transformer_jax.objectives.texts import perplexity
    from transformer_jax.pictures.progress import say

    options = cli.FLAGS
    task, params = cli.open_run("log_probability", "has log-probabilities of texts")
    texts = tokens = total = 0

    def score(lines):
        return task.log_probability(params, lines, within_word=options.within_word)

    for scored in answers(options.text, score):
        print(_as_json(scored) if options.by_token else f"{scored.log_prob:.6f}", flush=True)
        texts, tokens, total = texts + 1, tokens + len(scored.tokens), total + scored.log_prob
    kind = task.scoring.kind
    mean = f", perplexity of a token {perplexity(-total / tokens):.4g}" if tokens else ""
    say(f"{texts} texts of {tokens} tokens: {_MEANINGS[kind]}" + (mean if kind == "exact" else ""))


def _as_json(scored) -> str:
    log_probs = [round(log_prob, 6) for log_prob in scored.log_probs]
    return json.dumps(
        {"log_prob": round(scored.log_prob, 6), "tokens": scored.tokens, "log_probs": log_probs},
        ensure_ascii=False,
    )


if __name__ == "__main__":
    cli.run(main, define_flags)
