// @vitest-environment jsdom
import { afterEach, beforeEach, expect, test } from "vitest";
import { h, section } from "../src/ui/dom";
import { fullButton } from "../src/ui/full";

const pane = (id: string) => section({ class: "jv-pane", "data-testid": id }, [id]);
const guard = (...inside: HTMLElement[]) => h("div", { class: "jv-guard" }, ...inside);

let root: HTMLElement;
let codes: HTMLElement;
const alone = () =>
  [...root.querySelectorAll<HTMLElement>(".jv-alone")].map((each) => each.dataset["testid"]);
const press = (id: string) =>
  root.querySelector<HTMLElement>(`[data-testid=${id}] .jv-full`)!.dispatchEvent(new MouseEvent("click"));

beforeEach(() => {
  codes = h("div", { class: "jv-codes" }, guard(pane("code")), guard(pane("other")));
  root = h("div", { class: "jaxviz" }, codes, guard(pane("source")));
  document.body.append(root);
});

afterEach(() => document.body.replaceChildren());

test("a pane is maximised and restored", () => {
  press("code");
  expect(alone()).toEqual(["code"]);
  expect(root.classList.contains("jv-holds-alone")).toBe(true);
  expect(codes.classList.contains("jv-holds-alone")).toBe(true);
  press("code");
  expect(alone()).toEqual([]);
  expect(document.querySelectorAll(".jv-holds-alone")).toHaveLength(0);
});

test("the overview and the animation can be maximised, too", () => {
  for (const name of ["overview", "motion"]) {
    root.append(guard(h("section", { class: `jv-${name}`, "data-testid": name }, fullButton())));
    press(name);
    expect(alone()).toEqual([name]);
    press(name);
  }
});

test("rows of the switches are not mistaken for panes", () => {
  codes.append(h("tbody", { class: "jv-around" }));
  press("code");
  expect(alone()).toEqual(["code"]);
});

test("Escape restores it, and does nothing else", () => {
  press("source");
  let heard = 0;
  root.addEventListener("keydown", () => {
    heard += 1;
  });
  codes.addEventListener("keydown", () => {
    heard += 1;
  });
  codes.dispatchEvent(new KeyboardEvent("keydown", { key: "Escape", bubbles: true }));
  expect([alone(), heard]).toEqual([[], 0]);
  root.dispatchEvent(new KeyboardEvent("keydown", { key: "Escape" }));
  expect(heard).toBe(1);
});

test("a pane that replaces a maximised one is maximised", async () => {
  press("code");
  codes.firstElementChild!.replaceWith(guard(guard(pane("graph"))));
  await new Promise((resolve) => setTimeout(resolve));
  expect(alone()).toEqual(["graph"]);
  press("graph");
  expect(alone()).toEqual([]);
});
