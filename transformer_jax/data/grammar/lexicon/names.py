"""Names of persons."""

# All names take a plain genitive -s: Maria's book is "Marias Buch".
NAMES = {
    "f": "Anna Maria Julia Laura Sophie Emma Lena Clara Eva Lisa Nina Martha",
    "m": "Peter Paul Jan Martin Karl David Daniel Michael Anton Otto Simon Robert",
}

SURNAMES = "Weber Schneider Becker Meyer Wagner Keller"
