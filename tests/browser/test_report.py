"""The report and the notebooks' pages in a real browser, opened from the disk as a reader opens them."""

import base64
import itertools
import re
from urllib.parse import unquote, urlparse

import pytest

from llama_jax.plumbing import paths
from llama_lab import figures
from llama_lab.figures import style
from llama_lab.reporting import machines, notebooks, report
from tests.figures.drawn import META
from tests.sharing import made

pytestmark = [pytest.mark.slow, pytest.mark.browser]

REPORT = paths.ROOT / "docs" / "index.html"
PAGES = sorted([*report.pages_of(paths.ROOT), *(paths.ROOT / "docs").glob("machines.html")])
SCHEMES = ("light", "dark")
READABLE = 4.5  # contrast of text that WCAG 2.2 asks for at level AA, https://www.w3.org/TR/WCAG22/#contrast-minimum
# Contrast of every piece of text with what lies behind it: the relative luminances of
# https://www.w3.org/TR/WCAG22/#dfn-contrast-ratio
CONTRASTS = """() => {
  const rgb = words => words.match(/[\\d.]+/g).map(Number);
  const part = c => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  const luminance = ([r, g, b]) => 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
  const behind = e => {
    for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor);
      if (c.length < 4 || c[3]) return c; }
    return matchMedia("(prefers-color-scheme: dark)").matches ? [18, 18, 18] : [255, 255, 255];
  };
  const seen = {};
  for (const e of document.querySelectorAll("body *")) {
    if (![...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()) || e.tagName === "SCRIPT") continue;
    const [a, b] = [luminance(rgb(getComputedStyle(e).color)), luminance(behind(e))].sort((x, y) => y - x);
    const kind = e.tagName.toLowerCase() + (e.className ? "." + e.className : ""), ratio = (a + 0.05) / (b + 0.05);
    seen[kind] = Math.min(seen[kind] ?? 99, ratio);
  }
  return seen;
}"""
NAMELESS = (
    "[...document.querySelectorAll('a,button,input,[role=region]')].filter(e => !e.textContent.trim() &&"
    " !e.labels?.length && !e.querySelector('img')?.alt.trim()).length"
)
# Brightness, 0 to 255, of what an image paints: of its corner, which is its paper
CORNER = """async image => {
  const canvas = Object.assign(document.createElement("canvas"), {width: 40, height: 40}), to = canvas.getContext("2d");
  await image.decode();
  to.drawImage(image, 0, 0, 40, 40);
  return to.getImageData(1, 1, 1, 1).data[0];
}"""
UNFOLD = "document.querySelectorAll('details').forEach(details => { details.open = true; })"
WORDS = (
    "at => [...document.querySelector('#subjects').tBodies[0].rows].map(r => r.cells[at].dataset.value ??"
    " r.cells[at].textContent.trim())"
)


def lacking(request) -> bool:
    """Whether a request failed for what it asked for: a page that is left while it loads gives up the rest itself."""
    return request.failure != "net::ERR_ABORTED"


@pytest.fixture
def visit(chromium):
    """Open a file; afterwards there must have been no complaint in the console and no request but to files."""
    opened, complaints, requests = [], [], []

    def open_(path, width=1280, height=900, scheme="light", scripts=True, unfold=True):
        context = chromium.new_context(
            viewport=dict(width=width, height=height), color_scheme=scheme, java_script_enabled=scripts
        )
        opened.append(context)
        page = context.new_page()
        page.on(
            "console", lambda message: complaints.append(message.text) if message.type in ("error", "warning") else None
        )
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("requestfailed", lambda request: complaints.append(request.url[:200]) if lacking(request) else None)
        page.on("request", lambda request: requests.append(request.url))
        page.goto(path.as_uri())
        if unfold:
            page.evaluate(UNFOLD)
        return page

    yield open_
    for context in opened:
        context.close()
    assert not complaints
    assert requests
    assert {urlparse(url).scheme for url in requests} <= {"file", "data"}


def column(page, name):
    """The words of a column of the table of all subjects, as they stand (a number's own value); and its heading."""
    heads = page.locator("#subjects thead th")
    at = next(i for i, words in enumerate(heads.all_inner_texts()) if words.strip().startswith(name))
    return page.evaluate(WORDS, at), heads.nth(at)


def test_a_click_sorts_by_number_and_another_one_turns_it_round(visit):
    page = visit(REPORT)
    before, head = column(page, "Tokens/s")
    numbers = [float(word) for word in before if word]
    assert numbers != sorted(numbers)
    for order in ("ascending", "descending"):
        head.get_by_role("button").click()
        words, _ = column(page, "Tokens/s")
        assert head.get_attribute("aria-sort") == order
        ordered = sorted(numbers, reverse=order == "descending")  # 9 before 10
        assert list(map(float, words[: len(numbers)])) == ordered
        assert words[len(numbers) :] == [""] * before.count("")  # what has none comes last
    assert page.locator("[aria-sort]").count() == 1


def test_the_keyboard_sorts_too_and_shows_where_it_is(visit):
    page = visit(REPORT)
    before, head = column(page, "Subject")
    page.locator("#filter").focus()
    for _ in range(10):  # from the filter over the scrolling region to the first heading
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.closest('th') !== null"):
            break
    assert page.evaluate("document.activeElement.textContent").startswith("Subject")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    after, _ = column(page, "Subject")
    assert head.get_attribute("aria-sort") == "ascending"
    assert after != before
    assert sorted(after) == sorted(before)
    assert after[0].lower().startswith("1 process")  # words sort as people sort them
    page.keyboard.press("Space")
    assert head.get_attribute("aria-sort") == "descending"
    assert "by Subject, descending" in page.locator("#told").inner_text()


def test_the_filter_keeps_lines_with_all_words(visit):
    page = visit(REPORT)
    page.get_by_label("Show lines with").fill("LOOP 02")
    left = page.locator("#subjects tbody tr:visible").all_inner_texts()
    every = page.locator("#subjects tbody tr").count()
    assert 0 < len(left) < every
    assert all("loop" in line.lower() and "02" in line for line in left)
    assert page.locator("#told").inner_text() == f"{len(left)} of {every} lines"
    page.get_by_label("Show lines with").fill("no such subject")
    assert page.locator("#subjects tbody tr:visible").count() == 0


def test_every_table_of_machines_sorts_and_can_be_read(visit, tmp_path):
    for cpu, speed in (("A", 1.0), ("C", 3.0), ("B", 2.0)):
        environment = {**made.ENVIRONMENT, "cpu": cpu}
        path = made.contributed(tmp_path, made.rows(machine=speed), environment=environment)
        (tmp_path / "machines").mkdir(exist_ok=True)
        path.rename(tmp_path / "machines" / path.name)
    page = visit(machines.write(tmp_path / "out", tmp_path / "machines"), width=1440)
    speeds = page.locator("#as-shares-of-the-machine-s-limit tbody td[data-value]:nth-child(3)")
    page.locator("#as-shares-of-the-machine-s-limit thead").get_by_role("button", name="GB/s").click()
    assert speeds.all_inner_texts() == ["20.0", "40.0", "60.0"]
    page.locator("#over-step thead").get_by_role("button", name="Machine").click()
    assert [name[0] for name in page.locator("#over-step tbody th").all_inner_texts()] == ["a", "b", "c"]
    assert page.locator("#as-shares-of-the-machine-s-limit [aria-sort]").count() == 1  # a table minds its own heads


def test_without_scripts_the_report_is_whole(visit):
    page = visit(REPORT, scripts=False)
    assert page.locator("#subjects tbody tr").count() > 200
    assert page.locator("#subjects button").count() == 0
    assert not page.locator("#filter").is_visible()


@pytest.mark.parametrize("path", [REPORT, *PAGES], ids=lambda path: path.stem)
def test_a_page_is_whole_on_a_phone_and_can_be_read_in_the_light_and_in_the_dark(visit, path):
    page = visit(path, width=360, height=740)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    page.evaluate("[...document.images].forEach(image => { image.loading = 'eager'; })")
    page.wait_for_function("[...document.images].every(image => image.complete)")
    images = page.evaluate(
        "[...document.images].map(i => [i.naturalWidth, i.closest('figure') ? i.alt.trim().length : 99,"
        " (i.closest('.wide') ?? i).getBoundingClientRect().width])"  # a wide one scrolls within its frame
    )
    assert all(natural > 0 and alt > 10 and 0 < width <= 360 for natural, alt, width in images)
    for scheme in SCHEMES:
        page.emulate_media(color_scheme=scheme)
        contrasts = page.evaluate(CONTRASTS)
        assert len(contrasts) > 5
        assert not {kind: ratio for kind, ratio in contrasts.items() if ratio < READABLE}, scheme
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert max(map(int, re.findall(r"\d+", paper))) < 60
    cards = page.evaluate("[...document.querySelectorAll('figure img')].map(i => getComputedStyle(i).backgroundColor)")
    assert set(cards) <= {paper}
    has_an_outline_and_its_links_lead_somewhere(page, path)


def has_an_outline_and_its_links_lead_somewhere(page, path):
    assert page.locator("html").get_attribute("lang") == "en"
    assert page.title()
    levels = page.evaluate("[...document.querySelectorAll('h1,h2,h3,h4')].map(h => +h.tagName[1])")
    assert (levels[0], levels.count(1)) == (1, 1)
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map(e => e.id)")
    assert len(set(ids)) == len(ids)
    for target in page.evaluate("[...document.querySelectorAll('a[href]')].map(a => a.getAttribute('href'))"):
        place, _, part = unquote(target).partition("#")
        if not re.match(r"[a-z]+:", place):
            assert not place or (path.parent / place).resolve().exists(), target
            assert place or part in ids, target
    assert page.evaluate(NAMELESS) == 0
    page.keyboard.press("Tab")  # the first stop leads past the rest
    assert page.evaluate("document.activeElement.className") == "skip"
    assert page.evaluate("document.activeElement.getBoundingClientRect().top") >= 0
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_figure_is_dark_where_its_reader_is(chromium, tmp_path, scheme):
    """Drawn here, shown by an <img>, and looked at."""
    drawn, _ = style.new()
    file = figures.save(drawn, "x", "nb", META, {}, "alt", tmp_path)["svg"]
    context = chromium.new_context(color_scheme=scheme)
    page = context.new_page()
    source = base64.b64encode(file.read_bytes()).decode()  # a file's pixels may not be read
    page.set_content(
        f'<style>:root {{ color-scheme: light dark }}</style><img src="data:image/svg+xml;base64,{source}">'
    )
    corner = page.locator("img").evaluate(CORNER)
    context.close()
    assert (corner > 240) if scheme == "light" else (corner < 40)


def test_questions_with_a_picture_and_sentences_come_first(visit):
    page = visit(REPORT, width=390, height=844, unfold=False)
    questions = page.locator("section.brief")
    told = [questions.nth(at) for at in range(questions.count())]
    assert [part.locator("img").count() for part in told] == [1] * 4
    assert all(part.locator("li").last.locator(".quiet a").count() == 1 for part in told)  # one run shares its line
    assert told[1].locator("td a").count() >= 1  # the other runtimes, a line each
    assert questions.first.bounding_box()["y"] < 844  # on a phone's first screen
    assert not page.locator("#subjects").is_visible()  # tables are folded


@pytest.mark.parametrize("paper", ["A4", "Letter"])
def test_the_first_two_pages_are_printed_on_two(chromium, paper, tmp_path):
    page = chromium.new_page()
    page.goto(REPORT.as_uri())
    page.evaluate("document.querySelectorAll('.rest, .rest ~ *').forEach(part => part.remove())")
    pdf = page.pdf(format=paper, prefer_css_page_size=False)
    page.close()
    assert len(re.findall(rb"/Type\s*/Page\b", pdf)) == 2


def test_a_page_of_a_former_name_leads_to_todays(visit):
    path = report.pages_of(paths.ROOT)[1]
    visit(path.with_stem(notebooks.former(path.stem)), unfold=False).wait_for_url(path.as_uri())


def test_each_section_leads_to_its_notebook_and_back(visit):
    page = visit(REPORT)
    known = figures.read_manifest(paths.ROOT)["notebooks"]
    numbers = {path.stem: path.stem.split("-")[0] for path in PAGES if path.stem in known}
    assert len(numbers) == len(known) - 1  # the headline's figure is drawn by the notebook of its number
    for name, number in numbers.items():
        link = page.locator(f"#n{number} dl").get_by_role("link", name=name, exact=True)
        assert link.get_attribute("href") == f"notebooks/{name}.html"
    link.click()
    assert page.url.endswith(f"/notebooks/{name}.html")
    page.get_by_role("link", name="this question in the report").click()
    assert page.url.endswith(f"/index.html#n{number}")


def test_an_answer_shows_its_trial_and_a_checkbox_hides_a_subject(visit):
    page = visit(REPORT)
    canvas = page.locator("#every-answer canvas")
    chart = "Chart.getChart(document.querySelector('#every-answer canvas'))"
    page.locator("#answers-run").select_option(index=1)
    canvas.scroll_into_view_if_needed()
    x, y, name = page.evaluate(
        f"(c => {{ const at = c.getDatasetMeta(0).data[3]; return [at.x, at.y, c.data.datasets[0].label] }})({chart})"
    )
    box = canvas.bounding_box()
    page.mouse.move(box["x"] + x, box["y"] + y)
    page.wait_for_function(f"{chart}.tooltip.opacity > 0")
    said = page.evaluate(f"{chart}.tooltip.body.flatMap(each => each.lines)")
    assert any(line.startswith(f"{name}: ") for line in said)
    assert any(line.startswith("process ") for line in said)
    page.locator("#answers-shown").get_by_label(name, exact=True).uncheck()
    assert not page.evaluate(f"{chart}.isDatasetVisible(0)")
    assert page.evaluate(f"{chart}.isDatasetVisible(1)")
