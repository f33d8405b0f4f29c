"""Proteins of two lengths in a FASTA file; a generator needs no file."""

from tests.examples import save


def write(config, folder):
    if config.source.name != "fasta":
        return {}
    entries = [f">protein {number}\n{'MKTAYIAKQR' * (1 + number % 2)}\n" for number in range(16)]
    return save(folder / "proteins.fasta", "".join(entries))
