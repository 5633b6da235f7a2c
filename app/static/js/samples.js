// Sample photos to click, fetched while the browser is idle.
const idle = globalThis.requestIdleCallback ?? ((task) => setTimeout(task, 200));

/** Call `take` with the file of the clicked photo. */
export function samples(take) {
  for (const button of document.querySelectorAll("button.sample")) {
    const picture = button.querySelector("img");
    idle(() => { picture.src = button.dataset.picture; });
    button.addEventListener("click", async () => {
      try {
        const blob = await (await fetch(button.dataset.picture)).blob();
        take([new File([blob], button.dataset.name, { type: blob.type })]);
      } catch {
        // The server is not reachable: the card of an empty photo shows the error.
        take([new File([], button.dataset.name, { type: "image/jpeg" })]);
      }
    });
  }
}
