"""From a language model to an assistant that writes what is preferred, on film reviews.

python benchmarks/preferences.py --text=unsup.txt --data=DIR --workdir=DIR [--json=FILE] \\
    [--part=NAME] [--tiny]
python benchmarks/preferences.py --table --json=FILE

`--text` is IMDB's unlabelled reviews, a sentence a line with a blank line between reviews. `--data`
holds imdb/{{train,test}}.tsv. The parts, in order, are:

- lm: a small GPT learns on the reviews. Every fiftieth is held out.
- labeller, judge: sentiment classifiers of short texts begin with it. They learn from different
  halves of the labelled reviews. The labeller labels pairs, and the judge alone counts.
- pairs: SFT learns to continue the first {prompt} words of a review. Then it completes other
  prompts. The label of a pair of completions is the sigmoid of the difference of the labeller's
  log-odds.
- reward: a reward model of these pairs.
- people, sft, best-4, best-16, best-64, dpo, ipo, ppo, grpo: held-out completions, those of SFT,
  those that the reward model chooses, and those of policies that begin with SFT. Measured on
  held-out prompts are the reward, the divergence from SFT, the share judged positive, and
  perplexities.

A part's row is put into --json as soon as it ends. Complete runs are not repeated, and a run that
was stopped goes on. No part takes over 40 minutes of 2 cores, and all of them about 3 hours; those
before `people` take one.
"""

import json
import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import comparison
import preference_runs
import short_reviews
from preference_runs import LABELS, PARTS

COMMAND = "python benchmarks/preferences.py --text=unsup.txt --data=DIR --workdir=DIR --json"
# measure: (header, unit of the table)
COLUMNS = {
    "reward": ("reward", 1),
    "kl": ("KL, nats a text", 1),
    "positive": ("judged positive, %", 100),
    "perplexity": ("perplexity under SFT", 1),
    "perplexity_of_people": ("of people's texts", 1),
    "words": ("words", 1),
}


def main() -> None:
    doc = __doc__.format(prompt=short_reviews.PROMPT_WORDS)
    arguments = comparison.parser(doc, PARTS, "part").parse_args()
    if arguments.table:
        rows = json.loads(arguments.json.read_text())["rows"]
        print(table(rows))
        draw(rows, arguments.json.with_suffix(".png"))
        return
    story = preference_runs.Story(arguments)
    for part in arguments.part or PARTS:
        row = story.row(part)
        print(json.dumps(row), flush=True)
        if arguments.json:
            comparison.add_rows(arguments.json, [row], "part", PARTS, COMMAND)


# results


def table(rows: list[dict]) -> str:
    """Returns the parts, the measures of completions, and examples of them, as Markdown."""
    return "\n\n".join([of_parts(rows), of_measures(rows), of_samples(rows)])


def of_parts(rows: list[dict]) -> str:
    lines = []
    for row in rows:
        if row["part"] not in LABELS:
            scores = row.get("scores", {"pairs": row.get("pairs")})
            shown = ", ".join(f"{name} {value:.4g}" for name, value in scores.items())
            lines.append([row["part"], f"{row['minutes']:.0f}", shown])
    return comparison.markdown(["part", "minutes", "held-out scores"], lines)


def of_measures(rows: list[dict]) -> str:
    header = ["completions", *(header for header, _ in COLUMNS.values()), "minutes"]
    lines = []
    for row in measured(rows):
        cells = [comparison.spread_cell(row.get(name), unit) for name, (_, unit) in COLUMNS.items()]
        minutes = f"{row['minutes']:.0f}" if "minutes" in row else ""
        lines.append([LABELS[row["part"]], *cells, minutes])
    return comparison.markdown(header, lines)


def of_samples(rows: list[dict]) -> str:
    lines = [
        [LABELS[row["part"]], f"**{prompt}** {text.strip()}".replace("|", "\\|")]
        for number in range(3)
        for row in measured(rows)
        for prompt, text in [row["samples"][number]]
    ]
    return comparison.markdown(["completions", "text"], lines)


def measured(rows: list[dict]) -> list[dict]:
    """Returns the rows of measured completions."""
    return [row for row in rows if row["part"] in LABELS]


def draw(rows: list[dict], path) -> None:
    """Draws reward and share judged positive against the divergence, a point for each seed."""
    from transformer_jax.pictures.figure import new_figure, save, style

    figure = new_figure((10, 4), "What is gained for a distance from the SFT model")
    panels = figure.subplots(1, 2)
    drawn = [row for row in measured(rows) if "kl" in row]
    looks = {row["part"]: style(number) | {"linestyle": ""} for number, row in enumerate(drawn)}
    for panel, measure, unit in zip(panels, ("reward", "positive"), (1, 100)):
        for row in drawn:
            if row[measure]["values"]:
                values = [unit * value for value in row[measure]["values"]]
                panel.plot(row["kl"]["values"], values, alpha=0.7, **looks[row["part"]])
                point = (row["kl"]["mean"], unit * row[measure]["mean"])
                label = LABELS[row["part"]]
                panel.annotate(label, point, (5, -9), textcoords="offset points", fontsize=8)
        panel.set_xlabel("KL from SFT, nats a text")
        panel.set_ylabel(COLUMNS[measure][0])
        panel.grid(alpha=0.3)
        panel.margins(x=0.15)  # the labels are on the right of their points
    save(figure, path)


if __name__ == "__main__":
    main()
