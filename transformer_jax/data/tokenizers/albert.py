"""ALBERT's tokenizer: a unigram model of SentencePiece (Lan et al. 2019)."""

from transformer_jax.data.tokenizers.unigram import EncoderUnigram


class ALBERT(EncoderUnigram):
    """A unigram tokenizer as ALBERT has it. Ids equal those of AlbertTokenizer.

    Ids 0 to 4 are special; [SEP] ends a document.
    """

    file = "albert.json"
    first = ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")
    single = "[CLS]:0 $A:0 [SEP]:0"
    pair = "[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1"
    hf_class = "AlbertTokenizer"
    pad_id, unk_id, cls_id, sep_id, mask_id = range(5)
    eos_id = sep_id
