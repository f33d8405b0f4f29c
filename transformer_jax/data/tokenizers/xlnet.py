"""XLNet's tokenizer: a unigram model of SentencePiece (Yang et al. 2019)."""

from transformer_jax.data.tokenizers.unigram import EncoderUnigram


class XLNet(EncoderUnigram):
    """A unigram tokenizer as XLNet has it. Ids equal those of XLNetTokenizer.

    Ids 0 to 8 are special; <eod> ends a document.
    """

    file = "xlnet.json"
    first = ("<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>")
    single = "$A:0 <sep>:0 <cls>:2"
    pair = "$A:0 <sep>:0 $B:1 <sep>:1 <cls>:2"
    hf_class = "XLNetTokenizer"
    unk_id, bos_id = 0, 1
    cls_id, sep_id, pad_id, mask_id, eos_id = range(3, 8)
