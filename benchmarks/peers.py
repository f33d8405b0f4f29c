"""The peers: models of Hugging Face on torch and their engines, in the shapes of ours, with random
weights.

Everything of the benchmarks that needs torch stands here. An environment that holds both: pip
install 'torch==2.13.0' first, then pip install -e '.[bench]', on a GPU '.[gpu,bench]'.
"""

import functools
import os
import tempfile
from collections.abc import Callable

import numpy as np
import torch
import transformers
from torch.nn.attention import SDPBackend, flex_attention, sdpa_kernel
from transformers.integrations.sdpa_attention import sdpa_attention_forward

transformers.logging.set_verbosity_error()
torch.set_num_threads(len(os.sched_getaffinity(0)))

# beyond it torch.compile would go on uncompiled, without a word
torch._dynamo.config.recompile_limit = 64

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPE = torch.bfloat16 if DEVICE == "cuda" else torch.float32
KERNELS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cuDNN": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}
# the ways torch has to train; which kernel takes the mask it knows best
PADDED = {"torch eager": dict(compiled=False), "torch.compile": dict(compiled=True)}
TRAINING = PADDED  # ... where nothing is padded
# without and with a mask in memory: its kernels to choose from
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


# a name with "flash" in it means another library to transformers
_named = {kernel: f"sdpa_{number}" for number, kernel in enumerate(KERNELS)}
# an attention of one's own gets no mask where nothing is padded: torch.compile would make one,
# which flash attention refuses
for _kernel, _name in _named.items():
    transformers.AttentionInterface.register(_name, functools.partial(_attend, _kernel))


def gpt(
    vocab_size: int, d_model: int, num_layers: int, num_heads: int, length: int, dropout: float
) -> torch.nn.Module:
    model = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=vocab_size,
            n_embd=d_model,
            n_layer=num_layers,
            n_head=num_heads,
            n_positions=length,
            resid_pdrop=dropout,
            embd_pdrop=dropout,
            attn_pdrop=dropout,
            bos_token_id=0,
            eos_token_id=0,
            attn_implementation="sdpa",
        )
    )
    model.loss_type = "ForCausalLM"  # what it finds out by itself torch.compile would stop at
    return model


def bert(
    vocab_size: int, d_model: int, num_layers: int, num_heads: int, length: int, dropout: float
) -> torch.nn.Module:
    return transformers.BertForPreTraining(
        transformers.BertConfig(
            vocab_size=vocab_size,
            hidden_size=d_model,
            num_hidden_layers=num_layers,
            num_attention_heads=num_heads,
            intermediate_size=4 * d_model,
            max_position_embeddings=length,
            hidden_dropout_prob=dropout,
            attention_probs_dropout_prob=dropout,
            attn_implementation="sdpa",
        )
    )


def marian(
    vocab_size: int,
    d_model: int,
    d_ff: int,
    num_layers: int,
    num_heads: int,
    length: int,
    dropout: float,
) -> torch.nn.Module:
    """Its tokens as Marian has them: 0 the end, the last one padding and the beginning."""
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
            dropout=dropout,
            attention_dropout=0.0,
            activation_dropout=0.0,
            activation_function="relu",
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
    """An update by fused AdamW of the loss the model itself gives for each of the batches; on a GPU
    under bfloat16 autocast, the weights float32. Waits for the end.

    `kernel`: of attention; None: what torch chooses.
    """
    model = model.to(DEVICE).train()
    model.config.use_cache = False  # as Hugging Face's trainer has it
    if kernel:
        model.set_attn_implementation(_named[kernel])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
    batches = [
        {name: torch.tensor(array, device=DEVICE).long() for name, array in batch.items()}
        for batch in batches
    ]
    forward = (
        torch.compile(model, dynamic=False if len(batches) == 1 else None) if compiled else model
    )

    def step():
        for batch in batches:
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast(DEVICE, torch.bfloat16, enabled=DEVICE == "cuda"):
                loss = forward(**batch).loss
            loss.backward()
            optimizer.step()
        synchronise()

    return step


def attention(
    arrays: np.ndarray,
    seen: np.ndarray | None,
    segments: np.ndarray | None,
    causal: bool,
    kernel: str | None,
) -> Callable[[int], None]:
    """(times) -> None: forward and backward, so often, of q, k, v and the gradient by the output,
    (4, B, L, H, D); bfloat16 on a GPU.

    `seen`: a mask (B or 1, 1, Q or 1, K), which holds what is causal, too; `segments` (B, L), from
    which the kernel "flex" makes its own. `kernel` None: what torch chooses.
    """
    *inputs, d_out = torch.tensor(arrays, device=DEVICE, dtype=DTYPE)
    for one in inputs:
        one.requires_grad_()
    attend = (
        _flexible(torch.tensor(segments, device=DEVICE), causal)
        if kernel == "flex"
        else _dot_product(seen, causal, arrays.shape[2], kernel)
    )

    def passes(times: int):
        for _ in range(times):
            out = attend(*(one.transpose(1, 2) for one in inputs))
            torch.autograd.grad(out, inputs, d_out.transpose(1, 2))
        synchronise()

    return passes


def _dot_product(
    seen: np.ndarray | None, causal: bool, length: int, kernel: str | None
) -> Callable:
    mask = None if seen is None else torch.tensor(seen, device=DEVICE).expand(-1, -1, length, -1)

    def attend(q, k, v):
        with sdpa_kernel(
            [KERNELS[kernel]] if kernel else list(KERNELS.values()) + [SDPBackend.MATH]
        ):
            return torch.nn.functional.scaled_dot_product_attention(
                q, k, v, attn_mask=mask, is_causal=causal and mask is None
            )

    return attend


def _flexible(segments: torch.Tensor, causal: bool) -> Callable:
    """torch's flex_attention, which skips the tiles that a mask hides."""
    rows, length = segments.shape
    seen = lambda row, head, query, key: (
        (segments[row, query] == segments[row, key]) & ((query >= key) if causal else True)
    )
    mask = flex_attention.create_block_mask(seen, rows, None, length, length, device=DEVICE)
    return functools.partial(
        torch.compile(flex_attention.flex_attention, dynamic=False), block_mask=mask
    )


class Beams:
    """Beam search with a Marian model by `generate`, on a GPU in bfloat16, and by CTranslate2 with
    the same weights, on CPU in float32; sentences of set lengths.
    """

    def __init__(self, model: torch.nn.Module, beam: int):
        self.model, self.beam = model.eval(), beam
        # the padding, which is last, is not CTranslate2's
        self.pieces = ["</s>", *(f"piece{i}" for i in range(1, model.config.vocab_size - 1))]

    @functools.cached_property
    def translator(self):
        import ctranslate2
        from ctranslate2.converters.transformers import MarianMTLoader

        spec = MarianMTLoader().get_model_spec(self.model)
        spec.register_source_vocabulary(self.pieces)
        spec.register_target_vocabulary(self.pieces)
        (
            spec.config.eos_token,
            spec.config.unk_token,
            spec.config.decoder_start_token,
            spec.config.add_source_eos,
        ) = "</s>", "piece1", "</s>", False
        spec.validate()
        spec.optimize(quantization=None)
        with tempfile.TemporaryDirectory() as folder:
            spec.save(folder)
            return ctranslate2.Translator(
                folder,
                device="cpu",
                compute_type="float32",
                intra_threads=torch.get_num_threads(),
                inter_threads=1,
            )

    @torch.inference_mode()
    def generate(self, sentences: list[np.ndarray], lengths: np.ndarray) -> None:
        """Hypotheses of `lengths` tokens, the end among them, which is forced there and forbidden
        before.
        """
        tokens = torch.full(
            (len(sentences), max(map(len, sentences))), self.model.config.pad_token_id
        )
        for row, sentence in enumerate(sentences):
            tokens[row, : len(sentence)] = torch.tensor(sentence)
        tokens, ends = (
            tokens.to(DEVICE),
            torch.tensor(lengths, device=DEVICE).repeat_interleave(self.beam),
        )

        def force(ids, scores):
            due = ends <= ids.shape[1]  # ids hold the beginning, too
            end = scores[:, 0].clone()
            scores = scores.masked_fill(due[:, None], float("-inf"))
            scores[:, 0] = torch.where(due, end, float("-inf"))
            return scores

        self.model.to(DEVICE, DTYPE).generate(
            input_ids=tokens,
            attention_mask=(tokens != self.model.config.pad_token_id).long(),
            num_beams=self.beam,
            do_sample=False,
            early_stopping=True,
            max_new_tokens=int(lengths.max()),
            logits_processor=transformers.LogitsProcessorList([force]),
        )
        synchronise()

    def ctranslate2(self, sentences: list[np.ndarray], lengths: np.ndarray) -> None:
        """Hypotheses all as long as the longest of `lengths`."""
        most = int(lengths.max())
        self.translator.translate_batch(
            [[self.pieces[i] for i in sentence] for sentence in sentences],
            beam_size=self.beam,
            max_batch_size=len(sentences),
            min_decoding_length=most,
            max_decoding_length=most,
        )


class Sampler:
    """`generate` of a GPT-2 with a static cache: draws `count` tokens behind each prompt (B, L); on
    a GPU in bfloat16.
    """

    def __init__(self, model: torch.nn.Module, prompts: np.ndarray, count: int):
        # else what it compiled for another number of prompts makes this one's a variable
        torch._dynamo.reset()
        self.model, self.prompts, self.count = (
            model.to(DEVICE, DTYPE).eval(),
            torch.tensor(prompts, device=DEVICE),
            count,
        )

    @torch.no_grad()
    def __call__(self) -> None:
        self.model.generate(
            self.prompts,
            attention_mask=torch.ones_like(self.prompts),
            do_sample=True,
            top_k=0,
            min_new_tokens=self.count,
            max_new_tokens=self.count,
            cache_implementation="static",
        )
        synchronise()


def synchronise() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
