"""The vocabulary of MediaWiki and of its editors: names of namespaces, wikis, tags, templates and sections."""

import re
import unicodedata
from collections.abc import Mapping


def _words(text: str, separator: str | None = None) -> frozenset[str]:
    return frozenset(text.split(separator))


# English names are understood by every wiki, whatever it calls its namespaces. The Chinese and the Japanese one go by
# these in their exports, and their pages have others.
HIDDEN_NAMESPACES = _words("file image category 分类 分類 文件 档案 檔案 图像 圖像 カテゴリ 画像")
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

# What other wikis than the English one call a disambiguation, in a template or behind a title.
_AMBIGUOUS = (
    "begriffsklärung|homonymie|desambiguación|desambiguação|desambiguació|desambig|disambigua|disambiguasi|dp"
    "|doorverwijspagina|ujednoznacznienie|förgrening|flertydig|peker|täsmennyssivu"
    "|rozcestník|egyért|egyértelműsítő lap|dezambiguizare|anlam ayrımı|định hướng|trang định hướng|αποσαφήνιση"
    "|неоднозначность|неоднозначність|пояснение|פירושונים|توضيح|صفحة توضيح|ابهام‌زدایی"
    "|बहुविकल्पी|बहुविकल्पी शब्द|দ্ব্যর্থতা নিরসন|aimai|曖昧さ回避|消歧义|消歧義|消歧义页|消歧義頁|동음이의"
)
DISAMBIGUATION = re.compile(
    r"\{\{\s*+(?:[\w -]{0,40}?disambig(?:uation)?(?:[ -]cleanup| page)?|[\w -]{0,20}?(?:hn|geo-?|num|school|church|road"
    r"|station|hospital|callsign|mil-unit-)dis(?:-cleanup)?|disamb|dab|dis|mathdab|4cc|"
    rf"{_AMBIGUOUS})\s*[|}}]",
    re.IGNORECASE,
)
DISAMBIGUATION_TITLE = re.compile(
    rf"\((?:disambiguation|olika betydelser|andre betydninger|значения|значення|{_AMBIGUOUS})\)$", re.IGNORECASE
)
LIST_TITLE = re.compile(
    r"(?:lists? of|index of|outline of|списък на|списък с|liste? (?:der|des|von|de)|lista (?:de|di|över)|lijst van"
    r"|список) |.*(?:列表|一覧|목록)$",
    re.IGNORECASE,
)

# Sections that point elsewhere rather than say something, by language.
_POINTERS = {
    "en": "see also|references|external links|external link|further reading|bibliography|citations|endnotes|works cited"
    "|links|other websites|related pages|more reading|references and sources|references and further reading",
    "ar": "انظر أيضا|انظر أيضًا|مراجع|المراجع|مصادر|المصادر|وصلات خارجية|روابط خارجية|قراءات إضافية|المراجع والمصادر",
    "bg": "вижте също|виж също|външни препратки|цитирани източници|библиография|препратки|допълнителна литература",
    "bn": "আরও দেখুন|তথ্যসূত্র|বহিঃসংযোগ|গ্রন্থপঞ্জি|আরও পড়ুন|আরো দেখুন|আরো পড়ুন",
    "ca": "vegeu també|referències|enllaços externs|bibliografia|bibliografia addicional|vegi's també",
    "cs": "související články|reference|externí odkazy|odkazy|další četba|bibliografie",
    "da": "se også|referencer|eksterne henvisninger|eksterne links|henvisninger|videre læsning|kilder og henvisninger",
    "de": "siehe auch|einzelnachweise|weblinks|weiterführende literatur|nachweise|belege|externe links",
    "el": "δείτε επίσης|παραπομπές|εξωτερικοί σύνδεσμοι|βιβλιογραφία|περαιτέρω ανάγνωση|εξωτερικές συνδέσεις",
    "es": "véase también|referencias|enlaces externos|bibliografía|bibliografía adicional|lecturas adicionales",
    "fa": "جستارهای وابسته|منابع|پیوند به بیرون|پانویس|برای مطالعه بیشتر|کتاب‌شناسی|ارجاعات",
    "fi": "katso myös|viitteet|aiheesta muualla|ulkoiset linkit|lähteet ja viitteet|aiheesta lisää",
    "fr": "voir aussi|références|liens externes|bibliographie|articles connexes|notes et références|lien externe"
    "|annexes|lectures complémentaires",
    "he": "ראו גם|הערות שוליים|קישורים חיצוניים|לקריאה נוספת|מקורות והערות",
    "hi": "इन्हें भी देखें|सन्दर्भ|संदर्भ|बाहरी कड़ियाँ|बाहरी कड़ियां|ग्रंथसूची|यह भी देखें",
    "hu": "kapcsolódó szócikkek|hivatkozások|külső hivatkozások|további információk|lásd még|további irodalom",
    "id": "lihat pula|lihat juga|referensi|pranala luar|bacaan lanjutan|bacaan lebih lanjut|daftar pustaka|rujukan",
    "it": "voci correlate|collegamenti esterni|altri progetti|riferimenti|bibliografia|note e riferimenti",
    "ja": "関連項目|外部リンク|参考文献|出典|脚注|関連文献|関連書籍|関連資料|参照|脚註|注釈・出典|脚注・出典",
    "ko": "같이 보기|각주|외부 링크|참고 문헌|참고문헌|참고 자료|바깥 고리|출처|함께 보기",
    "nl": "zie ook|referenties|externe links|externe link|externe koppelingen|verder lezen|verwijzingen|bronvermelding",
    "no": "se også|referanser|eksterne lenker|litteraturliste|videre lesning|eksterne lenkjer|sjå òg|referansar",
    "pl": "zobacz też|przypisy|linki zewnętrzne|bibliografia|uwagi i przypisy",
    "pt": "ver também|referências|ligações externas|ligação externa|bibliografia|leitura adicional"
    "|leitura complementar",
    "ro": "vezi și|vezi şi|referințe|referinţe|legături externe|bibliografie|lectură suplimentară",
    "ru": "см. также|примечания|ссылки|сноски|библиография|дополнительная литература|внешние ссылки|см.также",
    "sv": "se även|referenser|externa länkar|vidare läsning|noter och referenser|fotnoter",
    "tr": "ayrıca bakınız|kaynakça|dış bağlantılar|konuyla ilgili yayınlar|daha fazla okuma|ayrıca bakın",
    "uk": "див. також|примітки|посилання|виноски|бібліографія|зовнішні посилання|додаткова література",
    "vi": "xem thêm|tham khảo|liên kết ngoài|chú thích|đọc thêm|thư mục",
    "zh": "参见|參見|参看|參看|参考文献|參考文獻|外部链接|外部連結|外部連接|参考资料|參考資料|延伸阅读|延伸閱讀"
    "|脚注|腳註|相关条目|相關條目|参考来源|參考來源",
}
# Those that hold pointers or prose: notes, sources, and literature, which may be that of a country.
_NOTES = {
    "en": "notes|sources|footnotes|notes and references|references and notes|sources and references"
    "|notes and citations",
    "ar": "ملاحظات|هوامش",
    "bg": "бележки|източници|бележки и източници|източници и бележки",
    "bn": "টীকা|পাদটীকা",
    "ca": "notes|fonts|notes i referències",
    "cs": "poznámky|zdroje|literatura",
    "da": "noter|kilder|litteratur",
    "de": "anmerkungen|quellen|literatur|fußnoten|anmerkungen und einzelnachweise",
    "el": "σημειώσεις|πηγές|υποσημειώσεις",
    "es": "notas|fuentes|notas y referencias|literatura",
    "fa": "یادداشت‌ها|یادداشت|پی‌نوشت",
    "fi": "huomautukset|lähteet|kirjallisuutta|kirjallisuus",
    "fr": "notes|sources|littérature",
    "he": "הערות|מקורות|ביאורים",
    "hi": "टिप्पणियाँ|टिप्पणी|स्रोत",
    "hu": "jegyzetek|források|irodalom|megjegyzések",
    "id": "catatan|catatan kaki|sumber",
    "it": "note|fonti|letteratura",
    "ja": "注釈|注|備考|資料",
    "ko": "주석|주해|내용주",
    "nl": "noten|bronnen|voetnoten|literatuur|bronnen, noten en/of referenties",
    "no": "noter|kilder|litteratur|fotnoter",
    "pl": "uwagi|źródła|literatura",
    "pt": "notas|fontes|notas e referências|literatura",
    "ro": "note|surse|note și referințe|literatură",
    "ru": "источники|литература|комментарии",
    "sv": "noter|källor|litteratur",
    "tr": "notlar|kaynaklar|dipnotlar",
    "uk": "джерела|література|коментарі",
    "vi": "ghi chú|nguồn|chú giải",
    "zh": "注释|註釋|注解|註解|备注|備註|资料来源|資料來源",
}


def _titles(by_language: Mapping[str, str]) -> frozenset[str]:
    """As a heading is compared: in the composed form, and without case."""
    return _words(unicodedata.normalize("NFC", "|".join(by_language.values())).casefold(), "|")


NOTE_SECTIONS = _titles(_NOTES)
BOILERPLATE_SECTIONS = _titles(_POINTERS) | NOTE_SECTIONS
# What a work that is cited has: a year in brackets, a page, a number of a book, an address, a day of reading.
CITATION = re.compile(
    r"\((?:[^()]{0,30}\D)?(?:1[5-9]|20)\d\d[a-z]?\)|\b(?:pp?|vol|ed|eds|S|с)\. ?\d|\b(?:ISBN|ISSN|doi|OCLC)\b"
    r"|https?://|\bRetrieved\b"
)
