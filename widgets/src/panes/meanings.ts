/** What stages, colours and letters mean, for the help. */

import type { Meanings } from "../main/frame";
import { ROLE_LETTERS } from "../model/roles";

export const MEANINGS: readonly Meanings[] = [
  [
    "The overview",
    [
      [
        "what runs",
        "functions, modules and lines, forward then backward; what repeats is one box with a count (×), which shows one repetition",
      ],
      [
        "saved",
        "each expression, from where its values are computed until the backward pass has read them; the thickness shows their bytes",
      ],
      ["memory", "everything in memory at each moment, by kind; a model that ignores XLA's fusion"],
    ],
  ],
  [
    "In motion",
    [
      [
        "what runs",
        "an equation of the forward or the backward pass, with its line, in the order of the model",
      ],
      [
        "bins",
        "the bytes in memory of each saved expression, and of the rest; each bar is as high as its maximum",
      ],
    ],
  ],
  [
    "Line by line",
    [
      ["saved", "bytes saved for the backward pass, without the arguments"],
      ["forward", "FLOPs of the forward pass, all iterations and layers together"],
      ["backward", "the same of the backward pass"],
      ["recomputed", "of these, the FLOPs that recompute what the forward pass computed"],
    ],
  ],
  [
    "Stages",
    [
      ["f", "the function itself, as JAX traces it"],
      ["jvp", "values and tangents at once: forward mode"],
      ["forward", "the values, and those that the backward pass needs: the residuals"],
      ["linear", "the part that is linear in the tangents; it reads the residuals"],
      [
        "backward",
        "the linear program transposed: from cotangents of the results to cotangents of the arguments",
      ],
      ["compiled", "forward and backward as one program, as JAX passes it to XLA and as XLA compiles it"],
    ],
  ],
  [
    "Letters beside equations",
    [
      [`${ROLE_LETTERS["tangent"]} tangent`, "is part of a derivative in forward mode", "jv-role-tangent"],
      [
        `${ROLE_LETTERS["residual"]} residual`,
        "computes a value that is saved for the backward pass",
        "jv-role-residual",
      ],
      [
        `${ROLE_LETTERS["cotangent"]} cotangent`,
        "is part of a derivative in reverse mode",
        "jv-role-cotangent",
      ],
      [
        `${ROLE_LETTERS["accumulation"]} accumulation`,
        "adds cotangents of one value",
        "jv-role-accumulation",
      ],
      [
        `${ROLE_LETTERS["recomputation"]} recomputation`,
        "is recomputed for a checkpoint",
        "jv-role-recomputation",
      ],
      [
        `${ROLE_LETTERS["zero"]} zero, ${ROLE_LETTERS["dummy"]} dummy`,
        "fills a place: a zero derivative, or a residual that only another branch saves",
      ],
    ],
  ],
  [
    "Colours",
    [
      ["saved", "values saved for the backward pass", "jv-swatch jv-of-residual"],
      ["arguments", "arguments of the function", "jv-swatch jv-of-argument"],
      ["temporaries", "values that are read soon after they are computed", "jv-swatch jv-of-temporary"],
      ["cotangents", "derivatives in the backward pass", "jv-swatch jv-of-cotangent"],
      ["results", "the value of the function and the gradients", "jv-swatch jv-of-result"],
    ],
  ],
];
