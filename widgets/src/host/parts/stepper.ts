/** The stepper, which is another widget than the explorer. */

export { fillStepper } from "../../stepper/index";
export { default as sheet } from "../../styles/stepper.css";
