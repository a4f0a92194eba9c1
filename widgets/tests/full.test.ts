// @vitest-environment jsdom
import { afterEach, beforeEach, expect, test } from "vitest";
import { h } from "../src/ui/dom";
import { FullScreen } from "../src/ui/full";

let root: HTMLElement;
let full: FullScreen;
const isOn = () => [root.classList.contains("jv-fills"), full.button.getAttribute("aria-pressed")];
const press = (key: string) =>
  root.firstElementChild!.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));

beforeEach(() => {
  root = h("div", { class: "jaxviz" }, h("p"));
  document.body.append(root);
  full = new FullScreen(root);
});

afterEach(() => {
  full.destroy();
  document.body.replaceChildren();
});

test("without the browser's full screen, the explorer fills the window and leaves it again", async () => {
  expect(isOn()).toEqual([false, "false"]);
  full.button.click();
  expect(isOn()).toEqual([true, "true"]);
  full.toggle();
  expect(isOn()).toEqual([false, "false"]);
  // A page in a frame may not be allowed to use the screen.
  root.requestFullscreen = () => Promise.reject(new TypeError("not allowed"));
  full.toggle();
  await Promise.resolve();
  expect(isOn()).toEqual([true, "true"]);
});

test("Escape leaves it and does nothing else; then it has its other meanings", () => {
  const pressed: string[] = [];
  root.firstElementChild!.addEventListener("keydown", (event) => pressed.push((event as KeyboardEvent).key));
  full.toggle();
  press("w");
  // What is open inside is closed first.
  root.classList.add("is-playing");
  press("Escape");
  expect([isOn(), pressed.splice(1)]).toEqual([[true, "true"], ["Escape"]]);
  root.classList.remove("is-playing");
  press("Escape");
  expect([isOn(), pressed]).toEqual([[false, "false"], ["w"]]);
  press("Escape");
  expect(pressed).toEqual(["w", "Escape"]);
});

test("the browser's full screen is left in its own way, and with the explorer", async () => {
  let screen: Element | null = null;
  const set = (element: Element | null) => {
    screen = element;
    document.dispatchEvent(new Event("fullscreenchange"));
  };
  Object.defineProperty(document, "fullscreenElement", { get: () => screen, configurable: true });
  document.exitFullscreen = async () => set(null);
  root.requestFullscreen = async () => set(root);
  full.toggle();
  expect(isOn()).toEqual([false, "true"]);
  set(null);
  expect(isOn()).toEqual([false, "false"]);
  full.toggle();
  full.destroy();
  expect(screen).toBe(null);
});
