"""The style sheet of a page: calm, in light and dark, on a phone, a desk and paper."""

from __future__ import annotations

STYLE = """
:root {
  color-scheme: light dark;
  --paper: #fcfbf8; --raised: #ffffff; --ink: #1d2227; --soft: #565d66; --rule: #dedad0; --faint: #ece8df;
  --accent: #1b5887; --on: #ffffff; --note: #f5efdd;
  --c0: #1f5f99; --c1: #b9501a; --c2: #2a7747; --c3: #84489a; --c4: #a8323e; --c5: #0d757f; --c6: #74641a;
  --c7: #59616d;
  --forward: #2b6390; --backward: #a64d17; --encode: #2a7747; --decode: #84489a; --wire: #59616d; --stalled: #8d8674;
  --serif: ui-serif, "Iowan Old Style", "Palatino Linotype", Palatino, Georgia, "Times New Roman", serif;
  --sans: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
  --mono: ui-monospace, "SF Mono", Menlo, Consolas, "Liberation Mono", monospace;
}
@media screen and (prefers-color-scheme: dark) {
  :root {
    --paper: #15181b; --raised: #1c2024; --ink: #e7e4dc; --soft: #a9aeb5; --rule: #373c42; --faint: #272b30;
    --accent: #86bdea; --on: #10151a; --note: #2a271c;
    --c0: #74b3e6; --c1: #f19c60; --c2: #70c792; --c3: #cda1dd; --c4: #f08a95; --c5: #5cc6cf; --c6: #d0bc5e;
    --c7: #aab3c0;
    --forward: #74b3e6; --backward: #f19c60; --encode: #70c792; --decode: #cda1dd; --wire: #aab3c0; --stalled: #877f6c;
  }
}
*, *::before, *::after { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; text-size-adjust: 100%; scroll-behavior: smooth; }
@media (prefers-reduced-motion: reduce) { html { scroll-behavior: auto; } }
body {
  margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.55 var(--sans);
  font-variant-numeric: tabular-nums; overflow-wrap: break-word;
}
.wide { max-width: 1148px; margin: 0 auto; padding: 0 24px; }
.skip { position: absolute; left: -9999px; top: 0; background: var(--raised); color: var(--accent); padding: 8px 14px; }
.skip:focus { left: 8px; top: 8px; z-index: 3; }
:focus-visible { outline: 3px solid var(--accent); outline-offset: 2px; border-radius: 2px; }
a { color: var(--accent); text-underline-offset: 3px; text-decoration-thickness: 1px; }
header { padding: 56px 0 8px; }
.kicker { margin: 0 0 14px; color: var(--soft); font-size: 14px; letter-spacing: .02em; }
h1 { margin: 0; font: 500 clamp(25px, 1.1rem + 2vw, 40px)/1.22 var(--serif); max-width: 27em; text-wrap: balance; }
.lead { margin: 18px 0 0; color: var(--soft); }
nav ul { display: flex; flex-wrap: wrap; gap: 4px 22px; margin: 26px 0 0; padding: 14px 0 0; list-style: none;
  border-top: 1px solid var(--rule); font-size: 15px; }
nav a { display: inline-block; padding: 4px 0; text-decoration: none; }
nav a:hover { text-decoration: underline; }
section { padding: 44px 0 0; }
h2 { margin: 0 0 6px; font: 500 25px/1.25 var(--serif); }
h3 { margin: 0; font: 600 16px/1.4 var(--sans); }
p { margin: 0 0 12px; max-width: 56em; }
.about { color: var(--soft); margin-bottom: 18px; }
.notes { margin: 24px 0 0; padding: 12px 18px 12px 34px; background: var(--note); border-left: 3px solid var(--c6);
  font-size: 15px; }
.notes li { margin: 2px 0; }
.scroll { position: relative; overflow-x: auto; margin: 0; border: 1px solid var(--rule); border-radius: 6px;
  background: var(--raised); }
table { border-collapse: collapse; width: 100%; font-size: 15px; }
caption { text-align: left; padding: 12px 16px; color: var(--soft); font-size: 14px; caption-side: bottom; }
.compare caption span { display: block; position: sticky; left: 16px; max-width: calc(100vw - 66px); }
th, td { padding: 5px 16px; text-align: left; vertical-align: baseline; border-top: 1px solid var(--faint); }
thead th { border-top: 0; padding-top: 16px; white-space: nowrap; }
tbody th { font-weight: 400; }
.compare td, .compare thead th { text-align: right; white-space: nowrap; }
.compare thead span { display: inline-block; max-width: 11em; white-space: normal; overflow-wrap: anywhere; }
.compare thead .swatch { display: block; margin: 0 0 2px auto; }
.compare tbody th, .compare thead th:first-child { position: sticky; left: 0; background: var(--raised); z-index: 1;
  text-align: left; }
.compare .group th { padding: 20px 16px 5px; font: 600 13px/1.4 var(--sans); color: var(--soft); border-top: 0; }
.compare td.meaning, .compare th.meaning { display: none; }
.meaning, .unit { color: var(--soft); font-size: 13px; font-weight: 400; }
.none { color: var(--soft); }
.key { display: flex; flex-wrap: wrap; gap: 4px 10px; margin: 0 0 16px; padding: 0; list-style: none; font-size: 14px; }
.key li, .key button { display: inline-flex; align-items: center; gap: 7px; max-width: 100%; }
.key li { padding: 3px 8px 3px 0; }
.key li:has(button) { padding: 0; }
.key button { font: inherit; color: inherit; background: none; border: 1px solid var(--rule); border-radius: 99px;
  padding: 3px 12px 3px 8px; cursor: pointer; overflow-wrap: anywhere; text-align: left; }
.key button[aria-pressed="false"] { text-decoration: line-through; border-style: dashed; color: var(--soft); }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 440px), 1fr)); gap: 30px 40px; }
figure { margin: 0; min-width: 0; }
figure + figure { margin-top: 26px; }
.charts figure + figure { margin-top: 0; }
figcaption { margin: 0 0 8px; font-size: 15px; }
figcaption span { display: block; color: var(--soft); font-size: 14px; }
.chart { display: none; width: 100%; height: auto; overflow: visible; }
.at-s { display: block; max-width: 440px; }
.at-m { max-width: 740px; }
.charts .at-m { max-width: 560px; }
.swatch { flex: none; overflow: visible; }
.chart text, .swatch text { font: 12px var(--sans); fill: var(--soft); }
.chart text.ink { fill: var(--ink); }
.chart text.strong { font-weight: 600; }
.chart text.small { font-size: 11px; }
.chart text.on { fill: var(--on); font-size: 11px; }
.chart text.halo { paint-order: stroke; stroke: var(--paper); stroke-width: 4px; stroke-linejoin: round; }
.grid { stroke: var(--faint); fill: none; }
.axis { stroke: var(--rule); fill: none; }
.limit { stroke: var(--soft); stroke-dasharray: 3 4; fill: none; }
.whole { stroke: var(--ink); stroke-width: 1.5; fill: none; }
.line { fill: none; stroke: currentColor; stroke-width: 2; stroke-linejoin: round; }
.thin { stroke-width: 1.2; }
.mark { fill: currentColor; stroke: var(--paper); stroke-width: 1.2; }
.hit { fill: var(--ink); fill-opacity: 0; }
.hit:hover, .hit.on { fill-opacity: .07; }
.off { display: none; }
.unseen { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); white-space: nowrap; }
.c0 { color: var(--c0); } .c1 { color: var(--c1); } .c2 { color: var(--c2); } .c3 { color: var(--c3); }
.c4 { color: var(--c4); } .c5 { color: var(--c5); } .c6 { color: var(--c6); } .c7 { color: var(--c7); }
.k-computed, .k-forward { fill: var(--forward); }
.k-backward { fill: var(--backward); }
.k-recompute, .k-other { fill: var(--c5); }
.k-weight { fill: var(--c6); }
.k-encode { fill: var(--encode); }
.k-decode { fill: var(--decode); }
.k-wire { fill: var(--wire); }
.k-stalled { fill: url(#waiting); stroke: var(--stalled); stroke-width: 1; }
.weave { stroke: var(--stalled); stroke-width: 2; }
.defs { position: absolute; width: 0; height: 0; }
.run { padding: 18px 0; border-top: 1px solid var(--rule); }
.run h3 { margin: 0 0 8px; overflow-wrap: anywhere; }
summary { cursor: pointer; padding: 6px 2px; color: var(--accent); width: fit-content; max-width: 100%; font-size: 15px;
  overflow-wrap: anywhere; }
.run .scroll { margin: 8px 0 16px; }
.facts caption { caption-side: top; padding: 12px 16px 6px; }
.facts th { width: 11em; color: var(--soft); }
.facts td { overflow-wrap: anywhere; }
.made { display: flex; gap: 10px; align-items: flex-start; margin: 0 0 12px; }
.made pre { flex: 1; min-width: 0; }
.word { display: inline-block; max-width: 100%; }
pre { margin: 0; padding: 12px 16px; background: var(--raised); border: 1px solid var(--rule); border-radius: 6px;
  font: 13.5px/1.5 var(--mono); white-space: pre-wrap; overflow-wrap: anywhere; }
.copy { display: none; font: 13px var(--sans); color: var(--accent); background: var(--raised); cursor: pointer;
  border: 1px solid var(--rule); border-radius: 5px; padding: 5px 14px; min-height: 34px; }
.scripted .copy { display: inline-block; }
.tip { position: absolute; z-index: 2; pointer-events: none; white-space: pre-line; max-width: 260px; padding: 7px 11px;
  background: var(--ink); color: var(--paper); border-radius: 5px; font-size: 13px; line-height: 1.45; }
footer { margin: 52px 0 0; padding: 22px 0 48px; border-top: 1px solid var(--rule); color: var(--soft);
  font-size: 14px; }
@media (min-width: 700px) {
  .at-s { display: none; }
  .at-m { display: block; }
  .compare td.meaning, .compare th.meaning { display: table-cell; text-align: left; white-space: normal;
    min-width: 17em; }
  .compare tbody th { min-width: 13em; }
}
@media (min-width: 1140px) {
  .chart:has(+ .at-l) { display: none; }
  .at-l { display: block; }
  .three { grid-template-columns: repeat(3, minmax(0, 1fr)); gap: 30px 36px; }
  .three .at-s { display: block; }
  .three .at-m { display: none; }
}
@media (max-width: 560px) {
  .wide { padding: 0 15px; }
  header { padding-top: 30px; }
  section { padding-top: 36px; }
  th, td, .compare .group th { padding-left: 8px; padding-right: 8px; }
  .compare { font-size: 13px; }
  .compare td, .compare thead th + th { padding-left: 2px; padding-right: 7px; }
  .compare tbody th { min-width: 5.6em; max-width: 7.4em; padding-right: 2px; }
  .compare .unit { font-size: 12px; }
  .facts th { width: 7em; }
  .facts caption { padding-left: 8px; }
  .made { flex-direction: column; align-items: stretch; gap: 8px; }
  .made pre { flex: none; }
  .copy { align-self: flex-start; }
}
@media print {
  :root { color-scheme: light; --paper: #fff; --raised: #fff; --ink: #000; --soft: #444; --rule: #bbb; --faint: #ddd;
    --note: #f3f3f3; }
  body { font-size: 11pt; }
  .wide { max-width: none; padding: 0; }
  nav, .skip, .copy, .scripted .copy, .tip { display: none; }
  section, figure, pre { break-inside: avoid; }
  section { padding-top: 22px; }
  .scroll { overflow: visible; border: 0; }
  .compare tbody th, .compare thead th:first-child { position: static; }
  .compare tbody th, .compare td.meaning, .compare th.meaning { min-width: 0; }
  th, td { padding: 3px 8px; }
}
"""
"""Colours have a contrast of 4.5 to 1 with what is behind them where they are text, and 3 to 1 where they are lines."""
