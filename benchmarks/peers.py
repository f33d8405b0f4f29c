"""The peers: models of Hugging Face on torch and their engines, in the shapes of ours, with random weights.

Everything of the benchmarks that needs torch stands here. An environment that holds both: pip install 'torch==2.13.0' first, then pip install -e '.[bench]'.
"""
import contextlib
import os
import tempfile
from collections.abc import Callable

import ctranslate2
import numpy as np
import torch
import transformers
from ctranslate2.converters.transformers import MarianMTLoader
from torch.nn.attention import SDPBackend, sdpa_kernel

transformers.logging.set_verbosity_error()
torch.set_num_threads(len(os.sched_getaffinity(0)))

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
FLASH, CUDNN = SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION
TRAINING = {"torch eager": dict(compiled=False), "torch.compile": dict(compiled=True)}  # the ways torch has to train
if DEVICE == "cuda":
    TRAINING = {f"{name}, {kernel}": {**options, "kernels": [backend]} for name, options in TRAINING.items() for kernel, backend in (("flash", FLASH), ("cuDNN", CUDNN))}
ATTENTION = {False: {"torch SDPA": ()}, True: {"torch SDPA": ()}}  # without and with a mask in memory: its kernels to choose from
if DEVICE == "cuda":
    ATTENTION = {False: {"torch, flash": [FLASH], "torch, cuDNN": [CUDNN]}, True: {"torch, efficient": [SDPBackend.EFFICIENT_ATTENTION], "torch, cuDNN": [CUDNN]}}


def gpt(vocab_size: int, d_model: int, num_layers: int, num_heads: int, length: int, dropout: float) -> torch.nn.Module:
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=vocab_size, n_embd=d_model, n_layer=num_layers, n_head=num_heads, n_positions=length, resid_pdrop=dropout, embd_pdrop=dropout, attn_pdrop=dropout,
        bos_token_id=0, eos_token_id=0, attn_implementation="sdpa"))


def bert(vocab_size: int, d_model: int, num_layers: int, num_heads: int, length: int, dropout: float) -> torch.nn.Module:
    return transformers.BertForPreTraining(transformers.BertConfig(
        vocab_size=vocab_size, hidden_size=d_model, num_hidden_layers=num_layers, num_attention_heads=num_heads, intermediate_size=4 * d_model,
        max_position_embeddings=length, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout, attn_implementation="sdpa"))


def marian(vocab_size: int, d_model: int, d_ff: int, num_layers: int, num_heads: int, length: int, dropout: float) -> torch.nn.Module:
    """Its tokens as Marian has them: 0 the end, the last one padding and the beginning."""
    return transformers.MarianMTModel(transformers.MarianConfig(
        vocab_size=vocab_size, d_model=d_model, encoder_ffn_dim=d_ff, decoder_ffn_dim=d_ff, encoder_layers=num_layers, decoder_layers=num_layers,
        encoder_attention_heads=num_heads, decoder_attention_heads=num_heads, max_position_embeddings=length, dropout=dropout, attention_dropout=0.0,
        activation_dropout=0.0, activation_function="relu", scale_embedding=True, share_encoder_decoder_embeddings=True, tie_word_embeddings=True, pad_token_id=vocab_size - 1,
        eos_token_id=0, bos_token_id=0, decoder_start_token_id=vocab_size - 1, forced_eos_token_id=None, attn_implementation="sdpa"))


def train_step(model: torch.nn.Module, batches: list[dict[str, np.ndarray]], compiled: bool, kernels: tuple = ()) -> Callable[[], None]:
    """An update by fused AdamW of the loss the model itself gives for each of the batches; on a GPU under bfloat16 autocast, the weights float32. Waits for the end.

    `kernels`: of attention, that torch may choose from."""
    model = model.to(DEVICE).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
    batches = [{name: torch.tensor(array, device=DEVICE).long() for name, array in batch.items()} for batch in batches]
    forward = torch.compile(model) if compiled else model

    def step():
        for batch in batches:
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast(DEVICE, torch.bfloat16, enabled=DEVICE == "cuda"), sdpa_kernel(kernels) if kernels else contextlib.nullcontext():
                loss = forward(**batch).loss
            loss.backward()
            optimizer.step()
        synchronise()

    return step


def attention(arrays: np.ndarray, seen: np.ndarray | None, causal: bool, kernels: tuple = ()) -> Callable[[int], None]:
    """(times) -> None: forward and backward, so often, of q, k, v and the gradient by the output, (4, B, L, H, D); bfloat16 on a GPU.

    `seen`: a mask (B or 1, 1, Q or 1, K), which holds what is causal, too."""
    *inputs, d_out = torch.tensor(arrays, device=DEVICE, dtype=torch.bfloat16 if DEVICE == "cuda" else torch.float32)
    for one in inputs:
        one.requires_grad_()
    mask = None if seen is None else torch.tensor(seen, device=DEVICE).expand(-1, -1, arrays.shape[2], -1)

    def passes(times: int):
        for _ in range(times):
            with sdpa_kernel(kernels) if kernels else contextlib.nullcontext():
                q, k, v = (one.transpose(1, 2) for one in inputs)
                out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal and mask is None)
            torch.autograd.grad(out, inputs, d_out.transpose(1, 2))
        synchronise()

    return passes


class Beams:
    """Beam search with a Marian model by `generate`, and by CTranslate2 with the same weights, on CPU in float32; sentences of set lengths."""

    def __init__(self, model: torch.nn.Module, beam: int):
        self.model, self.beam = model.eval(), beam
        size = model.config.vocab_size
        self.pieces = [f"piece{i}" for i in range(size - 1)]  # the padding, which is last, is not CTranslate2's
        self.pieces[0] = "</s>"
        spec = MarianMTLoader().get_model_spec(model)
        spec.register_source_vocabulary(self.pieces)
        spec.register_target_vocabulary(self.pieces)
        spec.config.eos_token, spec.config.unk_token, spec.config.decoder_start_token, spec.config.add_source_eos = "</s>", "piece1", "</s>", False
        spec.validate()
        spec.optimize(quantization=None)
        with tempfile.TemporaryDirectory() as folder:
            spec.save(folder)
            self.translator = ctranslate2.Translator(folder, device="cpu", compute_type="float32", intra_threads=torch.get_num_threads(), inter_threads=1)

    @torch.inference_mode()
    def generate(self, sentences: list[np.ndarray], lengths: np.ndarray) -> None:
        """Hypotheses of `lengths` tokens, the end among them, which is forced there and forbidden before."""
        tokens = torch.full((len(sentences), max(map(len, sentences))), self.model.config.pad_token_id)
        for row, sentence in enumerate(sentences):
            tokens[row, : len(sentence)] = torch.tensor(sentence)
        ends = torch.tensor(lengths).repeat_interleave(self.beam)

        def force(ids, scores):
            due = ends <= ids.shape[1]  # ids hold the beginning, too
            end = scores[:, 0].clone()
            scores = scores.masked_fill(due[:, None], float("-inf"))
            scores[:, 0] = torch.where(due, end, float("-inf"))
            return scores

        self.model.generate(input_ids=tokens, attention_mask=(tokens != self.model.config.pad_token_id).long(), num_beams=self.beam, do_sample=False, early_stopping=True,
                            max_new_tokens=int(lengths.max()), logits_processor=transformers.LogitsProcessorList([force]))

    def ctranslate2(self, sentences: list[np.ndarray], lengths: np.ndarray) -> None:
        """Hypotheses all as long as the longest of `lengths`."""
        most = int(lengths.max())
        self.translator.translate_batch([[self.pieces[i] for i in sentence] for sentence in sentences], beam_size=self.beam, max_batch_size=len(sentences),
                                        min_decoding_length=most, max_decoding_length=most)


class Sampler:
    """`generate` of a GPT-2 with a static cache: draws `count` tokens behind each prompt (B, L); on a GPU in bfloat16."""

    def __init__(self, model: torch.nn.Module, prompts: np.ndarray, count: int):
        self.model, self.prompts, self.count = model.to(DEVICE, torch.bfloat16 if DEVICE == "cuda" else torch.float32).eval(), torch.tensor(prompts, device=DEVICE), count

    @torch.inference_mode()
    def __call__(self) -> None:
        self.model.generate(self.prompts, attention_mask=torch.ones_like(self.prompts), do_sample=True, top_k=0, min_new_tokens=self.count, max_new_tokens=self.count,
                            cache_implementation="static")
        synchronise()


def synchronise() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
