/** The worker: computes a layout for each message. */

import type { Answer, Layouter } from "./client";
import type { Dot } from "./graphviz";
import { placeAll } from "./place";
import { prettier } from "./quality";
import type { Shape } from "./shape";

type Request = [id: number, shape: Shape, by: Layouter, graphviz: string];

let dot: Promise<Dot> | undefined;

/** Graphviz, from its source: on a page opened from a file, a worker cannot load URLs. */
async function loaded(source: string): Promise<Dot> {
  const url = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
  return (await import(url)).loadDot();
}

self.onmessage = async ({ data: [id, shape, by, source] }: MessageEvent<Request>) => {
  const own = placeAll(shape);
  const answer: Answer = [id, own, ""];
  if (source !== "")
    try {
      dot ??= loaded(source);
      answer[1] = prettier(shape, own, await dot, by === "graphviz");
    } catch (error) {
      dot = undefined;
      answer[2] = `Graphviz could not be loaded: ${error}`;
    }
  postMessage(answer);
};
