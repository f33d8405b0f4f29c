from transformer_jax.data.sources.pairs import GrammarPairs, TextPairs
from transformer_jax.data.texts import JoinedPairs


def test_pairs_become_documents_every_time_anew(tmp_path):
    for name, text in (("a.en", "I am a student\nthanks\n"), ("a.fr", "je suis étudiant\nmerci\n")):
        (tmp_path / name).write_text(text, encoding="utf-8")
    documents = JoinedPairs(TextPairs(str(tmp_path / "a.en"), str(tmp_path / "a.fr")), "<to-fr>")
    assert (
        list(documents)
        == list(documents)
        == ["I am a student <to-fr> je suis étudiant", "thanks <to-fr> merci"]
    )


def test_the_marker_and_the_pairs_are_the_fingerprint():
    prints = [
        JoinedPairs(GrammarPairs("train", size), marker).fingerprint()
        for size, marker in ((5, "<to-de>"), (5, "<to-de>"), (5, "<auf-deutsch>"), (6, "<to-de>"))
    ]
    assert prints[0] == prints[1] and prints[0] != prints[2] and prints[0] != prints[3]
