/** What the gradient costs, ranked. */

export { CostsPane } from "../../panes/costs";
export { default as sheet } from "../../styles/costs.css";
