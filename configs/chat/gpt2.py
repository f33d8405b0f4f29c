"""Fine-tunes GPT-2 on conversations (Ouyang et al. 2022, section 3.5 and appendix C.1: "SFT").

    python -m transformer_jax.convert --from_hf=gpt2 --workdir=runs/gpt2
    python -m transformer_jax.finetune --config=configs/chat/gpt2.py \\
        --config.init_from=runs/gpt2 --workdir=runs/assistant \\
        --config.data.train_files=train.jsonl --config.data.valid_files=valid.jsonl
    python -m transformer_jax.generate --workdir=runs/assistant --chat

The model is that of the run in `config.init_from`, of any causal family and size. Its vocabulary
grows by the four special tokens. Dropout, optimizer, schedule and batch are the paper's, and so
is the learning rate, which it gives for 1.3 billion parameters. The paper trains 16 epochs of its
13,000 conversations: these are 1,800 updates, if a conversation has 280 tokens. On an accelerator,
`--config.model.vocab_multiple=64` pads the vocabulary of a GPT-2.

Not trained here.
"""

from transformer_jax.config import experiment

# The variant for tests: it trains in seconds on a CPU.
TINY = dict(
    model=dict(vocab_size=300, d_model=16, num_layers=2, num_heads=2, max_length=64),
    task=dict(length=48),
    train=dict(batch=8, num_steps=2),
)


def get_config():
    return experiment(
        model=dict(name="gpt", dropout=0.2),
        task=dict(name="chat", length=1024),
        data=dict(tokenizer="byte_bpe"),
        train=dict(num_steps=1800, batch=32, log_every=20, eval_every=1 / 18),
        optimizer=dict(
            name="adamw",
            learning_rate=9.65e-6,
            schedule="cosine",
            final_fraction=0.1,
            b2=0.95,
            clip_norm=1.0,
        ),
        checkpoint=dict(every=1 / 18),
    )
