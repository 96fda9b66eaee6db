// Small charts over time.

import { exactly, h, svg } from "./dom.js";

/** Bars over time under a number; `value` and `format` make of a bucket what is shown, `range` has words for both ends. */
export function sparkline({ title, buckets, value, format, range, tone = "model" }) {
  const values = buckets.map(value);
  const most = Math.max(...values, 0);
  const total = values.reduce((sum, one) => sum + one, 0);
  const width = 4 * Math.max(1, values.length);
  const bars = values.map((one, place) => {
    const height = most === 0 || one === 0 ? 0 : Math.max(1.5, 30 * one / most);
    const bar = svg("rect", { x: 4 * place + 0.5, y: 32 - height, width: 3, height, rx: 0.6, class: `spark-${tone}` });
    bar.append(svg("title", {}, `${format(one)}, from ${exactly(buckets[place].from / 1e6)}`));
    return bar;
  });
  return h("div", { class: "spark" }, h("div", { class: "spark-head" }, h("span", { class: "spark-title" }, title), h("strong", {}, format(total))),
    svg("svg", { viewBox: `0 0 ${width} 32`, preserveAspectRatio: "none", role: "img", "aria-label": `${title} over time, ${format(total)} in all, at most ${format(most)} at once` }, svg("line", { x1: 0, x2: width, y1: 31.5, y2: 31.5, class: "spark-ground" }), ...bars), h("div", { class: "spark-axis", "aria-hidden": "true" }, range.map((words) => h("span", {}, words))));
}
