import { expect, test } from "vitest";
import { Matches } from "../src/model/changes";
import type { Changes } from "../src/wire/explorer.generated";
import { model } from "./fixture";

test("rows map to the other version by their numbers within stages", () => {
  const [before, after] = [model(), model()];
  const [from, to] = before.view.stages[1]!.equations;
  const { key } = before.view.stages[1]!;
  const changes = {
    stages: { [key]: { pairs: [[0, 1, to - from - 1]], removed: [[to - from - 1, 1]], added: [[0, 1]] } },
  } as unknown as Changes;
  const there = new Matches(changes, before, after, false);
  const back = new Matches(changes, before, after, true);
  expect(there.of(from)).toBe(from + 1);
  expect(back.of(from + 1)).toBe(from);
  expect(back.of(from)).toBe(-1);
  expect(back.isOnlyHere(from)).toBe(true);
  expect(there.isOnlyHere(to - 1)).toBe(true);
  // A stage that is not compared has no new rows.
  expect(back.isOnlyHere(0)).toBe(false);
  expect([there.counts.get(key), back.counts.get(key)]).toEqual([1, 1]);
});
