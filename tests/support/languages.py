"""Some 200 lines of many scripts, and of what tokenizers stumble over."""

import unicodedata

_LINES = """\
The quick brown fox jumps over the lazy dog.
Où est la bibliothèque ? Là-bas, près de l'église.
Der Straßenbahnfahrer grüßt über die Brücke.
El niño añadió piñones y jalapeños.
Příliš žluťoučký kůň úpěl ďábelské ódy.
Zażółć gęślą jaźń
Việt Nam có nhiều món ăn ngon
İstanbul'da ışıklı geceler
Þórður og Ægir, Ísland
naïve façade, coöperate
Ο γρήγορος αλεπού πηδά πάνω από τον σκύλο.
ΑΘΗΝΑ και Θεσσαλονίκη
Ἐν ἀρχῇ ἦν ὁ λόγος
Съешь ещё этих мягких французских булок
Привет, мир! Как дела?
Київ і Львів, об'єднання
Ђорђе Њујорк Љубљана
مرحبا بالعالم
السَّلامُ عَلَيْكُمْ
كيف حالك اليوم؟ ١٢٣
فارسی: کتاب‌خانه
שלום עולם
בְּרֵאשִׁית בָּרָא אֱלֹהִים
אב"ג 12:30
नमस्ते दुनिया
क्षत्रिय ज्ञान श्री
हिन्दी में १२३ अंक
বাংলা ভাষা
தமிழ் மொழி
สวัสดีชาวโลก
กรุงเทพมหานคร ๑๒๓
ภาษาไทยไม่มีช่องว่าง
你好，世界！
我爱北京天安门，天安门上太阳升。
漢字與繁體中文
中文English混排123
今日は世界
東京タワーは高いです。
カタカナとひらがな
ｶﾀｶﾅ ﾊﾝｶｸ
안녕하세요 세계
한국어 형태소 분석
대한민국 서울특별시 1234
👋🏽 hello 🌍
👩‍👩‍👧‍👦 family
🏳️‍🌈 and 🇩🇪🇫🇷
❤️🔥✨ 1️⃣2️⃣
👨🏿‍💻 codes
0 1 2 10 100 1000 1234567890
3.14159, 1,000,000 and -42
2024-02-29T23:59:59Z
+49 (30) 123-456
½ ⅓ x² H₂O ①②③ Ⅷ
def f(x): return x**2 + 1
for (int i = 0; i < n; ++i) { a[i] += b[i]; }
<div class="x">a &amp; b</div>
SELECT * FROM t WHERE a != 'b';
if __name__ == "__main__":
https://example.org/a/b?c=d&e=%20#f
user@example.com @handle #tag
C:\\Users\\x\\file.txt ~/.bashrc
don't can't I'll we've they're it's
DON'T SHOUT
snake_case camelCase PascalCase kebab-case
... --- ___ *** !!! ???
“curly” ‘quotes’ „low“ «guillemets» — – …
ﬁne ﬂow ﬀ ofﬁce
Ａｆｕｌｌ　ｗｉｄｔｈ
a\u00adb soft\u00ad hyphen
zero\u200bwidth\u200djoin \ufeffmark
a\u00a0b no\u202fbreak \u3000wide
\ufffd replaced \ufffd\ufffd
x\u0300\u0301\u0302 stacked
i\u0307 İ ı I
\u1e9b\u0323 long s
ǅ Ǉ ß ẞ ſ
\U0001d54f \U0001d4d0 math
\U00020000\U0002a6d6 rare
\U000f0000 private \ue000
Query:what
Instruct: Given a web search query\\nQuery:what is love
task: search result | query: zebras
title: none | text: zebras graze
passage: foo
[CLS] a [SEP] b [MASK] c [UNK] [PAD]
<s> a </s> b <pad> <mask> <unk>
<bos> a <eos> b
a <|endoftext|> b <|im_end|> c
</s></s> <s><s>
[SEP [CLS [ MASK ]
▁under ▁ ▁▁ line
Ġtoken Ċ ĉ
<0x0A> <0x41>
"""
_ODD = ["", " ", "  ", "\t", "\n", "\r\n", "a", ".", "é", "中", "👍", "\x00", "a\x00b", "\x7f\x85"]
_ODD += [
    "  leading",
    "trailing  ",
    "double  spaces   three",
    "\ttab\tbed\t",
    "line\nbreak\n\nparagraph\n",
    "\r\nwindows\r\n",
]
_ODD += [
    "    indented code:\n        more\n",
    "a \n b",
    " \n ",
    "\u2028line\u2029paragraph",
    "x" * 300,
    "ab " * 60,
    "1" * 40,
]


def lines():
    """The lines; also decomposed, behind spaces, and in capital letters."""
    written = _LINES.splitlines()
    decomposed = [unicodedata.normalize("NFD", line) for line in written]
    changed = [f"  {line}" for line in written[::2]] + [line.upper() for line in written[1::4]]
    return list(dict.fromkeys([*written, *_ODD, *(line for line in decomposed if line not in written), *changed]))
