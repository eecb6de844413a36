"""MediaWiki exports of a few pages."""

import html

SITE_INFO = """<siteinfo><sitename>Wiki</sitename><case>first-letter</case><namespaces>
<namespace key="0" /><namespace key="1">Talk</namespace><namespace key="4">Project_page</namespace>
<namespace key="6">Файл</namespace><namespace key="14">Category</namespace></namespaces></siteinfo>"""


def page(title: str, text: str, number: int = 1, ns: str = "<ns>0</ns>", more: str = "") -> str:
    return (
        f"<page><title>{html.escape(title)}</title>{ns}<id>{number}</id>{more}<revision><id>999</id><contributor>"
        f"<username>U</username><id>888</id></contributor><text xml:space='preserve'>{html.escape(text)}</text>"
        f"<sha1>x</sha1></revision></page>\n"
    )


def export(*pages: str, info: str = SITE_INFO) -> str:
    return (
        f"<mediawiki xmlns='http://www.mediawiki.org/xml/export-0.10/' xml:lang='en'>{info}{''.join(pages)}</mediawiki>"
    )
