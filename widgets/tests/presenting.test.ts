// @vitest-environment jsdom
import { expect, test, vi } from "vitest";
import { Presenting } from "../src/main/presenting";
import type { Player } from "../src/model/player";
import { State } from "../src/state/state";
import { FullScreen } from "../src/ui/full";
import { model } from "./fixture";

test("arrow keys go through the questions while one is presented, and Escape ends it with the full screen", () => {
  const root = document.createElement("div");
  root.append(document.createElement("input"));
  document.body.append(root);
  const state = new State(model());
  const full = new FullScreen(root);
  const presenting = new Presenting(root, state, full, ["lines", "cost", "what-if"]);
  const press = (key: string, target: Element = root) =>
    target.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
  press("ArrowRight");
  expect(state.view).toBe("");
  presenting.toggle();
  expect([presenting.isOn, full.isOn, state.view]).toEqual([true, true, "lines"]);
  const seen = ["ArrowLeft", "ArrowRight", "PageDown", "PageDown", "PageUp"].map((key) => {
    press(key);
    return state.view;
  });
  expect(seen).toEqual(["lines", "cost", "what-if", "what-if", "cost"]);
  press("ArrowRight", root.firstElementChild!);
  expect(state.view).toBe("cost");
  // Of the rules, which are shown over a question, a key closes or steps one thing.
  const later = vi.fn();
  root.addEventListener("keydown", later, true);
  state.setPlayer({} as Player);
  press("PageUp");
  expect([state.view, later.mock.calls.length]).toEqual(["lines", 0]);
  press("Escape");
  expect([presenting.isOn, full.isOn, later.mock.calls.length]).toEqual([true, true, 1]);
  state.setPlayer(null);
  press("Escape");
  expect([presenting.isOn, full.isOn]).toEqual([false, false]);
  presenting.destroy();
  full.destroy();
});
