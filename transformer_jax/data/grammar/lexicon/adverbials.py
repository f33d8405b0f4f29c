"""Adverbials, degrees and values, each as `English = German`."""

# by the tense and the verb that they fit
TIMES = {
    "past": (
        "yesterday = gestern; last week = letzte Woche; last year = letztes Jahr; "
        "last summer = letzten Sommer; the day before yesterday = vorgestern; "
        "yesterday evening = gestern Abend; last Sunday = letzten Sonntag; "
        "last night = letzte Nacht"
    ),
    "future": (
        "tomorrow = morgen; next week = nächste Woche; next year = nächstes Jahr; soon = bald; "
        "the day after tomorrow = übermorgen; tomorrow evening = morgen Abend; "
        "next Friday = nächsten Freitag; this evening = heute Abend"
    ),
    "now": "now = jetzt; at the moment = im Moment; today = heute",
    "habit": (
        "every day = jeden Tag; every morning = jeden Morgen; every week = jede Woche; "
        "every evening = jeden Abend; on Mondays = montags; on Saturdays = samstags; "
        "in the evening = am Abend; in the morning = am Morgen; in the afternoon = am Nachmittag; "
        "at the weekend = am Wochenende"
    ),
    "season": (
        "in summer = im Sommer; in winter = im Winter; in June = im Juni; in August = im August; "
        "every year = jedes Jahr; in spring = im Frühling; in autumn = im Herbst"
    ),
    "any": (
        "after the concert = nach dem Konzert; after the lesson = nach dem Unterricht; "
        "before the exam = vor der Prüfung; before the meeting = vor der Besprechung; "
        "during the holiday = während des Urlaubs; during the trip = während der Reise; "
        "because of the weather = wegen des Wetters; because of the rain = wegen des Regens; "
        "despite the storm = trotz des Sturms; on Tuesday = am Dienstag; "
        "on Thursday = am Donnerstag"
    ),
    "often": (
        "often = oft; always = immer; sometimes = manchmal; usually = meistens; rarely = selten; "
        "never = nie"
    ),
    "unit": "hour = Stunden; day = Tagen; week = Wochen; month = Monaten; year = Jahren",
}

# by the class of verbs that they fit
MANNERS = {
    "quick": "quickly = schnell; slowly = langsam; carefully = vorsichtig",
    "slow": "slowly = langsam; carefully = vorsichtig",
    "loud": "loudly = laut; quietly = leise",
    "well": "well = gut; badly = schlecht",
}

VALUES = (
    "important = wichtig; difficult = schwierig; easy = einfach; possible = möglich; "
    "necessary = notwendig; dangerous = gefährlich; useful = nützlich; forbidden = verboten"
)

DEGREES = "very = sehr; too = zu; quite = ziemlich; really = wirklich; still = noch"
