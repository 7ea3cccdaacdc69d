"""HTML pages and charts, for reports, diffs, traces and plots; charts go to pages, files and terminals.

blocks.py     what stands on a page: sections, tables, coloured grids; figures by layer
charts.py     what is drawn: bars, lines; a histogram in block characters
render.py     a page as one HTML text, through Jinja2 (extra ``report``), and written whole; a chart as file,
              SVG as on a page or PNG through matplotlib (extra ``plot``)
page.html     its template; page.css its styles, page.js what sorts its tables
svg.py        a chart as SVG, with chart.css; it needs nothing that is not in Python

A page is a ``Page`` of ``Section``s of blocks, all of them plain text and numbers:

>>> from ggmlq.pages import Bars, Column, Figure, Page, Section, Table
>>> table = Table("Two rows", [Column("name"), Column("error", number=True)], [["a", 0.5], ["<b>", 1e-3]])
>>> chart = Bars("Values", "value", edges=[0.0, 0.5, 1.0], counts=[3, 1])
>>> page = Page("A page", "with a table", [Section("Errors", [table, Figure(chart)])])
>>> page.sections[0].title                    # html(page) is its text, write(page, path) a file
'Errors'
"""

from .blocks import (
    Cell,
    Code,
    Column,
    Figure,
    Figures,
    Fold,
    Gallery,
    Grid,
    Item,
    Page,
    Section,
    Shade,
    Table,
    Text,
    Value,
    depth_lines,
    layer_grids,
    shades,
)
from .charts import Bars, Lines, Series, amount, power, text
from .render import check_picture, check_target, draw, html, write
from .svg import document, svg

__all__ = [
    "Bars",
    "Cell",
    "Code",
    "Column",
    "Figure",
    "Figures",
    "Fold",
    "Gallery",
    "Grid",
    "Item",
    "Lines",
    "Page",
    "Section",
    "Series",
    "Shade",
    "Table",
    "Text",
    "Value",
    "amount",
    "check_picture",
    "check_target",
    "depth_lines",
    "document",
    "draw",
    "html",
    "layer_grids",
    "power",
    "shades",
    "svg",
    "text",
    "write",
]
