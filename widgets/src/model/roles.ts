/** The roles of equations. */

/** The letter for a role where its name does not fit; colour alone is not enough. */
export const ROLE_LETTERS: Readonly<Record<string, string>> = {
  primal: "",
  tangent: "T",
  residual: "R",
  cotangent: "C",
  accumulation: "+",
  recomputation: "↻",
  zero: "0",
  dummy: "∅",
};
