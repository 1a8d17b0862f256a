"""The style sheet of the report: for light and dark screens, and for print."""

__all__ = ["STYLE"]

_PRINTED = """
  --paper: #ffffff; --ink: #000000; --soft: #444444; --line: #cccccc; --card: #ffffff; --good: #1a7f4b; --bad: #b3261e;
  --c1: #2f6fde; --c2: #e07a1f; --c3: #2a9d6f; --c4: #b5489b; --c5: #8a6d3b; --c6: #7d8597; """

STYLE = """
:root { color-scheme: light dark;
  --paper: #ffffff; --ink: #1c2230; --soft: #5b6475; --line: #e3e7ee; --card: #f6f8fb; --good: #1a7f4b; --bad: #b3261e;
  --c1: #2f6fde; --c2: #e07a1f; --c3: #2a9d6f; --c4: #b5489b; --c5: #8a6d3b; --c6: #7d8597; }
@media (prefers-color-scheme: dark) { :root {
  --paper: #12161f; --ink: #e6e9f0; --soft: #9aa4b8; --line: #2a3140; --card: #1a202c; --good: #5fd39a; --bad: #ff8a80;
  --c1: #6ea4ff; --c2: #ffad5c; --c3: #5fd3a3; --c4: #e58fd0; --c5: #cfb27a; --c6: #a3abbd; } }
:root.printed { PRINTED } /* while a browser prints: a canvas is drawn before the page takes the style of print */
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 15px/1.55 system-ui, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 28px 22px 60px; }
h1 { font-size: 26px; margin: 0 0 2px; } h2 { font-size: 19px; margin: 44px 0 4px; }
h3 { font-size: 15px; margin: 22px 0 4px; }
p { margin: 6px 0; } .sub, .what, caption { color: var(--soft); }
nav { margin: 14px 0 0; font-size: 13px; } nav a { color: var(--soft); margin-right: 14px; text-decoration: none; }
nav a:hover { color: var(--ink); text-decoration: underline; }
.verdict { border-left: 4px solid var(--c1); background: var(--card); padding: 14px 20px; margin: 20px 0;
  border-radius: 0 8px 8px 0; } .verdict p { margin: 7px 0; } .verdict p:first-child { font-size: 17px; }
.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(235px, 1fr)); gap: 12px; margin: 18px 0; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 12px 14px; }
.card b { display: block; font-size: 22px; line-height: 1.25; } .card i { font-style: normal; font-weight: 600; }
.card span { color: var(--soft); font-size: 13px; display: block; line-height: 1.4; margin-top: 3px; }
.narrow { display: none; } .pair .narrow svg { font-size: 9.5px; }
@media screen and (max-width: 560px) { .wide { display: none; } .narrow { display: block; }
  .pair .narrow svg { font-size: 12px; } main { padding: 18px 14px; }
  h1, dd, p { overflow-wrap: anywhere; } td { min-width: 5em; } caption { max-width: calc(100vw - 28px); } }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(430px, 100%), 1fr)); gap: 22px;
  align-items: start; }
figure { margin: 14px 0; max-width: 800px; } figcaption { color: var(--soft); font-size: 13px; }
svg { width: 100%; height: auto; display: block; font: 12px system-ui, "Segoe UI", Roboto, Arial, sans-serif; }
.pair .wide { display: none; } .pair .narrow { display: block; }
svg text { fill: var(--soft); } svg .label, svg .value, svg .legend { fill: var(--ink); }
svg .grid { stroke: var(--line); stroke-width: 1; }
svg .line { fill: none; stroke-width: 2; stroke-linejoin: round; } svg .dashed { stroke-dasharray: 5 4; }
svg .dots { fill: none; stroke-width: 3.4; stroke-linecap: round; }
.fill1 { fill: var(--c1); } .fill2 { fill: var(--c2); } .fill3 { fill: var(--c3); } .fill4 { fill: var(--c4); }
.fill5 { fill: var(--c5); } .fill6 { fill: var(--c6); }
.line1 { stroke: var(--c1); } .line2 { stroke: var(--c2); } .line3 { stroke: var(--c3); } .line4 { stroke: var(--c4); }
.line5 { stroke: var(--c5); } .line6 { stroke: var(--c6); }
.scroll { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-size: 13.5px; margin: 10px 0; }
caption { text-align: left; padding: 4px 0; font-size: 13px; }
th { text-align: left; color: var(--soft); font-weight: 600; border-bottom: 2px solid var(--line); padding: 5px 7px; }
td { border-bottom: 1px solid var(--line); padding: 5px 7px; vertical-align: top; } .s { white-space: nowrap; }
.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.bad { color: var(--bad); font-weight: 600; } .good { color: var(--good); font-weight: 600; }
.filters { display: flex; flex-wrap: wrap; gap: 8px 14px; font-size: 13px; margin: 10px 0; }
.filters[hidden], .filters label[hidden] { display: none; } .filters select { max-width: 220px; }
.streams tr.drawable { cursor: pointer; } .streams tr[aria-selected="true"] td { background: var(--card); }
.streams tr.drawable td:first-child { color: var(--c1); text-decoration: underline; }
.drawing canvas { touch-action: pan-y; cursor: crosshair; display: block; max-width: 100%; }
.hint { color: var(--soft); font-size: 13px; }
.drawing .legend span { font-size: 13px; margin-right: 14px; white-space: nowrap; }
.drawing .legend span::before { content: ""; display: inline-block; width: 10px; height: 10px; margin-right: 5px;
  border-radius: 2px; background: var(--tone); }
#connections .scroll { max-height: 420px; overflow-y: auto; }
dl { margin: 8px 0; } dt { font-weight: 600; margin-top: 8px; } dd { margin: 0; color: var(--soft); }
@media print { :root { PRINTED }
  .legend span::before { print-color-adjust: exact; }
  body { font-size: 9.5pt; line-height: 1.4; } main { padding: 0; max-width: none; }
  nav, .filters, .hint, .drawing button { display: none; }
  .scroll, #connections .scroll { overflow: visible; max-height: none; }
  .cards { grid-template-columns: repeat(4, 1fr); gap: 8px; } .card { padding: 8px 10px; } .card b { font-size: 17px; }
  .pair { grid-template-columns: 1fr 1fr; } figure { max-width: 600px; } .drawing canvas { height: auto; }
  table { font-size: 7.5pt; } caption, figcaption { font-size: 8.5pt; }
  th, td { padding: 2px 4px; } td { overflow-wrap: anywhere; }
  figure, tr, dt, .card, .verdict { break-inside: avoid; } h2, h3, .what, caption, dt { break-after: avoid; }
  h2 { margin-top: 24px; } }
""".replace("PRINTED", _PRINTED)
