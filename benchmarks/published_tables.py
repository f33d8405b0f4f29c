"""Writes docs/published.md: tables of the papers, with the figures measured here beside them.

python benchmarks/published_tables.py [--output=docs/published.md]

The published figures are in this file, each table with its source, and the text between the tables
is in published_tables.md. The figures of this package are read from benchmarks/results, so that a
cell is empty until a benchmark has measured it. Nothing is trained here, and only quotients are
computed.
"""

import argparse
import ast
import json
import pathlib
from collections.abc import Callable, Sequence

import comparison
import costs

ROOT = pathlib.Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
TEMPLATE = pathlib.Path(__file__).with_suffix(".md")
PAGE = ROOT / "docs" / "published.md"

# --------------------------------------------------------------------------- the published figures

# Vaswani et al. 2017, table 2: BLEU of newstest2014, and the FLOPs of the training.
TRANSLATION = [
    ("ByteNet", "23.75", "", "", ""),
    ("Deep-Att + PosUnk", "", "39.2", "", "1.0e20"),
    ("GNMT + RL", "24.6", "39.92", "2.3e19", "1.4e20"),
    ("ConvS2S", "25.16", "40.46", "9.6e18", "1.5e20"),
    ("MoE", "26.03", "40.56", "2.0e19", "1.2e20"),
    ("Deep-Att + PosUnk, ensemble", "", "40.4", "", "8.0e20"),
    ("GNMT + RL, ensemble", "26.30", "41.16", "1.8e20", "1.1e21"),
    ("ConvS2S, ensemble", "26.36", "41.29", "7.7e19", "1.2e21"),
    ("Transformer base", "27.3", "38.1", "3.3e18", "3.3e18"),
    ("Transformer big", "28.4", "41.8", "2.3e19", "2.3e19"),
]
GLUE_TASKS = ("MNLI m/mm", "QQP", "QNLI", "SST-2", "CoLA", "STS-B", "MRPC", "RTE", "average")
# Devlin et al. 2018, table 1: test sets, by GLUE's server, without WNLI.
GLUE = [
    ("the best before GPT", "80.6/80.1", 66.1, 82.3, 93.2, 35.0, "81.0", "86.0", 61.7, "74.0"),
    ("BiLSTM, ELMo, attention", "76.4/76.1", 64.8, 79.8, 90.4, "36.0", 73.3, 84.9, 56.8, "71.0"),
    ("GPT", "82.1/81.4", 70.3, 87.4, 91.3, 45.4, "80.0", 82.3, "56.0", 75.1),
    ("BERT base", "84.6/83.4", 71.2, 90.5, 93.5, 52.1, 85.8, 88.9, 66.4, 79.6),
    ("BERT large", "86.7/85.9", 72.1, 92.7, 94.9, 60.5, 86.5, 89.3, 70.1, 82.1),
]
# Nangia & Bowman 2019 (GLUE); Devlin et al. 2018, tables 2 to 4 (the others).
HUMANS = [
    ("GLUE, average of nine tasks", "87.1", "80.5"),
    ("SQuAD 1.1, exact match / F1", "82.3 / 91.2", "87.4 / 93.2"),
    ("SQuAD 2.0, exact match / F1", "86.9 / 89.5", "80.0 / 83.1"),
    ("SWAG, accuracy: an expert; five annotators", "85.0; 88.0", "86.3"),
]
# Radford et al. 2018, table 5.
ABLATION_TASKS = ("average", "CoLA", "SST-2", "MRPC", "STS-B", "QQP", "MNLI", "QNLI", "RTE")
ABLATION = [
    ("Transformer, auxiliary LM", 74.7, 45.4, 91.3, 82.3, "82.0", 70.3, 81.8, 88.1, "56.0"),
    ("Transformer, not pre-trained", 59.9, 18.9, "84.0", 79.4, 30.9, 65.5, 75.7, 71.2, 53.8),
    ("Transformer, no auxiliary LM", "75.0", 47.9, "92.0", 84.9, 83.2, 69.8, 81.1, 86.9, 54.4),
    ("LSTM, auxiliary LM", 69.1, 30.3, 90.5, 83.2, 71.8, 68.1, 73.7, 81.1, 54.6),
]
# Radford et al. 2019, table 3.
ZERO_SHOT_SETS = {
    "lambada": "LAMBADA, perplexity",
    "lambada accuracy": "LAMBADA, accuracy",
    "cbt common nouns": "CBT, common nouns",
    "cbt named entities": "CBT, named entities",
    "wikitext2": "WikiText-2, perplexity",
    "ptb": "PTB, perplexity",
    "enwik8": "enwik8, bits a byte",
    "text8": "text8, bits a character",
    "wikitext103": "WikiText-103, perplexity",
    "1bw": "1BW, perplexity",
}
ZERO_SHOT = {
    "the best before": (99.8, 59.23, 85.7, 82.3, 39.14, 46.54, 0.99, 1.08, 18.3, 21.8),
    "117M": (35.13, 45.99, 87.65, 83.4, 29.41, 65.85, 1.16, 1.17, "37.50", "75.20"),
    "345M": ("15.60", 55.48, 92.35, 87.1, 22.76, 47.33, 1.01, 1.06, 26.37, 55.72),
    "762M": (10.87, 60.12, 93.45, "88.0", 19.93, 40.31, 0.97, 1.02, 22.05, 44.575),
    "1542M": (8.63, 63.24, "93.30", 89.05, 18.34, 35.76, 0.93, 0.98, 17.48, 42.16),
}
# Devlin et al. 2018, table 7: F1 on CoNLL-2003, development and test set.
CONLL = [
    ("ELMo", 95.7, 92.2, ""),
    ("CVT", "", 92.6, ""),
    ("contextual string embeddings", "", 93.1, ""),
    ("BERT large, fine-tuned", 96.6, 92.8, ""),
    ("BERT base, fine-tuned", 96.4, 92.4, "wikiann pre-trained"),
    ("embeddings", "91.0", "", "wikiann embeddings"),
    ("second to last layer", 95.6, "", "wikiann second-to-last"),
    ("last layer", 94.9, "", "wikiann last"),
    ("weighted sum of the last four", 95.9, "", "wikiann sum-last-four"),
    ("concatenation of the last four", 96.1, "", "wikiann concat-last-four"),
    ("weighted sum of all twelve", 95.5, "", "wikiann sum-all"),
]
# Lewis et al. 2019, tables 1 to 5.
OBJECTIVES_TASKS = ("SQuAD 1.1 F1", "MNLI", "ELI5 ppl", "XSum ppl", "ConvAI2 ppl", "CNN/DM ppl")
OBJECTIVES = [
    ("BERT base (Devlin et al. 2018)", 88.5, 84.3, "", "", "", "", ""),
    ("masked language model", "90.0", 83.5, 24.77, 7.87, 12.59, 7.06, "masked"),
    ("masked seq2seq", "87.0", 82.1, "23.40", "6.80", 11.43, 6.19, "masked-seq2seq"),
    ("language model", 76.7, 80.1, "21.40", "7.00", 11.51, 6.56, "language-model"),
    ("permuted language model", 89.1, 83.7, 24.03, 7.69, 12.23, 6.96, "permuted"),
    ("multitask masked language model", 89.2, 82.4, 23.73, "7.50", 12.39, 6.74, "multitask"),
    ("BART, token masking", 90.4, 84.1, 25.05, 7.08, 11.73, "6.10", "token-masking"),
    ("BART, token deletion", 90.4, 84.1, 24.61, "6.90", 11.46, 5.87, "token-deletion"),
    ("BART, text infilling", 90.8, "84.0", 24.26, 6.61, 11.05, 5.83, "text-infilling"),
    ("BART, document rotation", 77.2, 75.3, 53.69, 17.14, 19.87, 10.59, "document-rotation"),
    ("BART, sentence shuffling", 85.4, 81.5, 41.87, 10.93, 16.67, 7.89, "sentence-permutation"),
    ("BART, infilling, shuffling", 90.8, 83.8, 24.17, 6.62, 11.12, 5.41, "infilling-permutation"),
]
LARGE_TASKS = ("SQuAD 1.1", "SQuAD 2.0", "MNLI m/mm", "SST-2", "QQP", "QNLI", "STS-B", "RTE")
LARGE_TASKS += ("MRPC", "CoLA")
LARGE = [
    ("BERT", "84.1/90.9", "79.0/81.8", "86.6/-", 93.2, 91.3, 92.3, "90.0", 70.4, "88.0", 60.6),
    ("UniLM", "", "80.5/83.4", "87.0/85.9", 94.5, "", 92.7, "", 70.9, "", 61.1),
    ("XLNet", "89.0/94.5", "86.1/88.8", "89.8/-", 95.6, 91.8, 93.9, 91.8, 83.8, 89.2, 63.6),
    ("RoBERTa", "88.9/94.6", "86.5/89.4", "90.2/90.2", 96.4, 92.2, 94.7, 92.4, 86.6, 90.9, "68.0"),
    ("BART", "88.8/94.6", "86.1/89.2", "89.9/90.1", 96.6, 92.5, 94.9, 91.2, "87.0", 90.4, 62.8),
]
SUMMARIES = [
    ("Lead-3", 40.42, 17.62, 36.67, "16.30", "1.60", 11.95),
    ("PTGEN", 36.44, 15.66, 33.42, "29.70", 9.21, 23.24),
    ("PTGEN, coverage", 39.53, 17.28, 36.38, "28.10", 8.02, 21.72),
    ("UniLM", 43.33, 20.21, 40.51, "", "", ""),
    ("BERTSUMABS", 41.72, 19.39, 38.76, 38.76, 16.33, 31.15),
    ("BERTSUMEXTABS", 42.13, "19.60", 39.18, 38.81, "16.50", 31.27),
    ("BART", 44.16, 21.28, "40.90", 45.14, 22.27, 37.25),
]
DIALOGUE = [
    ("seq2seq, attention", 16.02, 35.07),
    ("the best before", 19.09, 17.51),
    ("BART", 20.72, 11.85),
]
LONG_ANSWERS = [
    ("best extractive", 23.5, 3.1, 17.5),
    ("language model", 27.8, 4.7, 23.1),
    ("seq2seq", 28.3, 5.1, 22.8),
    ("seq2seq, multitask", 28.9, 5.4, 23.1),
    ("BART", 30.6, 6.2, 24.3),
]
# Dosovitskiy et al. 2020, table 2: accuracies after fine-tuning, means of three runs.
VIT_MODELS = ("ViT-H/14, JFT", "ViT-L/16, JFT", "ViT-L/16, ImageNet-21k")
VIT_MODELS += ("BiT-L, ResNet152x4", "Noisy Student, EfficientNet-L2")
VIT = [
    ("ImageNet", 88.55, 87.76, "85.30", 87.54, "88.4/88.5"),
    ("ImageNet ReaL", 90.72, 90.54, 88.62, 90.54, 90.55),
    ("CIFAR-10", "99.50", 99.42, 99.15, 99.37, ""),
    ("CIFAR-100", 94.55, "93.90", 93.25, 93.51, ""),
    ("Oxford-IIIT Pets", 97.56, 97.32, 94.67, 96.62, ""),
    ("Oxford Flowers-102", 99.68, 99.74, 99.61, 99.63, ""),
    ("VTAB, 19 tasks", 77.63, 76.28, 72.72, 76.29, ""),
    ("TPUv3-core-days of pre-training", "2,500", "680", "230", "9,900", "12,300"),
]
# Sharir et al. 2020, section 1: dollars of one run, and of the two settings with ten runs each that
# they take for a project.
DOLLARS = [
    ("110 million parameters", 2_500, 50_000, "bert-base"),
    ("340 million parameters", 10_000, 200_000, "bert-large"),
    ("1.5 billion parameters", 80_000, 1_600_000, "gpt2-1558m"),
]
CLOUD_TPUS = {"bert-base": 4, "bert-large": 16}  # for four days (Devlin et al. 2018, appendix A.2)
# Brown et al. 2020, table 2.2: billions of tokens, percent of the mixture, epochs.
MIXTURE = [
    ("Common Crawl, filtered", "common_crawl", 410, 60, 0.44),
    ("WebText2", "webtext2", 19, 22, 2.9),
    ("Books1", "books1", 12, 8, 1.9),
    ("Books2", "books2", 55, 8, 0.43),
    ("Wikipedia", "wikipedia", 3, 3, 3.4),
]
GPT3_BILLIONS = 300  # tokens of the training
# He et al. 2020, table of masked language modeling: accuracy by post-LN, pre-LN and RealFormer.
REALFORMER = [
    ("small, 4 layers of 512", 61.57, 61.67, "61.70"),
    ("base", "70.20", 69.74, 70.42),
    ("large", 73.64, 73.21, 73.94),
    ("xlarge", 73.72, 73.53, 74.76),
]

# ---------------------------------------------------------------------- the figures of this package


def results(name: str, key: str) -> dict[str, dict]:
    """Returns the rows of a file of results by their names at `key`; none if nobody made it yet."""
    path = RESULTS / f"{name}.json"
    rows = json.loads(path.read_text())["rows"] if path.exists() else []
    return {row[key]: row for row in rows}


def percent(score: dict | None) -> str:
    """Returns the mean over seeds, with the deviation if there is more than one."""
    return comparison.spread_cell(score, 100)


def table(header: Sequence[str], rows: Sequence[Sequence]) -> str:
    return comparison.markdown([*header], [[str(cell) for cell in row] for row in rows])


def translation() -> str:
    counted = results("costs", "name")
    names = {"Transformer base": "base, h100", "Transformer big": "big, h100"}
    rows = []
    for name, *published in TRANSLATION:
        ours = counted.get(names.get(name))
        rows.append([name, *published, "", "", f"{ours['flops']:.1e}" if ours else ""])
    rows = [[cell.replace("e+", "e") for cell in row] for row in rows]
    header = ["model", "en-de", "en-fr", "FLOPs en-de", "FLOPs en-fr"]
    return table([*header, "en-de, here", "en-fr, here", "FLOPs en-de, counted here"], rows)


def glue() -> str:
    scores = results("transfer_cpu", "case")
    cases = {"SST-2": "sst2", "CoLA": "cola", "MRPC": "mrpc"}
    small = [percent(scores.get(f"{cases.get(task)} pre-trained")) for task in GLUE_TASKS]
    nothing = [""] * len(GLUE_TASKS)
    own = [
        ("GPT, converted, here", *nothing),
        ("BERT base, converted, here", *nothing),
        ("BERT of 2 layers of 128, here", *small),
    ]
    return table(["model", *GLUE_TASKS], [*GLUE, *own])


def humans() -> str:
    return table(["task", "people", "BERT large"], HUMANS)


def ablation() -> str:
    earlier = results("transfer_cpu", "case")
    later = results("gpt_ablation_cpu", "objective")
    names = ("imdb GPT, both objectives", "imdb GPT, from scratch", "imdb GPT, its own alone", "")
    keys = ("full", "scratch", "plain", "lstm")
    rows = []
    for published, name, key in zip(ABLATION, names, keys):
        both = (earlier.get(name), later.get(key, {}).get("imdb"))
        rows.append([*published, *map(percent, both)])
    own = ["IMDB, here", "IMDB, the four with one script, here"]
    return table(["model", *ABLATION_TASKS, *own], rows)


def zero_shot() -> str:
    measured = results("gpt2_zero_shot", "set")
    rows = []
    for number, (key, label) in enumerate(ZERO_SHOT_SETS.items()):
        published = [values[number] for values in ZERO_SHOT.values()]
        ours = measured.get(key)
        rows.append([label, *published, f"{ours['score']:.2f}" if ours else ""])
    return table(["data set", *ZERO_SHOT, "117M, converted, here"], rows)


def conll() -> str:
    scores = results("transfer_cpu", "case")
    rows = [[*published, percent(scores.get(case))] for *published, case in CONLL]
    return table(["features", "dev F1", "test F1", "WikiANN F1, here"], rows)


def objectives() -> str:
    scores = results("objectives_cpu", "objective")
    rows = []
    for *published, name in OBJECTIVES:
        row = scores.get(name, {})
        perplexity = comparison.spread_cell(row.get("perplexity"), 1)
        rows.append([*published, percent(row.get("sst2")), percent(row.get("xquad")), perplexity])
    own = ["SST-2, here", "XQuAD F1, here", "summary ppl, here"]
    return table(["objective", *OBJECTIVES_TASKS, *own], rows)


def large() -> str:
    scores = results("encoders_cpu", "objective")
    rows = []
    for name, *published in LARGE:
        row = scores.get(name.lower(), {})
        rows.append([name, *published, *(percent(row.get(task)) for task in ("sst2", "cola"))])
    return table(["model", *LARGE_TASKS, "SST-2, here", "CoLA, here"], rows)


def with_empty(header: Sequence[str], rows: Sequence[Sequence], own: Sequence[str]) -> str:
    """Returns a table of which nothing was measured here: the cells of `own` are empty."""
    return table([*header, *own], [[*row, *[""] * len(own)] for row in rows])


def dollars() -> str:
    rows = results("costs", "name")
    lines = []
    for label, run, project, training in DOLLARS:
        prices = {name: machine.price for name, machine in costs.MACHINES.items()}
        own = [row for row in rows.values() if row["training"] == training]
        bound = min(row["hours_at_bound"] * costs.hourly_price(row, prices) for row in own)
        at_mfu = [row["hours_at_mfu"] * costs.hourly_price(row, prices) for row in own]
        device = run / (CLOUD_TPUS[training] * 96) if training in CLOUD_TPUS else None
        lines.append(
            [
                label,
                f"{run:,}",
                f"{project:,}",
                costs.TRAININGS[training].label,
                f"{bound:,.0f}",
                f"{min(at_mfu):,.0f} to {max(at_mfu):,.0f}",
                f"{run / min(at_mfu):.0f}",
                f"{own[0]['flops'] / run:.1e}".replace("e+", "e"),
                f"{own[0]['flops'] / min(at_mfu):.1e}".replace("e+", "e"),
                f"{device:.2f}" if device else "",
            ]
        )
    header = ["size", "$ of a run", "$ of a project", "training here", "$ at the bound, at least"]
    header += ["$ at 40 %", "a run over the lowest at 40 %"]
    header += ["FLOPs a dollar, theirs", "ours", "their run, $ a Cloud TPU hour"]
    return table(header, lines)


def weights() -> dict[str, int]:
    """Returns the weights of configs/gpt/gpt3.py by the folders of their files."""
    tree = ast.parse((ROOT / "configs/gpt/gpt3.py").read_text())
    assigned = {
        node.targets[0].id: node.value for node in tree.body if isinstance(node, ast.Assign)
    }
    mixture = ast.literal_eval(assigned["MIXTURE"])
    return {files.partition("/")[0]: weight for files, weight in mixture}


def mixture() -> str:
    own = weights()
    total = sum(own.values())
    rows = []
    for label, folder, billions, share, epochs in MIXTURE:
        ours = GPT3_BILLIONS * own[folder] / total / billions
        part = f"{100 * own[folder] / total:.1f} %"
        rows.append([label, billions, f"{share} %", epochs, part, f"{ours:.2f}"])
    header = ["data set", "tokens, billions", "share", "epochs"]
    return table([*header, "share, `gpt/gpt3.py`", "epochs, from it"], rows)


def realformer() -> str:
    """The last row is that of a comparison, with its paired differences from the first column."""
    path = RESULTS / "realformer_cpu.json"
    here, pairs = ["", "", ""], ""
    if path.exists():
        result = json.loads(path.read_text())["result"]
        pairs = f", {result['pairs']} pairs"
        means = result["scores"]["valid/accuracy"].values()
        here = [f"{100 * each['mean']:.2f}" for each in means]
        rows = [row for row in result["differences"] if row["score"] == "valid/accuracy"]
        for number, row in enumerate(rows, 1):
            mean, low, high = (100 * row[name] for name in ("mean", "low", "high"))
            here[number] += f" ({mean:+.2f}, {low:+.2f} to {high:+.2f}: {row['verdict']})"
    header = ["size", "post-LN", "pre-LN", "residual attention"]
    return table(header, [*REALFORMER, [f"4 layers of 128, here{pairs}", *here]])


# ----------------------------------------------------------------------------------------- the page

TABLES: dict[str, Callable[[], str]] = {
    "TRANSLATION": translation,
    "GLUE": glue,
    "HUMANS": humans,
    "ABLATION": ablation,
    "ZERO_SHOT": zero_shot,
    "CONLL": conll,
    "OBJECTIVES": objectives,
    "LARGE": large,
    "SUMMARIES": lambda: with_empty(
        ["model", "CNN/DM R1", "R2", "RL", "XSum R1", "R2", "RL"],
        SUMMARIES,
        ["CNN/DM RL, here", "XSum RL, here"],
    ),
    "DIALOGUE": lambda: with_empty(
        ["model", "F1", "perplexity"], DIALOGUE, ["F1, here", "perplexity, here"]
    ),
    "LONG_ANSWERS": lambda: with_empty(["model", "R1", "R2", "RL"], LONG_ANSWERS, ["RL, here"]),
    "VIT": lambda: with_empty(["data set", *VIT_MODELS], VIT, ["here"]),
    "DOLLARS": dollars,
    "MIXTURE": mixture,
    "REALFORMER": realformer,
}


def page() -> str:
    """Returns the page: the text of published_tables.md, with each table in place of its name."""
    lines = TEMPLATE.read_text("utf-8").splitlines()
    return "\n".join(TABLES[line]() if line in TABLES else line for line in lines) + "\n"


def main() -> None:
    flags = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    flags.add_argument("--output", type=pathlib.Path, default=PAGE)
    flags.parse_args().output.write_text(page(), "utf-8")


if __name__ == "__main__":
    main()
