// @vitest-environment jsdom
import { beforeEach, expect, test } from "vitest";
import { h } from "../src/ui/dom";
import { Rows } from "../src/ui/rows";

const HEIGHT = 10;
const SIGHT = 300;

let scroller: HTMLElement;
let body: HTMLElement;
let gone: number[];
let rows: Rows;

/** Rows of equal height in a scroller that shows thirty of them; jsdom has no layout. */
beforeEach(() => {
  body = h("tbody");
  scroller = h("div", h("table", body));
  Object.defineProperty(scroller, "clientHeight", { value: SIGHT });
  document.body.replaceChildren(scroller);
  gone = [];
  rows = new Rows(scroller, body, (i) => gone.push(i));
});

function row(i: number): HTMLElement {
  const tr = h("tr", { "data-i": i, tabindex: -1 });
  tr.getBoundingClientRect = () => new DOMRect(0, i * HEIGHT, 100, HEIGHT);
  return tr;
}

const there = () =>
  Array.from(body.querySelectorAll<HTMLElement>("[data-i]"), (tr) => Number(tr.dataset["i"]));

function scrollTo(y: number): void {
  scroller.scrollTop = y;
  scroller.dispatchEvent(new Event("scroll"));
}

/** The total height of the table: its rows and the spacers. */
function total(): number {
  const spacers = Array.from(body.querySelectorAll<HTMLElement>(".jv-spacer"), (s) =>
    parseFloat(s.style.height),
  );
  return spacers.reduce((a, b) => a + b, 0) + HEIGHT * there().length;
}

test("a few rows are all rendered", () => {
  rows.show(100, row);
  expect(there()).toEqual(Array.from({ length: 100 }, (_, i) => i));
});

test.each([0, 5_000, 31_234, 99_700])("of many rows, the visible ones at %i are rendered, in order", (y) => {
  rows.show(10_000, row);
  scrollTo(y);
  scrollTo(y);
  const shown = there();
  expect(shown.length).toBeLessThan(250);
  expect(shown).toEqual(Array.from({ length: shown.length }, (_, i) => shown[0]! + i));
  const [first, last] = [Math.floor(y / HEIGHT), Math.ceil((y + SIGHT) / HEIGHT)];
  expect(shown[0]).toBeLessThanOrEqual(first);
  expect(shown.at(-1)).toBeGreaterThanOrEqual(Math.min(last, 9_999));
  expect(total()).toBe(10_000 * HEIGHT);
});

test("rows are removed when they scroll away, except a focused one", () => {
  rows.show(10_000, row);
  body.querySelector<HTMLElement>("[data-i='3']")!.focus();
  scrollTo(50_000);
  expect(there()).toContain(3);
  expect(gone).not.toContain(3);
  expect(gone).toContain(20);
  expect(there()).not.toContain(20);
  expect(there()[0]).toBe(0);
});

test("a requested row is rendered", () => {
  rows.show(10_000, row);
  rows.bring(7_777);
  expect(there()).toContain(7_777);
  const before = scroller.scrollTop;
  rows.bring(7_778);
  expect(scroller.scrollTop).toBe(before);
});

test("new rows replace the previous ones", () => {
  rows.show(10_000, row);
  rows.show(2, row);
  expect(there()).toEqual([0, 1]);
  expect(body.children).toHaveLength(2);
});
