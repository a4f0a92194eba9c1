// @vitest-environment jsdom
import { expect, test } from "vitest";
import { reveal } from "../src/ui/dom";

/** A scroller of 200 px whose heading covers 40, with a child in it; both stand where a browser would have them. */
function scrolled(top: number, height: number) {
  const [scroller, child] = [document.createElement("div"), document.createElement("div")];
  scroller.getBoundingClientRect = () => new DOMRect(0, 0, 100, 200);
  child.getBoundingClientRect = () => new DOMRect(0, top - scroller.scrollTop, 100, height);
  const again = () => {
    reveal(scroller, child, 40);
    return child.getBoundingClientRect().top;
  };
  return again;
}

test.each([
  ["above", -50, 20, 80],
  ["in sight", 100, 20, 100],
  ["below", 300, 20, 140],
])("a child %s is scrolled into view, and stays there", (_, top, height, found) => {
  const again = scrolled(top, height);
  expect([again(), again()]).toEqual([found, found]);
});

test("one that is too high for the scroller begins below the heading, however often it is revealed", () => {
  for (const top of [-50, 100, 300]) {
    const again = scrolled(top, 190);
    expect([again(), again(), again()]).toEqual([80, 80, 80]);
  }
});
