"""The vocabulary of MediaWiki and of its editors: names of namespaces, wikis, tags, templates and sections."""

import re


def _words(text: str, separator: str | None = None) -> frozenset[str]:
    return frozenset(text.split(separator))


# English names are understood by every wiki, whatever it calls its namespaces.
HIDDEN_NAMESPACES = frozenset({"file", "image", "category"})
NAMESPACES = HIDDEN_NAMESPACES | {"media", "special", "talk", "timedtext"}
NAMESPACES |= {
    name + talk
    for name in _words("user wikipedia wp project file image mediawiki template help category portal book draft module")
    for talk in ("", " talk")
}
# Old names of a wiki's file namespace are not in its export, but what they point to has the name of a file.
FILE = re.compile(r"[^:]+:.+\.(?:jpe?g|png|svg|gif|tiff?|webp|og[gav]|webm|pdf|djvu)$", re.IGNORECASE)

PROJECTS = _words(
    "w wikt wiktionary s wikisource q wikiquote b wikibooks n wikinews v wikiversity voy wikivoyage c commons m meta"
    " metawikipedia d wikidata species wikispecies mw mediawikiwiki wmf foundation incubator phab bugzilla"
)
LANGUAGES = _words(
    "aa ab ace ady af ak als alt am ami an ang anp ar arc ary arz as ast atj av avk awa ay az azb ba ban bar"
    " bat-smg bbc bcl be be-tarask be-x-old bew bg bh bi bjn blk bm bn bo bpy br bs btm bug bxr ca cbk-zam cdo ce"
    " ceb ch cho chr chy ckb co cr crh cs csb cu cv cy da dag de dga din diq dsb dtp dty dv dz ee el eml en eo es et"
    " eu ext fa fat ff fi fiu-vro fj fo fon fr frp frr fur fy ga gag gan gcr gd gl glk gn gom gor got gpe gsw gu guc"
    " gur guw gv ha hak haw he hi hif ho hr hsb ht hu hy hyw hz ia iba id ie ig igl ii ik ilo inh io is it iu ja jam"
    " jbo jv ka kaa kab kbd kbp kcg kg kge ki kj kk kl km kn knc ko koi kr krc ks ksh ku kus kv kw ky la lad lb lbe"
    " lez lfn lg li lij lld lmo ln lo lrc lt ltg lv lzh mad mai map-bms mdf mg mh mhr mi min mk ml mn mni mnw mo mos"
    " mr mrj ms mt mus mwl my myv mzn na nah nan nap nb nds nds-nl ne new ng nia nl nn no nov nqo nr nrm nso nup nv"
    " ny oc olo om or os pa pag pam pap pcd pcm pdc pfl pi pih pl pms pnb pnt ps pt pwn qu rm rmy rn ro roa-rup"
    " roa-tara rsk ru rue rup rw sa sah sat sc scn sco sd se sg sgs sh shi shn si simple sk skr sl sm smn sn so sq"
    " sr srn ss st stq su sv sw syl szl szy ta tay tcy tdd te tet tg th ti tk tl tly tn to tpi tr trv ts tt tum tw"
    " ty tyv udm ug uk ur uz ve vec vep vi vls vo vro wa war wo wuu xal xh xmf yi yo yue za zea zgh zh zh-classical"
    " zh-min-nan zh-yue zu"
)

# Tags whose content is no running text.
DROPPED_TAGS = _words(
    "ref references math chem ce gallery timeline syntaxhighlight source score hiero imagemap graph mapframe maplink"
    " templatedata templatestyles inputbox categorytree includeonly table style script pre"
)
BLOCK_TAGS = _words("p div blockquote center ul ol li dl dt dd hr h1 h2 h3 h4 h5 h6 poem tr td th caption thead tbody")
INLINE_TAGS = _words(
    "abbr b bdi bdo big br cite code data del dfn em font i indicator ins kbd mark noinclude nowiki onlyinclude q rb rp"
    " rt rtc ruby s samp section small span strike strong sub sup time translate tt u var wbr"
)

# Templates that stand for words of a sentence; {1} is the first unnamed parameter. All others show nothing.
SHOWN_TEMPLATES = {
    **dict.fromkeys(
        _words("nowrap nobr nihongo small smaller big larger sc smallcaps val abbr vanchor em strong"), "{1}"
    ),
    **dict.fromkeys(("visible anchor", "not a typo", "sic", "flag", "flagcountry", "sup", "sub", "okina"), "{1}"),
    **dict.fromkeys(("lang", "rtl-lang"), "{2}"),
    **dict.fromkeys(("transl", "transliteration"), "{last}"),
    "harvtxt": "{1} ({last})",
    **dict.fromkeys(("quote", "blockquote", "cquote", "quotation", "poemquote", "poem quote"), "\n\n{1}\n\n"),
    **dict.fromkeys(("circa", "c.", "ca."), "c. {1}"),
    **dict.fromkeys(("frac", "sfrac"), "{1}/{2}"),
    **dict.fromkeys(("snd", "spnd", "spaced ndash", "spaced en dash", "dash"), " – "),
    **dict.fromkeys(("mdash", "em dash", "mdashb"), "—"),
    **dict.fromkeys(("nbsp", "space", "thinsp", "spaces"), " "),
    "ndash": "–",
    "as of": "As of {1}",
    "angbr": "⟨{1}⟩",
    "'s": "'s",
    "'": "'",
    "=": "=",
}
MEASURES = frozenset({"convert", "cvt"})
MEASURE_WORDS = _words("to and or by x × - – +/- ± , *")

DISAMBIGUATION = re.compile(
    r"\{\{\s*+(?:[\w -]{0,40}?disambig(?:uation)?(?:[ -]cleanup| page)?|[\w -]{0,20}?(?:hn|geo-?|num|school|church|road"
    r"|station|hospital|callsign|mil-unit-)dis(?:-cleanup)?|disamb|dab|dis|mathdab|4cc|пояснение)\s*[|}]",
    re.IGNORECASE,
)
DISAMBIGUATION_TITLE = re.compile(r"\((?:disambiguation|пояснение)\)$", re.IGNORECASE)
LIST_TITLE = re.compile(r"(?:lists? of|index of|outline of|списък на|списък с) ", re.IGNORECASE)

# Sections that point elsewhere rather than say something.
BOILERPLATE_SECTIONS = _words(
    "see also|references|external links|external link|notes|further reading|bibliography|sources|footnotes|citations"
    "|endnotes|works cited|links|other websites|related pages|more reading|notes and references"
    "|references and notes|references and sources|sources and references|references and further reading"
    "|notes and citations|вижте също|виж също|външни препратки|източници|бележки|бележки и източници"
    "|източници и бележки|цитирани източници|библиография|препратки|допълнителна литература",
    "|",
)
