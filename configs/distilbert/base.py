"""Distils BERT base into DistilBERT (Sanh et al. 2019): 6 layers of width 768.

    python -m transformer_jax.convert --from_hf=bert-base-uncased --workdir=runs/bert_base
    python -m transformer_jax.train --config=configs/distilbert/base.py --workdir=DIR \\
        --config.task.teacher=runs/bert_base \\
        --config.init_from="{'': {'run': 'runs/bert_base', 'layers': '0,2,4,7,9,11'}}" \\
        --config.data.train_files='text/*.txt' --config.data.valid_files=held_out.txt \\
        --config.train.accumulation=64

The text has one sentence per line and a blank line between documents. The teacher is any run or
converted checkpoint of a BERT; its tokenizer is the student's. The student begins with the six
layers that the published code takes.

The weights of the losses, the temperature and the optimizer are those of the published code. The
batch of 4,096 rows is the paper's largest. The updates are three passes over 4 billion tokens; the
published code makes three passes, too. Masks prefer rare tokens as in the published code, which
draws those of a whole batch at once; here each row has its share. The student has 66,362,880
parameters without the head of masked tokens. Not trained here.
"""

from transformer_jax.config import experiment

# The variant for tests: it trains in seconds on a CPU.
TINY = dict(
    model=dict(vocab_size=96, d_model=16, num_layers=1, num_heads=2, max_length=64),
    task=dict(
        phases=((1.0, 16, 3),),
        teacher_model=tuple(
            dict(
                name="bert", vocab_size=96, d_model=16, num_layers=2, num_heads=2, max_length=64
            ).items()
        ),
    ),
    train=dict(batch=8, num_steps=2),
)


def get_config():
    return experiment(
        model=dict(name="distilbert", vocab_size=30_522, d_model=768, num_layers=6, num_heads=12),
        task=dict(
            name="distillation",
            # share of the updates, tokens of a row, predicted tokens of a row
            phases=((1.0, 512, 76),),
            rare_words=0.7,
            # BERT base, for an estimate without a teacher
            teacher_model=(("name", "bert"),),
            soft_targets=5.0,
            masked_tokens=2.0,
            cosine=1.0,
            temperature=2.0,
            frozen_positions=True,
        ),
        data=dict(tokenizer="wordpiece"),
        train=dict(num_steps=6000, batch=4096, log_every=20, eval_every=1 / 10),
        optimizer=dict(
            name="adamw",
            learning_rate=5e-4,
            schedule="linear",
            warmup_steps=0.05,
            eps=1e-6,
            b2=0.98,
            weight_decay=0.0,
            clip_norm=5.0,
        ),
        checkpoint=dict(every=1 / 10),
    )
