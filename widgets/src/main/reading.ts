/** Creates models from Python's data; all views on a page share them. */

import { isZipped, unzipped } from "../host/zip";
import { Model } from "../model/model";
import { preparing } from "../model/overview";
import { atOnce, inSlices, type Sliced } from "../model/slices";
import { decoding } from "../wire/schema";

/** The model of each block, so that another view of it need not decode it again. */
const models = new WeakMap<DataView, Model>();

/** Models that are being decoded. */
const underWay = new WeakMap<DataView, Promise<Model>>();

/** Blocks of at most this many bytes are decoded synchronously. */
const FEW = 500_000;

/**
 * The model of a block and of the data that arrives later; a promise only if it has to be decompressed, as in a saved page, or is large.
 */
export function modelIn(block: DataView, later: DataView | null = null): Model | Promise<Model> {
  const before = underWay.get(block);
  if (before) return before.then(() => modelIn(block, later));
  const made = models.get(block);
  if (made && (later === null || made.view.is_whole)) return made;
  const isQuick = (each: DataView | null) => each === null || (!isZipped(each) && each.byteLength <= FEW);
  if (isQuick(block) && isQuick(later)) {
    const model = atOnce(reading(block, later, made));
    models.set(block, model);
    return model;
  }
  const read = async () => {
    const [first, rest] = await Promise.all([made ? block : plain(block), later && plain(later)]);
    const model = await inSlices(reading(first, rest, made));
    models.set(block, model);
    return model;
  };
  const promise = read().finally(() => underWay.delete(block));
  underWay.set(block, promise);
  return promise;
}

const plain = async (block: DataView) => (isZipped(block) ? new DataView(await unzipped(block)) : block);

function* reading(block: DataView, later: DataView | null, made: Model | undefined): Sliced<Model> {
  const model = made ?? new Model(yield* decoding(block));
  if (later && !model.view.is_whole) {
    const { hasHues } = model;
    model.complete(yield* decoding(later, model.view));
    if (hasHues) yield* model.colouring();
  }
  if (model.view.is_whole) yield* preparing(model);
  return model;
}
