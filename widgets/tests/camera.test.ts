import { expect, test } from "vitest";
import { Camera } from "../src/graph/camera";
import { Drawing } from "../src/graph/draw/drawing";
import { opening, READABLE } from "../src/graph/draw/view";
import { REPEAT, treeOf } from "../src/graph/layout/hierarchy";
import { placeAll } from "../src/graph/layout/place";
import { sceneOf } from "../src/graph/layout/scene";
import { layers, modelOf, type Program } from "./graphs";

const WORLD = { x: 0, y: 0, width: 500, height: 4000 };

function camera(width = 600, height = 400): Camera {
  const made = new Camera(() => {});
  made.resize([width, height, 1]);
  return made;
}

test("the initial view starts at a given box, with a margin above it", () => {
  const { scale, y } = opening(WORLD, 600, 400, { x: 200, y: 1000, width: 100, height: 50 });
  expect(scale).toBeGreaterThanOrEqual(READABLE);
  const top = 1000 * scale + y;
  expect(top).toBeGreaterThan(0);
  expect(top).toBeLessThan(200);
  // Near the end, half of the pane must not stay empty.
  const last = opening(WORLD, 600, 400, { x: 200, y: 3900, width: 100, height: 50 });
  expect(4000 * last.scale + last.y).toBeCloseTo(400 - 20);
  // A small drawing is shown completely.
  const small = { x: 0, y: 0, width: 300, height: 200 };
  expect(opening(small, 600, 400, { x: 0, y: 150, width: 10, height: 10 })).toEqual(opening(small, 600, 400));
});

test("resizing the pane keeps the centre", () => {
  const made = camera();
  made.lookAt(120, 340);
  made.resize([300, 900, 1]);
  const [x, y] = made.world(150, 450);
  expect(x).toBeCloseTo(120);
  expect(y).toBeCloseTo(340);
});

test("everything stays visible until the user moves the view", () => {
  const made = camera();
  made.fit(WORLD.width, WORLD.height);
  expect(made.isFitted).toBe(true);
  made.pan(3, 0);
  expect(made.isFitted).toBe(false);
});

function drawingOf(program: Program): Drawing {
  const tree = treeOf(modelOf({ primal: program }), [0]);
  const scene = sceneOf(tree, () => false);
  return new Drawing(tree, scene, placeAll(scene.shape));
}

test("the largest box is one with a large share of the equations, if any", () => {
  const drawing = drawingOf(layers(8));
  const { tree, scene, at } = drawing;
  const box = scene.boxOf[tree.kind.indexOf(REPEAT)]!;
  expect(drawing.largest()).toEqual({
    x: at.x[box],
    y: at.y[box],
    width: at.width[box],
    height: at.height[box],
  });
  const chain = Array.from({ length: 12 }, (_, i) => ({ text: `x${i + 1} = sin x${i}` }));
  expect(drawingOf({ inputs: ["x0"], equations: chain, results: ["x12"] }).largest()).toBeUndefined();
});
