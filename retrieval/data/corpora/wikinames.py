"""The vocabulary of MediaWiki and of its editors: names of namespaces, tags, templates and sections."""

import re
import unicodedata


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# English names are understood by every wiki, whatever it calls its namespaces. The Chinese and the Japanese one go by
# these in their exports, and their pages have others.
HIDDEN_NAMESPACES = _words("file image category 分类 分類 文件 档案 檔案 图像 圖像 カテゴリ 画像")
# Old names of a wiki's file namespace are not in its export, but what they point to has the name of a file.
FILE = re.compile(r"[^:]+:.+\.(?:jpe?g|png|svg|gif|tiff?|webp|og[gav]|webm|pdf|djvu)$", re.IGNORECASE)
# The page of another language, as old dumps list them at the end.
LANGUAGE_LINK = re.compile(r"(?:[a-z]{2,3}(?:-[a-z-]{2,12})?|simple):\S.*")

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
    "en": "see also|references|external links|external link|further reading|bibliography|citations|endnotes"
    "|works cited|links|other websites|related pages|more reading|references and sources"
    "|references and further reading|notes|sources|footnotes|notes and references|references and notes"
    "|sources and references|notes and citations",
    "ar": "انظر أيضا|انظر أيضًا|مراجع|المراجع|مصادر|المصادر|وصلات خارجية|روابط خارجية|قراءات إضافية|المراجع والمصادر"
    "|ملاحظات|هوامش",
    "bg": "вижте също|виж също|външни препратки|цитирани източници|библиография|препратки|допълнителна литература"
    "|бележки|източници|бележки и източници|източници и бележки",
    "bn": "আরও দেখুন|তথ্যসূত্র|বহিঃসংযোগ|গ্রন্থপঞ্জি|আরও পড়ুন|আরো দেখুন|আরো পড়ুন|টীকা|পাদটীকা",
    "ca": "vegeu també|referències|enllaços externs|bibliografia|bibliografia addicional|vegi's també|notes|fonts"
    "|notes i referències",
    "cs": "související články|reference|externí odkazy|odkazy|další četba|bibliografie|poznámky|zdroje",
    "da": "se også|referencer|eksterne henvisninger|eksterne links|henvisninger|videre læsning|kilder og henvisninger"
    "|noter|kilder",
    "de": "siehe auch|einzelnachweise|weblinks|weiterführende literatur|nachweise|belege|externe links|anmerkungen"
    "|quellen|literatur|fußnoten|anmerkungen und einzelnachweise",
    "el": "δείτε επίσης|παραπομπές|εξωτερικοί σύνδεσμοι|βιβλιογραφία|περαιτέρω ανάγνωση|εξωτερικές συνδέσεις"
    "|σημειώσεις|πηγές|υποσημειώσεις",
    "es": "véase también|referencias|enlaces externos|bibliografía|bibliografía adicional|lecturas adicionales|notas"
    "|fuentes|notas y referencias",
    "fa": "جستارهای وابسته|منابع|پیوند به بیرون|پانویس|برای مطالعه بیشتر|کتاب‌شناسی|ارجاعات|یادداشت‌ها|یادداشت|پی‌نوشت",
    "fi": "katso myös|viitteet|aiheesta muualla|ulkoiset linkit|lähteet ja viitteet|aiheesta lisää|huomautukset"
    "|lähteet",
    "fr": "voir aussi|références|liens externes|bibliographie|articles connexes|notes et références|lien externe"
    "|annexes|lectures complémentaires|notes|sources",
    "he": "ראו גם|הערות שוליים|קישורים חיצוניים|לקריאה נוספת|מקורות והערות|הערות|מקורות|ביאורים",
    "hi": "इन्हें भी देखें|सन्दर्भ|संदर्भ|बाहरी कड़ियाँ|बाहरी कड़ियां|ग्रंथसूची|यह भी देखें|टिप्पणियाँ|टिप्पणी|स्रोत",
    "hu": "kapcsolódó szócikkek|hivatkozások|külső hivatkozások|további információk|lásd még|további irodalom"
    "|jegyzetek|források|megjegyzések",
    "id": "lihat pula|lihat juga|referensi|pranala luar|bacaan lanjutan|bacaan lebih lanjut|daftar pustaka|rujukan"
    "|catatan|catatan kaki|sumber",
    "it": "voci correlate|collegamenti esterni|altri progetti|riferimenti|bibliografia|note e riferimenti|note|fonti",
    "ja": "関連項目|外部リンク|参考文献|出典|脚注|関連文献|関連書籍|関連資料|参照|脚註|注釈・出典|脚注・出典|注釈|注",
    "ko": "같이 보기|각주|외부 링크|참고 문헌|참고문헌|참고 자료|바깥 고리|출처|함께 보기|주석|주해|내용주",
    "nl": "zie ook|referenties|externe links|externe link|externe koppelingen|verder lezen|verwijzingen"
    "|bronvermelding|noten|bronnen|voetnoten|bronnen, noten en/of referenties",
    "no": "se også|referanser|eksterne lenker|litteraturliste|videre lesning|eksterne lenkjer|sjå òg|referansar|noter"
    "|kilder|fotnoter",
    "pl": "zobacz też|przypisy|linki zewnętrzne|bibliografia|uwagi i przypisy|uwagi|źródła",
    "pt": "ver também|referências|ligações externas|ligação externa|bibliografia|leitura adicional"
    "|leitura complementar|notas|fontes|notas e referências",
    "ro": "vezi și|vezi şi|referințe|referinţe|legături externe|bibliografie|lectură suplimentară|note|surse"
    "|note și referințe",
    "ru": "см. также|примечания|ссылки|сноски|библиография|дополнительная литература|внешние ссылки|см.также|источники",
    "sv": "se även|referenser|externa länkar|vidare läsning|noter och referenser|fotnoter|noter|källor",
    "tr": "ayrıca bakınız|kaynakça|dış bağlantılar|konuyla ilgili yayınlar|daha fazla okuma|ayrıca bakın|notlar"
    "|kaynaklar|dipnotlar",
    "uk": "див. також|примітки|посилання|виноски|бібліографія|зовнішні посилання|додаткова література|джерела",
    "vi": "xem thêm|tham khảo|liên kết ngoài|chú thích|đọc thêm|thư mục|ghi chú|nguồn|chú giải",
    "zh": "参见|參見|参看|參看|参考文献|參考文獻|外部链接|外部連結|外部連接|参考资料|參考資料|延伸阅读|延伸閱讀"
    "|脚注|腳註|相关条目|相關條目|参考来源|參考來源|注释|註釋|注解|註解|资料来源|資料來源",
}

# As a heading is compared: in the composed form, and without case.
BOILERPLATE_SECTIONS = frozenset(unicodedata.normalize("NFC", "|".join(_POINTERS.values())).casefold().split("|"))
