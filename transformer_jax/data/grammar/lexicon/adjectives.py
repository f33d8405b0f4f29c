"""Adjectives by the classes of nouns that they fit."""

ADJECTIVES = {
    "person kin": """
        clever klug klüger klügst
        rich reich
        friendly freundlich
        happy glücklich
        sad traurig
        tired müde:müd
        ill! krank
        hard-working fleißig
        lazy faul
        nice nett
        funny lustig
        polite höflich
        famous berühmt
        brave mutig
        patient geduldig""",
    "person kin animal": """
        young jung jünger jüngst
        old alt älter ältest
        strong stark stärker stärkst
        weak schwach schwächer schwächst
        hungry hungrig
        healthy gesund gesünder gesündest""",
    "animal": """
        dangerous gefährlich""",
    "animal wear vehicle thing furniture device opening building room outdoors": """
        big groß größer größt
        small klein
        beautiful schön
        ugly hässlich""",
    "wear vehicle thing furniture device opening building reading": """
        old alt älter ältest
        new neu""",
    "wear vehicle thing furniture device": """
        expensive teuer:teur teurer teuerst
        cheap billig
        heavy schwer""",
    "vehicle animal": """
        fast schnell
        slow langsam""",
    "wear thing vehicle furniture opening animal": """
        white! weiß
        black! schwarz
        grey! grau
        brown! braun""",
    "wear vehicle thing furniture": """
        red! rot
        blue! blau
        green! grün
        yellow! gelb""",
    "wear vehicle room opening": """
        clean sauber
        dirty schmutzig""",
    "building vehicle device furniture": """
        modern modern
        comfortable bequem""",
    "thing device vehicle opening": """
        broken! kaputt""",
    "reading event film song": """
        long lang länger längst
        short kurz kürzer kürzest
        boring langweilig
        exciting spannend spannender spannendst""",
    "reading event topic subject tongue": """
        interesting interessant interessanter interessantest
        important wichtig""",
    "reading exam game exercise language question problem subject tongue": """
        difficult schwierig
        easy einfach""",
    "reading event topic food drink": """
        good gut besser best
        bad schlecht""",
    "food": """
        fresh frisch
        delicious lecker""",
    "cake biscuit orange apple cherry pear": """
        sweet süß""",
    "apple orange cherry": """
        sour sauer:saur saurer sauerst""",
    "soup": """
        cold kalt kälter kältest
        hot heiß heißer heißest""",
    "drink": """
        cold kalt kälter kältest
        hot heiß heißer heißest
        warm warm wärmer wärmst""",
    "building room outdoors": """
        quiet ruhig
        dark dunkel:dunkl dunkler dunkelst""",
    "castle museum theatre university city church bridge": """
        famous berühmt""",
    "weather storm": """
        bad schlecht
        terrible schrecklich""",
}

# adjectives that fit certain nouns only, such as a high mountain and a deep lake
NOUN_ADJECTIVES = {
    "mountain": "high hoch:hoh höher höchst",
    "lake sea river": "deep tief",
    "river bridge": "wide breit",
    "girl boy man woman child": "tall groß größer größt",
    "bottle box bag suitcase basket cup": "empty! leer",
    "table mirror": "round! rund",
}
