import { expect, test } from "vitest";
import widget from "../src/index";

test("the entry is an anywidget module", () => {
  expect(typeof widget.render).toBe("function");
});
