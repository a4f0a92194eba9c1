/** Asks for layouts: small ones at once, large ones from a worker, so that the page goes on. */

import { type Positions, placeAll, type Shape } from "./place";

/** The source of the worker, which the build puts in; there is none in tests. */
declare const LAYOUT_WORKER: string | undefined;

/** Up to so many boxes and edges a worker is not worth the way there and back. */
const FEW = 3000;

let worker: Worker | null | undefined;
let asked = 0;
const waiting = new Map<number, { shape: Shape; done: (positions: Positions) => void }>();

/** Calls back with the layout of what is visible: before this returns, where that is quick or no worker can be made. */
export function place(shape: Shape, done: (positions: Positions) => void): void {
  const found = shape.parent.length + shape.from.length <= FEW ? null : theWorker();
  if (found === null) {
    done(placeAll(shape));
    return;
  }
  asked += 1;
  waiting.set(asked, { shape, done });
  found.postMessage([asked, shape]);
}

/** One worker for all panes, made when first needed; null on a page that does not allow it. */
function theWorker(): Worker | null {
  if (worker !== undefined) return worker;
  worker = null;
  if (typeof LAYOUT_WORKER === "undefined" || typeof Worker === "undefined") return null;
  try {
    const url = URL.createObjectURL(new Blob([LAYOUT_WORKER], { type: "text/javascript" }));
    worker = new Worker(url);
    worker.onmessage = ({ data: [id, positions] }: MessageEvent<[number, Positions]>) => {
      const request = waiting.get(id);
      waiting.delete(id);
      request?.done(positions);
    };
    // A page may refuse it only when it starts: what was asked for is then worked out here.
    worker.onerror = () => {
      worker = null;
      const left = [...waiting.values()];
      waiting.clear();
      for (const { shape, done } of left) done(placeAll(shape));
    };
  } catch {
    worker = null;
  }
  return worker;
}
