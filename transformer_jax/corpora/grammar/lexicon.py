"""The words of the built-in grammar, one lexeme a line, as in a learner's dictionary.

There are tables only, which `morphology` reads.

Nouns are `english[/plural] gender German genitive plural`. Endings are written as in dictionaries:
`-es` is appended, `¨er` changes the last vowel to its umlaut and is appended, `-` changes nothing.
Anything else is the whole form. The plural `.` denotes a mass noun, which has none. The gender `w`
is masculine of the weak declension: the genitive is also accusative and dative. Some words differ
in number between the languages:

* `>` at the end: English plural, German singular (trousers, die Hose).
* `<` at the end: English singular, German plural (furniture, die Möbel).
* `pl` instead of the gender: plural in both languages.

Adjectives are `english German [comparative superlative]`. The German is `predicative:stem` where
endings are appended to another stem (teuer, ein teures Buch). `!` denotes adjectives without
comparison.

Verbs are `english = German : ...`. English principal parts are `give/gave/given`. A past `-` is not
used, because it sounds or looks like the present (read, put). `+on` may follow a pronoun object
("turn it on"). German parts are `geben gibt gegeben`, with `ist` before the participle if that is
the auxiliary. `an|rufen` is separable, and so is `Klavier_spielen`, in two words. Regular parts are
left out. After the colon stand the classes or nouns that fit as object, behind the German
preposition and its case if the verb governs one. `*state` is for verbs without a progressive. Other
starred words are classes of adverbials and subjects that fit.

An English word in a frame with a class of objects has exactly one German translation. "you" is
always "du".
"""


# Nouns by class, because verbs and adjectives name the classes of nouns that they fit.

NOUNS = {
    "person": """
        man/men m Mann -es ¨er
        woman/women f Frau - -en
        boy w Junge -n -n
        girl n Mädchen -s -
        child/children n Kind -es -er
        friend m Freund -es -e
        teacher m Lehrer -s -
        student w Student -en -en
        doctor m Arzt -es ¨e
        neighbour w Nachbar -n -n
        colleague w Kollege -n -n
        customer w Kunde -n -n
        farmer w Bauer -n -n
        baker m Bäcker -s -
        cook m Koch -s ¨e
        nurse f Krankenschwester - -n
        waiter m Kellner -s -
        policeman/policemen w Polizist -en -en
        painter m Maler -s -
        queen f Königin - -nen
        king m König -s -e
        prince w Prinz -en -en
        guest m Gast -es ¨e
        artist m Künstler -s -
        writer m Schriftsteller -s -
        engineer m Ingenieur -s -e
        lawyer m Anwalt -s ¨e
        driver m Fahrer -s -
        singer m Sänger -s -
        people pl Leute""",
    "kin": """
        father m Vater -s ¨
        mother f Mutter - ¨
        brother m Bruder -s ¨
        sister f Schwester - -n
        son m Sohn -es ¨e
        daughter f Tochter - ¨
        uncle m Onkel -s -
        aunt f Tante - -n
        grandfather m Großvater -s ¨
        grandmother f Großmutter - ¨
        parents pl Eltern
        grandparents pl Großeltern""",
    "animal": """
        dog m Hund -es -e
        cat f Katze - -n
        horse n Pferd -es -e
        bird m Vogel -s ¨
        cow f Kuh - ¨e
        mouse/mice f Maus - ¨e
        bear w Bär -en -en
        lion w Löwe -n -n
        duck f Ente - -n
        rabbit n Kaninchen -s -
        monkey w Affe -n -n
        pig n Schwein -es -e
        elephant w Elefant -en -en
        fox m Fuchs -es ¨e
        goose/geese f Gans - ¨e
        wolf/wolves m Wolf -es ¨e""",
    "food": """
        apple m Apfel -s ¨
        egg n Ei -s -er
        cake m Kuchen -s -
        pear f Birne - -n
        banana f Banane - -n
        potato/potatoes f Kartoffel - -n
        tomato/tomatoes f Tomate - -n
        sausage f Wurst - ¨e
        orange f Orange - -n
        cherry f Kirsche - -n
        soup f Suppe - -n
        carrot f Karotte - -n
        biscuit m Keks -es -e
        onion f Zwiebel - -n
        salad m Salat -s -e
        bread n Brot -es .
        cheese m Käse -s .
        meat n Fleisch -es .
        rice m Reis -es .
        butter f Butter - .
        chocolate f Schokolade - .
        honey m Honig -s .
        fruit n Obst -es .
        ham m Schinken -s .
        vegetables n Gemüse -s . >""",
    "drink": """
        water n Wasser -s .
        milk f Milch - .
        coffee m Kaffee -s .
        tea m Tee -s .
        juice m Saft -es .
        beer n Bier -es .
        wine m Wein -es .
        lemonade f Limonade - .""",
    "reading": """
        book n Buch -es ¨er
        letter m Brief -es -e
        newspaper f Zeitung - -en
        poem n Gedicht -es -e
        text m Text -es -e
        sentence m Satz -es ¨e
        story f Geschichte - -n
        novel m Roman -s -e
        report m Bericht -s -e
        message f Nachricht - -en
        word n Wort -es ¨er
        article m Artikel -s -
        contract m Vertrag -s ¨e
        magazine f Zeitschrift - -en
        dictionary n Wörterbuch -s ¨er""",
    "wear": """
        coat m Mantel -s ¨
        shirt n Hemd -es -en
        dress n Kleid -es -er
        hat m Hut -es ¨e
        shoe m Schuh -s -e
        jacket f Jacke - -n
        skirt m Rock -s ¨e
        scarf/scarves m Schal -s -s
        glove m Handschuh -s -e
        trousers f Hose - . >
        glasses f Brille - . >""",
    "vehicle": """
        car n Auto -s -s
        bus m Bus -ses -se
        train m Zug -es ¨e
        bicycle n Fahrrad -s ¨er
        ship n Schiff -es -e
        plane n Flugzeug -s -e
        boat n Boot -es -e
        tram f Straßenbahn - -en
        taxi n Taxi -s -s""",
    "thing": """
        key m Schlüssel -s -
        bag f Tasche - -n
        suitcase m Koffer -s -
        umbrella m Regenschirm -s -e
        knife/knives n Messer -s -
        spoon m Löffel -s -
        fork f Gabel - -n
        cup f Tasse - -n
        bottle f Flasche - -n
        plate m Teller -s -
        ball m Ball -s ¨e
        picture n Bild -es -er
        photo n Foto -s -s
        map f Karte - -n
        ticket f Fahrkarte - -n
        gift n Geschenk -s -e
        parcel n Paket -s -e
        candle f Kerze - -n
        flower f Blume - -n
        box f Kiste - -n
        pencil m Bleistift -s -e
        clock f Uhr - -en
        stone m Stein -es -e
        stamp f Briefmarke - -n
        basket m Korb -s ¨e
        camera f Kamera - -s
        scissors f Schere - . >""",
    "cash": """
        money n Geld -es .""",
    "device": """
        lamp f Lampe - -n
        computer m Computer -s -
        telephone n Telefon -s -e
        radio n Radio -s -s
        television m Fernseher -s -
        machine f Maschine - -n""",
    "furniture": """
        table m Tisch -es -e
        chair m Stuhl -s ¨e
        bed n Bett -es -en
        cupboard m Schrank -s ¨e
        shelf/shelves n Regal -s -e
        sofa n Sofa -s -s
        carpet m Teppich -s -e
        mirror m Spiegel -s -
        furniture pl Möbel <""",
    "opening": """
        door f Tür - -en
        window n Fenster -s -
        gate n Tor -es -e""",
    "building": """
        house n Haus -es ¨er
        school f Schule - -n
        church f Kirche - -n
        hotel n Hotel -s -s
        restaurant n Restaurant -s -s
        museum n Museum -s Museen
        theatre n Theater -s -
        cinema n Kino -s -s
        library f Bibliothek - -en
        university f Universität - -en
        hospital n Krankenhaus -es ¨er
        shop n Geschäft -s -e
        bakery f Bäckerei - -en
        supermarket m Supermarkt -s ¨e
        factory f Fabrik - -en
        castle n Schloss -es ¨er
        station m Bahnhof -s ¨e
        airport m Flughafen -s ¨
        town_hall n Rathaus -es ¨er
        bank f Bank - -en""",
    "room": """
        kitchen f Küche - -n
        room n Zimmer -s -
        office n Büro -s -s
        cellar m Keller -s -""",
    "outdoors": """
        garden m Garten -s ¨
        city f Stadt - ¨e
        village n Dorf -es ¨er
        park m Park -s -s
        forest m Wald -es ¨er
        market m Markt -es ¨e
        beach m Strand -es ¨e
        lake m See -s -n
        sea n Meer -es -e
        river m Fluss -es ¨e
        bridge f Brücke - -n
        island f Insel - -n
        mountain m Berg -es -e
        balcony m Balkon -s -s
        farm m Bauernhof -s ¨e""",
    "event": """
        party n Fest -es -e
        concert n Konzert -s -e
        lesson m Unterricht -s .
        meeting f Besprechung - -en
        exam f Prüfung - -en
        trip f Reise - -n
        holiday m Urlaub -s .
        game n Spiel -s -e
        exhibition f Ausstellung - -en""",
    "topic": """
        film m Film -s -e
        song n Lied -es -er
        plan m Plan -s ¨e
        idea f Idee - -n
        problem n Problem -s -e
        language f Sprache - -n
        question f Frage - -n
        exercise f Übung - -en
        homework pl Hausaufgaben <
        news pl Nachrichten <""",
    "subject": """
        music f Musik - .
        art f Kunst - .
        history f Geschichte - .
        mathematics f Mathematik - .
        politics f Politik - .""",
    "tongue": """
        German n Deutsch - .
        English n Englisch - .
        French n Französisch - .
        Spanish n Spanisch - .
        Italian n Italienisch - .
        Russian n Russisch - .""",
    "sky": """
        weather n Wetter -s .
        rain m Regen -s .
        snow m Schnee -s .
        storm m Sturm -es ¨e""",
}

# Verbs by frame, which says what objects a verb governs, because a sentence is drawn from its
# frame. Irregular forms and modal verbs follow.

VERBS = {
    "intransitive": """
        sleep/slept/slept = schlafen schläft geschlafen : *animal
        work = arbeiten : *with *well *place
        laugh = lachen : *loud
        cry = weinen : *loud
        dance = tanzen : *with *well *place
        sing/sang/sung = singen gesungen : *with *well *loud *place
        swim/swam/swum = schwimmen ist geschwommen : *with *well
        smile = lächeln
        smoke = rauchen : *place
        cook = kochen : *well *with *place
        study = studieren : *with *place
        play = spielen : *place *with *animal
        travel = reisen ist gereist : *with
        get/got/got up = auf|stehen ist gestanden : *clock
        wake/woke/woken up = auf|wachen ist : *clock *animal
        fall/fell/fallen asleep = ein|schlafen schläft ist geschlafen : *animal *clock
        arrive = an|kommen ist gekommen : *clock *vehicle
        leave/left/left = ab|fahren fährt ist gefahren : *clock *vehicle
        come/came/come back = zurück|kommen ist gekommen : *clock
        have/had/had breakfast = frühstücken : *with *clock *place
        watch television = fern|sehen sieht gesehen : *with
        go/went/gone shopping = ein|kaufen : *with
        go/went/gone for a walk = spazieren_gehen ist gegangen : *with
        play football = Fußball_spielen : *with *place *well
        play the piano = Klavier_spielen : *with *well
        play the violin = Geige_spielen : *well
        play the guitar = Gitarre_spielen : *well
        play chess = Schach_spielen : *with *well
        ride/rode/ridden a bicycle = Rad_fahren fährt ist gefahren : *with
        hurry = sich beeilen
        rest = sich aus|ruhen : *place
        sit/sat/sat down = sich setzen
        catch/caught/caught a cold = sich erkälten : *event
        get/got/got dressed = sich an|ziehen gezogen
        relax = sich entspannen : *place""",
    "accusative": """
        read/-/read = lesen liest gelesen : reading *slow *place
        write/wrote/written = schreiben geschrieben : letter poem text story novel report message \
            article *for
        buy/bought/bought = kaufen : thing wear food vehicle furniture book newspaper magazine \
            dictionary house *for
        sell/sold/sold = verkaufen : thing wear vehicle furniture house book
        eat/ate/eaten = essen isst gegessen : food *animal *place
        drink/drank/drunk = trinken getrunken : drink *place
        see/saw/seen = sehen sieht gesehen : person kin animal vehicle castle film picture *state
        hear/heard/heard = hören : song child bird dog radio news *state
        love = lieben : person kin animal subject city garden *state
        know/knew/known = kennen gekannt : person kin song story film city museum *state
        visit = besuchen : person kin museum castle city village exhibition
        find/found/found = finden gefunden : thing wear book letter
        look for = suchen : thing wear book hotel
        lose/lost/lost = verlieren verloren : key bag umbrella hat ticket suitcase camera money \
            ball glove
        forget/forgot/forgotten = vergessen vergisst vergessen : key umbrella ticket word \
            question plan homework
        repair = reparieren : vehicle device chair clock door *quick
        clean = putzen : room window shoe door table house *quick
        wash = waschen wäscht gewaschen : coat shirt dress jacket skirt scarf glove trousers car dog
        carry = tragen trägt getragen : suitcase bag basket box parcel chair
        wear/wore/worn = tragen trägt getragen : wear
        open = öffnen : opening letter parcel bottle box suitcase *slow
        close = schließen geschlossen : opening box suitcase *slow
        understand/understood/understood = verstehen verstanden : reading question problem plan \
            idea *state
        learn/learnt/learnt = lernen : word song poem tongue
        speak/spoke/spoken = sprechen spricht gesprochen : tongue *well
        translate = übersetzen : reading *slow
        explain = erklären : word sentence problem plan idea exercise
        answer = beantworten : question letter message
        paint = malen : picture flower castle horse *new
        draw/drew/drawn = zeichnen : map animal house castle *new
        build/built/built = bauen : house boat bridge shelf table *for *new
        bake = backen gebacken : cake bread *for *new
        cook = kochen : soup egg potato rice vegetables *for
        invite = ein|laden lädt geladen : person kin
        call = an|rufen gerufen : person kin
        pick +up = ab|holen : person kin parcel
        meet/met/met = treffen trifft getroffen : person kin
        turn +on = ein|schalten : lamp computer radio television machine
        turn +off = aus|schalten : lamp computer radio television machine
        tidy +up = auf|räumen : room *quick
        put/-/put +on = an|ziehen gezogen : coat shirt dress shoe jacket skirt glove trousers
        take/took/taken +off = aus|ziehen gezogen : coat shirt dress shoe jacket skirt glove \
            trousers
        try/tried/tried +on = an|probieren : wear
        bring/brought/brought +along = mit|bringen gebracht : food drink gift umbrella camera friend
        return = zurück|geben gibt gegeben : thing book dictionary
        prepare = vor|bereiten : party trip lesson meeting exhibition
        look at = an|sehen sieht gesehen : picture photo map film
        have/had/had = haben : thing wear vehicle animal problem idea plan question brother \
            sister son *state *new
        need = brauchen : thing wear vehicle money dictionary furniture *state
        take/took/taken = nehmen nimmt genommen : bus train taxi umbrella key
        pay/paid/paid for = bezahlen : ticket taxi drink soup
        collect = sammeln : stamp stone picture map
        count = zählen : bird stamp stone cow money
        photograph = fotografieren : animal castle bridge ship
        feed/fed/fed = füttern : animal
        greet = grüßen : person kin
        praise = loben : person
        use = benutzen : device bicycle dictionary knife map""",
    "dative": """
        help = helfen hilft geholfen : person kin
        thank = danken : person kin
        follow = folgen ist : person
        listen to = zu|hören : person kin
        trust = vertrauen : person kin *state
        congratulate = gratulieren : person kin""",
    "ditransitive": """
        give/gave/given = geben gibt gegeben : thing wear food book letter
        show/showed/shown = zeigen : thing reading house garden
        send/sent/sent = schicken : letter parcel message photo report gift flower
        lend/lent/lent = leihen geliehen : car bicycle book umbrella money camera dictionary
        bring/brought/brought = bringen gebracht : food drink thing newspaper
        tell/told/told = erzählen : story news""",
    "dative-to": """
        explain = erklären : word sentence problem plan exercise
        recommend = empfehlen empfiehlt empfohlen : book film restaurant hotel museum
        return = zurück|geben gibt gegeben : thing book""",
    "prepositional": """
        wait for = warten : auf acc person kin bus train taxi letter
        think/thought/thought of = denken gedacht : an acc kin friend trip holiday exam money
        be/was/been interested in = sich interessieren : für acc subject film exhibition language
        look forward to = sich freuen : auf acc event
        be/was/been happy about = sich freuen : über acc gift letter news weather message
        remember = sich erinnern : an acc person trip song story
        be/was/been afraid of = sich fürchten : vor dat animal exam storm
        talk to = sprechen spricht gesprochen : mit dat person kin
        talk about = sprechen spricht gesprochen : über acc film plan problem subject weather book
        laugh about = lachen : über acc story film monkey
        dream of = träumen : von dat trip holiday house sea
        take/took/taken care of = sich kümmern : um acc kin guest cat dog horse garden
        complain about = sich beschweren : über acc weather soup food hotel neighbour
        take/took/taken part in = teil|nehmen nimmt genommen : an dat meeting game lesson exhibition
        ask for = bitten gebeten : um acc key money map
        look after = auf|passen : auf acc child dog cat suitcase bag
        prepare for = sich vor|bereiten : auf acc exam meeting concert trip
        get/got/got used to = sich gewöhnen : an acc dog city village colleague weather
        fall/fell/fallen in love with = sich verlieben : in acc person *event
        say/said/said goodbye to = sich verabschieden : von dat person kin
        play with = spielen : mit dat ball animal child""",
    "direction": """
        go/went/gone = gehen ist gegangen
        drive/drove/driven = fahren fährt ist gefahren
        run/ran/run = laufen läuft ist gelaufen
        come/came/come = kommen ist gekommen""",
    "journey": """
        travel = reisen ist gereist
        fly/flew/flown = fliegen ist geflogen
        move = ziehen ist gezogen""",
    "location": """
        live = wohnen : *state
        stay = bleiben ist geblieben
        sit/sat/sat = sitzen gesessen
        wait = warten
        work = arbeiten""",
    "position": """
        lie/lay/lain = liegen gelegen : reading wear key ticket map photo knife spoon fork pencil \
            *state""",
    "placing": """
        put/-/put = legen : reading wear key ticket map photo knife spoon fork pencil
        hide/hid/hidden = verstecken : gift money key letter ball""",
    "possession": """
        belong to = gehören : house car dog bicycle garden suitcase castle *state""",
    "pleasing": """
        like = gefallen gefällt gefallen : wear picture photo city film song house poem story \
            idea *state""",
    "that": """
        know/knew/known = wissen gewusst : *state
        believe = glauben : *state
        think/thought/thought = denken gedacht : *state
        hope = hoffen : *state
        say/said/said = sagen : *state
        hear/heard/heard = hören : *state
        be/was/been sure = sicher_sein ist gewesen : *state
        be/was/been happy = sich freuen : *state""",
    "question": """
        ask = fragen : *state
        know/knew/known = wissen gewusst : *state
        wonder = sich fragen : *state""",
    "infinitive": """
        try/tried/tried = versuchen
        promise = versprechen verspricht versprochen
        forget/forgot/forgotten = vergessen vergisst vergessen
        begin/began/begun = an|fangen fängt gefangen
        hope = hoffen : *state
        decide = beschließen beschlossen
        plan = planen""",
    "gerund": """
        stop = auf|hören""",
    "dative-infinitive": """
        help = helfen hilft geholfen
        allow = erlauben""",
    "accusative-infinitive": """
        ask = bitten gebeten
        invite = ein|laden lädt geladen
        persuade = überreden überredet
        force = zwingen gezwungen""",
    "measure": """
        cost/-/cost = kosten : *state""",
    "weather": """
        rain = regnen
        snow = schneien""",
    "copula": """
        be/was/been = sein ist gewesen : *state""",
}

# Fully irregular: present (ich, du, er, wir), then the preterite where it is the past tense. Other
# verbs have no preterite here, because their past is always translated by the perfect.
IRREGULAR = """
    sein bin bist ist sind war warst war waren
    haben habe hast hat haben hatte hattest hatte hatten
    wissen weiß weißt weiß wissen wusste wusstest wusste wussten
    werden werde wirst wird werden
    können kann kannst kann können konnte konntest konnte konnten
    müssen muss musst muss müssen musste musstest musste mussten
    wollen will willst will wollen wollte wolltest wollte wollten
    dürfen darf darfst darf dürfen durfte durftest durfte durften
    sollten sollte solltest sollte sollten
    möchten möchte möchtest möchte möchten"""

# English = German modal and tense. The English is an auxiliary, or a full verb such as "want",
# which needs do-support.
MODALS = """
    can/can = können present
    must/must = müssen present
    may/may = dürfen present
    should/should = sollten present
    would/would like to = möchten present
    want/wants to = wollen present
    like/likes to = gern present
    have/has to = müssen present
    could/could = können past
    wanted/wanted to = wollen past
    had/had to = müssen past"""

# Adjectives by the classes of nouns that they fit, to avoid "a clever table".

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

# Adjectives that fit certain nouns only, such as a high mountain and a deep lake, because the
# classes of these nouns would be too wide.
NOUN_ADJECTIVES = {
    "mountain": "high hoch:hoh höher höchst",
    "lake sea river": "deep tief",
    "river bridge": "wide breit",
    "girl boy man woman child": "tall groß größer größt",
    "bottle box bag suitcase basket cup": "empty! leer",
    "table mirror": "round! rund",
}

# Adverbials, degrees and values, each as `English = German`. They are whole phrases, because their
# prepositions can't be translated word by word.

# By the tense and the verb that they fit, because "yesterday" needs a past tense.
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

# By the class of verbs that they fit, to avoid "sleeps quickly".
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

# Regions, places and spots, and the names of persons, each with its own prepositions in both
# languages.

# English German: where, where to, where from. Two spaces, because the phrases contain single ones.
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

# English prepositions: where, where to; German: where (dative), where to and its case. By noun,
# because the choice can't be derived: "im Park", but "am Bahnhof" and "auf dem Markt".
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

# English and German preposition, with the dative for a place and the accusative for a direction.
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
