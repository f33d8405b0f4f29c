"""The peers: Hugging Face's models on torch, with random weights, in our shapes.

Only this module, engines.py and recurrent_peer.py need torch. To install both:
`pip install 'torch==2.13.0'`, then `pip install -e '.[bench]'`, or on a GPU
`pip install -e '.[gpu,bench]'`.
"""

import dataclasses
import functools
import os
from collections.abc import Callable

import numpy as np
import torch
import transformers
from torch.nn.attention import SDPBackend, flex_attention, sdpa_kernel
from transformers.integrations.sdpa_attention import sdpa_attention_forward

transformers.logging.set_verbosity_error()
torch.set_num_threads(len(os.sched_getaffinity(0)))

# Beyond this number of shapes, torch.compile silently runs uncompiled code.
torch._dynamo.config.recompile_limit = 64

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPE = torch.bfloat16 if DEVICE == "cuda" else torch.float32
KERNELS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cuDNN": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}
# Options of `train_step` for batches with padding: torch chooses the kernel for the mask.
PADDED = {"torch eager": dict(compiled=False), "torch.compile": dict(compiled=True)}
# Options of `train_step` for batches without padding.
TRAINING = PADDED
# {whether the mask is an array: {name: kernel}} for `attention`.
ATTENTION = {False: {"torch SDPA": None}, True: {"torch SDPA": None}}
if DEVICE == "cuda":
    TRAINING = {
        f"{name}, {kernel}": {**options, "kernel": kernel}
        for name, options in PADDED.items()
        for kernel in ("flash", "cuDNN")
    }
    ATTENTION = {
        False: {f"torch, {kernel}": kernel for kernel in ("flash", "cuDNN")},
        True: {f"torch, {kernel}": kernel for kernel in ("efficient", "cuDNN", "flex")},
    }


def _attend(kernel: str, *arguments, **more):
    with sdpa_kernel([KERNELS[kernel]]):
        return sdpa_attention_forward(*arguments, **more)


# In transformers, a name that contains "flash" selects another library.
_names = {kernel: f"sdpa_{number}" for number, kernel in enumerate(KERNELS)}
# Registered functions get no mask when nothing is padded. transformers' own "sdpa" gets one under
# torch.compile, which flash attention refuses.
for _kernel, _name in _names.items():
    transformers.AttentionInterface.register(_name, functools.partial(_attend, _kernel))


def gpt(
    *, vocab_size: int, d_model: int, num_layers: int, num_heads: int, length: int
) -> torch.nn.Module:
    model = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=vocab_size,
            n_embd=d_model,
            n_layer=num_layers,
            n_head=num_heads,
            n_positions=length,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            bos_token_id=0,
            eos_token_id=0,
            attn_implementation="sdpa",
        )
    )
    # transformers would find the type by itself, in code that torch.compile cannot trace.
    model.loss_type = "ForCausalLM"
    return model


def bert(
    *, vocab_size: int, d_model: int, num_layers: int, num_heads: int, length: int
) -> torch.nn.Module:
    return transformers.BertForPreTraining(
        transformers.BertConfig(
            vocab_size=vocab_size,
            hidden_size=d_model,
            num_hidden_layers=num_layers,
            num_attention_heads=num_heads,
            intermediate_size=4 * d_model,
            max_position_embeddings=length,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            attn_implementation="sdpa",
        )
    )


def roberta(
    *, vocab_size: int, d_model: int, num_layers: int, num_heads: int, length: int
) -> torch.nn.Module:
    return transformers.RobertaForMaskedLM(
        transformers.RobertaConfig(
            vocab_size=vocab_size,
            hidden_size=d_model,
            num_hidden_layers=num_layers,
            num_attention_heads=num_heads,
            intermediate_size=4 * d_model,
            max_position_embeddings=length + 2,  # the first two belong to padding
            type_vocab_size=1,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            attn_implementation="sdpa",
        )
    )


def electra(
    *, vocab_size: int, d_embed: int, d_model: int, num_layers: int, num_heads: int, length: int
) -> torch.nn.Module:
    """Returns a discriminator and a generator of a quarter of its width."""

    def config(share: int):
        return transformers.ElectraConfig(
            vocab_size=vocab_size,
            embedding_size=d_embed,
            hidden_size=d_model // share,
            num_hidden_layers=num_layers,
            num_attention_heads=num_heads // share,
            intermediate_size=4 * d_model // share,
            max_position_embeddings=length,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            attn_implementation="sdpa",
        )

    return _ElectraPair(
        transformers.ElectraForMaskedLM(config(4)), transformers.ElectraForPreTraining(config(1))
    )


def vit(*, side: int, patch: int, layers: int, width: int, classes: int) -> torch.nn.Module:
    """Returns a classifier of images of `side` pixels."""
    return transformers.ViTForImageClassification(
        transformers.ViTConfig(
            image_size=side,
            patch_size=patch,
            num_hidden_layers=layers,
            hidden_size=width,
            num_attention_heads=width // 64,
            intermediate_size=4 * width,
            num_labels=classes,
            attn_implementation="sdpa",
        )
    )


class _ElectraPair(torch.nn.Module):
    """ELECTRA's pre-training, of which transformers has only the two models.

    The generator computes the logits of the masked positions alone.
    """

    def __init__(self, generator: torch.nn.Module, discriminator: torch.nn.Module):
        super().__init__()
        embeddings = discriminator.electra.embeddings
        generator.electra.embeddings = embeddings
        generator.generator_lm_head.weight = embeddings.word_embeddings.weight
        self.generator = generator
        self.discriminator = discriminator
        self.config = discriminator.config

    def set_attn_implementation(self, name: str) -> None:
        for model in (self.generator, self.discriminator):
            model.set_attn_implementation(name)

    def forward(self, input_ids, masked_positions, labels):
        states = self.generator.electra(input_ids).last_hidden_state
        states = states.gather(1, masked_positions[..., None].expand(-1, -1, states.shape[-1]))
        states = self.generator.generator_predictions(states)
        logits = self.generator.generator_lm_head(states).flatten(0, 1).float()
        masked_lm = torch.nn.functional.cross_entropy(logits, labels.flatten())
        with torch.no_grad():
            sampled = torch.multinomial(logits.softmax(-1), 1).view_as(labels)
        tokens = input_ids.scatter(1, masked_positions, sampled)
        replaced = tokens != input_ids.scatter(1, masked_positions, labels)
        detection = self.discriminator(tokens, labels=replaced).loss
        return transformers.modeling_outputs.MaskedLMOutput(loss=masked_lm + 50 * detection)


def marian(
    *,
    vocab_size: int,
    d_model: int,
    d_ff: int,
    num_layers: int,
    num_heads: int,
    length: int,
    activation: str = "relu",
) -> torch.nn.Module:
    """Returns a Marian model. Token 0 is the end; the last token is padding and beginning."""
    return transformers.MarianMTModel(
        transformers.MarianConfig(
            vocab_size=vocab_size,
            d_model=d_model,
            encoder_ffn_dim=d_ff,
            decoder_ffn_dim=d_ff,
            encoder_layers=num_layers,
            decoder_layers=num_layers,
            encoder_attention_heads=num_heads,
            decoder_attention_heads=num_heads,
            max_position_embeddings=length,
            dropout=0.0,
            attention_dropout=0.0,
            activation_dropout=0.0,
            activation_function=activation,
            scale_embedding=True,
            share_encoder_decoder_embeddings=True,
            tie_word_embeddings=True,
            pad_token_id=vocab_size - 1,
            eos_token_id=0,
            bos_token_id=0,
            decoder_start_token_id=vocab_size - 1,
            forced_eos_token_id=None,
            attn_implementation="sdpa",
        )
    )


def train_step(
    model: torch.nn.Module,
    batches: list[dict[str, np.ndarray]],
    compiled: bool,
    kernel: str | None = None,
) -> Callable[[], None]:
    """Returns a function that makes an update with each of the batches and waits for the end.

    The loss is the model's own, the optimizer is fused AdamW. The weights are float32; a GPU
    computes under bfloat16 autocast. `kernel` is a key of KERNELS; None lets torch choose.
    """
    model = model.to(DEVICE).train()
    model.config.use_cache = False  # as in Hugging Face's Trainer
    if kernel:
        model.set_attn_implementation(_names[kernel])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
    batches = [{name: _placed(array) for name, array in batch.items()} for batch in batches]
    forward = model
    if compiled:
        forward = torch.compile(model, dynamic=False if len(batches) == 1 else None)

    def step():
        for batch in batches:
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast(DEVICE, torch.bfloat16, enabled=DEVICE == "cuda"):
                loss = forward(**batch).loss
            loss.backward()
            optimizer.step()
        synchronise()

    return step


def _placed(array: np.ndarray) -> torch.Tensor:
    """Returns whole numbers as int64, others as they are, on the device."""
    placed = torch.tensor(array, device=DEVICE)
    return placed if placed.is_floating_point() else placed.long()


@dataclasses.dataclass(frozen=True)
class AttentionMask:
    """The mask of attention from L queries to L keys, in the forms that torch's kernels take.

    Without an array, `causal` is the whole mask.
    """

    causal: bool
    array: np.ndarray | None = (
        None  # (B or 1, 1, L or 1, L), True where visible; causality included
    )
    segments: np.ndarray | None = None  # (B, L), for the kernel "flex"


def attention(
    arrays: np.ndarray, mask: AttentionMask, kernel: str | None, dropout: float = 0.0
) -> Callable[[int], None]:
    """Returns a function of n that runs attention n times, forward and backward.

    `arrays` (4, B, L, H, D) are q, k, v and the gradient by the output; on a GPU they are converted
    to bfloat16. `kernel` is a key of KERNELS or "flex", which has no dropout; None lets torch
    choose.
    """
    *inputs, d_out = torch.tensor(arrays, device=DEVICE, dtype=DTYPE)
    for array in inputs:
        array.requires_grad_()
    if kernel == "flex":
        attend = _flexible(torch.tensor(mask.segments, device=DEVICE), mask.causal)
    else:
        attend = _dot_product(mask, arrays.shape[2], kernel, dropout)

    def passes(times: int):
        for _ in range(times):
            out = attend(*(array.transpose(1, 2) for array in inputs))
            torch.autograd.grad(out, inputs, d_out.transpose(1, 2))
        synchronise()

    return passes


def _dot_product(mask: AttentionMask, length: int, kernel: str | None, dropout: float) -> Callable:
    array = None
    if mask.array is not None:
        array = torch.tensor(mask.array, device=DEVICE).expand(-1, -1, length, -1)
    backends = [KERNELS[kernel]] if kernel else [*KERNELS.values(), SDPBackend.MATH]

    def attend(q, k, v):
        with sdpa_kernel(backends):
            return torch.nn.functional.scaled_dot_product_attention(
                q, k, v, array, dropout, is_causal=mask.causal and array is None
            )

    return attend


def _flexible(segments: torch.Tensor, causal: bool) -> Callable:
    """Returns torch's flex_attention, which skips tiles that are hidden completely."""
    rows, length = segments.shape

    def visible(row, head, query, key):
        same_segment = segments[row, query] == segments[row, key]
        return same_segment & ((query >= key) if causal else True)

    mask = flex_attention.create_block_mask(visible, rows, None, length, length, device=DEVICE)
    return functools.partial(
        torch.compile(flex_attention.flex_attention, dynamic=False), block_mask=mask
    )


def synchronise() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
