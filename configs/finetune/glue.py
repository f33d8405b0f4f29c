"""Fine-tunes BERT or GPT on a task of GLUE (Wang et al. 2019).

    python -m transformer_jax.finetune --config=configs/finetune/glue.py:sst2 \\
        --config.init_from=DIR --workdir=DIR2 \\
        --config.data.train_files=train.tsv --config.data.valid_files=dev.tsv

The argument is TASK, TASK,gpt, TASK,tfds or TASK,gpt,tfds. TASK is cola, sst2, mrpc, stsb, qqp,
mnli, qnli, rte or wnli, which the papers leave out.
- The files are GLUE's own, with its headers and labels: `python -m transformer_jax.download TASK`
  writes them to data/TASK.
- `tfds` reads glue/TASK as TFDS has prepared it in `--config.data.tfds_dir=DIR`.
- The mismatched set of MNLI: `--config.data.valid_files=dev_mismatched.tsv`, or
  `--config.data.valid_split=validation_mismatched`. The same flags work with `evaluate`.

BERT's values are those of Devlin et al. 2018, section 4.1: batches of 32, 3 epochs, a learning rate
of 2e-5. The paper chooses it on the held-out set from 5e-5, 4e-5, 3e-5 and 2e-5. With `gpt`, the
values are those of Radford et al. 2018, section 4.1: 3 epochs, a learning rate of 6.25e-5, and the
loss of the language model added. Not yet run here from published weights.
"""

from transformer_jax.config import choice, experiment

# examples: number of training examples; measure: the score of the held-out set
TASKS = {
    "cola": dict(
        examples=8_551,
        measure="matthews",
        # The files have no header, so columns go by number.
        task=dict(text="4", label="2", labels=("0", "1")),
    ),
    "sst2": dict(
        examples=67_349,
        measure="accuracy",
        task=dict(text="sentence", label="label", labels=("0", "1")),
    ),
    "mrpc": dict(
        examples=3_668,
        measure="f1",
        task=dict(text="#1 String", pair="#2 String", label="Quality", labels=("0", "1")),
    ),
    "stsb": dict(
        examples=5_749,
        measure="spearman",
        task=dict(text="sentence1", pair="sentence2", label="score", regression=True),
    ),
    "qqp": dict(
        # Some lines of the file are malformed and are skipped. This is the number of the others.
        examples=363_846,
        measure="f1",
        task=dict(
            text="question1",
            pair="question2",
            label="is_duplicate",
            labels=("0", "1"),
            skip_malformed=True,
        ),
    ),
    "mnli": dict(
        examples=392_702,
        measure="accuracy",
        task=dict(
            text="sentence1",
            pair="sentence2",
            label="gold_label",
            labels=("contradiction", "entailment", "neutral"),
        ),
    ),
    "qnli": dict(
        examples=104_743,
        measure="accuracy",
        task=dict(
            text="question", pair="sentence", label="label", labels=("entailment", "not_entailment")
        ),
    ),
    "rte": dict(
        examples=2_490,
        measure="accuracy",
        task=dict(
            text="sentence1",
            pair="sentence2",
            label="label",
            labels=("entailment", "not_entailment"),
        ),
    ),
    "wnli": dict(
        examples=635,
        measure="accuracy",
        task=dict(text="sentence1", pair="sentence2", label="label", labels=("0", "1")),
    ),
}
# Columns and labels that have other names in TFDS.
TFDS = {
    "cola": dict(text="sentence", label="label", labels=("unacceptable", "acceptable")),
    "sst2": dict(labels=("negative", "positive")),
    "mrpc": dict(
        text="sentence1", pair="sentence2", label="label", labels=("not_equivalent", "equivalent")
    ),
    "stsb": dict(label="label"),
    "qqp": dict(label="label", labels=("not_duplicate", "duplicate")),
    "mnli": dict(text="premise", pair="hypothesis", label="label"),
    "qnli": {},
    "rte": {},
    "wnli": dict(labels=("not_entailment", "entailment")),
}
# Tasks in which the order of the two texts has no meaning: GPT reads both orders.
SYMMETRIC = ("mrpc", "stsb", "qqp")
# The variant for tests: it trains in seconds on a CPU.
TINY = dict(task=dict(length=32), train=dict(batch=8, num_steps=2))


def get_config(argument="sst2"):
    name, *variants = argument.split(",")
    values = choice(name, TASKS)
    for variant in variants:
        choice(variant, {"gpt": "the family", "tfds": "the source of the data"})
    gpt = "gpt" in variants
    task = values["task"]
    if gpt:
        task = task | dict(lm_weight=0.5, symmetric=name in SYMMETRIC)
    data = {}
    if "tfds" in variants:
        task = task | TFDS[name]
        valid_split = "validation_matched" if name == "mnli" else None
        data = dict(tfds_name=f"glue/{name}", valid_split=valid_split)
    steps = 3 * -(-values["examples"] // 32)
    return experiment(
        model=dict(name="gpt" if gpt else "bert"),
        task=dict(name="classification", length=128, **task),
        data=data,
        train=dict(num_steps=steps, batch=32, log_every=50, eval_every=steps),
        optimizer=dict(
            name="adamw",
            learning_rate=6.25e-5 if gpt else 2e-5,
            schedule="linear",
            warmup_steps=0.002 if gpt else 0.1,
            weight_decay=0.01,
            clip_norm=1.0,
            eps=1e-8 if gpt else 1e-6,
        ),
        checkpoint=dict(
            every=steps, keep=1, best_metric=f"valid/{values['measure']}", best_mode="max"
        ),
    )
