"""Sentence breaks against hand-made and hand-counted passages, odd text and hostile text."""

import itertools
import random
import time

import pytest

from retrieval.data.corpora.sentences import split

# '|' marks where sentences are to be broken; every break replaces one space.
PASSAGES = [
    "It rained.|The match was off!|Who had known?|Nobody.",
    "It was 3.5 km long. and had v1.2.3 of it.|Version 2.0 came later.",
    # titles and initials
    "Dr. Smith met Mr. and Mrs. Jones.|Gen. Lee left with Prof. J. R. R. Tolkien and H. G. Wells.",
    "St. Paul lies near Mt. Rainier, not on Main St.|The road goes on.",
    "He was Sammy Davis Jr. Fans knew.|Her brother was Robert Sr.|He left.",
    # abbreviations
    "The U.S. Army left the U.S.|The army of the U.K. Parliament stayed.",
    "She holds a Ph.D. from Yale and an M.Sc. Degree.|They met at 6 p.m. Eastern Time.",
    "Fruit, e.g. Apples, i.e. Pomes, vs. Nuts, are healthy, cf. Brown.|Roe v. Wade was heard in Dec. 1971.",
    "He left in Jan.|It was cold.",
    # what a number follows
    "See No. 5, Vol. 12, Sec. IV, Fig. 3, pp. 5 and Op. 27.|Chapters follow.|The answer was no.|He left.",
    "As in Smith et al. (2005) and Brown et al. 2001, it holds.|So said Smith et al.|Others agreed.",
    "Wu (d. AD 92) and Li (fl. 1066, lit. Plum) wrote it (Ecl. 2; a.k.a. Purple).",
    # quotes and brackets
    'He said "Stop."|Then he left.',
    "She asked, “Why?”|“Because,” he said.|‘No.’|(It was late.)|[Nobody came.]",
    "They (the U.S. Army) won (in 1945).|The war (1939–1945) was over.",
    # citation marks
    "It fell.[1][2]|The rest stood.[citation needed]|All of it, some[who?] say.|The wall,[which?] Berlin's, too.",
    # ellipses
    "Well...|Maybe not... or so.|Who knows?!|Nobody…|He left.",
    # numbers of a list
    "1. Take an egg.|2. Boil it.|It takes 8.|Enjoy.",
    # other letters
    "Με συγχωρείτε· πού είναι;|Τις Κυριακές δε δούλευε; ναι;|Κανένας.",
    # titles without capitals
    "ذهب د. أحمد مع أ.د. عمر إلى المدرسة.|وصل الساعة 3.5 مساء!|هل رأيته؟",
    "डॉ. शर्मा और प्रो. वर्मा आए।|वे 2.5 बजे गए।|क्यों?|पता नहीं!",
]
# As above, but nothing stands where '|' does.
UNSPACED = [
    "犬は庭にいる。|猫は家にいる！|鳥はどこか？|それは「ここだ。」と言った。|「帰る。」|彼は去った。",
    "『走れ！』の作者は彼だ。|１．５キロある。|（雨だった。晴れもした。）|人口は多い．|面積は広い。",
    "他說：「好。」|她笑了｡|真的?|是的!|完了……沒有。",
    "कुत्ता घर में है।|बिल्ली बाहर है।|१॥ पक्षी कहाँ है?",
    "کتا گھر میں ہے۔|بلی باہر ہے۔|پرندہ کہاں ہے؟|وہ (؟) گیا۔",
    "शुभं भवतु॥|ሰላም ነው።|እንዴት ነህ፧|သူလာသည်။|他是「醫生」。[1][2]|她不是。",
]
# Without capitals, with one space for '|', and long enough to tell.
ONE_CASE = [
    "the results are in table 3.|the flow, e.g. of air, is slow.|dr. smith of st. paul saw fig. 2 and no. 5 of the u.s."
    " army.|was it so?|yes.|he left the u.s.|they came at 6 p.m. eastern time.|i think I know, and I'm sure of it.|20"
    " years later it rose, and then it fell again.",
    "THE RESULTS ARE IN.|THE FLOW, E.G. OF AIR, IS SLOW AND DR. SMITH OF ST. PAUL SAW IT AT LAST.|WAS IT SO?|YES."
    "|HE LEFT THE U.S.|THEY CAME AT NIGHT, FROM WHERE THE ROAD ENDS, AND STAYED UNTIL THE MORNING."
    "|NOBODY KNEW WHAT THEY WANTED, OR WHO HAD SENT THEM.",
    "هل أنت هنا؟|نعم، أنا في البيت مع أخي وأختي.|ذهبنا إلى السوق يوم الخميس، واشترينا الخبز واللحم والفاكهة، ثم"
    " رجعنا إلى البيت قبل الغروب.|قال لي: أهلا!|وبقينا نتحدث ساعة طويلة عن السفر والعمل والكتب التي قرأناها.",
]
OTHER_LANGUAGES = [
    "Роман написал А. С. Пушкин в 1833 году.|Он был поэтом.|Много витамина С.|Он полезен.",
    "Он родился в г. Москва в 1900 г.|Потом он жил на ул. Мира, т. е. Рядом с ним жил проф. Иванов.",
    "Тя умира през 4 г. пр. н. е.|Епохата започва.|Художници, лекари и т.н.|Няма други.",
    "Am 3. Mai 1900 kam er nach z. B. Berlin.|Dort blieb er.|Er wurde 78.|Er starb 1945.",
    "Im 19. Jahrhundert lebte Dr. h. c. Müller in Nr. 5 u. a. Häusern.|Sie kam nach ihm.",
    "M. Dupont aime Mme. Curie.|Ils vont à St. Denis.|É. Zola écrit.",
    "El Sr. García y la Sra. López viven en EE. UU. con J. Á. Pérez.|Según ella, es así.",
    "Ł. Kowalski zna prof. Nowak i J. Å. Öberg.|Oni są tu.",
    # what an English text has of these
    "It opened on August 11.|August was hot.|The choice is a.|Then look at the egg. b.|Choose it.",
]


@pytest.mark.parametrize("passage", [*PASSAGES, *OTHER_LANGUAGES, *ONE_CASE, *UNSPACED])
def test_breaks_where_a_reader_would(passage):
    text = passage.replace("|", "" if passage in UNSPACED else " ")
    assert [text[start:end] for start, end in split(text)] == [part.strip() for part in passage.split("|")]


def test_unmarked_speech_is_cut_at_lines():
    words = [f"word{number}" for number in range(1000)]
    lines = [" ".join(words[:30]), " ".join(words[30:60]), " ".join(words[60:])]
    text = "\n".join(lines)
    found = [text[start:end] for start, end in split(text)]
    assert found[:2] == lines[:2]
    assert " ".join(found[2:]) == lines[2] and {len(window.split()) for window in found[2:]} == {23, 24}


def test_a_marked_long_sentence_is_one_within_a_bound():
    text = "It " + "goes on and on, " * 90 + "until the End."
    assert len(split(text)) == 1 and len(split(text.replace(".", ", ") * 4)) > 10


def test_spans_cover_all_but_white_space_of_any_text():
    rng = random.Random(0)
    pieces = [*"。？।（）」のไี", *".?![]()\"'”’“ \n\t\u00a0…\u0301\x1f", *"Ab5É中😀", "The", "Dr", "U.S", "[1]", "  "]
    for _ in range(5000):
        text = "".join(rng.choices(pieces, k=rng.randrange(30)))
        spans = split(text)
        outside = text
        for start, end in reversed(spans):
            assert text[start:end] and text[start:end] == text[start:end].strip(), (text, spans)
            outside = outside[:start] + outside[end:]
        assert not outside.strip(), (text, spans)
        assert spans == sorted(spans)
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(spans)), (text, spans)


HOSTILE = {
    "dots and spaces": ". " * 100_000,
    "one word": "a" * 1_000_000,
    "initials": "A. " * 60_000,
    "a long gap": "......))))))" + " " * 1_000_000,
    "open marks": (".[" + "a" * 29) * 10_000,
    "marks": "." + "[a]" * 100_000,
    "stops in brackets": "あ(。" * 100_000,
    "endless lines": "a b\n" * 100_000,
    "vowel signs": "\u0e34" * 200_000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_takes_linear_time(name):
    start = time.process_time()
    split(HOSTILE[name])
    assert time.process_time() - start < 2
