"""The interactive page in Chromium, which draws it without a screen."""

import html
import json
import shutil
import subprocess

from matplotlib import colors
import numpy as np
import pytest
from support import pages
from synthesizer_mtf.tools.plot_attention import page

# The page with `ERRORS` at its start and `ACTS` at its end does what a reader would.
# In the end its text is a JSON array: what it showed after each step.
ERRORS = """<script>
const errors = [];
addEventListener("error", event => errors.push(event.message));
addEventListener("securitypolicyviolation", event => errors.push(event.blockedURI));
</script>"""
ACTS = """<script>
const canvas = title => document.querySelector(`#sheet [title="${title}"] canvas`);
const lines = id => element(id).data.map(({name, x, y}) => ({name, x, y}));
const view = () => ({
  errors: [...errors], hash: location.hash, title: document.title,
  about: element("about").innerText, heading: element("title").innerText,
  selects: ["stack", "layer", "head"].map(id => element(id).value),
  maps: element("maps").data.map(({z, zmax}) => ({z, zmax})),
  labels: [...element("maps").querySelectorAll(".xtick text")].map(e => e.textContent),
  titles: [...element("maps").querySelectorAll(".annotation")].map(e => e.textContent),
  pressed: [...document.querySelectorAll("[aria-pressed=true]")].map(b => b.title),
  buttons: [...document.querySelectorAll("#sheet button")].map(b => b.title),
  mixtures: !element("mixtures").hidden, bars: lines("bars"), course: lines("course")});
const pixels = canvas => [...canvas?.getContext("2d").getImageData(
  0, 0, canvas.width, canvas.height).data ?? []];
function select(id, value) {
  element(id).value = value;
  element(id).dispatchEvent(new Event("change"));
}
const acts = [
  () => {},
  () => select("head", "mean"),
  () => select("stack", "encoder"),
  () => select("colours", "map"),
  () => canvas("encoder/0, head 1").parentElement.click(),
  () => element("bars").emit("plotly_click", {points: [{pointNumber: 0}]})];
addEventListener("load", async () => {
  const seen = [];
  for (const act of acts) {
    act();
    await new Promise(resolve => setTimeout(resolve, 100));
    seen.push(view());
  }
  select("shown", "initial");
  seen.push(pixels(canvas("decoder/0, head 1")));
  document.body.textContent = JSON.stringify(seen);
});
</script>"""


@pytest.fixture(scope="module", name="seen")
def fixture_seen(tmp_path_factory):
  """What the page shows after each of `ACTS`, and the pixels of a small map."""
  browser = next(filter(None, map(shutil.which, (
      "chromium", "chromium-browser", "google-chrome"))), None)
  if browser is None:
    pytest.skip("there is no Chromium on the path; apt install chromium")
  folder = tmp_path_factory.mktemp("page")
  text = page.render(page.content(*pages.example()))
  text = text.replace("<head>", "<head>" + ERRORS).replace("</body>", ACTS + "</body>")
  (folder / "page.html").write_text(text, encoding="utf-8")
  done = subprocess.run(
      [browser, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom",
       "--virtual-time-budget=20000", f"--user-data-dir={folder / 'profile'}",
       f"file://{folder}/page.html#decoder%2F0%2F1"],
      capture_output=True, text=True, check=True, timeout=120)
  body = done.stdout.partition("<body>")[2].partition("</body>")[0]
  return json.loads(html.unescape(body))


def weights(state, layer):
  """The weights of the example's layer, NaN for masked keys."""
  attention = pages.example()[1][state][layer]
  return np.where(attention.mask, attention.weights, np.nan)


def assert_maps(view, layer, choose, end_of):
  """The two maps of a view show some weights; `end_of` names what their scale spans."""
  for state, drawn in zip(("initial", "trained"), view["maps"]):
    expected = choose(weights(state, layer))
    np.testing.assert_allclose(
        np.array(drawn["z"], float), expected, atol=1.1e-5)
    spanned = np.sort(end_of(state)[~np.isnan(end_of(state))])
    assert drawn["zmax"] == pytest.approx(
        spanned[int(0.995 * (spanned.size - 1))], abs=1.1e-5)


def whole_layer(layer):
  return lambda state: np.stack([weights(s, layer) for s in ("initial", "trained")])


@pytest.mark.slow
def test_a_link_opens_its_view_and_no_script_fails(seen):
  first, *_ = seen
  assert first["errors"] == [] == seen[-2]["errors"]
  assert first["selects"] == ["decoder", "decoder/0", "1"]
  assert first["hash"] == "#decoder%2F0%2F1"
  assert first["title"] == first["heading"] == "<i>models</i>"
  assert first["about"].split() == ["initial", "step", "0", "trained", "step", "5"]
  assert first["pressed"] == ["decoder/0, head 1"]
  assert first["buttons"] == ["decoder/0, head 0", "decoder/0, head 1"]


def test_maps_show_the_weights_before_and_after_of_what_is_chosen(seen):
  linked, mean, encoder, own_scale, clicked, bar, _ = seen
  assert_maps(linked, "decoder/0", lambda w: w[1], whole_layer("decoder/0"))
  assert_maps(mean, "decoder/0", lambda w: w.mean(0), whole_layer("decoder/0"))
  assert mean["selects"][2] == "mean" and mean["pressed"] == []
  assert encoder["selects"] == ["encoder", "encoder/0", "mean"]
  assert_maps(encoder, "encoder/0", lambda w: w.mean(0), whole_layer("encoder/0"))
  assert_maps(own_scale, "encoder/0", lambda w: w.mean(0),
              lambda state: weights(state, "encoder/0").mean(0))
  assert clicked["selects"] == ["encoder", "encoder/0", "1"]
  assert clicked["hash"] == "#encoder%2F0%2F1"
  assert clicked["pressed"] == ["encoder/0, head 1"]
  assert_maps(clicked, "encoder/0", lambda w: w[1],
              lambda state: weights(state, "encoder/0")[1])
  assert bar["selects"] == ["decoder", "decoder/0", "0"]


def test_tokens_are_text_where_there_are_some_and_numbers_elsewhere(seen):
  short = ["</script><scrip…", *pages.TOKENS[1:]]
  assert seen[2]["labels"] == short
  assert seen[0]["labels"] == ["0", "1", "2", "3", "4"]


def test_mixtures_have_their_alpha_and_its_course(seen):
  linked, mean, encoder, *_ = seen
  assert linked["mixtures"]
  assert linked["titles"] == ["initial, step 0   α: R 0.500, R.1 0.500",
                              "trained, step 5   α: R 0.600, R.1 0.400"]
  places = [["decoder/0", "decoder/0"], ["0", "1"]]
  assert linked["bars"] == [
      {"name": "R", "x": places, "y": [.2, .6]},
      {"name": "R.1", "x": places, "y": [.8, .4]},
      {"name": "at the start", "x": places, "y": [.5, .5]}]
  assert linked["course"] == [
      {"name": "R", "x": [0, 5], "y": [.5, .2]},
      {"name": "R", "x": [0, 5], "y": [.5, .6]},
      {"name": "R", "x": [1, 5], "y": [.5, .4]},  # The summaries.
      {"name": "R.1", "x": [0, 5], "y": [.5, .8]},
      {"name": "R.1", "x": [0, 5], "y": [.5, .4]}]
  np.testing.assert_allclose(mean["course"][2]["y"], [.5, .4])
  assert encoder["course"] == []


def test_a_small_map_has_a_pixel_for_each_weight(seen):
  drawn = np.array(seen[-1]).reshape(5, 5, 4)
  every = weights("initial", "decoder/0")
  shown = np.sort(every[~np.isnan(every)])
  ramp = page.content(*pages.example())["colors"]
  for (i, j), value in np.ndenumerate(every[1]):
    if np.isnan(value):
      assert drawn[i, j, 3] == 0  # Transparent.
      continue
    place = value / shown[int(0.995 * (shown.size - 1))] * (len(ramp) - 1)
    expected = [colors.to_rgb(ramp[min(int(p), len(ramp) - 1)])
                for p in (place - 0.01, place + 0.01)]  # Weights are rounded.
    assert tuple(drawn[i, j]) in [(*np.round(255 * np.array(e)), 255) for e in expected]
