// A notebook widget: the attention view in an element of the notebook's page.

export default {
  async render({ model, el }) {
    el.classList.add("attngeo-widget");
    const place = element("div");
    el.append(place);
    const view = await mountAttention(place, model.get("data"));
    return () => view.observer.disconnect();
  },
};
