"""The tasks of GLUE (Wang et al. 2019) with BERT's hyper-parameters (Devlin et al. 2018, section
4.1): batches of 32, 3 epochs, a rate of 5e-5, 4e-5, 3e-5 or 2e-5 chosen on the held-out set; with
:TASK,gpt those of Radford et al. 2018, section 4.1: 3 epochs, a rate of 6.25e-5, the language
model's objective beside.

python -m transformer_jax.finetune --config=configs/finetune/glue.py:sst2 --config.init_from=DIR --workdir=DIR2 \\
    --config.data.train_files=train.tsv --config.data.valid_files=dev.tsv

TASK: cola, sst2, mrpc, stsb, qqp, mnli, qnli, rte. Files have the headers of GLUE's own, labels as
there. :TASK,tfds reads glue/TASK as TFDS has prepared it in
--config.data.tfds_dir=DIR, whose columns and labels have other names. MNLI's mismatched set: --config.data.valid_files=dev_mismatched.tsv or
--config.data.valid_split=validation_mismatched, also when evaluating. Not yet run here from published weights.
"""

from transformer_jax.config import choice, experiment

TASKS = {  # training examples, measure, task
    "cola": (8_551, "matthews", dict(text="4", label="2", labels=("0", "1"))),  # without a header
    "sst2": (67_349, "accuracy", dict(text="sentence", label="label", labels=("0", "1"))),
    "mrpc": (
        3_668,
        "f1",
        dict(text="#1 String", pair="#2 String", label="Quality", labels=("0", "1")),
    ),
    "stsb": (
        5_749,
        "spearman",
        dict(text="sentence1", pair="sentence2", label="score", regression=True),
    ),
    # so many are whole
    "qqp": (
        363_846,
        "f1",
        dict(
            text="question1",
            pair="question2",
            label="is_duplicate",
            labels=("0", "1"),
            skip_malformed=True,
        ),
    ),
    "mnli": (
        392_702,
        "accuracy",
        dict(
            text="sentence1",
            pair="sentence2",
            label="gold_label",
            labels=("contradiction", "entailment", "neutral"),
        ),
    ),
    "qnli": (
        104_743,
        "accuracy",
        dict(
            text="question", pair="sentence", label="label", labels=("entailment", "not_entailment")
        ),
    ),
    "rte": (
        2_490,
        "accuracy",
        dict(
            text="sentence1",
            pair="sentence2",
            label="label",
            labels=("entailment", "not_entailment"),
        ),
    ),
}
TFDS = {  # what is named otherwise there
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
}
SYMMETRIC = ("mrpc", "stsb", "qqp")


def get_config(argument="sst2"):
    name, *more = argument.split(",")
    examples, measure, task = choice(name, TASKS)
    gpt, tfds = (
        word in [choice(given, {"gpt": "gpt", "tfds": "tfds"}) for given in more]
        for word in ("gpt", "tfds")
    )
    steps = 3 * -(-examples // 32)
    if tfds:
        task = task | TFDS[name]
    if gpt:
        task = task | dict(lm_weight=0.5, symmetric=name in SYMMETRIC)
    return experiment(
        model=dict(name="gpt" if gpt else "bert"),
        task=dict(name="classification", length=128, **task),
        data=dict(
            tfds_name=f"glue/{name}", valid_split="validation_matched" if name == "mnli" else None
        )
        if tfds
        else {},
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
        checkpoint=dict(every=steps, keep=1, best_metric=f"valid/{measure}", best_mode="max"),
    )
