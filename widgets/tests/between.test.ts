// @vitest-environment jsdom
import { expect, test } from "vitest";
import { type Shown, tiesOf } from "../src/graph/between";
import { Drawing } from "../src/graph/draw/drawing";
import type { Palette } from "../src/graph/draw/palette";
import { treeOf } from "../src/graph/layout/hierarchy";
import { placeAll } from "../src/graph/layout/place";
import { sceneOf } from "../src/graph/layout/scene";
import { model as fixture } from "./fixture";

const model = fixture();

function shown(stage: number, isOpen = true): Shown {
  const tree = treeOf(model, [stage]);
  const scene = sceneOf(tree, () => isOpen);
  return {
    drawing: new Drawing(tree, scene, placeAll(scene.shape)),
    canvas: document.createElement("canvas"),
    view: { scale: 2, x: 5, y: 7 },
    colouring: {} as Palette,
  };
}

test("a line connects where a residual is saved with where it is read", () => {
  const [forward, backward] = [shown(0), shown(1)];
  const bytes = (r: number) => model.residuals[r]!.nbytes;
  const ties = tiesOf(forward, backward, bytes);
  const kept = [...forward.drawing!.scene.kept.values()].flat().map((stub) => stub.residual);
  const taken = [...backward.drawing!.scene.taken.values()].flat().map((stub) => stub.residual);
  expect(ties.length).toBeGreaterThan(0);
  expect(ties.flatMap((tie) => tie.residuals).sort()).toEqual(kept.filter((r) => taken.includes(r)).sort());
  for (const { residuals, from } of ties) {
    const { at, tree, scene } = forward.drawing!;
    const box = scene.boxOf[tree.ofRow[model.residuals[residuals[0]!]!.producer]!]!;
    expect(from.y).toBeGreaterThan(2 * at.y[box]! + 7);
    expect(from.y).toBeLessThan(2 * (at.y[box]! + at.height[box]!) + 7);
  }
});

test("there are no lines between stages that share no residuals", () => {
  expect(tiesOf(shown(0), shown(0), () => 1)).toEqual([]);
});
