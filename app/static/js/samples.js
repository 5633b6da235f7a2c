// Photos to click; they are fetched when the browser has nothing else to do.
const idle = globalThis.requestIdleCallback ?? ((task) => setTimeout(task, 200));

/** Call `take` with the file of the photo that was clicked. */
export function samples(take) {
  for (const button of document.querySelectorAll("button.sample")) {
    const picture = button.querySelector("img");
    idle(() => { picture.src = button.dataset.picture; });
    button.addEventListener("click", async () => {
      try {
        const blob = await (await fetch(button.dataset.picture)).blob();
        take([new File([blob], button.dataset.name, { type: blob.type })]);
      } catch {
        // The server cannot be reached: an empty photo of that name makes the card say so.
        take([new File([], button.dataset.name, { type: "image/jpeg" })]);
      }
    });
  }
}
