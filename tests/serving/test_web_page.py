"""The web page in headless Chromium: by keyboard, with axe-core, with and without an API key, on a phone, without other servers."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import verfedgnn as vf
from verfedgnn.data import synthetic_ratings
from verfedgnn.evaluation.verdict import headline, list_points, narrow_lift, party_word
from verfedgnn.reports.lift_report import TONES
from verfedgnn.serving.catalogue import Catalogue
from verfedgnn.serving.run_answers import describe_run

httpx = pytest.importorskip("httpx", reason="httpx is not installed: no client")
pytest.importorskip("fastapi", reason="the extra serve is not installed")
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-core is not installed")
expect = playwright.expect
expect.set_options(timeout=180_000)
CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
if CHROMIUM is None:
    pytest.skip("there is no Chromium here", allow_module_level=True)


from served import as_alone, serving, without_alone  # noqa: E402
from verfedgnn.serving.app import make_app  # noqa: E402
from verfedgnn.serving.request_guard import ApiKey, digest_key  # noqa: E402

KEY = "a-key-that-is-long-enough"


@pytest.fixture(scope="module")
def run() -> vf.Run:
    first, *others = vf.split_items(
        synthetic_ratings(users=120, items=90, ratings=4000, seed=5), by="category"
    )
    known = replace(
        first, ratings=first.ratings.take(first.ratings.user < 110)
    )  # ten customers are new to it
    return vf.train([known, *others], vf.Config.preset("best", epochs=40, final=False))


@pytest.fixture(scope="module")
def address(run: vf.Run) -> Iterator[str]:
    with serving(make_app(Catalogue(run, "trial"))) as address:
        yield address


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"], timeout=180_000)
        yield browser
        browser.close()


class Visit:
    """A browser page that records its errors and its requests."""

    def __init__(self, chromium: Any, address: str, width: int = 1100, **options: Any) -> None:
        self.context = chromium.new_context(viewport={"width": width, "height": 800}, **options)
        self.page = self.context.new_page()
        self.troubles: list[str] = []
        self.asked: list[str] = []
        self.page.set_default_timeout(180_000)
        self.page.on(
            "console",
            lambda line: self.troubles.append(line.text) if line.type in ("error", "warning") else None,
        )
        self.page.on("pageerror", lambda error: self.troubles.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(address)

    def __enter__(self) -> Visit:
        return self

    def __exit__(self, *_: object) -> None:
        self.context.close()

    def texts(self, selector: str) -> list[str]:
        return self.page.locator(selector).all_inner_texts()

    def serious_findings(self) -> list[tuple[str, str]]:
        """Return the findings of axe-core that are serious or critical, with an element."""
        found = axe.Axe().run(self.page).response["violations"]
        return [
            (each["id"], each["nodes"][0]["html"])
            for each in found
            if each["impact"] in ("serious", "critical")
        ]

    def wait_for(self, user: str | None = None) -> str:
        """Wait for the recommendations for a user, by default the one who was just chosen, and return the id."""
        user = user or str(self.page.locator("#user").input_value())
        expect(self.page.locator("#best-title")).to_have_text(f"Recommendations for user {user}")
        return user

    def tab_to(self, id: str) -> None:
        """Press Tab until the element has the focus."""
        for _ in range(40):
            if self.page.evaluate("document.activeElement.id") == id:
                return
            self.page.keyboard.press("Tab")
        raise AssertionError(f"#{id} cannot be reached by Tab")


def test_by_keyboard_only(run: vf.Run, chromium: Any, address: str) -> None:
    user, party = str(run.parties[0].ratings.user_ids[0]), run.parties[0].name
    with Visit(chromium, f"{address}/#party={party}") as visit:
        page = visit.page
        page.wait_for_selector("#pick:not([hidden])")
        visit.tab_to("user")
        page.keyboard.type(user[:-1])
        page.wait_for_selector("#users li")
        page.keyboard.press("ArrowDown")
        chosen = page.locator("#users li[aria-selected=true] span").inner_text()
        page.keyboard.press("Enter")
        visit.wait_for(chosen)
        assert page.locator("#users").is_hidden()
        wanted = [item.title or item.item for item in run.recommend(chosen, 10, party=party)]
        assert visit.texts("#best .title") == wanted
        assert visit.texts("#liked .title")
        assert f"recommendations for user {chosen}, federated" in page.locator("#status").inner_text()
        visit.tab_to("model-federated")
        page.keyboard.press("ArrowRight")
        page.wait_for_selector("#best.alone")
        alone = as_alone(run).recommend(chosen, 20, party=party)
        scores = {item.title or item.item: item.score for item in alone}
        shown = [scores[title] for title in visit.texts("#best .title")]
        alone = alone[:10]
        assert shown == pytest.approx([item.score for item in alone]), "ties may change places"
        came = {item.title or item.item for item in run.recommend(chosen, 10, party=party)} - {
            i.title or i.item for i in alone
        }
        assert set(visit.texts("#changes-came .title")) == came
        assert not visit.troubles
        assert all(url.startswith(address) for url in visit.asked)


def test_the_page_opens_on_a_typical_customer(run: vf.Run, chromium: Any, address: str) -> None:
    with Visit(chromium, address) as visit:
        page = visit.page
        for party in ("", run.parties[1].name):
            page.select_option("#party", party)
            typical = page.locator("#examples button", has_text="a typical user").get_attribute("data-user")
            expect(page.locator("#best-title")).to_have_text(f"Recommendations for user {typical}")
            assert "user=" not in page.url, "nobody chose the customer"
        page.wait_for_selector("#changes li, #changed-note")
        assert not visit.troubles


def test_on_a_phone_nothing_is_cut_off(chromium: Any, address: str) -> None:
    with Visit(chromium, address, width=360) as visit:
        page = visit.page
        page.wait_for_selector("#examples button")
        page.locator("#examples button").nth(1).click()
        visit.wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        assert not visit.troubles


def test_every_organisation_and_unknown_users(run: vf.Run, chromium: Any, address: str) -> None:
    with Visit(chromium, address) as visit:
        page = visit.page
        page.wait_for_selector("#examples button")
        page.locator("#examples button").first.click()
        user = visit.wait_for()
        expect(page.locator("#liked-note")).to_contain_text("all organisations")
        wanted = run.recommend(user, 10)
        assert visit.texts("#best .title") == [item.title or item.item for item in wanted]
        assert not re.search(r"\d %", " ".join(visit.texts("#best"))), "a score is no likelihood"
        assert "in a federation nobody has all of them" in page.locator("#best-note").inner_text()
        assert page.url == f"{address}/#user={user}"
        page.select_option("#party", run.parties[1].name)
        expect(page.locator("#liked-note")).to_contain_text(run.parties[1].name)
        assert "nobody" not in page.locator("#best-note").inner_text()


def test_an_unknown_user_is_served_as_someone_new(run: vf.Run, chromium: Any, address: str) -> None:
    table, party = run.parties[0].ratings, run.parties[0].name
    with Visit(chromium, f"{address}/#party={party}") as visit:
        page = visit.page
        page.wait_for_selector("#examples button")
        page.locator("#examples button").first.click()
        visit.wait_for()
        page.fill("#user", "no such user")
        page.keyboard.press("Enter")
        expect(page.locator("#unknown")).to_contain_text(
            "User no such user is not known here. 120 users took part"
        )
        assert page.locator("#for-user").is_hidden()
        assert page.locator("#user").input_value() == "no such user"
        expect(page.locator("#ask-hint")).to_have_text("Rate at least one item first.")
        assert page.locator("#ask-newcomer").is_disabled()
        visit.tab_to("item")
        page.wait_for_selector("#items li")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
        counts = np.bincount(table.item, minlength=table.n_items)
        popular = str(table.item_ids[int(counts.argmax())])
        expect(page.locator("#given li")).to_have_count(1)
        assert page.locator("#ask-hint").is_hidden()
        page.fill("#item", "zzz")
        expect(page.locator("#items-hint")).to_have_text("No title or id contains this text.")
        page.locator("#given select").select_option("1")
        assert page.locator("#items-hint").is_hidden()
        visit.tab_to("ask-newcomer")
        page.keyboard.press("Enter")
        page.wait_for_selector("#best li")
        body = {"ratings": [{"item": popular, "rating": 1, "party": party}], "party": party}
        found = httpx.post(f"{address}/v1/recommendations", json=body, timeout=180).json()["recommendations"]
        assert visit.texts("#best .title") == [item["title"] or f"Item {item['item']}" for item in found]
        assert page.locator("#liked-box").is_hidden()
        assert page.locator("#switch").is_hidden()
        page.reload()
        expect(page.locator("#given li")).to_have_count(1)
        expect(page.locator("#unknown")).to_contain_text("User no such user is not known here.")
        expect(page.locator("#best li")).to_have_count(10)
        page.locator("#given select").select_option("5")
        page.click("#ask-newcomer")
        expect(page.locator("#best li")).to_have_count(10)
        reasons = visit.texts("#best .why")  # one liked item is not named ten times
        assert all(reasons.count(reason) <= 5 for reason in reasons if "liked Item" in reason)
        assert not visit.troubles
        page.locator("#examples button").first.click()
        expect(page.locator("#liked-title")).to_be_visible()
        assert page.locator("#newcomer").is_hidden()


def test_stars_stand_beside_the_order(run: vf.Run, chromium: Any, address: str) -> None:
    user, party = str(run.parties[0].ratings.user_ids[3]), run.parties[0].name
    wanted = run.recommend(user, 10, party=party)
    with Visit(chromium, f"{address}/#user={user}&party={party}") as visit:
        visit.page.wait_for_selector("#best li")
        stars = [float(text) for text in visit.texts("#best .stars")]
        assert stars == pytest.approx([item.rating for item in wanted], abs=0.051)
        assert not re.search(r"\d %", " ".join(visit.texts("#best"))), "a score is no likelihood"
        expect(visit.page.locator("#best-note")).to_contain_text("Stars are predicted ratings")
        assert not visit.troubles


@pytest.mark.parametrize("size", [(1280, 800), (390, 844)])
def test_the_verdict_is_first_and_fits_one_screen(run: vf.Run, chromium: Any, size: tuple[int, int]) -> None:
    metrics, (width, height), name = deepcopy(run.metrics), size, run.parties[0].name
    metrics["parties"][0]["popularity"]["ndcg@20"] = 0.9999
    with (
        serving(make_app(Catalogue(replace(run, metrics=metrics), "trial"))) as address,
        Visit(chromium, address, width) as visit,
    ):
        visit.page.wait_for_selector("#best li")
        for chosen in ("", name):
            visit.page.select_option("#party", chosen)
            lift = narrow_lift(metrics["lift"], chosen) if chosen else metrics["lift"]
            expect(visit.page.locator("#verdict")).to_have_class(f"open banner {TONES[party_word(lift)]}")
            assert visit.texts("#headline") == [headline(lift)]
            assert visit.page.locator("#deciding").is_hidden()
            assert visit.page.locator("#points").is_hidden()
            assert visit.page.locator("#about").is_hidden()
            box = visit.page.locator("#verdict").bounding_box()
            assert box["y"] + box["height"] <= height / 2
            assert box["y"] < visit.page.locator("#pick").bounding_box()["y"]
            visit.page.click("#more summary")
            assert visit.texts("#points li") == [point.replace("`", "") for point in list_points(lift)]
            visit.page.click("#more summary")
        visit.page.click("#more summary")
        assert [text.split(":")[0] for text in visit.texts("#about li")] == ["Cost", "Others learn", "Served"]
        assert f"worse than the most popular items at {name} (NDCG@20 " in visit.texts("#warning")[0]
        assert visit.page.evaluate("document.documentElement.scrollWidth") <= width
        assert not visit.troubles


def test_a_run_of_likes_shows_no_stars_and_no_ratings(chromium: Any) -> None:
    table = synthetic_ratings(users=120, items=60, ratings=2500, seed=5)
    likes = replace(table, rating=table.rating * 0 + 5)
    run = vf.train(vf.split_items(likes, parties=3), vf.Config.preset("best", epochs=3, final=False))
    with serving(make_app(Catalogue(run, "trial"))) as address, Visit(chromium, address) as visit:
        expect(visit.page.locator("#liked-note")).to_contain_text("Bought or liked: ")
        expect(visit.page.locator("#best-note")).to_contain_text(
            "Items the user bought or liked are left out."
        )
        assert visit.page.locator(".stars").count() == 0
        shown = " ".join(visit.texts("#examples") + visit.texts("#liked-box") + visit.texts("#best"))
        assert "rating" not in shown
        assert not visit.troubles


def test_without_a_gate_the_page_says_that_nothing_was_judged(run: vf.Run, chromium: Any) -> None:
    metrics = {name: part for name, part in run.metrics.items() if name != "lift"}
    party = metrics["parties"][0]
    with (
        serving(make_app(Catalogue(replace(run, metrics=metrics), "trial"))) as address,
        Visit(chromium, f"{address}/#party={party['name']}") as visit,
    ):
        expect(visit.page.locator("#headline")).to_have_text("Whether joining pays was not judged.")
        deciding = visit.texts("#deciding")[0]
        assert f"{party['popularity']['ndcg@20']:.4f} of its most popular items" in deciding
        assert f"NDCG@20 {party['test']['ndcg@20']:.4f}" in deciding
        assert f"RMSE {party['test']['rmse']:.4f}" in deciding
        assert "preset best" in deciding


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_axe_has_no_serious_finding(run: vf.Run, chromium: Any, width: int, scheme: str) -> None:
    app = make_app(Catalogue(run, "trial"))
    user, party = str(run.parties[0].ratings.user_ids[3]), run.parties[0].name
    options = {"color_scheme": scheme, "bypass_csp": True}  # the policy forbids the script of axe, too
    with (
        serving(app) as address,
        Visit(chromium, f"{address}/#user={user}&party={party}", width, **options) as visit,
    ):
        visit.page.wait_for_selector("#best li")
        assert visit.serious_findings() == []
        visit.page.click("#open-newcomer")
        visit.page.wait_for_selector("#items li")
        visit.page.keyboard.press("Enter")
        visit.page.wait_for_selector("#given li")
        assert visit.serious_findings() == []


def test_an_example_is_new_here_also_if_one_party_is_served(run: vf.Run) -> None:
    about = describe_run(Catalogue(run, "trial", run.parties[0].name), [0])
    assert about["examples"][-1]["label"] == "new here, known elsewhere"


def test_a_link_shows_the_same_case(run: vf.Run, chromium: Any, address: str) -> None:
    user, party = str(run.parties[0].ratings.user_ids[3]), run.parties[1].name
    with Visit(chromium, f"{address}/#user={user}&party={party}") as visit:
        visit.page.wait_for_selector("#best li")
        expect(visit.page.locator("#liked-title")).to_have_text(f"Liked by user {user}")
        assert visit.page.locator("#party").input_value() == party
        visit.page.locator("#examples button").last.click()
        other = visit.page.locator("#examples button").last.get_attribute("data-user")
        expect(visit.page.locator("#liked-title")).to_have_text(f"Liked by user {other}")
        link = visit.page.url
        assert "#" not in "".join(visit.asked)
        assert not visit.troubles
    with Visit(chromium, link) as visit:
        visit.page.wait_for_selector("#best li")
        expect(visit.page.locator("#liked-title")).to_have_text(f"Liked by user {other}")


def test_everything_chosen_is_in_the_address(run: vf.Run, chromium: Any, address: str) -> None:
    second, user = run.parties[1].name, str(run.parties[0].ratings.user_ids[3])
    with Visit(chromium, address) as visit:
        page = visit.page
        page.wait_for_selector("#examples button")
        page.select_option("#party", second)
        assert page.url == f"{address}/#party={second}"
        page.fill("#user", user)
        page.keyboard.press("Enter")
        visit.wait_for(user)
        page.locator("label[for=model-alone]").click()
        page.wait_for_selector("#best.alone")
        assert page.url == f"{address}/#user={user}&party={second}&model=alone"
        page.reload()
        page.wait_for_selector("#best.alone li")
        assert (page.locator("#party").input_value(), page.locator("#user").input_value()) == (second, user)
        page.go_back()
        page.wait_for_selector("#best.federated li")
        page.go_back()
        expect(page.locator("#liked-title")).not_to_have_text(f"Liked by user {user}")
        assert (page.locator("#party").input_value(), page.locator("#user").input_value()) == (second, "")
        page.go_back()
        expect(page.locator("#party")).to_have_value("")
        page.go_forward()
        expect(page.locator("#party")).to_have_value(second)
        assert not visit.troubles


def test_a_customer_known_elsewhere_is_told_why_a_list_is_personal(
    run: vf.Run, chromium: Any, address: str
) -> None:
    party = run.parties[0]
    with Visit(chromium, f"{address}/#party={party.name}", width=390) as visit:
        page = visit.page
        page.get_by_role("button", name=re.compile("new here, known elsewhere")).click()
        expect(page.locator("#liked-note")).to_contain_text(f"No ratings at {party.name} yet.")
        user = page.locator("#user").input_value()
        assert user in party.ratings.user_ids[110:]
        asked = {"user": user, "party": party.name, "why": 1}
        found = httpx.get(f"{address}/v1/recommendations", params=asked, timeout=180).json()[
            "recommendations"
        ]
        scores = [item["score"] for item in found]
        ordered = [item["title"] for item in found if scores.count(item["score"]) == 1]
        assert [title for title in visit.texts("#best .title") if title in ordered] == ordered, "ties aside"
        alone = as_alone(run).recommend(user, 10, party=party.name)
        came = len({item["item"] for item in found} - {item.item for item in alone})
        note = page.locator("#personal").inner_text()
        assert f"User {user} is new to {party.name} and known to {len(run.parties) - 1} other" in note
        assert note.startswith("Personal" if came else "Not personal")
        assert (f"{came} of these 10 items" in note) == (came > 0)
        assert (visit.texts("#changed-note")[0].startswith(f"{came} of the 10 items")) == (came > 0)
        personal = sum(item["why"]["kind"] == "similar" for item in found)
        assert visit.texts("#best .why") == ["Liked by customers with a similar taste."] * (personal % 10)
        page.locator("label[for=model-alone]").click()
        expect(page.locator("#personal")).to_contain_text(
            f"{party.name} alone knows nothing about user {user}"
        )
        page.click("#open-newcomer")  # the form scrolls into view
        expect(page.locator("#newcomer")).to_be_in_viewport(ratio=0.99)
        assert not visit.troubles


def test_the_page_says_where_a_party_serves_its_own_model(run: vf.Run, chromium: Any) -> None:
    metrics, (party, *_) = deepcopy(run.metrics), run.parties
    for row in metrics["parties"]:
        row["list_gate"] = {who: {"popularity": 0.1, "federated": 1.0} for who in ("known", "newcomers")}
    metrics["parties"][0]["list_gate"] = {who: {"popularity": 1.0} for who in ("known", "newcomers")}
    own = f"At {party.name} its own model is served, since the federated one was not better on its validation part."
    with (
        serving(make_app(Catalogue(replace(run, metrics=metrics), "own"))) as address,
        Visit(chromium, f"{address}/#party={party.name}") as visit,
    ):
        page = visit.page
        expect(page.locator("#best-note")).to_contain_text(own)
        expect(page.locator("#best-note")).not_to_contain_text("together")
        page.get_by_role("button", name=re.compile("new here, known elsewhere")).click()
        expect(page.locator("#personal")).to_contain_text(
            f"{party.name} alone knows nothing about user {page.locator('#user').input_value()}"
        )
        expect(page.locator("#personal")).not_to_contain_text("another order")
        page.select_option("#party", "")
        expect(page.locator("#best-note")).to_contain_text(f"Trained by all organisations together. {own}")
        page.select_option("#party", run.parties[1].name)
        expect(page.locator("#best-note")).not_to_contain_text("own model")
        assert not visit.troubles


def test_with_a_key(run: vf.Run, chromium: Any) -> None:
    with (
        serving(make_app(Catalogue(run, "trial"), keys=[ApiKey("key", digest_key(KEY))])) as address,
        Visit(chromium, address) as visit,
    ):
        page = visit.page
        page.wait_for_selector("#key-form:not([hidden])")
        page.keyboard.type("wrong")
        page.keyboard.press("Enter")
        expect(page.locator("#key-title")).to_have_text("This API key is wrong")
        assert "--api-key-file" in page.locator("#key-text").inner_text()
        assert page.title() == "This API key is wrong · verfedgnn"
        assert page.locator("main > *:not(#key-form):visible").count() == 0
        assert page.locator("#party").is_hidden()
        page.keyboard.type(KEY)
        page.keyboard.press("Enter")
        page.wait_for_selector("#examples button")
        assert page.locator("#key-form").is_hidden()
        page.reload()
        page.wait_for_selector("#examples button")
        page.evaluate("sessionStorage.setItem('verfedgnn-key', 'replaced')")
        page.locator("#examples button").first.click()
        expect(page.locator("#key-title")).to_have_text("This API key is wrong")
        assert page.locator("#for-user").is_hidden()
        assert not any(KEY in url for url in visit.asked)


def test_a_key_that_may_not_browse_says_so(run: vf.Run, chromium: Any) -> None:
    key = ApiKey("shop", digest_key(KEY), frozenset({"recommend"}))
    with (
        serving(make_app(Catalogue(run, "trial"), keys=[key])) as address,
        Visit(chromium, address) as visit,
    ):
        visit.page.wait_for_selector("#key-form:not([hidden])")
        visit.page.keyboard.type(KEY)
        visit.page.keyboard.press("Enter")
        expect(visit.page.locator("#key-title")).to_have_text("This API key may not open the page")
        assert "browse" in visit.page.locator("#key-text").inner_text()


def test_titles_and_reasons_look_intended(run: vf.Run, chromium: Any) -> None:
    table = run.parties[0].ratings
    parties = [vf.PartyData(run.parties[0].name, replace(table, titles=None)), *run.parties[1:]]
    user, party = str(table.user_ids[3]), run.parties[0].name
    app = make_app(Catalogue(replace(run, parties=parties), "trial"))
    with serving(app) as address, Visit(chromium, f"{address}/#user={user}&party={party}") as visit:
        visit.page.wait_for_selector("#best li")
        assert all(text.startswith("Item ") for text in visit.texts("#best .title"))
        for reason in visit.texts("#best .why"):
            assert re.fullmatch(
                r"Liked by customers with a similar taste\.|(Because|Also because) this user liked .*\.",
                reason,
            )
            assert len(re.findall(r"Item ", reason)) <= 2
            assert not re.search(r"\d\.\d\d", reason)
        liked = [float(text.split()[0]) for text in visit.texts("#liked .stars")]
        assert liked
        assert min(liked) >= 4
        assert all(url.startswith(address) for url in visit.asked)
        assert "items are shown by their ids" in visit.texts("#best-note")[0]
        assert not visit.troubles


def test_without_models_alone_the_switch_says_why(run: vf.Run, chromium: Any) -> None:
    with (
        serving(make_app(Catalogue(without_alone(run), "trial"))) as address,
        Visit(chromium, address) as visit,
    ):
        page = visit.page
        page.wait_for_selector("#examples button")
        page.locator("#examples button").first.click()
        visit.wait_for()
        assert page.locator("#model-alone").is_disabled()
        assert "--set gate=true" in page.locator("#no-alone").inner_text()
        assert page.locator("#changed").is_hidden()
        assert not visit.troubles


def test_ids_that_look_like_markup_are_text(run: vf.Run, chromium: Any) -> None:
    table = run.parties[0].ratings
    evil = replace(table, titles=table.item_ids.astype("U80"))
    evil.titles[:] = "<img src=x onerror=alert(1)>"
    first = vf.PartyData(run.parties[0].name, evil)
    catalogue = Catalogue(replace(run, parties=[first, *run.parties[1:]]), "<b>trial")
    with serving(make_app(catalogue)) as address, Visit(chromium, f"{address}/#party={first.name}") as visit:
        visit.page.wait_for_selector("#examples button")
        visit.page.locator("#examples button").first.click()
        visit.wait_for()
        assert visit.texts("#best .title")[0] == "<img src=x onerror=alert(1)>"
        assert not visit.troubles
