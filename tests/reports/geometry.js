// Body of a function that returns everything that is wrong with the page on show; called by geometry.py.
const leastContrast = arguments[0], largeContrast = arguments[1], leastTarget = arguments[2], leastWidth = arguments[3];
const found = [], say = (what, text, more) => found.push(`${what}: ${text.trim().slice(0, 60)} ${more ?? ""}`.trim());
const seen = (el) => el.checkVisibility({opacityProperty: true, visibilityProperty: true});
const inside = (box, frame, slack) => box.left >= frame.left - slack && box.right <= frame.right + slack
  && box.top >= frame.top - slack && box.bottom <= frame.bottom + slack;
const shared = (a, b) => Math.max(0, Math.min(a.right, b.right) - Math.max(a.left, b.left))
  * Math.max(0, Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top));
const page = document.documentElement, width = page.clientWidth;

// Every text inside of its frame: of a chart its svg, else the window (or the scrolling box that it is in).
if (page.scrollWidth > width + 1) say("wider than the window", document.title, page.scrollWidth);
const charts = [...document.querySelectorAll("svg")].filter(seen);
for (const svg of charts) {
  const frame = svg.getBoundingClientRect(), texts = [...svg.querySelectorAll("text")].filter(seen);
  // matplotlib's boxes have a line's full height: the letters fill about three quarters of it
  const boxes = texts.map((text) => {
    const box = text.getBoundingClientRect(), cut = box.height * 0.14;
    return {text, left: box.left, right: box.right, top: box.top + cut, bottom: box.bottom - cut};
  });
  const name = svg.closest("figure")?.id ?? "";
  for (const box of boxes) if (!inside(box, frame, 1)) say("outside of its chart", box.text.textContent, name);
  boxes.forEach((one, at) => boxes.slice(at + 1).forEach((other) => {
    if (shared(one, other) > 2) say("labels collide", `${one.text.textContent} | ${other.text.textContent}`, name);
  }));
  for (const mark of [...svg.querySelectorAll("path, use, rect, circle, line")].filter((it) => !it.closest("defs, .tip") && seen(it))) {
    const box = mark.getBoundingClientRect(), clip = clipOf(mark);
    if (!inside(box, frame, 1)) say("mark outside of its chart", mark.parentElement.id, name);
    if (clip && !inside(box, clip, 2)) say("mark cut off", mark.parentElement.id, name);
  }
  if (svg.getAttribute("aria-hidden") !== "true" && !(svg.querySelector(":scope > title")?.textContent.trim()
      && svg.getAttribute("role") === "img")) say("chart without a name", svg.id || svg.parentElement.className);
}
// Where a mark is cut off, on the screen; null where it is not.
function clipOf(mark) {
  const holder = mark.closest("[clip-path]");
  const rect = holder && document.getElementById(holder.getAttribute("clip-path").slice(5, -1))?.querySelector("rect");
  if (!rect) return null;
  const [x, y, wide, high] = ["x", "y", "width", "height"].map((it) => Number(rect.getAttribute(it)));
  const ends = [[x, y], [x + wide, y + high]].map(([a, b]) => new DOMPoint(a, b).matrixTransform(holder.getScreenCTM()));
  return {left: ends[0].x, top: ends[0].y, right: ends[1].x, bottom: ends[1].y};
}
const lines = [];
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const node = walker.currentNode, el = node.parentElement;
  if (!node.textContent.trim() || el.closest("svg, script, style, .skip") || !seen(el)) continue;
  const range = document.createRange();
  range.selectNodeContents(node);
  const scroller = el.closest(".scroll, pre");
  for (const box of range.getClientRects()) {
    if (box.width < 1) continue;
    if (!scroller && (box.left < -1 || box.right > width + 1) && !clipped(el)) say("outside of the window", node.textContent);
    if (!clipped(el)) lines.push({el, text: node.textContent, left: box.left, right: box.right,
      top: box.top + box.height * 0.2, bottom: box.bottom - box.height * 0.2});
  }
}
function clipped(el) {
  for (let at = el; at && at !== document.body; at = at.parentElement)
    if (getComputedStyle(at).textOverflow === "ellipsis" || getComputedStyle(at).position === "sticky") return true;
  return false;
}
lines.sort((a, b) => a.top - b.top);
lines.forEach((one, at) => {
  for (let next = at + 1; next < lines.length && lines[next].top < one.bottom; next++)
    if (shared(one, lines[next]) > 4) say("texts collide", `${one.text.trim()} | ${lines[next].text.trim()}`);
});

// Contrast of every text with what is painted behind it.
const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
const rgba = (colour) => {
  canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
  return [...canvas.getImageData(0, 0, 1, 1).data];
};
const light = ([r, g, b]) => [r, g, b].map((v) => v / 255).map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
  .reduce((sum, v, at) => sum + v * [0.2126, 0.7152, 0.0722][at], 0);
const over = (top, below) => { const a = top[3] / 255; return [0, 1, 2].map((at) => top[at] * a + below[at] * (1 - a)).concat(255); };
const paper = over(rgba(getComputedStyle(document.body).backgroundColor), [255, 255, 255, 255]);
const behind = (el) => {
  const layers = [];
  for (let at = el; at; at = at.parentElement) layers.unshift(rgba(getComputedStyle(at).backgroundColor));
  return layers.reduce((below, layer) => over(layer, below), paper);
};
const painted = (text) => {
  const box = text.getBoundingClientRect(), x = box.left + box.width / 2, y = box.top + box.height / 2;
  const stack = document.elementsFromPoint(x, y).filter((el) => el.closest("svg") && !el.closest("text") && el.tagName !== "svg");
  const shape = stack.map((el) => getComputedStyle(el)).find((style) => style.fill !== "none" && !style.fill.startsWith("url"));
  const back = behind(text.closest("svg").parentElement);
  if (!shape) return back;
  const fill = rgba(shape.fill); fill[3] *= Number(shape.fillOpacity) * Number(shape.opacity);
  return over(fill, back);
};
const contrast = (a, b) => { const [x, y] = [light(a), light(b)].sort((m, n) => n - m); return (x + 0.05) / (y + 0.05); };
const judge = (el, colour, back, text) => {
  const style = getComputedStyle(el), size = parseFloat(style.fontSize);
  const graphic = el.getAttribute("aria-hidden") === "true"; // a mark, not a letter: WCAG 1.4.11
  const least = graphic || size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700) ? largeContrast : leastContrast;
  const ratio = contrast(over(colour, back), back);
  if (ratio < least) say("low contrast", text, ratio.toFixed(2));
};
for (const el of new Set(lines.map((it) => it.el))) judge(el, rgba(getComputedStyle(el).color), behind(el), el.textContent);
for (const svg of charts) for (const text of [...svg.querySelectorAll("text")].filter(seen))
  judge(text, rgba(getComputedStyle(text).fill), painted(text), text.textContent);

// What a finger or a keyboard gets at.
for (const el of document.querySelectorAll("a[href], button, summary, input, select")) {
  if (!seen(el) || el.classList.contains("skip")) continue;
  const box = el.getBoundingClientRect();
  if (!(el.textContent.trim() || el.getAttribute("aria-label"))) say("nothing to read on a control", el.outerHTML);
  const inSentence = getComputedStyle(el).display === "inline" && el.closest("p, li, td, figcaption, dd, h2, h3");
  if (!inSentence && (box.width < leastTarget || box.height < leastTarget))
    say("small target", el.textContent, `${box.width.toFixed(0)}x${box.height.toFixed(0)}`);
  if (el.tabIndex < 0) say("not to be reached by keyboard", el.textContent);
}
for (const el of document.querySelectorAll(".scroll, pre")) if (seen(el) && el.scrollWidth > el.clientWidth + 1 && el.tabIndex < 0)
  say("scrolls only by mouse", el.textContent);
for (const el of document.querySelectorAll(".scroll")) if (seen(el) && el.scrollWidth > el.clientWidth + 1 && el.clientWidth < leastWidth * width)
  say("cut off beside white", el.textContent, `${el.clientWidth} of ${el.scrollWidth} in ${width}`);
const ids = [...document.querySelectorAll("[id]")].map((el) => el.id);
for (const id of ids.filter((id, at) => ids.indexOf(id) < at)) say("two of one id", id);
for (const el of document.querySelectorAll('a[href^="#"]'))
  if (!document.getElementById(decodeURIComponent(el.hash.slice(1)))) say("leads nowhere", el.hash);
for (const table of document.querySelectorAll("table")) if (!table.querySelector("th")) say("table without heads", table.textContent);
if (!page.lang) say("no language", document.title);
if (document.querySelectorAll("h1").length !== 1 || !document.querySelector("main")) say("no single head, or no main part", document.title);
return [...new Set(found)];
