// Start the page once it is read. `window.attngeo` lets other pages and tests use the same parts.

window.attngeo = { mount: mountAttention, Network, PlotFigure, loadPlotly, page: null };
if (document.getElementById("page-data")) {
  window.attngeo.page = new Page();
  window.attngeo.page.start().catch((error) => {
    const message = document.getElementById("failed");
    message.hidden = false;
    message.append(" " + error.message);
    throw error;
  });
}
