// @vitest-environment jsdom
import { afterEach, expect, test, vi } from "vitest";
import { frame } from "../src/main/frame";
import { host } from "./host";

/** Calls back when told to. */
let resized: () => void;
vi.stubGlobal(
  "ResizeObserver",
  class {
    constructor(callback: () => void) {
      resized = callback;
    }
    observe(): void {}
    unobserve(): void {}
    disconnect(): void {}
  },
);

afterEach(() => document.body.replaceChildren());

/** A part of a page that scrolls, of this height. */
function scroller(height: number, inside: Element): HTMLElement {
  const element = document.createElement("div");
  element.style.overflowY = "auto";
  Object.defineProperty(element, "clientHeight", { value: height, configurable: true });
  element.append(inside);
  return element;
}

function show(height: number, seen: number) {
  const el = document.createElement("div");
  // The output of a cell, which is too low to be the notebook.
  const notebook = scroller(seen, scroller(200, el));
  document.body.append(notebook);
  const model = host({ height });
  const [root, stop] = frame({ model, el }, "explorer");
  resized();
  const drag = (to: string) => {
    root.style.height = to;
    resized();
    window.dispatchEvent(new Event("pointerup"));
  };
  return { root, model, notebook, drag, stop };
}

test("a widget is as high as the visible part of the notebook, and follows it", () => {
  const { root, notebook, stop, model } = show(0, 900);
  expect(root.style.height).toBe("876px");
  Object.defineProperty(notebook, "clientHeight", { value: 700 });
  resized();
  expect(root.style.height).toBe("676px");
  stop();
  expect(model.count()).toBe(0);
  expect(show(0, 400).root.style.height).toBe("520px");
});

test("a drag of the lower edge is remembered, and Python sets the height", () => {
  const { root, model, drag } = show(0, 900);
  drag("640.4px");
  expect([model.values["height"], root.style.height]).toEqual([640, "640px"]);
  resized();
  expect(root.style.height).toBe("640px");
  model.set("height", 0);
  expect(root.style.height).toBe("876px");
  expect(show(600, 900).root.style.height).toBe("600px");
});
