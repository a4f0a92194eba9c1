/** Creates models from Python's data; all views on a page share them. */

import { atOnce, inSlices, type Sliced } from "../base/slices";
import { isZipped, unzipped } from "../host/zip";
import { Model } from "../model/model";
import { preparing } from "../model/overview";
import { decoding } from "../wire/schema";

/** The model of each block, so that another view of it need not decode it again. */
const models = new WeakMap<DataView, Model>();

/** Models that are being decoded. */
const underWay = new WeakMap<DataView, Promise<Model>>();

/** Blocks of at most this many bytes are decoded synchronously. */
const FEW = 500_000;

/**
 * The model of a block and of those that arrived later; a promise only if they have to be decompressed, as in a saved page, or are large.
 */
export function modelIn(block: DataView, later: readonly DataView[] = []): Model | Promise<Model> {
  const before = underWay.get(block);
  if (before) return before.then(() => modelIn(block, later));
  const made = models.get(block);
  const unread = made ? later.slice(partsOf(made) - 1) : [block, ...later];
  if (made && unread.length === 0) return made;
  if (unread.every((each) => !isZipped(each) && each.byteLength <= FEW)) {
    const model = atOnce(reading(unread, made));
    models.set(block, model);
    return model;
  }
  const read = async () => {
    const model = await inSlices(reading(await Promise.all(unread.map(plain)), made));
    models.set(block, model);
    return model;
  };
  const promise = read().finally(() => underWay.delete(block));
  underWay.set(block, promise);
  return promise;
}

const plain = async (block: DataView) => (isZipped(block) ? new DataView(await unzipped(block)) : block);

/** How many of the blocks are in a model: programs, groups, memory, details. */
const partsOf = ({ view }: Model) =>
  1 + [view.has_groups, view.has_memory, view.is_whole].filter(Boolean).length;

function* reading(blocks: readonly DataView[], made: Model | undefined): Sliced<Model> {
  let model = made;
  for (const block of blocks)
    if (model === undefined) model = new Model(yield* decoding(block));
    else {
      const { hasHues } = model;
      model.complete(yield* decoding(block, model.view));
      if (hasHues) yield* model.colouring();
    }
  if (model!.view.has_memory) yield* preparing(model!);
  return model!;
}
