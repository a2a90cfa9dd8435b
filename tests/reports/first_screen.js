// Body of a function that says what the first screen of the page on show holds; called by geometry.py.
const box = (name) => document.querySelector(name)?.getBoundingClientRect();
const range = document.createRange();
range.selectNodeContents(document.querySelector("h1"));
const tops = new Set([...range.getClientRects()].map((it) => Math.round(it.top)));
const chart = [...document.querySelectorAll("header figure svg")].find((it) => it.checkVisibility());
const sizes = [...document.querySelectorAll("header *, main *")].filter((it) => it.checkVisibility() && !it.closest("svg")
  && [...it.childNodes].some((node) => node.nodeType === 3 && /\d/.test(node.textContent)))
  .map((it) => [parseFloat(getComputedStyle(it).fontSize), it.textContent.trim()]).sort((a, b) => b[0] - a[0]);
return {lines: tops.size, chart_bottom: chart ? chart.getBoundingClientRect().bottom : null,
  chart_height: chart ? chart.getBoundingClientRect().height : null, largest: sizes[0], second: sizes[1],
  window: innerHeight};
