"""Nouns by class."""

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
