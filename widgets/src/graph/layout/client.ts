/** Requests layouts: small ones are computed immediately; large ones, and Graphviz's, come from a worker, so that the page stays responsive. */

import type { Dot } from "./graphviz";
import { placeAll } from "./place";
import { prettier } from "./quality";
import type { Positions, Shape } from "./shape";

/** The source of the worker, which the build puts in; there is none in tests. */
declare const LAYOUT_WORKER: string | undefined;

/** By whom it is laid out: by Graphviz where that is better and takes no time, always where it can be, or never. */
export type Layouter = "auto" | "graphviz" | "layered";

/** The source of the module that is Graphviz, for the worker; and itself, for a page that allows no worker. */
export interface Graphviz {
  source: string;
  dot(): Promise<Dot>;
}

export const NO_GRAPHVIZ = "Laid out without Graphviz: it is not loaded, or there are too many boxes.";

/** Up to so many boxes and edges a worker is not worth the way there and back. */
const FEW = 300;
/** Up to so many boxes, ports and edges Graphviz takes less than half a second; and up to so many it is asked where somebody wants it. */
const PRETTY = 1000;
const PRETTY_IF_ASKED = 2500;
/** Our own layout is shown first if Graphviz takes longer, in milliseconds. */
const PATIENCE = 300;

let worker: Worker | null | undefined;
let asked = 0;
const waiting = new Map<number, { shape: Shape; by: Layouter; done: (positions: Positions) => void }>();

/** Graphviz, once it is loaded; null where it could not be, as while the kernel is busy: it is then got anew if somebody asks for it by name. */
let graphviz: Graphviz | null | undefined;
let loading: Promise<void> | undefined;

/**
 * Calls back with the layout of what is visible: before this returns, where that is quick or no worker can be made.
 *
 * @param load gets Graphviz. Until it is there, which it may never be, the layout is our own; `done` is then called once more.
 */
export function place(
  shape: Shape,
  by: Layouter,
  load: () => Promise<Graphviz>,
  done: (positions: Positions, isAgain: boolean) => void,
): void {
  const size = shape.parent.length + shape.from.length;
  const most = by === "layered" ? 0 : by === "graphviz" ? PRETTY_IF_ASKED : PRETTY;
  if (graphviz === null && by === "graphviz") graphviz = loading = undefined;
  const own = (then: (positions: Positions) => void) => {
    if (size <= FEW) then(placeAll(shape));
    else work(shape, "layered", null, then);
  };
  if (size > most || graphviz === null) {
    own((positions) => done(positions, false));
    return;
  }
  if (graphviz !== undefined) {
    let isShown = false;
    const show = (positions: Positions) => {
      done(positions, false);
      isShown = true;
    };
    const timer = setTimeout(() => !isShown && size <= FEW && show(placeAll(shape)), PATIENCE);
    work(shape, by, graphviz, (positions) => {
      clearTimeout(timer);
      if (!isShown) show(positions);
      else if (positions.curved) done(positions, true);
    });
    return;
  }
  own((positions) => done(positions, false));
  loading ??= load().then(
    (found) => {
      graphviz = found;
    },
    () => {
      graphviz = null;
    },
  );
  loading.then(() => {
    if (graphviz) work(shape, by, graphviz, (positions) => positions.curved && done(positions, true));
  });
}

/** Has a worker lay it out; or does so here, where there is none. */
function work(shape: Shape, by: Layouter, dot: Graphviz | null, done: (positions: Positions) => void): void {
  const found = theWorker();
  if (found !== null) {
    asked += 1;
    waiting.set(asked, { shape, by, done });
    found.postMessage([asked, shape, by, dot?.source ?? ""]);
  } else if (dot === null) done(placeAll(shape));
  else
    dot.dot().then(
      (program) => done(prettier(shape, placeAll(shape), program, by === "graphviz")),
      (error) => {
        console.warn(error);
        graphviz = null;
        done(placeAll(shape));
      },
    );
}

/** What the worker answers: a layout, and why it is without Graphviz where that was asked for. */
export type Answer = [id: number, positions: Positions, error: string];

/** One worker for all panes, made when first needed; null on a page that does not allow it. */
function theWorker(): Worker | null {
  if (worker !== undefined) return worker;
  worker = null;
  if (typeof LAYOUT_WORKER === "undefined" || typeof Worker === "undefined") return null;
  try {
    const url = URL.createObjectURL(new Blob([LAYOUT_WORKER], { type: "text/javascript" }));
    worker = new Worker(url);
    worker.onmessage = ({ data: [id, positions, error] }: MessageEvent<Answer>) => {
      if (error) {
        console.warn(error);
        graphviz = null;
      }
      const request = waiting.get(id);
      waiting.delete(id);
      request?.done(positions);
    };
    // A page may refuse it only when it starts: what was asked for is then worked out here.
    worker.onerror = () => {
      worker = null;
      const left = [...waiting.values()];
      waiting.clear();
      for (const { shape, by, done } of left) work(shape, by, null, done);
    };
  } catch {
    worker = null;
  }
  return worker;
}
