/** The animation of a gradient. */

export { moving } from "../../model/motion";
export { MotionPane } from "../../panes/motion";
export { default as sheet } from "../../styles/motion.css";
