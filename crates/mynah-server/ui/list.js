// A list of rows of one height, of which only the visible ones are in the document.

import { h } from "./dom.js";

const SPARE = 8;

export class RowList {
  /** `row(index)` makes the content of a row; `choose(index)` is called when one is selected. `head` stays above the rows. */
  constructor({ label, height, row, choose, head = "" }) {
    Object.assign(this, { height, row, choose, length: 0, selected: -1, drawn: new Map() });
    this.id = `rows-${RowList.made += 1}`;
    this.canvas = h("div", { class: "rows-canvas", role: "presentation" });
    this.element = h("div", { class: "rows", role: "listbox", tabindex: "0", "aria-label": label, onscroll: () => this.draw(), onkeydown: (event) => this.key(event) }, head, this.canvas);
    this.above = head ? height : 0;
    new ResizeObserver(() => this.draw()).observe(this.element);
  }

  resize(length) {
    this.length = length;
    this.canvas.style.setProperty("height", `${length * this.height}px`);
    this.element.style.setProperty("--content", `${Math.max(1, length) * this.height + this.above + 2}px`);
    this.redraw();
  }

  /** Makes every visible row anew. */
  redraw() {
    this.drawn.clear();
    this.canvas.replaceChildren();
    this.draw();
  }

  draw() {
    const { scrollTop, clientHeight } = this.element;
    const from = Math.max(0, Math.floor(scrollTop / this.height) - SPARE);
    const to = Math.min(this.length, Math.ceil((scrollTop + (clientHeight || 600)) / this.height) + SPARE);
    for (const [index, element] of this.drawn) {
      if (index >= from && index < to) continue;
      element.remove();
      this.drawn.delete(index);
    }
    for (let index = from; index < to; index += 1) {
      if (this.drawn.has(index)) continue;
      const element = this.row(index);
      element.id = `${this.id}-${index}`;
      element.classList.add("row");
      element.classList.toggle("selected", index === this.selected);
      element.setAttribute("role", "option");
      element.setAttribute("aria-selected", String(index === this.selected));
      element.setAttribute("aria-posinset", String(index + 1));
      element.setAttribute("aria-setsize", String(this.length));
      element.style.setProperty("top", `${index * this.height}px`);
      element.style.setProperty("height", `${this.height}px`);
      element.addEventListener("click", () => this.choose(index));
      this.drawn.set(index, element);
      this.canvas.append(element);
    }
    this.point();
  }

  point() {
    if (this.drawn.has(this.selected)) this.element.setAttribute("aria-activedescendant", `${this.id}-${this.selected}`);
    else this.element.removeAttribute("aria-activedescendant");
  }

  /** Marks a row, and brings it on screen. */
  select(index, scroll = true) {
    for (const [place, element] of this.drawn) {
      element.classList.toggle("selected", place === index);
      element.setAttribute("aria-selected", String(place === index));
    }
    this.selected = index;
    if (scroll && index >= 0) {
      const top = index * this.height;
      const { scrollTop, clientHeight } = this.element;
      if (top < scrollTop) this.element.scrollTop = top - this.height;
      else if (clientHeight > 0 && top + this.height + this.above > scrollTop + clientHeight) this.element.scrollTop = top + this.above + 2 * this.height - clientHeight;
      this.draw();
    }
    this.point();
  }

  key(event) {
    const page = Math.max(1, Math.floor(this.element.clientHeight / this.height) - 1);
    const to = { ArrowDown: this.selected + 1, ArrowUp: this.selected - 1, PageDown: this.selected + page, PageUp: this.selected - page, Home: 0, End: this.length - 1 }[event.key];
    if (to === undefined || this.length === 0 || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    this.choose(Math.min(this.length - 1, Math.max(0, to)));
  }
}
RowList.made = 0;
