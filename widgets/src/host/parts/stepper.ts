/** The stepper. */

export { fillStepper } from "../../stepper/index";
export { default as sheet } from "../../styles/stepper.css";
