/** What stages, colours and letters mean, for the help. */

import type { Meanings } from "../main/frame";
import { ROLE_LETTERS } from "../model/roles";

export const MEANINGS: readonly Meanings[] = [
  [
    "The overview",
    [
      [
        "what runs",
        "functions, modules and lines, forward then backward; what repeats is one box, × how often, and in it one time of it",
      ],
      [
        "kept",
        "each expression from where its values are made until the backward pass has read them; as thick as their bytes",
      ],
      [
        "memory",
        "all that is there at each moment, by what it is there for; a model, in which XLA's fusion does not count",
      ],
    ],
  ],
  [
    "In motion",
    [
      [
        "what runs",
        "an equation of the forward or of the backward pass, with its line; in the order of the model",
      ],
      [
        "bins",
        "what is in memory of each kept expression, and of the rest; as high as what it holds at most",
      ],
    ],
  ],
  [
    "Line by line",
    [
      ["kept", "bytes that are kept for the backward pass, without the arguments"],
      ["forward", "FLOPs of the forward pass, all iterations and layers together"],
      ["backward", "the same of the backward pass"],
      ["recomputed", "of these what computes again what the forward pass did"],
    ],
  ],
  [
    "Stages",
    [
      ["f", "the function itself, as JAX traces it"],
      ["jvp", "values and tangents at once: forward mode"],
      ["forward", "the values, and what the backward pass needs of them: the residuals"],
      ["linear", "what is linear in the tangents, which reads the residuals"],
      ["backward", "the linear program transposed: from cotangents of results to those of arguments"],
      ["compiled", "forward and backward as one program, as JAX hands it to XLA, and what XLA makes of it"],
    ],
  ],
  [
    "Letters beside equations",
    [
      [`${ROLE_LETTERS["tangent"]} tangent`, "is part of a derivative in forward mode", "jv-role-tangent"],
      [
        `${ROLE_LETTERS["residual"]} residual`,
        "makes a value that is kept for the backward pass",
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
        "is run again, for a checkpoint",
        "jv-role-recomputation",
      ],
      [
        `${ROLE_LETTERS["zero"]} zero, ${ROLE_LETTERS["dummy"]} dummy`,
        "fills a place: a derivative that is zero, what another branch saves",
      ],
    ],
  ],
  [
    "Colours",
    [
      ["kept", "values that wait for the backward pass", "jv-swatch jv-of-residual"],
      ["arguments", "what the function is called with", "jv-swatch jv-of-argument"],
      ["temporaries", "what is read soon after it is made", "jv-swatch jv-of-temporary"],
      ["cotangents", "derivatives on their way back", "jv-swatch jv-of-cotangent"],
      ["results", "the value and the gradients", "jv-swatch jv-of-result"],
    ],
  ],
];
