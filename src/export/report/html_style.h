// How report.html looks: one column on a phone, as many drawings beside each other as a wider screen holds,
// light or dark as the reader's system is.
#pragma once
#include <string_view>

namespace llmq {

inline constexpr std::string_view kReportStyle = R"css(
:root { color-scheme: light dark; --page: #f6f7f9; --card: #ffffff; --ink: #1b1e24; --soft: #626b7a;
  --line: #e2e5ea;
  --accent: #1f5fd6; --pale: #c6d2e8; --good: #1a7f4b; --bad: #b3261e; --hue: 31 95 214; }
@media (prefers-color-scheme: dark) { :root { --page: #101216; --card: #191c22; --ink: #e9ebef;
  --soft: #9aa3b2;
  --line: #2b3038; --accent: #7fb0ff; --pale: #38465f; --good: #6fd39b; --bad: #ff8f85; --hue: 127 176 255; }
  }
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { margin: 0; background: var(--page); color: var(--ink); font: 16px/1.5 system-ui, -apple-system,
  "Segoe UI",
  Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 24px 16px 64px; }
header h1 { font-size: 1.7rem; line-height: 1.2; margin: 8px 0 4px; overflow-wrap: anywhere; }
header p, .note { color: var(--soft); margin: 4px 0 0; }
h2 { font-size: 1.15rem; margin: 40px 0 4px; }
h3 { font-size: .9rem; font-weight: 600; margin: 0 0 6px; overflow-wrap: anywhere; }
code { font: .9em ui-monospace, "Cascadia Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace;
  overflow-wrap: anywhere; }
pre { margin: 8px 0; padding: 12px; border: 1px solid var(--line); border-radius: 8px;
  background: var(--card);
  white-space: pre-wrap; overflow-wrap: anywhere; font: .8rem/1.45 ui-monospace, Menlo, Consolas,
  "DejaVu Sans Mono", monospace; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px;
  margin: 20px 0 0; }
.card, .chart { background: var(--card); border: 1px solid var(--line); border-radius: 10px;
  padding: 12px 14px; min-width: 0; }
.card b { display: block; font-size: 1.35rem; font-weight: 650; line-height: 1.25;
  font-variant-numeric: tabular-nums; }
.card span { display: block; font-size: .82rem; color: var(--soft); }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(330px, 100%), 1fr)); gap: 12px;
  margin: 12px 0 0; }
svg { display: block; width: 100%; height: auto; }
svg text { font-size: 10px; fill: var(--soft); }
.grid { stroke: var(--line); } .axis { stroke: var(--soft); }
.before { fill: var(--pale); } .after { fill: var(--accent); }
g:hover .after { fill: var(--ink); }
.key { display: inline-block; width: 12px; height: 12px; border-radius: 2px; vertical-align: -1px;
  margin: 0 4px 0 0; }
.key.before { background: var(--pale); } .key.after { background: var(--accent); }
.wide { overflow-x: auto; margin: 12px 0 0; border: 1px solid var(--line); border-radius: 10px;
  background: var(--card); }
table { border-collapse: collapse; width: 100%; font-size: .88rem; font-variant-numeric: tabular-nums; }
th, td { padding: 6px 12px; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line); }
tr:last-child td, tr:last-child th { border-bottom: 0; }
th { font-weight: 600; color: var(--soft); } th:first-child, td:first-child { text-align: left; }
td.words { text-align: left; white-space: normal; min-width: 220px; }
table.bits { width: auto; } table.bits td, table.bits thead th { padding: 3px 0; min-width: 27px;
  text-align: center; font-size: .78rem; }
table.bits th:first-child { position: sticky; left: 0; background: var(--card); padding: 3px 12px; }
table.bits td { border: 2px solid var(--card); }
.b2 { background: rgb(var(--hue) / .62); } .b3 { background: rgb(var(--hue) / .46); } .b4 {
  background: rgb(var(--hue) / .32); }
.b8 { background: rgb(var(--hue) / .16); } .b16 { background: rgb(var(--hue) / .05); color: var(--soft); }
ul.notes { margin: 12px 0 0; padding: 0 0 0 20px; } ul.notes li { margin: 2px 0; overflow-wrap: anywhere; }
.good { color: var(--good); } .bad { color: var(--bad); }
details { margin: 12px 0 0; } summary { cursor: pointer; color: var(--accent); }
footer { margin-top: 48px; color: var(--soft); font-size: .85rem; }
@media print { body { background: none; } .chart, .card, .wide { break-inside: avoid; } }
)css";

}  // namespace llmq
