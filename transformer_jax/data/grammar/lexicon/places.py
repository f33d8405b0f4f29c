"""Regions, places and spots, and the names of persons."""

# English  German: where, where to, where from
REGIONS = """
    Berlin  in Berlin  nach Berlin  aus Berlin
    Hamburg  in Hamburg  nach Hamburg  aus Hamburg
    Munich  in München  nach München  aus München
    Vienna  in Wien  nach Wien  aus Wien
    Cologne  in Köln  nach Köln  aus Köln
    Zurich  in Zürich  nach Zürich  aus Zürich
    Paris  in Paris  nach Paris  aus Paris
    London  in London  nach London  aus London
    Rome  in Rom  nach Rom  aus Rom
    Prague  in Prag  nach Prag  aus Prag
    Lisbon  in Lissabon  nach Lissabon  aus Lissabon
    Germany  in Deutschland  nach Deutschland  aus Deutschland
    Austria  in Österreich  nach Österreich  aus Österreich
    France  in Frankreich  nach Frankreich  aus Frankreich
    Italy  in Italien  nach Italien  aus Italien
    Spain  in Spanien  nach Spanien  aus Spanien
    Greece  in Griechenland  nach Griechenland  aus Griechenland
    Switzerland  in der Schweiz  in die Schweiz  aus der Schweiz
    Turkey  in der Türkei  in die Türkei  aus der Türkei
    the Netherlands  in den Niederlanden  in die Niederlande  aus den Niederlanden"""

# English prepositions: where, where to; German: where (dative), where to and its case
PLACES = {
    "in into in in acc": "house kitchen room office cellar garden city village forest castle hotel",
    "in to in in acc": "park church",
    "at to in in acc": (
        "restaurant museum theatre cinema library hospital shop supermarket school factory"
    ),
    "at to in zu dat": "bakery bank town_hall",
    "at to an zu dat": "station airport university",
    "at to an an acc": "lake river",
    "on to an an acc": "beach",
    "at to auf zu dat": "market",
    "on onto auf auf acc": "bridge balcony",
    "on to auf auf acc": "island mountain farm",
}

# English and German preposition, with the dative for a place and the accusative for a direction
SPOTS = {
    "on auf": "table chair bed cupboard sofa carpet",
    "under unter": "table chair bed sofa cupboard",
    "behind hinter": "door sofa cupboard mirror",
    "next_to neben": "window door bed lamp computer telephone",
    "in in": "bag box basket suitcase cupboard",
    "in_front_of vor": "door mirror window",
}


# All names take a plain genitive -s: Maria's book is "Marias Buch".
NAMES = {
    "f": "Anna Maria Julia Laura Sophie Emma Lena Clara Eva Lisa Nina Martha",
    "m": "Peter Paul Jan Martin Karl David Daniel Michael Anton Otto Simon Robert",
}

SURNAMES = "Weber Schneider Becker Meyer Wagner Keller"
