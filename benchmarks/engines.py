"""The peers' decoding: `generate` of Hugging Face's models, and CTranslate2."""

import functools
import tempfile

import numpy as np
import peers
import torch
import transformers


class Beams:
    """Beam search with a Marian model, for outputs of given lengths.

    `generate` is Hugging Face's, in bfloat16 on a GPU. `ctranslate2` uses the same weights on the
    CPU in float32.
    """

    def __init__(self, model: torch.nn.Module, beam: int):
        self.model = model.eval()
        self.beam = beam
        # CTranslate2's vocabulary has no padding, which is the last token.
        self.pieces = ["</s>", *(f"piece{i}" for i in range(1, model.config.vocab_size - 1))]

    @functools.cached_property
    def translator(self):
        import ctranslate2
        from ctranslate2.converters.transformers import MarianMTLoader

        spec = MarianMTLoader().get_model_spec(self.model)
        spec.register_source_vocabulary(self.pieces)
        spec.register_target_vocabulary(self.pieces)
        spec.config.eos_token = "</s>"
        spec.config.unk_token = "piece1"
        spec.config.decoder_start_token = "</s>"
        spec.config.add_source_eos = False
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
        """Writes hypotheses of `lengths` tokens. The end is forced there and forbidden before."""
        pad_id = self.model.config.pad_token_id
        tokens = torch.full((len(sentences), max(map(len, sentences))), pad_id)
        for row, sentence in enumerate(sentences):
            tokens[row, : len(sentence)] = torch.tensor(sentence)
        tokens = tokens.to(peers.DEVICE)
        ends = torch.tensor(lengths, device=peers.DEVICE).repeat_interleave(self.beam)

        def force(ids, scores):
            due = ends <= ids.shape[1]  # ids include the beginning
            end = scores[:, 0].clone()
            scores = scores.masked_fill(due[:, None], float("-inf"))
            scores[:, 0] = torch.where(due, end, float("-inf"))
            return scores

        self.model.to(peers.DEVICE, peers.DTYPE).generate(
            input_ids=tokens,
            attention_mask=(tokens != pad_id).long(),
            num_beams=self.beam,
            do_sample=False,
            early_stopping=True,
            max_new_tokens=int(lengths.max()),
            logits_processor=transformers.LogitsProcessorList([force]),
        )
        peers.synchronise()

    def ctranslate2(self, sentences: list[np.ndarray], lengths: np.ndarray) -> None:
        """Writes hypotheses that are all as long as the longest of `lengths`."""
        length = int(lengths.max())
        self.translator.translate_batch(
            [[self.pieces[i] for i in sentence] for sentence in sentences],
            beam_size=self.beam,
            max_batch_size=len(sentences),
            min_decoding_length=length,
            max_decoding_length=length,
        )


class Sampler:
    """`generate` of a GPT-2 with a static cache: draws `count` tokens after each prompt (B, L).

    A GPU computes in bfloat16.
    """

    def __init__(self, model: torch.nn.Module, prompts: np.ndarray, count: int):
        # After another number of prompts, torch.compile would treat the number as dynamic.
        torch._dynamo.reset()
        self.model = model.to(peers.DEVICE, peers.DTYPE).eval()
        self.prompts = torch.tensor(prompts, device=peers.DEVICE)
        self.count = count

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
        peers.synchronise()
