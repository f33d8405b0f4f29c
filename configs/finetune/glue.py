"""The tasks of GLUE (Wang et al. 2019) with BERT's hyper-parameters (Devlin et al. 2018, section 4.1): batches of 32, 3 epochs, a rate of 5e-5, 4e-5, 3e-5 or 2e-5
chosen on the held-out set; with :TASK,gpt those of Radford et al. 2018, section 4.1: 3 epochs, a rate of 6.25e-5, the language model's objective beside.

python -m transformer_jax.finetune --config=configs/finetune/glue.py:sst2 --config.init_from=DIR --workdir=DIR2 \\
    --config.data.train_files=train.tsv --config.data.valid_files=dev.tsv

TASK: cola, sst2, mrpc, stsb, qqp, mnli, qnli, rte. Files have the headers of GLUE's own, labels as there; instead of files TFDS:
--config.data.tfds_name=glue/sst2 --config.data.tfds_dir=DIR, with --config.task.text=sentence and the other columns as its features are named, and
--config.task.labels='()', for it names the classes in its own way. MNLI's mismatched set: --config.data.valid_files=dev_mismatched.tsv, also when evaluating. Not yet run here from published weights.
"""
from transformer_jax.config import choice, experiment

TASKS = {  # training examples, measure, task
    "cola": (8_551, "matthews", dict(text="4", label="2", labels=("0", "1"))),  # without a header
    "sst2": (67_349, "accuracy", dict(text="sentence", label="label", labels=("0", "1"))),
    "mrpc": (3_668, "f1", dict(text="#1 String", pair="#2 String", label="Quality", labels=("0", "1"))),
    "stsb": (5_749, "spearman", dict(text="sentence1", pair="sentence2", label="score", regression=True)),
    "qqp": (363_846, "f1", dict(text="question1", pair="question2", label="is_duplicate", labels=("0", "1"))),
    "mnli": (392_702, "accuracy", dict(text="sentence1", pair="sentence2", label="gold_label", labels=("contradiction", "entailment", "neutral"))),
    "qnli": (104_743, "accuracy", dict(text="question", pair="sentence", label="label", labels=("entailment", "not_entailment"))),
    "rte": (2_490, "accuracy", dict(text="sentence1", pair="sentence2", label="label", labels=("entailment", "not_entailment"))),
}
SYMMETRIC = ("mrpc", "stsb", "qqp")


def get_config(argument="sst2"):
    name, _, family = argument.partition(",")
    examples, measure, task = choice(name, TASKS)
    gpt = choice(family or "bert", {"bert": False, "gpt": True})
    steps = 3 * -(-examples // 32)
    if gpt:
        task = task | dict(lm_weight=0.5, symmetric=name in SYMMETRIC)
    return experiment(
        model=dict(name="gpt" if gpt else "bert"),
        task=dict(name="classification", length=128, **task),
        train=dict(num_steps=steps, batch=32, log_every=50, eval_every=steps),
        optimizer=dict(name="adamw", learning_rate=6.25e-5 if gpt else 2e-5, schedule="linear", warmup_steps=round(steps * (0.002 if gpt else 0.1)),
                       weight_decay=0.01, clip_norm=1.0, eps=1e-8 if gpt else 1e-6),
        checkpoint=dict(every=steps, keep=1, best_metric=f"valid/{measure}", best_mode="max"),
    )
