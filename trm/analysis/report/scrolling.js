"use strict";
(function () {
  function mark() {
    document.querySelectorAll(".scroll").forEach((box) => {
      box.classList.toggle("wide", box.scrollWidth > box.clientWidth + 1);
    });
  }
  window.addEventListener("resize", mark);
  document.addEventListener("toggle", mark, true);
  window.addEventListener("beforeprint", () => {
    document.querySelectorAll("details").forEach((part) => { part.open = true; });
  });
  mark();
})();
