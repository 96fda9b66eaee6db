// Draws the diagrams of the book.
const blocks = document.querySelectorAll("code.language-mermaid");
if (blocks.length > 0) {
  for (const block of blocks) {
    const drawing = document.createElement("pre");
    drawing.className = "mermaid";
    drawing.textContent = block.textContent;
    block.parentElement.replaceWith(drawing);
  }
  import("https://cdn.jsdelivr.net/npm/mermaid@11/dist/mermaid.esm.min.mjs").then((module) =>
    module.default.run()
  );
}
