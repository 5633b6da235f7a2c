// The ways in which photos come: chosen, taken, dropped or pasted.
import { byId, t } from "./base.js";

/** Call `take` with the files of each. */
export function intake(take) {
  const chooser = byId("file");
  const camera = byId("camera");
  const plate = document.querySelector(".plate");
  chooser.multiple = true; // the server's own form takes one at a time

  for (const input of [chooser, camera]) {
    input.addEventListener("change", () => {
      take([...input.files]);
      input.value = ""; // so that choosing the same photo again asks again
    });
    // Space opens the chooser by itself, Enter does not.
    input.addEventListener("keydown", (event) => {
      if (event.key !== "Enter") return;
      event.preventDefault();
      input.click();
    });
  }
  byId("ask").addEventListener("submit", (event) => event.preventDefault());

  const brings = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");
  document.addEventListener("dragover", (event) => {
    if (!brings(event)) return;
    event.preventDefault();
    plate.classList.add("over");
  });
  document.addEventListener("dragleave", (event) => {
    if (!event.relatedTarget) plate.classList.remove("over");
  });
  document.addEventListener("drop", (event) => {
    if (!brings(event)) return;
    event.preventDefault();
    plate.classList.remove("over");
    take([...event.dataTransfer.files]);
  });
  document.addEventListener("paste", (event) => {
    const files = [...(event.clipboardData?.files ?? [])];
    if (files.length) take(files.map(named));
  });
}

/** What is pasted is called image.png whatever it is. */
const named = (file) => file.name === "image.png" ? new File([file], t("pasted"), { type: file.type }) : file;
