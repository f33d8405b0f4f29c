"""Numbers from 1 to 9999 in words."""

ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen".split()
)

TENS = "- - twenty thirty forty fifty sixty seventy eighty ninety".split()

EINER = (
    "null ein zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn fünfzehn "
    "sechzehn siebzehn achtzehn neunzehn".split()
)

ZEHNER = "- - zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig".split()


def english_number(n: int) -> str:
    """Returns `n` in words: 2105 is "two thousand one hundred and five"."""
    if n >= 100:
        unit, word = (1000, "thousand") if n >= 1000 else (100, "hundred")
        head = f"{ONES[n // unit]} {word}"
        rest = n % unit
        link = "and " if rest < 100 else ""
        return f"{head} {link}{english_number(rest)}" if rest else head
    if n < 20:
        return ONES[n]
    return TENS[n // 10] + (f"-{ONES[n % 10]}" if n % 10 else "")


def german_number(n: int, last: bool = True) -> str:
    """Returns `n` in words: 2105 is "zweitausendeinhundertfünf".

    1 is "eins" if it is the last word, otherwise "ein".
    """
    if n >= 1000:
        head = "tausend" if n < 2000 else EINER[n // 1000] + "tausend"
        rest = german_number(n % 1000) if n % 1000 else ""
        return head + ("ein" + rest if 100 <= n % 1000 < 200 else rest)
    if n >= 100:
        head = "hundert" if n < 200 else EINER[n // 100] + "hundert"
        return head + (german_number(n % 100) if n % 100 else "")
    if n < 20:
        return "eins" if n == 1 and last else EINER[n]
    return (EINER[n % 10] + "und" if n % 10 else "") + ZEHNER[n // 10]
