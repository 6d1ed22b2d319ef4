"""Parse a document that has one section for each difference."""

import re


def sections(text: str) -> dict[str, dict[str, str]]:
    """Return the labelled items in each section whose heading is a name in backticks.

    A section is a heading and a list: ``- why: it is simpler.``
    """
    found = {}
    for part in re.split(r"^##+ ", text, flags=re.MULTILINE)[1:]:
        title, _, body = part.partition("\n")
        if re.fullmatch(r"`[\w-]+`", title):
            items = re.split(r"^- ", body, flags=re.MULTILINE)[1:]
            split = (" ".join(item.split()).partition(": ") for item in items)
            found[title.strip("`")] = {label: cell for label, _, cell in split}
    return found
