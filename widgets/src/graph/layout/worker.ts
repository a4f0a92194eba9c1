/** The worker: a layout for each message. */

import { placeAll, type Shape } from "./place";

self.onmessage = ({ data: [id, shape] }: MessageEvent<[number, Shape]>) => {
  postMessage([id, placeAll(shape)]);
};
