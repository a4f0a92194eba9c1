/** For each stage of some views, with all boxes open: the number of edge crossings in our own layout and in Graphviz's. */

import { Graphviz } from "@hpcc-js/wasm-graphviz";
import { placeByDot } from "../src/graph/layout/graphviz";
import { treeOf } from "../src/graph/layout/hierarchy";
import { placeAll } from "../src/graph/layout/place";
import { crossings } from "../src/graph/layout/quality";
import { sceneOf } from "../src/graph/layout/scene";
import { CLOSED, OPEN, type Positions } from "../src/graph/layout/shape";
import { Model } from "../src/model/model";
import { decode } from "../src/wire/schema";

/** The figures of one stage: ours, then Graphviz's. */
interface Found {
  stage: string;
  boxes: number;
  crossings: [number, number];
  width: [number, number];
  milliseconds: [number, number];
}

/** The figures of a view. @param bytes the encoded view. */
export async function measured(bytes: Uint8Array<ArrayBuffer>): Promise<Found[]> {
  const graphviz = await Graphviz.load();
  const dot = (text: string) => graphviz.layout(text, "json0" as "json", "dot");
  const model = new Model(decode(new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength)));
  return model.view.stages.flatMap(({ key, programs }, stage) => {
    if (programs[0] === programs[1]) return [];
    const { shape } = sceneOf(treeOf(model, [stage]), () => true);
    const timed = (place: () => Positions): [Positions, number] => {
      const start = performance.now();
      const at = place();
      return [at, performance.now() - start];
    };
    // The first run of each is a warm-up.
    placeAll(shape);
    const [ours, own] = timed(() => placeAll(shape));
    const [theirs, other] = timed(() => placeByDot(shape, dot));
    return {
      stage: key,
      boxes: shape.kind.reduce((sum, kind) => sum + Number(kind === CLOSED || kind === OPEN), -1),
      crossings: [crossings(shape, ours), crossings(shape, theirs)] as [number, number],
      width: [ours.width[0]!, theirs.width[0]!] as [number, number],
      milliseconds: [own, other] as [number, number],
    };
  });
}
