"""Verbs by frame, irregular forms and modal verbs."""

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

# Fully irregular: present (ich, du, er, wir), then the preterite where it is the past tense.
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

# English = German modal and tense. The English is an auxiliary, or a full verb such as "want".
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
